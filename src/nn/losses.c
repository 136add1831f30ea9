/* Losses as formulas. */
#include "cupola/losses.h"

#include "cupola/expr.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"

#define MOST 4 /* inputs */

/* One loss on its way: a formula of inputs that are called x, t, v and w. */
typedef struct loss {
    cup_context *c;
    const char *name;
    cup_tensor *in[MOST];
    int count;
    cup_reduction reduction;
} loss;

static bool same_shape(cup_context *c, const char *name, const cup_tensor *x,
                       const cup_tensor *target)
{
    int ndim = x->ndim;
    bool same = ndim == target->ndim;
    for (int i = 0; same && i < ndim; i++)
        same = x->shape[i] == target->shape[i];
    if (!same)
        cup_fail(c, CUP_SHAPE,
                 "%s: the target must have the shape of x; spread it with cup_broadcast", name);
    return same;
}

/* Whether there are two float inputs of one shape and a reduction that there is. */
static bool begin(loss *l, cup_context *c, const char *name, cup_tensor *x, cup_tensor *target,
                  cup_reduction reduction)
{
    *l = (loss){.c = c, .name = name, .in = {x, target}, .count = 2, .reduction = reduction};
    if (!c || cup_error(c) != CUP_OK)
        return false;
    if (!x || !target)
        cup_fail(c, CUP_ARGUMENT, "%s: x and the targets must be tensors, not NULL", name);
    else if ((unsigned)reduction > CUP_REDUCTION_BATCH_MEAN)
        cup_fail(c, CUP_ARGUMENT, "%s: %d is no reduction; see cup_reduction", name,
                 (int)reduction);
    else if (reduction == CUP_REDUCTION_BATCH_MEAN && x->ndim == 0)
        cup_fail(c, CUP_SHAPE, "%s: a scalar has no batch", name);
    return cup_error(c) == CUP_OK;
}

/* The text's value over `axis`, or over everything at CUP_MAX_DIMS, folded as asked. */
static cup_tensor *formula(const loss *l, const char *text, const char *parameters,
                           const double *numbers, cup_expr_fold fold, int axis)
{
    static const char *const names[] = {"", "x", "x t", "x t v", "x t v w"};
    cup_expr *e = cup_expr_new(l->c, names[l->count], parameters, NULL);
    bool narrow = true;
    for (int i = 0; i < l->count; i++)
        narrow &= l->in[i] && cup_dtype_size(l->in[i]->dtype) < 4;
    cup_expr_end end = {.size = sizeof end,
                        .fold = fold,
                        .axes = &axis,
                        .axis_count = axis < CUP_MAX_DIMS,
                        .typed = narrow && fold != CUP_EXPR_FOLD_NONE,
                        .dtype = CUP_F32};
    cup_expr_result(e, cup_expr_text(e, text), &end);
    cup_tensor *y = cup_expr_call(e, l->in, numbers, NULL);
    cup_expr_free(e);
    return y;
}

static cup_tensor *over_batch(const loss *l, cup_tensor *sum)
{
    return cup_scale(l->c, sum, 1 / (double)l->in[0]->shape[0]);
}

static cup_tensor *reduced(const loss *l, const char *text, const char *parameters,
                           const double *numbers)
{
    static const cup_expr_fold folds[] = {CUP_EXPR_FOLD_MEAN, CUP_EXPR_FOLD_SUM,
                                          CUP_EXPR_FOLD_NONE, CUP_EXPR_FOLD_SUM};
    cup_tensor *y = formula(l, text, parameters, numbers, folds[l->reduction], CUP_MAX_DIMS);
    return l->reduction == CUP_REDUCTION_BATCH_MEAN ? over_batch(l, y) : y;
}

cup_tensor *cup_mse(cup_context *c, cup_tensor *x, cup_tensor *target, cup_reduction reduction)
{
    loss l;
    if (!begin(&l, c, "mse", x, target, reduction) || !same_shape(c, "mse", x, target))
        return NULL;
    return reduced(&l, "square(x-t)", NULL, NULL);
}

cup_tensor *cup_l1(cup_context *c, cup_tensor *x, cup_tensor *target, cup_reduction reduction)
{
    loss l;
    if (!begin(&l, c, "l1", x, target, reduction) || !same_shape(c, "l1", x, target))
        return NULL;
    return reduced(&l, "abs(x-t)", NULL, NULL);
}

/* The smaller of d and delta in place of a choice, so that an infinite d has a finite slope. */
cup_tensor *cup_huber(cup_context *c, cup_tensor *x, cup_tensor *target, double delta,
                      cup_reduction reduction)
{
    loss l;
    if (!begin(&l, c, "huber", x, target, reduction) || !same_shape(c, "huber", x, target))
        return NULL;
    if (!(delta > 0)) {
        cup_fail(c, CUP_ARGUMENT, "huber: delta is %g; it must be above 0", delta);
        return NULL;
    }
    return reduced(&l, "0.5*square(min(abs(x-t),k)) + k*(abs(x-t)-min(abs(x-t),k))", "k", &delta);
}

cup_tensor *cup_smooth_l1(cup_context *c, cup_tensor *x, cup_tensor *target, double beta,
                          cup_reduction reduction)
{
    loss l;
    if (beta == 0)
        return cup_l1(c, x, target, reduction);
    if (!begin(&l, c, "smooth_l1", x, target, reduction) ||
        !same_shape(c, "smooth_l1", x, target))
        return NULL;
    if (!(beta > 0)) {
        cup_fail(c, CUP_ARGUMENT, "smooth_l1: beta is %g; it must be at least 0", beta);
        return NULL;
    }
    return reduced(&l, "0.5*square(min(abs(x-t),k))/k + abs(x-t)-min(abs(x-t),k)", "k", &beta);
}

/* With s = log(1 + e^-|x|), -log sigmoid(x) is s for x above 0 and s - x below; so it is for -x. */
#define BCE(positive, all)                                                                         \
    all "((" positive "*t+1-t)*softplus(where(x>0,-x,x)) + where(x>0, (1-t)*x, -" positive "*t*x))"

cup_tensor *cup_bce_with_logits(cup_context *c, cup_tensor *x, cup_tensor *target,
                                cup_tensor *weight, cup_tensor *pos_weight,
                                cup_reduction reduction)
{
    loss l;
    if (!begin(&l, c, "bce_with_logits", x, target, reduction) ||
        !same_shape(c, "bce_with_logits", x, target))
        return NULL;
    if (weight || pos_weight)
        l.in[l.count++] = cup_broadcast(c, weight ? weight : pos_weight, x->ndim,
                                        x->shape);
    if (weight && pos_weight)
        l.in[l.count++] =
            cup_broadcast(c, pos_weight, x->ndim, x->shape);
    const char *text = weight && pos_weight ? BCE("w", "v*")
                       : pos_weight         ? BCE("v", "")
                       : weight             ? BCE("1", "v*")
                                            : BCE("1", "");
    return reduced(&l, text, NULL, NULL);
}

cup_tensor *cup_kl_div(cup_context *c, cup_tensor *x, cup_tensor *target, bool log_target,
                       cup_reduction reduction)
{
    loss l;
    if (!begin(&l, c, "kl_div", x, target, reduction) || !same_shape(c, "kl_div", x, target))
        return NULL;
    return reduced(&l,
                   log_target ? "where(exp(t)==0, 0, exp(t)*(where(exp(t)==0,0,t)-x))"
                              : "where(t==0, 0, t*(log(where(t==0,1,t))-x))",
                   NULL, NULL);
}

/* Losses of rows, and their mean by what the rows weigh. */
static cup_tensor *of_rows(const loss *l, const char *text, const char *parameters,
                           const double *numbers, cup_tensor *weights)
{
    if (l->reduction != CUP_REDUCTION_MEAN)
        return reduced(l, text, parameters, numbers);
    loss all = {.c = l->c, .in = {weights}, .count = 1}, share = {.c = l->c, .count = 2};
    share.in[0] = formula(l, text, parameters, numbers, CUP_EXPR_FOLD_SUM, CUP_MAX_DIMS);
    share.in[1] = formula(&all, "x", NULL, NULL, CUP_EXPR_FOLD_SUM, CUP_MAX_DIMS);
    return formula(&share, "where(t==0, 0, x/where(t==0,1,t))", NULL, NULL, CUP_EXPR_FOLD_NONE,
                   CUP_MAX_DIMS);
}

/* Which rows count, their classes, as numbers that are classes everywhere, and what each weighs. */
typedef struct rows {
    cup_tensor *kept, *targets, *weight;
} rows;

static bool rows_of(rows *r, const loss *l, cup_tensor *weight, int64_t ignore_index)
{
    cup_context *c = l->c;
    cup_tensor *x = l->in[0], *targets = l->in[1];
    int ndim = targets->ndim;
    const int64_t *shape = targets->shape;
    cup_dtype dtype = targets->dtype;
    bool fits = x->ndim == ndim + 1;
    for (int i = 0; fits && i < ndim; i++)
        fits = x->shape[i] == shape[i];
    if (!fits || (dtype != CUP_I32 && dtype != CUP_I64)) {
        cup_fail(c, CUP_SHAPE,
                 "%s: the targets must be i32 or i64, one for each row of x: its shape without the "
                 "last dimension",
                 l->name);
        return false;
    }
    int64_t classes = x->shape[ndim], flat = -1;
    if (weight && (weight->ndim != 1 || weight->shape[0] != classes)) {
        cup_fail(c, CUP_SHAPE, "%s: there must be one weight for each of the %lld classes", l->name,
                 (long long)classes);
        return false;
    }
    r->kept = cup_not_equal(c, targets, cup_full(c, dtype, 0, NULL, (double)ignore_index));
    r->targets = cup_where(c, r->kept, targets, cup_zeros(c, dtype, 0, NULL));
    cup_tensor *all = weight ? cup_index_select(c, weight, cup_reshape(c, r->targets, 1, &flat), 0)
                             : cup_ones(c, CUP_F32, 0, NULL);
    if (weight)
        all = cup_reshape(c, all, ndim, shape);
    r->weight = cup_where(c, r->kept, all, cup_zeros(c, all->dtype, 0, NULL));
    return cup_error(c) == CUP_OK;
}

/* x[.., target] in the shape of the targets. */
static cup_tensor *picked(cup_context *c, cup_tensor *x, cup_tensor *targets)
{
    int ndim = targets->ndim;
    int64_t shape[CUP_MAX_DIMS];
    for (int i = 0; i < ndim; i++)
        shape[i] = targets->shape[i];
    shape[ndim] = 1;
    cup_tensor *at = cup_gather(c, x, cup_reshape(c, targets, ndim + 1, shape), -1);
    return cup_reshape(c, at, ndim, shape);
}

cup_tensor *cup_nll(cup_context *c, cup_tensor *x, cup_tensor *targets, cup_tensor *weight,
                    int64_t ignore_index, cup_reduction reduction)
{
    loss l;
    rows r;
    if (!begin(&l, c, "nll", x, targets, reduction) || !rows_of(&r, &l, weight, ignore_index))
        return NULL;
    l.in[0] = cup_neg(c, picked(c, x, r.targets));
    l.in[1] = r.weight;
    return of_rows(&l, "where(t==0, 0, t*x)", NULL, NULL, r.weight);
}

static bool logits_fit(cup_context *c, const char *name, const cup_tensor *logits, double smoothing)
{
    if (logits->ndim == 0 ||
        logits->shape[logits->ndim - 1] == 0)
        cup_fail(c, CUP_SHAPE, "%s: the logits have no classes", name);
    else if (!(smoothing >= 0 && smoothing <= 1))
        cup_fail(c, CUP_ARGUMENT, "%s: label_smoothing is %g; it must be in [0, 1]", name,
                 smoothing);
    return cup_error(c) == CUP_OK;
}

/* In at least 32 bits. */
static cup_tensor *wide(cup_context *c, cup_tensor *t)
{
    return cup_dtype_size(t->dtype) < 4 ? cup_cast(c, t, CUP_F32) : t;
}

cup_tensor *cup_class_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                    cup_tensor *weight, int64_t ignore_index,
                                    double label_smoothing, cup_reduction reduction)
{
    static const char name[] = "class_cross_entropy";
    const int64_t last = -1;
    loss l;
    rows r;
    if (!begin(&l, c, name, logits, targets, reduction) ||
        !logits_fit(c, name, logits, label_smoothing) || !rows_of(&r, &l, weight, ignore_index))
        return NULL;
    int64_t classes = logits->shape[logits->ndim - 1];
    cup_tensor *x = wide(c, logits), *lse = cup_logsumexp(c, x, &last, 1, true);
    cup_tensor *own = cup_sub(c, cup_reshape(c, lse, targets->ndim,
                                             targets->shape),
                              picked(c, x, r.targets));
    l.in[0] = own;
    l.in[1] = r.weight;
    if (label_smoothing == 0)
        return of_rows(&l, "where(t==0, 0, t*x)", NULL, NULL, r.weight);
    loss rest = {.c = c, .in = {x, lse, weight}, .count = weight ? 3 : 2};
    const double parts[] = {1 - label_smoothing, label_smoothing / (double)classes};
    l.in[l.count++] = formula(&rest, weight ? "v*(t-x)" : "t-x", NULL, NULL, CUP_EXPR_FOLD_SUM,
                              x->ndim - 1);
    l.in[l.count++] = r.kept;
    return of_rows(&l, "where(w, a*where(t==0, 0, t*x) + b*v, 0)", "a b", parts, r.weight);
}

cup_tensor *cup_soft_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *target,
                                   cup_tensor *weight, double label_smoothing,
                                   cup_reduction reduction)
{
    static const char name[] = "soft_cross_entropy";
    const int64_t last = -1;
    loss l;
    if (!begin(&l, c, name, logits, target, reduction) || !same_shape(c, name, logits, target) ||
        !logits_fit(c, name, logits, label_smoothing))
        return NULL;
    int ndim = logits->ndim;
    int64_t classes = logits->shape[ndim - 1];
    int64_t count = logits->count / classes;
    if (weight && (weight->ndim != 1 || weight->shape[0] != classes)) {
        cup_fail(c, CUP_SHAPE, "%s: there must be one weight for each of the %lld classes", name,
                 (long long)classes);
        return NULL;
    }
    const double parts[] = {1 - label_smoothing, label_smoothing / (double)classes};
    l.in[0] = wide(c, logits);
    l.in[l.count++] = cup_logsumexp(c, l.in[0], &last, 1, true);
    if (weight)
        l.in[l.count++] = weight;
    bool each = reduction == CUP_REDUCTION_NONE;
    cup_tensor *sum = formula(&l,
                              weight ? "where(a*t+b==0, 0, w*(a*t+b)*(v-x))"
                                     : "where(a*t+b==0, 0, (a*t+b)*(v-x))",
                              "a b", parts, CUP_EXPR_FOLD_SUM, each ? ndim - 1 : CUP_MAX_DIMS);
    if (reduction == CUP_REDUCTION_BATCH_MEAN)
        return over_batch(&l, sum);
    return reduction == CUP_REDUCTION_MEAN ? cup_scale(c, sum, 1 / (double)count) : sum;
}
