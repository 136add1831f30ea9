/* What the kernels of qkv_attention_read share: where tokens come next, their heads turned, what
 * becomes of scores, and what is stored for them. Included behind the knobs CUP_ID, EACH, LANES and
 * TURNED: 1, or 2 where cosines and sines are multiplied by a number, too; and where a call has
 * what they stand for WINDOWED (few of the keys are seen), SOFT_CAP, SLOPES, SINKS, PLACED (the
 * new key's place is not its position) and GROWS (the base of rotary positions does). */
#ifndef CUP_OPS_KV_CACHE_QKV_READ_CUH
#define CUP_OPS_KV_CACHE_QKV_READ_CUH

#include "attention_score_knobs.cuh"
#include "dependent.cuh"
#include "lane_sums.cuh"
#include "qkv_attention_read_call.cuh"
#include "rope_turn.cuh"

#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef PLACED
#define PLACED 0
#endif
#ifndef GROWS
#define GROWS 0
#endif
#if GROWS
#include "grown_frequency.cuh"
#endif
#define LOG2_E 1.4426950408889634

typedef dtype_of<CUP_ID>::type id_type;

/* The cosine and sine that a pair turns by at a position. */
DEVICE void turn_pair(const read_call &c, int pair, long long position, real *cosine, real *sine)
{
#if GROWS
    if (position >= c.original) {
        turn_of(grown_frequency(c, pair, position, real()), position, cosine, sine);
        return;
    }
#endif
    turn_of(c.frequency[pair], position, cosine, sine);
}

/* Element d of a head, turned where heads are. */
DEVICE real turned(const read_call &c, const T *head, int d, long long position)
{
#if TURNED
    int pairs = c.size / 2, pair = d < pairs ? d : d - pairs;
    real cosine, sine, u = to_real(head[pair]), v = to_real(head[pair + pairs]);
    turn_pair(c, pair, position, &cosine, &sine);
#if TURNED > 1
    cosine *= (real)c.amplitude;
    sine *= (real)c.amplitude;
#endif
    return d < pairs ? u * cosine - v * sine : u * sine + v * cosine;
#else
    return to_real(head[d]);
#endif
}

/* Where a text's new key is put. */
DEVICE const id_type *place_at(const read_call &c, int batch)
{
    return (const id_type *)(PLACED ? c.place : c.position) + (c.positions > 1 ? batch : 0);
}

DEVICE long long place_of(const read_call &c, int batch)
{
    return (long long)*place_at(c, batch);
}

DEVICE bool is_known(const read_call &c, long long place)
{
    return place >= 0 && place < c.length;
}

/* The number that a text's heads are turned by. */
DEVICE long long position_of(const read_call &c, int batch, long long place)
{
    return PLACED ? (long long)((const id_type *)c.position)[c.positions > 1 ? batch : 0] : place;
}

/* The first key that is seen. */
DEVICE int first_seen(const read_call &c, int place)
{
    return WINDOWED && place >= c.window ? place + 1 - c.window : 0;
}

/* The slope of a head, for scores that are powers of two. */
DEVICE real slope_of(const read_call &c, int head)
{
    return SLOPES ? ((const real *)c.slopes)[head] * (real)LOG2_E : 0;
}

/* The score of a key so far before the new one. */
DEVICE real score_of(const read_call &c, real score, real slope, int distance)
{
#if SOFT_CAP
    score = (real)c.cap * tanh(score);
#endif
#if SLOPES
    score -= slope * (real)distance;
#endif
    return score;
}

DEVICE void store_mean(const read_call &c, long long head, int d, real value, real base,
                       real weight, bool known)
{
    const real none = __int_as_float(0x7fffffff);
#if SINKS
    real sink = ((const real *)c.sinks)[head % c.heads] * (real)LOG2_E;
    real top = larger(base, sink), factor = weight == 0 ? 0 : exp2(base - top);
    if (weight != 0) {
        weight = weight * factor + weight_of(sink, top);
        value *= factor;
    }
#endif
    real mean = weight == 0 ? 0 : value / weight;
    ((T *)c.o)[head * c.size + d] = from_real<T>(known ? mean : none);
}

#endif
