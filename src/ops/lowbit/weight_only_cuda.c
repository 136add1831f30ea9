/* The host side of weight_only.cu. */
#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/lowbit/pack_weight.h"
#include "ops/matmul/product_state.h"
#include "ops/lowbit/weight_only_skinny.h"

#define PRODUCTS_PLAIN (INT64_C(1) << 22) /* more are done sooner with the weights unpacked */

static int64_t rows_of(const cup__call *call)
{
    const cup__shape *y = &call->result[0];
    int64_t rows = 1;
    for (int i = 0; i < y->ndim - 1; i++)
        rows *= y->size[i];
    return rows;
}

static packed_call weights_of(const cup__packed *w)
{
    return (packed_call){.weight = w->weight->data,
                         .scale = w->scale->data,
                         .zero = w->zero ? w->zero->data : NULL,
                         .n = w->n,
                         .k = w->k,
                         .groups = w->groups,
                         .group = w->group};
}

static product_call product_of(const cup__call *call, const cup__packed *w)
{
    const cup_tensor *bias = call->in[call->in_count - 1];
    return (product_call){.a = call->in[0]->data,
                          .b = w->weight->data,
                          .bias = bias ? bias->data : NULL,
                          .y = call->out[0]->data,
                          .m = rows_of(call),
                          .n = w->n,
                          .k = w->k,
                          .a_mn = w->k,
                          .b_mn = w->k * w->bits / 8,
                          .y_row = w->n,
                          .batch_count = 1};
}

const char *cup__linear_packed_refuses(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    cup__packed w = cup__packed_of(call, 1);
    if (!cup__rows_packed_can(call->c, x->dtype))
        return "it is for bf16 and f16 on tensor cores from Ampere on";
    if (rows_of(call) > CUP__ROWS_PACKED_MOST)
        return "it is for a handful of rows";
    if (w.k == 0 || w.k * w.bits % 128 || w.group * w.bits % 128)
        return "rows of weight or their groups are not whole pieces of 16 bytes";
    if ((uintptr_t)x->data % 16 || (uintptr_t)w.weight->data % 16)
        return "an input does not start at a multiple of 16 bytes";
    return NULL;
}

cup_status cup__linear_packed_cuda(cup__call *call)
{
    cup__packed w = cup__packed_of(call, 1);
    product_call product = product_of(call, &w);
    packed_call weights = weights_of(&w);
    return cup__rows_packed(call->c, call->in[0]->dtype, w.bits, w.scale->dtype, 0, &product,
                            &weights);
}

const char *cup__linear_stream_refuses(const cup__call *call)
{
    if (cup__cuda_facts(cup__cuda_of(call->c->device))->major != 9)
        return "it is for Hopper (sm_90)";
    cup__packed w = cup__packed_of(call, 1);
    if (rows_of(call) > CUP__ROWS_PACKED_MOST)
        return "it is for a handful of rows";
    if (w.groups > 1 && cup__shift_of(w.group) < 0)
        return "the numbers of a group are no power of two";
    if (w.n > CUP__ROWS_STREAM_SIDE || w.k > CUP__ROWS_STREAM_SIDE)
        return "the weights are too large";
    return cup__linear_packed_refuses(call);
}

cup_status cup__linear_stream_cuda(cup__call *call)
{
    cup__packed w = cup__packed_of(call, 1);
    product_call product = product_of(call, &w);
    packed_call weights = weights_of(&w);
    cup__stream_plan plan;
    cup__stream_choose(&product, w.bits,
                       cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors, &plan);
    return cup__rows_stream(call->c, call->in[0]->dtype, w.bits, w.scale->dtype, 0, &product,
                            &weights, &plan);
}

const char *cup__linear_packed_plain_refuses(const cup__call *call)
{
    cup__packed w = cup__packed_of(call, 1);
    return w.n * w.k > PRODUCTS_PLAIN / (rows_of(call) + 1) ? "it is for few and small weights"
                                                            : NULL;
}

cup_status cup__linear_packed_plain(cup__call *call)
{
    cup__packed w = cup__packed_of(call, 1);
    product_call product = product_of(call, &w);
    packed_call weights = weights_of(&w);
    int tokens = product.m <= 1 ? 1 : product.m <= 4 ? 4 : 8;
    cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype},
                         {"SCALE_T", w.scale->dtype},
                         {"BITS", w.bits},
                         {"TOKENS", tokens}};
    cup__kernel *kernel = cup__kernel_get(cup__cuda_of(call->c->device), "weight_only.cu",
                                          "linear_packed_plain", knobs, 4);
    cup__grid grid = {.x = (product.n + 7) / 8,
                      .y = (product.m + tokens - 1) / tokens,
                      .threads = PRODUCT_THREADS};
    return kernel ? cup__launch(cup__cuda_of(call->c->device), kernel, grid, CUP__ARG(product),
                                CUP__ARG(weights))
                  : call->c->error.status;
}
