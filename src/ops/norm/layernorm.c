#include "ops/norm/layernorm.h"

#include <math.h>
#include <string.h>

#include "dispatch/attributes.h"

cup__layernorm cup__layernorm_of(const cup__call *call)
{
    int kind = call->op->kind, at = 1;
    cup__layernorm n = {.x = call->in[0], .centred = kind & CUP__LAYERNORM_MEAN};
    if (kind & CUP__LAYERNORM_ADD)
        n.residual = call->in[at++];
    n.gamma = call->in[at++];
    n.beta = n.centred ? call->in[at] : NULL;
    at = 0;
    n.y = call->out[at++];
    n.sum = kind & CUP__LAYERNORM_ADD ? call->out[at++] : NULL;
    if (call->out_count > at) {
        n.mean = n.centred ? call->out[at++] : NULL;
        n.rstd = call->out[at];
    }
    n.width = n.x->ndim ? n.x->shape[n.x->ndim - 1] : 1;
    n.rows = n.width ? n.x->count / n.width : n.rstd ? n.rstd->count : 0;
    n.eps = ((const cup__layernorm_attributes *)call->attributes)->eps;
    return n;
}

static cup_status check_vector(cup__call *call, const cup_tensor *t, int64_t width,
                               const char *name)
{
    cup_dtype dtype = call->in[0]->dtype;
    if (!t)
        return CUP_OK;
    if (t->dtype != dtype && (t->dtype != CUP_F32 || dtype == CUP_F64))
        return cup__call_fail(call, CUP_DTYPE, "%s must have the dtype of the first input%s", name,
                              dtype == CUP_F64 ? "" : " or f32");
    if (t->ndim != 1 || t->shape[0] != width)
        return cup__call_fail(call, CUP_SHAPE,
                              "%s must have one dimension of size %lld, the last of the first "
                              "input",
                              name, (long long)width);
    return CUP_OK;
}

/* One number a row, in single precision, or double when x is. */
static cup__shape statistic_of(const cup_tensor *x)
{
    cup__shape shape = cup__shape_of(x);
    shape.ndim--;
    shape.dtype = x->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    return shape;
}

cup_status cup__layernorm_infer(cup__call *call)
{
    cup__layernorm n = cup__layernorm_of(call);
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_eps(call, n.eps));
    CUP_TRY(check_vector(call, n.gamma, n.width, "gamma"));
    CUP_TRY(check_vector(call, n.beta, n.width, "beta"));
    if (n.gamma && n.beta && n.gamma->dtype != n.beta->dtype)
        return cup__call_fail(call, CUP_DTYPE, "gamma and beta must have one dtype");
    cup__shape shape = cup__shape_of(n.x);
    int at = 0;
    call->result[at++] = shape;
    if (n.residual) {
        cup__shape other = cup__shape_of(n.residual);
        CUP_TRY(cup__need_same_dtype(call, 0, 1));
        if (!cup__shape_equal(&shape, &other))
            return cup__call_fail(call, CUP_SHAPE, "x and the residual must have one shape");
        call->result[at++] = shape;
    }
    for (; at < call->row->results_count; at++)
        call->result[at] = statistic_of(n.x);
    return CUP_OK;
}

uint32_t cup__layernorm_by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                                 const void *attributes)
{
    (void)in_count, (void)attributes;
    return in[0]->ndim < 2 ? 0 : op->kind & CUP__LAYERNORM_ADD ? 3 : 1;
}

/* What is normalised: of a sum that which the caller gets, rounded to its dtype, and which backward
 * reads. */
static double value_at(const cup__layernorm *n, int64_t i)
{
    return n->sum ? cup__load(n->sum, i) : cup__load(n->x, cup__offset_of(n->x, i));
}

static void add_row(const cup__layernorm *n, int64_t first)
{
    for (int64_t i = first; i < first + n->width; i++)
        cup__store(n->sum, i,
                   cup__load(n->x, cup__offset_of(n->x, i)) +
                       cup__load(n->residual, cup__offset_of(n->residual, i)));
}

static double weight_at(const cup_tensor *t, int64_t i, double missing)
{
    return t ? cup__load(t, cup__offset_of(t, i)) : missing;
}

static void specify_row(const cup__layernorm *n, int64_t row)
{
    int64_t first = row * n->width;
    /* Long sums, so that those of many doubles are good ones. */
    long double sum = 0, squares = 0;
    if (n->sum)
        add_row(n, first);
    for (int64_t i = 0; i < n->width && n->centred; i++)
        sum += value_at(n, first + i);
    int64_t count = n->width ? n->width : 1;
    double mean = (double)(sum / count);
    for (int64_t i = 0; i < n->width; i++) {
        double d = value_at(n, first + i) - mean;
        squares += d * d;
    }
    double rstd = 1 / sqrt((double)(squares / count) + n->eps);
    for (int64_t i = 0; i < n->width; i++) {
        double normal = (value_at(n, first + i) - mean) * rstd;
        cup__store(n->y, first + i, normal * weight_at(n->gamma, i, 1) + weight_at(n->beta, i, 0));
    }
    if (n->mean)
        cup__store(n->mean, row, mean);
    if (n->rstd)
        cup__store(n->rstd, row, rstd);
}

static cup_status fill(cup__call *call, cup_tensor *t, double value)
{
    cup_tensor *out[CUP__MAX_OUT] = {t};
    cup__full_attributes a = {.dtype = t->dtype, .shape_count = t->ndim, .value = value};
    memcpy(a.shape, t->shape, sizeof a.shape);
    cup__op_call(call->c, &cup__rows[CUP__OP_full], NULL, 0, &a, out);
    return call->c->error.status;
}

cup_status cup__layernorm_of_nothing(cup__call *call, const cup__layernorm *n)
{
    if (n->mean)
        CUP_TRY(fill(call, n->mean, 0));
    return n->rstd ? fill(call, n->rstd, 1 / sqrt(n->eps)) : CUP_OK;
}

cup_status cup__layernorm_specification(cup__call *call)
{
    cup__layernorm n = cup__layernorm_of(call);
    for (int64_t row = 0; row < n.rows; row++)
        specify_row(&n, row);
    return CUP_OK;
}

/* The op's inputs and results stand in the order that cup__layernorm_of reads them in. */
cup_status cup__layernorm_gradient(cup__grad *g)
{
    int kind = g->row->op->kind;
    bool centred = kind & CUP__LAYERNORM_MEAN, add = kind & CUP__LAYERNORM_ADD;
    int gamma = add ? 2 : 1, beta = gamma + 1, statistic = add ? 2 : 1;
    cup_tensor *x = add ? g->out[1] : g->in[0], *dsum = add ? g->d_out[1] : NULL;
    cup_tensor *dx = NULL, *dgamma = NULL, *dbeta = NULL;
    if (!g->d_out[0]) {
        dx = dsum;
    } else {
        bool has_beta = centred && g->in_shape[beta].ndim == 1;
        cup_dtype dtype = g->in[gamma]  ? g->in[gamma]->dtype
                          : has_beta ? g->in_shape[beta].dtype
                                     : x->dtype;
        cup__layernorm_grad(g->c, g->d_out[0], x, g->out[statistic + centred],
                            centred ? g->out[statistic] : NULL, g->in[gamma], dsum, dtype,
                            g->wanted[gamma], centred && g->wanted[beta], &dx, &dgamma, &dbeta);
    }
    g->d_in[0] = dx;
    if (add)
        g->d_in[1] = dx;
    if (g->wanted[gamma])
        g->d_in[gamma] = dgamma;
    if (centred && g->wanted[beta])
        g->d_in[beta] = dbeta;
    return CUP_OK;
}

/* From the sum that is kept anyway, which is what was normalised. */
cup_tensor *cup__layernorm_again(const cup__grad *g)
{
    int kind = g->row->op->kind, gamma = kind & CUP__LAYERNORM_ADD ? 2 : 1;
    bool centred = kind & CUP__LAYERNORM_MEAN;
    cup_tensor *in[] = {gamma > 1 ? g->out[1] : g->in[0], g->in[gamma],
                        centred ? g->in[gamma + 1] : NULL};
    const cup__row *row = &cup__rows[centred ? CUP__OP_layernorm : CUP__OP_rmsnorm];
    return cup__op_call(g->c, row, in, 2 + centred, g->attributes, NULL);
}

static const cup__layernorm_attributes eps = {1e-5};
static const cup__sample samples[] = {
    {"3x5 5 5", &eps},       {"2x3x8 8 -", &eps}, {"4x7 - 7", &eps},   {"7 - -", &eps},
    {"2x1 1 1", &eps},       {"3x2x0 0 0", &eps}, {"0 - -", &eps},   {"0x5 5 5", &eps},
    {"65x768 768 768", &eps},
    {"999x3 - -", &eps}, /* rows whose mean is many deviations away */
    {"5x1025 1025 1025", &eps},
    {"2x5120 5120 5120", &eps},
    {"2x40000 40000 40000", &eps},
    {"3x30001 30001 30001", &eps},
    {"60x16400 16400 16400", &eps},
    {NULL, NULL}};
static const cup__sample bench[] = {{"1024x768 768 768", &eps},
                                    {"32768x768 768 768", &eps},
                                    {"8192x4096 4096 4096", &eps},
                                    {"8192x8192 8192 8192", &eps},
                                    {NULL, NULL}};

const cup__op cup__op_layernorm = {
    CUP__LAYERNORM(CUP__LAYERNORM_MEAN),
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2),
    .samples = samples,
    .bench = bench,
};
