/* What the host sides of all attention kernels need. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_LAUNCH_H
#define CUP_OPS_ATTENTION_ATTENTION_LAUNCH_H

#include <stddef.h>

#include "cuda/cuda.h"
#include "ops/attention/attention_call.cuh"
#include "ops/attention/attention.h"

#define CUP__ATTENTION_KNOBS 24

/* One kernel: what it is compiled from and how it is launched. */
typedef struct cup__attention_kernel {
    const char *file, *entry;
    cup__knob knobs[CUP__ATTENTION_KNOBS];
    int knob_count;
    cup__grid grid;
} cup__attention_kernel;

attention_call cup__attention_call_of(const cup__attention *a);
/* A kernel's knobs and what the mask and the scores add to them, into `out`; returns how many. */
int cup__attention_knobs(const cup__attention *a, const cup__knob *knobs, int count,
                         cup__knob *out);
/* The kernel of a file, with the call's formula compiled in where it has one; NULL with an
 * error. */
cup__kernel *cup__attention_kernel_get(const cup__attention *a, const char *file,
                                       const char *entry, const cup__knob *knobs, int count);
attention_formula cup__attention_formula_of(const cup__attention *a);
/* Which tensor of a formula is loaded as a bias is by the kernels for Hopper; -1: none. */
int cup__attention_ahead(const cup__attention *a);
int cup__attention_formula_knobs(const cup__attention *a, cup__knob *out);

/* The argument of a kernel, whose end only those with a formula have. */
_Static_assert(sizeof(attention_call) ==
                   offsetof(attention_call, formula) + sizeof(attention_formula),
               "a formula is what an argument ends with");
static inline cup__argument cup__attention_argument(const cup__attention *a,
                                                    const attention_call *call)
{
    return (cup__argument){call, a->score.formula ? sizeof *call
                                                  : offsetof(attention_call, formula)};
}

cup_status cup__attention_launch(const cup__attention *a, const cup__attention_kernel *kernel,
                                 const attention_call *argument);

/* Heads as a tensor [batch, heads, positions, size]; NULL with an error. */
cup_tensor *cup__attention_view(const cup__heads *h, int64_t batch, int64_t heads,
                                int64_t positions, int64_t size);

/* Memory for numbers that only live through a call. */
cup_tensor *cup__attention_numbers(const cup__attention *a, cup_dtype dtype, int64_t count);

/* Runs a kernel that takes only rows of neighbouring features that begin at multiples of 16 bytes;
 * tensors that lie otherwise pass through copies. */
cup_status cup__attention_with_copies(cup__attention *a, cup_status (*kernel)(cup__attention *a));

/* Why tensor cores fed from registers cannot do a call, NULL when they can; the size of a head in
 * their tiles, and the bytes from one row of a tile to the next. */
bool cup__attention_splits(const cup__attention *a); /* f32 into two tf32 */
int64_t cup__attention_padded(const cup__attention *a);
int64_t cup__attention_pitch(const cup__attention *a);

static inline int64_t cup__attention_tiles(int64_t positions, int64_t tile)
{
    return (positions + tile - 1) / tile;
}

#endif
