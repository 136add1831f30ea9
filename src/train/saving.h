/* Saving a checkpoint of a loop, by itself or while steps go on. All processes make the same calls,
 * and nothing is a checkpoint until all have written what is theirs of it. */
#ifndef CUP_TRAIN_SAVING_H
#define CUP_TRAIN_SAVING_H

#include "train/loop.h"

/* Begins one; `behind`: it is written beside the steps that follow, from a copy. One that has begun
 * is finished first. */
cup_status cup__save_begin(cup_loop *loop, bool behind);

/* Whether this process is still at work for a save, for all to hear; and what is to be done when
 * none is any longer. */
bool cup__save_pending(const cup_loop *loop);
cup_status cup__save_advance(cup_loop *loop);

/* Waits until the one that has begun is a checkpoint. */
cup_status cup__save_finish(cup_loop *loop);

/* Lets go of it where the loop ends; of one process alone it is finished. */
void cup__save_end(cup_loop *loop);

#endif
