/* Embedding and cross-entropy over a vocabulary of which each process has a part (Shoeybi and
 * others 2019, "Megatron-LM: training multi-billion parameter language models using model
 * parallelism"): of logits only two numbers a row go between processes. */
#include <math.h>

#include "comm/comm.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

#define NEVER (-1e30) /* a logit of no class, in any dtype but f16 */

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

cup_tensor *cup_comm_embedding(cup_comm *m, cup_tensor *part, cup_tensor *ids)
{
    if (!m || m->c->error.status != CUP_OK || check(m, "comm_embedding", part, ids) != CUP_OK)
        return NULL;
    cup_context *c = m->c;
    cup_tensor *own;
    cup_scope_open(c);
    cup_tensor *near = own_ids(m, ids, part->shape[0], &own);
    cup_tensor *rows = cup_embedding(c, part, near);
    rows = cup_where(c, column(c, own), rows, number(c, part, 0));
    return cup_scope_return(c, cup_comm_sum(m, rows));
}

/* Classes behind the last one get no probability. */
static cup_tensor *mask_classes(cup_comm *m, cup_tensor *logits, int64_t columns)
{
    cup_context *c = m->c;
    int64_t size = logits->shape[logits->ndim - 1], left = columns - m->rank * size;
    left = left < 0 ? 0 : left;
    if (left >= size)
        return logits;
    cup_tensor *place = cup_arange(c, CUP_I64, 0, (double)size, NULL);
    cup_tensor *counts = cup_less(c, place, number(c, place, (double)left));
    return cup_where(c, counts, logits, number(c, logits, NEVER));
}

/* Rows of log(sum(exp)) over all classes, and of the target's logit; where there is none of it, on
 * no process, 0. */
static void fold_rows(cup_comm *m, cup_tensor *logits, cup_tensor *targets, cup_tensor **all,
                      cup_tensor **target)
{
    cup_context *c = m->c;
    int axis = logits->ndim - 1;
    cup_tensor *own, *sum = cup_logsumexp(c, logits, &(int64_t){axis}, 1, true);
    bool was = cup_grad_recording(c, false);
    cup_tensor *most = sum ? cup_copy(c, sum) : NULL;
    cup_comm_all_reduce(m, &most, 1, CUP_COMBINE_MAX);
    cup_tensor *near = column(c, own_ids(m, targets, logits->shape[axis], &own));
    own = column(c, own);
    cup_grad_recording(c, was);
    cup_tensor *at = cup_gather(c, logits, near, axis);
    at = cup_where(c, own, at, number(c, logits, 0));
    cup_tensor *pair[] = {cup_exp(c, cup_sub(c, sum, most)), at};
    cup_tensor *sums = cup_comm_sum(m, cup_concat(c, pair, 2, axis));
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; i <= axis; i++)
        sizes[i] = i < axis ? -1 : 1;
    *all = cup_add(c, cup_log(c, cup_slice(c, sums, starts, axis + 1, sizes, axis + 1)), most);
    starts[axis] = 1;
    *target = cup_slice(c, sums, starts, axis + 1, sizes, axis + 1);
}

/* The mean of the rows whose target counts. */
static cup_tensor *mean_of(cup_context *c, cup_tensor *rows, cup_tensor *targets, int64_t ignore,
                           int64_t columns)
{
    bool was = cup_grad_recording(c, false);
    targets = column(c, targets);
    cup_tensor *none = cup_equal(c, targets, number(c, targets, (double)ignore));
    cup_tensor *one = number(c, rows, 1), *zero = number(c, rows, 0);
    cup_tensor *count = cup_sum(c, cup_where(c, none, zero, one), NULL, 0, false);
    cup_tensor *below = cup_less(c, targets, number(c, targets, 0));
    cup_tensor *beyond =
        cup_greater_equal(c, targets, number(c, targets, (double)columns));
    cup_tensor *nan = number(c, rows, NAN);
    cup_tensor *lost = cup_where(c, below, nan, cup_where(c, beyond, nan, zero));
    lost = cup_where(c, none, zero, lost);
    count = cup_maximum(c, count, one);
    cup_grad_recording(c, was);
    rows = cup_add(c, cup_where(c, none, zero, rows), lost);
    return cup_div(c, cup_sum(c, rows, NULL, 0, false), count);
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
    cup_tensor *all = NULL, *target = NULL, *loss = NULL;
    cup_scope_open(c);
    if (cup_dtype_size(logits->dtype) < 4)
        logits = cup_cast(c, logits, CUP_F32);
    logits = logits ? mask_classes(m, logits, columns) : NULL;
    if (logits)
        fold_rows(m, logits, targets, &all, &target);
    if (all && target)
        loss = mean_of(c, cup_sub(c, all, target), targets, ignore_index, columns);
    return cup_scope_return(c, loss);
}
