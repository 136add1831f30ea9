/* One step: batches go to the device, the device computes, and losses come back some steps later,
 * so that the host never waits for the device in between. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "dispatch/op.h"
#include "train/trainer.h"

/* A reading waits for the device, so it is not done in every step; but the device should not be
 * further ahead of what a user sees, or of a signal, than this. */
#define AHEAD_SECONDS 0.2

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All that varies from step to step goes into device memory before the step is computed. */
static cup_status prepare(cup_trainer *t)
{
    const cup_training *a = &t->training;
    int64_t rows = a->batch * a->accumulate;
    size_t bytes = (size_t)(rows * a->model.context) * sizeof *t->host_tokens;
    CUP_TRY(cup_data_batch(t->c, t->data, CUP_TRAIN, a->seed, (uint64_t)t->steps, 0, rows,
                           a->model.context, t->host_tokens, t->host_targets));
    CUP_TRY(cup_tensor_write(t->tokens, t->host_tokens, bytes));
    CUP_TRY(cup_tensor_write(t->targets, t->host_targets, bytes));
    /* Number 0 is that of the first weights. */
    cup_random_step(t->c, (uint64_t)t->steps + 1);
    return cup_optimizer_set(t->optimizer, cup_schedule_rate(&t->schedule, t->steps),
                             1 / (double)a->accumulate);
}

/* One of the step's batches. */
static cup_tensor *part(cup_tensor *all, int64_t i)
{
    cup__shape shape = {.dtype = all->dtype, .ndim = 2, .size = {all->shape[1], all->shape[2]}};
    return cup__tensor_view(all, &shape, all->stride + 1, i * all->stride[0]);
}

static cup_status compute_batch(cup_trainer *t, int64_t i)
{
    cup_context *c = t->c;
    cup__device *device = c->device;
    float *place = (float *)t->losses->data + i;
    cup_scope_open(c);
    cup_tensor *loss = cup_gpt_loss(t->model, part(t->tokens, i), part(t->targets, i), true);
    cup_status status = c->error.status;
    if (loss)
        status = device->calls->copy(device, place, loss->data, sizeof *place);
    if (status == CUP_OK)
        status = cup_backward(c, loss);
    cup_scope_return(c, NULL);
    return status;
}

/* The batches [from, to) of a step, and behind the last what the optimizer does. Nothing in it
 * depends on the step's number but what prepare wrote. */
static cup_status compute_part(cup_trainer *t, int64_t from, int64_t to)
{
    cup_status status = CUP_OK;
    cup_scope_open(t->c);
    for (int64_t i = from; i < to && status == CUP_OK; i++) {
        /* Calls only queue the work, which would go on long after they are stopped. */
        if (i > 0 && t->c->stop)
            status = cup_synchronize(t->c);
        if (status == CUP_OK)
            status = compute_batch(t, i);
    }
    if (status == CUP_OK && to == t->training.accumulate) {
        /* Weights that are half changed are none. */
        bool (*stop)(void *) = t->c->stop;
        t->c->stop = NULL;
        status = cup_optimizer_step(t->optimizer);
        t->c->stop = stop;
    }
    cup_scope_return(t->c, NULL);
    return status;
}

/* Forgets the gradients, behind a step or where it was given up. */
static void clear(cup_trainer *t)
{
    cup_optimizer_clear(t->optimizer);
    cup_tape_clear(t->c);
}

static cup_status compute(cup_trainer *t)
{
    cup_status status = compute_part(t, 0, t->training.accumulate);
    clear(t);
    return status;
}

static cup_status launch(cup_trainer *t)
{
    for (int64_t i = 0; i < t->graph_count; i++) {
        CUP_TRY(cup_graph_launch(t->graphs[i]));
        if (i + 1 == t->graph_count)
            break;
        CUP_TRY(cup_synchronize(t->c));
        CUP_TRY(cup__stopped(t->c));
    }
    return CUP_OK;
}

void cup__trainer_free_graphs(cup_trainer *t)
{
    for (int64_t i = 0; i < t->graph_count; i++)
        cup_graph_free(t->graphs[i]);
    cup__free(t->graphs);
    t->graphs = NULL;
    t->graph_count = 0;
}

/* One of `count` graphs of the step; what is left of the gradients goes on in the next one. */
static cup_status capture_part(cup_trainer *t, int64_t i, int64_t count)
{
    int64_t batches = t->training.accumulate;
    cup_status status = i ? cup__capture_after(t->c, t->graphs[0]) : cup_capture_begin(t->c);
    if (status != CUP_OK)
        return status;
    status = compute_part(t, batches * i / count, batches * (i + 1) / count);
    /* The gradients are given up inside the capture, which holds their memory. */
    if (i + 1 == count || status != CUP_OK)
        clear(t);
    t->graphs[i] = cup_capture_end(t->c);
    t->graph_count += t->graphs[i] != NULL;
    return status == CUP_OK && !t->graphs[i] ? t->c->error.status : status;
}

/* Captures the step, in so many graphs that a signal need not wait long, and replays it. Where that
 * is not possible the calls do. */
static cup_status capture(cup_trainer *t, int64_t count)
{
    /* The graph gets memory of its own, as much as a step of calls has just used; what that leaves
     * idle goes back. */
    cup__device *device = t->c->device;
    device->calls->trim(device);
    bool (*stop)(void *) = t->c->stop;
    t->c->stop = NULL;
    t->graphs = cup__calloc((size_t)count, sizeof(cup_graph *));
    cup_status status = CUP_OK;
    if (!t->graphs)
        status = cup__fail(&t->c->error, CUP_MEMORY, "out of host memory for graphs");
    for (int64_t i = 0; i < count && status == CUP_OK; i++)
        status = capture_part(t, i, count);
    t->c->stop = stop;
    if (status == CUP_OK) {
        t->replay = CUP__REPLAY_ON;
        return launch(t);
    }
    cup__log(CUP__INFO, "training: the step is not captured: %s", cup_error_text(t->c));
    cup_error_clear(t->c);
    cup__trainer_free_graphs(t);
    t->replay = CUP__REPLAY_OFF;
    cup_random_step(t->c, (uint64_t)t->steps + 1);
    return compute(t);
}

/* A step of calls, timed, says into how many graphs it is to be captured. */
static cup_status compute_timed(cup_trainer *t)
{
    CUP_TRY(cup_synchronize(t->c));
    double start = now();
    CUP_TRY(compute(t));
    CUP_TRY(cup_synchronize(t->c));
    double parts = t->part_seconds > 0 ? (now() - start) / t->part_seconds + 1 : 1e9;
    int64_t most = t->training.accumulate;
    t->parts = parts < (double)most ? (int64_t)parts : most;
    return CUP_OK;
}

static cup_status run(cup_trainer *t)
{
    cup__replay replay = t->replay;
    if (replay == CUP__REPLAY_ON)
        return launch(t);
    if (replay == CUP__REPLAY_NEXT)
        return capture(t, t->parts);
    if (replay == CUP__REPLAY_OFF)
        return compute(t);
    cup_status status = replay == CUP__REPLAY_TIMED ? compute_timed(t) : compute(t);
    if (status == CUP_OK)
        t->replay = !cup_device_is_cuda(t->c) ? CUP__REPLAY_OFF
                    : replay == CUP__REPLAY_NOT_YET && t->training.accumulate > 1
                        ? CUP__REPLAY_TIMED
                        : CUP__REPLAY_NEXT;
    return status;
}

cup_status cup__trainer_step(cup_trainer *t)
{
    CUP_TRY(prepare(t));
    CUP_TRY(run(t));
    cup__device *device = t->c->device;
    int64_t width = t->training.accumulate + 1;
    float *row = (float *)t->pending->data + t->steps % CUP__PENDING_MOST * width;
    CUP_TRY(device->calls->copy(device, row, t->losses->data, (size_t)(width - 1) * sizeof *row));
    CUP_TRY(device->calls->copy(device, row + width - 1, cup_optimizer_norm(t->optimizer)->data,
                                sizeof *row));
    t->steps++;
    return CUP_OK;
}

bool cup__trainer_should_read(const cup_trainer *t)
{
    return t->steps - t->read > t->ahead;
}

static cup_status add_step(cup_trainer *t, const cup_training_hooks *hooks)
{
    int64_t width = t->training.accumulate + 1;
    const float *row = t->host_pending + t->read % CUP__PENDING_MOST * width;
    double loss = 0;
    for (int64_t i = 0; i < width - 1; i++)
        loss += (double)row[i];
    loss /= (double)(width - 1);
    if (!isfinite(loss))
        return cup__fail(&t->c->error, CUP_STATE,
                         "training: the loss of step %lld is not a number, so the run has come "
                         "apart; lower the learning rate or lengthen the warm-up, and start again "
                         "or from the last checkpoint",
                         (long long)t->read);
    cup_training_point *point = cup__trainer_point(t, t->read);
    if (!point)
        return t->c->error.status;
    point->loss = loss;
    point->norm = (double)row[width - 1] / (double)(width - 1);
    t->read++;
    if (hooks && hooks->point)
        hooks->point(point, hooks->user);
    return CUP_OK;
}

cup_status cup__trainer_read(cup_trainer *t, const cup_training_hooks *hooks)
{
    if (t->read == t->steps)
        return CUP_OK;
    size_t bytes = (size_t)t->pending->count * sizeof *t->host_pending;
    CUP_TRY(cup_tensor_read(t->pending, t->host_pending, bytes));
    double time = now(), each = (time - t->read_at) / (double)(t->steps - t->read);
    if (t->read_at > 0 && cup_device_is_cuda(t->c))
        t->ahead = each * CUP__PENDING_MOST <= AHEAD_SECONDS ? CUP__PENDING_MOST - 1
                                                             : (int64_t)(AHEAD_SECONDS / each);
    t->read_at = time;
    while (t->read < t->steps)
        CUP_TRY(add_step(t, hooks));
    return CUP_OK;
}
