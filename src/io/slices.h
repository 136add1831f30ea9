/* Slices of tensors in files. A checkpoint that processes have written which have parts of tensors
 * holds these as they have them: "wte.first[64:128/256]" is a tensor of the places 64 to 128 along
 * axis 0 of the 256 that wte.first has, "h.0.out.first[:,0:8/32]" one along axis 1. Slices of a
 * tensor have one axis and cover it, each place once. So any other parts can be put together of
 * them, as of tensors that lie in a file whole. */
#ifndef CUP_IO_SLICES_H
#define CUP_IO_SLICES_H

#include "cupola/io.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

#define CUP__SLICE_NAME 400
#define CUP__CUT_MOST 3 /* stretches of a part */

/* What a tensor has of a whole one: stretches along an axis, one behind the other; of places that
 * the whole does not have it has zeros. `count` 0: all. */
typedef struct cup__cut {
    cup__shape whole; /* in files */
    int axis, count;
    int64_t begin[CUP__CUT_MOST], size[CUP__CUT_MOST];
} cup__cut;

/* That of a tensor that is whole. */
cup__cut cup__cut_none(const cup_tensor *t);

/* The name of the places [begin, end) along an axis of the tensor. False: it is too long. */
bool cup__slice_name(const char *name, int axis, int64_t begin, int64_t end, int64_t whole,
                     char out[CUP__SLICE_NAME]);
/* Whether a name is one of those. */
bool cup__slice_is(const char *name);

/* How many whole tensors a file's are, slices of one being one. */
int64_t cup__slices_count(const cup__safetensors *file);

/* Tensors to be filled, under the names of their wholes. */
typedef struct cup__wanted {
    const char *name;
    cup_tensor *tensor;
    cup__cut cut;
} cup__wanted;

/* Fills them from a file's tensors, and where these may be `slices` from those: each is read as far
 * as it is needed, by way of host memory for one tensor. With `cast` numbers of another dtype
 * become the tensor's. CUP_FORMAT where a slice is missing, CUP_SHAPE and CUP_DTYPE where the
 * file's tensor is another. */
cup_status cup__slices_fill(cup_context *c, const cup__safetensors *file, bool slices, bool cast,
                            const cup__wanted *wanted, int64_t count);

/* Puts what a tensor has of a whole one, `part`, into that, both in host memory without gaps. */
void cup__cut_place(const cup__cut *cut, const cup__shape *part, const char *from, char *whole);

#endif
