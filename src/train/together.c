#include "train/together.h"

#include <stdio.h>

#include "base/memory.h"
#include "base/text.h"
#include "comm/comm.h"
#include "cuda/dry.h"
#include "optim/optimizer.h"
#include "train/saving.h"

#define POINT_NUMBERS 5

cup_status cup__loop_share(cup_loop *l)
{
    int64_t all = l->options.accumulate, count = cup_comm_count(l->copies);
    if (all % count)
        return cup__fail(&l->c->error, CUP_ARGUMENT,
                         "training: %lld batches a step cannot be shared equally by %lld "
                         "processes; set accumulate to a multiple of them",
                         (long long)all, (long long)count);
    l->share = all / count;
    l->first = l->share * cup_comm_rank(l->copies);
    return CUP_OK;
}

/* Whether all of m bring the same numbers. */
static cup_status agree_on(cup_loop *l, cup_comm *m, const int64_t *numbers, int count)
{
    int64_t both[8];
    for (int i = 0; i < count; i++) {
        both[2 * i] = numbers[i];
        both[2 * i + 1] = -numbers[i];
    }
    if (m)
        CUP_TRY(cup_comm_agree(m, both, 2 * count));
    for (int i = 0; i < count; i++)
        if (both[2 * i] != -both[2 * i + 1])
            return CUP_PEER;
    return l->c->error.status;
}

/* Ranks stand in groups that have a model each, and in these by stages. */
static cup_status check_groups(cup_loop *l)
{
    int64_t stage = cup_comm_rank(l->pipe), part = cup_comm_rank(l->among);
    int64_t group = cup_comm_rank(l->copies);
    int each = cup_comm_count(l->among), stages = cup_comm_count(l->pipe);
    cup_status status = agree_on(l, l->among, (int64_t[]){group, stage}, 2);
    if (status == CUP_OK || status == CUP_PEER) {
        cup_status other = agree_on(l, l->pipe, (int64_t[]){group, part}, 2);
        status = status == CUP_OK ? other : status;
    }
    CUP_TRY(l->c->error.status);
    if (status == CUP_OK && cup_comm_count(l->copies) * each * stages == cup_comm_count(l->comm) &&
        cup_comm_rank(l->comm) == (group * stages + stage) * each + part)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_ARGUMENT,
                     "training: %d processes are not alike groups of %d that share out a model; "
                     "make each of as many ranks that follow each other",
                     cup_comm_count(l->comm), each * stages);
}

static cup_status check_pipe(const cup_loop *l)
{
    const cup_loop_options *o = &l->options;
    cup__error *error = &l->c->error;
    bool called = l->calls.stage || l->calls.chunk;
    if (!l->comm || !called)
        return cup__fail(error, CUP_ARGUMENT, "training: stages of a model %s",
                         called ? "need the communicator of all processes, `comm`"
                                : "are called by `stage`, which is NULL");
    if (o->chunks < 1 || o->chunks > CUP__CHUNKS_MOST || (o->chunks > 1 && !l->calls.chunk))
        return cup__fail(error, CUP_ARGUMENT,
                         "training: stages of %lld chunks; take from 1 to %d, and for more than "
                         "one the call `chunk`",
                         (long long)o->chunks, CUP__CHUNKS_MOST);
    if (cup_comm_count(l->pipe) > 64 || o->between_ndim < 0 || o->between_ndim > CUP_MAX_DIMS ||
        !cup__dtype_is_float(o->between_dtype))
        return cup__fail(error, CUP_ARGUMENT,
                         "training: %d stages, between which tensors of %s with %d dimensions go; "
                         "take 64 at most, floats and %d dimensions at most",
                         cup_comm_count(l->pipe), cup_dtype_name(o->between_dtype),
                         o->between_ndim, CUP_MAX_DIMS);
    return CUP_OK;
}

/* Those who have a stage, or all, stand in groups that have all experts each. */
static cup_status group_experts(cup_loop *l)
{
    int64_t part = cup_comm_rank(l->experts), each = cup_comm_count(l->experts);
    int64_t stage = cup_comm_rank(l->pipe);
    l->owns_alike = true;
    l->alike = cup_comm_split_new(l->comm, (int)(stage * each + part));
    CUP_TRY(l->c->error.status);
    int64_t group = cup_comm_rank(l->alike);
    cup_status status = agree_on(l, l->experts, (int64_t[]){group, stage}, 2);
    CUP_TRY(l->c->error.status);
    if (status == CUP_OK && cup_comm_count(l->alike) * each == cup_comm_count(l->peers) &&
        cup_comm_rank(l->peers) == group * each + part && each % cup_comm_count(l->among) == 0)
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_ARGUMENT,
                     "training: %d processes%s are not alike groups of %lld that share out "
                     "experts; make each of as many %s that follow each other, a multiple of those "
                     "that share out a model",
                     cup_comm_count(l->peers), l->pipe ? " of a stage" : "", (long long)each,
                     l->pipe ? "of them" : "ranks");
}

/* Where processes have parts or stages of a model. */
static cup_status group_parts(cup_loop *l)
{
    int part = cup_comm_rank(l->among), stage = cup_comm_rank(l->pipe);
    l->owns_copies = true;
    l->copies = cup_comm_split_new(l->comm, stage * cup_comm_count(l->among) + part);
    if (l->pipe) {
        int copies = cup_comm_count(l->experts) / cup_comm_count(l->among);
        l->peers = cup_comm_split_new(l->comm, stage);
        l->model = cup_comm_split_new(l->comm, cup_comm_rank(l->copies) / (copies ? copies : 1));
    }
    CUP_TRY(l->c->error.status);
    /* A stage's states are shared out among those that have it. */
    if (l->pipe && l->options.optimizer.split)
        l->options.optimizer.split = cup_comm_count(l->peers) > 1 ? l->peers : NULL;
    return check_groups(l);
}

cup_status cup__loop_group(cup_loop *l)
{
    l->copies = l->peers = l->comm;
    l->model = l->among;
    if (l->pipe)
        CUP_TRY(check_pipe(l));
    if (l->among || l->pipe)
        CUP_TRY(group_parts(l));
    return l->experts ? group_experts(l) : CUP_OK;
}

void cup__loop_ungroup(cup_loop *l)
{
    if (l->owns_copies && l->pipe) {
        cup_comm_free(l->model);
        cup_comm_free(l->peers);
    }
    if (l->owns_copies)
        cup_comm_free(l->copies);
    if (l->owns_alike)
        cup_comm_free(l->alike);
}

void cup__evaluated_share(cup_comm *comm, int together, int64_t count, int64_t *begin,
                          int64_t *end)
{
    int64_t rank = cup_comm_rank(comm) / together, processes = cup_comm_count(comm) / together;
    int64_t each = count / processes, more = count % processes;
    *begin = each * rank + (rank < more ? rank : more);
    *end = *begin + each + (rank < more);
}

/* The points as numbers in a tensor, and back. */
static cup_status spread_points(cup_loop *l, int64_t count)
{
    cup_context *c = l->c;
    size_t bytes = (size_t)(count * POINT_NUMBERS) * sizeof(double);
    double *numbers = cup__calloc((size_t)(count * POINT_NUMBERS) + 1, sizeof *numbers);
    if (!numbers)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the losses of a run");
    for (int64_t i = 0; i < (int64_t)l->point_count && i < count; i++) {
        const cup_training_point *p = &l->points[i];
        double *n = numbers + i * POINT_NUMBERS;
        n[0] = (double)p->step, n[1] = p->loss, n[2] = p->norm, n[3] = p->rate;
        n[4] = p->validation;
    }
    cup_tensor *t =
        cup_tensor_from(c, CUP_F64, 2, (int64_t[]){count, POINT_NUMBERS}, numbers);
    cup_status status = t ? cup_comm_broadcast(l->comm, &t, 1, 0) : c->error.status;
    if (status == CUP_OK)
        status = cup_tensor_read(t, numbers, bytes);
    if (cup_comm_rank(l->comm) > 0)
        l->point_count = 0;
    for (int64_t i = (int64_t)l->point_count; i < count && status == CUP_OK; i++) {
        const double *n = numbers + i * POINT_NUMBERS;
        cup_training_point *p = cup__loop_point(l, (int64_t)n[0]);
        if (p)
            p->loss = n[1], p->norm = n[2], p->rate = n[3], p->validation = n[4];
        status = c->error.status;
    }
    cup__free(numbers);
    return status;
}

/* Those of all that the optimizer keeps where each process has a share: of a checkpoint, or else
 * copies of the weights that all have now. */
static cup_status spread_split(cup_loop *l, bool resumed)
{
    if (!l->options.optimizer.split)
        return CUP_OK;
    if (!resumed)
        return cup__split_renew(l->optimizer);
    cup_status status = cup__optimizer_deal(l->optimizer);
    cup__optimizer_whole_free(l->optimizer);
    return status;
}

int cup__loop_sharings(const cup_loop *l, cup__sharing out[CUP__SHARINGS])
{
    int count = 0;
    out[count++] = (cup__sharing){NULL, l->peers};
    if (l->among)
        out[count++] = (cup__sharing){l->among, l->copies};
    if (l->experts && l->experts != l->among)
        out[count++] = (cup__sharing){l->experts, l->alike};
    return count;
}

static bool is_of(const cup_loop *l, const cup__sharing *k, const char *name, bool states)
{
    const cup__portion *part = cup__loop_part(l, name, states);
    return (part ? part->comm : NULL) == k->sharers;
}

/* Tensors of a kind, from where there is `room` on. */
static int choose(const cup_loop *l, const cup_named *list, int64_t count, bool states,
                  const cup__sharing *k, cup_tensor **room)
{
    int found = 0;
    for (int64_t i = 0; i < count; i++)
        if (is_of(l, k, list[i].name, states) && !cup__split_shared_out(list[i].tensor))
            room[found++] = list[i].tensor;
    return found;
}

static cup_status spread_tensors(cup_loop *l, bool resumed)
{
    if (l->pipe && resumed)
        return cup__loop_deal(l);
    int64_t weights, states;
    const cup_named *weight = cup_parameters_named(l->list, &weights);
    const cup_named *state = cup_optimizer_state(l->optimizer, &states);
    CUP_TRY(l->c->error.status);
    if (l->options.optimizer.split)
        states = 0;
    cup_tensor **room = cup__calloc((size_t)(weights + states), sizeof *room);
    if (!room)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for the tensors of a run");
    cup__sharing kinds[CUP__SHARINGS];
    int count = cup__loop_sharings(l, kinds);
    cup_status status = CUP_OK;
    /* Those who have the same part get that of the first of them, or of the checkpoint. */
    for (int i = 0; i < count && status == CUP_OK && !(i && resumed); i++) {
        int found = choose(l, weight, weights, false, &kinds[i], room);
        found += choose(l, state, states, true, &kinds[i], room + found);
        status = cup_comm_broadcast(kinds[i].same, room, found, 0);
    }
    cup__free(room);
    if (status == CUP_OK && count > 1 && resumed)
        status = cup__loop_deal(l);
    return status == CUP_OK ? cup__pipeline_spread(l) : status;
}

cup_status cup__loop_spread(cup_loop *l)
{
    if (!l->comm || l->spread)
        return CUP_OK;
    bool first = cup_comm_rank(l->comm) == 0;
    int64_t numbers[] = {first ? l->steps : 0, first ? (int64_t)l->point_count : 0, l->resumed};
    CUP_TRY(cup_comm_agree(l->comm, numbers, 3));
    cup_scope_open(l->c);
    cup_status status = spread_points(l, numbers[1]);
    /* Of a folder that all see each has read its own. */
    bool known = l->shared && numbers[2];
    if (status == CUP_OK && !known)
        status = spread_tensors(l, numbers[2]);
    if (status == CUP_OK && !known)
        status = spread_split(l, numbers[2]);
    cup_scope_return(l->c, NULL);
    CUP_TRY(status);
    l->steps = l->read = numbers[0];
    l->saved = first ? l->saved : l->point_count;
    l->spread = true;
    return cup__comm_check(l->comm);
}

/* A part is added up over those who have the same one, all else over all of a stage: each process
 * brings what the loss owes to its own copy of it. */
static cup_status reduce_parts(cup_loop *l)
{
    cup__sharing kinds[CUP__SHARINGS];
    int all = cup__loop_sharings(l, kinds), count;
    for (int i = 0; i < all; i++) {
        cup_tensor *const *list =
            cup__optimizer_gradients_of(l->optimizer, kinds[i].sharers, &count);
        CUP_TRY(cup_comm_all_reduce(kinds[i].same, list, count, CUP_COMBINE_SUM));
    }
    return cup__pipeline_reduce(l);
}

/* The last stage has them, but for what chunks of others add. */
static cup_status share_losses(cup_loop *l)
{
    if (l->copies)
        CUP_TRY(cup_comm_all_gather(l->copies, l->own_losses, l->losses));
    return l->pipe ? cup_comm_all_reduce(l->pipe, &l->losses, 1, CUP_COMBINE_SUM) : CUP_OK;
}

cup_status cup__loop_own_weights(cup_loop *l, bool rest, cup_named **out, int64_t *count)
{
    int64_t all;
    const cup_named *named = cup_parameters_named(l->list, &all);
    *count = 0;
    *out = named ? cup__calloc((size_t)all + 1, sizeof **out) : NULL;
    CUP_TRY(l->c->error.status);
    if (!*out)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    for (int64_t i = 0; i < all; i++)
        if (cup__split_shared_out(named[i].tensor) ? !cup__split_elsewhere(named[i].tensor) : rest)
            (*out)[(*count)++] = named[i];
    return CUP_OK;
}

cup_status cup__loop_reduce(cup_loop *l)
{
    if (!l->comm || cup__device_is_dry(l->c->device))
        return CUP_OK;
    int count;
    cup_comm_step(l->comm, l->steps);
    if (l->buckets) {
        CUP_TRY(cup__buckets_finish(l));
        cup__split_summed(l->optimizer, true);
    } else if (cup__split_stage(l->optimizer) > 1) {
        /* On its owners there is one sum of what several stages have, and they may be others in
         * each stage. */
        CUP_TRY(cup__pipeline_reduce(l));
        CUP_TRY(cup__split_sum_all(l->optimizer));
    } else if (l->among || l->pipe || l->experts) {
        CUP_TRY(reduce_parts(l));
    } else {
        cup_tensor *const *gradients = cup__optimizer_gradients(l->optimizer, &count);
        CUP_TRY(cup_comm_all_reduce(l->comm, gradients, count, CUP_COMBINE_SUM));
    }
    return share_losses(l);
}

cup_status cup__loop_agree(cup_loop *l)
{
    if (!l->comm)
        CUP_TRY(cup__stopped(l->c));
    int64_t numbers[] = {l->asked && l->asked(l->asked_user), cup__save_pending(l)};
    cup_comm_step(l->comm, l->steps);
    if (l->comm)
        CUP_TRY(cup_comm_agree(l->comm, numbers, 2));
    if (!numbers[1])
        CUP_TRY(cup__save_advance(l));
    if (!l->comm || !numbers[0])
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_INTERRUPTED, "stopped, as was asked for");
}

/* All of a kind that is trained; NULL: what several stages have. */
static int64_t choose_weights(cup_loop *l, const cup__sharing *k, const cup_named *named,
                              int64_t count, cup_tensor **all)
{
    const cup__pipeline *s = l->pipeline;
    int64_t found = 0;
    for (int i = 0; !k && i < s->shared_count; i++)
        if (!cup__split_shared_out(l->optimizer->parameters[s->shared[i]]))
            all[found++] = l->optimizer->parameters[s->shared[i]];
    for (int64_t i = 0; k && i < count; i++) {
        cup_tensor *t = named[i].tensor;
        bool everywhere = !cup__split_shared_out(t);
        if (t->is_parameter && t->contiguous && everywhere && is_of(l, k, named[i].name, false))
            all[found++] = t;
    }
    return found;
}

static cup_status hash_weights(cup_loop *l, const cup__sharing *k, uint64_t *out)
{
    int64_t count;
    const cup_named *named = cup_parameters_named(l->list, &count);
    CUP_TRY(l->c->error.status);
    cup_tensor **all = cup__calloc((size_t)count + 1, sizeof *all);
    if (!all)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a list of tensors");
    count = choose_weights(l, k, named, count, all);
    cup_status status = cup__tensors_hash(l->c, all, count, out);
    cup__free(all);
    return status;
}

/* How many have the same hash as process i. */
static int alike(const int64_t *hashes, int count, int i)
{
    int found = 0;
    for (int j = 0; j < count; j++)
        found += hashes[j] == hashes[i];
    return found;
}

/* Names the processes whose weights are not those that most have, rank 0's where nobody is in the
 * majority. */
static cup_status name_others(cup_loop *l, cup_comm *comm, const int64_t *hashes, int count)
{
    cup__text text = {0};
    int most = 0, named = 0;
    for (int i = 1; i < count; i++)
        if (alike(hashes, count, i) > alike(hashes, count, most))
            most = i;
    for (int i = 0; i < count; i++)
        if (hashes[i] != hashes[most] && named++ < 3)
            cup__text_add(&text, "%s%s", named > 1 ? ", " : "", cup__comm_name(comm, i));
    if (named > 3)
        cup__text_add(&text, " and %d more", named - 3);
    cup_status status = cup__fail(
        &l->c->error, CUP_STATE,
        "training: behind step %lld the weights are not the same on all processes: %s %s others "
        "than rank %d and %d more; go back to the last checkpoint, and look for a GPU or memory "
        "that fails",
        (long long)l->steps, text.failed ? "some" : text.bytes, named > 1 ? "have" : "has", most,
        alike(hashes, count, most) - 1);
    cup__text_free(&text);
    return status;
}

static cup_status compare(cup_loop *l, cup_comm *comm, const cup__sharing *k)
{
    uint64_t own = 0;
    int count = cup_comm_count(comm);
    CUP_TRY(hash_weights(l, k, &own));
    int64_t *all = cup__calloc((size_t)count, sizeof *all), mine = (int64_t)own;
    if (!all)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for what hosts agree on");
    cup_comm_step(comm, l->steps);
    cup_status status = cup__comm_collect(comm, &mine, 1, all);
    if (status == CUP_OK && alike(all, count, 0) != count)
        status = name_others(l, comm, all, count);
    cup__free(all);
    return status;
}

cup_status cup__loop_compare(cup_loop *l)
{
    if (!l->comm)
        return CUP_OK;
    cup__sharing kinds[CUP__SHARINGS];
    int count = cup__loop_sharings(l, kinds);
    for (int i = 0; i < count; i++)
        CUP_TRY(compare(l, kinds[i].same, &kinds[i]));
    bool shares = l->pipeline && l->pipeline->sharers;
    return shares ? compare(l, l->pipeline->sharers, NULL) : CUP_OK;
}
