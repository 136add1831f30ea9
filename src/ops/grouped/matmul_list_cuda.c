/* Lists of products on a GPU: as many as fit the arguments of a kernel in each launch. */
#include "base/divide.h"
#include "ops/grouped/matmul_list.h"

#include <string.h>

#include "kernels/wgmma_call.cuh"
#include "dispatch/attributes.h"
#include "ops/matmul/wgmma.h"

#define LINE_BYTES 64 /* of a tile of mma.cu along k */

/* What one launch takes. */
typedef struct batch {
    product_list list;
    int64_t tiles;
    int a_vec, b_vec;
} batch;

static bool wgmma_takes(const cup__call *call, const cup__product *p)
{
    const cup__matmul_list_attributes *t = call->attributes;
    return p->m > 0 && p->n > 0 &&
           !cup__product_wgmma_list_refuses(call->c, p,
                                            t->transpose_a ? PRODUCT_ALONG_MN : PRODUCT_ALONG_K,
                                            t->transpose_b ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN);
}

/* Records from `first` on, or only those that wgmma does not take; returns the number of the one
 * after them. */
static int gather(const cup__call *call, int first, int64_t tile, int most, bool others, batch *out)
{
    const cup__matmul_list_attributes *t = call->attributes;
    int count = call->in_count / CUP__LIST_STEP, i = first;
    memset(out, 0, sizeof *out); /* equal calls launch equal bytes */
    out->a_vec = out->b_vec = most;
    out->list.a_along = t->transpose_a ? PRODUCT_ALONG_MN : PRODUCT_ALONG_K;
    out->list.b_along = t->transpose_b ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN;
    for (; i < count && out->list.count < PRODUCT_LIST; i++) {
        cup__product p = cup__list_product(call, i);
        if (p.m == 0 || p.n == 0 || (others && wgmma_takes(call, &p)))
            continue;
        /* Tensors are row-major here, so that lines follow each other. */
        int64_t a_line = t->transpose_a ? p.m : p.k, b_line = t->transpose_b ? p.k : p.n;
        out->a_vec = (int)smaller(out->a_vec, cup__product_vector(&p, &p.a, a_line, a_line, most));
        out->b_vec = (int)smaller(out->b_vec, cup__product_vector(&p, &p.b, b_line, b_line, most));
        out->list.item[out->list.count++] =
            (product_item){p.a.data, p.b.data, p.y.data, p.m, p.n, p.k, out->tiles};
        out->tiles += cup__product_tiles(&p, tile, tile);
    }
    return i;
}

static cup_status launch(cup__call *call, const batch *b, const char *file, const char *entry,
                         int64_t tile, int64_t stages)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[] = {
        {"LIST", 1},
        {"CUP_T", call->in[0]->dtype},
        {"A_ALONG", b->list.a_along},
        {"B_ALONG", b->list.b_along},
        {"A_VEC", b->a_vec},
        {"B_VEC", b->b_vec},
        {"TILE_M", tile},
        {"TILE_N", tile},
        {"STAGES", stages},
    };
    cup__kernel *kernel = cup__kernel_get(gpu, file, entry, knobs, stages ? 9 : 7);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {
        .x = b->tiles, .threads = PRODUCT_THREADS, .shared = (int)(stages * 2 * tile * LINE_BYTES)};
    return cup__launch(gpu, kernel, grid, CUP__ARG(b->list));
}

/* 128 where that makes enough tiles for all multiprocessors, else 64. */
static int64_t tile_of(const cup__call *call)
{
    int64_t tiles = 0;
    for (int i = 0; i < call->in_count / CUP__LIST_STEP; i++) {
        cup__product p = cup__list_product(call, i);
        tiles += cup__product_tiles(&p, 128, 128);
    }
    return tiles < cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors ? 64 : 128;
}

const char *cup__list_mma_refuses(const cup__call *call)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    cup_dtype dtype = call->in[0]->dtype;
    if (dtype != CUP_BF16 && dtype != CUP_F16)
        return "it multiplies bf16 and f16 only";
    if (facts->major * 10 + facts->minor < (dtype == CUP_BF16 ? 80 : 75))
        return "the tensor cores of this card do not know the dtype";
    return NULL;
}

static cup_status run_mma(cup__call *call, bool others)
{
    int count = call->in_count / CUP__LIST_STEP;
    int64_t tile = tile_of(call);
    int stages = cup__product_stages(cup__cuda_facts(cup__cuda_of(call->c->device)),
                                     2 * tile * LINE_BYTES);
    for (int i = 0; i < count;) {
        batch b;
        i = gather(call, i, tile, 8, others, &b);
        CUP_TRY(launch(call, &b, "mma.cu", "matmul_mma_list", tile, stages));
    }
    return CUP_OK;
}

cup_status cup__list_mma(cup__call *call)
{
    return run_mma(call, false);
}

const char *cup__list_wgmma_refuses(const cup__call *call)
{
    for (int i = 0; i < call->in_count / CUP__LIST_STEP; i++) {
        cup__product p = cup__list_product(call, i);
        if (wgmma_takes(call, &p))
            return NULL;
    }
    return "it is for Hopper (sm_90), 16 bits, and lines that start at multiples of 16 bytes";
}

/* What TMA cannot take goes the other way. */
cup_status cup__list_wgmma(cup__call *call)
{
    int count = call->in_count / CUP__LIST_STEP;
    int multiprocessors = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    for (int i = 0; i < count;) {
        cup__product p[WGMMA_LIST];
        int taken = 0;
        for (; i < count && taken < WGMMA_LIST; i++) {
            p[taken] = cup__list_product(call, i);
            taken += wgmma_takes(call, &p[taken]);
        }
        const cup__wgmma_plan *plan = cup__wgmma_choose_list(p, taken, multiprocessors);
        CUP_TRY(cup__product_wgmma_list(call->c, p, taken, plan));
    }
    return run_mma(call, true);
}

cup_status cup__list_plain(cup__call *call)
{
    int count = call->in_count / CUP__LIST_STEP;
    int64_t tile = call->in[0]->dtype == CUP_F64 ? 64 : tile_of(call);
    for (int i = 0; i < count;) {
        batch b;
        i = gather(call, i, tile, tile == 64 ? 4 : 8, false, &b);
        CUP_TRY(launch(call, &b, "simt.cu", "matmul_plain_list", tile, 0));
    }
    return CUP_OK;
}
