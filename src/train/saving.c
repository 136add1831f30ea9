#include "train/saving.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/shards.h"
#include "train/together.h"

/* The files of a checkpoint, of which each process may write a shard of the first two. */
enum { MODEL, OPTIMIZER, OWN, LOSSES, PARTS };
#define NUMBERS 3 /* that tell of a file: its bytes and its hash */

typedef enum phase {
    WRITING,   /* the files of this process */
    COMMITTING /* on rank 0; others wait for it */
} phase;

struct cup__saving {
    cup_loop *loop;
    phase phase;
    int64_t steps;
    bool behind;
    pthread_t thread;
    bool threaded;
    atomic_bool done;
    cup__error error; /* of what is written */
    cup__checkpoint_part parts[PARTS];
    char names[PARTS][CUP__CHECKPOINT_NAME];
    cup__checkpoint_file files[PARTS]; /* those written; of the others the name is empty */
    cup__checkpoint_file *all;         /* of all processes, on rank 0 */
    int all_count;
    cup__shard weights, states; /* those that are this process's, where all write */
    char *copies;               /* of tensors, in host memory; or NULL */
    cup__text own, points;
    cup__json_writer state;
};

static size_t bytes_of(const cup_tensor *t)
{
    return (size_t)t->count * (size_t)cup_dtype_size(t->dtype);
}

static void free_save(cup_loop *l)
{
    struct cup__saving *s = l->saving;
    l->saving = NULL;
    for (int i = 0; i < PARTS; i++)
        if (s->parts[i].copies != s->weights.copies)
            cup__free(s->parts[i].copies);
    cup__free(s->copies);
    cup__shard_free(&s->weights);
    cup__shard_free(&s->states);
    cup__free(s->all);
    cup__text_free(&s->own);
    cup__text_free(&s->points);
    cup__text_free(&s->state.text);
    cup__free(s);
}

static void write_state(const cup_loop *l, cup__json_writer *writer)
{
    cup__json_open(writer, NULL, CUP__JSON_OBJECT);
    cup__json_add_integer(writer, "schema", CUP__LOOP_SCHEMA);
    cup__json_add_string(writer, "kind", l->kind);
    cup__json_add_integer(writer, "step", l->steps);
    l->checkpoints->write(l, writer);
    cup__json_close(writer);
}

/* What rank 0 alone writes. */
static cup_status make_texts(cup_loop *l, struct cup__saving *s)
{
    const cup__loop_checkpoints *k = l->checkpoints;
    s->state.lines = 2;
    cup__points_write(l, &s->points);
    write_state(l, &s->state);
    if (k->own_file)
        CUP_TRY(k->own_text(l, &s->own));
    if (s->points.failed || s->state.text.failed)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    if (k->own_file)
        s->parts[OWN] = (cup__checkpoint_part){
            .name = k->own_file, .bytes = s->own.bytes, .size = s->own.length};
    s->parts[LOSSES] = (cup__checkpoint_part){
        .name = CUP__LOSSES_FILE, .bytes = s->points.bytes, .size = s->points.length};
    return CUP_OK;
}

/* Whether each process has its shard of a file. */
static bool is_sharded(const cup_loop *l, int part)
{
    bool model = cup__loop_is_parted(l) || cup__split_stage(l->optimizer) > 2;
    return l->shared && (part == OPTIMIZER || (part == MODEL && model));
}

static const char *name_of(const cup_loop *l, int part)
{
    return part == MODEL       ? CUP__MODEL_FILE
           : part == OPTIMIZER ? CUP__OPTIMIZER_FILE
           : part == LOSSES    ? CUP__LOSSES_FILE
                               : l->checkpoints->own_file;
}

static void name_part(const cup_loop *l, int part, int rank, char out[CUP__CHECKPOINT_NAME])
{
    int count = is_sharded(l, part) ? cup_comm_count(l->comm) : 1;
    cup__checkpoint_shard(name_of(l, part), rank, count, out);
}

/* Whether a file may hold slices of tensors. */
static bool is_sliced(const cup_loop *l, int part)
{
    return l->shared && part == OPTIMIZER && (l->among || l->experts);
}

/* The tensors of this process. */
static cup_status choose_tensors(cup_loop *l, struct cup__saving *s)
{
    cup__checkpoint_part *model = &s->parts[MODEL], *optimizer = &s->parts[OPTIMIZER];
    if (l->shared) {
        CUP_TRY(cup__shard_weights(l, &s->weights));
        CUP_TRY(cup__shard_states(l, &s->states));
        *model = (cup__checkpoint_part){.tensors = s->weights.named,
                                        .copies = s->weights.copies,
                                        .count = s->weights.count};
        *optimizer = (cup__checkpoint_part){.tensors = s->states.named, .count = s->states.count};
    } else if (l->folder) {
        *model = (cup__checkpoint_part){.tensors = l->weights->named, .count = l->weights->count};
        *optimizer = (cup__checkpoint_part){.tensors = l->states->named, .count = l->states->count};
    }
    for (int i = 0; i < PARTS; i++) {
        cup__checkpoint_part *p = &s->parts[i];
        if (p->count || p->bytes)
            name_part(l, i, cup_comm_rank(l->comm), s->names[i]);
        p->name = s->names[i];
        p->slices = is_sliced(l, i);
    }
    return CUP_OK;
}

/* What a copy takes, with its shape before it: some of the tensors do not outlive the call. */
static size_t room_of(const cup_tensor *t)
{
    return sizeof t->shape + (bytes_of(t) + 63) / 64 * 64;
}

static cup_status copy_tensors(cup__checkpoint_part *part, char **at)
{
    for (int64_t i = 0; i < part->count; i++) {
        cup_tensor *t = part->tensors[i].tensor;
        int64_t *shape = (int64_t *)(void *)*at;
        char *bytes = *at + sizeof t->shape;
        memcpy(shape, t->shape, sizeof t->shape);
        if (t->count)
            CUP_TRY(cup_tensor_read(t, bytes, bytes_of(t)));
        part->copies[i] = (cup__safetensors_source){.name = part->tensors[i].name,
                                                    .dtype = t->dtype,
                                                    .ndim = t->ndim,
                                                    .shape = shape,
                                                    .bytes = bytes};
        *at += room_of(t);
    }
    return CUP_OK;
}

/* Room for copies of a part's tensors, of which there may be copies already. */
static bool make_room(cup__checkpoint_part *part)
{
    if (part->tensors)
        part->copies = cup__calloc((size_t)part->count + 1, sizeof *part->copies);
    return !part->tensors || part->copies;
}

/* Where there is no memory for copies the tensors themselves are written, while steps wait. */
static cup_status copy_all(struct cup__saving *s)
{
    size_t bytes = 64;
    for (int i = 0; i < OWN; i++)
        for (int64_t k = 0; s->parts[i].tensors && k < s->parts[i].count; k++)
            bytes += room_of(s->parts[i].tensors[k].tensor);
    bool fits = (s->copies = cup__malloc(bytes)) != NULL;
    for (int i = 0; i < OWN && fits; i++)
        fits = make_room(&s->parts[i]);
    char *at = s->copies;
    for (int i = 0; i < OWN && fits; i++)
        if (s->parts[i].tensors)
            CUP_TRY(copy_tensors(&s->parts[i], &at));
    for (int i = 0; i < OWN && !fits; i++) {
        if (!s->parts[i].tensors)
            continue;
        cup__free(s->parts[i].copies);
        s->parts[i].copies = NULL;
    }
    s->behind = fits;
    if (!fits)
        cup__log(CUP__INFO, "training: steps wait for the checkpoint of step %lld, since there is "
                            "no host memory for %.3g GB of copies",
                 (long long)s->steps, 1e-9 * (double)bytes);
    return CUP_OK;
}

/* By a thread without the context, or by the process itself with it. */
static void write_own(struct cup__saving *s, cup_context *c, cup__error *error)
{
    cup_loop *l = s->loop;
    cup_status status = CUP_OK;
    for (int i = 0; i < PARTS && status == CUP_OK; i++)
        if (*s->names[i])
            status = cup__checkpoint_write(c, error, l->path, &s->parts[i], &s->files[i]);
    /* On a full disk above all. */
    if (status != CUP_OK)
        cup__checkpoint_drop(l->path, s->files, PARTS);
}

static void commit(struct cup__saving *s, cup__error *error)
{
    cup__checkpoint_commit(error, s->loop->folder, s->all, s->all_count, &s->state.text);
}

static void *work(void *user)
{
    struct cup__saving *s = user;
    if (s->phase == WRITING)
        write_own(s, NULL, &s->error);
    else
        commit(s, &s->error);
    atomic_store(&s->done, true);
    return NULL;
}

/* Does what the phase asks for, beside the steps where that can be. */
static cup_status begin_work(struct cup__saving *s)
{
    cup_loop *l = s->loop;
    atomic_store(&s->done, false);
    s->threaded = s->behind && pthread_create(&s->thread, NULL, work, s) == 0;
    if (s->threaded)
        return CUP_OK;
    cup_comm_busy(l->comm, true);
    if (s->phase == WRITING)
        write_own(s, l->c, &l->c->error);
    else
        commit(s, &l->c->error);
    cup_comm_busy(l->comm, false);
    atomic_store(&s->done, true);
    return l->c->error.status;
}

static cup_status end_work(struct cup__saving *s)
{
    cup_loop *l = s->loop;
    if (s->threaded) {
        cup_comm_busy(l->comm, true);
        pthread_join(s->thread, NULL);
        cup_comm_busy(l->comm, false);
    }
    s->threaded = false;
    if (s->error.status == CUP_OK)
        return CUP_OK;
    return cup__fail(&l->c->error, s->error.status, "%s", s->error.text);
}

static cup_status clear_last(cup_loop *l)
{
    const char *names[PARTS];
    size_t count = 0;
    for (int i = 0; i < PARTS; i++)
        if (name_of(l, i))
            names[count++] = name_of(l, i);
    return cup__checkpoint_begin(&l->c->error, l->folder, names, count);
}

static cup_status begin(cup_loop *l, struct cup__saving *s, bool behind)
{
    if (!l->shared) {
        CUP_TRY(cup__optimizer_collect(l->optimizer));
        CUP_TRY(cup__loop_collect(l));
    }
    if (l->folder)
        CUP_TRY(clear_last(l));
    /* Nobody writes before that. */
    if (l->shared)
        CUP_TRY(cup_comm_barrier(l->comm));
    if (l->folder)
        CUP_TRY(make_texts(l, s));
    CUP_TRY(choose_tensors(l, s));
    if (behind)
        CUP_TRY(copy_all(s));
    return begin_work(s);
}

cup_status cup__save_begin(cup_loop *l, bool behind)
{
    double start = cup__clock();
    CUP_TRY(cup__save_finish(l));
    CUP_TRY(cup__loop_read(l, l->hooks));
    CUP_TRY(cup__loop_compare(l));
    struct cup__saving *s = l->saving = cup__calloc(1, sizeof *s);
    if (!s)
        return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    *s = (struct cup__saving){.loop = l, .steps = l->steps};
    cup_status status = begin(l, s, behind);
    cup__loop_whole_free(l);
    cup__optimizer_whole_free(l->optimizer);
    if (status == CUP_OK)
        l->saved = l->point_count;
    else
        free_save(l);
    if (behind)
        cup__log(CUP__INFO, "training: steps waited %.3f s for the checkpoint of step %lld",
                 cup__clock() - start, (long long)l->steps);
    return status;
}

bool cup__save_pending(const cup_loop *l)
{
    return l->saving && !atomic_load(&l->saving->done);
}

static void tell_file(const cup__checkpoint_file *file, int64_t numbers[NUMBERS])
{
    char half[17] = "";
    numbers[0] = *file->name ? (int64_t)file->bytes : -1;
    for (int i = 0; i < 2; i++) {
        memcpy(half, file->hash + 16 * i, 16);
        numbers[1 + i] = (int64_t)strtoull(half, NULL, 16);
    }
}

static void hear_file(const cup_loop *l, int part, int rank, const int64_t numbers[NUMBERS],
                      cup__checkpoint_file *out)
{
    name_part(l, part, rank, out->name);
    out->slices = is_sliced(l, part);
    out->bytes = (uint64_t)numbers[0];
    snprintf(out->hash, sizeof out->hash, "%016llx%016llx", (unsigned long long)numbers[1],
             (unsigned long long)numbers[2]);
}

/* The files of all, which say so only when theirs are written. */
static cup_status collect_files(cup_loop *l, struct cup__saving *s)
{
    int ranks = l->shared ? cup_comm_count(l->comm) : 1;
    int64_t own[PARTS * NUMBERS];
    int64_t *all = cup__calloc((size_t)ranks, sizeof own);
    s->all = cup__calloc((size_t)ranks * PARTS, sizeof *s->all);
    for (int i = 0; i < PARTS; i++)
        tell_file(&s->files[i], own + i * NUMBERS);
    cup_status status = CUP_OK;
    if (!all || !s->all)
        status = cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
    else if (l->shared)
        status = cup__comm_collect(l->comm, own, PARTS * NUMBERS, all);
    else
        memcpy(all, own, sizeof own);
    for (int i = 0; i < PARTS && status == CUP_OK && l->folder; i++)
        for (int rank = 0; rank < ranks; rank++) {
            const int64_t *numbers = all + (rank * PARTS + i) * NUMBERS;
            if (numbers[0] >= 0)
                hear_file(l, i, rank, numbers, &s->all[s->all_count++]);
        }
    cup__free(all);
    return status;
}

cup_status cup__save_advance(cup_loop *l)
{
    struct cup__saving *s = l->saving;
    cup_status status = s ? end_work(s) : CUP_OK;
    if (s && status == CUP_OK && s->phase == WRITING) {
        status = collect_files(l, s);
        s->phase = COMMITTING;
        if (status == CUP_OK && l->folder)
            status = begin_work(s);
        if (status == CUP_OK)
            return CUP_OK;
    }
    if (!s)
        return CUP_OK;
    int64_t steps = s->steps;
    free_save(l);
    CUP_TRY(status);
    l->has_checkpoint = true;
    if (l->folder && l->hooks && l->hooks->saved)
        l->hooks->saved(steps, l->hooks->user);
    return CUP_OK;
}

cup_status cup__save_finish(cup_loop *l)
{
    while (l->saving) {
        bool last = l->saving->phase == COMMITTING;
        cup_status status = end_work(l->saving);
        /* What rank 0 has done, all know; of what it could not do it tells when it leaves. */
        if (status == CUP_OK && last && l->comm)
            status = cup_comm_barrier(l->comm);
        if (status == CUP_OK)
            status = cup__save_advance(l);
        else
            free_save(l);
        CUP_TRY(status);
    }
    return CUP_OK;
}

void cup__save_end(cup_loop *l)
{
    struct cup__saving *s = l->saving;
    if (!s)
        return;
    /* What was to be saved is good, whatever has ended the run since. */
    bool good = end_work(s) == CUP_OK && !l->comm && s->phase == WRITING;
    if (good && collect_files(l, s) == CUP_OK)
        commit(s, &(cup__error){0});
    free_save(l);
}
