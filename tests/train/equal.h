/* A small GPT that processes share out in every way, and how far from one process it is. */
#ifndef TRAIN_EQUAL_H
#define TRAIN_EQUAL_H

#include "cupola/cupola.h"

#define EQUAL_STEPS 100
#define EQUAL_NAME 100

/* So many processes; what is 0 is not shared out. */
typedef struct equal_way {
    int count, zero;
    int64_t tensor, stages, chunks, ring, expert;
    bool sequence;
    bool halves; /* of each batch forward, see CUP_COMM_BESIDE */
} equal_way;

extern const equal_way equal_ways[];
extern const int equal_way_count;
void equal_name(const equal_way *w, char out[EQUAL_NAME]);

typedef struct equal_points {
    double loss[EQUAL_STEPS + 8], norm[EQUAL_STEPS + 8];
    int64_t count;
} equal_points;

/* The plain model, one of more blocks, for many stages, and one with experts. */
enum { EQUAL_PLAIN, EQUAL_DEEP, EQUAL_EXPERTS, EQUAL_MODELS };

/* What one process makes of each, in memory that processes share, and its gradients in a folder. */
typedef struct equal_reference {
    equal_points points[EQUAL_MODELS];
    char folder[500];
} equal_reference;

equal_reference *equal_reference_new(void);
void equal_alone(cup_context *c, equal_reference *r, int model);

/* How far losses and norms of 100 steps are from those of one process, of their size, and on rank 0
 * the gradients of one step, of the largest element of their tensor; and a sentence about the first
 * that is further off than rounding. */
typedef struct equal_distance {
    double loss, norm, gradient;
    char wrong[400];
} equal_distance;

void equal_compare(cup_context *c, cup_comm *comm, const equal_way *w, const equal_reference *r,
                   equal_distance *out);

/* The 100 steps alone. */
void equal_train(cup_context *c, cup_comm *comm, const equal_way *w, equal_points *out);

#endif
