/* Functions of small matrices. */
#include "nn/functions.h"

#include "cupola/grad.h"

static bool squares(cup_context *c, const char *name, const cup_tensor *a)
{
    if (!cup__function_begin(c, name, a))
        return false;
    if (a->ndim >= 2 && a->shape[a->ndim - 1] == a->shape[a->ndim - 2])
        return true;
    cup_fail(c, CUP_SHAPE, "%s: a must be matrices [..,N,N]", name);
    return false;
}

cup_tensor *cup_inverse(cup_context *c, cup_tensor *a)
{
    if (!squares(c, "inverse", a))
        return NULL;
    int64_t n = a->shape[a->ndim - 1];
    cup_tensor *one = cup_eye(c, a->dtype, n, n, NULL);
    return cup_solve(c, a, cup_broadcast(c, one, a->ndim, a->shape), 0);
}

static cup_tensor *turned(cup_context *c, cup_tensor *t)
{
    int64_t axes[CUP_MAX_DIMS];
    for (int d = 0; t && d < t->ndim; d++)
        axes[d] = d < t->ndim - 2 ? d : 2 * t->ndim - 3 - d;
    return t ? cup_permute(c, t, axes, t->ndim) : NULL;
}

/* Raised by their norm, no value is below 0, so that values and vectors are the singular ones. */
cup_status cup_eigh(cup_context *c, cup_tensor *a, cup_tensor **values, cup_tensor **vectors)
{
    static const int64_t last[] = {-2, -1};
    cup_tensor *u, *s, *vt;
    if (!squares(c, "eigh", a))
        return cup_error(c);
    if (!values || !vectors)
        return cup_fail(c, CUP_ARGUMENT, "eigh: there is no place for values and vectors");
    int64_t n = a->shape[a->ndim - 1], shape[CUP_MAX_DIMS];
    cup_tensor *even = cup_scale(c, cup_add(c, a, turned(c, a)), 0.5);
    cup_tensor *by = cup_norm(c, cup_detach(even), last, 2, true);
    cup_tensor *raised = cup_add(c, even, cup_mul(c, by, cup_eye(c, a->dtype, n, n, NULL)));
    if (!raised || cup_svd(c, raised, &u, &s, &vt) != CUP_OK)
        return cup_error(c);
    for (int d = 0; d < a->ndim - 1; d++)
        shape[d] = d < a->ndim - 2 ? a->shape[d] : 1;
    *values = cup_sub(c, cup_flip(c, s, last + 1, 1), cup_reshape(c, by, a->ndim - 1, shape));
    *vectors = turned(c, cup_flip(c, vt, last, 1));
    return cup_error(c);
}
