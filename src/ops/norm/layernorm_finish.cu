/* Adds `count` partial rows of `width` columns in a fixed order; the first `half` columns are
 * dgamma, where there is one, the others dbeta. 32 columns a block, its warps with rows of their
 * own. The launch may begin before the kernel that writes the partial rows has ended. */
#include "hopper.cuh"

/* A knob: RESULT (of dgamma and dbeta). */
#define WARPS 8
#define BATCH 17 /* rows on the way to a warp: enough at once for a block a multiprocessor */

typedef dtype_of<RESULT>::type result;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
layernorm_finish(const real *partial, result *dgamma, result *dbeta, int count, int half, int width)
{
    __shared__ real shared[WARPS][33];
    int warp = threadIdx.x / 32;
    int64_t column = (int64_t)blockIdx.x * 32 + lane();
    real sum = 0;
    wait_for_previous_kernel();
    for (int first = warp; column < width && first < count; first += WARPS * BATCH) {
        real rows[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int row = first + i * WARPS;
            rows[i] = row < count ? partial[(int64_t)row * width + column] : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            sum += rows[i];
    }
    shared[warp][lane()] = sum;
    __syncthreads();
    if (warp || column >= width)
        return;
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        sum += shared[w][lane()];
    result out = convert<result>(sum);
    if (column < half) {
        if (dgamma)
            dgamma[column] = out;
    } else if (dbeta) {
        dbeta[column - half] = out;
    }
}
