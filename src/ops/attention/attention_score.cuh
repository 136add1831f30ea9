/* What becomes of scores beside being scaled, as attention_score.h says it: all that the kernels of
 * attention know of it. The first part is plain C, which the host fills in; the rest are functions
 * of a call.
 *
 * With SOFT_CAP, SLOPES, BIAS or FORMULA, which goes with none of these, the scores are CHANGED:
 * scaled before all else. With SINKS each row's sum has one weight more. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_SCORE_CUH
#define CUP_OPS_ATTENTION_ATTENTION_SCORE_CUH

/* One number for each query of each head; steps in elements. */
typedef struct attention_numbers {
    void *data;
    long long batch, head, query;
} attention_numbers;

/* One element of the tensors' dtype for each query and key; steps in elements. */
typedef struct attention_pairs {
    void *data;
    long long batch, head, query, key;
} attention_pairs;

/* Numbers are f64 where the tensors are, else f32. */
typedef struct attention_score {
    const void *slopes, *sinks;
    long long slopes_step, sinks_step;
    double soft_cap_f64;
    float soft_cap, soft_cap_inverse;
    attention_numbers d_slopes, d_sinks; /* of backward */
    attention_pairs bias, d_bias;
} attention_score;

/* What a formula reads beside, and the first gradient of its tensors of either kind, from which the
 * next is so many elements away; see attention_formula.cuh. */
#define ATTENTION_TENSORS 8
typedef struct attention_formula {
    attention_pairs tensors[ATTENTION_TENSORS], d_pairs;
    attention_numbers d_rows;
    long long rows_step, pairs_step;
    double parameters_f64[ATTENTION_TENSORS];
    float parameters[ATTENTION_TENSORS], inverses[ATTENTION_TENSORS];
} attention_formula;

#ifdef __CUDACC__

#include "attention_mask.cuh"
#include "attention_score_knobs.cuh"
#include "dtype.cuh"

#ifndef BIAS
#define BIAS 0
#endif
#ifndef BIAS_GRAD
#define BIAS_GRAD 0
#endif
#ifndef FORMULA
#define FORMULA 0
#endif
#ifndef FORMULA_HIDES
#define FORMULA_HIDES 0
#endif
#define CHANGED (SOFT_CAP || SLOPES || BIAS || FORMULA)

#if FORMULA
#include "attention_formula.cuh"
#endif

DEVICE float capped(const attention_score &s, float x, float *slope)
{
    x *= s.soft_cap_inverse;
    float t = tanhf(x);
    *slope = 1 - t * t;
    return s.soft_cap * t;
}

DEVICE double capped(const attention_score &s, double x, double *slope)
{
    double t = tanh(x / s.soft_cap_f64);
    *slope = 1 - t * t;
    return s.soft_cap_f64 * t;
}

/* A scaled score, changed; *slope is its derivative. `linear` is the head's slope. */
template <typename Real>
DEVICE Real changed(const attention_score &s, Real score, Real linear, int distance, Real *slope)
{
    *slope = 1;
    if (SOFT_CAP)
        score = capped(s, score, slope);
    if (SLOPES)
        score -= linear * (Real)(distance < 0 ? -distance : distance);
    return score;
}

template <typename Real, typename Call> DEVICE Real slope_of(const Call &c, int head)
{
    return SLOPES ? ((const Real *)c.score.slopes)[head * c.score.slopes_step] : 0;
}

template <typename Real, typename Call> DEVICE Real sink_of(const Call &c, int head)
{
    return ((const Real *)c.score.sinks)[head * c.score.sinks_step];
}

/* The element of a pair. Rows and columns past the last are as the last. */
template <typename Call>
DEVICE T *pair_of(const Call &c, const attention_pairs &p, int batch, int head, int query, int key)
{
    query = query < c.queries ? query : c.queries - 1;
    key = key < c.keys ? key : c.keys - 1;
    return (T *)p.data + batch * p.batch + head * p.head + query * p.query + key * p.key;
}

template <typename Real>
DEVICE void store_number(const attention_numbers &to, int batch, int head, int query, Real x)
{
    ((Real *)to.data)[batch * to.batch + head * to.head + query * to.query] = x;
}

/* Of the rows g and g + 8 of a tile as mma.sync leaves it. */
struct score_rows {
    float linear[2];
    int position[2];
    int batch, head[2], query[2];
#if FORMULA
    formula_row<float> formula[2];
#endif
};

template <typename Call>
DEVICE score_rows score_rows_of(const Call &c, int batch, int head, int query, int head8,
                                int query8)
{
    score_rows rows = {{0, 0}, {0, 0}, batch, {head, head8}, {query, query8}};
    if (SLOPES) {
        rows.linear[0] = slope_of<float>(c, head);
        rows.linear[1] = slope_of<float>(c, head8);
        rows.position[0] = position_of(c, batch, query);
        rows.position[1] = position_of(c, batch, query8);
    }
#if FORMULA
    rows.formula[0] = formula_row_of<float>(c, batch, head, query);
    rows.formula[1] = formula_row_of<float>(c, batch, head8, query8);
#endif
    return rows;
}

template <typename Call> DEVICE float bias_of(const Call &c, const score_rows &rows, int r, int key)
{
    return BIAS ? to_real(*pair_of(c, c.score.bias, rows.batch, rows.head[r], rows.query[r], key))
                : 0;
}

/* The scores of the keys from `key` on. */
template <int Columns, typename Call>
DEVICE void change_scores(float (&s)[Columns][4], const Call &c, const score_rows &rows, int key)
{
    if (!CHANGED)
        return;
    int first = key + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = first + 8 * j + i % 2;
#if FORMULA
            float number = (float)first + (float)(8 * j + i % 2);
            s[j][i] = formula_of(c, rows.formula[i / 2], s[j][i], number, at).score;
#else
            float slope;
            s[j][i] = changed(c.score, s[j][i] * c.scale, rows.linear[i / 2],
                              rows.position[i / 2] - at, &slope);
            if (BIAS)
                s[j][i] += bias_of(c, rows, i / 2, at);
#endif
        }
}

#endif
#endif
