/* Making a training loop, and what can be asked of it. */
#include "train/together.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/comm.h"
#include "dispatch/attributes.h"
#include "nn/parameters.h"
#include "optim/groups.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "tensor/tensor.h"
#include "train/saving.h"

/* Of a step on a GPU that runs without the host: a signal waits so long. */
#define PART_SECONDS 0.25

/* Seconds to wait for the lock of a folder, which somebody who only reads may hold for a moment. */
#define LOCK_SECONDS 1

#define AT(name) offsetof(cup_loop_options, name)
static const cup__field fields[] = {
    {"method", CUP__FIELD_CHOICE, AT(optimizer.method), 0, 0, true, cup__method_words},
    {"accumulate", CUP__FIELD_WHOLE, AT(accumulate), 1, 1 << 20, true, NULL},
    {"steps", CUP__FIELD_WHOLE, AT(schedule.steps), 1, 1e15, false, NULL},
    {"warmup", CUP__FIELD_WHOLE, AT(schedule.warmup), 0, 1e15, false, NULL},
    {"rate", CUP__FIELD_REAL, AT(schedule.high), 0, 1e6, false, NULL},
    {"rate_end", CUP__FIELD_REAL, AT(schedule.low), 0, 1e6, false, NULL},
    {"decline", CUP__FIELD_CHOICE, AT(schedule.decline), 0, 0, false, cup__decline_words},
    {"decline_steps", CUP__LATER(WHOLE), AT(schedule.decline_steps), 0, 1e15, false, NULL},
    CUP__OPTIMIZER_FIELDS(cup_loop_options, optimizer),
    {"non_finite", CUP__LATER(CHOICE), AT(non_finite), 0, 0, false, cup__non_finite_words},
    CUP__LOSS_SCALE_FIELDS(cup_loop_options),
    {"evaluate_every", CUP__FIELD_WHOLE, AT(evaluate_every), 0, 1e15, false, NULL},
    {"save_every", CUP__FIELD_WHOLE, AT(save_every), 0, 1e15, false, NULL},
    {0}};

/* What a run must have the same to go on, besides the fields. */
static void write(const cup_loop *l, cup__json_writer *writer)
{
    cup__json_open(writer, "training", CUP__JSON_OBJECT);
    cup__json_add_unsigned(writer, "seed", l->c->random.seed);
    cup__json_add_string(writer, "precision", cup__precision_names[l->c->precision]);
    cup__fields_write(writer, fields, &l->options);
    cup__json_close(writer);
}

static cup_status check(cup_loop *l, const cup__checkpoint *checkpoint)
{
    cup__error *error = &l->c->error;
    const cup__json *json = &checkpoint->json;
    const cup__json_node *object;
    const char *precision, *differs;
    uint64_t seed;
    cup_loop_options found = {0};
    CUP_TRY(
        cup__json_get(error, json, checkpoint->state, "training", CUP__JSON_OBJECT, &object));
    CUP_TRY(cup__json_get_unsigned(error, json, object, "seed", &seed));
    CUP_TRY(cup__json_get_string(error, json, object, "precision", &precision));
    CUP_TRY(cup__fields_read(error, json, object, fields, &found));
    differs = seed != l->c->random.seed ? "seed"
              : strcmp(precision, cup__precision_names[l->c->precision])
                  ? "precision"
                  : cup__fields_differ(fields, &l->options, &found);
    if (!differs)
        return CUP_OK;
    return cup__fail(error, CUP_ARGUMENT,
                     "training: %s is not what the checkpoint in %s was made with; set it so, or "
                     "start a new run in another folder",
                     differs, l->path);
}

static const char *const files[] = {CUP__MODEL_FILE, CUP__OPTIMIZER_FILE, CUP__LOSSES_FILE, NULL};
static const cup__loop_checkpoints checkpoints = {.files = files, .write = write, .check = check};

/* Makes the folder and writes its lock there, which also tries whether that is possible: the first
 * checkpoint may be hours away. */
static cup_status open_folder(cup_loop *l)
{
    cup__error *error = &l->c->error;
    CUP_TRY(cup__folder_make(error, l->folder));
    CUP_TRY(cup__lock_take(error, l->folder, LOCK_SECONDS, &l->lock));
    return cup__checkpoint_mend(error, l->folder);
}

/* Whether all see the folder of rank 0, and may write there: its lock tells. */
static cup_status share_folder(cup_loop *l)
{
    int count = cup_comm_count(l->comm);
    int64_t mine = l->path && cup__folder_check(NULL, l->path) == CUP_OK ? cup__lock_look(l->path)
                                                                         : 0;
    int64_t *all = cup__calloc((size_t)count, sizeof *all);
    if (!all)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for what hosts agree on");
    cup_status status = cup__comm_collect(l->comm, &mine, 1, all);
    l->shared = mine != 0;
    for (int i = 0; i < count; i++)
        l->shared &= all[i] == all[0];
    cup__free(all);
    return status;
}

/* Of several processes rank 0 has it; the others hear what is in it, and where they see it, too,
 * they write and read their part of its checkpoints. */
static cup_status find_folder(cup_loop *l)
{
    cup_status status = CUP_OK;
    l->folder = cup_comm_rank(l->comm) == 0 ? l->path : NULL;
    if (l->folder)
        status = open_folder(l);
    int64_t found = l->folder && status == CUP_OK && cup__checkpoint_number(l->folder) > 0;
    if (l->comm && status == CUP_OK)
        status = cup_comm_agree(l->comm, &found, 1);
    l->has_checkpoint = found;
    return l->comm && l->path && status == CUP_OK ? share_folder(l) : status;
}

cup_loop *cup__loop_begin(cup_context *c, const cup_loop_calls *calls,
                          const cup_loop_options *options, const cup__loop_checkpoints *own,
                          const cup__loop_sharers *sharers)
{
    cup_comm *parts = sharers->experts ? sharers->experts : sharers->among;
    cup_loop *l = cup__calloc(1, sizeof *l);
    char *kind = cup__strdup(options->kind ? options->kind : "model");
    char *folder = options->folder ? cup__strdup(options->folder) : NULL;
    if (!l || !kind || (options->folder && !folder)) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a training run");
        cup__free(l);
        cup__free(kind);
        cup__free(folder);
        return NULL;
    }
    *l = (cup_loop){.c = c,
                    .comm = cup_comm_count(options->comm) > 1 ? options->comm : parts,
                    .among = sharers->among,
                    .experts = sharers->experts,
                    .ring = cup_comm_count(sharers->ring),
                    .pipe = cup_comm_count(options->pipe) > 1 ? options->pipe : NULL,
                    .calls = *calls,
                    .options = *options,
                    .checkpoints = own,
                    .kind = kind,
                    .path = folder,
                    .part_seconds = PART_SECONDS,
                    .parts = 1};
    l->options.folder = folder;
    l->options.kind = kind;
    cup__context_join(c);
    if (cup__loop_group(l) == CUP_OK && cup__loop_share(l) == CUP_OK && find_folder(l) == CUP_OK)
        return l;
    cup_loop_free(l);
    return NULL;
}

/* Of groups of parameters that other stages have none is of this one. */
static cup_status leave_groups(cup_loop *l, char text[CUP_PARAMETER_GROUPS])
{
    cup__groups groups;
    int64_t count, *all = cup__calloc((size_t)cup_comm_count(l->pipe), sizeof *all);
    if (!all)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for groups of parameters");
    cup_status status = cup__groups_read(&l->c->error, l->options.optimizer.groups, &groups);
    const cup_named *names = cup_parameters_named(l->list, &count);
    for (int64_t i = 0; i < count; i++)
        cup__groups_find(&groups, names[i].name);
    cup__groups_write(&groups, text);
    if (status == CUP_OK)
        status = cup__comm_collect(l->pipe, &groups.found, 1, all);
    for (int i = 0; i < cup_comm_count(l->pipe); i++)
        groups.found |= all[i];
    cup__free(all);
    return status == CUP_OK && count
               ? cup__groups_all_found(&l->c->error, &groups, names[0].name)
               : status;
}

cup_status cup__loop_train(cup_loop *l, cup_parameters *list)
{
    cup_context *c = l->c;
    const int64_t row = cup__loop_row(l);
    l->list = list;
    /* A step that is given up halfway must not have moved statistics of batches. */
    l->whole_steps =
        l->comm || cup_parameters_count(list, false) != cup_parameters_count(list, true);
    l->options.optimizer.size = sizeof l->options.optimizer;
    cup_optimizer_options optimizer = l->options.optimizer;
    if (l->pipe)
        CUP_TRY(leave_groups(l, optimizer.groups));
    l->optimizer = cup_optimizer_of(list, &optimizer);
    if (!l->optimizer)
        return c->error.status;
    if (l->options.loss_scale > 0)
        CUP_TRY(cup__loss_scale_make(l->optimizer, l->options.loss_scale,
                                     l->options.loss_scale_steps));
    l->loss_scale = l->options.loss_scale;
    CUP_TRY(cup__pipeline_make(l));
    if (cup__split_stage(l->optimizer) > 2 && l->path && !l->shared)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "training: not all processes see the folder %s, and each has parameters "
                         "that the others have not; take a folder that all see, or stage 2",
                         l->path);
    CUP_TRY(cup__buckets_make(l));
    l->host_pending = cup__malloc(CUP__PENDING_MOST * (size_t)row * sizeof *l->host_pending);
    if (!l->host_pending)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the losses of a step");
    l->losses = cup_keep(cup_tensor_new(c, CUP_F32, 1, &l->options.accumulate));
    if (l->losses)
        l->own_losses = cup_keep(
            cup__tensor_view(l->losses, &(cup__shape){CUP_F32, 1, {l->share}}, &(int64_t){1},
                             l->first));
    l->pending = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){CUP__PENDING_MOST, row}));
    return c->error.status == CUP_OK ? cup__loop_guard(l) : c->error.status;
}

static cup_status take_options(cup_context *c, const cup_loop_options *from,
                               cup_loop_options *options)
{
    CUP_TRY(cup__options_take(&c->error, "training", options, sizeof *options, from));
    options->accumulate += options->accumulate == 0;
    options->chunks += options->chunks == 0;
    return cup__fields_check(&c->error, "training", fields, options);
}

static cup_status take_calls(cup_context *c, const cup_loop_calls *from, cup_loop_calls *calls)
{
    CUP_TRY(cup__options_take(&c->error, "training: its calls", calls, sizeof *calls, from));
    if (calls->loss || calls->stage || calls->chunk)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT, "training: the %s NULL; nothing can be trained",
                     from ? "call that gives the loss is" : "calls are");
}

cup_loop *cup_loop_new(cup_parameters *list, const cup_loop_calls *calls,
                       const cup_loop_options *options)
{
    cup_loop_options own;
    cup_loop_calls own_calls;
    cup_context *c = list ? cup__parameters_context(list) : NULL;
    if (!c || c->error.status != CUP_OK || take_options(c, options, &own) != CUP_OK ||
        take_calls(c, calls, &own_calls) != CUP_OK)
        return NULL;
    cup_scope_open(c);
    const cup__loop_sharers sharers = {cup_parameters_comm(list),
                                       cup_parameters_experts_comm(list),
                                       cup_parameters_ring_comm(list)};
    cup_loop *l = cup__loop_begin(c, &own_calls, &own, &checkpoints, &sharers);
    cup_status status = c->error.status;
    if (l) {
        status = cup__loop_train(l, list);
    }
    cup_scope_return(c, NULL);
    if (status == CUP_OK)
        return l;
    cup_loop_free(l);
    return NULL;
}

void cup_loop_free(cup_loop *l)
{
    if (!l)
        return;
    cup__save_end(l);
    cup__loop_free_graphs(l);
    cup__loop_guard_free(l);
    cup__buckets_free(l);
    cup__loop_whole_free(l);
    cup__pipeline_free(l);
    cup__loop_ungroup(l);
    cup_optimizer_free(l->optimizer);
    cup_tensor_free(l->own_losses);
    cup_tensor_free(l->losses);
    cup_tensor_free(l->pending);
    cup__free(l->host_pending);
    cup__free(l->points);
    cup__lock_drop(&l->lock);
    cup__free(l->kind);
    cup__free(l->path);
    cup__context_leave(l->c);
    cup__free(l);
}

double cup_loop_loss_scale(const cup_loop *l)
{
    return l ? l->loss_scale : 0;
}

int64_t cup_loop_steps(const cup_loop *l)
{
    return l ? l->steps : 0;
}

const cup_training_point *cup_loop_points(const cup_loop *l, int64_t *count)
{
    if (count)
        *count = l ? (int64_t)l->point_count : 0;
    return l ? l->points : NULL;
}

cup_optimizer *cup_loop_optimizer(cup_loop *l)
{
    return l ? l->optimizer : NULL;
}

cup_status cup_loop_vacant(cup_context *c, const char *folder)
{
    return cup__loop_vacant(c, folder, files);
}

bool cup_loop_has_checkpoint(const cup_loop *l)
{
    return l && (l->comm ? l->has_checkpoint
                         : l->folder && cup__checkpoint_number(l->folder) > 0);
}

cup_training_point *cup__loop_point(cup_loop *l, int64_t step)
{
    if (!cup__grow(&l->points, &l->point_capacity, l->point_count, sizeof *l->points)) {
        cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the losses of a run");
        return NULL;
    }
    cup_training_point *point = &l->points[l->point_count++];
    *point = (cup_training_point){step, NAN, NAN, cup_schedule_rate(&l->options.schedule, step),
                                  NAN};
    return point;
}
