/* Fourier transforms of real numbers, of which one half says it all. */
#include "nn/functions.h"

cup_tensor *cup_rfft(cup_context *c, cup_tensor *x, int axis)
{
    int at;
    int64_t shape[CUP_MAX_DIMS], none[CUP_MAX_DIMS] = {0}, after[CUP_MAX_DIMS] = {0};
    if (!cup__function_begin(c, "rfft", x) ||
        !cup__function_axis(c, "rfft", x->ndim, axis, &at))
        return NULL;
    if (x->ndim == CUP_MAX_DIMS) {
        cup_fail(c, CUP_SHAPE, "rfft: there is no room for a dimension of pairs");
        return NULL;
    }
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[d];
    shape[x->ndim] = after[x->ndim] = 1;
    int ndim = x->ndim + 1;
    cup_tensor *pairs = cup_pad(c, cup_reshape(c, x, ndim, shape), none, ndim, after, ndim, NULL);
    cup_tensor *y = cup_fft(c, pairs, at, false);
    return y ? cup__part(c, y, at, 0, shape[at] / 2 + 1) : NULL;
}

/* What lies beyond the half is conjugate complex to it, so that it adds the real part once more;
 * but the first number, and the last for an even n, stand alone. */
static cup_tensor *completed(cup_context *c, cup_tensor *x, int64_t n, int axis)
{
    int64_t alone = n % 2 == 0, both = x->shape[axis] - 1 - alone;
    int64_t shape[CUP_MAX_DIMS], none[CUP_MAX_DIMS] = {0}, after[CUP_MAX_DIMS] = {0};
    for (int d = 0; d < x->ndim; d++)
        shape[d] = d == axis ? x->shape[d] : 1;
    after[axis] = n - x->shape[axis];
    cup_tensor *weights = cup_pad(c, cup_full(c, x->dtype, 1, &both, 2), (int64_t[]){1}, 1, &alone,
                                  1, CUP_OPTIONS(cup_pad_options, .value = 1));
    cup_tensor *y = cup_mul(c, x, cup_reshape(c, weights, x->ndim, shape));
    return cup_pad(c, y, none, x->ndim, after, x->ndim, NULL);
}

cup_tensor *cup_irfft(cup_context *c, cup_tensor *x, int64_t n, int axis)
{
    int at;
    if (!cup__function_begin(c, "irfft", x) ||
        !cup__function_axis(c, "irfft", x->ndim, axis, &at))
        return NULL;
    int last = x->ndim - 1;
    if (at == last || x->shape[last] != 2 || n < 1 || x->shape[at] != n / 2 + 1 ||
        !cup__dtype_is_float(x->dtype)) {
        cup_fail(c, CUP_SHAPE,
                 "irfft: of %lld numbers x must have %lld pairs along the axis, which lie along "
                 "the last dimension",
                 (long long)n, (long long)(n < 0 ? 0 : n / 2 + 1));
        return NULL;
    }
    cup_tensor *y = cup_fft(c, completed(c, x, n, at), at, true);
    return y ? cup_reshape(c, cup__part(c, y, last, 0, 1), last, y->shape) : NULL;
}
