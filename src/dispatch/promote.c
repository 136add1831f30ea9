/* Inputs of unlike dtypes are brought to the one that holds the numbers of all of them. */
#include "base/memory.h"
#include "cupola/ops.h"
#include "dispatch/call.h"

static bool shares(const cup__op *op, cup_tensor *const *in, int i)
{
    return in[i] && op->promotes >> (i < 31 ? i : 31) & 1;
}

bool cup__inputs_unlike(const cup__row *row, cup_tensor *const *in, int in_count)
{
    const cup_tensor *first = NULL;
    if (!row->is_public || !row->op->promotes || !in)
        return false;
    for (int i = 0; i < in_count; i++) {
        if (!shares(row->op, in, i))
            continue;
        first = first ? first : in[i];
        if (in[i]->dtype != first->dtype)
            return true;
    }
    return false;
}

/* 8-bit floats are codes, which a scale makes numbers. */
static bool is_real(cup_dtype dtype)
{
    return cup__dtype_is_float(dtype) && cup_dtype_size(dtype) > 1;
}

static bool is_integer(cup_dtype dtype)
{
    return dtype == CUP_U8 || dtype == CUP_I8 || dtype == CUP_I32 || dtype == CUP_I64;
}

/* As NumPy does, but where that rounds, which it does to i64 beside floats; there is no i16 for u8
 * and i8. */
static bool common_of(cup_dtype a, cup_dtype b, cup_dtype *to)
{
    int64_t own = cup_dtype_size(a), other = cup_dtype_size(b);
    if (a == b || b == CUP_BOOL) {
        *to = a;
    } else if (a == CUP_BOOL) {
        *to = b;
    } else if (is_integer(a) && is_integer(b)) {
        *to = own == other ? CUP_I32 : own > other ? a : b;
    } else if (is_real(a) && is_real(b)) {
        *to = own == other ? CUP_F32 : own > other ? a : b;
    } else {
        cup_dtype real = is_integer(a) ? b : a, whole = is_integer(a) ? a : b;
        if (!is_real(real) || !is_integer(whole) || whole == CUP_I64)
            return false;
        *to = whole == CUP_I32 ? CUP_F64 : real;
    }
    return true;
}

static cup_status find_common(cup_context *c, const cup__row *row, cup_tensor *const *in,
                              int in_count, cup_dtype *to)
{
    const cup_tensor *first = NULL;
    for (int i = 0; i < in_count; i++) {
        if (!shares(row->op, in, i))
            continue;
        cup_dtype before = first ? *to : in[i]->dtype;
        first = first ? first : in[i];
        if (!common_of(before, in[i]->dtype, to))
            return cup_fail(c, CUP_DTYPE,
                            "%s: no dtype holds all numbers of both %s and %s; convert one with "
                            "cup_cast",
                            row->name, cup_dtype_name(before), cup_dtype_name(in[i]->dtype));
    }
    return CUP_OK;
}

cup_tensor *cup__op_promoted(cup_context *c, const cup__row *row, cup_tensor *const *in,
                             int in_count, const void *attributes, cup_tensor **out)
{
    cup_dtype to = CUP_F32;
    if (c->error.status != CUP_OK || find_common(c, row, in, in_count, &to) != CUP_OK)
        return NULL;
    cup_tensor **like = cup__calloc((size_t)in_count, sizeof *like), *y = NULL;
    if (!like) {
        cup_fail(c, CUP_MEMORY, "%s: out of host memory", row->name);
        return NULL;
    }
    for (int i = 0; i < in_count; i++) {
        bool other = shares(row->op, in, i) && in[i]->dtype != to && in[i]->context == c;
        like[i] = other ? cup_cast(c, in[i], to) : in[i];
    }
    if (c->error.status == CUP_OK)
        y = cup__op_call(c, row, like, in_count, attributes, out);
    for (int i = 0; i < in_count; i++)
        if (like[i] != in[i])
            cup_tensor_free(like[i]);
    cup__free(like);
    return y;
}
