/* Square root of the sum of the squares of all elements of many tensors, always added in the same
 * order. `squares`: a block for each CHUNK elements of some tensor, found by halving in the table
 * that lies in the kernel's arguments; 256 threads, eight 16-byte loads each in flight; one partial
 * sum a block. Squares that f32 has no place for are summed again in double. `finish`: one block
 * adds the partial sums in double. Moves the tensors once. */
#include "dtype.cuh"
#include "reduce.cuh"

#ifndef MOST
#define MOST 64 /* tensors the table has room for */
#endif
#ifndef VEC
#define VEC 4 /* elements of one access; 1 where a tensor is not aligned to 16 bytes */
#endif
#define THREADS 256
#define CHUNK 16384
#define UNROLL 8

struct norm_entry {
    const T *data;
    int64_t count, chunk;
};

struct norm_table {
    norm_entry entry[MOST];
};

DEVICE const norm_entry &norm_find(const norm_table &table, int count, int64_t chunk)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table.entry[middle].chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return table.entry[low];
}

DEVICE real square(const vec<T, VEC> &v)
{
    real sum = 0;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum += to_real(v.at[k]) * to_real(v.at[k]);
    return sum;
}

/* The squares of a chunk in double, by all threads of the block. Chunks of zeros, as the gradients
 * of tables have them, are not worth it. */
DEVICE double squares_in_double(const T *data, int64_t from, int64_t to)
{
    bool zero = true;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS)
        zero = zero && to_real(data[i]) == 0;
    if (__syncthreads_and(zero))
        return 0;
    double sum = 0;
    for (int64_t i = from + threadIdx.x; i < to; i += THREADS)
        sum += (double)to_real(data[i]) * (double)to_real(data[i]);
    return block_sum(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
global_norm_squares(const __grid_constant__ norm_table table, int count, double *partial)
{
    const norm_entry &e = norm_find(table, count, blockIdx.x);
    int64_t from = ((int64_t)blockIdx.x - e.chunk) * CHUNK;
    int64_t to = e.count - from < CHUNK ? e.count : from + CHUNK;
    int64_t whole = from + (to - from) / VEC * VEC;
    const int hop = THREADS * VEC;
    real sum[UNROLL] = {0};
    for (int64_t i = from + threadIdx.x * VEC; i < whole; i += hop * UNROLL) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * hop < whole)
                v[u] = load<VEC>(e.data + i + u * hop);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * hop < whole)
                sum[u] += square(v[u]);
    }
    if (whole + threadIdx.x < to) {
        real x = to_real(e.data[whole + threadIdx.x]);
        sum[0] += x * x;
    }
#pragma unroll
    for (int u = 1; u < UNROLL; u++)
        sum[0] += sum[u];
    double all = (double)block_sum(sum[0]);
    if (sizeof(real) == 4 && !(all > 1e-30 && all < 1e38))
        all = squares_in_double(e.data, from, to);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = all;
}

extern "C" __global__ void __launch_bounds__(1024)
global_norm_finish(const double *partial, int64_t count, float *norm)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *norm = (float)sqrt(sum);
}
