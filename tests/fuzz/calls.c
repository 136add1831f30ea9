/* Any sequence of calls on tensors, with views of one memory, changes in place, scopes, tensors
 * that end while the tape needs them, and memory that runs out, gives the numbers, and the
 * gradients, of a plain model of it; or a call fails with a sentence, and has changed nothing. */
#include "calls.h"
#include "calls_life.h"

#include <math.h>

#include "base/memory.h"
#include "cupola/expr.h"
#include "cupola/functions.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "cupola/wrap.h"

/* A new tensor of whole numbers, which all of the model's numbers stay as far as they are exact. */
static void call_new(game *g)
{
    double data[MOST];
    int64_t shape[3];
    int ndim = draw_shape(g, shape);
    int64_t count = count_of(ndim, shape);
    for (int64_t i = 0; i < count; i++)
        data[i] = (double)draw(g, 7) - 3;
    cup_tensor *t = cup_tensor_from(g->c, CUP_F64, ndim, shape, data);
    if (worked(g, t != NULL))
        add_fresh(g, t, ndim, shape, data);
}

/* Memory of the caller's whose dimensions may lie in another order. */
static void call_wrap(game *g)
{
    int64_t shape[3], strides[3] = {0}, step = 1;
    int ndim = draw_shape(g, shape);
    int64_t count = count_of(ndim, shape);
    bool turned = draw(g, 2), read_only = draw(g, 4) == 0;
    for (int i = 0; i < ndim; i++) {
        int at = turned ? i : ndim - 1 - i;
        strides[at] = step;
        step *= shape[at] ? shape[at] : 1;
    }
    double *memory = calloc(count ? (size_t)count : 1, sizeof *memory);
    cup_tensor *t = cup_tensor_wrap(g->c, CUP_F64, ndim, shape, memory,
                                    CUP_OPTIONS(cup_wrap_options, .strides = strides,
                                                .read_only = read_only, .release = free,
                                                .user = memory));
    if (!worked(g, t != NULL)) {
        free(memory);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memory[i] = (double)draw(g, 7) - 3;
    thing *x = add_fresh(g, t, ndim, shape, memory);
    memcpy(x->stride, strides, sizeof strides);
}

static void call_permute(game *g, thing *x)
{
    int over[3] = {0, 1, 2};
    int64_t axes[3], shape[3];
    for (int i = x->ndim - 1; i > 0; i--) {
        int k = (int)draw(g, (unsigned)i + 1), axis = over[i];
        over[i] = over[k], over[k] = axis;
    }
    for (int i = 0; i < x->ndim; i++)
        axes[i] = over[i], shape[i] = x->shape[over[i]];
    cup_tensor *t = cup_permute(g->c, x->t, axes, x->ndim);
    if (worked(g, t != NULL))
        add_view(g, x, t, x->ndim, shape, over, NULL);
}

static void call_slice(game *g, thing *x)
{
    int64_t starts[3], sizes[3];
    for (int i = 0; i < x->ndim; i++) {
        starts[i] = draw(g, (unsigned)x->shape[i] + 1);
        sizes[i] = draw(g, (unsigned)(x->shape[i] - starts[i]) + 1);
    }
    cup_tensor *t = cup_slice(g->c, x->t, starts, x->ndim, sizes, x->ndim);
    if (worked(g, t != NULL))
        add_view(g, x, t, x->ndim, sizes, (int[]){0, 1, 2}, starts);
}

static void call_broadcast(game *g, thing *x)
{
    int64_t shape[3];
    int ndim = x->ndim + (int)draw(g, (unsigned)(4 - x->ndim)), more = ndim - x->ndim, over[3];
    for (int i = 0; i < ndim; i++) {
        int64_t size = i < more ? 1 : x->shape[i - more];
        shape[i] = size == 1 ? 1 + draw(g, 3) : size;
        over[i] = size == 1 ? -1 : i - more;
    }
    if (count_of(ndim, shape) > MOST)
        return;
    cup_tensor *t = cup_broadcast(g->c, x->t, ndim, shape);
    if (worked(g, t != NULL))
        add_view(g, x, t, ndim, shape, over, NULL);
}

/* Whether it is a view follows from the strides, and is asked of the tensor itself. */
static void call_reshape(game *g, thing *x)
{
    int64_t count = count_of(x->ndim, x->shape), first = 1 + draw(g, 4);
    if (!count || count % first)
        return;
    const int64_t shape[] = {first, count / first};
    cup_tensor *t = cup_reshape(g->c, x->t, 2, (int64_t[]){first, draw(g, 2) ? -1 : shape[1]});
    if (!worked(g, t != NULL))
        return;
    rule r;
    rule_begin(&r, count);
    for (int64_t i = 0; i < count; i++)
        rule_add(&r, i, 0, i, 1, value_at(x, i));
    add_result(g, t, 2, shape, &r, &x, 1);
    if (cup_tensor_data(t) == cup_tensor_data(x->t)) {
        thing *y = &g->things[g->count - 1];
        y->block = x->block;
        y->offset = x->offset;
        for (int i = 0; i < 2; i++)
            y->stride[i] = cup_tensor_stride(t, i);
    }
}

static void call_view(game *g)
{
    thing *x = pick(g);
    if (!x)
        return;
    switch (draw(g, 5)) {
    case 0:
        call_permute(g, x);
        break;
    case 1:
        call_slice(g, x);
        break;
    case 2:
        call_broadcast(g, x);
        break;
    case 3:
        call_reshape(g, x);
        break;
    default: {
        cup_tensor *t = cup_detach(x->t);
        if (worked(g, t != NULL)) {
            add_view(g, x, t, x->ndim, x->shape, (int[]){0, 1, 2}, NULL);
            g->things[g->count - 1].node = NULL;
        }
    }
    }
}

/* a b + a, as a block that backward runs again and as a formula. */
static cup_tensor *in_block(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    MUST(count == 2 && !user);
    cup_scope_open(c);
    return cup_scope_return(c, cup_add(c, cup_mul(c, in[0], in[1]), in[0]));
}

static cup_tensor *recomputed(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    return cup_recompute(c, in_block, (cup_tensor *[]){a, b}, 2, NULL);
}

static cup_tensor *formula(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_expr *e = cup_expr_new(c, "a b", NULL, "a * b + a");
    cup_tensor *y = cup_expr_call(e, (cup_tensor *[]){a, b}, NULL, NULL);
    cup_expr_free(e);
    return y;
}

enum { ADD, SUB, MUL, RECOMPUTED, FORMULA, PAIRS };

static void pair_part(rule *r, unsigned which, int64_t i, const int64_t *at, double a, double b)
{
    bool product = which >= MUL, more = which >= RECOMPUTED;
    double slopes[2] = {product ? b + more : 1, product ? a : which == SUB ? -1 : 1};
    rule_add(r, i, 0, at[0], slopes[0], product ? a * b + more * a : a);
    rule_add(r, i, 1, at[1], slopes[1], product ? 0 : slopes[1] * b);
}

/* Functions of two tensors, which broadcast. */
static void call_pair(game *g)
{
    typedef cup_tensor *(*function)(cup_context *, cup_tensor *, cup_tensor *);
    static const function functions[] = {cup_add, cup_sub, cup_mul, recomputed, formula};
    thing *in[2] = {pick(g), pick(g)};
    int64_t shape[3];
    unsigned which = draw(g, PAIRS);
    /* Of a block that leads to no parameter the tape knows nothing. */
    if (!in[0] || !in[1] ||
        (which == RECOMPUTED && g->recording && !node_of(g, in[0]) && !node_of(g, in[1])))
        return;
    int ndim = broadcast_shape(in[0], in[1], shape);
    cup_tensor *t = functions[which](g->c, in[0]->t, in[1]->t);
    if (ndim < 0 || count_of(ndim, shape) > MOST) {
        MUST(ndim >= 0 || !t);
        cup_error_clear(g->c);
        return;
    }
    if (!worked(g, t != NULL))
        return;
    rule r;
    int64_t count = count_of(ndim, shape);
    rule_begin(&r, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2] = {place_in(in[0], ndim, shape, i), place_in(in[1], ndim, shape, i)};
        pair_part(&r, which, i, at, value_at(in[0], at[0]), value_at(in[1], at[1]));
    }
    add_result(g, t, ndim, shape, &r, in, 2);
}

static void call_one(game *g)
{
    thing *x = pick(g);
    if (!x)
        return;
    unsigned which = draw(g, 5);
    cup_tensor *t = which == 0   ? cup_neg(g->c, x->t)
                    : which == 1 ? cup_relu(g->c, x->t)
                    : which == 2 ? cup_scale(g->c, x->t, 2)
                    : which == 3 ? cup_square(g->c, x->t)
                                 : cup_copy(g->c, x->t);
    if (!worked(g, t != NULL))
        return;
    rule r;
    int64_t count = count_of(x->ndim, x->shape);
    rule_begin(&r, count);
    for (int64_t i = 0; i < count; i++) {
        double v = value_at(x, i);
        double slopes[] = {-1, v > 0, 2, 2 * v, 1};
        rule_add(&r, i, 0, i, slopes[which], which == 3 ? v * v : slopes[which] * v);
    }
    add_result(g, t, x->ndim, x->shape, &r, &x, 1);
}

static void call_sum(game *g)
{
    thing *x = pick(g);
    if (x)
        sum_over(g, x, false, draw(g, 2));
}

/* The rule of a matrix product, or -1 where the shapes are of none. */
static int64_t product_rule(rule *r, thing *a, thing *b, bool turn_a, bool turn_b)
{
    if (a->ndim != 2 || b->ndim != 2 || a->shape[!turn_a] != b->shape[turn_b])
        return -1;
    int64_t rows = a->shape[turn_a], inner = a->shape[!turn_a], columns = b->shape[!turn_b];
    if (rows * columns > MOST || rows * columns * inner > 8 * MOST)
        return -1;
    rule_begin(r, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++)
        for (int64_t k = 0; k < inner; k++) {
            int64_t row = i / columns, column = i % columns;
            int64_t at = turn_a ? k * rows + row : row * inner + k;
            int64_t bt = turn_b ? column * inner + k : k * columns + column;
            rule_add(r, i, 0, at, value_at(b, bt), value_at(a, at) * value_at(b, bt));
            rule_add(r, i, 1, bt, value_at(a, at), 0);
        }
    return columns;
}

static void call_matmul(game *g)
{
    thing *in[2] = {pick_matrix(g), pick_matrix(g)};
    bool turn_a = draw(g, 2), turn_b = draw(g, 2);
    static rule r;
    int64_t columns = in[0] && in[1] ? product_rule(&r, in[0], in[1], turn_a, turn_b) : -1;
    if (columns < 0)
        return;
    cup_tensor *t = cup_matmul(g->c, in[0]->t, in[1]->t, turn_a, turn_b);
    if (worked(g, t != NULL))
        add_result(g, t, 2, (int64_t[]){in[0]->shape[turn_a], columns, 0}, &r, in, 2);
}

static void call_concat(game *g)
{
    thing *in[2] = {pick(g), pick(g)};
    if (!in[0] || !in[1] || in[0]->ndim != in[1]->ndim || !in[0]->ndim)
        return;
    int64_t shape[3];
    int ndim = in[0]->ndim;
    for (int i = 0; i < ndim; i++) {
        shape[i] = in[0]->shape[i];
        if (i && shape[i] != in[1]->shape[i])
            return;
    }
    shape[0] += in[1]->shape[0];
    if (count_of(ndim, shape) > MOST)
        return;
    cup_tensor *t = cup_concat(g->c, (cup_tensor *[]){in[0]->t, in[1]->t}, 2, 0);
    if (!worked(g, t != NULL))
        return;
    rule r;
    rule_begin(&r, count_of(ndim, shape));
    int64_t to = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0, all = count_of(ndim, in[k]->shape); i < all; i++)
            rule_add(&r, to++, k, i, 1, value_at(in[k], i));
    add_result(g, t, ndim, shape, &r, in, 2);
}

/* What may be changed in place is what the library says; the model then changes as well. */
static void call_copy_into(game *g)
{
    thing *y = pick(g), *x = pick(g);
    double data[MOST];
    int64_t shape[3];
    if (!y || !x)
        return;
    bool fits = broadcast_shape(y, x, shape) == y->ndim &&
                !memcmp(shape, y->shape, (size_t)y->ndim * sizeof *shape);
    int64_t count = count_of(y->ndim, y->shape);
    for (int64_t i = 0; fits && i < count; i++)
        data[i] = value_at(x, place_in(x, y->ndim, y->shape, i));
    bool done = cup_copy_into(g->c, y->t, x->t) == CUP_OK;
    MUST(fits || !done);
    if (allowed(g, done))
        change(y, data);
}

static void call_write(game *g)
{
    thing *y = pick(g);
    double data[MOST];
    if (!y)
        return;
    int64_t count = count_of(y->ndim, y->shape);
    for (int64_t i = 0; i < count; i++)
        data[i] = (double)draw(g, 7) - 3;
    if (allowed(g, cup_tensor_write(y->t, data, (size_t)count * sizeof *data) == CUP_OK))
        change(y, data);
}

static void call_matmul_into(game *g)
{
    thing *y = pick_matrix(g), *in[2] = {pick_matrix(g), pick_matrix(g)};
    bool turn_a = draw(g, 2), turn_b = draw(g, 2), add = draw(g, 2);
    rule r;
    if (!y || product_rule(&r, in[0], in[1], turn_a, turn_b) != y->shape[1] ||
        in[0]->shape[turn_a] != y->shape[0])
        return;
    for (int64_t i = 0; add && i < r.count; i++)
        r.value[i] += value_at(y, i);
    bool done = (add ? cup_matmul_add : cup_matmul_into)(g->c, y->t, in[0]->t, in[1]->t, turn_a,
                                                        turn_b) == CUP_OK;
    if (allowed(g, done))
        change(y, r.value);
}

static void call_check(game *g)
{
    cup__memory_fail_at(0, false);
    for (int i = 0; i < g->count; i++)
        if (g->things[i].t)
            check_thing(&g->things[i]);
}

static void (*const calls[])(game *g) = {
    call_new,       call_new,    call_wrap, call_view, call_view,   call_view,      call_pair,
    call_pair,      call_pair,   call_one,  call_one,  call_sum,    call_matmul,    call_matmul,
    call_concat,    call_copy_into, call_copy_into, call_write, call_matmul_into, call_life,
    call_life,      call_life,   call_grad, call_grad, call_grad,   call_grad,      call_check};
#define CALLS (sizeof calls / sizeof *calls)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static game g;
    g = (game){.at = data, .end = data + size, .recording = true};
    g.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1));
    MUST(cup_error(g.c) == CUP_OK);
    g.fails = draw(&g, 2);
    while (g.at < g.end && g.count < THINGS - 4 && g.order_count < THINGS - 4) {
        g.failing = g.fails && draw(&g, 4) == 0;
        unsigned which = draw(&g, CALLS);
        if (g.failing)
            cup__memory_fail_at(1 + draw(&g, 12), draw(&g, 2));
        calls[which](&g);
        cup__memory_fail_at(0, false);
        MUST(cup_error(g.c) == CUP_OK);
    }
    call_check(&g);
    cup_context_free(g.c);
    for (void *next; g.made; g.made = next) {
        next = *(void **)g.made;
        free(g.made);
    }
    return 0;
}
