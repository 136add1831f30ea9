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
#define MOST_INPUTS 4
#define SEED 20261122u
#define MOST_WRONG 1e6 /* epsilons of f64, far below one of f32 */

/* The matrix of a batch, its rows and its columns; `width` is how many of these there are. Gates
 * and ups lie side by side, so that a column is two in what holds both. */
typedef struct picks {
    const cup__call *call;
    const cup__epilogue *e;
    cup_context *cpu;
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

static cup_tensor *select(cup_context *c, cup_tensor *t, const int64_t *places, int count, int axis)
{
    cup_tensor *ids = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){count}, places);
    return t && ids ? cup_index_select(c, t, ids, axis) : NULL;
}

/* The rows and columns of t that were drawn, along axes of its matrix; -1: all. On the CPU. */
static cup_tensor *part_of(const picks *p, cup_tensor *t, int row_axis, int column_axis)
{
    cup_context *c = p->call->c;
    bool vector = t->ndim == 1 && row_axis < 0;
    t = vector ? t : matrix_of(p, t);
    t = t && row_axis >= 0 ? select(c, t, p->row, PICKS, row_axis) : t;
    if (t && column_axis >= 0)
        t = select(c, t, p->column, t->shape[column_axis] == p->width ? PICKS : 2 * PICKS,
                   column_axis);
    cup_tensor host, *made = NULL;
    void *memory = NULL;
    if (t && cup__on_host(t, &host, &memory))
        made = cup_tensor_from(p->cpu, t->dtype, t->ndim, t->shape, memory);
    cup__free(memory);
    return made;
}

static cup_tensor *input_part(const picks *p, int i)
{
    const cup__epilogue *e = p->e;
    const cup__matmul_attributes *turned = p->call->attributes;
    bool asked = e->turned == CUP__TURNED_AS_ASKED;
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
    const cup_tensor *y = p->call->out[0], *b = p->call->in[p->e->a + 1];
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
    cup_tensor *got = part_of(p, from, 0, 1);
    if (!got || got->count != want->count)
        return 0;
    double error = cup__compare(want, got, 0, note, size);
    return error <= MOST_WRONG ? got->count : -1;
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
    for (int i = 0; i < done->out_count; i++) {
        int64_t now = hold(p, small.out[i], done->out[i], note, note_size);
        if (now <= 0)
            return now;
        held += now;
    }
    return held;
}

int64_t cup__sampled_hold(const cup__call *done, char *note, size_t note_size)
{
    const cup__epilogue *e = done->op->epilogue;
    picks p = {.call = done, .e = e};
    if (!e || e->a || done->in_count > MOST_INPUTS || done->out_count < 1 ||
        done->out[0]->dtype != CUP_F64 || done->out[0]->count == 0)
        return 0;
    p.cpu = cup__context_cpu(cup__threads());
    int64_t held = 0;
    if (cup_error(p.cpu) == CUP_OK) {
        draw(&p);
        held = run(&p, note, note_size);
    }
    cup_context_free(p.cpu);
    cup__error_clear(&done->c->error);
    return held;
}
