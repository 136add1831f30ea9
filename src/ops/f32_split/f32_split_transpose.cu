/* Lays matrices of f32 along k, for tensor cores that take tf32 in no other way: from lines of
 * `length` neighbours to lines along the other direction, padded with zeros. When the matrix lies
 * along k already its lines are only copied to multiples of 16 bytes.
 *
 * A block of 256 threads takes 32 x 32 elements through shared memory; grid.x counts such tiles of
 * all matrices. 8 bytes an element. */
#include "product_call.cuh"
#include "split_call.cuh"
#include "dtype.cuh"

#define TILE 32

extern "C" __global__ void __launch_bounds__(256)
    matmul_turn(const __grid_constant__ split_side s, float *to, long long padded)
{
    __shared__ float tile[TILE][TILE + 1];
    long long across = (s.length + TILE - 1) / TILE, down = (s.lines + TILE - 1) / TILE;
    long long x = blockIdx.x % across * TILE, y = blockIdx.x / across % down * TILE;
    long long matrix = blockIdx.x / across / down;
    const float *from = s.from + matrix * s.batch_distance;
    int column = threadIdx.x % TILE, row = threadIdx.x / TILE;
    bool turns = s.along != PRODUCT_ALONG_K;
#pragma unroll
    for (int i = row; i < TILE; i += 8)
        tile[i][column] = x + column < s.length && y + i < s.lines
                              ? __ldg(from + (y + i) * s.distance + x + column)
                              : 0.0f;
    __syncthreads();
    long long lines = turns ? s.length : s.lines, line0 = turns ? x : y, k0 = turns ? y : x;
    to += matrix * lines * padded;
#pragma unroll
    for (int i = row; i < TILE; i += 8)
        if (line0 + i < lines && k0 + column < padded)
            to[(line0 + i) * padded + k0 + column] = turns ? tile[column][i] : tile[i][column];
}
