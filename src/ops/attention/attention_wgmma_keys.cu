/* Flash attention, backward, on Hopper, second of two kernels: dk and dv.
 *
 * As the first, with keys as rows: a warpgroup owns 64 keys and walks over the queries that see
 * them, STEP at a time (a divisor of 128), of all heads of the group. Scores stand turned, rows
 * keys and columns queries, so that probabilities are in place to be multiplied with d_o and q. 8 B
 * H T S D flops, halved by causality. */
#ifndef STEP
#define STEP 64
#endif

#define WARPGROUPS 2
#include "attention_wgmma_turned.cuh"

#if CUP_HAS_WGMMA

#define NUMBER_BYTES (STEP * 4) /* of delta or of lse, of one step */

struct keys_layout {
    uint32_t k, v, q, d_o, numbers; /* numbers: of each stage the lse and the delta */
    ring<1> row_pipe;
    ring<STAGES> q_pipe, d_o_pipe;
    unit_ring units;
};

DEVICE keys_layout lay_out_keys(uint32_t memory)
{
    keys_layout at;
    at.k = memory;
    at.v = at.k + WARPGROUPS * ROW_BYTES;
    at.q = at.v + WARPGROUPS * ROW_BYTES;
    at.d_o = at.q + STAGES * STEP_BYTES;
    at.numbers = at.d_o + STAGES * STEP_BYTES;
    at.q_pipe.barriers = at.numbers + STAGES * 2 * NUMBER_BYTES;
    at.d_o_pipe.barriers = at.q_pipe.barriers + 16 * STAGES;
    at.row_pipe.barriers = at.d_o_pipe.barriers + 16 * STAGES;
    at.units.pipe.barriers = at.row_pipe.barriers + 16;
    return at;
}

/* A tile of keys of one head, and the steps of queries that see any of it, in each head of the
 * group. Where causality makes the first tile the longest, one block takes them from both ends. */
struct unit_of_keys {
    int batch, kv, count, late, early;

    __device__ __forceinline__ int first(int half) const
    {
        return half ? late : early;
    }
};

DEVICE int units_of_keys(const attention_call &c)
{
    int tiles = (c.keys + ROWS - 1) / ROWS;
    return (CAUSAL && !SKIPS ? (tiles + 1) / 2 : tiles) * c.batch * c.kv_heads;
}

DEVICE unit_of_keys unit_of_keys_at(const attention_call &c, int index)
{
    int tiles = (c.keys + ROWS - 1) / ROWS, each = CAUSAL ? (tiles + 1) / 2 : tiles;
    int at = index % each;
    int pair = SKIPS ? row_of_unit(index, c.batch * c.kv_heads, tiles, &at) : index / each;
    unit_of_keys u;
    u.batch = pair / c.kv_heads;
    u.kv = pair % c.kv_heads;
    u.early = at * ROWS;
    u.late = (CAUSAL && !SKIPS ? tiles - 1 - at : at) * ROWS;
    u.count = u.early != u.late ? 2 : 1;
    return u;
}

/* The first step of queries that sees any of the keys from `first` on, and how many follow. */
struct steps_of_keys {
    int first, count;
};

DEVICE steps_of_keys find_steps(const attention_call &c, int batch, int first)
{
    int unseen = CAUSAL ? first - (c.keys - c.queries) : 0;
    int last = (first + ROWS < c.keys ? first + ROWS : c.keys) - 1;
    if (WINDOW)
        unseen = first_seeing(c, batch, first);
    steps_of_keys s;
    s.first = (unseen < 0 ? 0 : unseen) / STEP;
    s.count = ((WINDOW ? end_seeing(c, batch, last) : c.queries) + STEP - 1) / STEP - s.first;
    s.count = s.count < 0 ? 0 : s.count;
    return s;
}

DEVICE void produce_step(const attention_call &c, const tensor_map &q, const tensor_map &d_o,
                         const keys_layout &at, const ring_place<STAGES> &place, int query,
                         int head, int batch)
{
    uint32_t numbers = at.numbers + place.stage * 2 * NUMBER_BYTES;
    long long from = ((long long)batch * c.heads + head) * padded(c) + query;
    at.q_pipe.claim(place, STEP_BYTES + NUMBER_BYTES);
    bring<STEP>(q, at.q + place.stage * STEP_BYTES, at.q_pipe.full(place.stage), query, head, batch,
                TMA_EVICT_LAST);
    bulk_load(numbers, (const float *)c.lse_log2 + from, NUMBER_BYTES, at.q_pipe.full(place.stage));
    at.d_o_pipe.claim(place, STEP_BYTES + NUMBER_BYTES);
    bring<STEP>(d_o, at.d_o + place.stage * STEP_BYTES, at.d_o_pipe.full(place.stage), query, head,
                batch, TMA_EVICT_LAST);
    bulk_load(numbers + NUMBER_BYTES, (const float *)c.delta + from, NUMBER_BYTES,
              at.d_o_pipe.full(place.stage));
}

/* The rows of a unit's tile. */
DEVICE void produce_rows(const tensor_map &k, const tensor_map &v, const keys_layout &at,
                         const ring_place<1> &place, const unit_of_keys &u, int first)
{
    at.row_pipe.claim(place, 2 * WARPGROUPS * ROW_BYTES);
    for (int w = 0; w < WARPGROUPS; w++) {
        bring<64>(k, at.k + w * ROW_BYTES, at.row_pipe.full(0), first + 64 * w, u.kv, u.batch,
                  TMA_EVICT_FIRST);
        bring<64>(v, at.v + w * ROW_BYTES, at.row_pipe.full(0), first + 64 * w, u.kv, u.batch,
                  TMA_EVICT_FIRST);
    }
}

/* Of the warp that orders all copies, the lane that does so; the others look for tiles with it. */
DEVICE void produce_keys(const attention_call &c, const tensor_map &q, const tensor_map &k,
                         const tensor_map &v, const tensor_map &d_o, const keys_layout &at,
                         bool leads)
{
    ring_place<1> row_place = {0, 0};
    ring_place<STAGES> place = {0, 0};
    int group = c.heads / c.kv_heads;
    unit_taker<true> units;
    for (int i = units.first(at.units); i < units_of_keys(c); i = units.next(at.units, i)) {
        unit_of_keys u = unit_of_keys_at(c, i);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half);
            steps_of_keys steps = find_steps(c, u.batch, first);
            if (steps.count == 0)
                continue;
            if (leads)
                produce_rows(k, v, at, row_place, u, first);
            row_place.next();
            for (int head = u.kv * group; head < (u.kv + 1) * group; head++) {
                known_tiles known(0, 0);
                for (int n = 0; n < steps.count; n++) {
                    if (SKIPS)
                        n = seeing_from(c, u.batch, head, first, ROWS, steps.first + n,
                                        steps.first + steps.count, STEP, known) -
                            steps.first;
                    if (SKIPS && n >= steps.count)
                        break;
                    if (leads)
                        produce_step(c, q, d_o, at, place, (steps.first + n) * STEP, head, u.batch);
                    place.next();
                }
            }
        }
    }
}

struct keys_state {
    place at;
    uint64_t k, v, q, q_turned, d_o, d_o_turned; /* descriptions */
    ring_place<1> row_place;
    ring_place<STAGES> place;
};

#if !(WINDOW || CHANGED)
/* Scores become probabilities; columns are queries, each with its lse. */
DEVICE void probabilities_of_keys(const attention_call &c, scores &s, uint32_t lse, int query,
                                  int key, bool masked)
{
    int g = lane() / 4, t = lane() % 4;
    float scale_log2 = c.scale * LOG2_E;
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(lse + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p = exp2_fast(s[4 * j + i] * scale_log2 - (i % 2 ? of.y : of.x));
            if (masked && key + g + 8 * (i / 2) >= seen_by(c, query + 8 * j + 2 * t + i % 2))
                p = 0;
            s[4 * j + i] = p;
        }
    }
}
#endif

/* Probabilities s and their gradients dp become the gradients of the scores but for the scale. */
DEVICE void gradients_of_keys(const attention_call &c, scores &s, const scores &dp, uint32_t delta,
                              const kept_bits &kept)
{
    int t = lane() % 4;
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(delta + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float d = dp[4 * j + i];
            if (DROPOUT)
                d = kept.at(4 * j + i) ? d * c.factor : 0;
            s[4 * j + i] *= d - (i % 2 ? of.y : of.x);
        }
    }
}

DEVICE void pack_kept(fragments &p, const scores &s, const kept_bits &kept)
{
#if DROPOUT
    scores left;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        left[i] = kept.at(i) ? s[i] : 0;
    pack_a(p, left);
#else
    pack_a(p, s);
#endif
}

/* One step: queries from `query` on. `before` says that the last product of the step before is
 * under way. */
DEVICE void keys_step(const attention_call &c, const keys_layout &at, keys_state &w, results &dk,
                      results &dv, fragments &ds, const key_sight &see, int row, int query, int key,
                      bool whole, bool before)
{
    int stage = w.place.stage, stage_before = (stage + STAGES - 1) % STAGES;
    uint32_t numbers = at.numbers + stage * 2 * NUMBER_BYTES;
    uint64_t step = stage * (STEP_BYTES >> 4);
    scores s, dp;
    fragments p;
    at.q_pipe.wait_full(w.place);
    wgmma_fence();
    start_scores(s, w.k, w.q + step);
    at.d_o_pipe.wait_full(w.place);
    wgmma_fence();
    start_scores(dp, w.v, w.d_o + step);
    turned_bias bias;
    load_turned(c, row / c.heads, row % c.heads, query, key + 16 * w.at.warp, bias);
    wgmma_wait<1>();
    wgmma_hold(s);
    wgmma_hold(dk);
    __syncwarp(); /* all lanes have read the numbers of the stages that are let go of */
    if (before)
        at.q_pipe.release<1>(stage_before);
    scores cap_back;
#if WINDOW || CHANGED
    change_turned(c, see, s, cap_back, bias, numbers, row % c.heads, query, whole);
#else
    probabilities_of_keys(c, s, numbers, query, key + 16 * w.at.warp,
                          CAUSAL && key + 64 > seen_by(c, query));
#endif
    kept_bits kept = {};
    if (DROPOUT)
        kept = find_kept(c, row, query, key + 16 * w.at.warp);
    pack_kept(p, s, kept);
    wgmma_fence();
    start_results(dv, p, w.d_o_turned + step);
    wgmma_wait<1>();
    wgmma_hold(dp);
    gradients_of_keys(c, s, dp, numbers + NUMBER_BYTES, kept);
    apply_cap_back(s, cap_back);
    pack_a(ds, s);
    wgmma_fence();
    start_results(dk, ds, w.q_turned + step);
    wgmma_wait<1>();
    wgmma_hold(dv);
    __syncwarp();
    at.d_o_pipe.release<1>(stage);
    w.place.next();
}

/* All queries that see the keys of a tile. */
DEVICE void walk_queries(const attention_call &c, const keys_layout &at, keys_state &w,
                         const unit_of_keys &u, int first, results &dk, results &dv)
{
    steps_of_keys steps = find_steps(c, u.batch, first);
    int group = c.heads / c.kv_heads, key = first + 64 * w.at.group;
    key_sight see = sight_of_keys(c, u.batch, key, key + 16 * w.at.warp);
    bool before = false;
    fragments ds;
    if (steps.count == 0)
        return;
    at.row_pipe.wait_full(w.row_place);
#if SKIPS
#pragma unroll 1
    for (int head = u.kv * group; head < (u.kv + 1) * group; head++) {
        known_tiles known(key + 16 * w.at.warp, 16);
        int end = steps.first + steps.count;
#pragma unroll 1
        for (int n = seeing_from(c, u.batch, head, first, ROWS, steps.first, end, STEP, known);
             n < end; n = seeing_from(c, u.batch, head, first, ROWS, n + 1, end, STEP, known)) {
            keys_step(c, at, w, dk, dv, ds, see, u.batch * c.heads + head, n * STEP, key,
                      known.is_whole(n), before);
            before = true;
        }
    }
#else
#pragma unroll 1
    for (int i = 0; i < steps.count * group; i++) {
        int head = u.kv * group + i / steps.count, query = (steps.first + i % steps.count) * STEP;
        keys_step(c, at, w, dk, dv, ds, see, u.batch * c.heads + head, query, key, false, before);
        before = true;
    }
#endif
    wgmma_wait<0>();
    wgmma_hold(dk);
    __syncwarp();
    if (!SKIPS || before)
        at.q_pipe.release<1>((w.place.stage + STAGES - 1) % STAGES);
    at.row_pipe.release<1>(0);
    w.row_place.next();
}

DEVICE void consume_keys(const attention_call &c, const keys_layout &at)
{
    keys_state w;
    w.at = find_place();
    w.k = wgmma_describe(at.k + w.at.group * ROW_BYTES, ALONG_K, 0);
    w.v = wgmma_describe(at.v + w.at.group * ROW_BYTES, ALONG_K, 0);
    w.q = wgmma_describe(at.q, ALONG_K, 0);
    w.q_turned = wgmma_describe(at.q, ALONG_MN, STEP * 128);
    w.d_o = wgmma_describe(at.d_o, ALONG_K, 0);
    w.d_o_turned = wgmma_describe(at.d_o, ALONG_MN, STEP * 128);
    w.row_place = {0, 0};
    w.place = {0, 0};
    float factor = DROPOUT ? c.factor : 1.0f;
    unit_taker<false> units;
    for (int i = units.first(at.units); i < units_of_keys(c); i = units.next(at.units, i)) {
        unit_of_keys u = unit_of_keys_at(c, i);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half), key = first + 64 * w.at.group + 16 * w.at.warp;
            results dk, dv;
            clear(dk);
            clear(dv);
            walk_queries(c, at, w, u, first, dk, dv);
            store_rows(c.size, head_of(c.dk, u.batch, u.kv), c.dk.position, key, c.keys, dk,
                       c.scale, c.scale);
            store_rows(c.size, head_of(c.dv, u.batch, u.kv), c.dv.position, key, c.keys, dv, factor,
                       factor);
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_sm90_keys(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                        const __grid_constant__ tensor_map v,
                        const __grid_constant__ tensor_map d_o,
                        const __grid_constant__ attention_call c)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    keys_layout at = lay_out_keys(shared_address(memory));
    if (at.k % 1024)
        __trap();
    if (threadIdx.x == 0) {
        at.row_pipe.init(4 * WARPGROUPS);
        at.q_pipe.init(4 * WARPGROUPS);
        at.d_o_pipe.init(4 * WARPGROUPS);
        at.units.init(4 * WARPGROUPS + 1);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<SKIPS && SIZE == 64 ? 40 : 24>();
        if (threadIdx.x < 32 && (SKIPS || elected()))
            produce_keys(c, q, k, v, d_o, at, !SKIPS || elected());
#if SKIPS
        if (threadIdx.x == 32)
            give_units(c.queue, at.units, units_of_keys(c));
#endif
    } else {
        registers_take<SKIPS && SIZE == 64 ? 232 : 240>();
        consume_keys(c, at);
    }
#endif
}
