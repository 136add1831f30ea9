/* Rows of layernorm and its kin in registers, as they lie in memory: x, what is added to it, and
 * the weights, which are asked for together with the row, so that nothing is waited for behind the
 * reduction. Numbers are unpacked where they are used, twice, which costs less than the registers
 * for keeping them. */
#ifndef CUP_OPS_NORM_LAYERNORM_ROW_CUH
#define CUP_OPS_NORM_LAYERNORM_ROW_CUH

#include "rows.cuh"

/* Knobs: PARAM (dtype of gamma and beta), CENTRED, ADD, HOLD (0 where registers are too few for the
 * weights: they are read when used), SHIFT (rows begin anywhere: vectors are those of memory, and
 * may be cut). */

#ifndef FULL
#define FULL 0 /* rows are exactly SPAN wide, and every group has one */
#endif

typedef dtype_of<PARAM>::type P;
typedef two<real> pair;

/* What belongs to the row of the elements that follow a place in memory: from `begin` to `end`,
 * which may be further than a group takes. Without SHIFT `begin` is never above 0. */
struct extent {
    int begin, end;

    __device__ __forceinline__ bool has(int p) const { return FULL || piece_at(p) < end; }

    /* Whether only some elements of the vector belong to the row. */
    __device__ __forceinline__ bool cuts(int p) const
    {
        return SHIFT && (piece_at(p) < begin || piece_at(p) + VEC > end);
    }
    __device__ __forceinline__ bool holds(int at) const { return at >= begin && at < end; }
    __device__ __forceinline__ int count() const
    {
        int last = end < SPAN ? end : SPAN, first = begin > 0 ? begin : 0;
        return last > first ? last - first : 0;
    }
};

/* A row of `width` elements, from element `from` on of the first vector that has some of it;
 * moves `first` to where that part begins. */
DEVICE extent extent_of(int64_t &first, int width, int from)
{
    int lead = SHIFT ? (int)(first % VEC) : 0;
    first += from - lead;
    return {lead - from, lead + width - from};
}

/* Vector `p` of a row, whole: aligned 16 bytes that hold some element of the row can be read,
 * whatever else lies there. Of longer ones only what belongs to the row. */
template <typename Element>
DEVICE void read_vector(packed<Element, VEC> &to, const Element *from, int p, extent e)
{
    if (sizeof(Element) * VEC <= 16 || !e.cuts(p)) {
        to.read(from + piece_at(p));
        return;
    }
    vec<Element, VEC> v;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v.at[k] = e.holds(piece_at(p) + k) ? from[piece_at(p) + k] : convert<Element>((real)0);
    to.put(v);
}

DEVICE void write_vector(T *to, int p, extent e, const real (&v)[VEC])
{
    if (!e.cuts(p)) {
        store(to + piece_at(p), from_reals<T, VEC>(v));
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        if (e.holds(piece_at(p) + k))
            to[piece_at(p) + k] = from_real<T>(v[k]);
}

/* The moments' sums of one vector, which is changed. */
DEVICE void add_moments(pair (&sums)[2], real (&v)[VEC], int p, extent e, real pivot, bool centre)
{
    if (e.cuts(p)) {
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] = e.holds(piece_at(p) + k) ? v[k] : centre ? pivot : 0;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        if (centre)
            v[k] -= pivot;
        if (CENTRED)
            sums[k % 2].a += v[k];
        sums[k % 2].b += v[k] * v[k];
    }
}

/* What is normalised of a sum: what the caller and backward see, rounded to its dtype. */
DEVICE void add_rounded(real (&v)[VEC], const real (&other)[VEC])
{
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] += other[k];
    to_reals(from_reals<T, VEC>(v), v);
}

DEVICE real rounded_sum(T x, T y)
{
    return to_real(from_real<T>(to_real(x) + to_real(y)));
}

struct row_in {
    packed<T, VEC> x[PIECES], more[ADD ? PIECES : 1];
    real pivot;

    __device__ __forceinline__ void read(const T *xs, const T *residuals, int64_t first, extent e)
    {
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (e.has(p)) {
                read_vector(x[p], xs + first, p, e);
                if (ADD)
                    read_vector(more[ADD ? p : 0], residuals + first, p, e);
            }
        pivot = 0;
        first += e.begin > 0 ? e.begin : 0;
        if (PIVOT && CENTRED && e.end > 0)
            pivot = ADD ? rounded_sum(xs[first], residuals[first]) : to_real(xs[first]);
    }

    /* Once what was asked for is there: x becomes the sum. */
    __device__ __forceinline__ void add(extent e)
    {
#pragma unroll
        for (int p = 0; p < (ADD ? PIECES : 0); p++)
            if (e.has(p)) {
                real v[VEC], other[VEC];
                x[p].unpack(v);
                more[ADD ? p : 0].unpack(other);
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    v[k] += other[k];
                x[p].put(from_reals<T, VEC>(v));
            }
    }

    __device__ __forceinline__ void unpack(int p, real (&v)[VEC]) const { x[p].unpack(v); }

    /* The sums of what is left of the row without the pivot, where `centre`, and of its squares. */
    __device__ __forceinline__ pair sums(extent e, bool centre) const
    {
        pair sums[2] = {};
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            if (e.has(p)) {
                real v[VEC];
                unpack(p, v);
                add_moments(sums, v, p, e, pivot, centre);
            }
        return two_sums()(sums[0], sums[1]);
    }
};

/* Gamma or beta of this thread's columns; ones or zeros where there is none. */
struct weights {
    packed<P, VEC> at[PIECES];
    const P *from; /* that of the place in memory that the extent is about */

    /* Of vectors that lie across those of the weights: two of these, moved. */
    __device__ __forceinline__ void read_across(packed<P, VEC> &to, int p, extent e) const
    {
        packed<P, VEC> low, high;
        int by = (VEC - e.begin % VEC) % VEC;
        extent own = {e.begin + by, e.end + by};
        const P *start = from - by;
        low.set(0);
        high.set(0);
        if (piece_at(p) + VEC > own.begin)
            read_vector(low, start, p, own);
        own.begin -= VEC;
        own.end -= VEC;
        if (by && own.has(p))
            read_vector(high, start + VEC, p, own);
        to.join(low, high, by);
    }

    __device__ __forceinline__ void read_one(packed<P, VEC> &to, int p, extent e,
                                             real missing) const
    {
        if (!from)
            to.set(missing);
        else if (SHIFT)
            read_across(to, p, e);
        else
            to.read(from + piece_at(p));
    }

    /* Of the row's weights those of an extent. */
    __device__ __forceinline__ void read(const P *params, real missing, extent e)
    {
        from = params ? params - e.begin : params;
#pragma unroll
        for (int p = 0; p < (HOLD ? PIECES : 0); p++)
            if (e.has(p))
                read_one(at[p], p, e, missing);
    }

    __device__ __forceinline__ void unpack(int p, real (&v)[VEC], extent e, real missing) const
    {
        if (HOLD) {
            at[p].unpack(v);
            return;
        }
        packed<P, VEC> late;
        read_one(late, p, e, missing);
        late.unpack(v);
    }
};

/* Writes a vector of the row: what is left of it without the pivot, times rstd, plus `less`,
 * weighed. */
DEVICE void write_weighed(T *to, int p, extent e, real (&v)[VEC], const weights &gamma,
                          const weights &beta, real pivot, real rstd, real less)
{
    real scale[VEC], shift[VEC];
    gamma.unpack(p, scale, e, 1);
    beta.unpack(p, shift, e, 0);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] = ((v[k] - pivot) * rstd + less) * scale[k] + shift[k];
    write_vector(to, p, e, v);
}

DEVICE void write_row(const row_in &row, const weights &gamma, const weights &beta, T *y, T *sum,
                      int64_t first, extent e, real rstd, real less)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (e.has(p)) {
            real v[VEC];
            row.unpack(p, v);
            if (ADD)
                write_vector(sum + first, p, e, v);
            write_weighed(y + first, p, e, v, gamma, beta, row.pivot, rstd, less);
        }
}

#endif
