#include "tensor/moments.h"

#include "tensor/tensor.h"

static void drop(cup_context *c)
{
    cup_tensor_free(c->moments.lines);
    c->moments.lines = NULL;
}

void cup__moments_begin(cup_context *c)
{
    drop(c);
    c->moments.wanted = true;
}

void cup__moments_made(cup_context *c)
{
    c->moments.wanted = false;
}

void cup__moments_end(cup_context *c)
{
    drop(c);
    cup__moments_made(c);
}

float *cup__moments_make(cup_context *c, const void *of, int64_t rows, int64_t columns,
                         int64_t line)
{
    cup__moments *m = &c->moments;
    if (!m->wanted || rows % line)
        return NULL;
    drop(c);
    cup__shape shape = {CUP_F32, 3, {rows / line, columns, 2}};
    /* Kept, as a scope of the product's may end before the batchnorm begins. */
    m->lines = cup_keep(cup__tensor_make(c, &shape, "moments"));
    m->of = of;
    m->line = line;
    return m->lines ? m->lines->data : NULL;
}

const cup__moments *cup__moments_of(const cup_tensor *x, int64_t columns)
{
    const cup__moments *m = &x->context->moments;
    bool same = m->lines && m->of == x->data && m->lines->shape[1] == columns &&
                m->lines->shape[0] * m->line * columns == x->count;
    return same ? m : NULL;
}
