/* A loop nest over a result and the inputs broadcast to it, with neighbouring dimensions merged
 * where the strides of all allow, so that most calls become one or two plain loops. */
#ifndef CUP_DISPATCH_LOOP_H
#define CUP_DISPATCH_LOOP_H

#include "tensor/tensor.h"

#define CUP__LOOP_MOST 16 /* tensors in one nest, the result first */

typedef struct cup__loop {
    int ndim;                                       /* at least 1; the last is the innermost */
    int tensors;
    int64_t count;
    int64_t size[CUP_MAX_DIMS];
    int64_t stride[CUP__LOOP_MOST][CUP_MAX_DIMS];   /* in elements; 0 where broadcast */
} cup__loop;

/* The nest over `result` (a strided tensor) and `in`, whose shapes broadcast to it. */
void cup__loop_make(cup__loop *loop, const cup_tensor *result, cup_tensor *const *in, int in_count);

/* The offset of tensor k at a flat index of all dimensions but the innermost. */
int64_t cup__loop_offset(const cup__loop *loop, int k, int64_t row);

/* The same nest with the dimensions in the order of the result's memory, for work whose order does
 * not matter. */
void cup__loop_sort(cup__loop *loop);

/* Whether 32 bits can index it and all its tensors. */
bool cup__loop_fits(const cup__loop *loop);

/* Calls `body` for parts of the nest that 32 bits can index, in order: the nest itself, unless it
 * is that large. The offsets, in elements, say where each tensor's part begins. */
typedef cup_status (*cup__loop_body)(const cup__loop *part, const int64_t *offset, void *user);
cup_status cup__loop_parts(const cup__loop *loop, cup__loop_body body, void *user);

/* The shape two or more inputs broadcast to, NumPy's rule; fails naming the inputs. */
struct cup__call;
cup_status cup__broadcast_shape(struct cup__call *call, int first, int count, cup__shape *out);

#endif
