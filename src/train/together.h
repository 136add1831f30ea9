/* What the loops of several processes do that train one model: each computes its share of a step's
 * batches, and all make the same step. */
#ifndef CUP_TRAIN_TOGETHER_H
#define CUP_TRAIN_TOGETHER_H

#include "train/loop.h"

/* Sets which of a step's batches are this process's; refuses what cannot be shared equally. */
cup_status cup__loop_share(cup_loop *loop);

/* Gives all the weights, states, points and steps of rank 0. */
cup_status cup__loop_spread(cup_loop *loop);

/* Behind the last batch: the gradients become sums over all, and the losses those of all batches.
 * It is captured with the rest of the step. */
cup_status cup__loop_reduce(cup_loop *loop);

/* Before a step: CUP_INTERRUPTED on all where one of them was asked to stop. */
cup_status cup__loop_agree(cup_loop *loop);

/* Fails on all where the weights of one are not those of rank 0. */
cup_status cup__loop_compare(cup_loop *loop);

#endif
