/* Dropout on the GPU, forward and backward. */
#include "cuda/cuda.h"
#include "ops/random/dropout.h"

/* The most of 8 neighbours that one access may have to all of the tensors. */
static int width_of(const void *const *tensors, int count, int size)
{
    int width = 16 / size > 8 ? 8 : 16 / size;
    for (int i = 0; i < count; i++)
        while (width > 1 && (uintptr_t)tensors[i] % (uintptr_t)(width * size))
            width /= 2;
    return width;
}

cup_status cup__dropout_cuda(cup__call *call)
{
    cup_tensor *out = call->out[0];
    bool backward = call->in[call->in_count - 1]->dtype == CUP_U8;
    cup_tensor *x = backward ? call->in[0] : call->in[call->in_count - 1];
    const void *residual = call->in_count > 1 && !backward ? call->in[0]->data : NULL;
    void *mask = backward ? call->in[1]->data : call->out_count > 1 ? call->out[1]->data : NULL;
    const void *tensors[] = {x->data, out->data, residual};
    int size = (int)cup_dtype_size(out->dtype);
    cup__dropout dropout = cup__dropout_of(call);
    int unroll = size <= 2 && out->count > 1 << 20 ? 4 : 1;
    cup__knob knobs[] = {{"CUP_T", out->dtype},       {"UNROLL", unroll},
                         {"ADD", residual != NULL},   {"SAVE", mask != NULL},
                         {"WIDTH", width_of(tensors, residual ? 3 : 2, size)},
                         {backward ? "GRAD" : "PARTS", 1}};
    cup__dropout_parts parts = backward ? (cup__dropout_parts){0} : cup__dropout_parts_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel =
        cup__kernel_get(gpu, "dropout.cu", backward ? "dropout_bwd" : "dropout_fwd", knobs,
                        5 + (backward || parts.stretch));
    if (!kernel)
        return call->c->error.status;
    int64_t block = 256 * 8 * unroll;
    cup__grid grid = {.x = (out->count + block - 1) / block, .threads = 256};
    return cup__launch(gpu, kernel, grid, CUP__ARG(out->data), CUP__ARG(mask), CUP__ARG(x->data),
                       CUP__ARG(residual), CUP__ARG(call->random), CUP__ARG(call->sequence),
                       CUP__ARG(dropout.threshold), CUP__ARG(dropout.rest),
                       CUP__ARG(dropout.scale), CUP__ARG(out->count), CUP__ARG(parts));
}
