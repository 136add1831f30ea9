/* What backward of attention on tensor cores knows of the rows of a warp before it computes their
 * gradients. The file that includes this one says how many keys a tile of scores has, STEP. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_ROWS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_ROWS_CUH

#include "attention.cuh"

DEVICE float product_of_words(uint32_t x, uint32_t y)
{
    union {
        uint32_t word;
        T at[4 / BYTES];
    } a, b;
    a.word = x;
    b.word = y;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4 / BYTES; i++)
        sum += to_real(a.at[i]) * to_real(b.at[i]);
    return sum;
}

/* Sums of o times d_o of the rows g and g + 8, from the tiles of both. */
DEVICE void sum_delta(float (&delta)[2], uint32_t o_tile, uint32_t d_o_tile)
{
    delta[0] = delta[1] = 0;
#pragma unroll 2
    for (int k = 0; k < DEPTH_STEPS; k++) {
        uint32_t o[4], d[4];
        load_matrices(o, lane_of_a(o_tile) + k * 32);
        load_matrices(d, lane_of_a(d_o_tile) + k * 32);
        delta[0] += product_of_words(o[0], d[0]) + product_of_words(o[2], d[2]);
        delta[1] += product_of_words(o[1], d[1]) + product_of_words(o[3], d[3]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        delta[r] += __shfl_xor_sync(0xffffffffu, delta[r], 1);
        delta[r] += __shfl_xor_sync(0xffffffffu, delta[r], 2);
    }
}

/* What is known of the rows g and g + 8: the base that scores are taken relative to, what their
 * weights are multiplied with, and delta. */
struct row_numbers {
    float base[2], inverse[2], delta[2];
    float d_slope[2]; /* what this lane's scores give the slope */
    float lse[2];     /* as given, infinite for a query that sees nothing */
#if FORMULA
    float d_rows[2][TENSORS_ROOM]; /* and the tensors of a formula */
#endif
};

/* As o and lse of the forward pass have them; `first` is where the head's numbers begin. With SPLIT
 * the base is lse itself until the scores are known. */
DEVICE row_numbers given(const attention_call &c, long long first, int query, uint32_t o_tile,
                         uint32_t d_o_tile)
{
    row_numbers n;
#if FORMULA
    clear_tile_back(n.d_rows);
#endif
    sum_delta(n.delta, o_tile, d_o_tile);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = query + lane_id() / 4 + 8 * r;
        float natural = at < c.queries ? ((const float *)c.lse)[first + at] : 0;
        n.base[r] = natural == -INFINITE ? INFINITE : natural * (SPLIT ? 1 : LOG2_E);
        n.lse[r] = n.base[r];
        n.inverse[r] = 1;
        n.d_slope[r] = 0;
    }
    return n;
}

#if SPLIT
#define ALIKE 0x1p-10f /* how far a number of the forward pass may be from one found again */

/* Sums over the scores of a row: of weights, of these times the gradients of the probabilities, and
 * of the latter's sizes. */
struct row_sums {
    softmax_state weights;
    float products[2], sizes[2];
};

/* Takes in a tile of scores and of the gradients of their probabilities. */
DEVICE void gather(row_sums &all, float (&s)[STEP / 8][4], const float (&dp)[STEP / 8][4],
                   float scale)
{
    float fade[2];
    soften(s, all.weights, fade, scale);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        all.products[r] *= fade[r];
        all.sizes[r] *= fade[r];
#pragma unroll
        for (int at = 0; at < STEP / 8; at++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float product = s[at][2 * r + e] * dp[at][2 * r + e];
                all.products[r] += product;
                all.sizes[r] += fabsf(product);
            }
    }
}

DEVICE float sum_of_four(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* What was given is replaced by what was found where the two differ by rounding only. Where they
 * do not, lse and o are of more keys than these, or of others, and count. */
DEVICE void refine(const attention_call &c, row_numbers &n, const row_sums &all, int head)
{
    float scale = score_scale(c);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = sum_of_four(all.weights.sum[r]), products = sum_of_four(all.products[r]);
        float sizes = sum_of_four(all.sizes[r]), lse = n.base[r], most = all.weights.base[r];
        bool none = sum == 0;
        float fade = none ? 1 : take_sink(c, head, &most, &sum);
        products *= fade;
        sizes *= fade;
        bool alike = fabsf(lse_of(most, sum, scale) - lse) < ALIKE &&
                     fabsf(products / sum - n.delta[r]) <= sizes / sum * ALIKE;
        n.base[r] = none ? 0 : most;
        n.inverse[r] = none ? 0 : alike ? 1 / sum : expf(most * scale - lse);
        n.delta[r] = alike ? products * n.inverse[r] : n.delta[r];
    }
}
#endif

/* The gradient of the sink of a row. */
DEVICE float sink_back(const attention_call &c, const row_numbers &n, int r, int head)
{
    float sink = sink_of<float>(c, head);
    float p = SPLIT ? expf(sink - n.lse[r]) : exp2_fast(sink * LOG2_E - n.lse[r]);
    return -p * n.delta[r];
}

/* For attention_grad_keys; `first` is where the head's numbers begin. */
DEVICE void store_numbers(const attention_call &c, const row_numbers &n, long long first, int query,
                          int batch, int head)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = query + lane_id() / 4 + 8 * r;
        if (at >= c.queries || lane_id() % 4)
            continue;
        ((float *)c.lse_log2)[first + at] = n.base[r];
        ((float *)c.delta)[first + at] = n.delta[r];
        if (SPLIT)
            ((float *)c.inverse)[first + at] = n.inverse[r];
        if (SINKS)
            store_number(c.score.d_sinks, batch, head, at, sink_back(c, n, r, head));
    }
}

#endif
