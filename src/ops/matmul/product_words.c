/* What makes a product another one for its speed, in the words of tuning records. */
#include "base/text.h"
#include "ops/matmul/epilogues.h"
#include "tensor/context.h"

/* Along which side an operand's elements are neighbours: 1 its first, 2 its second, 0 neither. */
static int along(const cup__matrix *m)
{
    return m->column == 1 ? 2 : m->row == 1 ? 1 : 0;
}

static int is_aligned(const cup__matrix *m, cup_dtype dtype)
{
    int64_t line = along(m) == 2 ? m->row : m->column;
    return (uintptr_t)m->data % 16 == 0 && line * cup_dtype_size(dtype) % 16 == 0;
}

bool cup__product_words(const cup__call *call, bool similar, cup__text *to)
{
    cup__product product, *p = &product;
    cup__product_like(call, p);
    const cup__epilogue *e = call->op->epilogue;
    bool more = p->adding || e->scaled || e->a;
    if (similar && !more)
        return false;
    const struct {
        const char *name;
        int64_t value;
    } all[] = {
        {"dtype", p->dtype},
        {"precision", p->dtype == CUP_F32 ? call->c->precision : 0},
        {"m", p->m},
        {"n", p->n},
        {"k", p->k},
        {"batch", p->batch_count},
        {"batch_ndim", p->batch_ndim},
        {"a", along(&p->a)},
        {"b", along(&p->b)},
        {"a_aligned", is_aligned(&p->a, p->dtype)},
        {"b_aligned", is_aligned(&p->b, p->dtype)},
        {"y_aligned", is_aligned(&p->y, p->dtype)},
        {"bias", p->bias != NULL},
        {"activation", p->activation},
        {"saving", p->saving},
        {"y_dtype", p->y_dtype},
        {"other", p->kind},
        {"special", 0},
    };
    cup__text_add(to, "product");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cup__text_add(to, " %s=%lld", all[i].name, (long long)all[i].value);
    if (more && !similar)
        cup__text_add(to, " %s=1", p->adding ? "adding" : e->scaled ? "scaled" : "into");
    return true;
}
