/* Products of codes of 8 bits on Hopper, by wgmma.cu. */
#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"
#include "ops/matmul/wgmma.h"
#include "ops/lowbit/scaled.h"

/* False when no plan fits. */
static bool choose(const cup__call *call, const cup__product *p, cup__wgmma_plan *plan)
{
    int multiprocessors = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    return cup__wgmma_choose(p, multiprocessors, plan) > 0;
}

const char *cup__scaled_wgmma_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_product(call, &p, &s);
    const char *why = cup__product_wgmma_refuses(call->c, &p);
    if (!why && !choose(call, &p, &plan))
        why = "no tile fits it";
    return why;
}

static cup_status run(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_product(call, &p, &s);
    choose(call, &p, &plan);
    return cup__product_wgmma_by(call->c, &p, &plan);
}

#define MANY_ROWS 512

/* The same scales, those of neighbouring rows side by side: the kernel reads a column of them for
 * each 128 of k, in which row-major ones would cost it as much as the codes. */
static cup_tensor *by_columns(cup_context *c, cup_tensor *scale)
{
    static const int64_t turned[] = {1, 0};
    if (!scale || scale->ndim != 2 || scale->shape[0] < MANY_ROWS || scale->shape[1] < 2 ||
        scale->stride[0] == 1)
        return scale;
    cup_tensor *view = cup_permute(c, scale, turned, 2), *copy = cup_copy(c, view);
    cup_tensor *columns = cup_permute(c, copy, turned, 2);
    cup_tensor_free(view);
    cup_tensor_free(copy);
    return columns;
}

cup_status cup__scaled_wgmma(cup__call *call)
{
    cup_tensor *in[5], **given = call->in;
    cup_context *c = call->c;
    for (int i = 0; i < 5; i++)
        in[i] = i == 2 ? by_columns(c, given[i]) : i == 3 ? given[i] : cup__contiguous(c, given[i]);
    call->in = in;
    cup_status status = c->error.status == CUP_OK ? run(call) : c->error.status;
    call->in = given;
    for (int i = 0; i < 5; i++)
        if (in[i] != given[i])
            cup_tensor_free(in[i]);
    return status;
}

const char *cup__scaled_grouped_wgmma_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    cup__scaled_grouped_product(call, &p, &s);
    if (p.batch_count == 0 || p.m == 0 || p.n == 0)
        return "there is nothing to multiply";
    const char *why = cup__product_wgmma_refuses(call->c, &p);
    if (!why && !choose(call, &p, &plan))
        why = "no tile fits it";
    return why;
}

/* What both kernels need beside the product itself. */
static cup_status with_table(cup__call *call, cup__product *p, const cup__wgmma_plan *plan)
{
    cup_tensor *table = cup__grouped_table(call, p, plan ? plan->tile_m : 1);
    if (!table)
        return call->c->error.status;
    p->groups.table = table->data;
    cup_status status =
        plan ? cup__product_wgmma_by(call->c, p, plan) : cup__scaled_mma_by(call, p);
    cup_tensor_free(table);
    return status;
}

/* Input 3, the scales of x, as the kernel reads them best. */
cup_status cup__scaled_grouped_wgmma(cup__call *call)
{
    cup_tensor **given = call->in, *in[5] = {given[0], given[1], given[2], NULL, given[4]};
    cup_context *c = call->c;
    cup__product p;
    cup__scaling s;
    cup__wgmma_plan plan;
    in[3] = by_columns(c, given[3]);
    cup_status status = c->error.status;
    if (status == CUP_OK) {
        call->in = in;
        cup__scaled_grouped_product(call, &p, &s);
        choose(call, &p, &plan);
        status = with_table(call, &p, &plan);
        call->in = given;
    }
    if (in[3] != given[3])
        cup_tensor_free(in[3]);
    return status;
}

cup_status cup__scaled_grouped_mma(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_grouped_product(call, &p, &s);
    return with_table(call, &p, NULL);
}
