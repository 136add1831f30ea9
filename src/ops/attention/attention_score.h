/* What becomes of the scores beside being scaled, and what they stand beside: all that the host
 * side of attention knows of it, but for formulas. attention_score.cuh beside it is what the
 * kernels know.
 *
 * A scaled score x becomes soft_cap tanh(x / soft_cap), then slope |distance| is taken away, where
 * the distance is that of the key from the query's position, and a bias is added. A sink is the
 * logit, one for each head, of a key that all queries see and whose value is 0. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_SCORE_H
#define CUP_OPS_ATTENTION_ATTENTION_SCORE_H

#include <math.h>

#include "base/wide_math.h"
#include "dispatch/op.h"
#include "ops/attention/attention_formula.h"
#include "ops/attention/attention_mask.h"

#define CUP__NUMBERS (CUP__DTYPE(F32) | CUP__DTYPE(F64)) /* dtypes of slopes and sinks */

typedef struct cup__attention_score {
    cup_tensor *slopes, *sinks; /* [heads]; NULL: none */
    cup_tensor *bias;           /* NULL: none */
    int64_t bias_stride[4];     /* of batches, heads, queries and keys */
    double soft_cap;            /* 0: none */
    bool changed;               /* the scores are not only scaled */
    cup__score_formula *formula; /* in place of all these but sinks; NULL: none */
    const double *parameters;    /* of the formula */
    cup__score_tensor tensor[CUP__SCORE_TENSORS];
} cup__attention_score;

/* Of a call whose optional inputs begin with input `first`. */
#define CUP__SCORE_OF(a, call, first) cup__attention_score_make((a)->soft_cap, call, first)

static inline cup__attention_score cup__attention_score_make(double soft_cap, const cup__call *call,
                                                             int first)
{
    cup__attention_score s = {.slopes = cup__attention_extra(call, first + CUP__SLOPES),
                              .sinks = cup__attention_extra(call, first + CUP__SINKS),
                              .bias = cup__attention_extra(call, first + CUP__BIAS),
                              .soft_cap = soft_cap};
    for (int i = 0; i < 4 && s.bias; i++)
        s.bias_stride[i] = s.bias->shape[i] > 1 ? s.bias->stride[i] : 0;
    s.changed = soft_cap > 0 || s.slopes || s.bias;
    return s;
}

static inline cup_status cup__attention_score_check(cup__call *call, double soft_cap, int first,
                                                    int64_t heads)
{
    static const char *const names[] = {"slopes", "sinks"};
    if (!(soft_cap >= 0 && isfinite(soft_cap)))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "a soft cap must be finite and above 0, or 0 for none, not %g",
                              soft_cap);
    for (int i = 0; i < CUP__NUMBERED; i++) {
        const cup_tensor *t = cup__attention_extra(call, first + i);
        cup_dtype dtype = call->in[0]->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
        if (t && (t->ndim != 1 || t->shape[0] != heads))
            return cup__call_fail(call, CUP_SHAPE,
                                  "%s must have one number for each of the %lld "
                                  "heads of q",
                                  names[i], (long long)heads);
        if (t && t->dtype != dtype)
            return cup__call_fail(call, CUP_DTYPE, "%s must be in %s; cast them", names[i],
                                  cup_dtype_name(dtype));
    }
    return CUP_OK;
}

/* `sizes` are those of batches, heads, queries and keys. */
static inline cup_status cup__attention_bias_check(cup__call *call, int first, const int64_t *sizes)
{
    const cup_tensor *t = cup__attention_extra(call, first + CUP__BIAS);
    bool fits = !t || t->ndim == 4;
    for (int i = 0; t && fits && i < 4; i++)
        fits = t->shape[i] == 1 || t->shape[i] == sizes[i];
    if (!fits)
        return cup__call_fail(
            call, CUP_SHAPE, "the bias must be [%lld,%lld,%lld,%lld], with 1 for any of these",
            (long long)sizes[0], (long long)sizes[1], (long long)sizes[2], (long long)sizes[3]);
    if (t && t->dtype != call->in[0]->dtype)
        return cup__call_fail(call, CUP_DTYPE, "the bias must have the dtype of q; cast it");
    return CUP_OK;
}

static inline int64_t cup__attention_bias_at(const cup__attention_score *s, int64_t batch,
                                             int64_t head, int64_t query, int64_t key)
{
    const int64_t *step = s->bias_stride;
    return batch * step[0] + head * step[1] + query * step[2] + key * step[3];
}

static inline double cup__attention_bias(const cup__attention_score *s, int64_t batch, int64_t head,
                                         int64_t query, int64_t key)
{
    return s->bias ? cup__load(s->bias, cup__attention_bias_at(s, batch, head, query, key)) : 0;
}

static inline double cup__attention_of_head(const cup_tensor *t, int64_t head)
{
    return cup__load(t, head * t->stride[0]);
}

/* A scaled score, changed; *slope is its derivative. */
static inline double cup__attention_changed(const cup__attention_score *s, double score,
                                            int64_t head, int64_t distance, double *slope)
{
    *slope = 1;
    if (s->soft_cap > 0) {
        double t = tanh(score / s->soft_cap);
        score = s->soft_cap * t;
        *slope = 1 - t * t;
    }
    if (s->slopes)
        score -= cup__attention_of_head(s->slopes, head) * fabs((double)distance);
    return score;
}

/* The same for a row of scores, not yet scaled, of a query at `position` and the keys from `key`
 * on. */
static inline __attribute__((always_inline)) void
cup__attention_change(const cup__attention_score *s, float scale, int64_t head, int64_t position,
                      int64_t key, int count, float *score, float *slope)
{
    float cap = (float)s->soft_cap, inverse = s->soft_cap > 0 ? (float)(1 / s->soft_cap) : 0;
    float linear = s->slopes ? (float)cup__attention_of_head(s->slopes, head) : 0;
    float from = (float)(position - key);
    for (int i = 0; i < count; i++)
        score[i] *= scale;
    for (int i = 0; i < count && cap > 0; i++) {
        float t = cup__tanh_f32(score[i] * inverse);
        score[i] = cap * t;
        slope[i] = 1 - t * t;
    }
    for (int i = 0; i < count && linear != 0; i++)
        score[i] -= linear * fabsf(from - (float)i);
}

/* Gradients of changed scores become those of scores that are not scaled; returns what the slope
 * gets of them. */
static inline __attribute__((always_inline)) float
cup__attention_change_back(const cup__attention_score *s, float scale, int64_t position,
                           int64_t key, int count, const float *slope, float *ds)
{
    float sum = 0, from = (float)(position - key);
    for (int i = 0; i < count && s->slopes; i++)
        sum -= ds[i] * fabsf(from - (float)i);
    for (int i = 0; i < count; i++)
        ds[i] *= s->soft_cap > 0 ? slope[i] * scale : scale;
    return sum;
}

/* Puts a sink into a row's sum of e^(score - most); returns what its other sums are multiplied
 * by. */
static inline double cup__attention_sink(double sink, double *most, double *sum)
{
    double before = *most;
    *most = before > sink ? before : sink;
    if (*most == -INFINITY)
        return 1;
    double fade = exp(before - *most);
    *sum = *sum * fade + exp(sink - *most);
    return fade;
}

#endif
