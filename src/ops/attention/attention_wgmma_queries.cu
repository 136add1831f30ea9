/* Flash attention, backward, on Hopper, first of two kernels: dq. Each computes the scores again,
 * so that every result is summed in one place and in one order.
 *
 * A persistent grid, one block an SM. One warp orders all copies; two warpgroups own 64 queries
 * each and walk over the keys, STEP at a time, from the last. A product is waited for when it is
 * needed: a step's last is under way while the next one's scores begin. Also written are the sums
 * of o times d_o and the scaled lse, for the other kernel. 6 B H T S D flops, half if causal. */
#ifndef STEP
#define STEP 64
#endif

#define WARPGROUPS 2
#include "attention_wgmma_scores.cuh"

#if CUP_HAS_WGMMA

struct queries_layout {
    uint32_t q, d_o, o, k, v;
    ring<1> row_pipe;
    ring<STAGES> k_pipe, v_pipe;
    unit_ring units;
};

DEVICE queries_layout lay_out_queries(uint32_t memory)
{
    queries_layout at;
    at.q = memory;
    at.d_o = at.q + WARPGROUPS * ROW_BYTES;
    at.o = at.d_o + WARPGROUPS * ROW_BYTES;
    at.k = at.o + WARPGROUPS * ROW_BYTES;
    at.v = at.k + STAGES * STEP_BYTES;
    at.k_pipe.barriers = at.v + STAGES * STEP_BYTES;
    at.v_pipe.barriers = at.k_pipe.barriers + 16 * STAGES;
    at.row_pipe.barriers = at.v_pipe.barriers + 16 * STAGES;
    at.units.pipe.barriers = at.row_pipe.barriers + 16;
    return at;
}

DEVICE int steps_seen(const attention_call &c, int batch, int first)
{
    int last = first + ROWS < c.queries ? first + ROWS : c.queries;
    int end = seen_by(c, batch, last - 1);
    return end > 0 ? (end + STEP - 1) / STEP : 0;
}

/* Of the warp that orders all copies, the lane that does so; the others look for tiles with it. */
DEVICE void produce_queries(const attention_call &c, const tensor_map &q, const tensor_map &k,
                            const tensor_map &v, const tensor_map &o, const tensor_map &d_o,
                            const queries_layout &at, bool leads)
{
    ring_place<1> row_place = {0, 0};
    ring_place<STAGES> k_place = {0, 0}, v_place = {0, 0};
    unit_taker<true> units;
    for (int i = units.first(at.units); i < units_of(c, ROWS); i = units.next(at.units, i)) {
        unit_of_queries u = unit_at(c, i, ROWS);
        int kv = u.head / (c.heads / c.kv_heads);
        for (int half = 0; half < u.count; half++) {
            known_tiles known(0, 0);
            if (leads) {
                at.row_pipe.claim(row_place, 3 * WARPGROUPS * ROW_BYTES);
                for (int w = 0; w < WARPGROUPS; w++) {
                    int query = u.first(half) + 64 * w, offset = w * ROW_BYTES;
                    bring<64>(q, at.q + offset, at.row_pipe.full(0), query, u.head, u.batch,
                              TMA_EVICT_FIRST);
                    bring<64>(d_o, at.d_o + offset, at.row_pipe.full(0), query, u.head, u.batch,
                              TMA_EVICT_NORMAL);
                    bring<64>(o, at.o + offset, at.row_pipe.full(0), query, u.head, u.batch,
                              TMA_EVICT_FIRST);
                }
            }
            row_place.next();
            int begin = first_tile(c, u.batch, u.first(half), STEP);
            for (int n = steps_seen(c, u.batch, u.first(half)) - 1; n >= begin; n--) {
                if (SKIPS)
                    n = seen_up_to(c, u.batch, u.head, u.first(half), ROWS, n, begin, STEP, known);
                if (SKIPS && n < begin)
                    break;
                if (leads) {
                    at.k_pipe.claim(k_place, STEP_BYTES);
                    bring<STEP>(k, at.k + k_place.stage * STEP_BYTES,
                                at.k_pipe.full(k_place.stage), n * STEP, kv, u.batch,
                                TMA_EVICT_LAST);
                }
                k_place.next();
                if (leads) {
                    at.v_pipe.claim(v_place, STEP_BYTES);
                    bring<STEP>(v, at.v + v_place.stage * STEP_BYTES,
                                at.v_pipe.full(v_place.stage), n * STEP, kv, u.batch,
                                TMA_EVICT_LAST);
                }
                v_place.next();
            }
        }
    }
}

struct queries_state {
    place at;
    uint64_t q, d_o, k, k_turned, v; /* descriptions */
    ring_place<1> row_place;
    ring_place<STAGES> k_place, v_place;
    float lse[2], delta[2]; /* of rows lane / 4 and lane / 4 + 8 */
    float d_slope[2];       /* this lane's share */
#if FORMULA
    float d_rows[2][TENSORS_ROOM];
#endif
};

DEVICE float product_of_words(uint32_t x, uint32_t y)
{
    union {
        uint32_t word;
        T at[2];
    } a, b;
    a.word = x;
    b.word = y;
    return to_real(a.at[0]) * to_real(b.at[0]) + to_real(a.at[1]) * to_real(b.at[1]);
}

/* Sums of o times d_o: lanes 2 r and 2 r + 1 share row r of the warp's 16. */
DEVICE void find_delta(const queries_layout &at, queries_state &w)
{
    int row = 16 * w.at.warp + lane() / 2;
    uint32_t from = w.at.group * ROW_BYTES + row * 128;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SIZE / 16; i++) {
        int chunk = i % 4 + lane() % 2 * 4;
        uint32_t there = from + i / 4 * 8192 + ((chunk ^ (row & 7)) << 4);
        uint4 x = load_shared16(at.o + there), y = load_shared16(at.d_o + there);
        sum += product_of_words(x.x, y.x) + product_of_words(x.y, y.y) +
               product_of_words(x.z, y.z) + product_of_words(x.w, y.w);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    w.delta[0] = __shfl_sync(0xffffffffu, sum, lane() / 4 * 2);
    w.delta[1] = __shfl_sync(0xffffffffu, sum, lane() / 4 * 2 + 16);
}

/* Writes delta and the scaled lse for the other kernel, also of the rows past the last, and the
 * gradients of a sink. */
DEVICE void find_numbers(const attention_call &c, const queries_layout &at, queries_state &w,
                         int row, int query)
{
    find_delta(at, w);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int q = query + lane() / 4 + 8 * r;
        float natural =
            q < c.queries ? ((const float *)c.lse)[(long long)row * c.queries + q] : -INFINITE;
        w.lse[r] = natural == -INFINITE ? INFINITE : natural * LOG2_E;
        if (lane() % 4 == 0) {
            ((float *)c.delta)[row * padded(c) + q] = w.delta[r];
            ((float *)c.lse_log2)[row * padded(c) + q] = w.lse[r];
            if (SINKS && q < c.queries)
                store_number(c.score.d_sinks, row / c.heads, row % c.heads, q,
                             sink_back(c, row % c.heads, w.lse[r], w.delta[r]));
        }
    }
}

/* Scores become probabilities. */
DEVICE void probabilities_of_queries(const attention_call &c, const queries_state &w, scores &s,
                                     scores &cap_back, const row_sight &see,
                                     const bias_words &bias, int query, int key, bool masked,
                                     bool whole)
{
    int low = query + lane() / 4;
    change_scores(c, see, bias, key, whole, s, cap_back);
    if (WINDOW)
        mask_unseen(c, see, low, key / STEP, s);
    else if (masked)
        mask_scores(s, seen_by(c, low) - key, seen_by(c, low + 8) - key);
    float scale_log2 = power_scale(c);
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        s[i] = exp2_fast(s[i] * scale_log2 - w.lse[i / 2 % 2]);
}

/* Adds the gradients of the scores of a step, times the distances that the slope has. */
DEVICE void add_to_slope(queries_state &w, const scores &s, const row_sight &see, int key)
{
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        float from = (float)(see.place[i / 2 % 2] - key);
        w.d_slope[i / 2 % 2] -= s[i] * fabsf(from - (float)(i / 4 * 8 + i % 2));
    }
}

#if FORMULA
/* What the gradients of the scores of a step give the formula's tensors, whose derivatives do not
 * have the score in them. */
DEVICE void add_to_tensors(const attention_call &c, queries_state &w, const scores &s,
                           const row_sight &see, const bias_words &words,
                           const unit_of_queries &u, int query, int key)
{
    first_key from = first_key_of(see, key);
#pragma unroll
    for (int i = 0; i < STEP / 2; i += 2) {
        formula_value<float> y[2];
        int row = query + lane() / 4 + i / 2 % 2 * 8;
        int column = key + 2 * (lane() % 4) + i / 4 * 8;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            y[k] = formula_at(c, see, i + k, 0, from, key, words);
            add_rows_back(w.d_rows[i / 2 % 2], y[k], s[i + k]);
            if (PAIR_GRADS && !BIAS_PAIRS && row < c.queries && column + k < c.keys)
                store_pairs_back(c, y[k], s[i + k], u.batch, u.head, row, column + k);
        }
        if (PAIR_GRADS && BIAS_PAIRS && row < c.queries && column < c.keys)
            store_words_back(c, y, s[i], s[i + 1], u.batch, u.head, row, column);
    }
}
#endif

DEVICE void store_slopes(const attention_call &c, const queries_state &w,
                         const unit_of_queries &u, int query)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = w.d_slope[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int at = query + lane() / 4 + 8 * r;
        if (lane() % 4 == 0 && at < c.queries)
            store_number(c.score.d_slopes, u.batch, u.head, at, sum);
    }
}

/* Probabilities s and their gradients dp become the gradients of the scores but for the scale. */
DEVICE void gradients_of_queries(const attention_call &c, const queries_state &w, scores &s,
                                 scores &dp, int row, int query, int key)
{
    if (DROPOUT) {
        drop(c, dp, row, query, key);
#pragma unroll
        for (int i = 0; i < STEP / 2; i++)
            dp[i] *= c.factor;
    }
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        s[i] *= dp[i] - w.delta[i / 2 % 2];
}

/* Stores the gradients of the scores of a step as those of a bias. */
DEVICE void store_bias(const attention_call &c, const unit_of_queries &u, const scores &s,
                       int query, int key)
{
    key += 2 * (lane() % 4);
    query += lane() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        T *row = pair_of(c, c.score.d_bias, u.batch, u.head, query + 8 * r, 0);
#pragma unroll
        for (int j = 0; j < STEP / 8; j++) {
            uint32_t word = pack(s[4 * j + 2 * r], s[4 * j + 2 * r + 1], T());
            int at = key + 8 * j;
            if (query + 8 * r >= c.queries || at >= c.keys)
                continue;
            if (BIAS_PAIRS) {
                *(uint32_t *)(row + at) = word;
                continue;
            }
            *(uint16_t *)(row + at * c.score.d_bias.key) = (uint16_t)word;
            if (at + 1 < c.keys)
                *(uint16_t *)(row + (at + 1) * c.score.d_bias.key) = (uint16_t)(word >> 16);
        }
    }
}

/* One step: keys n STEP and on. `before` says that the product of the step before is under way. */
DEVICE void queries_step(const attention_call &c, const queries_layout &at, queries_state &w,
                         results &dq, fragments &ds, const row_sight &see,
                         const unit_of_queries &u, int first, int n, bool whole, bool before)
{
    int query = first + 64 * w.at.group + 16 * w.at.warp;
    int stage = w.k_place.stage, stage_before = (stage + STAGES - 1) % STAGES;
    scores s, dp, cap_back;
    bias_words bias;
    at.k_pipe.wait_full(w.k_place);
    wgmma_fence();
    start_scores(s, w.q, w.k + stage * (STEP_BYTES >> 4));
    at.v_pipe.wait_full(w.v_place);
    wgmma_fence();
    start_scores(dp, w.d_o, w.v + w.v_place.stage * (STEP_BYTES >> 4));
    load_bias(c, see, n * STEP, bias);
    wgmma_wait<1>();
    wgmma_hold(s);
    if (before)
        at.k_pipe.release<1>(stage_before);
    probabilities_of_queries(c, w, s, cap_back, see, bias, query, n * STEP,
                             (n + 1) * STEP > seen_by(c, first + 64 * w.at.group), whole);
    wgmma_wait<0>();
    wgmma_hold(dp);
    wgmma_hold(dq);
    at.v_pipe.release<1>(w.v_place.stage);
    gradients_of_queries(c, w, s, dp, u.row, query, n * STEP);
    if (SLOPES)
        add_to_slope(w, s, see, n * STEP);
#if FORMULA
    if (TENSOR_GRADS)
        add_to_tensors(c, w, s, see, bias, u, query, n * STEP);
#endif
    if (BIAS_GRAD)
        store_bias(c, u, s, query, n * STEP);
    apply_cap_back(s, cap_back);
    pack_a(ds, s);
    wgmma_fence();
    start_results(dq, ds, w.k_turned + stage * (STEP_BYTES >> 4));
    w.k_place.next();
    w.v_place.next();
}

DEVICE void consume_queries(const attention_call &c, const queries_layout &at)
{
    queries_state w;
    w.at = find_place();
    w.q = wgmma_describe(at.q + w.at.group * ROW_BYTES, ALONG_K, 0);
    w.d_o = wgmma_describe(at.d_o + w.at.group * ROW_BYTES, ALONG_K, 0);
    w.k = wgmma_describe(at.k, ALONG_K, 0);
    w.k_turned = wgmma_describe(at.k, ALONG_MN, STEP * 128);
    w.v = wgmma_describe(at.v, ALONG_K, 0);
    w.row_place = {0, 0};
    w.k_place = w.v_place = {0, 0};
    unit_taker<false> units;
    for (int i = units.first(at.units); i < units_of(c, ROWS); i = units.next(at.units, i)) {
        unit_of_queries u = unit_at(c, i, ROWS);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half), query = first + 64 * w.at.group + 16 * w.at.warp;
            int steps = steps_seen(c, u.batch, first), begin = first_tile(c, u.batch, first, STEP);
            row_sight see = sight_of_rows(c, u.batch, u.head, first + 64 * w.at.group, query);
            results dq;
            fragments ds;
            clear(dq);
            w.d_slope[0] = w.d_slope[1] = 0;
#if FORMULA
            clear_tile_back(w.d_rows);
#endif
            at.row_pipe.wait_full(w.row_place);
            find_numbers(c, at, w, u.row, query);
            bool before = false;
            known_tiles known(query, 16);
            for (int n = steps - 1; n >= begin; n--) {
                if (SKIPS)
                    n = seen_up_to(c, u.batch, u.head, first, ROWS, n, begin, STEP, known);
                if (SKIPS && n < begin)
                    break;
                queries_step(c, at, w, dq, ds, see, u, first, n, known.is_whole(n),
                             SKIPS ? before : n < steps - 1);
                before = true;
            }
            at.row_pipe.release<1>(0);
            w.row_place.next();
            wgmma_wait<0>();
            wgmma_hold(dq);
            if (SKIPS ? before : steps > begin)
                at.k_pipe.release<1>((w.k_place.stage + STAGES - 1) % STAGES);
            if (SLOPES)
                store_slopes(c, w, u, query);
#if FORMULA
            store_tile_back(c, w.d_rows, u.batch, u.head, query);
#endif
            store_rows(c.size, head_of(c.dq, u.batch, u.head), c.dq.position, query, c.queries, dq,
                       c.scale, c.scale);
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_sm90_queries(
    const __grid_constant__ tensor_map q, const __grid_constant__ tensor_map k,
    const __grid_constant__ tensor_map v, const __grid_constant__ tensor_map o,
    const __grid_constant__ tensor_map d_o, const __grid_constant__ attention_call c)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    queries_layout at = lay_out_queries(shared_address(memory));
    if (at.q % 1024)
        __trap();
    if (threadIdx.x == 0) {
        at.row_pipe.init(4 * WARPGROUPS);
        at.k_pipe.init(4 * WARPGROUPS);
        at.v_pipe.init(4 * WARPGROUPS);
        at.units.init(4 * WARPGROUPS + 1);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<SKIPS ? 40 : 24>();
        if (threadIdx.x < 32 && (SKIPS || elected()))
            produce_queries(c, q, k, v, o, d_o, at, !SKIPS || elected());
#if SKIPS
        if (threadIdx.x == 32)
            give_units(c.queue, at.units, units_of(c, ROWS));
#endif
    } else {
        registers_take<SKIPS ? 232 : 240>();
        consume_queries(c, at);
    }
#endif
}
