/* A model of several layers for runs by several processes. */
#ifndef TRAIN_LAYERED_H
#define TRAIN_LAYERED_H

#include "cupola/cupola.h"

#define LAYERED_STEPS 9
#define LAYERED_LAYERS 8
#define LAYERED_BATCHES 4

typedef struct layered {
    cup_context *c;
    cup_parameters *list;
    cup_embedding_layer words;
    cup_linear_layer layers[LAYERED_LAYERS];
    cup_layernorm_layer norm;
    cup_tensor *ids, *targets;
    int64_t width, breaks;
    int64_t most; /* bytes in use behind forward of a batch */
} layered;

typedef struct layered_how {
    const char *folder;
    int64_t steps, save_every, width; /* 0: that of the header, at the end only, 16 */
    double clip;
    int64_t breaks; /* the step whose weights are no numbers; 0: none */
    int stage;
    bool split, background;
} layered_how;

/* A loop of it with the same first values and batches for any number of processes; NULL and an
 * error in the context. */
cup_loop *layered_make(layered *m, cup_context *c, cup_comm *comm, const layered_how *how);
void layered_end(layered *m, cup_loop *loop);

#endif
