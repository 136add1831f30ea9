/* Scores by a formula, in the kernels of attention: its tensors, its value and its derivatives.
 *
 * The text that is compiled says FORMULA, FORMULA_TENSORS, FORMULA_SLOPED (whether the derivative
 * by the score is not 1 everywhere), FORMULA_FINITE_SLOPE (whether it is always finite),
 * FORMULA_FINITE (bits of tensors whose derivatives are), FORMULA_HIDES (whether it leaves scores
 * that are seen as they are) and SCORE_FORMULA, which sets y from score (which is raw times scale),
 * query, key, apart (query - key), head, batch and x; see src/custom/score_source.c. Knobs are bits
 * of tensors: BY_QUERY and BY_KEY differ from one query, or key, to the next; NARROW have elements
 * of T, not numbers; of ROW_GRADS and PAIR_GRADS the gradients are wanted, summed over keys or for
 * each pair. AHEAD is one more than the number of a tensor that the caller loads, as early as a
 * bias; 0: none. With UNUSUAL parameters, which may be 0, nothing is sure to be finite. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_FORMULA_CUH
#define CUP_OPS_ATTENTION_ATTENTION_FORMULA_CUH

#include "functions.cuh"

#ifndef BY_QUERY
#define BY_QUERY 0
#endif
#ifndef BY_KEY
#define BY_KEY 0
#endif
#ifndef NARROW
#define NARROW 0
#endif
#ifndef ROW_GRADS
#define ROW_GRADS 0
#endif
#ifndef PAIR_GRADS
#define PAIR_GRADS 0
#endif
#ifndef UNUSUAL
#define UNUSUAL 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#define TENSOR_GRADS (ROW_GRADS | PAIR_GRADS)
#define TENSORS_ROOM (FORMULA_TENSORS ? FORMULA_TENSORS : 1)

/* No more than a sign, which instructions take with their operands. */
DEVICE float f_abs(float a) { return fabsf(a); }
DEVICE double f_abs(double a) { return fabs(a); }

#if SHORT_MATH
/* Scores may be large multiples of these, so that their short forms are not good enough. */
#define TANH_SCALE 2.885390082f
DEVICE float f_tanh(float a)
{
    return fmaf(-2, reciprocal_of(1 + exp2_short(TANH_SCALE * a)), 1);
}

DEVICE float f_normal_cdf(float a)
{
    return 0.5f * erfcf(-0.707106781f * a);
}
#endif

template <typename Real, typename Call> DEVICE Real parameter_of(const Call &c, int i)
{
    return sizeof(Real) == 8 ? (Real)c.formula.parameters_f64[i] : (Real)c.formula.parameters[i];
}

/* What is divided by, the same for all x. */
template <typename Real> struct divisor {
    Real value, inverse;
};

template <typename Real, typename Call> DEVICE divisor<Real> divisor_of(const Call &c, int i)
{
    return {parameter_of<Real>(c, i), (Real)c.formula.inverses[i]};
}

template <typename Real> DEVICE divisor<Real> divisor_number(double value)
{
    return {(Real)value, (Real)(1 / value)};
}

template <typename Real> DEVICE Real divided(Real x, divisor<Real> by)
{
    return SHORT_MATH ? x * by.inverse : x / by.value;
}

/* Rounded once, as what is rounded down then needs it: a multiple of the divisor must not end up
 * below its quotient. */
template <typename Real> DEVICE Real divided_exactly(Real x, divisor<Real> by)
{
    if (!SHORT_MATH)
        return x / by.value;
    Real y = x * by.inverse, better = fma(fma(-y, by.value, x), by.inverse, y);
    return better == better ? better : y;
}

/* Of factor x over a divisor, as soft caps have it, the part from which tanh_from, and multiples
 * of that, are made in one operation; the factor is the same for all x. */
template <typename Real> DEVICE Real tanh_part(Real x, Real factor, divisor<Real> by)
{
#if SHORT_MATH
    return reciprocal_of(1 + exp2_short(x * (TANH_SCALE * by.inverse * factor)));
#else
    return f_tanh(divided(x * factor, by));
#endif
}

template <typename Real> DEVICE Real tanh_from(Real part)
{
    return SHORT_MATH ? -2 * part + 1 : part;
}

template <typename Real> DEVICE Real tanh_times(Real part, Real by)
{
    return SHORT_MATH ? (-2 * by) * part + by : by * part;
}

/* What a query has for all keys: its place, and of each tensor its number, or where those of the
 * keys begin. */
template <typename Real> struct formula_row {
    Real query, head, batch;
    Real x[TENSORS_ROOM];
    const void *from[TENSORS_ROOM];
};

/* The score is -infinity where its key is not seen; `bare` is what it would be if it were. */
template <typename Real> struct formula_value {
    Real score, bare, slope, d[TENSORS_ROOM];
    bool seen;
};

template <typename Real> DEVICE Real tensor_element(int i, const void *from, long long at)
{
    if (!(NARROW >> i & 1))
        return __ldg((const Real *)from + at);
    return (Real)to_real(((const T *)from)[at]);
}

/* `place` is the number of the query's own key. */
template <typename Real, typename Call>
DEVICE formula_row<Real> formula_row_at(const Call &c, int batch, int head, int query, Real place)
{
    formula_row<Real> row;
    row.query = place;
    row.head = (Real)head;
    row.batch = (Real)batch;
    query = query < c.queries ? query : c.queries - 1;
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++) {
        const attention_pairs &t = c.formula.tensors[i];
        long long at = batch * t.batch + head * t.head;
        if (BY_QUERY >> i & 1)
            at += query * t.query;
        int size = NARROW >> i & 1 ? (int)sizeof(T) : (int)sizeof(Real);
        row.from[i] = (const char *)t.data + at * size;
        row.x[i] = BY_KEY >> i & 1 ? (Real)0 : tensor_element<Real>(i, row.from[i], 0);
    }
    return row;
}

template <typename Real, typename Call>
DEVICE formula_row<Real> formula_row_of(const Call &c, int batch, int head, int query)
{
    return formula_row_at<Real>(c, batch, head, query, (Real)position_of(c, batch, query));
}

/* Of a score before it is scaled and the key `at`, whose number, and how far it is from that of the
 * query, is also given as a Real: sums of small whole numbers cost less than conversions. `ahead`
 * is of the tensor AHEAD. */
template <typename Real, typename Call>
DEVICE formula_value<Real> formula_of(const Call &c, const formula_row<Real> &row, Real raw,
                                      Real key, int at, Real apart, Real ahead)
{
    Real x[TENSORS_ROOM];
    const Real scale = sizeof(Real) == 8 ? (Real)c.scale_f64 : (Real)c.scale;
    const Real score = raw * scale;
    const Real query = row.query, head = row.head, batch = row.batch;
    at = at < c.keys ? at : c.keys - 1;
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        x[i] = i + 1 == AHEAD ? ahead
               : BY_KEY >> i & 1
                   ? tensor_element<Real>(i, row.from[i], at * c.formula.tensors[i].key)
                   : row.x[i];
    formula_value<Real> y;
    SCORE_FORMULA
    return y;
}

template <typename Real, typename Call>
DEVICE formula_value<Real> formula_of(const Call &c, const formula_row<Real> &row, Real raw,
                                      Real key, int at)
{
    return formula_of(c, row, raw, key, at, row.query - key, (Real)0);
}

/* A gradient times a derivative, which counts where the gradient is not 0: of a key that is hidden
 * it may be no number. */
template <typename Real> DEVICE Real passed_on(Real gradient, Real derivative)
{
    return gradient == 0 ? (Real)0 : gradient * derivative;
}

template <typename Real>
DEVICE Real gradient_of_tensor(int i, Real gradient, const formula_value<Real> &y)
{
    return !UNUSUAL && FORMULA_FINITE >> i & 1 ? gradient * y.d[i] : passed_on(gradient, y.d[i]);
}

template <typename Real> DEVICE Real gradient_of_score(Real gradient, Real slope)
{
    return !UNUSUAL && FORMULA_FINITE_SLOPE ? gradient * slope : passed_on(gradient, slope);
}

DEVICE constexpr int part_of(unsigned bits, int i)
{
    int part = 0;
    for (int k = 0; k < i; k++)
        part += bits >> k & 1;
    return part;
}

/* Adds to what the tensors of a row get. */
template <typename Real>
DEVICE void add_rows_back(Real (&sums)[TENSORS_ROOM], const formula_value<Real> &y, Real ds)
{
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        if (ROW_GRADS >> i & 1)
            sums[i] += gradient_of_tensor(i, ds, y);
}

template <typename Real, typename Call>
DEVICE void store_rows_back(const Call &c, const Real (&sums)[TENSORS_ROOM], int batch, int head,
                            int query)
{
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        if (ROW_GRADS >> i & 1)
            ((Real *)c.formula.d_rows.data)[part_of(ROW_GRADS, i) * c.formula.rows_step +
                                            batch * c.formula.d_rows.batch +
                                            head * c.formula.d_rows.head +
                                            query * c.formula.d_rows.query] = sums[i];
}

/* Of a pair that is there. */
template <typename Real, typename Call>
DEVICE void store_pairs_back(const Call &c, const formula_value<Real> &y, Real ds, int batch,
                             int head, int query, int key)
{
    const attention_pairs &to = c.formula.d_pairs;
    long long at = batch * to.batch + head * to.head + query * to.query + key * to.key;
#pragma unroll
    for (int i = 0; i < FORMULA_TENSORS; i++)
        if (PAIR_GRADS >> i & 1)
            ((T *)to.data)[part_of(PAIR_GRADS, i) * c.formula.pairs_step + at] =
                from_real<T>((real)gradient_of_tensor(i, ds, y));
}

/* What a warp's rows g and g + 8 of a tile give the tensors, each in parts of four lanes; `query`
 * is its first. */
template <typename Call>
DEVICE void store_tile_back(const Call &c, float (&sums)[2][TENSORS_ROOM], int batch, int head,
                            int query)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int i = 0; i < FORMULA_TENSORS; i++)
            if (ROW_GRADS >> i & 1) {
                sums[r][i] += __shfl_xor_sync(0xffffffffu, sums[r][i], 1);
                sums[r][i] += __shfl_xor_sync(0xffffffffu, sums[r][i], 2);
            }
        int at = query + (int)threadIdx.x % 32 / 4 + 8 * r;
        if (at < c.queries && threadIdx.x % 4 == 0)
            store_rows_back(c, sums[r], batch, head, at);
    }
}

DEVICE void clear_tile_back(float (&sums)[2][TENSORS_ROOM])
{
#pragma unroll
    for (int i = 0; i < TENSORS_ROOM; i++)
        sums[0][i] = sums[1][i] = 0;
}

#endif
