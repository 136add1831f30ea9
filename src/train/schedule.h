/* The order in which the stages of a model, each of one or more chunks of its blocks, compute the
 * batches of a step and pass on what they make. */
#ifndef CUP_TRAIN_SCHEDULE_H
#define CUP_TRAIN_SCHEDULE_H

#include "base/error.h"

/* What a stage does next: takes what the chunk before has made, computes, and passes on what it has
 * made; and the same on the way back. */
typedef enum cup__turn_kind {
    CUP__TAKE,
    CUP__FORWARD,
    CUP__PASS,
    CUP__TAKE_BACK,
    CUP__BACKWARD,
    CUP__PASS_BACK
} cup__turn_kind;

typedef struct cup__turn {
    cup__turn_kind kind;
    int chunk;     /* of this stage */
    int slot;      /* where the batch is kept from its first turn in the chunk to its last */
    int64_t batch; /* from 0 */
} cup__turn;

typedef struct cup__schedule {
    cup__turn *turns;
    int64_t count;
    int slots;
} cup__schedule;

/* Chunk v of stage s of n is number v n + s of the model, so that stage s takes from the stage
 * before it, and the first one, but for its chunk 0, from the last. With `backward` false there is
 * no way back. The turns are to be freed. */
typedef struct cup__stages {
    int stages, chunks;
    int64_t batches;
    bool backward;
} cup__stages;
cup_status cup__schedule_make(cup__error *error, const cup__stages *of, int stage,
                              cup__schedule *out);

#endif
