/* What the loops of several processes do that train one model: each computes its share of a step's
 * batches, and all make the same step. */
#ifndef CUP_TRAIN_TOGETHER_H
#define CUP_TRAIN_TOGETHER_H

#include "base/hash.h"
#include "tensor/tensor.h"
#include "train/loop.h"

/* Finds the processes that have the same part of a model, and those that have the same stage. */
cup_status cup__loop_group(cup_loop *loop);
void cup__loop_ungroup(cup_loop *loop);

/* What the stages of a model have between them, by name. */
typedef struct cup__listed {
    char name[304];
    cup__shape shape; /* of the whole */
    int64_t rows;     /* of it that are in files; 0: all */
    uint64_t stages;  /* that have it: bit i */
} cup__listed;

typedef struct cup__catalogue {
    cup__listed *list;
    int64_t count;
} cup__catalogue;

/* Of the list's tensors or of the optimizer's states, in the order of the stages; all stages call
 * it. */
cup_status cup__catalogue_make(cup_loop *loop, bool states, cup__catalogue *out);

/* A batch between its way forward and its way back: what came into the chunk, what that has made,
 * the gradient of this that came back, and how. */
typedef struct cup__passage {
    struct cup__tape *tape;
    cup_tensor *x, *y, *d;
    cup_tensor *owed; /* what is to be added to the loss, or NULL */
} cup__passage;

#define CUP__CHUNKS_MOST 32 /* of a stage */

/* This process as a stage of a model. */
typedef struct cup__pipeline {
    int at, last; /* this stage and the last one */
    int chunks;   /* of each stage */
    int depth;
    size_t room;
    cup__passage *passages; /* [depth] */
    cup__catalogue weights, states;
    uint64_t sharing;  /* the stages that have parameters in common: bit i; 0: there are none */
    cup_comm *sharers; /* those, where this is one of them, or NULL */
    int *shared;       /* places of those parameters in the optimizer, in the catalogue's order */
    int shared_count;
    bool closing; /* nothing is passed on any more in this step */
} cup__pipeline;

/* Nothing without stages. */
cup_status cup__pipeline_make(cup_loop *loop);
void cup__pipeline_free(cup_loop *loop);
/* The batches [from, to) of this process's share, forward and backward. */
cup_status cup__pipeline_compute(cup_loop *loop, int64_t from, int64_t to);
/* Adds up gradients of what several stages have; and gives them one beginning. */
cup_status cup__pipeline_reduce(cup_loop *loop);
cup_status cup__pipeline_spread(cup_loop *loop);

/* Tensors of a checkpoint, whole where this process has a part, and those of all stages. */
typedef struct cup__whole {
    cup_named *named;
    cup_tensor **own;  /* what this process has of each, or NULL */
    cup_tensor **made; /* the whole of what rank 0 has not, there, or NULL */
    const cup__listed *listed; /* of stages, in this order; or NULL */
    int64_t count;
    bool states; /* of the optimizer */
} cup__whole;

/* All of the list and of the optimizer, into `weights` and `states`: on rank 0 with tensors for
 * what is whole nowhere. All processes call the next two: they bring the parts to rank 0, or what
 * is whole on rank 0 to those who have parts of it. */
cup_status cup__loop_whole(cup_loop *loop);
void cup__loop_whole_free(cup_loop *loop);
cup_status cup__loop_collect(cup_loop *loop);
cup_status cup__loop_deal(cup_loop *loop);
/* This process's part of a tensor of the list, or of a state of the optimizer; NULL: the whole. */
const struct cup__portion *cup__loop_part(const cup_loop *loop, const char *name, bool state);

/* Sets which of a step's batches are this process's; refuses what cannot be shared equally. */
cup_status cup__loop_share(cup_loop *loop);

/* Which of `count` things one of several processes evaluates, [*begin, *end), where so many of them
 * that follow each other evaluate the same. */
void cup__evaluated_share(cup_comm *comm, int together, int64_t count, int64_t *begin,
                          int64_t *end);

/* Gives all the weights, states, points and steps of rank 0. */
cup_status cup__loop_spread(cup_loop *loop);

/* The list's tensors that are this process's where each has its own: those that belong to it, and
 * with `rest` those that belong to nobody. To be freed. */
cup_status cup__loop_own_weights(cup_loop *loop, bool rest, cup_named **out, int64_t *count);

/* Backward from the loss of a batch. In the last one of a step, gradients that are complete are
 * added up over all meanwhile, some at a time. */
cup_status cup__loop_backward(cup_loop *loop, cup_tensor *loss, bool last);

/* What that takes; has the next backward of the context's tape be such a one, or no longer; adds up
 * what is left and waits for all; does so where a step was given up. */
cup_status cup__buckets_make(cup_loop *loop);
void cup__buckets_free(cup_loop *loop);
void cup__buckets_watch(cup_loop *loop, bool on);
cup_status cup__buckets_finish(cup_loop *loop);
void cup__buckets_drop(cup_loop *loop);

/* Of what all have, and of parts: who shares it out, NULL being nobody, and who has the same. */
typedef struct cup__sharing {
    cup_comm *sharers, *same;
} cup__sharing;
#define CUP__SHARINGS 3
int cup__loop_sharings(const cup_loop *loop, cup__sharing out[CUP__SHARINGS]);

/* Behind the last batch: the gradients become sums over all, and the losses those of all batches.
 * It is captured with the rest of the step. */
cup_status cup__loop_reduce(cup_loop *loop);

/* Before a step: CUP_INTERRUPTED on all where one of them was asked to stop. */
cup_status cup__loop_agree(cup_loop *loop);

/* A hash of the bytes of tensors, which lie in row-major order; and the same of one tensor after
 * the other: begun as {0}, ended in any case. */
typedef struct cup__tensor_hash {
    cup__hash hash;
    bool begun;
    char *bytes; /* of a tensor on the host */
    size_t room;
} cup__tensor_hash;

cup_status cup__tensors_hash(cup_context *c, cup_tensor *const *tensors, int64_t count,
                             uint64_t *out);
cup_status cup__tensor_hash_add(cup__tensor_hash *hash, cup_tensor *t);
uint64_t cup__tensor_hash_end(cup__tensor_hash *hash);

/* Fails on all where the weights of one are not those of the others, and names it. */
cup_status cup__loop_compare(cup_loop *loop);

#endif
