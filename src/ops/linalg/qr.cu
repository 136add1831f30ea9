/* q and r with q r = a, q^T q = 1 and r an upper triangle whose diagonal is from 0 on, of each
 * small matrix: a block a matrix, whose columns lie in shared memory where they fit and in `work`
 * otherwise. A reflection a column, whose vector takes the place of what it makes 0; then q is made
 * of them in their own place, from the last one on. Grid: a block a matrix. Bytes: a, q and r
 * once. */
#include "columns.cuh"

/* What is left of a column, beside a largest element of 1/2 to 1, that counts as 0: of equal
 * columns each leaves rounding of rounding, which soon has too few digits to make a reflection. */
#define NOTHING (sizeof(T) == 8 ? (T)1e-270 : (T)1e-30f)

/* The reflection 1 - tau v v^T that makes 0 of what is below number j, by one group. v begins with
 * 1; the rest of it stands in the column. Each column at its own scale, so that no square is too
 * large or too small, and the matrix at one at which no element is. */
DEVICE void reflect(T *x, int j, int rows, T *tau)
{
    int lane = group_lane();
    T most = 0, below = 0;
    for (int i = j + lane; i < rows; i += LANES)
        most = maximum(most, (T)fabs(x[i]));
    most = group_reduce(most, max_op());
    T scale = most > 0 ? most : (T)1, first = x[j];
    for (int i = j + 1 + lane; i < rows; i += LANES)
        below += x[i] / scale * (x[i] / scale);
    below = group_sum(below);
    __syncwarp(group_members()); /* all have read the first */
    if (most < NOTHING || (below == 0 && most - most == 0)) {
        for (int i = j + lane; i < rows && most < NOTHING; i += LANES)
            x[i] = 0;
        if (lane == 0)
            *tau = 0;
        return;
    }
    T part = first / scale, norm = scale * sqrt(part * part + below);
    T beta = first > 0 ? -norm : norm, reach = first - beta;
    for (int i = j + 1 + lane; i < rows; i += LANES)
        x[i] /= reach;
    if (lane == 0) {
        x[j] = beta;
        *tau = (beta - first) / beta;
    }
}

DEVICE void apply(const T *v, T tau, T *y, int j, int rows)
{
    int lane = group_lane();
    T sum = lane == 0 ? y[j] : (T)0;
    for (int i = j + 1 + lane; i < rows; i += LANES)
        sum += v[i] * y[i];
    sum = group_sum(sum) * tau;
    if (lane == 0)
        y[j] -= sum;
    for (int i = j + 1 + lane; i < rows; i += LANES)
        y[i] -= sum * v[i];
}

/* Column j of q, of the reflection in its place. */
DEVICE void begin_column(T *x, T tau, int j, int rows)
{
    for (int i = group_lane(); i < rows; i += LANES)
        x[i] = i < j ? (T)0 : i == j ? 1 - tau : -tau * x[i];
}

/* Row j of r has the sign by which its first number is from 0 on. */
DEVICE void write_r(const T *x, T *r, T *sign, int k, int columns, int distance, int exponent)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < k; i += THREADS)
        sign[i] = x[(int64_t)i * distance + i] < 0 ? (T)-1 : (T)1;
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < k * columns; i += THREADS) {
        int row = i / columns, column = i - row * columns;
        r[i] = column < row ? (T)0
                            : scalbn(sign[row] * x[(int64_t)column * distance + row], exponent);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qr_fwd(const T *a, T *q, T *r, T *, T *work, int rows, int columns, int distance, int)
{
    int k = rows < columns ? rows : columns;
    int64_t room = (int64_t)distance * columns;
    a += blockIdx.x * ((int64_t)rows * columns);
    q += blockIdx.x * ((int64_t)rows * k);
    r += blockIdx.x * ((int64_t)k * columns);
#if SHARED
    extern __shared__ uint4 memory[];
    T *x = (T *)memory;
#else
    T *x = work + blockIdx.x * (room + 2 * k);
#endif
    T *tau = x + room, *sign = tau + k, most = 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * columns; i += THREADS)
        most = maximum(most, (T)fabs(a[i]));
    most = block_max(most);
    int exponent = most > 0 && most - most == 0 ? ilogb(most) + 1 : 0;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * columns; i += THREADS) {
        int row = i / columns, column = i - row * columns;
        x[(int64_t)column * distance + row] = scalbn(a[i], -exponent);
    }
    __syncthreads();
    for (int j = 0; j < k; j++) {
        T *own = x + (int64_t)j * distance;
        if (group_number() == 0)
            reflect(own, j, rows, &tau[j]);
        __syncthreads();
        for (int i = j + 1 + group_number(); i < columns; i += GROUPS)
            apply(own, tau[j], x + (int64_t)i * distance, j, rows);
        __syncthreads();
    }
    write_r(x, r, sign, k, columns, distance, exponent);
    for (int j = k - 1; j >= 0; j--) {
        T *own = x + (int64_t)j * distance;
        for (int i = j + 1 + group_number(); i < k; i += GROUPS)
            apply(own, tau[j], x + (int64_t)i * distance, j, rows);
        __syncthreads();
        if (group_number() == 0)
            begin_column(own, tau[j], j, rows);
        __syncthreads();
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * k; i += THREADS) {
        int row = i / k, column = i - row * k;
        q[i] = sign[column] * x[(int64_t)column * distance + row];
    }
}
