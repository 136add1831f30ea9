/* Which queries see the keys of a warp, and what becomes of their scores, in the kernel of backward
 * for Hopper whose rows are keys: what attention_wgmma_scores.cuh says of rows of queries, turned.
 * A probability and the derivative of its score's cap are found together. Also what dropout keeps,
 * turned. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_TURNED_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_TURNED_CUH

#include "attention_wgmma_scores.cuh"

#if CUP_HAS_WGMMA

/* All keys of a warpgroup are seen by the queries [first_of_all, end_of_all), those of this lane,
 * l / 4 and l / 4 + 8 of the warp, by [first, end); `place` is by how much the lane's first column
 * would be ahead of each key if it were query 0. */
struct key_sight {
    int first_of_all, end_of_all;
    int first[2], end[2];
    int place[2];
#if FORMULA
    int batch, key[2];
#endif
};

/* `group` is the first key of the warpgroup, `key` that of the warp. */
DEVICE key_sight sight_of_keys(const attention_call &c, int batch, int group, int key)
{
    key_sight see = {};
#if WINDOW || CHANGED
    see.first_of_all = first_seeing(c, batch, group + 63);
    see.end_of_all = end_seeing(c, batch, group);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = key + lane() / 4 + 8 * r;
        see.first[r] = first_seeing(c, batch, at);
        see.end[r] = end_seeing(c, batch, at);
        see.place[r] = ahead_of(c, batch, at) - at + 2 * (lane() % 4);
#if FORMULA
        see.batch = batch;
        see.key[r] = at;
#endif
    }
#endif
    return see;
}

/* A tile of a bias, an element of each score. */
typedef uint16_t turned_bias[LOADED ? STEP / 2 : 1];

/* What is loaded as one is. */
DEVICE attention_pairs loaded_pairs(const attention_call &c)
{
#if AHEAD
    attention_pairs t = c.formula.tensors[AHEAD - 1];
    t.query = BY_QUERY >> (AHEAD - 1) & 1 ? t.query : 0;
    return t;
#else
    return c.score.bias;
#endif
}

/* Loads that of the queries from `query` on of a head, for the warp's keys from `key` on. */
DEVICE void load_turned(const attention_call &c, int batch, int head, int query, int key,
                        turned_bias &bias)
{
#if LOADED
    attention_pairs pairs = loaded_pairs(c);
    const T *from[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        from[r] = pair_of(c, pairs, batch, head, 0, key + lane() / 4 + 8 * r);
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        int at = query + 2 * (lane() % 4) + i / 4 * 8 + i % 2;
        at = at < c.queries ? at : c.queries - 1;
        bias[i] = *(const uint16_t *)(from[i / 2 % 2] + at * pairs.query);
    }
#endif
}

#if FORMULA
/* The formula of score 4 j + i. */
DEVICE formula_value<float> turned_value(const attention_call &c, const key_sight &see, int head,
                                         int query, int j, int i, float score, float ahead)
{
    int r = i / 2, column = 8 * j + i % 2;
    float own = (float)(query + see.place[r] + see.key[r]) + (float)column;
    formula_row<float> row = formula_row_at<float>(
        c, see.batch, head, query + 2 * (lane() % 4) + column, own);
    float apart = (float)(query + see.place[r]) + (float)column;
    return formula_of(c, row, score, (float)see.key[r], see.key[r], apart, ahead);
}

/* Scores that a formula hides, and leaves otherwise as they are, become -infinity. */
DEVICE void hide_turned(const attention_call &c, const key_sight &see, scores &s,
                        const turned_bias &bias, int head, int query)
{
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        if (!turned_value(c, see, head, query, i / 4, i % 4, s[i], AHEAD ? bias_at(bias[i]) : 0)
                 .seen)
            s[i] = -INFINITE;
}

/* Scores become probabilities by the formula, whose condition is asked for, or not. */
template <bool Asked>
DEVICE void apply_turned(const attention_call &c, const key_sight &see, scores &s, scores &slope,
                         const turned_bias &bias, uint32_t lse, int head, int query)
{
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(lse + (8 * j + 2 * (lane() % 4)) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = 4 * j + i;
            formula_value<float> y =
                turned_value(c, see, head, query, j, i, s[at], AHEAD ? bias_at(bias[at]) : 0);
            float x = FORMULA_HIDES ? s[at] : Asked ? y.score : y.bare;
            slope[at] = y.slope;
            s[at] = exp2_fast(x * power_scale(c) - (i % 2 ? of.y : of.x));
        }
    }
}
#endif

/* Scores become probabilities; columns are the queries from `query` on of a head, each with its
 * lse. Of a `whole` tile all keys are seen by what a formula says. */
DEVICE void change_turned(const attention_call &c, const key_sight &see, scores &s,
                          scores &cap_back, const turned_bias &bias, uint32_t lse, int head,
                          int query, bool whole)
{
    int t = lane() % 4;
    float slope = slope_of<float>(c, head) * LOG2_E;
    bool masked = (CAUSAL || WINDOW || FORMULA) &&
                  (query < see.first_of_all || query + STEP > see.end_of_all);
#if !FORMULA
    float from[2] = {(float)(query + see.place[0]), (float)(query + see.place[1])};
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) {
        float2 of = load_shared_pair(lse + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = changed_power(c, s[4 * j + i], slope, from[i / 2] + (float)(8 * j + i % 2),
                                    &cap_back[4 * j + i]);
            if (BIAS)
                x += bias_at(bias[4 * j + i]) * LOG2_E;
            s[4 * j + i] = exp2_fast(x - (i % 2 ? of.y : of.x));
        }
    }
#else
    if (FORMULA_HIDES && !(SKIPS && whole))
        hide_turned(c, see, s, bias, head, query);
    if (FORMULA_HIDES || (SKIPS && whole))
        apply_turned<false>(c, see, s, cap_back, bias, lse, head, query);
    else
        apply_turned<true>(c, see, s, cap_back, bias, lse, head, query);
#endif
    if (!masked)
        return;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        int at = query + 2 * t + i / 4 * 8 + i % 2, r = i / 2 % 2;
        if (at < see.first[r] || at >= see.end[r])
            s[i] = 0;
    }
}

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

#endif
#endif
