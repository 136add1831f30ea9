/* The launches of weight_only.cu and weight_only_stream.cu, which linear_int8, linear_int4 and
 * matrix products share. */
#ifndef CUP_OPS_LOWBIT_WEIGHT_ONLY_SKINNY_H
#define CUP_OPS_LOWBIT_WEIGHT_ONLY_SKINNY_H

#include "dispatch/op.h"

#define CUP__ROWS_PACKED_MOST 32 /* rows of x; beyond, weights are better unpacked once */
#define CUP__ROWS_STREAM_MOST 64
#define CUP__ROWS_STREAM_BEST 16 /* up to which it is the fastest of all */
#define CUP__ROWS_STREAM_SIDE (INT64_C(1) << 28)

struct product_call;
struct packed_call;

bool cup__rows_packed_can(cup_context *c, cup_dtype dtype);

/* Of which power of two x is; -1 where it is none. */
int cup__shift_of(int64_t x);

/* How weight_only_stream.cu is cut: `cluster` blocks share k, `clusters` of them run at once,
 * `blocks` on a multiprocessor. Rows of x are in registers if they fit there, unless x_shared. */
typedef struct cup__stream_plan {
    int cluster, clusters, warps, pieces, blocks;
    bool x_shared;
    int memory; /* bytes of shared memory for the blocks of a multiprocessor; 0: all */
} cup__stream_plan;

void cup__stream_choose(const struct product_call *product, int bits, int multiprocessors,
                        cup__stream_plan *plan);

/* The product; `b_mn` of it is in bytes. `bits` of weights: 4 or 8, and 16 where they stream. */
cup_status cup__rows_stream(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const struct product_call *product,
                            const struct packed_call *weights, const cup__stream_plan *plan);
cup_status cup__rows_packed(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const struct product_call *product,
                            const struct packed_call *weights);

#endif
