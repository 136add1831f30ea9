/* The launches of linear_packed.cu and linear_stream.cu, which linear_int8, linear_int4 and matrix
 * products share. */
#ifndef CUP_OPS_ROWS_PACKED_H
#define CUP_OPS_ROWS_PACKED_H

#include "ops/op.h"

#define CUP__ROWS_PACKED_MOST 64 /* rows of x */

struct product_call;
struct packed_call;

bool cup__rows_packed_can(cup_context *c, cup_dtype dtype);

/* Whether weights of so many bytes are best streamed, for the rows of x. */
bool cup__rows_stream_is_better(cup_context *c, int64_t rows, int64_t bytes);

/* The product; `b_mn` of it is in bytes. `bits` of weights: 4, 8 or 16. */
cup_status cup__rows_stream(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const struct product_call *product,
                            const struct packed_call *weights);
cup_status cup__rows_packed(cup_context *c, cup_dtype dtype, int bits, cup_dtype scale_dtype,
                            int activation, const struct product_call *product,
                            const struct packed_call *weights);

#endif
