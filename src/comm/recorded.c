/* Operations with gradients, as ops of one's own: their backward is such an operation too, so that
 * derivatives of any order go through them. */
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

static cup_comm *comm_of(const void *attributes)
{
    return *(cup_comm *const *)attributes;
}

static cup_tensor *record(cup_comm *m, const cup_custom_op *op, cup_tensor *x)
{
    cup_tensor *y = NULL;
    if (!m || !x || m->c->error.status != CUP_OK)
        return NULL;
    if (x->context != m->c) {
        cup__fail(&m->c->error, CUP_ARGUMENT,
                  "%s: the tensor belongs to another context than the communicator", op->name);
        return NULL;
    }
    cup_custom(m->c, op, &x, 1, &m, &y);
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

static cup_status sum_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count;
    out[0] = cup_copy(c, in[0]);
    if (cup__device_is_dry(c->device))
        return c->error.status;
    return out[0] ? cup_comm_all_reduce(comm_of(attributes), out, 1, CUP_COMBINE_SUM)
                  : c->error.status;
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
    return record(m, &sum, x);
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
    return record(m, &gather, x);
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
    return record(m, &scatter, x);
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
    return record(m, &exchange, x);
}
