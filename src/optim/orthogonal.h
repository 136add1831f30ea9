/* Muon's part of an optimizer: matrices whose steps are made orthogonal. */
#ifndef CUP_OPTIM_ORTHOGONAL_H
#define CUP_OPTIM_ORTHOGONAL_H

#include "nn/parameters.h"

typedef struct cup__muon_steps cup__muon_steps;

/* One matrix: the parameter, its master copy or NULL, and its momentum, all borrowed; and what part
 * of a whole these are, where others have the rest. */
typedef struct cup__muon_matrix {
    cup_tensor *value, *master, *first;
    float rate, decay;
    bool divided;
    cup__portion part;
} cup__muon_matrix;

/* Matrices of one shape and dtype are worked on together, through memory of their size that is kept
 * between steps; of parts a step puts together the whole, too. `single`: in f32 where bf16 would be
 * faster. NULL with an error in the context. */
cup__muon_steps *cup__muon_new(cup_context *c, const cup__muon_matrix *matrices, int count,
                               bool single);
void cup__muon_free(cup__muon_steps *m);

/* One step of the matrices that have a gradient. */
cup_status cup__muon_step_all(cup__muon_steps *m, cup_tensor *factors, double momentum,
                              bool stochastic);

/* x, [..,rows,columns], with the singular values of each matrix brought near 1: between 0.7 and 1.2
 * for all but the smallest. */
cup_tensor *cup__orthogonal(cup_context *c, cup_tensor *x);

#endif
