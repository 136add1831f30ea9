/* The operands of a product as tensor maps see them, for product_wgmma.c. */
#ifndef CUP_OPS_PRODUCT_OPERAND_H
#define CUP_OPS_PRODUCT_OPERAND_H

#include "ops/product_cuda.h"

#define BATCH_MOST 2
#define LINE_BYTES 128 /* of a swizzled line, and of a tile along k */

/* An operand as a tensor map sees it: lines of elements that are neighbours. */
typedef struct operand {
    int along;
    int64_t length, lines, distance; /* of lines, in elements */
    int64_t batch[BATCH_MOST];       /* innermost first; 0 where it does not move */
    cup_dtype dtype;
} operand;

static inline bool is_sixteen(int64_t elements, cup_dtype dtype)
{
    return elements * cup_dtype_size(dtype) % 16 == 0;
}

/* Elements of a tile along k. */
static inline int64_t tile_k(const cup__product *p)
{
    return LINE_BYTES / cup_dtype_size(p->dtype);
}

/* Takes the direction in which the elements of a matrix lie side by side, k when both would do.
 * False when TMA cannot read it. */
static inline bool take_operand(const cup__product *p, const cup__matrix *m, int64_t mn,
                                int64_t step_mn, int64_t step_k, operand *out)
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
    for (int i = 0; i < BATCH_MOST; i++) {
        out->batch[i] = i < p->batch_ndim ? m->batch[p->batch_ndim - 1 - i] : 0;
        good = good && is_sixteen(out->batch[i], p->dtype) && out->batch[i] < INT64_C(1) << 38;
    }
    return good;
}

/* Columns of b. */
static inline int64_t b_columns(const cup__product *p)
{
    return p->activation == CUP__SWIGLU ? 2 * p->n : p->n;
}

static inline bool take_operands(const cup__product *p, operand *a, operand *b)
{
    return take_operand(p, &p->a, p->m, p->a.row, p->a.column, a) &&
           take_operand(p, &p->b, b_columns(p), p->b.column, p->b.row, b);
}

#endif
