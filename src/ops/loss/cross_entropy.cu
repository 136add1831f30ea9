/* Cross-entropy of rows of logits, of which the first `classes` columns count: see
 * ops/loss/cross_entropy.h for the formulas. `rows`: GROUP threads a row find its logsumexp in
 * one pass; with IN_PLACE a second pass overwrites the row by its gradient, from registers
 * (STAGE 0), from shared memory (1) or, for rows that fit neither, from the caches (2), so that
 * the logits are read once and written once. `count` gives 1 / (rows that count) before that,
 * `finish` the mean, with the losses added in order. `slopes` is the gradient by itself. A
 * target that is no class makes its loss and its gradient NaN. */
#include "online.cuh"
#include "ptx.cuh"

/* A knob: INDEX. */
#ifndef STAGE
#define STAGE 2
#endif
#ifndef BLOCKS
#define BLOCKS 1 /* that should fit a multiprocessor together */
#endif
#ifndef IN_PLACE
#define IN_PLACE 0
#endif

typedef vec<T, VEC> unit;
typedef dtype_of<INDEX>::type target_type;

struct rule {
    int64_t rows, ignore;
    int width, classes;
    real smoothing, z_loss;
};

DEVICE real not_a_number()
{
    return highest(real()) - highest(real());
}

/* The gradient of one row: p a - b, and less `hit` at the target. */
struct slope {
    real lse, a, b, hit;
    int64_t target;
    bool counts;

    __device__ __forceinline__ slope(const rule &r, int64_t target_, real lse_, real share)
    {
        lse = lse_;
        target = target_;
        counts = target != r.ignore;
        if (target < 0 || target >= r.classes)
            share = not_a_number();
        a = share * (1 + 2 * r.z_loss * lse);
        b = share * r.smoothing / (real)r.classes;
        hit = share * (1 - r.smoothing);
    }

    __device__ __forceinline__ unit of(const unit &x, int at, int classes) const
    {
        real out[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            real y = exp_of(to_real(x.at[k]) - lse) * a - b;
            y -= at + k == target ? hit : (real)0;
            out[k] = counts && at + k < classes ? y : (real)0;
        }
        return from_reals<T, VEC>(out);
    }
};

DEVICE void read_span(unit (&v)[PIECES], const T *x, int from, int width)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (from + piece_at(p) < width)
            v[p] = load_plain<VEC>(x + from + piece_at(p));
}

/* Takes a span into the logsumexp and the plain sum of the row. */
DEVICE void gather(online &all, real &total, const unit (&v)[PIECES], int from, int classes)
{
    real most = lowest(real()), sum = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            if (from + piece_at(p) + k < classes) {
                most = maximum(most, to_real(v[p].at[k]));
                total += to_real(v[p].at[k]);
            }
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            if (from + piece_at(p) + k < classes)
                sum += exp_of(to_real(v[p].at[k]) - most);
    all.take(most, sum);
}

DEVICE real loss_of(const rule &r, int64_t target, real logit, real lse, real total)
{
    if (target == r.ignore)
        return 0;
    if (target < 0 || target >= r.classes)
        return not_a_number();
    real s = r.smoothing, loss = lse - (1 - s) * logit + r.z_loss * lse * lse;
    return s > 0 ? loss - s * (total / (real)r.classes) : loss;
}

#ifdef ROWS

/* One vector on its way to shared memory, past the registers where it is large enough. */
DEVICE void send(unit *to, const T *from)
{
    const int bytes = VEC * (int)sizeof(T);
    if (bytes == 16)
        copy_async16(shared_address(to), from, true);
    else if (bytes == 8)
        copy_async8(shared_address(to), from, true);
    else if (bytes == 4)
        copy_async4(shared_address(to), from, true);
    else
        *to = load_plain<VEC>(from);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
cross_entropy_rows(T *logits, const target_type *targets, const real *share, real *lses,
                   real *losses, const __grid_constant__ rule r)
{
    extern __shared__ unit staged[];
    int64_t at = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    int width = at < r.rows ? r.width : 0, classes = at < r.rows ? r.classes : 0;
    T *x = logits + at * r.width;
    int64_t target = width ? (int64_t)targets[at] : 0;
    /* Read before any thread of the group can have overwritten it. */
    real logit = width && target >= 0 && target < r.classes ? to_real(x[target]) : (real)0;
    online all = {lowest(real()), 0};
    real total = 0;
    unit v[PIECES];
    if (STAGE == 1) {
        /* Each thread sends what it reads again itself, so its own wait is enough. */
        for (int i = threadIdx.x % GROUP; i * VEC < classes; i += GROUP)
            send(staged + i, x + i * VEC);
        copies_end();
        copies_wait<0>();
    }
    for (int from = 0; from < classes; from += SPAN) {
        if (STAGE == 1)
            read_span(v, (const T *)staged, from, width);
        else
            read_span(v, x, from, width);
        gather(all, total, v, from, classes);
    }
    all = group_reduce<0>(all, online_op());
    if (r.smoothing > 0)
        total = group_reduce<1>(total, sum_op());
    real lse = all.most + log_of(all.sum);
    if (width && threadIdx.x % GROUP == 0) {
        losses[at] = loss_of(r, target, logit, lse, total);
        if (lses)
            lses[at] = lse;
    }
    if (!IN_PLACE || !width)
        return;
    slope s(r, target, lse, *share);
    for (int from = 0; from < width; from += SPAN) {
        if (STAGE == 1)
            read_span(v, (const T *)staged, from, width);
        else if (STAGE == 2)
            read_span(v, x, from, width);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < width)
                store(x + from + piece_at(p), s.of(v[p], from + piece_at(p), classes));
    }
}

#elif defined(SLOPES)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
cross_entropy_slopes(const T *logits, const target_type *targets, const real *lses,
                     const real *share, const real *dloss, T *dlogits,
                     const __grid_constant__ rule r)
{
    int64_t at = (int64_t)blockIdx.x * GROUPS + threadIdx.x / GROUP;
    if (at >= r.rows)
        return;
    slope s(r, (int64_t)targets[at], lses[at], *share * *dloss);
    for (int from = 0; from < r.width; from += SPAN) {
        unit v[PIECES];
        read_span(v, logits + at * r.width, from, r.width);
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (from + piece_at(p) < r.width)
                store(dlogits + at * r.width + from + piece_at(p),
                      s.of(v[p], from + piece_at(p), r.classes));
    }
}

#else

/* Rows that count, by one block. */
DEVICE real share_of(const target_type *targets, int64_t rows, int64_t ignore)
{
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x)
        count += (int64_t)targets[i] != ignore;
    count = block_sum(count);
    return count ? (real)(1 / (double)count) : (real)0;
}

extern "C" __global__ void __launch_bounds__(1024)
cross_entropy_count(const target_type *targets, int64_t rows, int64_t ignore, real *share)
{
    real all = share_of(targets, rows, ignore);
    if (threadIdx.x == 0)
        *share = all;
}

extern "C" __global__ void __launch_bounds__(1024)
cross_entropy_finish(const target_type *targets, const real *losses, int64_t rows, int64_t ignore,
                     const real *given, real *share, real *loss)
{
    real all = given ? *given : share_of(targets, rows, ignore);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x)
        sum += (double)losses[i];
    sum = block_sum(sum);
    if (threadIdx.x)
        return;
    *loss = (real)(sum * (double)all);
    if (share)
        *share = all;
}

#endif
