/* The host side of quantize.cu and dequantize.cu. */
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "dispatch/rows.h"
#include "ops/lowbit/scaled.h"

#define THREADS 256
#define BLOCKS_EACH 8 /* of a multiprocessor, where a kernel strides over everything */

/* Elements at once: whole vectors of rows, of x and of codes. */
static int vector_of(const cup_tensor *x, const cup_tensor *y, int64_t columns)
{
    int vec = cup__row_vec(x, columns, 8), other = cup__row_vec(y, columns, 8);
    return vec < other ? vec : other;
}

static cup__kernel *kernel_of(cup__call *call, const char *entry, int vec)
{
    cup_dtype to = ((const cup__quantize_attributes *)call->attributes)->dtype;
    cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype}, {"Y_T", to}, {"VEC", vec}};
    return cup__kernel_get(cup__cuda_of(call->c->device), "quantize.cu", entry, knobs, 3);
}

static cup_status run_all(cup__call *call, int vec)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    long long count = call->in[0]->count;
    int64_t most = (int64_t)cup__cuda_facts(gpu)->multiprocessors * BLOCKS_EACH;
    int64_t blocks = (count + THREADS * vec - 1) / (THREADS * vec);
    blocks = blocks < most ? blocks : most;
    blocks = blocks > 0 ? blocks : 1; /* no elements have a scale too */
    cup__kernel *first = kernel_of(call, "quantize_most", vec);
    cup__kernel *second = first ? kernel_of(call, "quantize_all", vec) : NULL;
    cup__shape shape = {.dtype = CUP_F32, .ndim = 1, .size = {blocks}};
    cup_tensor *partial = second ? cup__tensor_make(c, &shape, "largest sizes") : NULL;
    if (!partial)
        return c->error.status;
    const void *x = call->in[0]->data, *parts = partial->data;
    void *y = call->out[0]->data, *scale = call->out[1]->data;
    int partials = (int)blocks;
    cup__grid grid = {.x = blocks, .threads = THREADS};
    cup_status status =
        cup__launch(gpu, first, grid, CUP__ARG(x), CUP__ARG(parts), CUP__ARG(count));
    if (status == CUP_OK)
        status = cup__launch(gpu, second, grid, CUP__ARG(x), CUP__ARG(y), CUP__ARG(scale),
                             CUP__ARG(parts), CUP__ARG(partials), CUP__ARG(count));
    cup_tensor_free(partial);
    return status;
}

cup_status cup__quantize_cuda(cup__call *call)
{
    const cup__quantize_attributes *t = call->attributes;
    cup__quantize_blocks b = cup__quantize_blocks_of(call);
    int vec = vector_of(call->in[0], call->out[0], b.columns);
    const void *x = call->in[0]->data;
    void *y = call->out[0]->data, *scale = call->out[1]->data;
    long long rows = b.rows, columns = b.columns;
    if (t->block_rows == 0)
        return run_all(call, vec);
    const char *entry = t->block_columns == 0 ? "quantize_rows"
                        : t->block_rows == 1  ? "quantize_runs"
                                              : "quantize_tiles";
    int64_t runs_each = THREADS / (PRODUCT_SCALE_DEPTH / vec < 32 ? PRODUCT_SCALE_DEPTH / vec : 32);
    cup__grid grid = {.threads = THREADS, .x = b.down * b.across};
    if (t->block_rows == 1 && t->block_columns)
        grid.x = (b.down * b.across + runs_each - 1) / runs_each;
    cup__kernel *kernel = kernel_of(call, entry, vec);
    if (!kernel)
        return call->c->error.status;
    long long scale_row = call->out[1]->stride[0], scale_column = call->out[1]->stride[1];
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    if (t->block_rows == 1 && t->block_columns)
        return cup__launch(gpu, kernel, grid, CUP__ARG(x), CUP__ARG(y), CUP__ARG(scale),
                           CUP__ARG(rows), CUP__ARG(columns), CUP__ARG(scale_row),
                           CUP__ARG(scale_column));
    return cup__launch(gpu, kernel, grid, CUP__ARG(x), CUP__ARG(y), CUP__ARG(scale), CUP__ARG(rows),
                       CUP__ARG(columns));
}

cup_status cup__dequantize_cuda(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup_tensor *x = call->in[0], *y = call->out[0];
    cup__scale_layout s;
    CUP_TRY(cup__scale_layout_of(call, 0, 1, &s));
    int vec = vector_of(x, y, s.columns);
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"Y_T", y->dtype}, {"VEC", vec}};
    cup__kernel *kernel = cup__kernel_get(gpu, "dequantize.cu", "dequantize_fwd", knobs, 3);
    if (!kernel)
        return call->c->error.status;
    const void *from = x->data;
    void *to = y->data;
    product_scale scale = {.data = call->in[1]->data, .line = s.line, .k = s.k, .shift = s.shift};
    long long count = x->count, columns = s.columns;
    cup__grid grid = {.x = (count / vec + THREADS - 1) / THREADS, .threads = THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(from), CUP__ARG(to), CUP__ARG(scale),
                       CUP__ARG(count), CUP__ARG(columns));
}
