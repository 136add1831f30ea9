/* Flash attention, backward, on Hopper, in one pass: dk, dv and the sums of dq.
 *
 * A persistent grid, one block an SM. A block holds 128 keys, 64 for each of two warpgroups, and
 * walks over the queries that see them, STEP at a time, of all heads of the group. Scores stand
 * turned, rows keys and columns queries, so that probabilities are in place to be multiplied with
 * d_o and q; the gradients of scores also go through shared memory, to be multiplied with k. Each
 * warpgroup makes half of what that adds to dq, and a warp of its own adds it in memory, when
 * its turn has come (attention_pass.cuh).
 *
 * Products are ordered so that one is always under way: those of the scores of the next step
 * while dq goes to memory, of the gradients of probabilities while these are found, and of dv
 * while the gradients of scores are. 10 B H T S D flops, halved by causality. */
#include "attention_wgmma_copies.cuh"

#if CUP_HAS_WGMMA

#define MEET_DS 1

struct grad_state {
    uint32_t memory;
    place at;
    ring_place<1> row_place;
    ring_place<STAGES> place;
    ring_place<DQ_STAGES> dq_place;
    int ds_stage;
};

struct descriptions {
    uint64_t k, v, q, q_turned, d_o, d_o_turned, ds, k_turned;
};

DEVICE descriptions describe(const grad_layout &at, int group)
{
    descriptions d;
    int column = block_column(group);
    d.k = wgmma_describe(at.k + group * ROW_BYTES, ALONG_K, 0);
    d.v = wgmma_describe(at.v + group * ROW_BYTES, ALONG_K, 0);
    d.q = wgmma_describe(at.q, ALONG_K, 0);
    d.q_turned = wgmma_describe(at.q, ALONG_MN, STEP * 128);
    d.d_o = wgmma_describe(at.d_o, ALONG_K, 0);
    d.d_o_turned = wgmma_describe(at.d_o, ALONG_MN, STEP * 128);
    d.ds = wgmma_describe(at.ds + block_query(group) / 64 * ROWS * 128, ALONG_MN, ROWS * 128);
    d.k_turned = wgmma_describe(at.k + column / 64 * 8192 + column % 64 * 2, ALONG_MN, 8192);
    return d;
}

/* Scores become probabilities; columns are queries, each with its lse. Those of keys past the end
 * become 0 too: they would be infinite where lse is far below 0. */
DEVICE void find_probabilities(const attention_call &c, scores &s, uint32_t lse, int query, int key,
                               bool masked)
{
    int t = lane() % 4;
    float4 scales = scales_of(c);
    float scale_log2 = c.scale * LOG2_E * (scales.x * scales.y);
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(lse + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * j + i] = exp2_fast(s[4 * j + i] * scale_log2 - (i % 2 ? of.y : of.x));
    }
    if (!masked)
        return;
    key += lane() / 4;
    int unseen[2], end[2]; /* columns before the one, or from the other on, see not the row's key */
#pragma unroll
    for (int r = 0; r < 2; r++)
        unseen[r] = key + 8 * r >= c.keys ? STEP
                    : CAUSAL              ? key + 8 * r - (query + c.keys - c.queries) - 2 * t
                    : WINDOW              ? first_seeing(c, 0, key + 8 * r) - query - 2 * t
                                          : -STEP;
#pragma unroll
    for (int r = 0; r < 2; r++)
        end[r] = WINDOW ? end_seeing(c, 0, key + 8 * r) - query - 2 * t : STEP;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        if (i / 4 * 8 + i % 2 < unseen[i / 2 % 2] ||
            (WINDOW && i / 4 * 8 + i % 2 >= end[i / 2 % 2]))
            s[i] = 0;
}

/* Probabilities s and their gradients dp become the gradients of the scores but for the scale. */
DEVICE void find_gradients(scores &s, const scores &dp, uint32_t delta)
{
    int t = lane() % 4;
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(delta + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[4 * j + i] *= dp[4 * j + i] - (i % 2 ? of.y : of.x);
    }
}

/* Gradients of scores as they are, lines of keys, in panels of 64 queries. */
DEVICE void store_gradients(const fragments &ds, uint32_t lines)
{
    uint32_t line = lines + lane() % 16 * 128;
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t chunk = 2 * (k % 4) + lane() / 16;
        store_matrices(line + k / 4 * ROWS * 128 + ((chunk ^ (lane() & 7)) << 4), ds[k]);
    }
}

typedef float dq_block[BLOCK_COLUMNS / 2];

/* This warpgroup's share of ds k. Leaves it under way. */
DEVICE void start_dq(dq_block &dq, uint64_t ds, uint64_t k)
{
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
        wgmma<BLOCK_COLUMNS>::run<ALONG_MN, ALONG_MN>(
            dq, ds + wgmma_step(ALONG_MN, i),
            k + (i / 4 * ROW_BYTES >> 4) + wgmma_step(ALONG_MN, i % 4), i > 0);
    wgmma_commit();
}

/* Hands the share to the warp that adds it. */
DEVICE void hand_over(const grad_layout &at, grad_state &w, const dq_block &dq)
{
    ring<DQ_STAGES> pipe = at.dq_pipe(w.at.group);
    uint32_t to = at.dq_block(w.at.group, w.dq_place.stage) + threadIdx.x % 128 * 16;
    barrier_wait(pipe.empty(w.dq_place.stage), w.dq_place.phase ^ 1);
#pragma unroll
    for (int j = 0; j < BLOCK_COLUMNS / 8; j++)
        store_shared16(to + j * 2048,
                       make_uint4(__float_as_uint(dq[4 * j]), __float_as_uint(dq[4 * j + 1]),
                                  __float_as_uint(dq[4 * j + 2]), __float_as_uint(dq[4 * j + 3])));
    publish_shared();
    __syncwarp();
    if (lane() == 0)
        barrier_arrive(pipe.full(w.dq_place.stage));
    w.dq_place.next();
}

/* One step, of queries from `query` on, whose scores are under way; More: begins those of the
 * next. */
template <bool More>
DEVICE void grad_step(const attention_call &c, grad_state &w, scores &s, results &dk, results &dv,
                      int query, int key)
{
    grad_layout at = lay_out(fresh(w.memory));
    descriptions d = describe(at, w.at.group);
    int stage = w.place.stage;
    uint32_t numbers = at.numbers + stage * 2 * NUMBER_BYTES;
    uint64_t step = stage * (STEP_BYTES >> 4);
    scores dp;
    fragments p, ds;
    dq_block dq;
    at.d_o_pipe.wait_full(w.place);
    wgmma_wait<0>();
    wgmma_hold(s);
    wgmma_fence();
    start_scores(dp, d.v, d.d_o + step);
    bool masked =
        key + 64 > seen_by(c, query) || (WINDOW && key < first_seen(c, 0, query + STEP - 1));
    find_probabilities(c, s, numbers, query, key + 16 * w.at.warp, masked);
    pack_a(p, s);
    wgmma_fence();
    start_results(dv, p, d.d_o_turned + step);
    wgmma_wait<1>();
    wgmma_hold(dp);
    if (!More)
        at.v_pipe.release<1>(0);
    find_gradients(s, dp, numbers + NUMBER_BYTES);
    pack_a(ds, s);
    store_gradients(ds, at.ds + w.ds_stage * DS_BYTES + (64 * w.at.group + 16 * w.at.warp) * 128);
    publish_shared();
    meet(MEET_DS, 128 * WARPGROUPS);
    wgmma_fence();
    start_results(dk, ds, d.q_turned + step);
    wgmma_wait<1>();
    wgmma_hold(dv);
    at.d_o_pipe.release<1>(stage);
    start_dq(dq, d.ds + w.ds_stage * (DS_BYTES >> 4), d.k_turned);
    w.ds_stage ^= 1;
    w.place.next();
    if (More) {
        at.q_pipe.wait_full(w.place);
        wgmma_fence();
        start_scores(s, d.k, d.q + w.place.stage * (STEP_BYTES >> 4));
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
        at.k_pipe.release<1>(0);
    }
    wgmma_hold(dk);
    wgmma_hold(dq);
    at.q_pipe.release<1>(stage);
    hand_over(at, w, dq);
}

/* All queries that see the keys of a tile. */
DEVICE void walk_queries(const attention_call &c, grad_state &w, const pass_shape &shape,
                         const pass_walk &walk, results &dk, results &dv)
{
    grad_layout at = lay_out(fresh(w.memory));
    descriptions d = describe(at, w.at.group);
    int key = walk.tile * ROWS + 64 * w.at.group, total = walk.count * (c.heads / c.kv_heads);
    scores s;
    at.k_pipe.wait_full(w.row_place);
    at.q_pipe.wait_full(w.place);
    wgmma_fence();
    start_scores(s, d.k, d.q + w.place.stage * (STEP_BYTES >> 4));
    at.v_pipe.wait_full(w.row_place);
    w.row_place.next();
    int i = 0;
#pragma unroll 1
    for (int n = 1; n < total; n++) {
        grad_step<true>(c, w, s, dk, dv, pass_step(shape, walk, i) * STEP, key);
        i = i + 1 < walk.count ? i + 1 : 0;
    }
    grad_step<false>(c, w, s, dk, dv, pass_step(shape, walk, i) * STEP, key);
}

DEVICE void consume(const attention_call &c, const attention_pass &p, uint32_t memory)
{
    grad_state w = {memory, find_place(), {0, 0}, {0, 0}, {0, 0}, 0};
    pass_shape s = shape_of(c, p);
    for (int index = blockIdx.x; index < grad_units(c, s); index += gridDim.x) {
        grad_unit u = grad_unit_at(c, s, index);
        for (int half = 0; half < u.walks; half++) {
            pass_walk walk = pass_walk_of(s, u.unit, half);
            int key = walk.tile * ROWS + 64 * w.at.group + 16 * w.at.warp;
            results dk, dv;
            clear(dk);
            clear(dv);
            if (!WINDOW || walk.count > 0)
                walk_queries(c, w, s, walk, dk, dv);
            float4 scales = scales_of(c);
            if (ROUNDED) {
                multiply(dk, scales.z);
                multiply(dk, scales.w);
            }
            store_rows(c.size, head_of(c.dk, u.batch, u.kv), c.dk.position, key, c.keys, dk,
                       c.scale * scales.x, c.scale * scales.x);
            store_rows(c.size, head_of(c.dv, u.batch, u.kv), c.dv.position, key, c.keys, dv,
                       scales.w, scales.w);
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_sm90_grad(const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
                        const __grid_constant__ tensor_map v,
                        const __grid_constant__ tensor_map d_o,
                        const __grid_constant__ attention_call c,
                        const __grid_constant__ attention_pass p)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    grad_layout at = lay_out(shared_address(memory));
    if (at.k % 1024)
        __trap();
    if (threadIdx.x == 0) {
        at.k_pipe.init(4 * WARPGROUPS);
        at.v_pipe.init(4 * WARPGROUPS);
        at.q_pipe.init(4 * WARPGROUPS);
        at.d_o_pipe.init(4 * WARPGROUPS);
        at.dq_pipe(0).init(1, 4);
        at.dq_pipe(1).init(1, 4);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x < 32 && elected())
            produce(c, p, q, k, v, d_o, shared_address(memory));
        else if (threadIdx.x >= 32 && threadIdx.x < 96 && threadIdx.x % 32 == 0)
            add_blocks(c, p, shared_address(memory), threadIdx.x / 32 - 1);
    } else {
        registers_take<240>();
        consume(c, p, shared_address(memory));
    }
#endif
}
