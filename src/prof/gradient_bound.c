#include "prof/gradient_bound.h"

#include <math.h>

#include "base/memory.h"
#include "prof/compare.h"
#include "prof/cost.h"
#include "prof/draw.h"

#define SEED 20261122u
#define MOST_ROUNDINGS 64   /* of a sum; a factor of a matrix that is kept may be off more */
#define MOST_OF_16_BITS 12 /* what tensor cores are fed rounded; of sums nothing shows */

double cup__gradient_roundings(const cup__gradient_call *g, int i, double least)
{
    double most = fmax(least, g->row->op->tolerance), sizes = 1, count = 1;
    for (int k = 0; k < g->in_count; k++) {
        const cup_tensor *t = g->in[k];
        for (int d = 0; t && d < t->ndim; d++)
            sizes = fmax(sizes, (double)t->shape[d]);
        count = t ? fmax(count, (double)t->count) : count;
    }
    if (cup_dtype_size(g->dtype) < 4)
        return fmin(most, fmax(least, MOST_OF_16_BITS));
    double own = fmax(1, g->in[i] ? (double)g->in[i]->count : 1);
    return fmax(most, sqrt(fmax(sizes, count / own)));
}

double cup__gradient_growth(cup_context *c, const cup__gradient_call *g)
{
    cup__call call;
    double bytes, flops = 0, count = 1;
    if (cup_dtype_size(g->dtype) < 4)
        return 1;
    cup_scope_open(c);
    if (cup__call_begin(&call, c, g->row, g->in, g->in_count, g->attributes) == CUP_OK &&
        cup__call_allocate(&call) == CUP_OK) {
        for (int i = 0; i < call.out_count; i++)
            count = fmax(count, (double)call.out[i]->count);
        cup__call_cost(&call, &bytes, &flops);
    }
    cup__scope_pop(c);
    cup__error_clear(&c->error);
    return fmax(1, sqrt(flops / count) / 8);
}

cup_tensor *cup__gradient_numbers(cup_context *c, const cup__shape *like, cup_dtype rounded,
                           cup_dtype hold, uint64_t seed, double middle, double scale)
{
    cup__shape shape = *like;
    uint64_t bits, state = seed;
    cup_tensor one = {.data = &bits, .dtype = rounded};
    shape.dtype = hold;
    cup_tensor *t = cup__tensor_make(c, &shape, "sample");
    char *values = t ? cup__malloc((size_t)(t->count * cup_dtype_size(hold))) : NULL;
    cup_tensor to = {.data = values, .dtype = hold};
    for (int64_t i = 0; values && i < t->count; i++) {
        double unit = (double)(cup__draw_word(&state) >> 11) * 0x1p-52 - 1;
        cup__store(&one, 0, middle + scale * unit);
        cup__store(&to, i, cup__load(&one, 0));
    }
    if (values)
        cup_tensor_write(t, values, (size_t)(t->count * cup_dtype_size(hold)));
    cup__free(values);
    return t;
}

static void move(cup_tensor *t, cup_dtype stored, double roundings, int draw)
{
    uint64_t bits, state = SEED + (uint64_t)draw;
    cup_tensor one = {.data = &bits, .dtype = stored};
    for (int64_t i = 0; i < t->count; i++) {
        double value = cup__load(t, cup__offset_of(t, i));
        double by = (cup__draw_word(&state) >> 63 ? 1 : -1) * roundings * cup__epsilon(stored);
        cup__store(&one, 0, value);
        if (isfinite(value) && cup__load(&one, 0) != value)
            cup__store(t, cup__offset_of(t, i), value * (1 + by));
    }
}

cup_status cup__gradient_move_kept(cup_context *c, const cup__gradient_call *g,
                                   cup_tensor *const *in, cup_tensor *const *out, int draw)
{
    cup__call call;
    double tolerance = g->row->op->tolerance;
    CUP_TRY(cup__call_begin(&call, c, g->row, in, g->in_count, g->attributes));
    for (int i = 0; i < g->row->visible; i++)
        if (g->row->op->saves & CUP__SAVE_OUT(i) && out[i] && out[i]->dtype == CUP_F64)
            move(out[i], call.result[i].dtype, tolerance > MOST_ROUNDINGS ? tolerance : 1, draw);
    return CUP_OK;
}

static double apart(const cup_tensor *a, const cup_tensor *b, int64_t i)
{
    return fabs(cup__load(a, cup__offset_of(a, i)) - cup__load(b, cup__offset_of(b, i)));
}

double cup__gradient_usual(const cup_tensor *most)
{
    double squares = 0;
    for (int64_t i = 0; i < most->count; i++)
        squares += pow(((const double *)most->data)[i], 2);
    return most->count ? sqrt(squares / (double)most->count) : 0;
}

void cup__gradient_apart(const cup_tensor *a, const cup_tensor *b, cup_tensor *most)
{
    int64_t width = a->ndim ? a->shape[a->ndim - 1] : 1;
    double *to = most->data;
    for (int64_t row = 0; row * width < a->count; row++) {
        double by = 0;
        for (int64_t k = 0; k < width; k++)
            by = fmax(by, apart(a, b, row * width + k));
        for (int64_t k = 0; k < width; k++)
            to[row * width + k] = fmax(to[row * width + k], by);
    }
}
