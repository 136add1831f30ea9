#include "ops/shape/diagonal.h"

static divisor small_divisor(int64_t size)
{
    return divisor_of(size > 0 && size < INT32_MAX ? size : 1);
}

diagonal_call cup__diagonal_call(const cup_tensor *y, const cup_tensor *x, int64_t diagonal)
{
    int64_t rows = y->shape[y->ndim - 2], columns = y->shape[y->ndim - 1];
    return (diagonal_call){.y = y->data,
                           .x = x ? x->data : NULL,
                           .count = y->count,
                           .rows = rows,
                           .columns = columns,
                           .diagonal = diagonal,
                           .rows_small = small_divisor(rows),
                           .columns_small = small_divisor(columns)};
}

cup_status cup__diagonal_launch(cup__call *call, const char *source, const char *entry,
                                const diagonal_call *argument, bool upper)
{
    int size = (int)cup_dtype_size(call->out[0]->dtype);
    bool aligned = ((uintptr_t)argument->y | (uintptr_t)argument->x) % 16 == 0;
    int vec = aligned ? 16 / size : 1;
    /* A vector's first element may lie just below the count, and so must be countable. */
    bool wide = argument->count > INT32_MAX - 16;
    cup__knob knobs[] = {{"SIZE", size}, {"VEC", vec}, {"WIDE", wide}, {"UPPER", upper}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, source, entry, knobs, 4);
    if (!kernel)
        return call->c->error.status;
    int64_t block = (int64_t)DIAGONAL_THREADS * vec;
    cup__grid grid = {.x = (argument->count + block - 1) / block, .threads = DIAGONAL_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*argument));
}
