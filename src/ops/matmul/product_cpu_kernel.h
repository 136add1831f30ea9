/* Our own matrix product for one tile on one core, for machines without a BLAS. */
#ifndef CUP_OPS_MATMUL_PRODUCT_CPU_KERNEL_H
#define CUP_OPS_MATMUL_PRODUCT_CPU_KERNEL_H

#include "ops/matmul/product.h"

/* Bytes of scratch for tiles of up to this size, whose elements are sums of up to `k` products. */
size_t cup__kernel_space(int64_t rows, int64_t columns, int64_t k);

/* Computes one tile of matrix `batch`, epilogue included. */
void cup__kernel_tile(const cup__product *p, int64_t batch, const cup__tile *tile, void *space);

#endif
