/* Cross-entropy of rows of logits; see cross_entropy.h for the formulas.
 *
 * entropy_share counts the rows that count; entropy_rows gives each row's loss and lse and, when
 * SLOPES, puts the gradient where the logits are; entropy_loss adds up. Grid of entropy_rows: a
 * block for each row of GROUP = 512 threads, or a warp for each row when GROUP is 32. With STAGED
 * the row is kept in shared memory between its two uses. Bytes: the logits read once, and written
 * once when SLOPES. Statistics are single precision, double for f64. */
#include "reduce.cuh"
#include "vec.cuh"

#ifndef CUP_ID
#define CUP_ID 5
#endif
#ifndef VEC
#define VEC 1
#endif
#ifndef GROUP
#define GROUP 32
#endif
#ifndef STAGED
#define STAGED 0
#endif
#ifndef SLOPES
#define SLOPES 0
#endif
#define ROWS (GROUP == 32 ? 8 : 1)
#define INFINITE ((real)__int_as_float(0x7f800000))
#define NOT_A_NUMBER ((real)__int_as_float(0x7fc00000))

typedef dtype_of<CUP_ID>::type id_type;

/* A maximum and the sum of exponentials relative to it. */
struct soft {
    real most, sum;
};

DEVICE soft join(soft a, soft b)
{
    soft c;
    c.most = maximum(a.most, b.most);
    real base = c.most == -INFINITE ? (real)0 : c.most;
    c.sum = a.sum * exp(a.most - base) + b.sum * exp(b.most - base);
    return c;
}

struct join_op {
    __device__ __forceinline__ soft operator()(soft a, soft b) const
    {
        return join(a, b);
    }
};

DEVICE soft group_join(soft x)
{
#if GROUP == 32
    return warp_reduce(x, join_op());
#else
    soft none = {-INFINITE, 0};
    return block_reduce(x, none, join_op());
#endif
}

DEVICE real group_sum(real x)
{
#if GROUP == 32
    return warp_sum(x);
#else
    return block_sum(x);
#endif
}

extern "C" __global__ void __launch_bounds__(1024)
entropy_share(const id_type *targets, real *share, int64_t rows, int64_t ignore)
{
    int64_t count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += 1024)
        count += targets[row] != ignore;
    count = block_sum(count);
    if (threadIdx.x == 0)
        *share = count ? (real)(1 / (double)count) : (real)0;
}

/* The slopes of one vector of logits of a row that counts. */
DEVICE vec<T, VEC> slopes_of(const real (&x)[VEC], int64_t column, int64_t classes, int64_t target,
                             real lse, real factor, real smoothing, real z_loss)
{
    real d[VEC];
    real scale = factor * (1 + 2 * z_loss * lse), even = factor * smoothing / (real)classes;
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        real p = exp(x[k] - lse) * scale - even;
        p -= column + k == target ? factor * (1 - smoothing) : (real)0;
        d[k] = column + k < classes && factor != 0 ? p : (real)0;
    }
    return from_reals<T, VEC>(d);
}

extern "C" __global__ void __launch_bounds__(GROUP *ROWS)
entropy_rows(T *logits, const id_type *targets, const real *share, real *losses, real *lses,
             int64_t rows, int64_t width, int64_t classes, int64_t ignore, real smoothing,
             real z_loss)
{
    extern __shared__ uint4 stage_words[];
    T *stage = (T *)stage_words;
    int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / GROUP;
    int lane = threadIdx.x % GROUP;
    if (row >= rows)
        return;
    T *x = logits + row * width;
    int64_t target = targets[row];
    bool counts = target != ignore, valid = target >= 0 && target < classes;
    real hit = counts && valid ? to_real(x[target]) : NOT_A_NUMBER;
    soft all = {-INFINITE, 0};
    real total = 0;
#pragma unroll 4
    for (int64_t at = (int64_t)lane * VEC; at < width; at += GROUP * VEC) {
        vec<T, VEC> v = load_plain<VEC>((const T *)x + at);
        real r[VEC], most = -INFINITE;
        to_reals(v, r);
#if STAGED
        store(stage + at, v);
#endif
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            r[k] = at + k < classes ? r[k] : -INFINITE;
            most = maximum(most, r[k]);
            total += at + k < classes ? r[k] : (real)0;
        }
        soft part = {most, 0};
        real base = most == -INFINITE ? (real)0 : most;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            part.sum += exp(r[k] - base);
        all = join(all, part);
    }
    all = group_join(all);
    real lse = all.most + log(all.sum);
    if (smoothing > 0)
        total = group_sum(total) / (real)classes;
    if (lane == 0) {
        real loss = lse - (1 - smoothing) * hit - (smoothing > 0 ? smoothing * total : (real)0) +
                    z_loss * lse * lse;
        losses[row] = counts ? loss : (real)0;
        lses[row] = lse;
    }
#if SLOPES
    /* The reductions above have made every thread wait until the target's logit was read. */
    real factor = counts ? *share : (real)0;
    for (int64_t at = (int64_t)lane * VEC; at < width; at += GROUP * VEC) {
        real r[VEC];
        to_reals(load_plain<VEC>(STAGED ? stage + at : (const T *)x + at), r);
        store(x + at, slopes_of(r, at, classes, target, lse, factor, smoothing, z_loss));
    }
#endif
}

extern "C" __global__ void __launch_bounds__(1024)
entropy_loss(const real *losses, const real *share, real *loss, int64_t rows)
{
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += 1024)
        sum += (double)losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *loss = (real)(sum * (double)*share);
}

/* The gradient on its own: a thread for each vector of logits. */
extern "C" __global__ void __launch_bounds__(256)
entropy_bwd(const T *logits, const id_type *targets, const real *lses, const real *share,
            const real *dloss, T *dlogits, int64_t rows, int64_t width, int64_t classes,
            int64_t ignore, real smoothing, real z_loss)
{
    int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (at >= rows * width)
        return;
    int64_t row = at / width, target = targets[row];
    real factor = target != ignore ? *share * *dloss : (real)0, r[VEC];
    to_reals(load_once<VEC>(logits + at), r);
    store(dlogits + at, slopes_of(r, at - row * width, classes, target, lses[row], factor,
                                  smoothing, z_loss));
}
