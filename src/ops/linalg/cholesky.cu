/* The triangle l with l l^T = (a + a^T) / 2 + ridge of each small matrix: a block a matrix, which
 * lies in shared memory where it fits and in the result otherwise; a column at a time, then what it
 * takes from all behind it. Grid: a block a matrix. Bytes: a and y once. */
#include "dtype.cuh"

/* Knobs: CUP_T, SHARED. */
#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS)
    cholesky_fwd(const T *a, T *y, int n, double ridge)
{
    int64_t size = (int64_t)n * n;
    a += blockIdx.x * size;
    y += blockIdx.x * size;
#if SHARED
    extern __shared__ uint4 memory[];
    T *m = (T *)memory;
#else
    T *m = y;
#endif
    for (int64_t i = threadIdx.x; i < size; i += THREADS) {
        int row = (int)(i / n), column = (int)(i - (int64_t)row * n);
        T both = (a[i] + a[(int64_t)column * n + row]) * (T)0.5;
        m[i] = column < row ? both : column == row ? both + (T)ridge : (T)0;
    }
    __syncthreads();
    for (int j = 0; j < n; j++) {
        T pivot = m[(int64_t)j * n + j], root = pivot > 0 ? sqrt(pivot) : (T)(0.0f / 0.0f);
        __syncthreads(); /* all have read it */
        for (int row = j + (int)threadIdx.x; row < n; row += THREADS) {
            T *at = &m[(int64_t)row * n + j];
            *at = row == j ? root : *at / root;
        }
        __syncthreads();
        int rest = n - 1 - j;
        for (int i = (int)threadIdx.x; i < rest * rest; i += THREADS) {
            int row = i / rest, column = i - row * rest;
            if (column > row)
                continue;
            T *first = &m[(int64_t)(j + 1 + row) * n];
            const T *second = &m[(int64_t)(j + 1 + column) * n];
            first[j + 1 + column] -= first[j] * second[j];
        }
        __syncthreads();
    }
#if SHARED
    for (int64_t i = threadIdx.x; i < size; i += THREADS)
        y[i] = m[i];
#endif
}
