/* Grouped products on a GPU: the table of groups, and the kernels of other products over it. */
#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"
#include "ops/matmul/wgmma.h"

#define THREADS 256
#define CLEARING_BLOCKS 64

/* False when no plan fits. */
static bool choose(const cup__call *call, const cup__product *p, cup__wgmma_plan *plan)
{
    int multiprocessors = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    return cup__wgmma_choose(p, multiprocessors, plan) > 0;
}

const char *cup__grouped_wgmma_refuses(const cup__call *call)
{
    cup__product p;
    cup__wgmma_plan plan;
    cup__grouped_product(call, &p);
    if (p.batch_count == 0 || p.m == 0 || p.n == 0)
        return "there is nothing to multiply";
    if (p.groups.kind == PRODUCT_GROUPS_OF_DEPTH && (p.m == 1 || p.n == 1))
        return "it does not take single columns";
    /* Its rows would lie side by side, and a group's first one where no box of TMA may begin. */
    if (p.groups.kind == PRODUCT_GROUPS_OF_ROWS && p.k == 1)
        return "it does not take rows of one element";
    const char *why = cup__product_wgmma_refuses(call->c, &p);
    if (!why && !choose(call, &p, &plan))
        why = "no tile fits it";
    return why;
}

const char *cup__grouped_mma_refuses(const cup__call *call)
{
    cup__product p;
    cup__grouped_product(call, &p);
    return cup__product_mma_refuses(call->c, &p);
}

cup_tensor *cup__grouped_table(cup__call *call, const cup__product *p, int tile)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    const cup_tensor *offsets = call->in[2];
    cup__shape shape = {.dtype = CUP_I32, .ndim = 1, .size = {2 * (p->batch_count + 1)}};
    bool by_rows = p->groups.kind == PRODUCT_GROUPS_OF_ROWS;
    int64_t sum = by_rows ? p->m : p->k;
    if (sum > INT32_MAX || p->batch_count >= INT32_MAX / 4) {
        cup__call_fail(call, CUP_UNSUPPORTED, "there are more than 2^31 rows");
        return NULL;
    }
    cup_tensor *table = cup__tensor_make(c, &shape, "groups");
    cup__knob knobs[] = {{"OFFSET_T", offsets->dtype}};
    cup__kernel *kernel =
        table ? cup__kernel_get(gpu, "grouped.cu", "grouped_table", knobs, 1) : NULL;
    const void *from = offsets->data;
    void *to = table ? table->data : NULL, *y = p->y.data;
    int groups = (int)p->batch_count, rows = (int)sum;
    long long width = by_rows ? p->n * cup_dtype_size(cup__product_y_dtype(p)) / 2 : 0;
    cup__grid grid = {.x = by_rows ? CLEARING_BLOCKS : 1, .threads = THREADS};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(from), CUP__ARG(groups), CUP__ARG(rows),
                              CUP__ARG(tile), CUP__ARG(to), CUP__ARG(y), CUP__ARG(width)) == CUP_OK)
        return table;
    cup_tensor_free(table);
    return NULL;
}

cup_status cup__grouped_wgmma(cup__call *call)
{
    cup__product p;
    cup__wgmma_plan plan;
    cup__grouped_product(call, &p);
    choose(call, &p, &plan);
    cup_tensor *table = cup__grouped_table(call, &p, plan.tile_m);
    if (!table)
        return call->c->error.status;
    p.groups.table = table->data;
    cup_status status = cup__product_wgmma_by(call->c, &p, &plan);
    cup_tensor_free(table);
    return status;
}

static cup_status run(cup__call *call, cup_status (*how)(cup__call *call, const cup__product *p))
{
    cup__product p;
    cup__grouped_product(call, &p);
    cup_tensor *table = cup__grouped_table(call, &p, 1);
    if (!table)
        return call->c->error.status;
    p.groups.table = table->data;
    cup_status status = p.batch_count > 0 ? how(call, &p) : CUP_OK;
    cup_tensor_free(table);
    return status;
}

cup_status cup__grouped_mma(cup__call *call)
{
    return run(call, cup__product_mma);
}

cup_status cup__grouped_plain(cup__call *call)
{
    return run(call, cup__product_plain);
}
