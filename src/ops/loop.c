#include "ops/loop.h"

#include <string.h>

#include "ops/op.h"

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
