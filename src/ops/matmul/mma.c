/* The host side of mma.cu. */
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"

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

cup_status cup__product_mma(cup__call *call, const cup__product *p)
{
    int64_t tile = cup__product_few(call, p, 128) ? 64 : 128;
    const cup__tiled tiled = {.file = "mma.cu",
                              .entry = "matmul_mma",
                              .tile_m = tile,
                              .tile_n = tile,
                              .stage_bytes = 64,
                              .vector_most = 8};
    return cup__product_tiled(call, p, &tiled);
}
