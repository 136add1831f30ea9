/* The host side of tf32.cu. */
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"
#include "tensor/context.h"

#define GRID_Y_MOST 65535
#define LINE_BYTES 128 /* of k in a stage */

const char *cup__product_tf32_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    if (p->dtype != CUP_F32)
        return "it is for f32";
    if (facts->major < 8)
        return "the tensor cores of this card do not know tf32";
    if (c->precision == CUP__HIGHEST && facts->major == 8 && facts->minor > 0)
        return "three products by this card's tensor cores take longer than one without them";
    if ((p->a.row != 1 && p->a.column != 1) || (p->b.row != 1 && p->b.column != 1))
        return "the elements of an input have no neighbours in memory";
    return NULL;
}

static int64_t tiles_of(const cup__product *p, int64_t tile_m, int64_t tile_n)
{
    return (p->m + tile_m - 1) / tile_m * ((p->n + tile_n - 1) / tile_n);
}

cup_status cup__product_tf32(cup__call *call, const cup__product *p)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    bool a_k = p->a.column == 1, b_k = p->b.row == 1;
    int terms = call->c->precision == CUP__HIGHEST ? 3 : 1;
    bool few = tiles_of(p, 128, 128) * p->batch_count < facts->multiprocessors;
    int64_t tile_m = terms == 3 || few ? 64 : 128, tile_n = few ? 64 : 128;
    int64_t stage = (tile_m + tile_n) * LINE_BYTES, stages = 4;
    while (stages > 2 && stages * stage > facts->shared_per_block)
        stages--;
    cup__knob knobs[] = {
        {"TERMS", terms},
        {"TILE_M", tile_m},
        {"TILE_N", tile_n},
        {"STAGES", stages},
        {"A_ALONG", a_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"B_ALONG", b_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"A_VEC",
         cup__product_vector(p, &p->a, a_k ? p->a.row : p->a.column, a_k ? p->k : p->m, 4)},
        {"B_VEC",
         cup__product_vector(p, &p->b, b_k ? p->b.column : p->b.row, b_k ? p->k : p->n, 4)},
        {"ACTIVATION", p->activation},
    };
    cup__kernel *kernel =
        cup__kernel_get(gpu, "tf32.cu", "matmul_tf32", knobs, sizeof knobs / sizeof *knobs);
    if (!kernel)
        return call->c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    cup__grid grid = {
        .x = tiles_of(p, tile_m, tile_n),
        .y = p->batch_count < GRID_Y_MOST ? p->batch_count : GRID_Y_MOST,
        .threads = PRODUCT_THREADS,
        .shared = (int)(stages * stage),
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}
