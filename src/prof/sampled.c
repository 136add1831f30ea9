#include "prof/sampled.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"
#include "prof/compare.h"
#include "prof/draw.h"

#define PICKS 24
#define MOST_INPUTS 4 /* of calls that are held */
#define SEED 20261122u
#define MOST_WRONG 1e6 /* epsilons of f64, far below one of f32 */

/* The matrix of a batch, its rows and its columns; `width` is how many of these there are. Gates
 * and ups lie side by side, so that a column is two in what holds both. */
typedef struct picks {
    const cup__call *call;
    const cup__epilogue *e;
    cup_context *cpu;
    cup_tensor *before; /* y of a product in place, as it was */
    bool of_batch; /* matrices in a batch; otherwise the dimensions before the last are rows */
    int64_t batch[CUP_MAX_DIMS], row[PICKS], column[2 * PICKS], width;
} picks;

static void pick(int64_t *to, int64_t size, uint64_t *state)
{
    for (int i = 0; i < PICKS; i++)
        to[i] = i == 0 ? 0 : i == 1 ? size - 1 : cup__draw_below(state, size);
}

/* The two dimensions of one matrix. */
static cup_tensor *matrix_of(const picks *p, cup_tensor *t)
{
    cup_context *c = p->call->c;
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS], last = t->shape[t->ndim - 1];
    for (int d = 0; d < t->ndim; d++) {
        bool chosen = p->of_batch && d < t->ndim - 2;
        int64_t place = p->batch[CUP_MAX_DIMS - t->ndim + d];
        starts[d] = chosen && t->shape[d] > 1 ? place : 0;
        sizes[d] = chosen ? 1 : t->shape[d];
    }
    t = p->of_batch ? cup_slice(c, t, starts, t->ndim, sizes, t->ndim) : t;
    return t ? cup_reshape(c, t, 2, (int64_t[]){t->count / last, last}) : NULL;
}

cup_tensor *cup__sampled_select(cup_tensor *t, const int64_t *places, int64_t count, int axis)
{
    cup_tensor *ids = t ? cup_tensor_from(t->context, CUP_I64, 1, &count, places) : NULL;
    return ids ? cup_index_select(t->context, t, ids, axis) : NULL;
}

static cup_tensor *bring(cup_context *cpu, cup_tensor *t)
{
    cup_tensor host, *made = NULL;
    void *memory = NULL;
    if (t && cup__on_host(t, &host, &memory))
        made = cup_tensor_from(cpu, t->dtype, t->ndim, t->shape, memory);
    cup__free(memory);
    return made;
}

/* Two tensors of one shape. */
static int64_t compare(cup_tensor *want, cup_tensor *got, char *note, size_t size)
{
    if (!want || !got || got->count != want->count)
        return 0;
    return cup__compare(want, got, 0, note, size) <= MOST_WRONG ? got->count : -1;
}

int64_t cup__sampled_compare(const cup__row *row, cup_context *cpu, cup_tensor *const *in,
                             int count, const void *attributes, cup_tensor *got, char *note,
                             size_t note_size)
{
    cup_tensor *own[MOST_INPUTS] = {NULL};
    cup__call small;
    for (int i = 0; i < count && i < MOST_INPUTS; i++)
        if (in[i] && !(own[i] = bring(cpu, in[i])))
            return 0;
    if (cup__call_begin(&small, cpu, row, own, count, attributes) != CUP_OK ||
        cup__call_allocate(&small) != CUP_OK || cup__call_run(&small, NULL) != CUP_OK)
        return 0;
    return compare(small.out[0], bring(cpu, got), note, note_size);
}

/* The rows and columns of t that were drawn, along axes of its matrix; -1: all. On the CPU. */
static cup_tensor *part_of(const picks *p, cup_tensor *t, int row_axis, int column_axis)
{
    bool vector = t->ndim == 1 && row_axis < 0;
    t = vector ? t : matrix_of(p, t);
    t = row_axis >= 0 ? cup__sampled_select(t, p->row, PICKS, row_axis) : t;
    if (t && column_axis >= 0)
        t = cup__sampled_select(t, p->column, t->shape[column_axis] == p->width ? PICKS : 2 * PICKS,
                                column_axis);
    return bring(p->cpu, t);
}

static cup_tensor *input_part(const picks *p, int i)
{
    const cup__epilogue *e = p->e;
    const cup__matmul_attributes *turned = p->call->attributes;
    bool asked = e->turned == CUP__TURNED_AS_ASKED;
    if (i == 0 && e->a) {
        cup_tensor *y = part_of(p, e->adding ? p->before : p->call->in[0], 0, 1);
        return y ? cup_cast(p->cpu, y, CUP_F64) : NULL;
    }
    if (i == e->a)
        return part_of(p, p->call->in[i], asked && turned->transpose_a ? 1 : 0, -1);
    if (i == e->a + 1) {
        bool first = asked ? turned->transpose_b : e->turned == CUP__TURNED_WEIGHT;
        return part_of(p, p->call->in[i], -1, first ? 0 : 1);
    }
    return i == e->bias ? part_of(p, p->call->in[i], -1, 0) : part_of(p, p->call->in[i], 0, 1);
}

static void draw(picks *p)
{
    const cup_tensor *y = p->e->a ? p->call->in[0] : p->call->out[0], *b = p->call->in[p->e->a + 1];
    uint64_t state = SEED;
    int64_t columns = y->shape[y->ndim - 1], rows = y->count / columns;
    for (int d = 0; d < y->ndim; d++)
        p->batch[CUP_MAX_DIMS - y->ndim + d] = cup__draw_below(&state, y->shape[d]);
    p->of_batch = p->e->turned == CUP__TURNED_AS_ASKED;
    p->width = p->e->back && p->e->gated ? b->shape[1] : columns;
    pick(p->row, p->of_batch ? y->shape[y->ndim - 2] : rows, &state);
    pick(p->column, p->width, &state);
    for (int i = 0; i < PICKS; i++)
        p->column[PICKS + i] = p->width + p->column[i];
}

/* The result of the small call, and the same elements of the large one's. */
static int64_t hold(const picks *p, cup_tensor *want, cup_tensor *from, char *note, size_t size)
{
    return compare(want, part_of(p, from, 0, 1), note, size);
}

static int64_t run(const picks *p, char *note, size_t note_size)
{
    const cup__call *done = p->call;
    cup_tensor *in[MOST_INPUTS] = {NULL};
    cup__call small;
    int64_t held = 0;
    for (int i = 0; i < done->in_count; i++)
        if (done->in[i] && !(in[i] = input_part(p, i)))
            return 0;
    if (cup__call_begin(&small, p->cpu, done->row, in, done->in_count, done->attributes) != CUP_OK)
        return 0;
    small.saving = done->saving;
    small.out_count = done->out_count;
    if (cup__call_allocate(&small) != CUP_OK || cup__call_run(&small, NULL) != CUP_OK)
        return 0;
    if (p->e->a)
        return hold(p, small.in[0], done->in[0], note, note_size);
    for (int i = 0; i < done->out_count; i++) {
        int64_t now = hold(p, small.out[i], done->out[i], note, note_size);
        if (now <= 0)
            return now;
        held += now;
    }
    return held;
}

static int64_t hold_product(const cup__call *done, cup_tensor *before, cup_context *cpu,
                            char *note, size_t note_size)
{
    picks p = {.call = done, .e = done->op->epilogue, .cpu = cpu, .before = before};
    if (p.e->a > 1 || (p.e->adding && !before))
        return 0;
    draw(&p);
    return run(&p, note, note_size);
}

int64_t cup__sampled_hold(const cup__call *done, cup_tensor *before, char *note, size_t note_size)
{
    const cup__epilogue *e = done->op->epilogue;
    const cup_tensor *y = e && e->a ? done->in[0] : done->out_count ? done->out[0] : NULL;
    bool conv = !strncmp(done->row->name, "conv2d", 6), attention;
    attention = !strcmp(done->row->name, "attention");
    if ((!e && !conv && !attention) || (e && done->in_count > MOST_INPUTS) || !y ||
        y->dtype != CUP_F64 || y->count == 0)
        return 0;
    cup_context *cpu = cup__context_cpu(cup__threads());
    int64_t held = 0;
    if (cup_error(cpu) == CUP_OK)
        held = e      ? hold_product(done, before, cpu, note, note_size)
               : conv ? cup__sampled_conv(done, cpu, note, note_size)
                      : cup__sampled_attention(done, cpu, note, note_size);
    cup_context_free(cpu);
    cup__error_clear(&done->c->error);
    return held;
}
