/* Lists of products on Hopper: many pairs of matrices in one launch of wgmma.cu. */
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/unit.h"
#include "kernels/wgmma_call.cuh"
#include "ops/matmul/wgmma_maps.h"

#define LONG_ARGUMENTS 12010 /* the CUDA version from which arguments may take 32 KB */

const char *cup__product_wgmma_list_refuses(cup_context *c, const cup__product *p, int a_along,
                                            int b_along)
{
    cup__wgmma_operand a, b;
    const char *why = cup__product_wgmma_refuses(c, p);
    int compiler = cup__compiler_version();
    if (why)
        return why;
    if (cup__library_report_of(CUP__LIBCUDA)->version < LONG_ARGUMENTS ||
        (compiler && compiler < LONG_ARGUMENTS))
        return "CUDA before 12.1 takes too few tensor maps at a time";
    cup__wgmma_operands(p, &a, &b);
    if (a.along != a_along || b.along != b_along || !cup__wgmma_can_store(p))
        return "its lines or those of its result do not start at multiples of 16 bytes";
    return NULL;
}

typedef struct map_list {
    CUtensorMap a[WGMMA_LIST], b[WGMMA_LIST], y[WGMMA_LIST];
} map_list;

static cup_status launch_list(cup_context *c, const cup__product *first,
                              const cup__wgmma_operand *a, const cup__wgmma_operand *b,
                              const cup__wgmma_plan *plan, const map_list *list_of_maps,
                              const wgmma_list *list)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__knob knobs[] = {
        {"LIST", 1},
        {"CUP_T", first->dtype},
        {"TILE_M", plan->tile_m},
        {"TILE_N", plan->tile_n},
        {"CONSUMERS", plan->consumers},
        {"PINGPONG", plan->pingpong},
        {"STAGES", plan->stages},
        {"A_ALONG", a->along},
        {"B_ALONG", b->along},
    };
    cup__kernel *kernel = cup__kernel_get(gpu, "wgmma.cu", "matmul_sm90_list", knobs,
                                          sizeof knobs / sizeof *knobs);
    if (!kernel)
        return c->error.status;
    int64_t most = cup__cuda_facts(gpu)->multiprocessors, units = list->all.units;
    cup__grid grid = {.x = units < most ? units : most,
                      .threads = 128 * (plan->consumers + 1),
                      .shared = cup__wgmma_shared(first, plan)};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*list_of_maps), CUP__ARG(*list));
}

cup_status cup__product_wgmma_list(cup_context *c, const cup__product *p, int count,
                                   const cup__wgmma_plan *plan)
{
    wgmma_list list;
    map_list all;
    /* With what lies between fields and behind the last item, so that equal calls launch equal
     * bytes. */
    memset(&list, 0, sizeof list);
    memset(&all, 0, sizeof all);
    list.count = count;
    cup__wgmma_operand a = {0}, b = {0};
    int64_t units = 0;
    for (int i = 0; i < count; i++) {
        cup__wgmma_maps one;
        cup__wgmma_operands(&p[i], &a, &b);
        cup__wgmma_cut w = cup__wgmma_cut_of(&p[i], plan);
        CUP_TRY(cup__wgmma_encode(c, &p[i], plan, &a, &b, true, &one));
        all.a[i] = one.a;
        all.b[i] = one.b;
        all.y[i] = one.y;
        list.item[i] = (wgmma_item){(int)w.k_tiles, (int)w.tiles_m, (int)w.tiles_n, (int)units};
        units += w.tiles;
        if (units > INT32_MAX)
            return cup__fail(&c->error, CUP_UNSUPPORTED, "a list has more than 2^31 tiles");
    }
    if (count == 0)
        return CUP_OK;
    list.all.factor = 1;
    list.all.units = (int)units;
    list.all.parts = 1;
    list.all.group =
        cup__wgmma_group_of(plan, cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors);
    return launch_list(c, p, &a, &b, plan, &all, &list);
}
