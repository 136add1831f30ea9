#include "dispatch/loop.h"

#include <string.h>

#include "dispatch/op.h"

static bool can_merge(const cup__loop *loop, int outer, int inner)
{
    for (int k = 0; k < loop->tensors; k++)
        if (loop->stride[k][outer] != loop->stride[k][inner] * loop->size[inner])
            return false;
    return true;
}

static void merge(cup__loop *loop)
{
    int kept = 0;
    for (int i = 1; i < loop->ndim; i++) {
        if (loop->size[kept] == 1 || can_merge(loop, kept, i)) {
            loop->size[kept] *= loop->size[i];
        } else if (loop->size[i] == 1) {
            continue;
        } else {
            loop->size[++kept] = loop->size[i];
        }
        for (int k = 0; k < loop->tensors; k++)
            loop->stride[k][kept] = loop->stride[k][i];
    }
    loop->ndim = kept + 1;
}

void cup__loop_make(cup__loop *loop, const cup_tensor *result, cup_tensor *const *in, int in_count)
{
    loop->ndim = result->ndim ? result->ndim : 1;
    loop->tensors = in_count + 1;
    loop->count = result->count;
    loop->size[0] = 1;
    for (int k = 0; k < loop->tensors; k++)
        loop->stride[k][0] = 0;
    for (int i = 0; i < result->ndim; i++) {
        loop->size[i] = result->shape[i];
        loop->stride[0][i] = result->stride[i];
        for (int k = 0; k < in_count; k++) {
            int at = i - (result->ndim - in[k]->ndim);
            bool repeated = at < 0 || in[k]->shape[at] == 1;
            loop->stride[k + 1][i] = repeated ? 0 : in[k]->stride[at];
        }
    }
    merge(loop);
}

static void swap_dimensions(cup__loop *loop, int i, int j)
{
    int64_t size = loop->size[i];
    loop->size[i] = loop->size[j];
    loop->size[j] = size;
    for (int k = 0; k < loop->tensors; k++) {
        int64_t stride = loop->stride[k][i];
        loop->stride[k][i] = loop->stride[k][j];
        loop->stride[k][j] = stride;
    }
}

void cup__loop_sort(cup__loop *loop)
{
    for (int i = 1; i < loop->ndim; i++)
        for (int j = i; j > 0 && loop->stride[0][j - 1] < loop->stride[0][j]; j--)
            swap_dimensions(loop, j - 1, j);
    merge(loop);
}

bool cup__loop_fits(const cup__loop *loop)
{
    for (int k = 0; k < loop->tensors; k++) {
        int64_t span = 1;
        for (int d = 0; d < loop->ndim; d++) {
            int64_t stride = loop->stride[k][d];
            span += (loop->size[d] - 1) * (stride < 0 ? -stride : stride);
        }
        if (span > INT32_MAX)
            return false;
    }
    return loop->count <= INT32_MAX;
}

/* Halves the outermost dimension until the parts fit. */
static cup_status parts(const cup__loop *loop, const int64_t *offset, cup__loop_body body,
                        void *user)
{
    if (cup__loop_fits(loop))
        return body(loop, offset, user);
    int d = 0;
    while (d < loop->ndim - 1 && loop->size[d] == 1)
        d++;
    int64_t half = (loop->size[d] + 1) / 2;
    if (half > 4096)
        half = (half + 4095) / 4096 * 4096; /* leaves both halves aligned */
    cup__loop part = *loop;
    part.size[d] = half;
    part.count = loop->count / loop->size[d] * half;
    CUP_TRY(parts(&part, offset, body, user));
    int64_t begin[CUP__LOOP_MOST];
    for (int k = 0; k < loop->tensors; k++)
        begin[k] = offset[k] + half * loop->stride[k][d];
    part.size[d] = loop->size[d] - half;
    part.count = loop->count - part.count;
    return parts(&part, begin, body, user);
}

cup_status cup__loop_parts(const cup__loop *loop, cup__loop_body body, void *user)
{
    const int64_t offset[CUP__LOOP_MOST] = {0};
    return parts(loop, offset, body, user);
}

int64_t cup__loop_offset(const cup__loop *loop, int k, int64_t row)
{
    int64_t offset = 0;
    for (int i = loop->ndim - 2; i >= 0; i--) {
        offset += row % loop->size[i] * loop->stride[k][i];
        row /= loop->size[i];
    }
    return offset;
}

cup_status cup__broadcast_shape(cup__call *call, int first, int count, cup__shape *out)
{
    out->ndim = 0;
    for (int k = first; k < first + count; k++)
        if (call->in[k]->ndim > out->ndim)
            out->ndim = call->in[k]->ndim;
    for (int i = 0; i < out->ndim; i++) {
        out->size[i] = 1;
        for (int k = first; k < first + count; k++) {
            int at = i - (out->ndim - call->in[k]->ndim);
            int64_t size = at < 0 ? 1 : call->in[k]->shape[at];
            if (size == 1 || size == out->size[i])
                continue;
            if (out->size[i] != 1)
                return cup__call_fail(call, CUP_SHAPE,
                                      "sizes %lld and %lld do not broadcast; sizes must be equal "
                                      "or 1, compared from the last dimension",
                                      (long long)out->size[i], (long long)size);
            out->size[i] = size;
        }
    }
    return CUP_OK;
}
