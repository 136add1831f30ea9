/* How the processes of a training share it out: stages and parts of the model, parts of texts and
 * of the experts, and the batches of a step. */
#include <stdio.h>

#include "nn/gpt.h"
#include "tensor/tensor.h"
#include "train/trainer.h"

#define DROPPED 16 /* tokens, see dropout of cup_comm_attention */

/* Chunk i of all belongs to stage i % stages. */
static cup_status check_blocks(cup_context *c, const cup_trainer *t, int64_t i, int64_t blocks)
{
    char chunk[40] = "";
    if (blocks > 0)
        return CUP_OK;
    if (t->chunks > 1)
        snprintf(chunk, sizeof chunk, "chunk %lld of ", (long long)(i / t->stages));
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: %sstage %lld of %lld has %lld of the %lld blocks; give each "
                     "one or more",
                     chunk, (long long)(i % t->stages), (long long)t->stages, (long long)blocks,
                     (long long)t->training.model.layers);
}

/* The blocks of this process's stage. */
static cup_status choose_blocks(cup_context *c, cup_trainer *t, int64_t stage)
{
    const cup_training *a = &t->training;
    int64_t layers = a->model.layers, sum = 0, all = t->stages * t->chunks;
    for (int64_t i = 0; i < all; i++) {
        int64_t blocks = a->blocks ? a->blocks[i] : layers / all + (i < layers % all);
        CUP_TRY(check_blocks(c, t, i, blocks));
        int64_t *bounds = t->bounds[i / t->stages];
        if (i % t->stages == stage)
            bounds[0] = sum;
        sum += blocks;
        if (i % t->stages == stage)
            bounds[1] = sum;
    }
    if (sum == layers)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: the stages have %lld blocks together, and the model %lld; change "
                     "`blocks`",
                     (long long)sum, (long long)layers);
}

/* Makes rings of groups that have a part of each text. */
static cup_status make_ring(cup_context *c, cup_trainer *t, int64_t each)
{
    const cup_training *a = &t->training;
    int64_t count = a->ring > 0 ? a->ring : 1, context = a->model.context;
    bool alike = a->ring >= 0 && count <= t->groups && t->groups % count == 0;
    if (!alike)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld groups of %lld processes are no rings of %lld of them, "
                         "which have a part each of every text; start a multiple of them",
                         (long long)t->groups, (long long)each, (long long)a->ring);
    if (count > 1 && context % (2 * count))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: a context of %lld tokens has no %lld parts alike, two for each "
                         "process of a ring; make it a multiple of that",
                         (long long)context, (long long)(2 * count));
    if (count > 1 && a->model.dropout > 0 && context % (2 * DROPPED * count))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: parts of texts of %lld tokens with dropout; make the context a "
                         "multiple of %lld, or set dropout to 0",
                         (long long)context, (long long)(2 * DROPPED * count));
    if (count > 1)
        t->ring = cup_comm_split_new(
            a->comm, (int)(t->group / count * each + cup_comm_rank(a->comm) % each));
    return c->error.status;
}

/* Makes groups of processes that share out the experts of their stage: of those who have it so many
 * as follow each other, each with batches of its own, or some with the same as they share out a
 * model. */
static cup_status make_experts(cup_context *c, cup_trainer *t)
{
    const cup_training *a = &t->training;
    int64_t each = a->expert > 0 ? a->expert : 1, ring = cup_comm_count(t->ring);
    int64_t tensor = cup_comm_count(t->among), all = t->groups * tensor, copies = each / tensor;
    if (a->expert < 0 || all % each || (each > 1 && each % tensor))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld processes%s are no groups of %lld that share out experts; "
                         "start a multiple of them%s",
                         (long long)all, t->pipe ? " of each stage" : "", (long long)a->expert,
                         t->among ? ", which is one of those that share out a model, too" : "");
    if (each > 1 && copies % ring && ring % copies)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: of %lld copies that share out experts and %lld with parts of "
                         "each text one number must divide the other; change it",
                         (long long)copies, (long long)ring);
    int64_t stage = cup_comm_rank(a->comm) / tensor % t->stages;
    int64_t at = t->group * tensor + cup_comm_rank(t->among);
    if (each > 1)
        t->experts = cup_comm_split_new(a->comm, (int)(at / each * t->stages + stage));
    return c->error.status;
}

cup_status cup__trainer_group(cup_context *c, cup_trainer *t)
{
    const cup_training *a = &t->training;
    int64_t count = cup_comm_count(a->comm), tensor = a->tensor > 0 ? a->tensor : 1;
    int64_t rank = cup_comm_rank(a->comm), each;
    t->stages = a->stages > 0 ? a->stages : 1;
    if (a->tensor < 0 || a->stages < 0 || __builtin_mul_overflow(tensor, t->stages, &each) ||
        count % each)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld processes are no groups of %lld stages of %lld processes "
                         "each that share out a model; start a multiple of them",
                         (long long)count, (long long)a->stages, (long long)a->tensor);
    t->groups = count / each;
    t->group = rank / each;
    t->chunks = a->chunks ? a->chunks : 1;
    if (t->chunks < 1 || t->chunks > CUP__CHUNKS_MOST || (t->chunks > 1 && t->stages == 1))
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "training: %lld chunks of each of %lld stages; take from 1 to %d, and "
                         "more than one of stages alone",
                         (long long)t->chunks, (long long)t->stages, CUP__CHUNKS_MOST);
    CUP_TRY(choose_blocks(c, t, rank / tensor % t->stages));
    if (tensor > 1)
        t->among = cup_comm_split_new(a->comm, (int)(rank / tensor));
    if (t->stages > 1)
        t->pipe = cup_comm_split_new(a->comm, (int)(t->group * tensor + rank % tensor));
    CUP_TRY(c->error.status);
    CUP_TRY(make_ring(c, t, each));
    return make_experts(c, t);
}

/* Tokens of a batch, which those who share out a model share out between blocks or to experts. */
static cup_status check_tokens(cup_context *c, const cup_trainer *t)
{
    const cup_training *a = &t->training;
    int64_t count = cup_comm_count(t->among), length = cup__trainer_length(t);
    bool cut = a->sequence || (a->model.experts && a->expert > 1);
    if (!cut || t->rows * length % count == 0)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: %lld texts of %lld tokens at once are no %lld equal parts for "
                     "those who share out a model; make the batch or the context a multiple of "
                     "%lld",
                     (long long)t->rows, (long long)length, (long long)count, (long long)count);
}

cup_status cup__trainer_share(cup_context *c, cup_trainer *t)
{
    const cup_training *a = &t->training;
    int64_t count = t->groups / cup_comm_count(t->ring), parts = 1;
    while (a->accumulate * parts % count && parts < count)
        parts++;
    t->batches = a->accumulate * parts;
    t->share = t->batches / count;
    t->rows = a->batch / parts;
    if (a->batch % parts == 0)
        return check_tokens(c, t);
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "training: %lld batches of %lld texts cannot be shared equally by %lld "
                     "%s; make the one or the other a multiple of %lld",
                     (long long)a->accumulate, (long long)a->batch, (long long)count,
                     t->among || t->pipe || t->ring ? "groups of processes" : "processes",
                     (long long)parts);
}
