#include "ops/matmul/wgmma_maps.h"

#include "dispatch/tensor_map.h"
#include "kernels/product_call.cuh"

static bool is_sixteen(int64_t elements, cup_dtype dtype)
{
    return elements * cup_dtype_size(dtype) % 16 == 0;
}

/* Takes the direction in which the elements of a matrix lie side by side, k when both would do.
 * False when TMA cannot read it. */
static bool take_operand(const cup__product *p, const cup__matrix *m, int64_t mn, int64_t step_mn,
                         int64_t step_k, cup__wgmma_operand *out)
{
    bool along_k = (step_k == 1 || p->k == 1) && (mn == 1 || is_sixteen(step_mn, p->dtype));
    bool along_mn =
        (step_mn == 1 || mn == 1) && !p->scaling && (p->k == 1 || is_sixteen(step_k, p->dtype));
    out->dtype = p->dtype;
    out->along = along_k ? PRODUCT_ALONG_K : PRODUCT_ALONG_MN;
    out->length = along_k ? p->k : mn;
    out->lines = along_k ? mn : p->k;
    out->distance = along_k ? step_mn : step_k;
    if (out->lines == 1)
        out->distance = (out->length + 15) / 16 * 16;
    bool good = (along_k || along_mn) && (uintptr_t)m->data % 16 == 0 && out->length <= INT32_MAX &&
                out->lines <= INT32_MAX && out->distance >= out->length &&
                out->distance * out->lines < INT64_C(1) << 38;
    for (int i = 0; i < CUP__WGMMA_BATCH; i++) {
        out->batch[i] = i < p->batch_ndim ? m->batch[p->batch_ndim - 1 - i] : 0;
        good = good && is_sixteen(out->batch[i], p->dtype) && out->batch[i] < INT64_C(1) << 38;
    }
    return good;
}

bool cup__wgmma_operands(const cup__product *p, cup__wgmma_operand *a, cup__wgmma_operand *b)
{
    return take_operand(p, &p->a, p->m, p->a.row, p->a.column, a) &&
           take_operand(p, &p->b, cup__wgmma_columns(p), p->b.column, p->b.row, b);
}

/* Whether TMA can write y: rows of whole pieces of 16 bytes, which is what it writes even where
 * the tensor map says that less is there. */
bool cup__wgmma_can_store(const cup__product *p)
{
    cup_dtype y = cup__product_y_dtype(p);
    bool good = is_sixteen(p->y.row, y) && is_sixteen(p->n, y) && (uintptr_t)p->y.data % 16 == 0 &&
                (uintptr_t)p->pre % 16 == 0;
    for (int i = 0; i < p->batch_ndim; i++)
        good = good && is_sixteen(p->y.batch[i], y);
    return good;
}

/* A tensor map over lines of elements. */
static cup_status encode(cup_context *c, CUtensorMap *map, const cup__product *p, const void *data,
                         const cup__wgmma_operand *o, int64_t box_length, int64_t box_lines)
{
    int64_t size = cup_dtype_size(o->dtype), line = o->distance * size, whole = line * o->lines;
    cup__boxes boxes = {.data = data, .dtype = o->dtype, .ndim = 2 + p->batch_ndim,
                        .size = {o->length, o->lines, 1, 1}, .stride = {0, line, whole, whole},
                        .box = {box_length, box_lines}};
    for (int i = 0; i < p->batch_ndim; i++)
        if (o->batch[i]) {
            boxes.size[2 + i] = p->batch_size[p->batch_ndim - 1 - i];
            boxes.stride[2 + i] = o->batch[i] * size;
        }
    return cup__tensor_map_make(cup__cuda_of(c->device), &boxes, map);
}

/* What lies as y does, or as two matrices of n columns side by side. */
static cup_status encode_result(cup_context *c, const cup__product *p, const void *data,
                                const cup__wgmma_operand *y, const int64_t *box, bool halves,
                                CUtensorMap *map)
{
    cup__wgmma_operand o = *y;
    cup__product two = *p;
    if (halves) {
        o.distance = 2 * p->n;
        o.batch[0] = p->n;
        two.batch_ndim = 1;
        two.batch_size[0] = 2;
    }
    return encode(c, map, &two, data, &o, box[0], box[1]);
}

cup_status cup__wgmma_encode(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                             const cup__wgmma_operand *a, const cup__wgmma_operand *b, bool store,
                             cup__wgmma_maps *to)
{
    bool a_k = a->along == PRODUCT_ALONG_K, b_k = b->along == PRODUCT_ALONG_K;
    int shared_a = plan->cluster_n, shared_b = plan->cluster_m;
    int64_t depth = cup__wgmma_tile_k(p);
    CUP_TRY(encode(c, &to->a, p, p->a.data, a, depth, (a_k ? plan->tile_m : depth) / shared_a));
    int64_t columns = p->activation == PRODUCT_SWIGLU ? plan->tile_n / 2 : plan->tile_n;
    CUP_TRY(encode(c, &to->b, p, p->b.data, b, depth, (b_k ? columns : depth) / shared_b));
    to->y = to->pre = to->a;
    if (!store)
        return CUP_OK;
    cup__wgmma_operand y = {.length = p->n,
                            .lines = p->m,
                            .distance = p->m == 1 ? (p->n + 15) / 16 * 16 : p->y.row,
                            .dtype = cup__product_y_dtype(p)};
    int64_t size = cup_dtype_size(y.dtype);
    int64_t line = cup__wgmma_stored_line(columns * size) / size;
    for (int i = 0; i < p->batch_ndim; i++)
        y.batch[i] = p->y.batch[p->batch_ndim - 1 - i];
    const int64_t staged[] = {line, 16}, tile[] = {line, plan->tile_m};
    bool back = p->kind == PRODUCT_SWIGLU_GRAD, halves = p->activation == PRODUCT_SWIGLU;
    CUP_TRY(encode_result(c, p, p->y.data, &y, staged, back, &to->y));
    if (p->kind)
        return encode_result(c, p, p->other, &y, tile, back, &to->pre);
    return p->pre ? encode_result(c, p, p->pre, &y, staged, halves, &to->pre) : CUP_OK;
}
