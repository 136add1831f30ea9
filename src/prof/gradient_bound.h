/* What a gradient through the tape may be wrong by. */
#ifndef CUP_PROF_GRADIENT_BOUND_H
#define CUP_PROF_GRADIENT_BOUND_H

#include "dispatch/op.h"

/* The call whose gradients they are, in `dtype`, with its inputs in double. */
typedef struct cup__gradient_call {
    const cup__row *row;
    const void *attributes;
    cup_dtype dtype;
    int in_count;
    cup_tensor *const *in;
    cup_tensor *const *back; /* by result: what flows back to it, NULL for nothing */
} cup__gradient_call;

/* Numbers around `middle`, up to `scale` away, rounded to a dtype and held in another. */
cup_tensor *cup__gradient_numbers(cup_context *c, const cup__shape *like, cup_dtype rounded,
                                  cup_dtype hold, uint64_t seed, double middle, double scale);

/* Epsilons: what the op itself may be wrong by, at least `least`, or where terms are summed in f32
 * the root of their number: they are at most as many as the largest dimension, or the elements that
 * a broadcast one met. In 16 bits such sums are as good as exact, and so is most of what the op
 * allows itself for them. */
double cup__gradient_roundings(const cup__gradient_call *g, int i, double least);

/* How many times as far as its inputs' own rounding its sums in f32 may move a gradient: as in
 * random calls, the root of the operations of a result, each of which rounds what was summed before
 * it, once that is large. */
double cup__gradient_growth(cup_context *c, const cup__gradient_call *g);

/* Adds to `bound`, for each element of input `i` in order, how far its gradient may be off for the
 * terms that it is the sum of, where few large ones may leave little: their sizes together, rounded
 * in f32 at best. Of norms, softmax, log_softmax, both forms of cross_entropy and of attention;
 * nothing for others. */
void cup__gradient_cancelling(const cup__gradient_call *g, int i, double *bound);

/* Moves what backward keeps of the results as storing it does: a number that the dtype it is stored
 * in lacks by one epsilon of that, twice what rounding does, up or down by chance, another one each
 * `draw`. What the dtype has stays, so that a largest element is still equal to one. `in` are the
 * inputs in their own dtypes, which say those of the results; `out` are the results in double. */
cup_status cup__gradient_move_kept(cup_context *c, const cup__gradient_call *g,
                                   cup_tensor *const *in, cup_tensor *const *out, int draw);

/* Raises `most`, numbers in double that lie row-major, to the largest difference of a and b in each
 * row: what is off in one number that is kept, a row of a gradient mostly has in common. */
void cup__gradient_apart(const cup_tensor *a, const cup_tensor *b, cup_tensor *most);

/* The root of its mean square: in a row whose few moves happened to cancel, half of it may be what
 * they are elsewhere. */
double cup__gradient_usual(const cup_tensor *most);

#endif
