/* Cuts tensors of f32 that have one scale each into planes of 16-bit numbers, as f32_split.cu does
 * with matrices: the largest elements are what round_off.cu has found.
 *
 * Memory bound: x is read from its end on, which is what L2 still has, and 2 PLANES bytes are
 * written an element. */
/* A knob: PLANES. */
#include "dependent.cuh"
#include "reduce.cuh"
#include "round_off_share.cuh"
#include "split_planes.cuh"

/* Four elements, which are number `at` of a plane of `count`. */
DEVICE void put_planes(unsigned short *y, long long count, long long at, const vec<float, VEC> &v,
                       float factor, findings &f)
{
    float x[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        x[i] = v.at[i];
        if (SCALED) {
            x[i] *= factor;
            f.note(x[i]);
        }
    }
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
        unsigned bits[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++)
            bits[i] = take(&x[i]);
        *(uint2 *)(y + plane * count + at) =
            make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    f32_split_whole(const __grid_constant__ round_off_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    const volatile unsigned *words = c.words;
    if (c.when && words[SPLIT_WIDE] == 0 && words[SPLIT_AGAIN] == 0)
        return;
    int which = tensor_of_block(c);
    const round_off_tensor &t = c.of[which];
    share s = share_of_block(t);
    float factor = 1;
#if SCALED
    float most = 0;
    for (int i = threadIdx.x; i < t.blocks; i += THREADS)
        most = fmaxf(most, c.largest[t.first + i]);
    int exponent = exponent_for(block_max(most));
    factor = power_of_two(exponent);
    if ((int)blockIdx.x == t.first && threadIdx.x == 0)
        c.exponents[which] = exponent;
#endif
    findings f = {0, false};
    for (long long i = s.end - 1 - threadIdx.x; i >= s.begin; i -= AT_ONCE * THREADS) {
        vec<float, VEC> v[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i - u * THREADS >= s.begin)
                v[u] = load_once<VEC>(vector_at(t, i - u * THREADS));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i - u * THREADS >= s.begin)
                put_planes((unsigned short *)t.y, t.count, VEC * (i - u * THREADS), v[u], factor,
                           f);
    }
#if SCALED
    leave(c.words, f);
#endif
}
