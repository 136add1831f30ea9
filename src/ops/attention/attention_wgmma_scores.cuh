/* What the rows of a warp see, and what becomes of their scores, in the kernels for Hopper whose
 * rows are queries: windows, documents, soft caps, slopes, biases and sinks, each a knob of its
 * own. A warpgroup's sums lie as attention_wgmma.cuh says. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_SCORES_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_SCORES_CUH

#include "attention_wgmma.cuh"

#ifndef BIAS_PAIRS
#define BIAS_PAIRS 0 /* two neighbouring keys of a bias are one aligned word */
#endif
#ifndef AHEAD
#define AHEAD 0 /* a tensor of a formula is loaded in place of a bias */
#endif
#define LOADED (BIAS || AHEAD)

#if CUP_HAS_WGMMA

/* Of a warpgroup: the keys [unseen, seen) are seen by all its rows. Of this lane's rows l / 4 and
 * l / 4 + 8: the keys [first, end) that each sees, the place of its own key, and its bias. */
struct row_sight {
    int seen, unseen;
    int first[2], end[2];
    int place[2];
    float slope; /* of the head, to powers of two */
    const T *bias[2];
#if FORMULA
    formula_row<float> formula[2];
#endif
};

/* How far a key of what is loaded is from the next. */
DEVICE long long bias_step(const attention_call &c)
{
#if AHEAD
    return c.formula.tensors[AHEAD - 1].key;
#else
    return c.score.bias.key;
#endif
}

/* `group` is the first query of the warpgroup, `query` that of the warp. */
DEVICE row_sight sight_of_rows(const attention_call &c, int batch, int head, int group, int query)
{
    row_sight see;
    see.seen = seen_by(c, batch, group);
    see.unseen = first_seen(c, batch, group + 63);
#if RANGES || CHANGED
    see.slope = slope_of<float>(c, head) * LOG2_E;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = query + lane() / 4 + 8 * r;
        see.first[r] = first_seen(c, batch, at);
        see.end[r] = seen_by(c, batch, at);
        see.place[r] = SLOPES ? position_of(c, batch, at) - 2 * (lane() % 4) : 0;
        see.bias[r] = BIAS ? pair_of(c, c.score.bias, batch, head, at, 0) : nullptr;
#if FORMULA
        see.formula[r] = formula_row_of<float>(c, batch, head, at);
#endif
#if AHEAD
        see.bias[r] = (const T *)see.formula[r].from[AHEAD - 1];
#endif
    }
#endif
    return see;
}

/* A tile of a bias as it is in memory: word i is of scores 2 i and 2 i + 1. */
typedef uint32_t bias_words[LOADED ? STEP / 4 : 1];

DEVICE uint32_t bias_word(const attention_call &c, const T *row, int key)
{
    if (BIAS_PAIRS)
        return *(const uint32_t *)(row + (key < c.keys ? key : 0));
    uint32_t low = *(const uint16_t *)(row + (key < c.keys ? key : 0) * bias_step(c));
    uint32_t high = *(const uint16_t *)(row + (key + 1 < c.keys ? key + 1 : 0) * bias_step(c));
    return low | high << 16;
}

/* Loads the bias of the keys from `key` on. */
DEVICE void load_bias(const attention_call &c, const row_sight &see, int key, bias_words &words)
{
    if (!LOADED)
        return;
    int at = key + 2 * (lane() % 4);
    bool whole = key + STEP <= c.keys;
#pragma unroll
    for (int i = 0; i < STEP / 4; i++) {
        const T *row = see.bias[i % 2];
        if (BIAS_PAIRS && whole)
            words[i] = *(const uint32_t *)(row + at + i / 2 * 8);
        else
            words[i] = bias_word(c, row, at + i / 2 * 8);
    }
}

DEVICE float bias_at(uint16_t bits)
{
    union {
        uint16_t bits;
        T value;
    } x;
    x.bits = bits;
    return to_real(x.value);
}

/* The reciprocal to one unit in the last place; 0 of infinity. */
DEVICE float inverse_of(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A score as products give it becomes a power of two; `cap_back` is the derivative of its cap. A
 * capped score is cap (1 - 2 / (1 + e^(2 x / cap))), whose error is a rounding of the cap. */
DEVICE float changed_power(const attention_call &c, float score, float slope, float distance,
                           float *cap_back)
{
    float scale = c.scale * LOG2_E, cap = c.score.soft_cap * LOG2_E, x = score * scale;
    if (SOFT_CAP) {
        x = inverse_of(1 + exp2_fast(2 * scale * c.score.soft_cap_inverse * score));
        *cap_back = 4 * x * (1 - x);
        x = cap - 2 * cap * x;
    }
    return SLOPES ? x - slope * fabsf(distance) : x;
}

/* What a score must be multiplied by to be a power of two. A formula that hides keys, and no more,
 * leaves the scores as products give them. */
DEVICE float power_scale(const attention_call &c)
{
    float4 scales = scales_of(c);
    float scale = FORMULA && !FORMULA_HIDES ? LOG2_E : CHANGED && !FORMULA ? 1 : c.scale * LOG2_E;
    return scale * (scales.x * scales.y);
}

#if FORMULA
/* The number of a lane's first key, and how far it is from those of its rows. */
struct first_key {
    float number, apart[2];
};

DEVICE first_key first_key_of(const row_sight &see, int key)
{
    float number = (float)(key + 2 * (lane() % 4));
    return {number, {see.formula[0].query - number, see.formula[1].query - number}};
}

/* The formula of score i of the keys from `key` on. */
DEVICE formula_value<float> formula_at(const attention_call &c, const row_sight &see, int i,
                                       float score, const first_key &from, int key,
                                       const bias_words &words)
{
    int column = i / 4 * 8 + i % 2, r = i / 2 % 2;
    float ahead = AHEAD ? bias_at((uint16_t)(words[i / 2] >> 16 * (i % 2))) : 0;
    return formula_of(c, see.formula[r], score, from.number + (float)column,
                      key + 2 * (lane() % 4) + column, from.apart[r] - (float)column, ahead);
}
#endif

#if FORMULA
/* The same by the formula, whose condition is asked for, or not. */
template <bool Asked>
DEVICE void apply_formula(const attention_call &c, const row_sight &see, const bias_words &words,
                          int key, scores &s, scores &slope)
{
    if (FORMULA_HIDES && !Asked)
        return;
    first_key from_key = first_key_of(see, key);
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        formula_value<float> y = formula_at(c, see, i, s[i], from_key, key, words);
        slope[i] = y.slope;
        if (!FORMULA_HIDES)
            s[i] = Asked ? y.score : y.bare;
        else if (!y.seen)
            s[i] = -INFINITE;
    }
}
#endif

/* Scores of the keys from `key` on become powers of two where anything but their scale changes
 * them, or what the formula makes of them; cap_back is what they are differentiated to. Of a
 * `whole` tile all keys are seen by what the formula says. */
DEVICE void change_scores(const attention_call &c, const row_sight &see, const bias_words &words,
                          int key, bool whole, scores &s, scores &cap_back)
{
    if (!CHANGED)
        return;
#if FORMULA
    if (SKIPS && whole)
        apply_formula<false>(c, see, words, key, s, cap_back);
    else
        apply_formula<true>(c, see, words, key, s, cap_back);
    return;
#endif
    float from[2] = {(float)(see.place[0] - key), (float)(see.place[1] - key)};
#pragma unroll
    for (int i = 0; i < STEP / 2; i++) {
        float distance = from[i / 2 % 2] - (float)(i / 4 * 8 + i % 2);
        s[i] = changed_power(c, s[i], see.slope, distance, &cap_back[i]);
        if (BIAS)
            s[i] += bias_at((uint16_t)(words[i / 2] >> 16 * (i % 2))) * LOG2_E;
    }
}

/* Scores of keys before `first` of the tile become -infinity. */
DEVICE void mask_first(scores &s, int first_low, int first_high)
{
    first_low -= 2 * (lane() % 4);
    first_high -= 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        if (i / 4 * 8 + i % 2 < (i & 2 ? first_high : first_low))
            s[i] = -INFINITE;
}

/* Scores of the warp whose queries begin at `query` become -infinity where its list does not name
 * the block of the key; `key` is the first of the tile. Where blocks are no smaller than tiles, a
 * tile is met only if it is named. */
DEVICE void hide_unlisted(const attention_call &c, int row, int query, int key, scores &s)
{
    if (!LISTS || (LISTS >= ROWS && LISTS >= STEP))
        return;
    unsigned bits = listed_bits(c, row / c.heads, row % c.heads, query, 16, key, STEP);
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        if (!(bits >> (i / 4 * 8 / LIST_SPAN) & 1))
            s[i] = -INFINITE;
}

/* Scores of tile n that their rows do not see become -infinity; `low` is this lane's first row. */
DEVICE void mask_unseen(const attention_call &c, const row_sight &see, int low, int n, scores &s)
{
    if ((n + 1) * STEP > see.seen)
        mask_scores(s, (RANGES ? see.end[0] : seen_by(c, low)) - n * STEP,
                    (RANGES ? see.end[1] : seen_by(c, low + 8)) - n * STEP);
    if (WINDOW && n * STEP < see.unseen)
        mask_first(s, (RANGES ? see.first[0] : first_seen(c, 0, low)) - n * STEP,
                   (RANGES ? see.first[1] : first_seen(c, 0, low + 8)) - n * STEP);
}

/* Puts the head's sink into a row's sum; returns what the row's other sums are multiplied by. */
DEVICE float take_sink(const attention_call &c, int head, float *base, float *sum)
{
    if (!SINKS)
        return 1;
    float sink = sink_of<float>(c, head) * LOG2_E, before = *base;
    *base = fmaxf(before, sink);
    if (*base == -INFINITE)
        return 1;
    float fade = exp2_fast(before - *base);
    *sum = *sum * fade + exp2_fast(sink - *base);
    return fade;
}

/* Of backward: the gradient of the sink of a row, whose lse is to powers of two. */
DEVICE float sink_back(const attention_call &c, int head, float lse, float delta)
{
    return -exp2_fast(sink_of<float>(c, head) * LOG2_E - lse) * delta;
}

/* Of backward: gradients of changed scores become those of capped ones, or of the formula's. */
DEVICE void apply_cap_back(scores &s, const scores &cap_back)
{
#if FORMULA
    if (!FORMULA_SLOPED)
        return;
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        s[i] = gradient_of_score(s[i], cap_back[i]);
#elif SOFT_CAP
#pragma unroll
    for (int i = 0; i < STEP / 2; i++)
        s[i] *= cap_back[i];
#endif
}

#if FORMULA
/* Of two neighbouring pairs that are there, as words; `key` is the first's. */
DEVICE void store_words_back(const attention_call &c, const formula_value<float> (&y)[2], float ds,
                             float ds_next, int batch, int head, int query, int key)
{
    const attention_pairs &to = c.formula.d_pairs;
    T *row = (T *)to.data + batch * to.batch + head * to.head + query * to.query;
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        if (PAIR_GRADS >> i & 1)
            *(uint32_t *)(row + part_of(PAIR_GRADS, i) * c.formula.pairs_step + key) =
                pack(gradient_of_tensor(i, ds, y[0]), gradient_of_tensor(i, ds_next, y[1]), T());
}
#endif

#endif
#endif
