/* Products of f32 on Hopper's tensor cores, see f32_split.c. */
#ifndef CUP_OPS_F32_SPLIT_F32_SPLIT_H
#define CUP_OPS_F32_SPLIT_F32_SPLIT_H

#include "ops/matmul/product_cuda.h"

/* How the product is laid over y. */
typedef struct cup__split_plan {
    cup_dtype dtype; /* of the planes; f32: the matrices themselves, rounded to tf32 */
    int planes;      /* 1, 2 of f16, or 3 of bf16 */
    int tile_n, parts;
} cup__split_plan;

/* The plan by shape and precision, and the microseconds it is likely to take, with those of making
 * the planes; what cuBLASLt is likely to take. */
double cup__split_choose(const cup_context *c, const cup__product *p, int multiprocessors,
                         cup__split_plan *plan);
double cup__split_vendor_time(const cup_context *c, const cup__product *p);

/* The launch of the product itself, over planes that are made. */
struct split_call;
typedef struct cup__split_planes {
    void *data[2];
    const int *exponents[2];
    int64_t length[2], lines[2], batch[2];  /* of a plane; batch: matrices in it */
    int64_t line_bytes[2], matrix_bytes[2]; /* distances */
    int along[2];
    unsigned *words; /* SPLIT_WORDS; or NULL: no other way is prepared */
} cup__split_planes;
cup_status cup__split_multiply(cup_context *c, const cup__product *p, const cup__split_plan *plan,
                               const cup__split_planes *from);

/* Stages of its ring, and bytes of shared memory with it. */
int cup__split_stages(const cup__product *p, const cup__split_plan *plan);
int cup__split_shared(const cup__product *p, const cup__split_plan *plan);

/* The best tiles for planes of a dtype that are made, and the microseconds they are likely to
 * take; those of a stage of 64 of k and of the rest of a tile. */
double cup__split_tiles(const cup__product *p, int multiprocessors, cup_dtype dtype, int planes,
                        cup__split_plan *plan);
double cup__split_unit_time(int tile_n, int64_t k_tiles, int planes);

#endif
