/* Flash attention, forward, on Hopper: 16-bit floats, products by warpgroups, copies by TMA.
 *
 * A persistent grid, one block an SM. One warp orders all copies: Q of a tile of 64 rows for each
 * consumer warpgroup, and K and V, STEP at a time, each through a ring of STAGES. A warpgroup
 * starts the scores of the next keys and the product of the last probabilities with V, and works
 * out the softmax of the new scores while the tensor cores are at the latter. ORDER lets the
 * warpgroups start their products in turn, so that one's softmax meets the other's products. Keys
 * are walked from the last that any query sees to the first, since causality hides only the last.
 * 4 D flops for each score that is seen, and one exponential; a soft cap takes another and a
 * reciprocal. */
#ifndef WARPGROUPS
#define WARPGROUPS 2
#endif
#ifndef STEP
#define STEP 128
#endif
#ifndef BLOCKS
#define BLOCKS 1 /* on a multiprocessor at a time */
#endif
#define Q_STAGES (STAGES > 2 ? 2 : 1)

#include "attention_wgmma_scores.cuh"

#if CUP_HAS_WGMMA

struct layout {
    uint32_t q, k, v;
    ring<Q_STAGES> q_pipe;
    ring<STAGES> k_pipe, v_pipe;
    unit_ring units;
};

DEVICE layout lay_out(uint32_t memory)
{
    layout at;
    at.q = memory;
    at.k = at.q + Q_STAGES * WARPGROUPS * ROW_BYTES;
    at.v = at.k + STAGES * STEP_BYTES;
    at.k_pipe.barriers = at.v + STAGES * STEP_BYTES;
    at.v_pipe.barriers = at.k_pipe.barriers + 16 * STAGES;
    at.q_pipe.barriers = at.v_pipe.barriers + 16 * STAGES;
    at.units.pipe.barriers = at.q_pipe.barriers + 16 * Q_STAGES;
    return at;
}

/* Tiles of keys, from the first on, up to the last that `rows` queries from `first` on see anything
 * of. */
DEVICE int tiles_seen(const attention_call &c, int batch, int first, int rows)
{
    int last = first + rows < c.queries ? first + rows : c.queries;
    int end = seen_by(c, batch, last - 1);
    return end > 0 ? (end + STEP - 1) / STEP : 0;
}

#define SPARSE (LISTS || SKIPS) /* not all tiles of a range are met */
#define NEARLY 4 /* tiles of keys before a unit's end the next one is asked for */
#define APART (WARPGROUPS > 2 && !SPARSE) /* warpgroups see ranges of their own */

/* The last of the tiles [begin, n] that lists, and a formula, let the queries of a tile from
 * `first` on see; begin - 1 where there is none. With a formula, by a warp. */
DEVICE int last_tile(const attention_call &c, const unit_of_queries &u, int first, int begin, int n,
                     known_tiles &known)
{
    n = listed_up_to(c, u.batch, u.head, first, ROWS, n, begin, STEP, known.list);
    return seen_up_to(c, u.batch, u.head, first, ROWS, n, begin, STEP, known);
}

DEVICE unit_of_queries unit_of_forward(const attention_call &c, int index)
{
    return APART && !CAUSAL && !QUEUED ? unit_with_short_last(c, index) : unit_at(c, index, ROWS);
}

/* Of the warp that orders all copies, the lane that does so; the others look for tiles with it. */
DEVICE void produce(const attention_call &c, const tensor_map &q, const tensor_map &k,
                    const tensor_map &v, const layout &at, bool leads)
{
    ring_place<Q_STAGES> q_place = {0, 0};
    ring_place<STAGES> k_place = {0, 0}, v_place = {0, 0};
    unit_taker<true> units;
    for (int i = units.first(at.units); i < units_of(c, ROWS); i = units.next(at.units, i)) {
        unit_of_queries u = unit_of_forward(c, i);
        int kv = u.head / (c.heads / c.kv_heads);
        for (int half = 0; half < u.count; half++) {
            known_tiles known(0, 0);
            int tiles = tiles_seen(c, u.batch, u.first(half), ROWS);
            int begin = first_tile(c, u.batch, u.first(half), STEP);
            if (SPARSE)
                tiles = last_tile(c, u, u.first(half), begin, tiles - 1, known) + 1;
            if (tiles == 0 || ((WINDOW || SPARSE) && tiles <= begin))
                continue;
            if (leads) {
                at.q_pipe.claim(q_place, WARPGROUPS * ROW_BYTES);
                for (int w = 0; w < WARPGROUPS; w++)
                    bring<64>(q, at.q + (q_place.stage * WARPGROUPS + w) * ROW_BYTES,
                              at.q_pipe.full(q_place.stage), u.first(half) + 64 * w, u.head,
                              u.batch, TMA_EVICT_FIRST);
            }
            q_place.next();
            int before = tiles; /* the tile that was met before tile n */
            for (int n = tiles - 1; n >= begin - 1; n--) {
                if (n < begin + NEARLY)
                    units.let_go(at.units);
                if (n >= begin) {
                    if (leads) {
                        at.k_pipe.claim(k_place, STEP_BYTES);
                        bring<STEP>(k, at.k + k_place.stage * STEP_BYTES,
                                    at.k_pipe.full(k_place.stage), n * STEP, kv, u.batch,
                                    TMA_EVICT_LAST);
                    }
                    k_place.next();
                }
                if (n < tiles - 1) {
                    if (leads) {
                        at.v_pipe.claim(v_place, STEP_BYTES);
                        bring<STEP>(v, at.v + v_place.stage * STEP_BYTES,
                                    at.v_pipe.full(v_place.stage),
                                    (SPARSE ? before : n + 1) * STEP, kv, u.batch, TMA_EVICT_LAST);
                    }
                    v_place.next();
                }
                if (SPARSE) {
                    before = n;
                    n = n < begin ? n : last_tile(c, u, u.first(half), begin, n - 1, known) + 1;
                }
            }
        }
    }
}

/* One tile of queries against its keys. What a warpgroup keeps from tile to tile. */
struct consumer {
    place at;
    uint64_t q, k, v; /* descriptions of its rows, and of the first stages */
    ring_place<Q_STAGES> q_place;
    ring_place<STAGES> k_place, v_place;
};

/* The rows of the warpgroup's queries. */
DEVICE uint64_t rows_of(const consumer &w)
{
    return w.q + (WARPGROUPS * ROW_BYTES >> 4) * w.q_place.stage;
}

/* Lets go of tiles that no query of this warpgroup sees and others of the block do. */
DEVICE void pass_by(const layout &at, consumer &w, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        wait_turn(w.at.group);
        pass_turn(w.at.group);
        at.k_pipe.wait_full(w.k_place);
        at.k_pipe.release<1>(w.k_place.stage);
        w.k_place.next();
        at.v_pipe.wait_full(w.v_place);
        at.v_pipe.release<1>(w.v_place.stage);
        w.v_place.next();
    }
}

/* A tile of queries none of which is this warpgroup's: it has a turn more than there are tiles of
 * keys, as the others have. */
DEVICE void stand_by(const layout &at, consumer &w, int tiles)
{
    pass_by(at, w, tiles);
    wait_turn(w.at.group);
    pass_turn(w.at.group);
    at.q_pipe.wait_full(w.q_place);
    at.q_pipe.release<1>(w.q_place.stage);
    w.q_place.next();
}

/* The scores of tile n; `query` is the first of the warp. */
DEVICE void to_probabilities(const attention_call &c, int n, bool whole, int query,
                             const row_sight &see, const bias_words &bias, int row, scores &s,
                             softmax_state &state, float (&fade)[2])
{
    int low = query + lane() / 4;
    scores cap_back;
    change_scores(c, see, bias, n * STEP, whole, s, cap_back);
    mask_unseen(c, see, low, n, s);
    hide_unlisted(c, row, query, n * STEP, s);
    soften(s, state, fade, power_scale(c));
    if (DROPOUT)
        drop(c, s, row, query, n * STEP);
    wgmma_hold(s);
}

/* Starts the scores of tile n and the product of the probabilities before with their values, and
 * makes the scores probabilities while the latter is under way. */
DEVICE void step(const attention_call &c, const layout &at, consumer &w, int n, bool whole,
                 int query, const row_sight &see, int row, scores &s, const fragments &p,
                 results &o, softmax_state &state, float (&fade)[2])
{
    bias_words bias;
    wait_turn(w.at.group);
    wgmma_fence();
    start_scores(s, rows_of(w), w.k + (STEP_BYTES >> 4) * w.k_place.stage);
    at.v_pipe.wait_full(w.v_place);
    wgmma_fence();
    start_results(o, p, w.v + (STEP_BYTES >> 4) * w.v_place.stage);
    pass_turn(w.at.group);
    load_bias(c, see, n * STEP, bias);
    wgmma_wait<1>();
    wgmma_hold(s);
    at.k_pipe.release<1>(w.k_place.stage);
    w.k_place.next();
    to_probabilities(c, n, whole, query, see, bias, row, s, state, fade);
}

/* Waits for the product with V, if there was one, makes its sums relative to the maximum found
 * meanwhile, and packs the probabilities for the next. */
DEVICE void end_step(const layout &at, consumer &w, const scores &s, fragments &p, results &o,
                     const float (&fade)[2], bool there_was)
{
    wgmma_wait<0>();
    wgmma_hold(o);
    if (there_was) {
        at.v_pipe.release<1>(w.v_place.stage);
        w.v_place.next();
    }
    fade_rows(o, fade);
    pack_a(p, s);
}

/* One tile of queries against its keys. The waits for K between the steps also keep the compiler
 * from moving the end of one in front of its softmax. */
DEVICE void walk(const attention_call &c, const layout &at, consumer &w, const unit_of_queries &u,
                 int first, int begin, int tiles, known_tiles &known, results &o,
                 softmax_state &state)
{
    int query = first + 64 * w.at.group + 16 * w.at.warp;
    row_sight see = sight_of_rows(c, u.batch, u.head, first + 64 * w.at.group, query);
    bias_words bias;
    float fade[2];
    scores s;
    fragments p;
    bool more = false; /* tiles than one were met */
    at.q_pipe.wait_full(w.q_place);
    at.k_pipe.wait_full(w.k_place);
    wait_turn(w.at.group);
    wgmma_fence();
    start_scores(s, rows_of(w), w.k + (STEP_BYTES >> 4) * w.k_place.stage);
    pass_turn(w.at.group);
    load_bias(c, see, (tiles - 1) * STEP, bias);
    wgmma_wait<0>();
    wgmma_hold(s);
    at.k_pipe.release<1>(w.k_place.stage);
    w.k_place.next();
    to_probabilities(c, tiles - 1, known.is_whole(tiles - 1), query, see, bias, u.row, s, state,
                     fade);
#pragma unroll 1
    for (int n = last_tile(c, u, first, begin, tiles - 2, known); n >= begin;
         n = last_tile(c, u, first, begin, n - 1, known)) {
        at.k_pipe.wait_full(w.k_place);
        end_step(at, w, s, p, o, fade, SPARSE ? more : n < tiles - 2);
        more = true;
        step(c, at, w, n, known.is_whole(n), query, see, u.row, s, p, o, state, fade);
    }
    at.q_pipe.release<1>(w.q_place.stage);
    w.q_place.next();
    end_step(at, w, s, p, o, fade, SPARSE ? more : tiles > begin + 1);
    at.v_pipe.wait_full(w.v_place);
    wait_turn(w.at.group);
    wgmma_fence();
    start_results(o, p, w.v + (STEP_BYTES >> 4) * w.v_place.stage);
    pass_turn(w.at.group);
    wgmma_wait<0>();
    wgmma_hold(o);
    at.v_pipe.release<1>(w.v_place.stage);
    w.v_place.next();
}

/* Of the tiles [begin, tiles) that a block meets, the warpgroup walks over those that its own rows,
 * from `own` on, see anything of. */
DEVICE void walk_own(const attention_call &c, const layout &at, consumer &w,
                     const unit_of_queries &u, int first, int begin, int tiles, known_tiles &known,
                     results &o, softmax_state &state)
{
    int own = first + 64 * w.at.group, from = begin, end = tiles;
    if (APART && (CAUSAL || WINDOW)) {
        int seen = tiles_seen(c, u.batch, own, 64), unseen = first_tile(c, u.batch, own, STEP);
        end = seen < tiles ? seen : tiles;
        from = unseen > begin ? unseen : begin;
    }
    if (APART && (own >= c.queries || end <= from)) {
        stand_by(at, w, tiles - begin);
        return;
    }
    pass_by(at, w, tiles - end);
    walk(c, at, w, u, first, from, end, known, o, state);
    pass_by(at, w, from - begin);
}

DEVICE void finish(const attention_call &c, const unit_of_queries &u, int query, results &o,
                   softmax_state &state)
{
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float fade = take_sink(c, u.head, &state.base[r], &sum);
        scale[r] = sum == 0 ? 0 : (DROPOUT ? c.factor : 1.0f) * fade / sum * scales_of(c).z;
        int at = query + lane() / 4 + 8 * r;
        if (c.lse && lane() % 4 == 0 && at < c.queries)
            ((float *)c.lse)[(long long)u.row * c.queries + at] =
                sum == 0 ? -INFINITE : (state.base[r] + log2f(sum)) * LN_2;
    }
    store_rows(c.size, head_of(c.o, u.batch, u.head), c.o.position, query, c.queries, o, scale[0],
               scale[1]);
}

DEVICE void consume(const attention_call &c, const layout &at)
{
    consumer w;
    w.at = find_place();
    w.q = wgmma_describe(at.q + w.at.group * ROW_BYTES, ALONG_K, 0);
    w.k = wgmma_describe(at.k, ALONG_K, 0);
    w.v = wgmma_describe(at.v, ALONG_MN, STEP * 128);
    w.q_place = {0, 0};
    w.k_place = w.v_place = {0, 0};
    if (ORDER && w.at.group == WARPGROUPS - 1)
        pass_turn(w.at.group);
    unit_taker<false> units;
    for (int i = units.first(at.units); i < units_of(c, ROWS); i = units.next(at.units, i)) {
        unit_of_queries u = unit_of_forward(c, i);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half);
            int tiles = tiles_seen(c, u.batch, first, ROWS);
            int begin = first_tile(c, u.batch, first, STEP);
            known_tiles known(first + 64 * w.at.group + 16 * w.at.warp, 16);
            if (SPARSE)
                tiles = last_tile(c, u, first, begin, tiles - 1, known) + 1;
            softmax_state state = {{-INFINITE, -INFINITE}, {0, 0}};
            results o;
            clear(o);
            if (tiles > begin)
                walk_own(c, at, w, u, first, begin, tiles, known, o, state);
            finish(c, u, first + 64 * w.at.group + 16 * w.at.warp, o, state);
        }
    }
    if (ORDER && w.at.group == 0)
        wait_turn(0);
}

#endif

/* The registers of a thread that copies, and of one that multiplies. */
#if BLOCKS > 1
#define GIVES 24
#define BEGINS_WITH (65536 / (THREADS * BLOCKS) / 8 * 8)
#define TAKES ((BEGINS_WITH * (WARPGROUPS + 1) - GIVES) / WARPGROUPS / 8 * 8)
#elif WARPGROUPS == 2
#define GIVES (QUEUED ? 40 : 24)
#define TAKES (QUEUED ? 232 : 240)
#else
#define GIVES 32
#define TAKES 160
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_sm90_fwd(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                       const __grid_constant__ tensor_map v,
                       const __grid_constant__ attention_call c)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    layout at = lay_out(shared_address(memory));
    if (at.q % 1024)
        __trap();
    if (threadIdx.x == 0) {
        tma_prefetch_map(q);
        tma_prefetch_map(k);
        tma_prefetch_map(v);
        at.q_pipe.init(4 * WARPGROUPS);
        at.k_pipe.init(4 * WARPGROUPS);
        at.v_pipe.init(4 * WARPGROUPS);
        at.units.init(4 * WARPGROUPS + 1);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<GIVES>();
        if (threadIdx.x < 32 && (SKIPS || elected()))
            produce(c, q, k, v, at, !SKIPS || elected());
#if QUEUED
        if (threadIdx.x == 32)
            give_units(c.queue, at.units, units_of(c, ROWS));
#endif
    } else {
        registers_take<TAKES>();
        consume(c, at);
    }
#endif
}
