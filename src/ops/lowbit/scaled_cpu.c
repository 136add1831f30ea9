/* Products of codes of 8 bits on a CPU. Integers are summed as integers; other codes become f32,
 * scaled, and go the way of f32 products. */
#include <string.h>

#include "base/divide.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "dispatch/attributes.h"
#include "ops/lowbit/scaled.h"

#define GRAIN (1 << 16) /* products in a piece of work */

typedef struct job {
    cup__call *call;
    cup__product p;
    cup__scaling s;
    const float *sums; /* of products of f32, or NULL */
} job;

static float scale_of(const product_scale *s, int64_t line, int64_t block)
{
    return s->data ? s->data[(line >> s->shift) * s->line + block * s->k] : 1.0f;
}

CUP__WIDE int32_t cup__scaled_dot(const int8_t *a, const int8_t *b, int64_t count)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (int32_t)a[i] * (int32_t)b[i];
    return sum;
}

/* The element of y at row i and column j, of integers, by the matrix of `group`. */
float cup__scaled_whole_dot(const cup__product *p, int64_t i, int64_t j, int64_t group)
{
    product_scale a_scale = p->scaling->a, b_scale = p->scaling->b;
    const int8_t *a = (const int8_t *)p->a.data + i * p->k,
                 *b = (const int8_t *)p->b.data + (group * p->n + j) * p->k;
    if (b_scale.data)
        b_scale.data += group * b_scale.group;
    if (p->scaling->kind != PRODUCT_SCALE_BLOCKS)
        return (float)cup__scaled_dot(a, b, p->k) *
               (scale_of(&a_scale, i, 0) * scale_of(&b_scale, j, 0));
    float sum = 0;
    for (int64_t k = 0; k < p->k; k += PRODUCT_SCALE_DEPTH) {
        int64_t t = k / PRODUCT_SCALE_DEPTH;
        sum += (float)cup__scaled_dot(a + k, b + k, smaller(PRODUCT_SCALE_DEPTH, p->k - k)) *
               (scale_of(&a_scale, i, t) * scale_of(&b_scale, j, t));
    }
    return sum;
}

static void exact_rows(int64_t begin, int64_t end, void *user)
{
    const job *w = user;
    const cup__product *p = &w->p;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < p->n; j++)
            ((int32_t *)(void *)p->y.data)[i * p->n + j] = cup__scaled_dot(
                (const int8_t *)p->a.data + i * p->k, (const int8_t *)p->b.data + j * p->k, p->k);
}

#define CHUNK 512

/* Rows of y: sums, then bias, then rounding. */
static void finish_rows(int64_t begin, int64_t end, void *user)
{
    const job *w = user;
    const cup__product *p = &w->p;
    cup_dtype dtype = w->s.y_dtype;
    int64_t size = cup_dtype_size(dtype);
    float row[CHUNK], bias[CHUNK];
    for (int64_t i = begin; i < end; i++)
        for (int64_t j0 = 0; j0 < p->n; j0 += CHUNK) {
            int64_t count = smaller(CHUNK, p->n - j0);
            memset(bias, 0, sizeof bias);
            if (p->bias)
                cup__load_f32(bias, (const char *)p->bias + j0 * size, dtype, count);
            for (int64_t j = 0; j < count; j++)
                row[j] = bias[j] + (w->sums ? w->sums[i * p->n + j0 + j]
                                            : cup__scaled_whole_dot(p, i, j0 + j, 0));
            cup__store_f32(p->y.data + (i * p->n + j0) * size, row, dtype, count);
        }
}

/* Lines of codes, scaled. */
typedef struct widening {
    const cup_tensor *from;
    const product_scale *scale;
    float *to;
    int64_t group_rows, columns;
    float table[256];
} widening;

static void widen_rows(int64_t begin, int64_t end, void *user)
{
    const widening *w = user;
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *from = (const uint8_t *)w->from->data + i * w->columns;
        float *to = w->to + i * w->columns, scale = 1;
        product_scale own = *w->scale;
        if (own.data)
            own.data += i / w->group_rows * own.group;
        for (int64_t k = 0; k < w->columns; k++) {
            if (k % PRODUCT_SCALE_DEPTH == 0)
                scale = scale_of(&own, i % w->group_rows, k / PRODUCT_SCALE_DEPTH);
            to[k] = w->table[from[k]] * scale;
        }
    }
}

cup_tensor *cup__scaled_widened(cup_context *c, const cup_tensor *codes, const product_scale *scale,
                                int64_t rows, int64_t group_rows, int64_t columns)
{
    cup__shape shape = {.dtype = CUP_F32, .ndim = 2, .size = {rows, columns}};
    cup_tensor *wide = cup__tensor_make(c, &shape, "decoded");
    if (!wide)
        return NULL;
    widening w = {.from = codes,
                  .scale = scale,
                  .to = wide->data,
                  .group_rows = group_rows,
                  .columns = columns};
    for (int i = 0; i < 256; i++) {
        uint8_t code = (uint8_t)i;
        cup_tensor one = {.data = &code, .dtype = codes->dtype};
        w.table[i] = (float)cup__load_any(&one, 0);
    }
    cup__parallel_for(rows, GRAIN / (columns + 1) + 1, widen_rows, &w);
    return wide;
}

static cup_status run_floats(job *w)
{
    cup_context *c = w->call->c;
    const cup__product *p = &w->p;
    cup_tensor *a = cup__scaled_widened(c, w->call->in[0], &w->s.a, p->m, p->m, p->k);
    cup_tensor *b = a ? cup__scaled_widened(c, w->call->in[1], &w->s.b, p->n, p->n, p->k) : NULL;
    cup_tensor *y = b ? cup_linear(c, a, b, NULL) : NULL;
    if (y) {
        w->sums = y->data;
        cup__parallel_for(p->m, GRAIN / (p->n + 1) + 1, finish_rows, w);
    }
    cup_status status = y ? CUP_OK : c->error.status;
    cup_tensor_free(y);
    cup_tensor_free(b);
    cup_tensor_free(a);
    return status;
}

cup_status cup__scaled_cpu(cup__call *call)
{
    job w = {.call = call};
    cup__scaled_product(call, &w.p, &w.s);
    if (w.p.dtype != CUP_I8)
        return run_floats(&w);
    int64_t grain = GRAIN / (w.p.n * (w.p.k + 1) + 1) + 1;
    cup__parallel_for(w.p.m, grain, w.s.y_dtype == CUP_I32 ? exact_rows : finish_rows, &w);
    return CUP_OK;
}
