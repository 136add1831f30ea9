/* Rows of layernorm and its kin in registers, as they lie in memory: x, what is added to it, and
 * the weights, which are asked for together with the row, so that nothing is waited for behind the
 * reduction. Numbers are unpacked where they are used, twice, which costs less than the registers
 * for keeping them. */
#ifndef CUP_LAYERNORM_ROW_CUH
#define CUP_LAYERNORM_ROW_CUH

#include "rows.cuh"

#ifndef PARAM
#define PARAM CUP_T /* dtype of gamma and beta */
#endif
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef ADD
#define ADD 0
#endif
#ifndef HOLD
#define HOLD 1 /* 0 where registers are too few for the weights: they are read when used */
#endif

typedef dtype_of<PARAM>::type P;
typedef two<real> pair;

struct row_in {
    packed<T, VEC> x[PIECES], more[ADD ? PIECES : 1];
    real pivot;

    __device__ __forceinline__ void read(const T *xs, const T *residuals, int64_t first, int span)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (piece_at(p) < span) {
                x[p].read(xs + first + piece_at(p));
                if (ADD)
                    more[ADD ? p : 0].read(residuals + first + piece_at(p));
            }
        pivot = 0;
        if (PIVOT && CENTRED && span)
            pivot = to_real(xs[first]) + (ADD ? to_real(residuals[first]) : 0);
    }

    __device__ __forceinline__ void unpack(int p, real (&v)[VEC]) const
    {
        x[p].unpack(v);
        if (ADD) {
            real other[VEC];
            more[ADD ? p : 0].unpack(other);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                v[k] += other[k];
        }
    }

    /* The sums of what is left of the row without the pivot, where `centre`, and of its squares. */
    __device__ __forceinline__ pair sums(int span, bool centre) const
    {
        pair sums[2] = {};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (piece_at(p) < span) {
                real v[VEC];
                unpack(p, v);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    if (centre)
                        v[k] -= pivot;
                    if (CENTRED)
                        sums[k % 2].a += v[k];
                    sums[k % 2].b += v[k] * v[k];
                }
            }
        return two_sums()(sums[0], sums[1]);
    }
};

/* Gamma or beta of this thread's columns; ones or zeros where there is none. */
struct weights {
    packed<P, VEC> at[PIECES];
    const P *from;

    __device__ __forceinline__ void read(const P *params, real missing, int span)
    {
        from = params;
#pragma unroll
        for (int p = 0; p < (HOLD ? PIECES : 0); p++) {
            at[p].set(missing);
            if (from && piece_at(p) < span)
                at[p].read(from + piece_at(p));
        }
    }

    __device__ __forceinline__ void unpack(int p, real (&v)[VEC], real missing) const
    {
        if (HOLD) {
            at[p].unpack(v);
            return;
        }
        packed<P, VEC> late;
        late.set(missing);
        if (from)
            late.read(from + piece_at(p));
        late.unpack(v);
    }
};

/* Writes the row: what is left of it without the pivot, times rstd, plus `less`, weighed. */
DEVICE void write_row(const row_in &row, const weights &gamma, const weights &beta, T *y, T *sum,
                      int64_t first, int span, real rstd, real less)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (piece_at(p) < span) {
            real v[VEC], scale[VEC], shift[VEC];
            row.unpack(p, v);
            if (ADD)
                store(sum + first + piece_at(p), from_reals<T, VEC>(v));
            gamma.unpack(p, scale, 1);
            beta.unpack(p, shift, 0);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                v[k] = ((v[k] - row.pivot) * rstd + less) * scale[k] + shift[k];
            store(y + first + piece_at(p), from_reals<T, VEC>(v));
        }
}

#endif
