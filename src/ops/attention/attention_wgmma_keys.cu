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
    return (CAUSAL ? (tiles + 1) / 2 : tiles) * c.batch * c.kv_heads;
}

DEVICE unit_of_keys unit_of_keys_at(const attention_call &c, int index)
{
    int tiles = (c.keys + ROWS - 1) / ROWS, each = CAUSAL ? (tiles + 1) / 2 : tiles;
    int at = index % each, pair = index / each;
    unit_of_keys u;
    u.batch = pair / c.kv_heads;
    u.kv = pair % c.kv_heads;
    u.early = at * ROWS;
    u.late = (CAUSAL ? tiles - 1 - at : at) * ROWS;
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
                         const keys_layout &at, ring_place<STAGES> &place, int query, int head,
                         int batch)
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
    place.next();
}

DEVICE void produce_keys(const attention_call &c, const tensor_map &q, const tensor_map &k,
                         const tensor_map &v, const tensor_map &d_o, const keys_layout &at)
{
    ring_place<1> row_place = {0, 0};
    ring_place<STAGES> place = {0, 0};
    int group = c.heads / c.kv_heads;
    for (int i = blockIdx.x; i < units_of_keys(c); i += gridDim.x) {
        unit_of_keys u = unit_of_keys_at(c, i);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half);
            steps_of_keys steps = find_steps(c, u.batch, first);
            int end = steps.first + steps.count;
            if (steps.count == 0)
                continue;
            at.row_pipe.claim(row_place, 2 * WARPGROUPS * ROW_BYTES);
            for (int w = 0; w < WARPGROUPS; w++) {
                bring<64>(k, at.k + w * ROW_BYTES, at.row_pipe.full(0), first + 64 * w, u.kv,
                          u.batch, TMA_EVICT_FIRST);
                bring<64>(v, at.v + w * ROW_BYTES, at.row_pipe.full(0), first + 64 * w, u.kv,
                          u.batch, TMA_EVICT_FIRST);
            }
            row_place.next();
            for (int head = u.kv * group; head < (u.kv + 1) * group; head++)
                for (int n = 0; n < steps.count; n++) {
                    if (SKIPS)
                        n = seeing_from(c, u.batch, head, first, ROWS, steps.first + n, end, STEP) -
                            steps.first;
                    if (SKIPS && n >= steps.count)
                        break;
                    produce_step(c, q, d_o, at, place, (steps.first + n) * STEP, head, u.batch);
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

/* Of the words of query 2 t + g % 2 and keys g and g ^ 1, where lane = 4 g + t, neighbouring lanes
 * swap what the other needs: word [e][r] then holds the numbers of query 2 t + e + 8 r, for key g
 * in its lower half, for key g + 8 in its upper. */
DEVICE void swap_numbers(uint32_t (&to)[2][2], const struct philox_words &words)
{
    bool odd = lane() & 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t mine = odd ? words.at[2 + r] : words.at[r];
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words.at[r] : words.at[2 + r], 4);
        to[0][r] = odd ? other : mine;
        to[1][r] = odd ? mine : other;
    }
}

/* Which of the probabilities dropout keeps, as bits by their place in the registers. */
struct kept_bits {
    uint32_t words[(STEP / 2 + 31) / 32];

    __device__ __forceinline__ bool at(int i) const
    {
        return words[i / 32] >> (i % 32) & 1;
    }
};

DEVICE kept_bits find_kept(const attention_call &c, int row, int query, int key)
{
    int g = lane() / 4, t = lane() % 4;
    kept_bits kept = {};
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t word[2][2];
        uint64_t tile = random_tile(c, row, query + 16 * k, key);
        swap_numbers(word, philox_block((const uint64_t *)c.random, c.sequence,
                                        tile + (2 * t + g % 2) * 4 + g / 2));
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (keeps(word[i % 2][i / 4], i / 2 % 2, c.threshold))
                kept.words[(8 * k + i) / 32] |= 1u << ((8 * k + i) % 32);
    }
    return kept;
}

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
                      bool before)
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
    if (before)
        at.q_pipe.release<1>(stage_before);
    scores cap_back;
#if WINDOW || CHANGED
    change_turned(c, see, s, cap_back, bias, numbers, row % c.heads, query);
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
    at.d_o_pipe.release<1>(stage);
    w.place.next();
}

/* The next of the steps of all heads of the group, from number i on, that may see any of the keys;
 * by a warp. */
DEVICE int met_from(const attention_call &c, const unit_of_keys &u, int first,
                    const steps_of_keys &steps, int i)
{
    int group = c.heads / c.kv_heads;
    while (i < steps.count * group) {
        int head = u.kv * group + i / steps.count, n = steps.first + i % steps.count;
        int end = steps.first + steps.count;
        int seeing = warp_seeing_from(c, u.batch, head, first, ROWS, n, end, STEP);
        i += seeing - n;
        if (seeing < end)
            break;
    }
    return i;
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
#pragma unroll 1
    for (int i = 0; i < steps.count * group; i++) {
        if (SKIPS)
            i = met_from(c, u, first, steps, i);
        if (SKIPS && i >= steps.count * group)
            break;
        int head = u.kv * group + i / steps.count, query = (steps.first + i % steps.count) * STEP;
        keys_step(c, at, w, dk, dv, ds, see, u.batch * c.heads + head, query, key, before);
        before = true;
    }
    wgmma_wait<0>();
    wgmma_hold(dk);
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
    for (int i = blockIdx.x; i < units_of_keys(c); i += gridDim.x) {
        unit_of_keys u = unit_of_keys_at(c, i);
        for (int half = 0; half < u.count; half++) {
            int first = u.first(half), key = first + 64 * w.at.group + 16 * w.at.warp;
            results dk, dv;
            clear(dk);
            clear(dv);
            walk_queries(c, at, w, u, first, dk, dv);
            store_rows(c, head_of(c.dk, u.batch, u.kv), c.dk.position, key, c.keys, dk, c.scale,
                       c.scale);
            store_rows(c, head_of(c.dv, u.batch, u.kv), c.dv.position, key, c.keys, dv, factor,
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
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<24>();
        if (threadIdx.x < 32 && elected())
            produce_keys(c, q, k, v, d_o, at);
    } else {
        registers_take<240>();
        consume_keys(c, at);
    }
#endif
}
