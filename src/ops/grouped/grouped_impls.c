/* What grouped_matmul and the gradient of its weight share: offsets, products, and the way on a
 * CPU, where each group is a product of its own. */
#include <string.h>

#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"

cup_status cup__need_offsets(cup__call *call, int i)
{
    CUP_TRY(cup__need_index(call, i));
    return cup__need_ndim(call, i, 1, 1);
}

static int64_t offset_at(const cup_tensor *offsets, int64_t g)
{
    int64_t at = g * offsets->stride[0];
    return offsets->dtype == CUP_I64 ? ((const int64_t *)offsets->data)[at]
                                     : ((const int32_t *)offsets->data)[at];
}

cup_status cup__offsets_check(cup__call *call, const cup_tensor *offsets, int64_t rows)
{
    int64_t before = 0;
    for (int64_t g = 0; g < offsets->shape[0]; g++) {
        int64_t end = offset_at(offsets, g);
        if (end < before || end > rows)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "group %lld ends before row %lld, but must end between %lld, "
                                  "where it begins, and %lld, the number of rows",
                                  (long long)g, (long long)end, (long long)before,
                                  (long long)rows);
        before = end;
    }
    return CUP_OK;
}

int64_t cup__group_begin(const cup_tensor *offsets, int64_t g, int64_t rows)
{
    int64_t begin = 0;
    for (int64_t i = 0; i < g; i++) {
        int64_t end = offset_at(offsets, i);
        begin = end > begin ? end : begin;
    }
    return begin < rows ? begin : rows;
}

void cup__grouped_product(const cup__call *call, cup__product *p)
{
    const cup_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    int64_t groups = call->in[2]->shape[0], rows = a->shape[0];
    *p = (cup__product){.dtype = a->dtype,
                        .y_dtype = a->dtype,
                        .factor = 1,
                        .batch_ndim = 1, .batch_count = groups};
    p->batch_size[0] = groups;
    p->a.data = a->data;
    p->b.data = b->data;
    p->y.data = y ? y->data : NULL;
    p->y.column = 1;
    if (call->row == &cup__rows[CUP__OP_grouped_matmul]) {
        const cup__grouped_matmul_attributes *t = call->attributes;
        p->groups.kind = PRODUCT_GROUPS_OF_ROWS;
        p->m = rows;
        p->k = a->shape[1];
        p->n = b->shape[t->transpose_weight ? 1 : 2];
        p->a.row = p->k;
        p->a.column = 1;
        p->b.row = t->transpose_weight ? 1 : p->n;
        p->b.column = t->transpose_weight ? p->k : 1;
        p->b.batch[0] = p->k * p->n;
    } else {
        p->groups.kind = PRODUCT_GROUPS_OF_DEPTH;
        p->m = a->shape[1];
        p->n = b->shape[1];
        p->k = rows;
        p->a.row = p->b.column = 1;
        p->a.column = p->m;
        p->b.row = p->n;
        p->y.batch[0] = p->m * p->n;
    }
    p->y.row = p->n;
}

/* One group as a product. */
static cup__product group_of(const cup__product *all, const cup_tensor *offsets, int64_t g)
{
    cup__product p = *all;
    bool by_rows = all->groups.kind == PRODUCT_GROUPS_OF_ROWS;
    int64_t size = cup_dtype_size(p.dtype), rows = by_rows ? p.m : p.k;
    int64_t begin = cup__group_begin(offsets, g, rows);
    int64_t count = cup__group_begin(offsets, g + 1, rows) - begin;
    p.batch_ndim = 0;
    p.batch_count = 1;
    p.groups = (cup__groups){0};
    p.a.data += begin * (by_rows ? p.a.row : p.a.column) * size;
    p.b.data += (g * p.b.batch[0] + (by_rows ? 0 : begin * p.b.row)) * size;
    p.y.data += (g * p.y.batch[0] + (by_rows ? begin * p.y.row : 0)) * size;
    if (by_rows)
        p.m = count;
    else
        p.k = count;
    return p;
}

cup_status cup__grouped_cpu(cup__call *call)
{
    cup__product all;
    cup__grouped_product(call, &all);
    const cup_tensor *offsets = call->in[2];
    CUP_TRY(cup__offsets_check(call, offsets, call->in[0]->shape[0]));
    bool blas = !cup__product_blas_refuses(call);
    for (int64_t g = 0; g < all.batch_count; g++) {
        cup__product p = group_of(&all, offsets, g);
        if (p.m > 0 && p.n > 0)
            CUP_TRY(blas && p.k > 0 ? cup__product_blas(call, &p) : cup__product_blocked(call, &p));
    }
    if (all.groups.kind == PRODUCT_GROUPS_OF_ROWS) {
        int64_t end = cup__group_begin(offsets, all.batch_count, all.m);
        size_t row = (size_t)(all.n * cup_dtype_size(all.dtype));
        memset(all.y.data + (size_t)end * row, 0, (size_t)(all.m - end) * row);
    }
    return CUP_OK;
}

const cup__impl cup__grouped_impls[] = {
    {.name = "groups", .place = CUP__CPU, CUP__THRESHOLDS(128), .run = cup__grouped_cpu},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(8, 64, 128, 192, 256),
     .refuses = cup__grouped_wgmma_refuses, .run = cup__grouped_wgmma},
    {.name = "mma", .place = CUP__CUDA, CUP__THRESHOLDS(8, 32, 128),
     .refuses = cup__grouped_mma_refuses, .run = cup__grouped_mma},
    {.name = "plain", .place = CUP__CUDA, CUP__THRESHOLDS(16, 128), .run = cup__grouped_plain},
    {0},
};
