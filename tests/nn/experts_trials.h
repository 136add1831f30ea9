/* Layers of experts that are tried, and rows for them. */
#ifndef TESTS_NN_EXPERTS_TRIALS_H
#define TESTS_NN_EXPERTS_TRIALS_H

#include "cupola/cupola.h"

enum { ROWS = 14, WIDTH = 6, HIDDEN = 8, EXPERTS = 4 };

/* A layer, and how it is called. */
typedef struct trial {
    int64_t each;
    bool gated, unscaled;
    double capacity;
} trial;

#define TRIALS 7
extern const trial trials[TRIALS];

void trial_layer(cup_experts_layer *l, cup_parameters *list, const trial *t);
double trial_wave(int i, double step);
cup_tensor *trial_rows(cup_context *c, double step); /* f64 [2, ROWS / 2, WIDTH] */

#endif
