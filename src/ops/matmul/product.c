#include "ops/matmul/product.h"

#include <string.h>

#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

/* The strides of op(t): along its rows and columns, and over the batch dimensions of y. */
static void take_matrix(cup__matrix *m, const cup_tensor *t, bool transposed, int batch_ndim)
{
    int rows = t->ndim - 2 + transposed, columns = t->ndim - 1 - transposed;
    m->data = t->data;
    m->row = t->ndim == 1 ? 0 : t->stride[rows];
    m->column = t->ndim == 1 ? t->stride[0] : t->stride[columns];
    for (int i = 0; i < batch_ndim; i++) {
        int at = i - (batch_ndim - (t->ndim - 2));
        m->batch[i] = at < 0 || t->shape[at] == 1 ? 0 : t->stride[at];
    }
}

static bool follows(const cup__matrix *m, int outer, int inner, int64_t size)
{
    return m->batch[outer] == m->batch[inner] * size;
}

static void drop_batch(cup__product *p, int i)
{
    p->batch_ndim--;
    for (; i < p->batch_ndim; i++) {
        p->batch_size[i] = p->batch_size[i + 1];
        p->a.batch[i] = p->a.batch[i + 1];
        p->b.batch[i] = p->b.batch[i + 1];
        p->y.batch[i] = p->y.batch[i + 1];
    }
}

/* Whether one b for many a that lie behind each other is one taller a. Rows of that must be apart,
 * which those of an a that is used again and again are not, and it must lie as well as one a does:
 * single rows may have any distance between their elements and from each other. */
static bool makes_taller(const cup__product *p, int last)
{
    int64_t size = p->batch_size[last], row = p->m == 1 ? p->a.batch[last] : p->a.row;
    bool follow = p->m == 1 ? row > 0
                            : p->a.batch[last] == p->m * row && p->y.batch[last] == p->m * p->y.row;
    return p->b.batch[last] == 0 && follow &&
           (cup__product_in_lines(size * p->m, p->k, row, p->a.column) ||
            !cup__product_in_lines(p->m, p->k, p->a.row, p->a.column));
}

static void merge_batches(cup__product *p)
{
    for (int i = p->batch_ndim; i-- > 0;)
        if (p->batch_size[i] == 1)
            drop_batch(p, i);
    for (int i = p->batch_ndim - 1; i > 0; i--) {
        int64_t size = p->batch_size[i];
        if (!follows(&p->a, i - 1, i, size) || !follows(&p->b, i - 1, i, size) ||
            !follows(&p->y, i - 1, i, size))
            continue;
        p->batch_size[i] *= p->batch_size[i - 1];
        drop_batch(p, i - 1);
    }
    int last = p->batch_ndim - 1;
    while (last >= 0 && makes_taller(p, last)) {
        p->a.row = p->m == 1 ? p->a.batch[last] : p->a.row;
        p->y.row = p->m == 1 ? p->y.batch[last] : p->y.row;
        p->m *= p->batch_size[last];
        p->batch_ndim = last--;
    }
}

static void take_result(cup__matrix *m, const cup__shape *y)
{
    int64_t stride = 1;
    for (int i = y->ndim; i-- > 0; stride *= y->size[i]) {
        if (i == y->ndim - 1)
            m->column = stride;
        else if (i == y->ndim - 2)
            m->row = stride;
        else
            m->batch[i] = stride;
    }
}

void cup__product_make(cup__product *p, const cup_tensor *a, bool transpose_a, const cup_tensor *b,
                       bool transpose_b, const cup__shape *y)
{
    memset(p, 0, sizeof *p);
    p->dtype = a->dtype;
    p->y_dtype = y->dtype;
    p->factor = 1;
    p->m = y->ndim == 1 ? 1 : y->size[y->ndim - 2];
    p->n = y->size[y->ndim - 1];
    p->k = transpose_a ? a->shape[a->ndim - 2] : a->shape[a->ndim - 1];
    p->batch_ndim = y->ndim > 2 ? y->ndim - 2 : 0;
    for (int i = 0; i < p->batch_ndim; i++)
        p->batch_size[i] = y->size[i];
    take_matrix(&p->a, a, transpose_a, p->batch_ndim);
    take_matrix(&p->b, b, transpose_b, p->batch_ndim);
    take_result(&p->y, y);
    merge_batches(p);
    p->batch_count = 1;
    for (int i = 0; i < p->batch_ndim; i++)
        p->batch_count *= p->batch_size[i];
}

cup_tensor *cup__rows_of(cup_context *c, cup_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; t && i < t->ndim - 1; i++)
        rows *= t->shape[i];
    return t ? cup_reshape(c, t, 2, (int64_t[]){rows, t->shape[t->ndim - 1]}) : NULL;
}

int64_t cup__product_offset(const cup__product *p, const cup__matrix *m, int64_t t)
{
    int64_t offset = 0;
    for (int i = p->batch_ndim; i-- > 0; t /= p->batch_size[i])
        offset += t % p->batch_size[i] * m->batch[i];
    return offset;
}

/* Compiled as the op gelu is, whose numbers these are (see cup_recompute_results). */
CUP__FUSED static void gelu_row(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = cup__gelu_f32(x[i]);
}

/* f64 follows the plain text; nobody trains in it. */
static void finish_f64(const cup__product *p, int64_t at, const cup__tile *tile, double *sums,
                       int64_t distance)
{
    for (int64_t i = 0; i < tile->rows; i++) {
        double *row = sums + i * distance;
        int64_t to = at + i * p->y.row;
        for (int64_t j = 0; j < tile->columns; j++) {
            double v = row[j] + (p->bias ? ((const double *)p->bias)[tile->column + j] : 0);
            if (p->pre)
                ((double *)p->pre)[to + j] = v;
            v = p->activation == PRODUCT_GELU ? cup__gelu(v) : v;
            ((double *)(void *)p->y.data)[to + j] = v;
        }
    }
}

#define CHUNK 512

static void finish_chunk(const cup__product *p, int64_t to, int64_t column, float *sums,
                         int64_t count)
{
    int64_t size = cup_dtype_size(p->dtype);
    float bias[CHUNK];
    if (p->bias) {
        cup__load_f32(bias, (const char *)p->bias + column * size, p->dtype, count);
        cup__floats_add(sums, bias, count);
    }
    if (p->pre)
        cup__store_f32((char *)p->pre + to * size, sums, p->dtype, count);
    if (p->activation == PRODUCT_GELU)
        gelu_row(sums, sums, count);
    char *y = p->y.data + to * size;
    if (y != (char *)sums)
        cup__store_f32(y, sums, p->dtype, count);
}

void cup__product_finish(const cup__product *p, int64_t batch, const cup__tile *tile, void *sums,
                         int64_t distance)
{
    int64_t at = cup__product_offset(p, &p->y, batch) + tile->row * p->y.row + tile->column;
    if (p->dtype == CUP_F64) {
        finish_f64(p, at, tile, sums, distance);
        return;
    }
    for (int64_t i = 0; i < tile->rows; i++)
        for (int64_t j = 0; j < tile->columns; j += CHUNK)
            finish_chunk(p, at + i * p->y.row + j, tile->column + j,
                         (float *)sums + i * distance + j,
                         tile->columns - j < CHUNK ? tile->columns - j : CHUNK);
}

/* One run of elements `step` apart, as f32 or f64. */
static void gather_run(cup_dtype dtype, const char *from, int64_t step, int64_t count, void *to)
{
    int64_t size = cup_dtype_size(dtype);
    if (step == 1 && dtype != CUP_F64) {
        cup__load_f32(to, from, dtype, count);
    } else if (size == 8) {
        for (int64_t i = 0; i < count; i++)
            ((double *)to)[i] = ((const double *)(const void *)from)[i * step];
    } else if (size == 4) {
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = ((const float *)(const void *)from)[i * step];
    } else {
        const uint16_t *half = (const void *)from;
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = dtype == CUP_BF16 ? cup__from_bf16(half[i * step])
                                                 : cup__from_f16(half[i * step]);
    }
}

#define BLOCK 16

/* Columns that lie together in memory, turned into rows: 16 by 16 at a time, so that each cache
 * line is read once. */
static void gather_turned(cup_dtype dtype, const char *from, int64_t step, int64_t rows,
                          int64_t columns, float *to)
{
    float block[BLOCK][BLOCK];
    int64_t size = cup_dtype_size(dtype);
    for (int64_t i = 0; i < rows; i += BLOCK)
        for (int64_t j = 0; j < columns; j += BLOCK) {
            int64_t high = rows - i < BLOCK ? rows - i : BLOCK;
            int64_t wide = columns - j < BLOCK ? columns - j : BLOCK;
            for (int64_t y = 0; y < wide; y++)
                cup__load_f32(block[y], from + ((j + y) * step + i) * size, dtype, high);
            for (int64_t x = 0; x < high; x++)
                for (int64_t y = 0; y < wide; y++)
                    to[(i + x) * columns + j + y] = block[y][x];
        }
}

void cup__product_gather(const cup__product *p, const cup__matrix *m, int64_t batch,
                         const cup__tile *part, void *to)
{
    int64_t size = cup_dtype_size(p->dtype), wide = p->dtype == CUP_F64 ? 8 : 4;
    int64_t at = cup__product_offset(p, m, batch) + part->row * m->row + part->column * m->column;
    const char *from = m->data + at * size;
    if (m->row == 1 && m->column != 1 && p->dtype != CUP_F64) {
        gather_turned(p->dtype, from, m->column, part->rows, part->columns, to);
        return;
    }
    for (int64_t i = 0; i < part->rows; i++)
        gather_run(p->dtype, from + i * m->row * size, m->column, part->columns,
                   (char *)to + i * part->columns * wide);
}
