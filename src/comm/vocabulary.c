/* Embedding and cross-entropy over a vocabulary of which each process has a part (Shoeybi and
 * others 2019, "Megatron-LM: training multi-billion parameter language models using model
 * parallelism"): of logits only two numbers a row go between processes. */
#include "comm/comm.h"
#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

#define NEVER (-1e30)               /* a logit of no class */
#define EXACT ((int64_t)1 << 24) /* classes whose numbers are exact in f32 */

static cup_tensor *number(cup_context *c, const cup_tensor *like, double value)
{
    return like ? cup_full(c, like->dtype, 0, NULL, value) : NULL;
}

/* Numbers of the whole as those of this process's `size` rows, the nearest where they are
 * another's; and which are its own. */
static cup_tensor *own_ids(cup_comm *m, cup_tensor *ids, int64_t size, cup_tensor **own)
{
    cup_context *c = m->c;
    cup_tensor *at = cup_sub(c, ids, number(c, ids, (double)(m->rank * size)));
    cup_tensor *near = cup_maximum(c, at, number(c, ids, 0));
    near = cup_minimum(c, near, number(c, ids, (double)(size - 1)));
    *own = cup_equal(c, at, near);
    return near;
}

/* x [..] as [..,1]. */
static cup_tensor *column(cup_context *c, cup_tensor *x)
{
    int64_t shape[CUP_MAX_DIMS];
    if (!x)
        return NULL;
    for (int i = 0; i < x->ndim; i++)
        shape[i] = x->shape[i];
    shape[x->ndim] = 1;
    return cup_reshape(c, x, x->ndim + 1, shape);
}

static cup_status check(cup_comm *m, const char *name, const cup_tensor *part,
                        const cup_tensor *ids)
{
    char a[CUP__SHAPE_TEXT], b[CUP__SHAPE_TEXT];
    if (!part || !ids)
        return cup__fail(&m->c->error, CUP_ARGUMENT, "%s: a tensor is NULL", name);
    if (part->context != m->c || ids->context != m->c)
        return cup__fail(&m->c->error, CUP_ARGUMENT,
                         "%s: a tensor belongs to another context than the communicator", name);
    if (ids->dtype != CUP_I32 && ids->dtype != CUP_I64)
        return cup__fail(&m->c->error, CUP_DTYPE, "%s: %s must be i32 or i64", name,
                         cup__tensor_text(ids, b));
    if (part->ndim >= 1 && part->count > 0 && ids->ndim + 1 <= CUP_MAX_DIMS)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE, "%s: %s and %s do not belong together", name,
                     cup__tensor_text(part, a), cup__tensor_text(ids, b));
}

/* Of the rows that ids name those that are this process's, else zeros. */
static cup_tensor *own_rows(cup_comm *m, cup_tensor *part, cup_tensor *ids)
{
    if (!m || m->c->error.status != CUP_OK || check(m, "comm_embedding", part, ids) != CUP_OK)
        return NULL;
    cup_context *c = m->c;
    cup_tensor *own;
    cup_scope_open(c);
    cup_tensor *near = own_ids(m, ids, part->shape[0], &own);
    cup_tensor *rows = cup_embedding(c, part, near);
    rows = cup_where(c, column(c, own), rows, number(c, part, 0));
    return cup_scope_return(c, rows);
}

cup_tensor *cup_comm_embedding(cup_comm *m, cup_tensor *part, cup_tensor *ids)
{
    return cup_comm_sum(m, own_rows(m, part, ids));
}

/* What all formulas of one loss know. Numbers of classes and of targets are floats, as exact as is
 * needed, since formulas of whole numbers compute in f64. */
typedef struct loss_call {
    cup_comm *m;
    cup_tensor *logits, *target, *place; /* [..,classes], [..,1], [classes] */
    double from, left; /* this process's first class, and how many of its own count */
} loss_call;

static cup_tensor *compute(cup_context *c, const char *inputs, const char *parameters,
                           const char *text, cup_tensor *const *in, const double *numbers,
                           cup_tensor **out)
{
    cup_expr *e = cup_expr_new(c, inputs, parameters, text);
    cup_tensor *y = e ? cup_expr_call(e, in, numbers, out) : NULL;
    cup_expr_free(e);
    return y;
}

/* The largest logit of each row, on any process: no formula's gradient goes through it. Classes
 * behind the last one get no probability. */
static cup_tensor *largest(const loss_call *l)
{
    cup_context *c = l->m->c;
    bool was = cup_grad_recording(c, false);
    cup_tensor *const in[] = {l->logits, l->place};
    cup_tensor *most = compute(c, "x place", "left low",
                               "max[-1,keep](where(place < left, x, low))", in,
                               (double[]){l->left, NEVER}, NULL);
    if (most)
        cup_comm_all_reduce(l->m, &most, 1, CUP_COMBINE_MAX);
    cup_grad_recording(c, was);
    return most;
}

/* Of each row the sum of exp(logit - most) over all classes, and the target's logit; where there is
 * none of it, on no process, 0. */
static void fold_rows(const loss_call *l, cup_tensor *most, cup_tensor **sum, cup_tensor **at)
{
    cup_context *c = l->m->c;
    int axis = l->logits->ndim - 1;
    cup_tensor *const in[] = {l->logits, most, l->target, l->place};
    cup_tensor *pair[2] = {NULL};
    compute(c, "x most target place", "left from low",
            "sum[-1,keep](exp(where(place < left, x - most, low))),"
            "sum[-1,keep](where(place == target - from, x, 0))",
            in, (double[]){l->left, l->from, NEVER}, pair);
    cup_tensor *sums = cup_comm_sum(l->m, cup_concat(c, pair, 2, axis));
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i <= axis; i++)
        sizes[i] = i < axis ? -1 : 1;
    *sum = cup_slice(c, sums, starts, axis + 1, sizes, axis + 1);
    starts[axis] = 1;
    *at = cup_slice(c, sums, starts, axis + 1, sizes, axis + 1);
}

/* The mean of the rows whose target counts. */
static cup_tensor *mean_of(const loss_call *l, cup_tensor *most, double ignore, double columns)
{
    cup_context *c = l->m->c;
    cup_tensor *sum = NULL, *at = NULL;
    fold_rows(l, most, &sum, &at);
    bool was = cup_grad_recording(c, false);
    cup_tensor *count = compute(c, "target", "ignore", "sum[](where(target == ignore, 0, 1))",
                                &l->target, &ignore, NULL);
    cup_grad_recording(c, was);
    cup_tensor *const in[] = {sum, at, most, l->target, count};
    return compute(c, "total at most target count", "ignore columns",
                   "bad = target < 0 || target >= columns;"
                   "row = where(bad, inf - inf, log(total) + most - at);"
                   "sum[](where(target == ignore, 0, row) / max(count, 1))",
                   in, (double[]){ignore, columns}, NULL);
}

static cup_status check_logits(cup_comm *m, const cup_tensor *logits, const cup_tensor *targets,
                               int64_t columns)
{
    char a[CUP__SHAPE_TEXT], b[CUP__SHAPE_TEXT];
    int axis = logits->ndim - 1;
    bool alike = targets->ndim == axis;
    for (int i = 0; alike && i < axis; i++)
        alike = logits->shape[i] == targets->shape[i];
    if (!alike)
        return cup__fail(&m->c->error, CUP_SHAPE,
                         "comm_cross_entropy: logits %s and targets %s do not belong together",
                         cup__tensor_text(logits, a), cup__tensor_text(targets, b));
    if (columns >= 1 && columns <= logits->shape[axis] * m->count)
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_ARGUMENT,
                     "comm_cross_entropy: %lld classes do not count of %d times %lld",
                     (long long)columns, m->count, (long long)logits->shape[axis]);
}

cup_tensor *cup_comm_cross_entropy(cup_comm *m, cup_tensor *logits, cup_tensor *targets,
                                   int64_t ignore_index, int64_t columns)
{
    if (!m || m->c->error.status != CUP_OK ||
        check(m, "comm_cross_entropy", logits, targets) != CUP_OK ||
        check_logits(m, logits, targets, columns) != CUP_OK)
        return NULL;
    cup_context *c = m->c;
    int64_t size = logits->shape[logits->ndim - 1], left = columns - m->rank * size;
    cup_dtype dtype = logits->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    cup_dtype numbers = columns > EXACT ? CUP_F64 : dtype;
    cup_scope_open(c);
    loss_call l = {.m = m,
                   .logits = logits,
                   .target = column(c, cup_cast(c, targets, numbers)),
                   .place = cup_arange(c, numbers, 0, (double)size, NULL),
                   .from = (double)(m->rank * size),
                   .left = (double)(left < 0 ? 0 : left)};
    cup_tensor *most = largest(&l), *loss = NULL;
    if (most)
        loss = mean_of(&l, most, (double)ignore_index, (double)columns);
    if (loss && loss->dtype != dtype)
        loss = cup_cast(c, loss, dtype);
    return cup_scope_return(c, loss);
}
