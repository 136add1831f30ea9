/* Solutions of (a + ridge) x = b for each small matrix a: a block a matrix, by elimination with the
 * largest of a column as pivot, of equal ones the first. The matrix lies in shared memory where it
 * fits and in `work` otherwise, the right sides in x. Grid: a block a matrix. Bytes: a, b and x
 * once. */
#include "reduce.cuh"

/* Knobs: CUP_T, SHARED. */
#define THREADS 128

/* The row, from j on, whose element in column j is the largest. All of the first warp must call. */
DEVICE int pivot_of(const T *m, int n, int j)
{
    int lane = (int)threadIdx.x, at = j;
    T most = (T)-1;
    for (int row = j + lane; row < n; row += 32) {
        T size = fabs(m[(int64_t)row * n + j]);
        if (size > most) {
            most = size;
            at = row;
        }
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        T other = shuffle_xor(most, mask);
        int row = __shfl_xor_sync(0xffffffffu, at, mask);
        if (other > most || (other == most && row < at)) {
            most = other;
            at = row;
        }
    }
    return at;
}

DEVICE void exchange(T *first, T *second, int count)
{
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        T own = first[i];
        first[i] = second[i];
        second[i] = own;
    }
}

/* Takes row j from the `rows` rows from `first` on, as often as column j of each says. */
DEVICE void take_row(T *x, const T *m, int n, int j, int first, int rows, int from, int columns)
{
    int count = columns - from;
    for (int i = (int)threadIdx.x; i < rows * count; i += THREADS) {
        int row = first + i / count, column = from + i % count;
        x[(int64_t)row * columns + column] -=
            m[(int64_t)row * n + j] * x[(int64_t)j * columns + column];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    solve_fwd(const T *a, const T *b, T *x, T *work, int n, int columns, double ridge)
{
    int64_t size = (int64_t)n * n, right = (int64_t)n * columns;
    __shared__ int chosen;
    a += blockIdx.x * size;
    b += blockIdx.x * right;
    x += blockIdx.x * right;
#if SHARED
    extern __shared__ uint4 memory[];
    T *m = (T *)memory;
#else
    T *m = work + blockIdx.x * size;
#endif
    for (int64_t i = threadIdx.x; i < size; i += THREADS)
        m[i] = a[i] + (i % (n + 1) == 0 ? (T)ridge : (T)0);
    for (int64_t i = threadIdx.x; i < right; i += THREADS)
        x[i] = b[i];
    __syncthreads();
    for (int j = 0; j < n; j++) {
        if (threadIdx.x < 32) {
            int at = pivot_of(m, n, j);
            if (threadIdx.x == 0)
                chosen = at;
        }
        __syncthreads();
        if (chosen != j) {
            exchange(&m[(int64_t)j * n], &m[(int64_t)chosen * n], n);
            exchange(&x[(int64_t)j * columns], &x[(int64_t)chosen * columns], columns);
        }
        __syncthreads();
        T pivot = m[(int64_t)j * n + j];
        for (int row = j + 1 + (int)threadIdx.x; row < n; row += THREADS)
            m[(int64_t)row * n + j] /= pivot;
        __syncthreads();
        take_row(m, m, n, j, j + 1, n - 1 - j, j + 1, n);
        take_row(x, m, n, j, j + 1, n - 1 - j, 0, columns);
        __syncthreads();
    }
    for (int j = n - 1; j >= 0; j--) {
        T pivot = m[(int64_t)j * n + j];
        for (int i = (int)threadIdx.x; i < columns; i += THREADS)
            x[(int64_t)j * columns + i] /= pivot;
        __syncthreads();
        take_row(x, m, n, j, 0, j, 0, columns);
        __syncthreads();
    }
}
