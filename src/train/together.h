/* What the loops of several processes do that train one model: each computes its share of a step's
 * batches, and all make the same step. */
#ifndef CUP_TRAIN_TOGETHER_H
#define CUP_TRAIN_TOGETHER_H

#include "train/loop.h"

/* Finds the processes that have the same part of a model. */
cup_status cup__loop_group(cup_loop *loop);

/* Tensors of a checkpoint, whole where this process has a part. */
typedef struct cup__whole {
    cup_named *named;
    cup_tensor **own;  /* what this process has of each */
    cup_tensor **made; /* the whole of a part, on rank 0, or NULL */
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
const struct cup__part *cup__loop_part(const cup_loop *loop, const char *name, bool state);

/* Sets which of a step's batches are this process's; refuses what cannot be shared equally. */
cup_status cup__loop_share(cup_loop *loop);

/* Which of `count` things one of several processes evaluates, [*begin, *end). */
void cup__evaluated_share(cup_comm *comm, int64_t count, int64_t *begin, int64_t *end);

/* Gives all the weights, states, points and steps of rank 0. */
cup_status cup__loop_spread(cup_loop *loop);

/* Backward from the loss of a batch. In the last one of a step, gradients that are complete are
 * added up over all meanwhile, some at a time. */
cup_status cup__loop_backward(cup_loop *loop, cup_tensor *loss, bool last);

/* What that takes; adds up what is left and waits for all; does so where a step was given up. */
cup_status cup__buckets_make(cup_loop *loop);
void cup__buckets_free(cup_loop *loop);
cup_status cup__buckets_finish(cup_loop *loop);
void cup__buckets_drop(cup_loop *loop);

/* Behind the last batch: the gradients become sums over all, and the losses those of all batches.
 * It is captured with the rest of the step. */
cup_status cup__loop_reduce(cup_loop *loop);

/* Before a step: CUP_INTERRUPTED on all where one of them was asked to stop. */
cup_status cup__loop_agree(cup_loop *loop);

/* A hash of the bytes of tensors, which lie in row-major order. */
cup_status cup__tensors_hash(cup_context *c, cup_tensor *const *tensors, int64_t count,
                             uint64_t *out);

/* Fails on all where the weights of one are not those of the others, and names it. */
cup_status cup__loop_compare(cup_loop *loop);

#endif
