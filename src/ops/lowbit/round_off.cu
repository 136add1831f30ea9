/* f32 in f16, divided so that the largest finite element becomes a given number, for several
 * tensors at a time.
 *
 * largest_of_all leaves what each block saw, round_off_all folds that and rounds: each block the
 * same part of a tensor, from its end on, which is what L2 still has. Memory bound: x is read
 * twice. */
#include "dependent.cuh"
#include "reduce.cuh"
#include "round_off_share.cuh"
#include "vec.cuh"

#define LEAST 1e-30f /* of what all of it is divided by; tensors of zeros stay so */

DEVICE float larger_finite(float most, float x)
{
    float size = fabsf(x);
    return size > most && size < highest(0.0f) ? size : most;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    largest_of_all(const __grid_constant__ round_off_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.x == 0 && (int)threadIdx.x < c.word_count)
        c.words[threadIdx.x] = 0;
    const round_off_tensor &t = c.of[tensor_of_block(c)];
    share s = share_of_block(t);
    float most = 0;
    for (long long i = s.begin + threadIdx.x; i < s.end; i += AT_ONCE * THREADS) {
        vec<float, VEC> v[AT_ONCE] = {};
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i + u * THREADS < s.end)
                v[u] = load<VEC>(vector_at(t, i + u * THREADS));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
            for (int e = 0; e < VEC; e++)
                most = larger_finite(most, v[u].at[e]);
    }
    if ((int)threadIdx.x < s.rest)
        most = larger_finite(most, t.x[VEC * s.end + threadIdx.x]);
    most = block_max(most);
    if (threadIdx.x == 0)
        c.largest[blockIdx.x] = most;
}

DEVICE void put(f16 *to, const vec<float, VEC> &v, float factor)
{
    *(uint2 *)to = make_uint2(pack(v.at[0] * factor, v.at[1] * factor, f16()),
                              pack(v.at[2] * factor, v.at[3] * factor, f16()));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    round_off_all(const __grid_constant__ round_off_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    int which = tensor_of_block(c);
    const round_off_tensor &t = c.of[which];
    share s = share_of_block(t);
    float most = LEAST;
    for (int i = threadIdx.x; i < t.blocks; i += THREADS)
        most = fmaxf(most, c.largest[t.first + i]);
    float scale = __fdiv_rn(block_max(most), t.most), factor = __fdiv_rn(1.0f, scale);
    if ((int)blockIdx.x == t.first && threadIdx.x == 0)
        c.scales[which] = scale;
    f16 *y = (f16 *)t.y;
    for (long long i = s.end - 1 - threadIdx.x; i >= s.begin; i -= AT_ONCE * THREADS) {
        vec<float, VEC> v[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i - u * THREADS >= s.begin)
                v[u] = load_once<VEC>(vector_at(t, i - u * THREADS));
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (i - u * THREADS >= s.begin)
                put(y + VEC * (i - u * THREADS), v[u], factor);
    }
    if ((int)threadIdx.x < s.rest)
        y[VEC * s.end + threadIdx.x] = from_real<f16>(t.x[VEC * s.end + threadIdx.x] * factor);
}
