/* Attention, forward, of codes in f8e4m3 on Hopper: both products by warpgroups in 8 bits, copies
 * by TMA.
 *
 * The grid, the thread that orders copies, the two warpgroups and their turns are those of
 * attention_wgmma.cu. What differs is P V. Tensor cores take 8 bits along k alone: V comes turned,
 * from scaled_attention_turn.cu, and its keys in the order in which a thread holds scores, so that
 * four probabilities of a thread are a word of A (TURNED_KEY and HELD_SCORE).
 *
 * What bounds this kernel is instructions beside the products, so few are left of them. A row's
 * scores become powers of two relative to a base, which is its maximum of some tile before; no
 * maximum is looked for until a code comes to the end of e4m3, which one addition shows in four
 * codes at once. Only then the row takes its maximum as the base, all sums follow, and the codes
 * of the tile are made again. A row's sum is one more feature of V, which is 1 for all keys. Sums
 * of SUMMED tiles stay where the tensor cores add to them, which keep some 14 bits, and are then
 * taken over into others in f32. 4 D flops for each score that is seen, and one exponential. */
/* Knobs: Y_T, SIZE (64 or 128), CAUSAL, WINDOW, STAGES. */
#define WARPGROUPS 2
#define STEP 128
#define SUMMED 1 /* tiles; each product is cut off where 13 bits of its sum end */

#include "dependent.cuh"
#include "scaled_attention_wgmma.cuh"

#if CUP_HAS_WGMMA

struct layout {
    uint32_t q, k, v;
    ring<1> q_pipe;
    ring<STAGES> k_pipe, v_pipe;
};

DEVICE layout lay_out(uint32_t memory)
{
    layout at;
    at.q = memory;
    at.k = at.q + WARPGROUPS * QUERY_BYTES;
    at.v = at.k + STAGES * TILE_BYTES;
    at.k_pipe.barriers = at.v + STAGES * VALUE_BYTES;
    at.v_pipe.barriers = at.k_pipe.barriers + 16 * STAGES;
    at.q_pipe.barriers = at.v_pipe.barriers + 16 * STAGES;
    return at;
}

/* The tiles of keys [begin, end) that the queries of a tile see anything of. */
struct tile_range {
    int begin, end;
};

DEVICE tile_range tiles_seen(const attention_call &c, int batch, int first)
{
    int last = first + ROWS < c.queries ? first + ROWS : c.queries;
    int end = seen_by(c, batch, last - 1);
    tile_range s = {first_tile(c, batch, first, STEP), end > 0 ? (end + STEP - 1) / STEP : 0};
    return s;
}

DEVICE void bring_keys(const tensor_map &map, uint32_t to, uint32_t full, int key, int kv,
                       int batch)
{
    box b = {{0, key, kv, batch}};
    tma_load<4>(map, to, b, full, TMA_EVICT_LAST);
}

DEVICE void bring_values(const tensor_map &map, uint32_t to, uint32_t full, int key, int kv,
                         int batch)
{
    box b = {{key, 0, kv, batch}};
    tma_load<4>(map, to, b, full, TMA_EVICT_LAST);
}

/* The one thread that orders all copies: keys from the last tile to the first, and the values of
 * each behind the keys of the next. Of all that is read only the turned values are of the kernel
 * before this one. */
DEVICE void produce(const attention_call &c, const tensor_map &q, const tensor_map &k,
                    const tensor_map &v, const layout &at)
{
    ring_place<1> q_place = {0, 0};
    ring_place<STAGES> k_place = {0, 0}, v_place = {0, 0};
    bool turned = false;
    for (int i = blockIdx.x; i < units_of(c, ROWS); i += gridDim.x) {
        unit_of_queries u = unit_at(c, i, ROWS);
        int kv = u.head / (c.heads / c.kv_heads);
        for (int half = 0; half < u.count; half++) {
            tile_range s = tiles_seen(c, u.batch, u.first(half));
            if (s.end <= s.begin)
                continue;
            at.q_pipe.claim(q_place, WARPGROUPS * QUERY_BYTES);
            for (int w = 0; w < WARPGROUPS; w++) {
                box b = {{0, u.first(half) + 64 * w, u.head, u.batch}};
                tma_load<4>(q, at.q + w * QUERY_BYTES, b, at.q_pipe.full(0), TMA_EVICT_FIRST);
            }
            q_place.next();
            for (int n = s.end - 1; n >= s.begin - 1; n--) {
                if (n >= s.begin) {
                    at.k_pipe.claim(k_place, TILE_BYTES);
                    bring_keys(k, at.k + k_place.stage * TILE_BYTES, at.k_pipe.full(k_place.stage),
                               n * STEP, kv, u.batch);
                    k_place.next();
                }
                if (n < s.end - 1) {
                    if (!turned)
                        wait_for_previous_kernel();
                    turned = true;
                    at.v_pipe.claim(v_place, TILE_BYTES);
                    bring_values(v, at.v + v_place.stage * VALUE_BYTES,
                                 at.v_pipe.full(v_place.stage), (n + 1) * STEP, kv, u.batch);
                    v_place.next();
                }
            }
        }
    }
    if (!turned) /* a kernel after this one may take its end for that of both */
        wait_for_previous_kernel();
}

/* What a warpgroup keeps from tile to tile. */
struct consumer {
    place at;
    uint64_t q, k, v; /* descriptions of its rows, and of the first stages */
    ring_place<1> q_place;
    ring_place<STAGES> k_place, v_place;
    uint32_t zero; /* which the compiler does not know */
};

/* What a warpgroup has of its rows: sums relative to their base, those of the tiles since then if
 * any are `pending`, and the codes that the tensor cores read. */
struct rows_so_far {
    softmax_state state;
    results o;
    parts part;
    codes p;
    int pending;
};

/* Adds the sums of the last tiles to those of all. */
DEVICE void take_part(rows_so_far &rows)
{
#pragma unroll
    for (int i = 0; i < SIZE / 2; i++)
        rows.o[i] += rows.part[i];
    rows.state.sum[0] += rows.part[SIZE / 2];
    rows.state.sum[1] += rows.part[SIZE / 2 + 2];
    rows.pending = 0;
}

/* Waits for the product with V. */
DEVICE void end_part(const layout &at, consumer &w, rows_so_far &rows)
{
    wgmma_wait<0>();
    wgmma_hold(rows.part);
    at.v_pipe.release<1>(w.v_place.stage);
    w.v_place.next();
}

/* What scores are lowered by: the base of their row, which is 0 while nothing was seen. */
DEVICE void lowered_by(const softmax_state &state, float (&base)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        base[r] = (state.base[r] == -INFINITE ? 0 : state.base[r]) - RANGE_LOG2;
}

/* Rows whose largest score lies more than RAISED_LOG2 above their base take it as the base; what
 * was summed of them follows. */
DEVICE void raise_rows(const scores &s, float scale, rows_so_far &rows)
{
    float most[2] = {s[0], s[2]}, fade[2];
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = most[r], before = rows.state.base[r];
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * scale;
        bool above = top > before + RAISED_LOG2;
        rows.state.base[r] = above ? top : before;
        fade[r] = above ? exp2_fast(before - top) : 1;
        rows.state.sum[r] *= fade[r];
    }
#pragma unroll
    for (int i = 0; i < SIZE / 2; i++)
        rows.o[i] *= fade[i / 2 % 2];
    if (rows.pending)
#pragma unroll
        for (int i = 0; i < PART / 2; i++)
            rows.part[i] *= fade[i / 2 % 2];
}

/* Scores of tile n become the codes of the next product. With Later, the product of the codes
 * before them ends while half of the exponentials are worked out; only then are its codes replaced.
 * The half that was ready before is added to a zero, because mere moves of it would end up among
 * the products, which the compiler would then put one behind the other. The wait for the keys of
 * the next tile, where there are more, keeps the compiler from moving the end of that product
 * ahead. */
template <bool Later>
DEVICE void to_codes(const attention_call &c, const layout &at, consumer &w, int n, int low,
                     const row_sight &see, float scale, scores &s, rows_so_far &rows, bool more)
{
    float base[2];
    codes_of_half early;
    at.k_pipe.release<1>(w.k_place.stage);
    w.k_place.next();
    if (scale < 0) {
#pragma unroll
        for (int i = 0; i < STEP / 2; i++)
            s[i] = -s[i];
        scale = -scale;
    }
    mask_unseen(c, see, low, n, s);
    lowered_by(rows.state, base);
    make_codes<0>(early, s, scale, base);
    if (more)
        at.k_pipe.wait_full(w.k_place);
    if (Later) {
        end_part(at, w, rows);
        if (n % SUMMED == 0)
            take_part(rows);
    }
    put_codes<0>(rows.p, early, w.zero);
    make_codes<STEP / 64>(early, s, scale, base);
    put_codes<STEP / 64>(rows.p, early, 0);
    bool raised = too_large(rows.p) || rows.state.base[0] == -INFINITE ||
                  rows.state.base[1] == -INFINITE;
    if (__any_sync(0xffffffffu, raised)) {
        raise_rows(s, scale, rows);
        lowered_by(rows.state, base);
        make_codes<0>(early, s, scale, base);
        put_codes<0>(rows.p, early, 0);
        make_codes<STEP / 64>(early, s, scale, base);
        put_codes<STEP / 64>(rows.p, early, 0);
    }
    hold_codes(rows.p);
}

/* The product of the codes with V, whose tile is there. Leaves it under way. */
DEVICE void start_values(consumer &w, rows_so_far &rows)
{
    wgmma_fence();
    start_part(rows.part, rows.p, w.v + (VALUE_BYTES >> 4) * w.v_place.stage, rows.pending);
    rows.pending = 1;
}

/* One tile of queries against its keys; `scale` makes scores powers of two. */
DEVICE void walk(const attention_call &c, const layout &at, consumer &w, const unit_of_queries &u,
                 int first, tile_range tiles, float scale, rows_so_far &rows)
{
    int query = first + 64 * w.at.group + 16 * w.at.warp, low = query + lane() / 4;
    row_sight see = sight_of_rows(c, u.batch, u.head, first + 64 * w.at.group, query);
    scores s;
    at.q_pipe.wait_full(w.q_place);
    at.k_pipe.wait_full(w.k_place);
    wait_turn(w.at.group);
    wgmma_fence();
    start_scores_of_codes(s, w.q, w.k + (TILE_BYTES >> 4) * w.k_place.stage);
    pass_turn(w.at.group);
    wgmma_wait<0>();
    wgmma_hold(s);
    to_codes<false>(c, at, w, tiles.end - 1, low, see, scale, s, rows,
                    tiles.end - 1 > tiles.begin);
#pragma unroll 1
    for (int n = tiles.end - 2; n >= tiles.begin; n--) {
        wait_turn(w.at.group);
        wgmma_fence();
        start_scores_of_codes(s, w.q, w.k + (TILE_BYTES >> 4) * w.k_place.stage);
        at.v_pipe.wait_full(w.v_place);
        start_values(w, rows);
        pass_turn(w.at.group);
        wgmma_wait<1>();
        wgmma_hold(s);
        to_codes<true>(c, at, w, n, low, see, scale, s, rows, n > tiles.begin);
    }
    at.q_pipe.release<1>(0);
    w.q_place.next();
    at.v_pipe.wait_full(w.v_place);
    wait_turn(w.at.group);
    start_values(w, rows);
    pass_turn(w.at.group);
    end_part(at, w, rows);
    take_part(rows);
}

DEVICE void finish(const attention_call &c, const unit_of_queries &u, int query, float scale,
                   const results &o, const softmax_state &state)
{
    result *head = (result *)c.o.data + u.batch * c.o.batch + u.head * c.o.head;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state.sum[r];
        int at = query + lane() / 4 + 8 * r;
        store_row(head + at * c.o.position, c.size, r, o, sum == 0 ? 0 : scale / sum,
                  at < c.queries);
    }
}

/* Behind the values of each stage, 8 more features that are 1 for all keys. */
DEVICE void write_ones(unsigned char *values)
{
    for (int i = threadIdx.x; i < STAGES * (ONES_BYTES / 16); i += THREADS)
        *(uint4 *)(values + i / (ONES_BYTES / 16) * VALUE_BYTES + TILE_BYTES +
                   i % (ONES_BYTES / 16) * 16) = make_uint4(ONES, ONES, ONES, ONES);
    publish_shared();
}

/* The scale of a head; 1 where there are none. */
DEVICE float scale_of(const head_scale &s, int batch, int head)
{
    return s.data ? __ldg(s.data + batch * s.batch + head * s.head) : 1.0f;
}

DEVICE void consume(const attention_call &c, const head_scales &scales, const layout &at)
{
    consumer w;
    w.at = find_place();
    asm volatile("mov.u32 %0, 0;" : "=r"(w.zero));
    w.q = describe_heads(at.q + w.at.group * QUERY_BYTES);
    w.k = describe_heads(at.k);
    w.v = wgmma_describe(at.v, ALONG_K, 0);
    w.q_place = {0, 0};
    w.k_place = w.v_place = {0, 0};
    if (w.at.group == WARPGROUPS - 1)
        pass_turn(w.at.group);
    for (int i = blockIdx.x; i < units_of(c, ROWS); i += gridDim.x) {
        unit_of_queries u = unit_at(c, i, ROWS);
        int kv = u.head / (c.heads / c.kv_heads);
        float scale = c.scale * LOG2_E * scale_of(scales.q, u.batch, u.head) *
                      scale_of(scales.k, u.batch, kv);
        if (fabsf(scale) < 1e-30f)
            scale = 1e-30f; /* what is hidden is -infinity, which 0 would make no number */
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half);
            tile_range tiles = tiles_seen(c, u.batch, first);
            rows_so_far rows;
            rows.state = {{-INFINITE, -INFINITE}, {0, 0}};
            clear(rows.o);
            rows.pending = 0;
            if (tiles.end > tiles.begin)
                walk(c, at, w, u, first, tiles, scale, rows);
            finish(c, u, first + 64 * w.at.group + 16 * w.at.warp,
                   scale_of(scales.v, u.batch, kv), rows.o, rows.state);
        }
    }
    if (w.at.group == 0)
        wait_turn(0);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    scaled_attention_sm90(const __grid_constant__ tensor_map q,
                          const __grid_constant__ tensor_map k,
                          const __grid_constant__ tensor_map v,
                          const __grid_constant__ attention_call c,
                          const __grid_constant__ head_scales scales)
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
    }
    write_ones(memory + (at.v - at.q));
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x < 32 && elected())
            produce(c, q, k, v, at);
    } else {
        registers_take<240>();
        consume(c, scales, at);
    }
#endif
}
