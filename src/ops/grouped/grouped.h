/* Products of groups of rows, whose sizes are in a tensor. */
#ifndef CUP_OPS_GROUPED_GROUPED_H
#define CUP_OPS_GROUPED_GROUPED_H

#include "ops/matmul/product.h"

/* Where group `g` begins when `offsets` say where groups end: no group ends before the one before
 * it, or behind the last of `rows` rows. */
int64_t cup__group_begin(const cup_tensor *offsets, int64_t g, int64_t rows);
cup_status cup__need_offsets(cup__call *call, int i);
/* On a CPU, where they can be read, offsets that go down or beyond the rows are refused. */
cup_status cup__offsets_check(cup__call *call, const cup_tensor *offsets, int64_t rows);

/* The product of a call of either op, all groups in one, without what is on the device. */
void cup__grouped_product(const cup__call *call, cup__product *p);

/* The table of groups for tiles of `tile` rows, by the offsets in input 2; rows of no group are
 * cleared. NULL on failure. */
cup_tensor *cup__grouped_table(cup__call *call, const cup__product *p, int tile);

cup_status cup__grouped_cpu(cup__call *call);
const char *cup__grouped_wgmma_refuses(const cup__call *call);
cup_status cup__grouped_wgmma(cup__call *call);
const char *cup__grouped_mma_refuses(const cup__call *call);
cup_status cup__grouped_mma(cup__call *call);
cup_status cup__grouped_plain(cup__call *call);
extern const cup__impl cup__grouped_impls[];

#endif
