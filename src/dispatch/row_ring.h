/* How long rows are shared out where they go through shared memory: the knobs of
 * ops/loss/row_ring.cuh. */
#ifndef CUP_DISPATCH_ROW_RING_H
#define CUP_DISPATCH_ROW_RING_H

#include "cuda/cuda.h"
#include "dispatch/op.h"

typedef struct cup__row_ring {
    int warps, pieces, ring, cluster, blocks;
    cup__grid grid;
} cup__row_ring;

/* Why rows of `x` as they lie, `width` elements each, cannot go this way; NULL when they can. */
const char *cup__row_ring_refuses(const cup_tensor *x, int64_t width, int64_t least_bytes,
                                  const cup__gpu_facts *facts);

/* A plan for `rows` rows of `bytes` bytes, with `blocks` blocks of `warps` warps on a
 * multiprocessor and as few of them a row as have room for it. 0 warps: as many as share the row
 * out evenly. */
cup__row_ring cup__row_ring_plan(int64_t rows, int64_t bytes, int blocks, int warps, int pieces,
                                 const cup__gpu_facts *facts);

/* The knobs of a plan, CUP__ROW_RING_KNOBS of them. */
void cup__row_ring_knobs(const cup__row_ring *plan, cup__knob *to);
#define CUP__ROW_RING_KNOBS 5

#endif
