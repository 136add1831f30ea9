/* What a process has of a model, from a folder with the whole: of each tensor it reads the parts
 * that it needs, under our name or, of a published model, under theirs. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/gpt.h"
#include "nn/parameters.h"
#include "train/published.h"
#include "train/shards.h"
#include "train/trainer.h"

#define LONGEST_NAME 256

static bool is_absent(const cup__gpt_tensor *t, const cup_gpt_config *g)
{
    return t->absent && t->absent(g);
}

static bool same_tensor(const cup__gpt_tensor *t, const cup_gpt_config *a, const cup_gpt_config *b)
{
    bool same = is_absent(t, a) == is_absent(t, b);
    if (is_absent(t, a) || !same)
        return same;
    if (t->in_block)
        same = a->layers == b->layers;
    for (int i = 0; i < 3; i++)
        same &= t->shape[i] == CUP__EXTENT_ROWS
                    ? a->vocabulary == b->vocabulary
                    : cup__gpt_extent(a, t->shape[i]) == cup__gpt_extent(b, t->shape[i]);
    return same;
}

/* A process has no list of all tensors to compare. */
static cup_status check_alike(const cup_gpt *m, const cup_gpt_config *from, const char *folder)
{
    char name[LONGEST_NAME];
    for (const cup__gpt_tensor *t = cup__gpt_tensors; t->name; t++) {
        if (same_tensor(t, &m->config, from))
            continue;
        snprintf(name, sizeof name, t->name, 0);
        return cup__fail(&m->context->error, CUP_ARGUMENT,
                         "training: the model in %s differs from the one to be trained at %s; "
                         "leave what describes the model to it",
                         folder, name);
    }
    return CUP_OK;
}

static const cup__portion *part_of(const cup_gpt *m, const char *name)
{
    return cup__parameters_part_named(m->parameters, name, strlen(name));
}

static cup_status fill_own(cup_gpt *m, const cup__checkpoint *checkpoint)
{
    int64_t count;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    cup__wanted *wanted = cup__calloc((size_t)count + 1, sizeof *wanted);
    if (!named || !wanted) {
        cup__free(wanted);
        return cup__fail(&m->context->error, CUP_MEMORY,
                         "out of host memory for a list of tensors");
    }
    for (int64_t i = 0; i < count; i++) {
        const cup__portion *part = part_of(m, named[i].name);
        int rank = part ? cup_comm_rank(part->comm) : 0;
        wanted[i] =
            (cup__wanted){named[i].name, named[i].tensor,
                          cup__portion_cut(named[i].tensor, part, rank, part ? part->rows : 0)};
    }
    cup_status status =
        cup__checkpoint_fill_cut(m->context, checkpoint, CUP__MODEL_FILE, wanted, count, -1, true);
    cup__free(wanted);
    return status;
}

static cup_status take_open(cup_gpt *m, const cup__checkpoint *checkpoint, const char *folder)
{
    cup_training training;
    CUP_TRY(cup__training_of(m->context, checkpoint, &training));
    if (training.lora_rank)
        return cup__fail(&m->context->error, CUP_UNSUPPORTED,
                         "training: %s has adapters beside a model, which processes that share out "
                         "theirs cannot merge; do so with cupola export --merge, and name that "
                         "folder",
                         folder);
    CUP_TRY(check_alike(m, &training.model, folder));
    return fill_own(m, checkpoint);
}

/* Each process checks a share of the files; who finds one damaged leaves the others. */
static cup_status take_own(cup_gpt *m, const char *folder, cup_comm *comm)
{
    cup__checkpoint checkpoint;
    cup__checkpoint_mend_free(folder);
    CUP_TRY(cup__checkpoint_open_share(&m->context->error, folder, cup_comm_rank(comm),
                                       cup_comm_count(comm), &checkpoint));
    cup_status status = take_open(m, &checkpoint, folder);
    cup__checkpoint_close(&checkpoint);
    return status;
}

/* A tensor of theirs: rows of ours, or of one of its matrices, from `from` on. */
typedef struct theirs {
    cup_gpt *m;
    const cup__safetensors *file;
    const char *name;
    cup__shape whole; /* the rows and columns that it has */
    int64_t from;
    bool transposed;
} theirs;

/* Fills these rows and columns of it, which `own` is. */
static cup_status fill_stretch(const theirs *t, cup_tensor *own, int axis, int64_t begin)
{
    static const int64_t turned[] = {1, 0};
    cup_context *c = t->m->context;
    cup__wanted w = {t->name, own, {.whole = t->whole, .axis = axis, .count = 1}};
    if (!own)
        return c->error.status;
    w.cut.begin[0] = begin;
    w.cut.size[0] = own->shape[axis];
    if (t->transposed) {
        w.cut.whole.size[0] = t->whole.size[1];
        w.cut.whole.size[1] = t->whole.size[0];
        w.cut.axis = 1 - axis;
        w.tensor = cup_permute(c, own, turned, 2);
    }
    return w.tensor ? cup__slices_fill(c, t->file, false, true, &w, 1) : c->error.status;
}

/* Of each stretch that the process has the rows that are theirs. */
static cup_status fill_rows(const theirs *t, cup_tensor *own, const cup__portion *part)
{
    int64_t at = 0, end = t->from + t->whole.size[0];
    cup__cut cut = cup__portion_cut(own, part, cup_comm_rank(part->comm), 0);
    for (int i = 0; i < cut.count; i++) {
        int64_t begin = cut.begin[i], last = begin + cut.size[i];
        int64_t low = begin > t->from ? begin : t->from, high = last < end ? last : end;
        if (low < high)
            CUP_TRY(fill_stretch(t, cup__gpt_part(own, 0, at + low - begin, at + high - begin), 0,
                                 low - t->from));
        at += cut.size[i];
    }
    return CUP_OK;
}

static cup_status fill_columns(const theirs *t, cup_tensor *own, const cup__portion *part)
{
    int64_t at = 0;
    cup_tensor *rows = cup__gpt_part(own, 0, t->from, t->from + t->whole.size[0]);
    cup__cut cut = cup__portion_cut(own, part, cup_comm_rank(part->comm), 0);
    for (int i = 0; i < cut.count && rows; i++) {
        CUP_TRY(fill_stretch(t, cup__gpt_part(rows, 1, at, at + cut.size[i]), 1, cut.begin[i]));
        at += cut.size[i];
    }
    return rows ? CUP_OK : t->m->context->error.status;
}

/* The matrix of an expert, where this process has it, or a part of it. */
static cup_tensor *matrix_of(cup_tensor *all, const cup__portion *part, int64_t expert)
{
    if (part && part->axis == 0)
        expert -= cup_comm_rank(part->comm) * all->shape[0];
    if (expert < 0 || expert >= all->shape[0])
        return NULL;
    cup_tensor *one = cup__gpt_part(all, 0, expert, expert + 1);
    return one ? cup_reshape(all->context, one, 2, all->shape + 1) : NULL;
}

static cup_status fill_theirs(theirs *t, const cup__published_tensor *row, cup_tensor *own,
                              const cup__portion *part)
{
    int64_t rows = part && part->rows    ? part->rows
                   : part && !part->axis ? own->shape[0] * cup_comm_count(part->comm)
                                         : own->shape[0];
    t->whole = part ? cup__part_whole_shape(own, part) : cup__shape_of(own);
    cup__published_rows(&t->m->config, row->part, rows, &t->from, &t->whole.size[0]);
    if (part)
        return part->axis ? fill_columns(t, own, part) : fill_rows(t, own, part);
    int64_t end = t->from + t->whole.size[0];
    return fill_stretch(t, cup__gpt_part(own, 0, t->from, end), 0, 0);
}

/* Under their name, which may have the family's prefix. */
static const char *name_in(const cup__safetensors *file, const cup__published_family *family,
                           char name[2 * LONGEST_NAME])
{
    char longer[2 * LONGEST_NAME + 64];
    if (family->prefix && !cup__safetensors_find(file, name)) {
        snprintf(longer, sizeof longer, "%s%s", family->prefix, name);
        const cup__safetensors_entry *found = cup__safetensors_find(file, longer);
        return found ? found->name : name;
    }
    return name;
}

static cup_status take_row(theirs *t, const cup__published_family *family,
                           const cup__published_tensor *row, int block)
{
    char own[LONGEST_NAME], name[2 * LONGEST_NAME];
    cup_gpt *m = t->m;
    bool routed = cup__published_of_expert(row);
    snprintf(own, sizeof own, row->own, block);
    int64_t count;
    const cup_named *named = cup_parameters_named(m->parameters, &count);
    CUP_TRY(m->context->error.status);
    int64_t at = 0;
    while (at < count && strcmp(named[at].name, own))
        at++;
    if (at == count)
        return CUP_OK;
    cup_tensor *all = named[at].tensor;
    const cup__portion *part = part_of(m, own);
    cup__portion of_matrix = part ? *part : (cup__portion){0};
    of_matrix.axis -= routed;
    const cup__portion *here = of_matrix.comm && of_matrix.axis >= 0 ? &of_matrix : NULL;
    for (int e = 0; e < (routed ? (int)m->config.experts : 1); e++) {
        cup_scope_open(m->context);
        cup_tensor *one = routed ? matrix_of(all, part, e) : all;
        snprintf(name, sizeof name, row->name, block, e);
        t->name = name_in(t->file, family, name);
        t->transposed = row->transposed;
        cup_status status =
            one ? fill_theirs(t, row, one, here) : m->context->error.status;
        cup_scope_close(m->context);
        CUP_TRY(status);
    }
    return CUP_OK;
}

static cup_status take_published(cup_gpt *m, const char *folder)
{
    cup_context *c = m->context;
    cup_gpt_config config;
    const cup__published_family *family;
    cup__safetensors file;
    CUP_TRY(cup__published_read(c, folder, &config, &family));
    CUP_TRY(check_alike(m, &config, folder));
    CUP_TRY(cup__published_check(&c->error, folder, &config, family));
    CUP_TRY(cup__safetensors_open(&c->error, folder, &file));
    theirs t = {.m = m, .file = &file};
    cup_status status = CUP_OK;
    for (const cup__published_tensor *row = family->tensors; row->name; row++) {
        int blocks = strstr(row->own, "%d") ? (int)m->config.layers : 1;
        for (int i = 0; i < blocks && status == CUP_OK; i++)
            status = take_row(&t, family, row, i);
    }
    /* By config.json they are others: the file is a bad one. */
    if (status == CUP_SHAPE)
        c->error.status = status = CUP_FORMAT;
    cup__safetensors_close(&file);
    return status;
}

cup_status cup__gpt_take_parts(cup_gpt *m, const char *folder, cup_comm *comm)
{
    cup_context *c = m->context;
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    cup_status status =
        cup__published_is(folder) ? take_published(m, folder) : take_own(m, folder, comm);
    cup_scope_close(c);
    cup_grad_recording(c, was);
    return status;
}
