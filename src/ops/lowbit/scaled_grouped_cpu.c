/* Products of groups of rows of codes of 8 bits on a CPU: integers one element after the other,
 * other codes as f32. */
#include <string.h>

#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/grouped/grouped.h"
#include "ops/lowbit/scaled.h"

#define GRAIN (1 << 16) /* products in a piece of work */

typedef struct job {
    cup__product p;
    cup__scaling s;
    const cup_tensor *offsets;
} job;

static void whole_rows(int64_t begin, int64_t end, void *user)
{
    const job *w = user;
    const cup__product *p = &w->p;
    cup_dtype dtype = p->y_dtype;
    int64_t size = cup_dtype_size(dtype), g = 0;
    for (int64_t i = begin; i < end; i++) {
        while (g < p->batch_count && i >= cup__group_begin(w->offsets, g + 1, p->m))
            g++;
        for (int64_t j = 0; j < p->n; j++) {
            char *to = p->y.data + (i * p->n + j) * size;
            int32_t whole = 0;
            float value = 0;
            if (g < p->batch_count && dtype == CUP_I32)
                whole = cup__scaled_dot((const int8_t *)p->a.data + i * p->k,
                                        (const int8_t *)p->b.data + (g * p->n + j) * p->k, p->k);
            else if (g < p->batch_count)
                value = cup__scaled_whole_dot(p, i, j, g);
            if (dtype == CUP_I32)
                memcpy(to, &whole, sizeof whole);
            else
                cup__store_f32(to, &value, dtype, 1);
        }
    }
}

static cup_status run_floats(cup__call *call, const job *w)
{
    cup_context *c = call->c;
    const cup__product *p = &w->p;
    int64_t rows = p->batch_count * p->n, sizes[] = {p->batch_count, p->n, p->k};
    cup_tensor *x = cup__scaled_widened(c, call->in[0], &w->s.a, p->m, p->m, p->k);
    cup_tensor *lines = x ? cup__scaled_widened(c, call->in[1], &w->s.b, rows, p->n, p->k) : NULL;
    cup_tensor *weight = lines ? cup_reshape(c, lines, 3, sizes) : NULL;
    cup_tensor *y = weight ? cup_grouped_matmul(c, x, weight, call->in[2], true) : NULL;
    if (y)
        cup__store_f32(p->y.data, y->data, p->y_dtype, y->count);
    cup_status status = y ? CUP_OK : c->error.status;
    cup_tensor_free(y);
    cup_tensor_free(weight);
    cup_tensor_free(lines);
    cup_tensor_free(x);
    return status;
}

cup_status cup__scaled_grouped_cpu(cup__call *call)
{
    job w = {.offsets = call->in[2]};
    CUP_TRY(cup__offsets_check(call, w.offsets, call->in[0]->shape[0]));
    cup__scaled_grouped_product(call, &w.p, &w.s);
    if (w.p.dtype != CUP_I8)
        return run_floats(call, &w);
    cup__parallel_for(w.p.m, GRAIN / (w.p.n * (w.p.k + 1) + 1) + 1, whole_rows, &w);
    return CUP_OK;
}
