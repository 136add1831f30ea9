/* Sums that go on beside what is computed until their result is read. */
#include "base/env.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "dispatch/halves.h"
#include "grad/watch.h"
#include "tensor/coming.h"

/* One that nobody has read. */
typedef struct going {
    cup__coming coming; /* first, so that a pointer to one is a pointer to the other */
    cup__flying *flying;
} going;

static cup_status end(cup__coming *coming)
{
    going *g = (going *)(void *)coming;
    cup_status status = cup__nccl_sum_end(g->flying);
    cup__free(g);
    return status;
}

static cup_status begin(cup_comm *m, cup_tensor *x, cup_tensor *y)
{
    going *g = cup__calloc(1, sizeof *g);
    if (!g)
        return cup__fail(&m->c->error, CUP_MEMORY, "out of host memory for a sum");
    g->coming.end = end;
    cup_status status = cup__comm_sum_to(m, x, y, &g->flying);
    if (g->flying)
        cup__coming_begin(&g->coming, x, y);
    else
        cup__free(g);
    return status;
}

typedef struct summing {
    cup_comm *m;
    cup_tensor *begun; /* forward alone: takes the sum, which began by halves; or NULL */
} summing;

static cup_status forward(cup_context *c, cup_tensor *const *in, int count, const void *attributes,
                          cup_tensor **out)
{
    const summing *s = attributes;
    cup__shape shape = cup__shape_of(in[0]);
    (void)count;
    cup__tape_hides(c);
    if (s->begun) {
        out[0] = cup__tensor_view(s->begun, &shape, s->begun->stride, 0);
        return c->error.status;
    }
    cup_tensor *x = cup__contiguous(c, in[0]);
    out[0] = x ? cup_tensor_new(c, x->dtype, x->ndim, x->shape) : NULL;
    return out[0] ? begin(s->m, x, out[0]) : c->error.status;
}

static cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    const summing *s = g->attributes;
    g->d_inputs[0] = cup__comm_sum_beside(s->m, g->d_outputs[0]);
    return c->error.status;
}

static const cup_custom_op sum = {.size = sizeof sum,
                                  .name = "comm_sum",
                                  .output_count = 1,
                                  .attributes_size = sizeof(summing),
                                  .forward = forward,
                                  .backward = backward,
                                  .second_derivatives = true};

static cup_status begin_half(cup_tensor *from, cup_tensor *to, void *user)
{
    return begin(user, from, to);
}

cup_tensor *cup__comm_sum_beside(cup_comm *m, cup_tensor *x)
{
    cup_tensor *y = NULL;
    if (!m || !x || m->c->error.status != CUP_OK)
        return NULL;
    summing s = {m, NULL};
    if (cup__halves_waits(m->c, x)) {
        s.begun = cup_tensor_new(m->c, x->dtype, x->ndim, x->shape);
        if (!s.begun || cup__halves_run(m->c, x, s.begun, begin_half, m) != CUP_OK)
            return NULL;
    }
    cup_custom(m->c, &sum, &x, 1, &s, &y);
    cup_tensor_free(s.begun);
    return y;
}

cup_status cup__comm_sum_direct(cup_comm *m)
{
    int64_t wanted;
    CUP_TRY(cup__env_integer(&m->c->error, CUP__ENV_COMM_DIRECT, &wanted));
    return m->nccl && wanted && !cup__device_is_dry(m->c->device) ? cup__nccl_direct(m) : CUP_OK;
}
