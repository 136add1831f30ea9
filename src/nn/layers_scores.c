/* What a layer of attention makes of its scores. */
#include <math.h>

#include "cupola/ops.h"
#include "nn/layers.h"

#define FALL 8 /* the last of the heads' slopes is 2^-8 */

/* 2^(first + i step) for so many i from 0. */
static cup_tensor *powers(cup_context *c, cup_dtype dtype, double first, double step, int64_t count)
{
    double unit = log(2), end = first + step * ((double)count - 0.5);
    return cup_exp(c, cup_arange(c, dtype, first * unit, end * unit,
                                 CUP_OPTIONS(cup_arange_options, .step = step * unit)));
}

/* Of heads whose number is no power of two the first have the slopes of the largest power below
 * it, and the others each second one of twice as many. */
static cup_tensor *slopes_of(const cup_attention_layer *layer, cup_context *c, cup_dtype dtype)
{
    int64_t from = layer->first_head, to = from + layer->heads, even = 1;
    while (2 * even <= layer->all_heads)
        even *= 2;
    double step = -(double)FALL / (double)even;
    int64_t first = from < even ? (to < even ? to : even) - from : 0, rest = layer->heads - first;
    int64_t passed = from < even ? 0 : from - even;
    cup_tensor *parts[2];
    int count = 0;
    if (first > 0)
        parts[count++] = powers(c, dtype, step * (double)(from + 1), step, first);
    if (rest > 0)
        parts[count++] = powers(c, dtype, step * ((double)passed + 0.5), step, rest);
    return count > 1 ? cup_concat(c, parts, count, 0) : parts[0];
}

cup__layer_scores cup__attention_layer_scores(const cup_attention_layer *layer, cup_context *c)
{
    cup__layer_scores scores = {.soft_cap = layer->soft_cap, .sinks = layer->sinks};
    bool wide = cup_tensor_dtype(layer->out.weight) == CUP_F64;
    cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
    if (scores.sinks && cup_tensor_dtype(scores.sinks) != dtype)
        scores.sinks = cup_cast(c, scores.sinks, dtype);
    if (layer->alibi)
        scores.slopes = slopes_of(layer, c, dtype);
    return scores;
}
