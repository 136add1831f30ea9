/* Products of codes of 8 bits by the tensor cores of every card, the host side of scaled_matmul.cu,
 * and by NVIDIA's library. */
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/matmul/product_cuda.h"
#include "ops/lowbit/scaled.h"

#define LINE_BYTES 64 /* of a tile along k */
#define GRID_Y_MOST 65535

/* Codes that can be copied at once. */
static int vector_of(const cup__product *p, const void *data)
{
    int vector = 16;
    while (vector > 1 && ((uintptr_t)data % (uintptr_t)vector || p->k % vector))
        vector /= 2;
    return vector < 4 ? 1 : vector;
}

cup_status cup__scaled_mma_by(cup__call *call, const cup__product *product)
{
    cup__product p = *product;
    cup__scaling s = *product->scaling;
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int a_vec = vector_of(&p, p.a.data), b_vec = vector_of(&p, p.b.data);
    bool few = cup__product_tiles(&p, 128, 128) < facts->multiprocessors;
    bool small = few || a_vec == 1 || b_vec == 1;
    int64_t tile = small ? 64 : 128, stage = 2 * tile * LINE_BYTES;
    int stages = cup__product_stages(facts, stage);
    cup__knob knobs[] = {
        {"CUP_T", p.dtype}, {"B_T", s.b_dtype}, {"Y_T", s.y_dtype},        {"TILE_M", tile},
        {"TILE_N", tile},   {"STAGES", stages}, {"SCALES", s.kind},        {"FAST", s.fast},
        {"A_VEC", a_vec},   {"B_VEC", b_vec},   {"GROUPS", p.groups.kind},
    };
    cup__kernel *kernel = cup__kernel_get(gpu, "scaled_matmul.cu", "scaled_matmul", knobs,
                                          sizeof knobs / sizeof *knobs);
    if (!kernel)
        return call->c->error.status;
    product_call argument;
    int64_t groups = p.batch_count;
    cup__grid grid = {.x = cup__product_tiles(&p, tile, tile),
                      .threads = PRODUCT_THREADS,
                      .shared = (int)(stages * stage)};
    for (int64_t g = 0; g < groups; g += GRID_Y_MOST) {
        grid.y = p.batch_count = groups - g < GRID_Y_MOST ? groups - g : GRID_Y_MOST;
        cup__product_fill(&argument, &p);
        CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(argument), CUP__ARG(s.a), CUP__ARG(s.b)));
        p.b.data += GRID_Y_MOST * p.b.batch[0];
        p.groups.table += p.groups.kind ? GRID_Y_MOST : 0;
        s.b.data += s.b.data ? GRID_Y_MOST * s.b.group : 0;
    }
    return CUP_OK;
}

cup_status cup__scaled_mma(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_product(call, &p, &s);
    return cup__scaled_mma_by(call, &p);
}

const char *cup__scaled_cublaslt_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_product(call, &p, &s);
    return cup__product_cublaslt_refuses(call->c, &p);
}

cup_status cup__scaled_cublaslt(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_product(call, &p, &s);
    return cup__product_cublaslt(call, &p);
}
