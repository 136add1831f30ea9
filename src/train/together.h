/* What the loops of several processes do that train one model: each computes its share of a step's
 * batches, and all make the same step. */
#ifndef CUP_TRAIN_TOGETHER_H
#define CUP_TRAIN_TOGETHER_H

#include "train/loop.h"

/* Sets which of a step's batches are this process's; refuses what cannot be shared equally. */
cup_status cup__loop_share(cup_loop *loop);

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

/* Fails on all where the weights of one are not those of the others, and names it. */
cup_status cup__loop_compare(cup_loop *loop);

#endif
