/* Turns pairs of features by an angle that grows with the position.
 *
 * A thread takes VEC pairs of one position, works out their angles once, and goes through
 * `heads_each` heads, the block's part of them in y; behind the pairs follow units of VEC features
 * that are only copied.
 * Reads and writes each element once. */
#ifndef VEC
#define VEC 1 /* elements of an access */
#endif
#ifndef INTERLEAVED
#define INTERLEAVED 0
#endif
#ifndef AMPLIFIED
#define AMPLIFIED 0 /* cosines and sines are multiplied by a number */
#endif
#ifndef PLACED
#define PLACED 0 /* positions are added to by numbers in memory */
#endif
#ifndef CUP_ID
#define CUP_ID CUP_I32 /* of these */
#endif

#include "rope_call.cuh"
#include "rope_turn.cuh"
#include "vec.cuh"

DEVICE void load_unit(const T *from, real (&to)[VEC])
{
    if (VEC > 1) {
        to_reals(load<VEC>(from), to);
    } else {
        to[0] = to_real(*from);
    }
}

DEVICE void store_unit(T *to, const real (&from)[VEC])
{
    if (VEC > 1)
        store(to, from_reals<T, VEC>(from));
    else
        *to = from_real<T>(from[0]);
}

/* Pair j of the two units a thread holds. */
DEVICE void turn(real (&low)[VEC], real (&high)[VEC], const real (&cosine)[VEC],
                 const real (&sine)[VEC])
{
    real both[2 * VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        both[j] = low[j];
        both[VEC + j] = high[j];
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        int first = INTERLEAVED ? 2 * j : j, second = INTERLEAVED ? 2 * j + 1 : VEC + j;
        real u = both[first], v = both[second];
        both[first] = u * cosine[j] - v * sine[j];
        both[second] = u * sine[j] + v * cosine[j];
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        low[j] = both[j];
        high[j] = both[VEC + j];
    }
}

/* Where a row stands, which is one of those of its batch. */
DEVICE long long place_of(const rope_call &c, int batch, int position)
{
#if PLACED
    typedef dtype_of<CUP_ID>::type id_type;
    return c.offset + (long long)((const id_type *)c.starts)[batch * c.starts_step] + position;
#else
    return c.offset + position;
#endif
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
    rope_fwd(const __grid_constant__ rope_call c)
{
    int turned_units = c.pairs / VEC, units = turned_units + (c.size - 2 * c.pairs) / VEC;
    long long at = (long long)blockIdx.x * ROPE_THREADS + threadIdx.x, row = at / units;
    int unit = (int)(at % units);
    if (row >= c.rows)
        return;
    int position = (int)(row % c.positions), batch = (int)(row / c.positions);
    const T *x = (const T *)c.x + batch * c.x_stride[0] + position * c.x_stride[2];
    T *y = (T *)c.y + batch * c.y_stride[0] + position * c.y_stride[2];
    bool in_pairs = unit < turned_units;
    int low_at = !in_pairs ? unit * VEC + c.pairs : INTERLEAVED ? unit * 2 * VEC : unit * VEC;
    int high_at = low_at + (INTERLEAVED ? VEC : c.pairs);
    real cosine[VEC], sine[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        cosine[j] = 1;
        sine[j] = 0;
        if (in_pairs)
            turn_of(c.frequency[unit * VEC + j], place_of(c, batch, position), &cosine[j],
                    &sine[j]);
        sine[j] = c.inverse ? -sine[j] : sine[j];
#if AMPLIFIED
        cosine[j] *= (real)c.amplitude;
        sine[j] *= (real)c.amplitude;
#endif
    }
    int first = (int)blockIdx.y * c.heads_each, end = first + c.heads_each;
    for (int head = first; head < (end < c.heads ? end : c.heads); head++) {
        const T *from = x + head * c.x_stride[1];
        T *to = y + head * c.y_stride[1];
        real low[VEC], high[VEC];
        load_unit(from + low_at * c.x_stride[3], low);
        if (in_pairs) {
            load_unit(from + high_at * c.x_stride[3], high);
            if (head < c.heads_turned)
                turn(low, high, cosine, sine);
            store_unit(to + high_at * c.y_stride[3], high);
        }
        store_unit(to + low_at * c.y_stride[3], low);
    }
}
