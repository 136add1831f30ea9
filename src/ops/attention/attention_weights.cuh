/* From scores to weights in attention on tensor cores of registers: a row's weights are powers of
 * its scores less a base. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WEIGHTS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WEIGHTS_CUH

#include "attention_call.cuh"
#include "ptx.cuh"

#ifndef SPLIT
#define SPLIT 0
#endif

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

/* What scores are multiplied with. Bases of rows are in the unit of scores with SPLIT, so that the
 * largest has a weight of 1 exactly; else scaled to powers of two, which saves an instruction. */
DEVICE float score_scale(const attention_call &c)
{
    if (CHANGED)
        return SPLIT ? 1 : LOG2_E;
    return SPLIT ? c.scale : c.scale * LOG2_E;
}

DEVICE float weight_of(float score, float base, float scale)
{
    return SPLIT ? expf((score - base) * scale) : exp2_fast(score * scale - base);
}

/* What sums on another base are multiplied by to be on this one. */
DEVICE float fade_of(float before, float base, float scale)
{
    return SPLIT ? expf((before - base) * scale) : exp2_fast(before - base);
}

/* The natural logarithm of a row's sum. */
DEVICE float lse_of(float base, float sum, float scale)
{
    if (sum == 0)
        return -INFINITE;
    return SPLIT ? base * scale + logf(sum) : (base + log2f(sum)) * LN_2;
}

/* Puts the head's sink into a row's sum; returns what the row's other sums are multiplied by. */
DEVICE float take_sink(const attention_call &c, int head, float *base, float *sum)
{
    if (!SINKS)
        return 1;
    float scale = score_scale(c), sink = sink_of<float>(c, head), before = *base;
    sink = SPLIT ? sink / scale : sink * LOG2_E;
    *base = fmaxf(before, sink);
    if (*base == -INFINITE)
        return 1;
    float fade = fade_of(before, *base, scale);
    *sum = *sum * fade + fade_of(sink, *base, scale);
    return fade;
}

#endif
