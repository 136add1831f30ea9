/* Fills `bytes` bytes from y on with a pattern of 8 bytes, of which each begins at a multiple of 8
 * bytes in memory. Grid: pieces of 256 * UNROLL words of 16 bytes; the first block also writes
 * the bytes before the first and behind the last whole word. */
#include "dtype.cuh"

#define THREADS 256
#define UNROLL 4

extern "C" __global__ void __launch_bounds__(THREADS)
    full_fwd(uint8_t *y, int64_t bytes, uint64_t pattern)
{
    int64_t head = (int64_t)(-(uint64_t)y & 15), words = bytes > head ? (bytes - head) / 16 : 0;
    uint4 word;
    word.x = word.z = (uint32_t)pattern;
    word.y = word.w = (uint32_t)(pattern >> 32);
    uint4 *to = (uint4 *)(y + head);
    int64_t start = (int64_t)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (start + u * THREADS < words)
            to[start + u * THREADS] = word;
    if (blockIdx.x == 0 && threadIdx.x < 16) {
        int64_t front = threadIdx.x, back = head + words * 16 + threadIdx.x;
        if (front < head && front < bytes)
            y[front] = (uint8_t)(pattern >> ((uint64_t)(y + front) % 8 * 8));
        if (back < bytes)
            y[back] = (uint8_t)(pattern >> ((uint64_t)(y + back) % 8 * 8));
    }
}
