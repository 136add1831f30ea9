/* Matrix products on a GPU. */
#ifndef CUP_OPS_PRODUCT_CUDA_H
#define CUP_OPS_PRODUCT_CUDA_H

#include "cuda/cuda.h"
#include "ops/product.h"

/* Our kernel without tensor cores, for everything. */
cup_status cup__product_plain(cup__call *call, const cup__product *p);

/* How many elements that are neighbours in memory can be read at once, a power of two up to
 * `most`: limited by the address, by the distance of lines and batches, and by `extent`, how many
 * there are, of which it must be a divisor. */
int cup__product_vector(const cup__product *p, const cup__matrix *m, int64_t line, int64_t extent,
                        int most);

#endif
