/* Weights of 8 or 4 bits with a scale for each group of a row. */
#ifndef CUP_OPS_LOWBIT_PACK_WEIGHT_H
#define CUP_OPS_LOWBIT_PACK_WEIGHT_H

#include "dispatch/op.h"

enum { CUP__INT8, CUP__INT4 }; /* the `kind` of ops on them */

typedef struct cup__packed {
    int bits;
    int64_t n, k, groups, group;
    cup_tensor *weight, *scale, *zero;
} cup__packed;

/* Checks inputs `first` and on, weight and scale, and for int4 zero, and describes them. */
cup_status cup__packed_take(cup__call *call, int first, cup__packed *out);

/* The same for a call that was checked. */
cup__packed cup__packed_of(const cup__call *call, int first);

/* The element that stands in row n at k. */
double cup__packed_element(const cup__packed *p, int64_t n, int64_t k);

/* `count` elements of a row from k on, which is even; everything lies row-major. */
void cup__packed_row(const cup__packed *p, int64_t n, int64_t k, int64_t count, float *to);

const char *cup__linear_packed_refuses(const cup__call *call);
cup_status cup__linear_packed_cuda(cup__call *call);
const char *cup__linear_stream_refuses(const cup__call *call);
cup_status cup__linear_stream_cuda(cup__call *call);
const char *cup__linear_packed_plain_refuses(const cup__call *call);
cup_status cup__linear_packed_plain(cup__call *call);

#endif
