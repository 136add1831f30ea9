/* The inside of cup_check: sample inputs, and gradients against finite differences. */
#ifndef CUP_PROF_CHECK_H
#define CUP_PROF_CHECK_H

#include "cupola/prof.h"
#include "dispatch/op.h"

/* How the inputs lie in memory. */
typedef enum cup__layout {
    CUP__ROW_MAJOR,
    CUP__PADDED,
    CUP__TRANSPOSED,
    CUP__CHANNELS_LAST, /* [N,C,H,W] lies as [N,H,W,C] */
    CUP__LAYOUTS
} cup__layout;
extern const char *const cup__layout_names[];

/* A check of several ops, whose specifications and kernels are worked out ahead on all cores. NULL
 * with an error in the context: no memory. */
typedef struct cup__checking cup__checking;
cup__checking *cup__checking_new(cup_context *c, const cup__row *const *rows, int count);

/* The calls of one of these ops; they come in the order that was given, and may be left out. */
cup_status cup__checking_row(cup__checking *k, const cup__row *row,
                             void (*report)(const cup_check_result *result, void *user),
                             void *user);

/* How long the calls waited for what is worked out ahead, in seconds. */
double cup__checking_waited(const cup__checking *k);
void cup__checking_free(cup__checking *k);

/* The dtypes an op is checked with, as bits 1 << cup_dtype: every one that some input takes. */
uint32_t cup__check_dtypes(const cup__row *row);

/* Whether a sample's inputs are checked in a layout: in others than row-major order not where there
 * are none, or they are changed, and with their channels last those of images. */
bool cup__check_has_layout(const cup__row *row, const cup__sample *sample, cup__layout layout);

/* Makes the inputs of a sample: random values of the op's domain, rounded to `dtype` when they
 * are floats, or of no certain values when the seed is 0. They are held in `hold`: f64 for the
 * specification, or `dtype` itself. `in` takes at most `most` tensors; returns how many, or -1
 * with an error in the context. */
int cup__sample_inputs(cup_context *c, const cup__row *row, const cup__sample *sample,
                       cup_dtype dtype, cup_dtype hold, cup__layout layout, uint64_t seed,
                       cup_tensor **in, int most);
/* The same with whole numbers drawn from [0, indices), 0: from the op's domain; and, where asked
 * for, large tensors too filled with numbers that are the same on every device and in every dtype,
 * which takes longer. */
typedef struct cup__filling {
    int64_t indices;
    bool alike;
    bool reversed; /* the dimensions lie in reverse order, without gaps; in place of a layout */
    bool channels_last; /* images and kernels [N,C,H,W] lie as [N,H,W,C]; in place of a layout */
} cup__filling;
int cup__sample_inputs_filled(cup_context *c, const cup__row *row, const cup__sample *sample,
                              cup_dtype dtype, cup_dtype hold, cup__layout layout, uint64_t seed,
                              cup__filling filling, cup_tensor **in, int most);

#endif
