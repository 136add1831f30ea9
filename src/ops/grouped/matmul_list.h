/* Products of many matrices of their own in one call. */
#ifndef CUP_OPS_GROUPED_MATMUL_LIST_H
#define CUP_OPS_GROUPED_MATMUL_LIST_H

#include "ops/matmul/product.h"

enum { CUP__LIST_A, CUP__LIST_B, CUP__LIST_Y, CUP__LIST_STEP };

/* Record number `i` of the call as a product. */
cup__product cup__list_product(const cup__call *call, int i);

const char *cup__list_wgmma_refuses(const cup__call *call);
cup_status cup__list_wgmma(cup__call *call);
const char *cup__list_mma_refuses(const cup__call *call);
cup_status cup__list_mma(cup__call *call);
cup_status cup__list_plain(cup__call *call);

#endif
