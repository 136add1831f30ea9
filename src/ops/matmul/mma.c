/* The host side of mma.cu. */
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"

#define GRID_Y_MOST 65535
#define LINE_BYTES 64 /* of k in a stage */

const char *cup__product_mma_refuses(cup_context *c, const cup__product *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    if (p->dtype != CUP_BF16 && p->dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    int capability = facts->major * 10 + facts->minor;
    if (capability < (p->dtype == CUP_BF16 ? 80 : 75))
        return p->dtype == CUP_BF16 ? "the tensor cores of this card do not know bf16"
                                    : "the card has no tensor cores it can use";
    if ((p->a.row != 1 && p->a.column != 1) || (p->b.row != 1 && p->b.column != 1))
        return "the elements of an input have no neighbours in memory";
    return NULL;
}

static int64_t tiles_of(const cup__product *p, int64_t tile)
{
    return (p->m + tile - 1) / tile * ((p->n + tile - 1) / tile);
}

cup_status cup__product_mma(cup__call *call, const cup__product *p)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    bool a_k = p->a.column == 1, b_k = p->b.row == 1;
    int64_t tile = tiles_of(p, 128) * p->batch_count < facts->multiprocessors ? 64 : 128;
    int64_t stage = 2 * tile * LINE_BYTES, stages = 4;
    while (stages > 2 && stages * stage > facts->shared_per_block)
        stages--;
    /* Groups of k may begin anywhere. */
    int64_t whole_k = p->groups.kind == PRODUCT_GROUPS_OF_DEPTH ? 1 : p->k;
    int a_vec =
        cup__product_vector(p, &p->a, a_k ? p->a.row : p->a.column, a_k ? whole_k : p->m, 8);
    int b_vec =
        cup__product_vector(p, &p->b, b_k ? p->b.column : p->b.row, b_k ? whole_k : p->n, 8);
    cup__knob knobs[] = {
        {"CUP_T", p->dtype},
        {"TILE_M", tile},
        {"TILE_N", tile},
        {"STAGES", stages},
        {"A_ALONG", a_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"B_ALONG", b_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN},
        {"A_VEC", a_vec},
        {"B_VEC", b_vec},
        {"ACTIVATION", p->activation},
        {"GROUPS", p->groups.kind},
    };
    cup__kernel *kernel =
        cup__kernel_get(gpu, "mma.cu", "matmul_mma", knobs, sizeof knobs / sizeof *knobs);
    if (!kernel)
        return call->c->error.status;
    product_call argument;
    cup__product_fill(&argument, p);
    cup__grid grid = {
        .x = tiles_of(p, tile),
        .y = p->batch_count < GRID_Y_MOST ? p->batch_count : GRID_Y_MOST,
        .threads = PRODUCT_THREADS,
        .shared = (int)(stages * stage),
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}
