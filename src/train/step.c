/* One step: batches go to the device, the device computes, and losses come back some steps later,
 * so that the host never waits for the device in between. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/finite.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/together.h"

/* A reading waits for the device, so it is not done in every step; but the device should not be
 * further ahead of what a user sees, or of a signal, than this. */
#define AHEAD_SECONDS 0.2

/* The random numbers of a batch are those of its number, so that they do not depend on which
 * process computes it: each has so many calls that draw some. */
#define DRAWS 4096

/* What gradients are sums of: batches, whose loss all have that share out a model. */
static double losses_of(const cup_loop *l)
{
    return (double)l->options.accumulate * cup_comm_count(l->among);
}

cup_status cup__loop_called(cup_loop *l, const cup__callback *callback)
{
    if (!cup__callback_is_even(l->c, callback))
        cup__fail(&l->c->error, CUP_STATE,
                  "training: a call of the run's must close the scopes it opens, and no other");
    cup__callback_end(l->c, callback);
    return l->c->error.status;
}

/* All that varies from step to step goes into device memory before the step is computed. */
cup_status cup__loop_set_step(cup_loop *l)
{
    if (l->calls.batch) {
        cup__callback callback;
        cup__callback_begin(l->c, &callback);
        cup_status status = l->calls.batch(l->c, l->steps, l->calls.user);
        CUP_TRY(cup__loop_called(l, &callback));
        if (status != CUP_OK)
            return cup__fail(&l->c->error, status, "training: the batches of step %lld failed",
                             (long long)l->steps);
    }
    /* Number 0 is that of the first weights. */
    cup_random_step(l->c, (uint64_t)l->steps + 1);
    return cup_optimizer_set(l->optimizer, cup_schedule_rate(&l->options.schedule, l->steps),
                             1 / losses_of(l));
}

/* The loss as f32, whatever the model computes in; NULL with an error. */
static cup_tensor *plain_loss(cup_context *c, cup_tensor *loss, int64_t i)
{
    if (!loss || c->error.status != CUP_OK) {
        cup__fail(&c->error, CUP_STATE, "training: the loss of batch %lld is NULL", (long long)i);
        return NULL;
    }
    if (loss->count != 1) {
        char text[CUP__SHAPE_TEXT];
        cup__fail(&c->error, CUP_SHAPE, "training: the loss of batch %lld is %s; it must be one "
                                        "number, as cup_mean gives",
                  (long long)i, cup__tensor_text(loss, text));
        return NULL;
    }
    if (loss->dtype == CUP_F32)
        return loss;
    bool was = cup_grad_recording(c, false);
    cup_tensor *plain = cup_cast(c, loss, CUP_F32);
    cup_grad_recording(c, was);
    return plain;
}

void cup__loop_pass(cup_loop *l, const char *pass, int64_t i)
{
    if (!l->c->finite)
        return;
    l->c->finite->pass = pass;
    l->c->finite->batch = i;
}

cup_status cup_loop_cost(cup_loop *l, cup_tensor *cost)
{
    if (!l)
        return CUP_ARGUMENT;
    if (cost)
        l->owed = l->owed ? cup_add(l->c, l->owed, cost) : cost;
    return l->c->error.status;
}

cup_tensor *cup__loop_owed(cup_loop *l)
{
    cup_tensor *owed = l->owed;
    l->owed = NULL;
    return owed;
}

cup_status cup__loop_note(cup_loop *l, cup_tensor *loss, int64_t i)
{
    cup__device *device = l->c->device;
    cup_tensor *plain = plain_loss(l->c, loss, i);
    float *place = (float *)l->losses->data + i;
    return plain ? device->calls->copy(device, place, plain->data, sizeof *place)
                 : l->c->error.status;
}

void cup__loop_draw(cup_loop *l, int64_t i)
{
    cup__loop_pass(l, "forward", i);
    int64_t copy = i / l->share;
    l->c->random.sequence = (uint32_t)(copy / l->ring * l->share + i % l->share) * DRAWS;
}

/* Through all of the model, which is here. */
static cup_tensor *made_of(const cup_loop *l, int64_t i)
{
    const cup_loop_calls *calls = &l->calls;
    cup_tensor *x = NULL;
    if (!calls->chunk)
        return calls->stage ? calls->stage(l->c, i, NULL, calls->user)
                            : calls->loss(l->c, i, calls->user);
    for (int k = 0; k < l->options.chunks && l->c->error.status == CUP_OK; k++)
        x = calls->chunk(l->c, i, k, x, calls->user);
    return x;
}

static cup_tensor *loss_of(cup_loop *l, int64_t i)
{
    cup__callback callback;
    cup__callback_begin(l->c, &callback);
    cup_tensor *loss = made_of(l, i), *owed = cup__loop_owed(l);
    if (cup__loop_called(l, &callback) != CUP_OK)
        return NULL;
    return loss && owed ? cup_add(l->c, loss, owed) : loss;
}

static cup_status compute_batch(cup_loop *l, int64_t i)
{
    cup_context *c = l->c;
    cup__loop_draw(l, i);
    cup_scope_open(c);
    cup_tensor *loss = loss_of(l, i);
    cup_status status = cup__loop_note(l, loss, i);
    cup__loop_pass(l, "backward", i);
    if (status == CUP_OK)
        status = cup__loop_backward(l, loss, i + 1 == l->first + l->share);
    cup_scope_return(c, NULL);
    return status;
}

static cup_status compute_batches(cup_loop *l, int64_t from, int64_t to)
{
    cup_status status = CUP_OK;
    for (int64_t i = from; i < to && status == CUP_OK; i++) {
        /* Calls only queue the work, which would go on long after they are stopped. */
        if (i > 0 && l->c->stop)
            status = cup_synchronize(l->c);
        if (status == CUP_OK)
            status = compute_batch(l, l->first + i);
    }
    return status;
}

cup_status cup__loop_gradients(cup_loop *l, int64_t from, int64_t to)
{
    cup_status status =
        l->pipeline ? cup__pipeline_compute(l, from, to) : compute_batches(l, from, to);
    return status == CUP_OK && to == l->share ? cup__loop_reduce(l) : status;
}

/* Nothing in it depends on the step's number but what cup__loop_set_step wrote. */
cup_status cup__loop_compute(cup_loop *l, int64_t from, int64_t to)
{
    cup_scope_open(l->c);
    cup_status status = from == 0 ? cup__loop_buffers_keep(l) : CUP_OK;
    if (status == CUP_OK)
        status = cup__loop_gradients(l, from, to);
    if (status == CUP_OK && to == l->share) {
        /* Weights that are half changed are none. */
        bool (*stop)(void *) = l->c->stop;
        l->c->stop = NULL;
        cup__loop_draw(l, l->options.accumulate);
        status = cup_optimizer_step(l->optimizer);
        if (status == CUP_OK)
            status = cup__loop_buffers_settle(l);
        l->c->stop = stop;
    }
    if (status != CUP_OK)
        cup__buckets_drop(l);
    cup__split_let_go(l->optimizer);
    cup_scope_return(l->c, NULL);
    return status;
}

void cup__loop_clear(cup_loop *l)
{
    cup_optimizer_clear(l->optimizer);
    cup_tape_clear(l->c);
}

static cup_status compute(cup_loop *l)
{
    cup_status status = cup__loop_compute(l, 0, l->share);
    cup__loop_clear(l);
    return status;
}

static cup_status launch(cup_loop *l)
{
    for (int64_t i = 0; i < l->graph_count; i++) {
        CUP_TRY(cup_graph_launch(l->graphs[i]));
        if (i + 1 == l->graph_count)
            break;
        CUP_TRY(cup_synchronize(l->c));
        CUP_TRY(cup__stopped(l->c));
    }
    return CUP_OK;
}

void cup__loop_free_graphs(cup_loop *l)
{
    for (int64_t i = 0; i < l->graph_count; i++)
        cup_graph_free(l->graphs[i]);
    cup__free(l->graphs);
    l->graphs = NULL;
    l->graph_count = 0;
}

/* One of `count` graphs of the step; what is left of the gradients goes on in the next one. */
static cup_status capture_part(cup_loop *l, int64_t i, int64_t count)
{
    int64_t batches = l->share;
    cup_status status = i ? cup__capture_after(l->c, l->graphs[0]) : cup_capture_begin(l->c);
    if (status != CUP_OK)
        return status;
    status = cup__loop_compute(l, batches * i / count, batches * (i + 1) / count);
    /* The gradients are given up inside the capture, which holds their memory. */
    if (i + 1 == count || status != CUP_OK)
        cup__loop_clear(l);
    l->graphs[i] = cup_capture_end(l->c);
    l->graph_count += l->graphs[i] != NULL;
    return status == CUP_OK && !l->graphs[i] ? l->c->error.status : status;
}

/* Captures the step, in so many graphs that a signal need not wait long, and replays it. Where that
 * is not possible the calls do. */
static cup_status capture(cup_loop *l, int64_t count)
{
    /* The graph gets memory of its own, as much as a step of calls has just used; what that leaves
     * idle goes back. */
    cup__device *device = l->c->device;
    device->calls->trim(device);
    bool (*stop)(void *) = l->c->stop;
    l->c->stop = NULL;
    l->graphs = cup__calloc((size_t)count, sizeof(cup_graph *));
    cup_status status = CUP_OK;
    if (!l->graphs)
        status = cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for graphs");
    for (int64_t i = 0; i < count && status == CUP_OK; i++)
        status = capture_part(l, i, count);
    l->c->stop = stop;
    if (status == CUP_OK) {
        l->replay = CUP__REPLAY_ON;
        return launch(l);
    }
    cup__log(CUP__INFO, "training: the step is not captured: %s", cup_error_text(l->c));
    cup_error_clear(l->c);
    cup__loop_free_graphs(l);
    l->replay = CUP__REPLAY_OFF;
    cup_random_step(l->c, (uint64_t)l->steps + 1);
    return compute(l);
}

/* A step of calls, timed, says into how many graphs it is to be captured, which is the same number
 * for all: between two of them what was brought from other processes goes. */
static cup_status compute_timed(cup_loop *l)
{
    CUP_TRY(cup_synchronize(l->c));
    double start = cup__clock();
    CUP_TRY(compute(l));
    CUP_TRY(cup_synchronize(l->c));
    double parts = l->part_seconds > 0 ? (cup__clock() - start) / l->part_seconds + 1 : 1e9;
    int64_t most = l->pipeline ? 1 : l->share; /* batches are between stages at any time */
    l->parts = parts < (double)most ? (int64_t)parts : most;
    return l->comm && l->comm->nccl ? cup_comm_agree(l->comm, &l->parts, 1) : CUP_OK;
}

static cup_status run(cup_loop *l)
{
    cup__replay replay = l->replay;
    if (replay == CUP__REPLAY_ON)
        return launch(l);
    if (replay == CUP__REPLAY_NEXT)
        return capture(l, l->parts);
    if (replay == CUP__REPLAY_OFF)
        return compute(l);
    cup_status status = replay == CUP__REPLAY_TIMED ? compute_timed(l) : compute(l);
    if (status == CUP_OK)
        /* A context that is watched looks at results, which a graph does not show. */
        l->replay = !cup_device_is_cuda(l->c) || l->c->debug ? CUP__REPLAY_OFF
                    : replay == CUP__REPLAY_NOT_YET && l->share > 1
                        ? CUP__REPLAY_TIMED
                        : CUP__REPLAY_NEXT;
    return status;
}

cup_status cup__loop_step(cup_loop *l)
{
    /* A replayed step does not know of what was brought before it. */
    cup__split_let_go(l->optimizer);
    CUP_TRY(cup__loop_set_step(l));
    bool (*stop)(void *) = l->c->stop;
    if (l->whole_steps)
        l->c->stop = NULL;
    cup_status status = run(l);
    l->c->stop = stop;
    CUP_TRY(status);
    cup__device *device = l->c->device;
    int64_t losses = l->options.accumulate;
    float *row = (float *)l->pending->data + l->steps % CUP__PENDING_MOST * cup__loop_row(l);
    CUP_TRY(device->calls->copy(device, row, l->losses->data, (size_t)losses * sizeof *row));
    CUP_TRY(device->calls->copy(device, row + losses, cup_optimizer_norm(l->optimizer)->data,
                                sizeof *row));
    if (l->optimizer->scale)
        CUP_TRY(device->calls->copy(device, row + losses + 1, l->optimizer->scale->data,
                                    sizeof *row));
    l->steps++;
    return CUP_OK;
}

bool cup__loop_should_read(const cup_loop *l)
{
    return l->steps - l->read > l->ahead;
}

static cup_status add_step(cup_loop *l, const cup_training_hooks *hooks)
{
    int64_t losses = l->options.accumulate;
    const float *row = l->host_pending + l->read % CUP__PENDING_MOST * cup__loop_row(l);
    double loss = 0;
    for (int64_t i = 0; i < losses; i++)
        loss += (double)row[i];
    loss /= (double)losses;
    if (l->optimizer->scale)
        l->loss_scale = (double)row[losses + 1];
    CUP_TRY(cup__loop_judge(l, loss, (double)row[losses]));
    cup_training_point *point = cup__loop_point(l, l->read);
    if (!point)
        return l->c->error.status;
    point->loss = isfinite(loss) ? loss : NAN;
    point->norm = (double)row[losses] / losses_of(l);
    l->read++;
    if (hooks->point)
        hooks->point(point, hooks->user);
    return CUP_OK;
}

cup_status cup__loop_read(cup_loop *l, const cup_training_hooks *hooks)
{
    if (l->read == l->steps)
        return CUP_OK;
    size_t bytes = (size_t)l->pending->count * sizeof *l->host_pending;
    CUP_TRY(cup_tensor_read(l->pending, l->host_pending, bytes));
    CUP_TRY(cup__comm_check(l->comm));
    double time = cup__clock(), each = (time - l->read_at) / (double)(l->steps - l->read);
    if (l->read_at > 0 && cup_device_is_cuda(l->c))
        l->ahead = each * CUP__PENDING_MOST <= AHEAD_SECONDS ? CUP__PENDING_MOST - 1
                                                             : (int64_t)(AHEAD_SECONDS / each);
    l->read_at = time;
    while (l->read < l->steps)
        CUP_TRY(add_step(l, hooks));
    return CUP_OK;
}
