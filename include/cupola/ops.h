/* cupola/ops.h: every op, generated from src/dispatch/ops.def by `make gen`.
 *
 * Inputs are borrowed; the result belongs to the innermost scope. An input marked with ?
 * may be NULL. Axes count from 0, or from the end when negative. Floating-point inputs of
 * one call have one dtype; those of elementwise ops, the two that where takes of and
 * the inputs of concat are brought to the one that holds the numbers of all, as NumPy
 * does: f64 for i32 beside floats; nothing holds those of i64 and floats. Arithmetic is
 * done in at least single precision and rounded once. A failure returns NULL (or a
 * status) and leaves its sentence in the context. Where there are several results, the
 * pointer for one not wanted may be NULL.
 *
 * Arguments stand in one order: the context, tensors, the dtype, the shape, other
 * attributes, options, results. Options may be NULL. A field that is 0, false or has no
 * numbers means the default that stands beside it; see CUP_OPTIONS and CUP_INTS:
 *
 *     y = cup_max_pool2d(c, x, (int64_t[]){3, 3}, 2,
 *                        CUP_OPTIONS(cup_max_pool2d_options, .stride = CUP_INTS(2),
 *                                    .ceil_mode = true)); */
#ifndef CUPOLA_OPS_H
#define CUPOLA_OPS_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elementwise arithmetic */

/* (a, b) -> y: a + b, broadcast */
CUP_API cup_tensor *cup_add(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: a - b, broadcast */
CUP_API cup_tensor *cup_sub(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: a * b, broadcast */
CUP_API cup_tensor *cup_mul(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: a / b, broadcast */
CUP_API cup_tensor *cup_div(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (x) -> y: factor x */
CUP_API cup_tensor *cup_scale(cup_context *c, cup_tensor *x, double factor);

/* (x) -> y: -x */
CUP_API cup_tensor *cup_neg(cup_context *c, cup_tensor *x);

/* (x) -> y: e to the power x */
CUP_API cup_tensor *cup_exp(cup_context *c, cup_tensor *x);

/* (x) -> y: natural logarithm of x */
CUP_API cup_tensor *cup_log(cup_context *c, cup_tensor *x);

/* (x) -> y: square root of x */
CUP_API cup_tensor *cup_sqrt(cup_context *c, cup_tensor *x);

/* (a, b) -> y: a to the power b, broadcast */
CUP_API cup_tensor *cup_pow(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (x) -> y: x without its sign */
CUP_API cup_tensor *cup_abs(cup_context *c, cup_tensor *x);

/* (x) -> y: sine of x */
CUP_API cup_tensor *cup_sin(cup_context *c, cup_tensor *x);

/* (x) -> y: cosine of x */
CUP_API cup_tensor *cup_cos(cup_context *c, cup_tensor *x);

/* (x) -> y: error function of x */
CUP_API cup_tensor *cup_erf(cup_context *c, cup_tensor *x);

/* (x) -> y: x times itself */
CUP_API cup_tensor *cup_square(cup_context *c, cup_tensor *x);

/* (x) -> y: 1 / x */
CUP_API cup_tensor *cup_reciprocal(cup_context *c, cup_tensor *x);

/* (x) -> y: 1 / square root of x */
CUP_API cup_tensor *cup_rsqrt(cup_context *c, cup_tensor *x);

/* (x) -> y: 2 to the power x */
CUP_API cup_tensor *cup_exp2(cup_context *c, cup_tensor *x);

/* (x) -> y: logarithm of x to base 2 */
CUP_API cup_tensor *cup_log2(cup_context *c, cup_tensor *x);

/* (x) -> y: e to the power x less 1, exact for a small x */
CUP_API cup_tensor *cup_expm1(cup_context *c, cup_tensor *x);

/* (x) -> y: natural logarithm of 1 + x, exact for a small x */
CUP_API cup_tensor *cup_log1p(cup_context *c, cup_tensor *x);

/* (x) -> y: tangent of x */
CUP_API cup_tensor *cup_tan(cup_context *c, cup_tensor *x);

/* (x) -> y: angle whose sine is x */
CUP_API cup_tensor *cup_asin(cup_context *c, cup_tensor *x);

/* (x) -> y: angle whose cosine is x */
CUP_API cup_tensor *cup_acos(cup_context *c, cup_tensor *x);

/* (x) -> y: angle whose tangent is x, between -pi/2 and pi/2 */
CUP_API cup_tensor *cup_atan(cup_context *c, cup_tensor *x);

/* (a, b): angle of the point that lies b across and a up, from -pi to pi, broadcast; the
 * gradient at 0, 0 is 0 */
CUP_API cup_tensor *cup_atan2(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (x) -> y: hyperbolic sine of x */
CUP_API cup_tensor *cup_sinh(cup_context *c, cup_tensor *x);

/* (x) -> y: hyperbolic cosine of x */
CUP_API cup_tensor *cup_cosh(cup_context *c, cup_tensor *x);

/* (x) -> y: number whose hyperbolic sine is x */
CUP_API cup_tensor *cup_asinh(cup_context *c, cup_tensor *x);

/* (x) -> y: number from 0 whose hyperbolic cosine is x */
CUP_API cup_tensor *cup_acosh(cup_context *c, cup_tensor *x);

/* (x) -> y: number whose hyperbolic tangent is x */
CUP_API cup_tensor *cup_atanh(cup_context *c, cup_tensor *x);

/* (x): -1, 0 or 1 as x is below, at or above 0; NaN for NaN. The gradient is 0 */
CUP_API cup_tensor *cup_sign(cup_context *c, cup_tensor *x);

/* (x): whole number nearest to x, of two the even one; the gradient is 0 */
CUP_API cup_tensor *cup_round(cup_context *c, cup_tensor *x);

/* (x): largest whole number that is at most x; the gradient is 0 */
CUP_API cup_tensor *cup_floor(cup_context *c, cup_tensor *x);

/* (x): smallest whole number that is at least x; the gradient is 0 */
CUP_API cup_tensor *cup_ceil(cup_context *c, cup_tensor *x);

/* (x): x without what follows the point; the gradient is 0 */
CUP_API cup_tensor *cup_trunc(cup_context *c, cup_tensor *x);

/* (a, b): what is left of a after floor_div by b, with the sign of b as in Python, broadcast;
 * NaN for a b of 0, of integers 0 */
CUP_API cup_tensor *cup_remainder(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): what is left of a after division by b cut to a whole number, with the sign of a as in
 * C, broadcast; NaN for a b of 0, of integers 0 */
CUP_API cup_tensor *cup_fmod(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): a / b rounded down to a whole number, broadcast; by 0 as a / b, of integers 0. The
 * gradient is 0 */
CUP_API cup_tensor *cup_floor_div(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): the larger of a and b, broadcast; NaN when one is; equal ones share the gradient */
CUP_API cup_tensor *cup_maximum(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): the smaller of a and b, broadcast; NaN when one is; equal ones share the gradient */
CUP_API cup_tensor *cup_minimum(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): a + weight (b - a), broadcast; exactly b at weight 1 */
CUP_API cup_tensor *cup_lerp(cup_context *c, cup_tensor *a, cup_tensor *b, double weight);

/* (x) -> y: x, but at least low and at most high */
CUP_API cup_tensor *cup_clamp(cup_context *c, cup_tensor *x, double low, double high);

/* Comparisons and choice */

/* (a, b) -> y: whether a equals b, as bool, broadcast */
CUP_API cup_tensor *cup_equal(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether a differs from b, as bool, broadcast */
CUP_API cup_tensor *cup_not_equal(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether a is less than b, as bool, broadcast */
CUP_API cup_tensor *cup_less(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether a is at most b, as bool, broadcast */
CUP_API cup_tensor *cup_less_equal(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether a is greater than b, as bool, broadcast */
CUP_API cup_tensor *cup_greater(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether a is at least b, as bool, broadcast */
CUP_API cup_tensor *cup_greater_equal(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (condition, a, b): a where the condition, of dtype bool, holds, else b; broadcast */
CUP_API cup_tensor *cup_where(cup_context *c, cup_tensor *condition, cup_tensor *a, cup_tensor *b);

/* (x) -> y: whether x is NaN, as bool */
CUP_API cup_tensor *cup_isnan(cup_context *c, cup_tensor *x);

/* (x) -> y: whether x is infinite, as bool */
CUP_API cup_tensor *cup_isinf(cup_context *c, cup_tensor *x);

/* (x) -> y: whether x is neither infinite nor NaN, as bool */
CUP_API cup_tensor *cup_isfinite(cup_context *c, cup_tensor *x);

/* (a, b) -> y: whether a and b are both not 0, as bool, broadcast */
CUP_API cup_tensor *cup_logical_and(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether one of a and b is not 0, as bool, broadcast */
CUP_API cup_tensor *cup_logical_or(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: whether exactly one of a and b is not 0, as bool, broadcast */
CUP_API cup_tensor *cup_logical_xor(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (x) -> y: whether x is 0, as bool */
CUP_API cup_tensor *cup_logical_not(cup_context *c, cup_tensor *x);

/* Bits of integers */

/* (a, b) -> y: the bits that a and b have both, broadcast */
CUP_API cup_tensor *cup_bitwise_and(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: the bits that a or b has, broadcast */
CUP_API cup_tensor *cup_bitwise_or(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b) -> y: the bits that one of a and b has, broadcast */
CUP_API cup_tensor *cup_bitwise_xor(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (x): the bits that x does not have; -1 - x of a number with a sign */
CUP_API cup_tensor *cup_bitwise_not(cup_context *c, cup_tensor *x);

/* (a, b): a times 2^b, of which the dtype keeps the low bits, broadcast; 0 for a b below 0 or
 * above 63 */
CUP_API cup_tensor *cup_shift_left(cup_context *c, cup_tensor *a, cup_tensor *b);

/* (a, b): a / 2^b rounded down, broadcast; for a b below 0 or above 63 what is left of any
 * number: 0 or -1 */
CUP_API cup_tensor *cup_shift_right(cup_context *c, cup_tensor *a, cup_tensor *b);

/* Activations */

/* (x) -> y: hyperbolic tangent of x */
CUP_API cup_tensor *cup_tanh(cup_context *c, cup_tensor *x);

/* (x) -> y: 1 / (1 + exp(-x)) */
CUP_API cup_tensor *cup_sigmoid(cup_context *c, cup_tensor *x);

/* (x) -> y: x where it is not below 0, else 0 */
CUP_API cup_tensor *cup_relu(cup_context *c, cup_tensor *x);

/* (x) -> y: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
CUP_API cup_tensor *cup_gelu(cup_context *c, cup_tensor *x);

/* (x) -> y: 0.5 x (1 + erf(x / sqrt(2))) */
CUP_API cup_tensor *cup_gelu_erf(cup_context *c, cup_tensor *x);

/* (x) -> y: x / (1 + exp(-x)), and its limit 0 at -inf */
CUP_API cup_tensor *cup_silu(cup_context *c, cup_tensor *x);

/* (x) -> y: x above 0, else alpha (exp(x) - 1) */
CUP_API cup_tensor *cup_elu(cup_context *c, cup_tensor *x, double alpha);

/* (x) -> y: x above 0, else slope x */
CUP_API cup_tensor *cup_leaky_relu(cup_context *c, cup_tensor *x, double slope);

/* (x) -> y: x min(max(x + 3, 0), 6) / 6 */
CUP_API cup_tensor *cup_hardswish(cup_context *c, cup_tensor *x);

/* (x) -> y: log(1 + exp(x)), without overflow */
CUP_API cup_tensor *cup_softplus(cup_context *c, cup_tensor *x);

/* (x) -> y: x tanh(log(1 + exp(x))) */
CUP_API cup_tensor *cup_mish(cup_context *c, cup_tensor *x);

/* (gate, up) -> y: silu(gate) up, broadcast */
CUP_API cup_tensor *cup_swiglu(cup_context *c, cup_tensor *gate, cup_tensor *up);

/* Dropout */

/* (x): 0 with probability p, which is rounded to a multiple of 2^-32, else x / (1 - p) with the
 * p so rounded, so that the mean is kept */
CUP_API cup_tensor *cup_dropout(cup_context *c, cup_tensor *x, double p);

/* (residual, x): residual + dropout(x), in one pass */
CUP_API cup_tensor *cup_dropout_add(cup_context *c, cup_tensor *residual, cup_tensor *x, double p);

/* Making tensors */

/* () -> y: a tensor whose elements all have one value */
CUP_API cup_tensor *cup_full(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                             double value);

/* () -> y: a tensor of zeros */
CUP_API cup_tensor *cup_zeros(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape);

/* () -> y: a tensor of ones */
CUP_API cup_tensor *cup_ones(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape);

/* (): start, start + step, start + 2 step and so on up to, not including, stop; each is rounded
 * once. The dtype is a float, i32 or i64; whole numbers go to 2^53 */
typedef struct cup_arange_options {
    size_t size;
    double step; /* default: 1 */
} cup_arange_options;

CUP_API cup_tensor *cup_arange(cup_context *c, cup_dtype dtype, double start, double stop,
                               const cup_arange_options *options);

/* () -> y: a matrix [rows,columns] of zeros with ones where the column is the row + diagonal */
typedef struct cup_eye_options {
    size_t size;
    int64_t diagonal; /* default: 0 */
} cup_eye_options;

CUP_API cup_tensor *cup_eye(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns,
                            const cup_eye_options *options);

/* (x) -> y: the same elements, in row-major order in new memory */
CUP_API cup_tensor *cup_copy(cup_context *c, cup_tensor *x);

/* (y, x) -> : writes the elements of x, of the same dtype and broadcast to the shape of y, into
 * y, which may be a view of any strides */
CUP_API cup_status cup_copy_into(cup_context *c, cup_tensor *y, cup_tensor *x);

/* (x): the same elements in another dtype: to nearest even; to integers towards zero, at most
 * to the ends of their range */
CUP_API cup_tensor *cup_cast(cup_context *c, cup_tensor *x, cup_dtype dtype);

/* (x) -> y, transposed: the same elements in another float dtype, and with the last two
 * dimensions exchanged, from one reading */
CUP_API cup_status cup_cast_transpose(cup_context *c, cup_tensor *x, cup_dtype dtype,
                                      cup_tensor **y, cup_tensor **transposed);

/* () -> y: random numbers, equally likely from low up to, before rounding, not including high */
CUP_API cup_tensor *cup_uniform(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                                double low, double high);

/* () -> y: normal random numbers */
CUP_API cup_tensor *cup_normal(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                               double mean, double deviation);

/* Shape */

/* (x): the same elements in another shape, one size of which may be -1; a view where the
 * strides allow, else a copy */
CUP_API cup_tensor *cup_reshape(cup_context *c, cup_tensor *x, int ndim, const int64_t *shape);

/* (x) -> y: a view in which dimensions of size 1, or missing in front, are repeated */
CUP_API cup_tensor *cup_broadcast(cup_context *c, cup_tensor *x, int ndim, const int64_t *shape);

/* (x) -> y: a view with the dimensions in another order: dimension i of it is dimension axes[i]
 * of x */
CUP_API cup_tensor *cup_permute(cup_context *c, cup_tensor *x, const int64_t *axes,
                                int axes_count);

/* (x): a view of sizes[i] elements from starts[i] on along each dimension i; a size of -1 means
 * all that follow */
CUP_API cup_tensor *cup_slice(cup_context *c, cup_tensor *x, const int64_t *starts,
                              int starts_count, const int64_t *sizes, int sizes_count);

/* (x...) -> y: the inputs one after another along an axis */
CUP_API cup_tensor *cup_concat(cup_context *c, cup_tensor *const *x, int x_count, int axis);

/* (x) -> y: x with before[i] places of the value in front of it and after[i] behind it along
 * each dimension i */
typedef struct cup_pad_options {
    size_t size;
    double value; /* default: 0 */
} cup_pad_options;

CUP_API cup_tensor *cup_pad(cup_context *c, cup_tensor *x, const int64_t *before,
                            int before_count, const int64_t *after, int after_count,
                            const cup_pad_options *options);

/* (x): as pad, with x turned round at its edges, which do not come twice; by fewer than a
 * dimension has elements */
CUP_API cup_tensor *cup_pad_reflect(cup_context *c, cup_tensor *x, const int64_t *before,
                                    int before_count, const int64_t *after, int after_count);

/* (x) -> y: as pad, with the elements at the edges over and over again */
CUP_API cup_tensor *cup_pad_replicate(cup_context *c, cup_tensor *x, const int64_t *before,
                                      int before_count, const int64_t *after, int after_count);

/* (x): as pad, with x going on at its other end; by at most what a dimension has */
CUP_API cup_tensor *cup_pad_circular(cup_context *c, cup_tensor *x, const int64_t *before,
                                     int before_count, const int64_t *after, int after_count);

/* (x): x times[i] times, one after another, along each dimension i; more numbers than x has
 * dimensions make new ones in front */
CUP_API cup_tensor *cup_repeat(cup_context *c, cup_tensor *x, const int64_t *times,
                               int times_count);

/* (x) -> y: x with its elements in the opposite order along the axes, along all when none is
 * given */
CUP_API cup_tensor *cup_flip(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count);

/* (x): the windows of x [N,C,H,W] as columns [N,C KH KW,L], one for each of the L places of a
 * window, row by row; element k, l of a window's channel c stands in row [c KH + k] KW + l.
 * Padding counts as zeros. window, stride, padding and dilation are one number, or one each for
 * height and width */
typedef struct cup_unfold_options {
    size_t size;
    cup_ints stride;   /* default: 1 */
    cup_ints padding;  /* default: 0 */
    cup_ints dilation; /* default: 1 */
} cup_unfold_options;

CUP_API cup_tensor *cup_unfold(cup_context *c, cup_tensor *x, const int64_t *window,
                               int window_count, const cup_unfold_options *options);

/* (x): columns [N,C KH KW,L], as unfold makes them of images [N,C,H,W] of this size, added up
 * where they came from; size is one number, or height and width */
typedef struct cup_fold_options {
    size_t size;
    cup_ints stride;   /* default: 1 */
    cup_ints padding;  /* default: 0 */
    cup_ints dilation; /* default: 1 */
} cup_fold_options;

CUP_API cup_tensor *cup_fold(cup_context *c, cup_tensor *x, const int64_t *size, int size_count,
                             const int64_t *window, int window_count,
                             const cup_fold_options *options);

/* (x) -> y: x with zeros above a diagonal of the matrices in its last two dimensions: where the
 * column is greater than the row + diagonal */
CUP_API cup_tensor *cup_tril(cup_context *c, cup_tensor *x, int64_t diagonal);

/* (x) -> y: x with zeros below a diagonal: where the column is less than the row + diagonal */
CUP_API cup_tensor *cup_triu(cup_context *c, cup_tensor *x, int64_t diagonal);

/* Reductions */

/* (x): sum over the axes, over all when none is given; keep leaves them with size 1. Integers
 * are summed as i64 */
CUP_API cup_tensor *cup_sum(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            bool keep);

/* (x) -> y: mean over the axes, over all when none is given */
CUP_API cup_tensor *cup_mean(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                             bool keep);

/* (x): product over the axes, over all when none is given; 1 of no elements. Integers are
 * multiplied as i64, of which the low bits are kept */
CUP_API cup_tensor *cup_prod(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                             bool keep);

/* (x): largest element over the axes; NaN when there is one. Equal ones share the gradient */
CUP_API cup_tensor *cup_max(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            bool keep);

/* (x): smallest element over the axes; NaN when there is one. Equal ones share the gradient */
CUP_API cup_tensor *cup_min(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            bool keep);

/* (x): place of the largest element over the axes, over all when none is given, as i64: its
 * number among the elements folded together. The first of equal ones; NaN counts as largest */
CUP_API cup_tensor *cup_argmax(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                               bool keep);

/* (x): place of the smallest element, as argmax gives that of the largest; NaN counts as
 * smallest */
CUP_API cup_tensor *cup_argmin(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                               bool keep);

/* (x) -> y: root of the sum of squares over the axes */
CUP_API cup_tensor *cup_norm(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                             bool keep);

/* (x) -> y: variance over the axes: squared distances from the mean, summed, over their number
 * less the correction */
typedef struct cup_var_options {
    size_t size;
    bool keep; /* default: false */
} cup_var_options;

CUP_API cup_tensor *cup_var(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            int correction, const cup_var_options *options);

/* (x) -> y: log of the sum of exponentials over the axes, without overflow */
CUP_API cup_tensor *cup_logsumexp(cup_context *c, cup_tensor *x, const int64_t *axes,
                                  int axes_count, bool keep);

/* (x) -> y: sums of each element and all before it along the axis, or with reverse all behind
 * it */
CUP_API cup_tensor *cup_cumsum(cup_context *c, cup_tensor *x, int axis, bool reverse);

/* (a, x): y[i] = a[i] y[i - 1] + x[i] along the axis, and y[0] = x[0]; with reverse y[i] = a[i]
 * y[i + 1] + x[i] from the end on; a and x have one shape */
CUP_API cup_tensor *cup_recurrence(cup_context *c, cup_tensor *a, cup_tensor *x, int axis,
                                   bool reverse);

/* Small matrices */

/* (a): the lower triangle l with l l^T = [a + a^T] / 2 + ridge on the diagonal, of each matrix
 * of a [..,N,N] in f32 or f64; NaN from the column on in which a matrix shows not to be
 * positive definite. For many small matrices a block of the GPU each; few large ones go to
 * cuSOLVER where it is installed */
CUP_API cup_tensor *cup_cholesky(cup_context *c, cup_tensor *a, double ridge);

/* (a, b): x [..,N,K] with [a + ridge on the diagonal] x = b for each matrix of a [..,N,N] and b
 * [..,N,K] in f32 or f64; inf or NaN for one that is singular. For many small matrices a block
 * of the GPU each; few large ones go to cuSOLVER where it is installed */
CUP_API cup_tensor *cup_solve(cup_context *c, cup_tensor *a, cup_tensor *b, double ridge);

/* (a): q [..,M,K] with q^T q = 1 and the upper triangle r [..,K,N] with q r = a, for each
 * matrix of a [..,M,N] in f32 or f64; K is the smaller of M and N, which may be 4096. The
 * diagonal of r is from 0 on, so that both are unique where the first K columns do not depend
 * on each other; elsewhere they have no gradient, but inf or NaN. NaN from the column on that
 * holds one. For many small matrices a block of the GPU each; few large ones go to cuSOLVER
 * where it is installed */
CUP_API cup_status cup_qr(cup_context *c, cup_tensor *a, cup_tensor **q, cup_tensor **r);

/* (a): u [..,M,K], s [..,K] and vt [..,K,N] with u^T u = 1, vt vt^T = 1 and a = u diag[s] vt,
 * for each matrix of a [..,M,N] in f32 or f64; K is the smaller of M and N, which may be 1024.
 * s goes down to at least 0; of the largest elements of each row of vt the first is not below
 * 0. NaN for a matrix that holds NaN or inf. Vectors of equal values, and of 0 where M is not
 * N, are not unique and have no gradient, but inf or NaN; values have theirs. For many small
 * matrices: a block of the GPU each */
CUP_API cup_status cup_svd(cup_context *c, cup_tensor *a, cup_tensor **u, cup_tensor **s,
                           cup_tensor **vt);

/* Fourier transforms */

/* (x): the discrete Fourier transform along the axis of complex numbers, whose real and
 * imaginary parts lie side by side in the last dimension, of size 2: y[k] is the sum over j of
 * x[j] e^[-2 pi i j k / n] for n numbers; with inverse of x[j] e^[2 pi i j k / n], over n. Any
 * n; f32 or f64 */
CUP_API cup_tensor *cup_fft(cup_context *c, cup_tensor *x, int axis, bool inverse);

/* Convolutions */

/* (x, weight, bias?): sums of x [N,C,H,W] under weight [O,C/groups,KH,KW] at each place, plus
 * bias [O]: y[n,o,i,j] is the sum over c, k and l of weight[o,c,k,l] x[n,c,i stride + k
 * dilation - top,j stride + l dilation - left], where what lies outside of x is left out. Group
 * g of the channels of x makes group g of those of y. stride and dilation are one number, or
 * one each for height and width; padding one, two, or four: top, bottom, left, right. same pads
 * so that y has a place for each stride of x, with the odd one behind. padding_mode says what
 * padding consists of; it copies x where that is not zeros. A residual of the shape and dtype
 * of y is added, and the activation, relu, gelu or silu, taken of the sum, in the same pass
 * where nothing is recorded. Images that lie as [N,H,W,C] are taken as they lie: give the view
 * that cup_permute makes of them; y then lies so, too */
typedef struct cup_conv2d_options {
    size_t size;
    cup_ints stride;               /* default: 1 */
    cup_ints padding;              /* default: 0 */
    bool same;                     /* default: false */
    cup_ints dilation;             /* default: 1 */
    int groups;                    /* default: 1 */
    cup_padding_mode padding_mode; /* default: zeros */
    cup_tensor *residual;          /* default: none */
    cup_activation activation;     /* default: none */
} cup_conv2d_options;

CUP_API cup_tensor *cup_conv2d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *bias, const cup_conv2d_options *options);

/* (x, weight, x_scale?, weight_scale?, bias?): conv2d of codes that quantize made: x and weight
 * are f8e4m3 both, or i8 both, and y, in the dtype [bf16, f16 or f32], is the sums times
 * x_scale, one f32, and weight_scale, one or [O] or [O,1], plus bias [O], all f32; a scale that
 * is left out is 1. Sums of i8 are exact; fast_accumulation lets tensor cores keep 14 bits of
 * the sums of f8. Fastest where channels come last, in multiples of 16 */
typedef struct cup_scaled_conv2d_options {
    size_t size;
    cup_ints stride;        /* default: 1 */
    cup_ints padding;       /* default: 0 */
    bool same;              /* default: false */
    cup_ints dilation;      /* default: 1 */
    int groups;             /* default: 1 */
    bool fast_accumulation; /* default: false */
} cup_scaled_conv2d_options;

CUP_API cup_tensor *cup_scaled_conv2d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                      cup_tensor *x_scale, cup_tensor *weight_scale,
                                      cup_tensor *bias, cup_dtype dtype,
                                      const cup_scaled_conv2d_options *options);

/* (x, weight, bias?): conv2d with a depth: sums of x [N,C,D,H,W] under weight
 * [O,C/groups,KD,KH,KW], plus bias [O]. stride and dilation are one number, or one each for
 * depth, height and width; padding one, three, or six: before and behind of each. Images that
 * lie as [N,D,H,W,C] are taken as they lie, as in conv2d. It takes memory for KD times x */
typedef struct cup_conv3d_options {
    size_t size;
    cup_ints stride;               /* default: 1 */
    cup_ints padding;              /* default: 0 */
    bool same;                     /* default: false */
    cup_ints dilation;             /* default: 1 */
    int groups;                    /* default: 1 */
    cup_padding_mode padding_mode; /* default: zeros */
} cup_conv3d_options;

CUP_API cup_tensor *cup_conv3d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *bias, const cup_conv3d_options *options);

/* Pooling */

/* (x): largest element of each window of x, which is [N,C,H,W], or [N,H,W,C] with
 * channels_last; NaN when there is one. window, stride, padding and dilation are one number, or
 * one each for height and width; ceil_mode lets the last window reach over the edge. The first
 * of equal ones gets the gradient */
typedef struct cup_max_pool2d_options {
    size_t size;
    cup_ints stride;    /* default: the window */
    cup_ints padding;   /* default: 0 */
    cup_ints dilation;  /* default: 1 */
    bool ceil_mode;     /* default: false */
    bool channels_last; /* default: false */
} cup_max_pool2d_options;

CUP_API cup_tensor *cup_max_pool2d(cup_context *c, cup_tensor *x, const int64_t *window,
                                   int window_count, const cup_max_pool2d_options *options);

/* (x): mean of each window of x; all as in max_pool2d. Padding counts as zeros with
 * count_include_pad, else only elements of x count */
typedef struct cup_avg_pool2d_options {
    size_t size;
    cup_ints stride;        /* default: the window */
    cup_ints padding;       /* default: 0 */
    bool ceil_mode;         /* default: false */
    bool count_include_pad; /* default: false */
    bool channels_last;     /* default: false */
} cup_avg_pool2d_options;

CUP_API cup_tensor *cup_avg_pool2d(cup_context *c, cup_tensor *x, const int64_t *window,
                                   int window_count, const cup_avg_pool2d_options *options);

/* (x): mean of each of size[0] x size[1] windows that cover x, which is [N,C,H,W], or [N,H,W,C]
 * with channels_last; one size is both. Of n windows over m elements number i reaches from
 * floor(i m / n) up to, not including, ceil((i + 1) m / n) */
CUP_API cup_tensor *cup_adaptive_avg_pool2d(cup_context *c, cup_tensor *x, const int64_t *size,
                                            int size_count, bool channels_last);

/* (x): largest element of each of size[0] x size[1] windows that cover x, as in
 * adaptive_avg_pool2d; NaN when there is one. The first of equal ones gets the gradient */
CUP_API cup_tensor *cup_adaptive_max_pool2d(cup_context *c, cup_tensor *x, const int64_t *size,
                                            int size_count, bool channels_last);

/* Normalisation */

/* (x, gamma?, beta?): (x - mean) / sqrt(variance + eps) gamma + beta over the last dimension;
 * gamma and beta in the dtype of x or in f32 */
CUP_API cup_tensor *cup_layernorm(cup_context *c, cup_tensor *x, cup_tensor *gamma,
                                  cup_tensor *beta, double eps);

/* (x, gamma?): x / sqrt(mean of squares + eps) gamma over the last dimension; gamma in the
 * dtype of x or in f32 */
CUP_API cup_tensor *cup_rmsnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma, double eps);

/* (x, residual, gamma?, beta?): sum is x + residual, rounded to their dtype, y is layernorm of
 * sum, in one pass */
CUP_API cup_status cup_add_layernorm(cup_context *c, cup_tensor *x, cup_tensor *residual,
                                     cup_tensor *gamma, cup_tensor *beta, double eps,
                                     cup_tensor **y, cup_tensor **sum);

/* (x, residual, gamma?): sum is x + residual, rounded to their dtype, y is rmsnorm of sum, in
 * one pass */
CUP_API cup_status cup_add_rmsnorm(cup_context *c, cup_tensor *x, cup_tensor *residual,
                                   cup_tensor *gamma, double eps, cup_tensor **y,
                                   cup_tensor **sum);

/* (x, gamma?, beta?, running_mean?, running_var?, residual?): (x - mean) / sqrt(variance + eps)
 * gamma + beta for each channel, a place along the axis: 1 in [N,C,H,W], -1 in [N,H,W,C]. In
 * training the statistics are those of x, and the running ones, if given, move by momentum
 * towards its mean and unbiased variance, in place; otherwise they are the running ones. These
 * are f32, or f64 for x in f64; gamma and beta have the dtype of x or f32. A residual, of the
 * shape and dtype of x, is added to the result, and relu then makes 0 of what is below 0, in
 * the same pass */
typedef struct cup_batchnorm_options {
    size_t size;
    bool train;           /* default: false */
    double eps;           /* default: 1e-5 */
    double momentum;      /* default: 0.1 */
    bool relu;            /* default: false */
    cup_tensor *residual; /* default: none */
} cup_batchnorm_options;

CUP_API cup_tensor *cup_batchnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma,
                                  cup_tensor *beta, cup_tensor *running_mean,
                                  cup_tensor *running_var, int axis,
                                  const cup_batchnorm_options *options);

/* (x, gamma?, beta?): (x - mean) / sqrt(variance + eps) gamma + beta with the statistics of
 * each group of neighbouring channels over all dimensions but the first; channels lie along the
 * axis, 1 or the last. groups 0: each channel is one, instance normalisation. gamma and beta
 * have an element a channel, in the dtype of x or in f32 */
typedef struct cup_groupnorm_options {
    size_t size;
    double eps; /* default: 1e-5 */
} cup_groupnorm_options;

CUP_API cup_tensor *cup_groupnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma,
                                  cup_tensor *beta, int groups, int axis,
                                  const cup_groupnorm_options *options);

/* Softmax and losses */

/* (x) -> y: exp(x - max x) / sum of these, along the axis */
CUP_API cup_tensor *cup_softmax(cup_context *c, cup_tensor *x, int axis);

/* (x) -> y: log of softmax along the axis, without the loss of small values */
CUP_API cup_tensor *cup_log_softmax(cup_context *c, cup_tensor *x, int axis);

/* (logits, targets): mean over the rows of -log softmax of logits at the target, without rows
 * whose target is ignore_index, which is -1 where no class is left out; f32 for 16-bit logits.
 * label_smoothing spreads that part of the target over all classes; z_loss adds so much of
 * logsumexp squared; only the first columns are classes. in_place: a recorded call overwrites
 * the logits by their gradient. A bad target is an error, on a GPU NaN */
typedef struct cup_cross_entropy_options {
    size_t size;
    double label_smoothing; /* default: 0 */
    double z_loss;          /* default: 0 */
    int64_t columns;        /* default: all columns */
    bool in_place;          /* default: false */
} cup_cross_entropy_options;

CUP_API cup_tensor *cup_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                      int64_t ignore_index,
                                      const cup_cross_entropy_options *options);

/* (x, weight, targets): cross_entropy(linear(x, weight), targets), for x [..,K] and weight
 * [N,K], whose logits exist for chunk rows at a time only. In training the gradients are made
 * with the loss, and backward scales them */
typedef struct cup_linear_cross_entropy_options {
    size_t size;
    double label_smoothing; /* default: 0 */
    double z_loss;          /* default: 0 */
    int64_t columns;        /* default: all columns */
    int64_t chunk;          /* default: as many rows as take 256 MB */
} cup_linear_cross_entropy_options;

CUP_API cup_tensor *cup_linear_cross_entropy(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                             cup_tensor *targets, int64_t ignore_index,
                                             const cup_linear_cross_entropy_options *options);

/* (log_probs, targets, input_lengths, target_lengths): connectionist temporal classification:
 * minus the logarithm of how probable targets [N,S] are, summed over all ways to spread them
 * over the steps of log_probs [T,N,C] with the blank class between any two and none missing
 * between equal ones; a loss for each sequence, [N]. Sequence n has the first input_lengths[n]
 * steps and target_lengths[n] targets, i32 or i64 as the targets; inf where they find no place,
 * with a gradient of 0. log_probs are f32 or f64, as log_softmax gives them. A length or target
 * that is none is an error on the CPU, NaN on a GPU */
CUP_API cup_tensor *cup_ctc_loss(cup_context *c, cup_tensor *log_probs, cup_tensor *targets,
                                 cup_tensor *input_lengths, cup_tensor *target_lengths, int blank);

/* Tables */

/* (table, ids) -> y: row ids[..] of the table [V,C] for each id: [..,C]. An id that is no row
 * is an error on the CPU and a row of NaN on a GPU */
CUP_API cup_tensor *cup_embedding(cup_context *c, cup_tensor *table, cup_tensor *ids);

/* (x, indices) -> y: the slices of x along the axis whose numbers the indices are, one after
 * another. An index that is none is an error on the CPU, NaN or 0 on a GPU */
CUP_API cup_tensor *cup_index_select(cup_context *c, cup_tensor *x, cup_tensor *indices, int axis);

/* (x, indices) -> y: for each index the element of x at that place along the axis and the
 * index's own place along the others */
CUP_API cup_tensor *cup_gather(cup_context *c, cup_tensor *x, cup_tensor *indices, int axis);

/* (x, indices, src) -> y: x, and each element of src added at the place along the axis that its
 * index gives */
CUP_API cup_tensor *cup_scatter_add(cup_context *c, cup_tensor *x, cup_tensor *indices,
                                    cup_tensor *src, int axis);

/* (x): the elements along the axis in order, and their places before, as i64; equal ones stay
 * in order. NaN is the largest, and -0 less than 0 */
CUP_API cup_status cup_sort(cup_context *c, cup_tensor *x, int axis, bool descending,
                            cup_tensor **values, cup_tensor **indices);

/* (x): the k largest elements along the axis, or smallest, in order, and their places, as i64;
 * of equal ones the first */
typedef struct cup_top_k_options {
    size_t size;
    bool smallest; /* default: false */
} cup_top_k_options;

CUP_API cup_status cup_top_k(cup_context *c, cup_tensor *x, int64_t k, int axis,
                             const cup_top_k_options *options, cup_tensor **values,
                             cup_tensor **indices);

/* (logits, counters): a token for each row of logits [B,V], as i32 [B]: from the top_k
 * likeliest, and of these from the likeliest that make up top_p together, each as likely as the
 * softmax of logits / temperature says; a temperature below 0 always takes the likeliest. NaN
 * is never drawn; -1 where there is no number. The first of the counters, i64, says which draw
 * of the seed this is, and all of them are raised by 1 behind it: a second one can count
 * positions. The same numbers as cup_sample */
typedef struct cup_draw_token_options {
    size_t size;
    double temperature; /* default: 1 */
    int64_t top_k;      /* default: all tokens */
    double top_p;       /* default: all tokens */
} cup_draw_token_options;

CUP_API cup_tensor *cup_draw_token(cup_context *c, cup_tensor *logits, cup_tensor *counters,
                                   int64_t seed, const cup_draw_token_options *options);

/* Training */

/* (x...) -> y: square root of the sum of the squares of all elements of all tensors, in f32 */
CUP_API cup_tensor *cup_global_norm(cup_context *c, cup_tensor *const *x, int x_count);

/* Attention */

/* (q, k, v, slopes?, sinks?, query_offsets?, key_offsets?, bias?, key_blocks?): softmax over
 * the keys of scale q k^T, times v, in each head; q is [B,H,T,D], k [B,G,S,D] and v [B,G,S,E],
 * where G divides H, and o [B,H,T,E]; causal lets the last query see all keys, each one before
 * it one less; window_left and window_right are how many keys a query sees up to and from its
 * own, which is among them, where the last query's own key is the last, or with top_left the
 * first query's the first, which goes with neither slopes nor offsets; soft_cap c makes c
 * tanh[s / c] of a scaled score s; slopes [H] take slope times the distance between a key and
 * the query's own from a score [ALiBi]; sinks [H] are the logits of a key more, with a value of
 * 0; both are in f32, or in f64 as the rest; bias, [B,H,T,S] with 1 for any of these, is added
 * to the scores after all else, and may be -inf; query_offsets and key_offsets, [N] or [B,N],
 * say before which positions each of N documents ends, of which a query sees its own alone,
 * with the query's own key counted in it; key_offsets are those of the queries where they are
 * left out, and alone, [1] or [B,1], the length of the keys; offsets that go down or too far
 * are an error on the CPU, on a GPU a document then ends where the one before does, or at the
 * end; key_blocks, i32 or i64 [B,H,T',N] with 1 for B or H, name for each of the T' blocks of
 * block_size queries the N blocks of as many keys that it sees, in any order, of what all else
 * lets it see, and -1 is none; block_size is a power of two from 16 to 1024; a number that is
 * no block is an error on the CPU, none on a GPU; dropout drops probabilities; a query that
 * sees nothing gives 0 */
typedef struct cup_attention_options {
    size_t size;
    bool causal;               /* default: false */
    double scale;              /* default: 1/sqrt[D] */
    double dropout;            /* default: 0 */
    int64_t window_left;       /* default: all keys */
    int64_t window_right;      /* default: all keys */
    double soft_cap;           /* default: none */
    bool top_left;             /* default: false */
    cup_tensor *slopes;        /* default: none */
    cup_tensor *sinks;         /* default: none */
    cup_tensor *query_offsets; /* default: none */
    cup_tensor *key_offsets;   /* default: none */
    cup_tensor *bias;          /* default: none */
    cup_tensor *key_blocks;    /* default: none */
    int block_size;            /* default: 128 */
} cup_attention_options;

CUP_API cup_tensor *cup_attention(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                                  const cup_attention_options *options);

/* (q, k, v, slopes?, sinks?, query_offsets?, key_offsets?, bias?, key_blocks?) -> o, lse:
 * attention, which gives of each query the natural logarithm of the sum of e^score over what it
 * sees as well, its sink among it: lse is [B,H,T] in f32, or in f64 as the rest, and -inf for a
 * query that sees nothing */
typedef struct cup_attention_lse_options {
    size_t size;
    bool causal;               /* default: false */
    double scale;              /* default: 1/sqrt[D] */
    double dropout;            /* default: 0 */
    int64_t window_left;       /* default: all keys */
    int64_t window_right;      /* default: all keys */
    double soft_cap;           /* default: none */
    bool top_left;             /* default: false */
    cup_tensor *slopes;        /* default: none */
    cup_tensor *sinks;         /* default: none */
    cup_tensor *query_offsets; /* default: none */
    cup_tensor *key_offsets;   /* default: none */
    cup_tensor *bias;          /* default: none */
    cup_tensor *key_blocks;    /* default: none */
    int block_size;            /* default: 128 */
} cup_attention_lse_options;

CUP_API cup_status cup_attention_lse(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                                     const cup_attention_lse_options *options, cup_tensor **o,
                                     cup_tensor **lse);

/* (qkv, slopes?, sinks?, query_offsets?, key_offsets?, bias?): attention over [B,T,W], where W
 * holds the heads of q, then kv_heads of k, then as many of v; o is [B,T,heads D]; the rest as
 * in attention */
typedef struct cup_qkv_attention_options {
    size_t size;
    int kv_heads;              /* default: heads */
    bool causal;               /* default: false */
    double scale;              /* default: 1/sqrt[D] */
    double dropout;            /* default: 0 */
    int64_t window_left;       /* default: all keys */
    int64_t window_right;      /* default: all keys */
    double soft_cap;           /* default: none */
    cup_tensor *slopes;        /* default: none */
    cup_tensor *sinks;         /* default: none */
    cup_tensor *query_offsets; /* default: none */
    cup_tensor *key_offsets;   /* default: none */
    cup_tensor *bias;          /* default: none */
} cup_qkv_attention_options;

CUP_API cup_tensor *cup_qkv_attention(cup_context *c, cup_tensor *qkv, int heads,
                                      const cup_qkv_attention_options *options);

/* (qkv, keys, values, position, slopes?, sinks?, place?): attention of the token that comes
 * next to all that were read, or to window_left of them, itself among these: qkv is [B,1,W],
 * where W holds the heads of q, then those of k, then as many of v; keys and values,
 * [B,G,length,D], take those of this token in place, and position, i32 or i64, says where, from
 * 0, for all texts or for each; what stands behind it is not read. Where the first positions
 * are kept no longer place, the same, says where among keys and values instead. With a
 * rope_base q and k are turned by their position as rope turns them that has the options named
 * so; with rope_dynamic, where a position p >= rope_original, it is rope_base [rope_factor [p +
 * 1] / rope_original - rope_factor + 1]^[D/[D-2]], and rope_factor says nothing else; soft_cap,
 * slopes and sinks are as in attention. o is [B,1,heads D]. A place that there is no room for
 * is an error on the CPU; on a GPU it gives NaN and writes nothing */
typedef struct cup_qkv_attention_read_options {
    size_t size;
    double scale;          /* default: 1/sqrt[D] */
    double rope_base;      /* default: no turning */
    double rope_factor;    /* default: 1 */
    int64_t rope_original; /* default: all */
    double rope_low;       /* default: 1 */
    double rope_high;      /* default: 4 or 32 with yarn */
    bool rope_yarn;        /* default: false */
    bool rope_untruncated; /* default: false */
    double rope_amplitude; /* default: as of rope */
    int64_t window_left;   /* default: all keys */
    double soft_cap;       /* default: none */
    bool rope_dynamic;     /* default: false */
    cup_tensor *slopes;    /* default: none */
    cup_tensor *sinks;     /* default: none */
    cup_tensor *place;     /* default: position */
} cup_qkv_attention_read_options;

CUP_API cup_tensor *cup_qkv_attention_read(cup_context *c, cup_tensor *qkv, cup_tensor *keys,
                                           cup_tensor *values, cup_tensor *position, int heads,
                                           const cup_qkv_attention_read_options *options);

/* (keys, values, k, v, lengths, table?, key_scales?, value_scales?, counts?): puts new tokens'
 * k [B,G,T,D] and v [B,G,T,E] into kept keys [P,G,S,D] and values [P,G,S,E], in place: token t
 * of sequence b is put at position lengths[b] + t of it, where lengths, i32 or i64, is one
 * number or [B], and counts, the same, says how many of the T are there. Without a table P is B
 * and sequence b has the S positions of row b; with one, i32 [B,N], position i is number i % S
 * of page table[b, i / S], and no page may be named twice. What is kept has the dtype of k, or
 * is i8, f8e4m3 or f8e5m2: with key_scales and value_scales, f32 [P,G,S] (f64 where k is), each
 * token of each head has its own, the largest size over the largest of the dtype, and without
 * them numbers are kept as they are. Tokens that there is no room for are an error on the CPU;
 * on a GPU none of that sequence is written */
typedef struct cup_kv_append_options {
    size_t size;
    cup_tensor *table;        /* default: none */
    cup_tensor *key_scales;   /* default: none */
    cup_tensor *value_scales; /* default: none */
    cup_tensor *counts;       /* default: none */
} cup_kv_append_options;

CUP_API cup_status cup_kv_append(cup_context *c, cup_tensor *keys, cup_tensor *values,
                                 cup_tensor *k, cup_tensor *v, cup_tensor *lengths,
                                 const cup_kv_append_options *options);

/* (q, keys, values, lengths, table?, key_scales?, value_scales?, counts?, sinks?): attention of
 * new tokens, q [B,H,T,D], to the keys [P,G,S,D] and values [P,G,S,E] that kv_append put there,
 * where G divides H: token t of sequence b stands at position lengths[b] + t and sees all up to
 * its own, or window_left of them; the rest as in kv_append, with the same lengths, and as in
 * attention. o is [B,H,T,E]; tokens from counts[b] on give 0. A sequence without room for its
 * tokens is an error on the CPU, NaN on a GPU */
typedef struct cup_kv_attention_options {
    size_t size;
    double scale;             /* default: 1/sqrt[D] */
    int64_t window_left;      /* default: all keys */
    double soft_cap;          /* default: none */
    cup_tensor *table;        /* default: none */
    cup_tensor *key_scales;   /* default: none */
    cup_tensor *value_scales; /* default: none */
    cup_tensor *counts;       /* default: none */
    cup_tensor *sinks;        /* default: none */
} cup_kv_attention_options;

CUP_API cup_tensor *cup_kv_attention(cup_context *c, cup_tensor *q, cup_tensor *keys,
                                     cup_tensor *values, cup_tensor *lengths,
                                     const cup_kv_attention_options *options);

/* (x, positions?): x, [B,H,T,D], with pairs of the first features of each row turned by an
 * angle: pair i by base^[-2 i / features] times its position, which is offset + t, and
 * positions, i32 or i64, one number for all or [B], are added to that; pairs are i and i +
 * features/2, or 2 i and 2 i + 1 when interleaved; heads says how many of the first heads are
 * turned; inverse turns back. A factor divides what positions are multiplied by; with original,
 * a number of positions, wholly for pairs that turn round up to low times within these, not for
 * those that do so high times, and in part between: by how often they do, or with yarn by the
 * pair's number, as published YaRNs have it, from the last whole pair before those of high to
 * the first behind those of low, or untruncated from place to place. Cosines and sines are
 * multiplied by amplitude, turned back as well; with yarn it is 0.1 log[factor] + 1 by default */
typedef struct cup_rope_options {
    size_t size;
    double base;           /* default: 10000 */
    int64_t offset;        /* default: 0 */
    int features;          /* default: all features */
    int heads;             /* default: all heads */
    bool interleaved;      /* default: false */
    bool inverse;          /* default: false */
    double factor;         /* default: 1 */
    int64_t original;      /* default: all */
    double low;            /* default: 1 */
    double high;           /* default: 4 or 32 with yarn */
    bool yarn;             /* default: false */
    bool untruncated;      /* default: false */
    double amplitude;      /* default: 1 unless yarn */
    cup_tensor *positions; /* default: none */
} cup_rope_options;

CUP_API cup_tensor *cup_rope(cup_context *c, cup_tensor *x, const cup_rope_options *options);

/* Matrix products */

/* (a, b): the product of the last two dimensions, [..,M,K] by [..,K,N], each first transposed
 * where asked; leading dimensions broadcast */
CUP_API cup_tensor *cup_matmul(cup_context *c, cup_tensor *a, cup_tensor *b, bool transpose_a,
                               bool transpose_b);

/* (x, weight, bias?) -> y: x weight^T + bias for x [..,K], weight [N,K], bias [N] */
CUP_API cup_tensor *cup_linear(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *bias);

/* (x, weight, bias?): gelu(linear(x, weight, bias)) in one pass */
CUP_API cup_tensor *cup_linear_gelu(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                    cup_tensor *bias);

/* (x): x / scale in f8e4m3, f8e5m2 or i8, where each block of the rows [all dimensions but the
 * last] and columns has its own scale, in f32: its largest size over the largest of the dtype;
 * without both there is one block, else blocks are 1 row of all columns, or 1 or 128 rows of
 * 128 columns */
typedef struct cup_quantize_options {
    size_t size;
    int block_rows;    /* default: all rows */
    int block_columns; /* default: all columns */
} cup_quantize_options;

CUP_API cup_status cup_quantize(cup_context *c, cup_tensor *x, cup_dtype dtype,
                                const cup_quantize_options *options, cup_tensor **y,
                                cup_tensor **scale);

/* (x, scale) -> y: x times scale, which quantize made, in the dtype */
CUP_API cup_tensor *cup_dequantize(cup_context *c, cup_tensor *x, cup_tensor *scale,
                                   cup_dtype dtype);

/* (a, b, a_scale?, b_scale?, bias?): a b^T + bias in the dtype, for a [..,K] and b [N,K] in
 * f8e4m3, f8e5m2 or i8, which stand for their elements times their scales, in the shapes of
 * quantize; bias [N] in the dtype; fast_accumulation lets tensor cores keep 14 bits of the sums
 * of f8; sums of i8 are exact, and i32 takes them without scales */
CUP_API cup_tensor *cup_scaled_matmul(cup_context *c, cup_tensor *a, cup_tensor *b,
                                      cup_tensor *a_scale, cup_tensor *b_scale, cup_tensor *bias,
                                      cup_dtype dtype, bool fast_accumulation);

/* (q, k, v, q_scale?, k_scale?, v_scale?): attention in the dtype, for q [B,H,T,D] and k and v
 * [B,G,S,D] in f8e4m3, which stand for their elements times their scales: [B,H] for q, [B,G]
 * for k and v, in f32, with 1 for any of these where batches or heads are alike; the rest as in
 * attention; tensor cores that multiply codes round probabilities, times a power of two, to
 * f8e4m3 as well, by up to 2^-4 of each; it has no gradient */
typedef struct cup_scaled_attention_options {
    size_t size;
    bool causal;          /* default: false */
    double scale;         /* default: 1/sqrt[D] */
    int64_t window_left;  /* default: all keys */
    int64_t window_right; /* default: all keys */
} cup_scaled_attention_options;

CUP_API cup_tensor *cup_scaled_attention(cup_context *c, cup_tensor *q, cup_tensor *k,
                                         cup_tensor *v, cup_tensor *q_scale, cup_tensor *k_scale,
                                         cup_tensor *v_scale, cup_dtype dtype,
                                         const cup_scaled_attention_options *options);

/* (x...): for each three matrices a, b, y of the list, y becomes the product of [M,K] by [K,N],
 * each first transposed where asked; one launch for as many as 64 */
CUP_API cup_status cup_matmul_list(cup_context *c, cup_tensor *const *x, int x_count,
                                   bool transpose_a, bool transpose_b);

/* (x, weight, offsets): rows of x [M,K], in groups of neighbours, times one matrix of weight
 * [G,K,N] each, or [G,N,K] transposed; group g ends before row offsets[g], and begins where the
 * one before it ended; rows after the last group give 0. Offsets that go down or beyond the
 * rows are an error on the CPU; on a GPU a group then ends where the one before it does, or
 * with the last row */
CUP_API cup_tensor *cup_grouped_matmul(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                       cup_tensor *offsets, bool transpose_weight);

/* (x, weight, bias?, residual?): dropout(linear(x, weight, bias), p) in one pass, added to
 * residual where there is one */
CUP_API cup_tensor *cup_linear_dropout(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                       cup_tensor *bias, cup_tensor *residual, double p);

/* (x, weight, scale, bias?): linear(x, weight, bias), or gelu of it, over scale, one f32, in
 * f8e4m3 or f8e5m2, in one pass, with the ends of the dtype for what lies beyond them; most
 * [1,1], in f32, is the largest size before, of which the next scale is made, or NaN when there
 * is one */
CUP_API cup_status cup_linear_quantize(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                       cup_tensor *scale, cup_tensor *bias, cup_dtype dtype,
                                       bool gelu, cup_tensor **y, cup_tensor **most);

/* (x, weight, offsets, x_scale?, weight_scale?): grouped_matmul of rows of x [M,K] and
 * transposed matrices of weight [G,N,K] in f8e4m3, f8e5m2 or i8, as scaled_matmul multiplies
 * them; x_scale in the shapes of quantize for all rows, weight_scale one, [G], or [G,..,..]
 * with the shapes of quantize for one matrix behind */
CUP_API cup_tensor *cup_scaled_grouped_matmul(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                              cup_tensor *offsets, cup_tensor *x_scale,
                                              cup_tensor *weight_scale, cup_dtype dtype,
                                              bool fast_accumulation);

/* (x, weight, bias?) -> y: relu(linear(x, weight, bias)) in one pass */
CUP_API cup_tensor *cup_linear_relu(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                    cup_tensor *bias);

/* (x, weight, bias?): silu(linear(x, weight, bias)) in one pass */
CUP_API cup_tensor *cup_linear_silu(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                    cup_tensor *bias);

/* (x, weight, bias?): silu(gate) up in one pass, where linear(x, weight, bias) is gate and up
 * side by side: weight is [2N,K], bias [2N] */
CUP_API cup_tensor *cup_linear_swiglu(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                      cup_tensor *bias);

/* (x, weight, residual, bias?): linear(x, weight, bias) + residual in one pass; residual has
 * the shape of y */
CUP_API cup_tensor *cup_linear_add(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                   cup_tensor *residual, cup_tensor *bias);

/* (a, b) -> y: factor times matmul(a, b) */
typedef struct cup_matmul_scaled_options {
    size_t size;
    bool transpose_a; /* default: false */
    bool transpose_b; /* default: false */
} cup_matmul_scaled_options;

CUP_API cup_tensor *cup_matmul_scaled(cup_context *c, cup_tensor *a, cup_tensor *b, double factor,
                                      const cup_matmul_scaled_options *options);

/* (y, a, b): writes matmul(a, b) into y, whatever was there; y has the dtype of a and b, or
 * f32, which then takes the sums as they are */
CUP_API cup_status cup_matmul_into(cup_context *c, cup_tensor *y, cup_tensor *a, cup_tensor *b,
                                   bool transpose_a, bool transpose_b);

/* (y, a, b): adds matmul(a, b) to y in place; y has the dtype of a and b, or f32 */
CUP_API cup_status cup_matmul_add(cup_context *c, cup_tensor *y, cup_tensor *a, cup_tensor *b,
                                  bool transpose_a, bool transpose_b);

/* (x, weight, scale, bias?) -> y: x w^T + bias for x [..,K] and w = scale weight, where weight
 * [N,K] is i8 and each scale of [N,G] is for K / G elements of a row */
CUP_API cup_tensor *cup_linear_int8(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                    cup_tensor *scale, cup_tensor *bias);

/* (x, weight, scale, zero?, bias?): the same for weight [N,K/2] of u8, two numbers from 0 to 15
 * a byte, the lower half first, and w = scale (number - zero); zero is u8 [N,G], or 8 where it
 * is left out */
CUP_API cup_tensor *cup_linear_int4(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                    cup_tensor *scale, cup_tensor *zero, cup_tensor *bias);

/* (w): weight and scale of linear_int8 for w [N,K], a scale for group elements of a row; 0 is a
 * whole row */
CUP_API cup_status cup_pack_int8(cup_context *c, cup_tensor *w, int group, cup_tensor **weight,
                                 cup_tensor **scale);

/* (w): weight, scale and zero of linear_int4 for w [N,K]; symmetric ones have a zero of 8 */
CUP_API cup_status cup_pack_int4(cup_context *c, cup_tensor *w, int group, bool symmetric,
                                 cup_tensor **weight, cup_tensor **scale, cup_tensor **zero);

/* (weight, scale) -> w: the w of linear_int8 */
CUP_API cup_tensor *cup_unpack_int8(cup_context *c, cup_tensor *weight, cup_tensor *scale,
                                    cup_dtype dtype);

/* (weight, scale, zero?) -> w: the w of linear_int4 */
CUP_API cup_tensor *cup_unpack_int4(cup_context *c, cup_tensor *weight, cup_tensor *scale,
                                    cup_tensor *zero, cup_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
