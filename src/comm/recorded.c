/* Operations with gradients, as ops of one's own: their backward is such an operation too, so that
 * derivatives of any order go through them. */
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"

/* Of an operation in which some process is another than the rest; it begins as those do in which
 * all are alike, with the communicator. */
typedef struct ends {
    cup_comm *m;
    int from, to;
} ends;

static cup_comm *comm_of(const void *attributes)
{
    return *(cup_comm *const *)attributes;
}

static cup_tensor *record(cup_comm *m, const cup_custom_op *op, cup_tensor *x,
                          const void *attributes)
{
    cup_tensor *y = NULL;
    if (!m || !x || m->c->error.status != CUP_OK)
        return NULL;
    if (x->context != m->c) {
        cup__fail(&m->c->error, CUP_ARGUMENT,
                  "%s: the tensor belongs to another context than the communicator", op->name);
        return NULL;
    }
    cup_custom(m->c, op, &x, 1, attributes, &y);
    return y;
}

/* A tensor whose first dimension is so many times, or such a part, of x's. */
static cup_tensor *like(cup_context *c, const cup_tensor *x, int64_t times, int64_t parts)
{
    int64_t shape[CUP_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        shape[i] = x->shape[i];
    shape[0] = shape[0] * times / parts;
    return cup_tensor_new(c, x->dtype, x->ndim, shape);
}

static cup_status check_rows(cup_comm *m, const char *name, const cup_tensor *x, bool parts)
{
    char text[CUP__SHAPE_TEXT];
    if (x->ndim > 0 && (!parts || x->shape[0] % m->count == 0))
        return CUP_OK;
    return cup__fail(&m->c->error, CUP_SHAPE,
                     "%s: the first dimension of %s is not one, or not a multiple of the %d "
                     "processes",
                     name, cup__tensor_text(x, text), m->count);
}

static cup_status combine(cup_context *c, cup_tensor *x, const void *attributes, cup_combine how,
                          cup_tensor **out)
{
    *out = cup_copy(c, x);
    if (cup__device_is_dry(c->device))
        return c->error.status;
    return *out ? cup_comm_all_reduce(comm_of(attributes), out, 1, how) : c->error.status;
}

static cup_status sum_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count;
    return combine(c, in[0], attributes, CUP_COMBINE_SUM, out);
}

static cup_status sum_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_comm_sum(comm_of(g->attributes), g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op sum = {.size = sizeof sum,
                                  .name = "comm_sum",
                                  .output_count = 1,
                                  .attributes_size = sizeof(cup_comm *),
                                  .forward = sum_forward,
                                  .backward = sum_backward,
                                  .second_derivatives = true};

cup_tensor *cup_comm_sum(cup_comm *m, cup_tensor *x)
{
    return record(m, &sum, x, &m);
}

static cup_status mean_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    (void)count;
    return combine(c, in[0], attributes, CUP_COMBINE_MEAN, out);
}

static cup_status mean_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_comm_mean(comm_of(g->attributes), g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op mean = {.size = sizeof mean,
                                   .name = "comm_mean",
                                   .output_count = 1,
                                   .attributes_size = sizeof(cup_comm *),
                                   .forward = mean_forward,
                                   .backward = mean_backward,
                                   .second_derivatives = true};

cup_tensor *cup_comm_mean(cup_comm *m, cup_tensor *x)
{
    return record(m, &mean, x, &m);
}

static cup_status min_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count;
    return combine(c, in[0], attributes, CUP_COMBINE_MIN, out);
}

static cup_status max_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count;
    return combine(c, in[0], attributes, CUP_COMBINE_MAX, out);
}

/* Processes that have the same extreme value share its gradient, as elements do in cup_max. */
static cup_status extreme_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_comm *m = comm_of(g->attributes);
    cup_tensor *dy = cup_comm_sum(m, g->d_outputs[0]);
    cup_tensor *is = cup_equal(c, g->inputs[0], g->outputs[0]), *zero = cup__number(c, dy, 0);
    cup_tensor *n = cup_where(c, is, cup__number(c, dy, 1), zero);
    n = n ? cup_comm_sum(m, n) : NULL;
    g->d_inputs[0] = cup_where(c, is, cup_div(c, dy, n), zero);
    return c->error.status;
}

static const cup_custom_op min = {.size = sizeof min,
                                  .name = "comm_min",
                                  .output_count = 1,
                                  .saves_inputs = 1,
                                  .saves_outputs = 1,
                                  .attributes_size = sizeof(cup_comm *),
                                  .forward = min_forward,
                                  .backward = extreme_backward,
                                  .second_derivatives = true};

static const cup_custom_op max = {.size = sizeof max,
                                  .name = "comm_max",
                                  .output_count = 1,
                                  .saves_inputs = 1,
                                  .saves_outputs = 1,
                                  .attributes_size = sizeof(cup_comm *),
                                  .forward = max_forward,
                                  .backward = extreme_backward,
                                  .second_derivatives = true};

cup_tensor *cup_comm_min(cup_comm *m, cup_tensor *x)
{
    return record(m, &min, x, &m);
}

cup_tensor *cup_comm_max(cup_comm *m, cup_tensor *x)
{
    return record(m, &max, x, &m);
}

static cup_status gather_forward(cup_context *c, cup_tensor *const *in, int count,
                                 const void *attributes, cup_tensor **out)
{
    cup_comm *m = comm_of(attributes);
    (void)count;
    CUP_TRY(check_rows(m, "comm_gather", in[0], false));
    cup_tensor *from = cup_copy(c, in[0]);
    out[0] = like(c, in[0], m->count, 1);
    return out[0] ? cup_comm_all_gather(m, from, out[0]) : c->error.status;
}

static cup_status gather_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_comm_sum_scatter(comm_of(g->attributes), g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op gather = {.size = sizeof gather,
                                     .name = "comm_gather",
                                     .output_count = 1,
                                     .attributes_size = sizeof(cup_comm *),
                                     .forward = gather_forward,
                                     .backward = gather_backward,
                                     .second_derivatives = true};

cup_tensor *cup_comm_gather(cup_comm *m, cup_tensor *x)
{
    return record(m, &gather, x, &m);
}

/* Of a gather that is made again: what it is of, and what it gives. */
typedef struct gathering {
    cup_comm *m;
    int ndim, own_ndim;
    int64_t shape[CUP_MAX_DIMS], own[CUP_MAX_DIMS];
} gathering;

static cup_tensor *gathered(cup_context *c, cup_tensor *x, const gathering *g)
{
    cup_tensor *from = x ? cup__contiguous(c, x) : NULL;
    cup_tensor *all = from ? cup_tensor_new(c, x->dtype, g->ndim, g->shape) : NULL;
    return all && cup_comm_all_gather(g->m, from, all) == CUP_OK ? all : NULL;
}

static cup_status again_forward(cup_context *c, cup_tensor *const *in, int count,
                                const void *attributes, cup_tensor **out)
{
    (void)count;
    out[0] = gathered(c, in[0], attributes);
    return c->error.status;
}

static cup_tensor *again_again(cup_context *c, const cup_custom_grad *g)
{
    return gathered(c, g->inputs[0], g->attributes);
}

static cup_status again_backward(cup_context *c, const cup_custom_grad *g)
{
    const gathering *of = g->attributes;
    const int64_t rows[] = {cup_comm_count(of->m), -1};
    cup_tensor *d = cup_reshape(c, g->d_outputs[0], 2, rows);
    g->d_inputs[0] = d ? cup_reshape(c, cup_comm_sum_scatter(of->m, d), of->own_ndim, of->own)
                       : NULL;
    return c->error.status;
}

static const cup_custom_op gather_again = {.size = sizeof gather_again,
                                           .name = "comm_gather",
                                           .output_count = 1,
                                           .saves_inputs = 1,
                                           .attributes_size = sizeof(gathering),
                                           .forward = again_forward,
                                           .backward = again_backward,
                                           .second_derivatives = true,
                                           .again = again_again};

cup_tensor *cup__comm_gather_again(cup_comm *m, cup_tensor *x, int ndim, const int64_t *shape)
{
    gathering g = {.m = m, .ndim = ndim, .own_ndim = x ? x->ndim : 0};
    for (int i = 0; i < ndim; i++)
        g.shape[i] = shape[i];
    for (int i = 0; i < g.own_ndim; i++)
        g.own[i] = x->shape[i];
    return record(m, &gather_again, x, &g);
}

static cup_status scatter_forward(cup_context *c, cup_tensor *const *in, int count,
                                  const void *attributes, cup_tensor **out)
{
    cup_comm *m = comm_of(attributes);
    (void)count;
    CUP_TRY(check_rows(m, "comm_sum_scatter", in[0], true));
    cup_tensor *from = cup_copy(c, in[0]);
    out[0] = like(c, in[0], 1, m->count);
    return out[0] ? cup_comm_reduce_scatter(m, from, out[0], CUP_COMBINE_SUM) : c->error.status;
}

static cup_status scatter_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_comm_gather(comm_of(g->attributes), g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op scatter = {.size = sizeof scatter,
                                      .name = "comm_sum_scatter",
                                      .output_count = 1,
                                      .attributes_size = sizeof(cup_comm *),
                                      .forward = scatter_forward,
                                      .backward = scatter_backward,
                                      .second_derivatives = true};

cup_tensor *cup_comm_sum_scatter(cup_comm *m, cup_tensor *x)
{
    return record(m, &scatter, x, &m);
}

static cup_status exchange_forward(cup_context *c, cup_tensor *const *in, int count,
                                   const void *attributes, cup_tensor **out)
{
    cup_comm *m = comm_of(attributes);
    (void)count;
    CUP_TRY(check_rows(m, "comm_exchange", in[0], true));
    cup_tensor *from = cup_copy(c, in[0]);
    out[0] = like(c, in[0], 1, 1);
    return out[0] ? cup_comm_all_to_all(m, from, out[0]) : c->error.status;
}

static cup_status exchange_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_comm_exchange(comm_of(g->attributes), g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op exchange = {.size = sizeof exchange,
                                       .name = "comm_exchange",
                                       .output_count = 1,
                                       .attributes_size = sizeof(cup_comm *),
                                       .forward = exchange_forward,
                                       .backward = exchange_backward,
                                       .second_derivatives = true};

cup_tensor *cup_comm_exchange(cup_comm *m, cup_tensor *x)
{
    return record(m, &exchange, x, &m);
}

/* The sum of all, at one of them, and zeros elsewhere. */
static cup_status collect_forward(cup_context *c, cup_tensor *const *in, int count,
                                  const void *attributes, cup_tensor **out)
{
    const ends *e = attributes;
    (void)count;
    CUP_TRY(combine(c, in[0], attributes, CUP_COMBINE_SUM, out));
    if (e->m->rank != e->from)
        out[0] = cup_zeros(c, in[0]->dtype, in[0]->ndim, in[0]->shape);
    return c->error.status;
}

static cup_status collect_backward(cup_context *c, const cup_custom_grad *g)
{
    const ends *e = g->attributes;
    g->d_inputs[0] = cup_comm_spread(e->m, g->d_outputs[0], e->from);
    return c->error.status;
}

static const cup_custom_op collect = {.size = sizeof collect,
                                      .name = "comm_spread",
                                      .output_count = 1,
                                      .attributes_size = sizeof(ends),
                                      .forward = collect_forward,
                                      .backward = collect_backward,
                                      .second_derivatives = true};

static cup_status spread_forward(cup_context *c, cup_tensor *const *in, int count,
                                 const void *attributes, cup_tensor **out)
{
    const ends *e = attributes;
    (void)count;
    out[0] = cup_copy(c, in[0]);
    return out[0] ? cup_comm_broadcast(e->m, out, 1, e->from) : c->error.status;
}

static cup_status spread_backward(cup_context *c, const cup_custom_grad *g)
{
    const ends *e = g->attributes;
    g->d_inputs[0] = record(e->m, &collect, g->d_outputs[0], e);
    return c->error.status;
}

static const cup_custom_op spread = {.size = sizeof spread,
                                     .name = "comm_spread",
                                     .output_count = 1,
                                     .attributes_size = sizeof(ends),
                                     .forward = spread_forward,
                                     .backward = spread_backward,
                                     .second_derivatives = true};

cup_tensor *cup_comm_spread(cup_comm *m, cup_tensor *x, int root)
{
    return record(m, &spread, x, &(ends){m, root, root});
}

static cup_status pass_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    const ends *e = attributes;
    (void)count;
    if (e->from < 0 || e->from >= e->m->count || e->to < 0 || e->to >= e->m->count ||
        e->from == e->to)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "comm_pass: from process %d to %d of %d; give two of them", e->from, e->to,
                         e->m->count);
    if (e->m->rank == e->from) {
        cup_tensor *x = cup_copy(c, in[0]);
        CUP_TRY(x ? cup_comm_send(e->m, x, e->to) : c->error.status);
    }
    out[0] = cup_zeros(c, in[0]->dtype, in[0]->ndim, in[0]->shape);
    return out[0] && e->m->rank == e->to ? cup_comm_receive(e->m, out[0], e->from)
                                         : c->error.status;
}

static cup_status pass_backward(cup_context *c, const cup_custom_grad *g)
{
    const ends *e = g->attributes;
    g->d_inputs[0] = cup_comm_pass(e->m, g->d_outputs[0], e->to, e->from);
    return c->error.status;
}

static const cup_custom_op pass = {.size = sizeof pass,
                                   .name = "comm_pass",
                                   .output_count = 1,
                                   .attributes_size = sizeof(ends),
                                   .forward = pass_forward,
                                   .backward = pass_backward,
                                   .second_derivatives = true};

cup_tensor *cup_comm_pass(cup_comm *m, cup_tensor *x, int from_rank, int to_rank)
{
    return record(m, &pass, x, &(ends){m, from_rank, to_rank});
}
