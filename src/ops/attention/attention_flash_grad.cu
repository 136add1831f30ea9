/* Flash attention, backward, on tensor cores fed from registers (mma.sync), for 16-bit floats and
 * f32.
 *
 * Two kernels that each compute the scores again, so that every result is summed in one place and
 * in one order; one kernel would do five products instead of seven, but has to add up dq across
 * blocks. attention_grad_queries   block x: ROWS queries of a head; walks over keys; dq. It also
 * writes the sums of o times d_o and the scaled lse that the other needs. attention_grad_keys block
 * x: ROWS keys of a head; walks over the queries that see them, of all heads of the group; dk and
 * dv, of PART features in block y. Where f32 is split, attention_grad_queries walks over the keys
 * twice: the largest score of a query, its sum and its delta are found again from the products that
 * the gradients are made of, so that what cancels in exact arithmetic cancels here. The rows of a
 * block stay in one warp each 16; the tiles walked over are shared, one copied ahead. 14 B H T S D
 * flops, 18 with SPLIT, halved by causality. CUP_SPILLS_ALLOWED: in f32, addresses that are needed
 * once a tile. */
#ifndef SIZE
#define SIZE 64 /* of a head, up to a multiple of 16, or 32 above 128 */
#endif
#ifndef PART
#define PART (SIZE > 128 ? SIZE / 2 : SIZE) /* features of dk and dv that a block computes */
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STEP
#define STEP (SIZE > 128 ? 16 : SIZE > 64 ? 32 : 64) /* positions walked over at a time */
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

#define A_IN_REGISTERS (!WIDE && SIZE <= 64)
#include "attention_rows.cuh"

#define THREADS (WARPS * 32)
#define ROWS (16 * WARPS)
#define TILE (STEP * PITCH)
#define NUMBERS (SPLIT ? 3 : 2) /* of a query that attention_grad_keys reads */

#include "attention_flash_walks.cuh"

/* Takes what dropout did out of the gradients of the probabilities. */
DEVICE void drop_back(const attention_call &c, float (&dp)[STEP / 8][4], int row, int query,
                      int key)
{
#if DROPOUT
#pragma unroll
    for (int j = 0; j < STEP / 16; j++) {
        struct philox_words words =
            philox_block((const uint64_t *)c.random, c.sequence,
                         random_tile(c, row, query, key + 16 * j) + lane_id());
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int upper = i / 4, r = i / 2 % 2, e = i % 2;
            float &d = dp[2 * j + upper][2 * r + e];
            d = keeps(words.at[2 * e + r], upper, c.threshold) ? d * c.factor : 0;
        }
    }
#endif
}

/* Scores s become gradients of the scores but for the scale; dp are those of the probabilities. */
DEVICE void queries_back(const attention_call &c, int batch, float (&s)[STEP / 8][4],
                         const float (&dp)[STEP / 8][4], row_numbers &n, const score_rows &scored,
                         int query, int key, bool masked)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    float scale = score_scale(c);
    int seen[2] = {seen_by(c, batch, query + g) - key - 2 * t,
                   seen_by(c, batch, query + g + 8) - key - 2 * t};
    unsigned listed = LISTS ? listed_bits(c, batch, scored.head[0], query, 16, key, STEP) : 0;
    int from[2] = {first_seen(c, batch, query + g) - key - 2 * t,
                   first_seen(c, batch, query + g + 8) - key - 2 * t};
#if FORMULA
    float number = (float)(key + 2 * t);
#endif
#pragma unroll
    for (int at = 0; at < STEP / 8; at++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = i / 2, e = i % 2, own = key + 2 * t + 8 * at + e;
            int distance = scored.position[r] - own;
            float slope = 1;
#if FORMULA
            formula_value<float> y = formula_of(c, scored.formula[r], s[at][i],
                                                number + (float)(8 * at + e), own);
            s[at][i] = y.score;
#else
            if (CHANGED)
                s[at][i] =
                    changed(c.score, s[at][i] * c.scale, scored.linear[r], distance, &slope) +
                    bias_of(c, scored, r, own);
#endif
            float p = weight_of(s[at][i], n.base[r], scale);
            if (SPLIT)
                p *= n.inverse[r];
            if (masked && (8 * at + e >= seen[r] || (WINDOW && 8 * at + e < from[r])))
                p = 0;
            if (LISTS && !(listed >> (8 * at / LIST_SPAN) & 1))
                p = 0;
            s[at][i] = p * (dp[at][i] - n.delta[r]);
            if (BIAS_GRAD && scored.query[r] < c.queries && own < c.keys)
                *pair_of(c, c.score.d_bias, scored.batch, scored.head[r], scored.query[r], own) =
                    from_real<T>(s[at][i]);
            if (SLOPES)
                n.d_slope[r] -= s[at][i] * (float)(distance < 0 ? -distance : distance);
#if FORMULA
            add_rows_back(n.d_rows[r], y, s[at][i]);
            if (PAIR_GRADS && scored.query[r] < c.queries && own < c.keys)
                store_pairs_back(c, y, s[at][i], scored.batch, scored.head[r], scored.query[r],
                                 own);
            if (FORMULA_SLOPED)
                s[at][i] = passed_on(s[at][i], y.slope);
#endif
            if (SOFT_CAP)
                s[at][i] *= slope;
        }
}

/* The sums of the four lanes of a row. */
DEVICE void store_slopes(const attention_call &c, const row_numbers &n, int batch, int head,
                         int query)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = n.d_slope[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int at = query + lane_id() / 4 + 8 * r;
        if (at < c.queries && lane_id() % 4 == 0)
            store_number(c.score.d_slopes, batch, head, at, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_grad_queries(const __grid_constant__ attention_call c)
{
    extern __shared__ uint4 memory[];
    uint32_t q_tile = shared_address(memory), d_o_tile = q_tile + ROWS * PITCH;
    uint32_t k_tiles = d_o_tile + ROWS * PITCH, v_tiles = k_tiles + STAGES * TILE;
    int blocks = (c.queries + ROWS - 1) / ROWS, row = (int)(blockIdx.x / (unsigned)blocks);
    int first = (blocks - 1 - (int)(blockIdx.x % (unsigned)blocks)) * ROWS;
    int batch = row / c.heads, head = row % c.heads, kv = head / (c.heads / c.kv_heads);
    const T *keys = head_of(c.k, batch, kv), *values = head_of(c.v, batch, kv);
    int last = first + ROWS < c.queries ? first + ROWS : c.queries;
    int end = seen_by(c, batch, last - 1), tiles = end > 0 ? (end + STEP - 1) / STEP : 0;
    const int skipped = first_tile(c, batch, first, STEP);
    if (WINDOW)
        tiles = tiles > skipped ? tiles - skipped : 0;
    int query = first + (int)threadIdx.x / 32 * 16, own = (int)threadIdx.x / 32 * 16 * PITCH;

    load_tile<ROWS, THREADS>(threadIdx.x, q_tile, head_of(c.q, batch, head), c.q.position, first,
                             c.queries, c.size);
    load_tile<ROWS, THREADS>(threadIdx.x, d_o_tile, head_of(c.d_o, batch, head), c.d_o.position,
                             first, c.queries, c.size);
    /* O passes through the place of the keys and values. */
    load_tile<ROWS, THREADS>(threadIdx.x, k_tiles, head_of(c.o, batch, head), c.o.position, first,
                             c.queries, c.size);
    copies_end();
    copies_wait<0>();
    __syncthreads();
    uint32_t q[DEPTH_STEPS][4], d_o[DEPTH_STEPS][4];
    load_fragments(q, q_tile + own);
    load_fragments(d_o, d_o_tile + own);
    long long numbers = ((long long)batch * c.heads + head) * c.queries;
    row_numbers rows = given(c, numbers, query, k_tiles + own, d_o_tile + own);
#if SPLIT
    bool refined = false;
    row_sums all = {{{-INFINITE, -INFINITE}, {0, 0}}, {0, 0}, {0, 0}};
#else
    store_numbers(c, rows, numbers, query, batch, head);
#endif
    const int walks = SPLIT ? 2 : 1;
    __syncthreads();

    float dq[SIZE / 8][4];
    clear(dq);
    score_rows scored =
        score_rows_of(c, batch, head, query + lane_id() / 4, head, query + lane_id() / 4 + 8);
    const int all_steps = walks * tiles;
#pragma unroll 1
    for (int n = STAGES == 2 ? -1 : NEXT(0), met = n, after; n < all_steps; n = after, met++) {
        after = NEXT(n + 1);
        int next = STAGES == 2 ? after : n, to = PLACE(next, met + STAGES - 1) * TILE;
        if (next < all_steps) {
            int begin = (skipped + (next < tiles ? next : next - tiles)) * STEP;
            load_tile<STEP, THREADS>(threadIdx.x, k_tiles + to, keys, c.k.position, begin, c.keys,
                                     c.size);
            load_tile<STEP, THREADS>(threadIdx.x, v_tiles + to, values, c.v.position, begin, c.keys,
                                     c.size);
        }
        copies_end();
        if (n < 0)
            continue;
        copies_wait<STAGES - 1>();
        __syncthreads();
        int at = PLACE(n, met) * TILE, key = (skipped + (n < tiles ? n : n - tiles)) * STEP;
#if SPLIT
        if (LISTS ? n >= tiles && !refined : n == tiles) {
            refined = true;
            refine(c, rows, all, head);
            store_numbers(c, rows, numbers, query, batch, head);
        }
#endif
        if (key < seen_by(c, batch, query + 15) &&
            (!WINDOW || key + STEP > first_seen(c, batch, query)) &&
            is_listed(c, batch, head, query, 16, key, STEP)) {
            float s[STEP / 8][4], dp[STEP / 8][4];
            bool masked = key + STEP > seen_by(c, batch, query) ||
                          (WINDOW && key < first_seen(c, batch, query + 15));
            multiply_rows(s, q, q_tile + own, k_tiles + at);
            multiply_rows(dp, d_o, d_o_tile + own, v_tiles + at);
            drop_back(c, dp, row, query, key);
#if SPLIT
            if (n < tiles)
                change_scores(s, c, scored, key);
            if (n < tiles && masked)
                mask_scores(s, seen_by(c, batch, query + lane_id() / 4) - key,
                            seen_by(c, batch, query + lane_id() / 4 + 8) - key);
            if (WINDOW && n < tiles && masked)
                mask_before(s, first_seen(c, batch, query + lane_id() / 4) - key,
                            first_seen(c, batch, query + lane_id() / 4 + 8) - key);
            if (n < tiles)
                mask_unlisted(c, batch, head, query, key, s);
            if (n < tiles)
                gather(all, s, dp, score_scale(c));
            else
#endif
            {
                queries_back(c, batch, s, dp, rows, scored, query, key, masked);
                multiply_columns(dq, s, k_tiles + at, 0);
            }
        }
        __syncthreads();
    }
#if SPLIT
    if (LISTS ? !refined : tiles == 0) {
        refine(c, rows, all, head);
        store_numbers(c, rows, numbers, query, batch, head);
    }
#endif
    store_rows(head_of(c.dq, batch, head), c.dq.position, query, c.queries, 0, c.size, q_tile + own,
               dq, c.scale, c.scale);
    if (SLOPES)
        store_slopes(c, rows, batch, head, query);
#if FORMULA
    store_tile_back(c, rows.d_rows, batch, head, query);
#endif
}

/* As queries_back with keys as rows: s becomes the probabilities that dropout keeps, dp the
 * gradients of the scores but for the scale. */
DEVICE void keys_back(const attention_call &c, float (&s)[STEP / 8][4], float (&dp)[STEP / 8][4],
                      uint32_t numbers, int row, int query, int key, bool masked)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    float scale = score_scale(c), linear = slope_of<float>(c, row % c.heads);
    int batch = row / c.heads;
#pragma unroll
    for (int j = 0; j < STEP / 16; j++) {
        uint32_t word[2][2];
        if (DROPOUT) {
            uint64_t tile = random_tile(c, row, query + 16 * j, key);
            swap_numbers(word, philox_block((const uint64_t *)c.random, c.sequence,
                                            tile + (2 * t + g % 2) * 4 + g / 2));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int at = 2 * j + r;
            uint32_t from = numbers + (at * 8 + 2 * t) * 4;
            float2 base = load_shared_pair(from), delta = load_shared_pair(from + STEP * 4);
            bool listed = is_listed(c, batch, row % c.heads, query + 8 * at, 1, key, 16);
            float2 inverse = SPLIT ? load_shared_pair(from + STEP * 8) : base;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int upper = i / 2, e = i % 2;
                float slope = 1;
                int own = key + g + 8 * upper, other = query + at * 8 + 2 * t + e;
#if FORMULA
                formula_value<float> y =
                    formula_of(c,
                               formula_row_at<float>(c, batch, row % c.heads, other,
                                                     (float)(other + ahead_of(c, batch, own))),
                               s[at][i], (float)own, own);
                s[at][i] = y.score;
#endif
                if (CHANGED && !FORMULA)
                    s[at][i] = changed(c.score, s[at][i] * c.scale, linear,
                                       other + ahead_of(c, batch, own) - own, &slope);
                if (BIAS)
                    s[at][i] +=
                        to_real(*pair_of(c, c.score.bias, batch, row % c.heads, other, own));
                float p = weight_of(s[at][i], e ? base.y : base.x, scale);
                if (SPLIT)
                    p *= e ? inverse.y : inverse.x;
                if (masked && (RANGES ? other < first_seeing(c, batch, own) ||
                                            other >= end_seeing(c, batch, own)
                                      : own >= seen_by(c, batch, other) ||
                                            (WINDOW && own < first_seen(c, batch, other))))
                    p = 0;
                /* Behind the last query there are no scores, and the lse there is 0. */
                if ((LISTS && !listed) ||
                    ((BIAS || CHANGED || FORMULA) && other >= c.queries))
                    p = 0;
                bool kept = !DROPOUT || keeps(word[e][r], upper, c.threshold);
                float d = kept ? dp[at][i] * (DROPOUT ? c.factor : 1.0f) : 0;
                s[at][i] = kept ? p : 0;
                dp[at][i] = p * (d - (e ? delta.y : delta.x));
                if (SOFT_CAP)
                    dp[at][i] *= slope;
#if FORMULA
                if (FORMULA_SLOPED)
                    dp[at][i] = passed_on(dp[at][i], y.slope);
#endif
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_grad_keys(const __grid_constant__ attention_call c)
{
    extern __shared__ uint4 memory[];
    uint32_t k_tile = shared_address(memory), v_tile = k_tile + ROWS * PITCH;
    uint32_t q_tiles = v_tile + ROWS * PITCH, d_o_tiles = q_tiles + STAGES * TILE;
    uint32_t numbers = d_o_tiles + STAGES * TILE;
    int blocks = (c.keys + ROWS - 1) / ROWS, pair = (int)(blockIdx.x / (unsigned)blocks);
    int first = (int)(blockIdx.x % (unsigned)blocks) * ROWS;
    int batch = pair / c.kv_heads, kv = pair % c.kv_heads;
    int key = first + (int)threadIdx.x / 32 * 16, own = (int)threadIdx.x / 32 * 16 * PITCH;
    int unseen = first_seeing(c, batch, first);               /* the queries before it see no key */
    int most = c.keys - first < ROWS ? c.keys : first + ROWS; /* end of the keys of this block */
    walk w;
    w.first = (unseen < 0 ? 0 : unseen) / STEP;
    w.tiles = (end_seeing(c, batch, most - 1) + STEP - 1) / STEP - w.first;
    int tiles = w.tiles > 0 ? w.tiles * (c.heads / c.kv_heads) : 0;

    load_tile<ROWS, THREADS>(threadIdx.x, k_tile, head_of(c.k, batch, kv), c.k.position, first,
                             c.keys, c.size);
    load_tile<ROWS, THREADS>(threadIdx.x, v_tile, head_of(c.v, batch, kv), c.v.position, first,
                             c.keys, c.size);
    const int begin = next_of_queries(c, w, 0, tiles, batch, kv, first);
    if (STAGES == 2 && (LISTS ? begin < tiles : tiles))
        load_queries(c, w, begin, batch, kv, q_tiles, d_o_tiles, numbers);
    copies_end();
    uint32_t k[DEPTH_STEPS][4], v[DEPTH_STEPS][4];
    copies_wait<0>();
    __syncthreads();
    load_fragments(k, k_tile + own);
    load_fragments(v, v_tile + own);
    float dk[PART / 8][4], dv[PART / 8][4];
    clear(dk);
    clear(dv);
#pragma unroll 1
    for (int n = begin, met = 0, after; n < tiles; n = after, met++) {
        after = next_of_queries(c, w, n + 1, tiles, batch, kv, first);
        int next = STAGES == 2 ? after : n, place = PLACE(next, met + STAGES - 1);
        if (next < tiles)
            load_queries(c, w, next, batch, kv, q_tiles + place * TILE, d_o_tiles + place * TILE,
                         numbers + place * STEP * NUMBERS * 4);
        copies_end();
        copies_wait<STAGES - 1>();
        __syncthreads();
        int at = PLACE(n, met) * TILE, query = (w.first + n % w.tiles) * STEP;
        uint32_t mine = numbers + PLACE(n, met) * STEP * NUMBERS * 4;
        if (key < seen_by(c, batch, query + STEP - 1) &&
            (!WINDOW || key + 15 >= first_seen(c, batch, query))) {
            float s[STEP / 8][4], dp[STEP / 8][4];
            multiply_rows<STEP / 8, true>(s, k, k_tile + own, q_tiles + at);
            multiply_rows<STEP / 8, true>(dp, v, v_tile + own, d_o_tiles + at);
            int row = batch * c.heads + kv * (c.heads / c.kv_heads) + n / w.tiles;
            bool masked = WINDOW || (CAUSAL && key + 16 > seen_by(c, batch, query));
            keys_back(c, s, dp, mine, row, query, key, masked);
            int column = (int)blockIdx.y * PART;
            multiply_columns(dv, s, d_o_tiles + at, column);
            multiply_columns(dk, dp, q_tiles + at, column);
        }
        __syncthreads();
    }
    copies_wait<0>();
    __syncthreads();
    int column = (int)blockIdx.y * PART;
    float factor = DROPOUT ? c.factor : 1.0f;
    store_rows(head_of(c.dk, batch, kv), c.dk.position, key, c.keys, column, c.size, k_tile + own,
               dk, c.scale, c.scale);
    store_rows(head_of(c.dv, batch, kv), c.dv.position, key, c.keys, column, c.size, v_tile + own,
               dv, factor, factor);
}
