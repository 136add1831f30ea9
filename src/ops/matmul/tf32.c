/* The host side of tf32.cu. */
#include "kernels/product_call.cuh"
#include "ops/matmul/product_cuda.h"
#include "tensor/context.h"

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

cup_status cup__product_tf32(cup__call *call, const cup__product *p)
{
    int terms = call->c->precision == CUP__HIGHEST ? 3 : 1;
    bool few = cup__product_few(call, p, 128);
    const cup__tiled tiled = {.file = "tf32.cu",
                              .entry = "matmul_tf32",
                              .tile_m = terms == 3 || few ? 64 : 128,
                              .tile_n = few ? 64 : 128,
                              .stage_bytes = 128,
                              .vector_most = 4,
                              .terms = terms};
    return cup__product_tiled(call, p, &tiled);
}
