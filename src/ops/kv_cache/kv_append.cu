/* Keys and values of new tokens are put behind those that are kept, a warp for each token of each
 * head. As codes they are divided by a scale of their own. */
#include "dependent.cuh"
#include "kv_cache.cuh"
#include "reduce.cuh"

/* Knobs, beside those of kv_cache.cuh: MOST (the largest code; 0: no codes). */
#ifndef MOST
#define MOST 0
#endif
#define WARPS 4
#define LEAST_SCALE 0x1p-126f

DEVICE void put_code(float x, int8_t *to)
{
    x = rintf(x);
    *to = (int8_t)(x != x ? 0 : fmaxf(-127, fminf(127, x)));
}

template <typename Code> DEVICE void put_code(float x, Code *to)
{
    *to = from_real<Code>(x);
}

DEVICE const T *token_of(const kv_heads &h, int batch, int head, int token)
{
    return (const T *)h.data + batch * h.batch + head * h.head + token * h.token;
}

DEVICE void put_row(const T *from, long long step, int size, const kv_heads &all,
                    const kv_heads &scales, const kv_place &place, int head)
{
    int lane = (int)threadIdx.x % 32;
    kept *to = (kept *)all.data + offset_kept(all, place, head);
    real *scale = (real *)scales.data + offset_kept(scales, place, head);
#if MOST
    float most = 0, factor = 1;
    if (SCALED) {
        for (int d = lane; d < size; d += 32)
            most = fmaxf(most, fabsf((float)to_real(from[d * step])));
        most = warp_max(most);
        float own = __fdiv_rn(most, (float)MOST);
        own = most == 0 ? 1 : own < LEAST_SCALE ? LEAST_SCALE : own;
        factor = __fdiv_rn(1.0f, own);
        if (lane == 0)
            *scale = own;
    }
    for (int d = lane; d < size; d += 32)
        put_code((float)to_real(from[d * step]) * factor, to + d * all.feature);
#else
    if (SCALED && lane == 0)
        *scale = 1;
    for (int d = lane; d < size; d += 32)
        to[d * all.feature] = from[d * step];
#endif
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    kv_append(const __grid_constant__ kv_call c)
{
    long long i = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (i >= (long long)c.batch * c.kv_heads * c.tokens)
        return;
    int token = (int)(i % c.tokens), head = (int)(i / c.tokens % c.kv_heads);
    int batch = (int)(i / c.tokens / c.kv_heads);
    wait_for_previous_kernel();
    let_next_kernel_start();
    kv_sequence s = sequence_of(c, batch);
    if (!s.known || token >= s.count)
        return;
    kv_place place = place_kept(c, batch, s.length + token);
    if (!place.known)
        return;
    put_row(token_of(c.k, batch, head, token), c.k.feature, c.size, c.keys, c.key_scales, place,
            head);
    put_row(token_of(c.v, batch, head, token), c.v.feature, c.value_size, c.values, c.value_scales,
            place, head);
}
