/* What the kernels of qkv_attention_read share: where tokens come next, their heads turned, and
 * what is stored for them. Included behind the knobs CUP_ID and TURNED: 1, or 2 where cosines and
 * sines are multiplied by a number, too. */
#ifndef CUP_OPS_KV_CACHE_QKV_READ_CUH
#define CUP_OPS_KV_CACHE_QKV_READ_CUH

#include "dependent.cuh"
#include "qkv_attention_read_call.cuh"
#include "rope_turn.cuh"

typedef dtype_of<CUP_ID>::type id_type;

/* Element d of a head, turned where heads are. */
DEVICE real turned(const read_call &c, const T *head, int d, long long position)
{
#if TURNED
    int pairs = c.size / 2, pair = d < pairs ? d : d - pairs;
    real cosine, sine, u = to_real(head[pair]), v = to_real(head[pair + pairs]);
    turn_of(c.frequency[pair], position, &cosine, &sine);
#if TURNED > 1
    cosine *= (real)c.amplitude;
    sine *= (real)c.amplitude;
#endif
    return d < pairs ? u * cosine - v * sine : u * sine + v * cosine;
#else
    return to_real(head[d]);
#endif
}

DEVICE bool is_known(const read_call &c, long long position)
{
    return position >= 0 && position < c.length;
}

DEVICE const id_type *place_of_position(const read_call &c, int batch)
{
    return (const id_type *)c.position + (c.positions > 1 ? batch : 0);
}

DEVICE long long position_of(const read_call &c, int batch)
{
    return (long long)*place_of_position(c, batch);
}

DEVICE void store_mean(const read_call &c, long long head, int d, real value, real weight,
                       bool known)
{
    const real none = __int_as_float(0x7fffffff);
    real mean = weight == 0 ? 0 : value / weight;
    ((T *)c.o)[head * c.size + d] = from_real<T>(known ? mean : none);
}

#endif
