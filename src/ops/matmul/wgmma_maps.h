/* What launches of wgmma.cu are made of: operands as tensor maps see them, and how y is cut
 * into tiles. */
#ifndef CUP_OPS_MATMUL_WGMMA_MAPS_H
#define CUP_OPS_MATMUL_WGMMA_MAPS_H

#include "cuda/loader.h"
#include "ops/matmul/wgmma.h"

#define CUP__WGMMA_BATCH 2
#define CUP__WGMMA_SHARED 232448 /* bytes of shared memory that a block of Hopper may have */
#define CUP__WGMMA_LINE 128 /* bytes of a swizzled line, and of a tile along k */

/* An operand as a tensor map sees it: lines of elements that are neighbours. */
typedef struct cup__wgmma_operand {
    int along;
    int64_t length, lines, distance; /* of lines, in elements */
    int64_t batch[CUP__WGMMA_BATCH]; /* innermost first; 0 where it does not move */
    cup_dtype dtype;
} cup__wgmma_operand;

/* How the work is cut. */
typedef struct cup__wgmma_cut {
    int64_t k_tiles, tiles_m, tiles_n, tiles; /* tiles of clusters; of all matrices */
    int64_t part_tiles, parts;
} cup__wgmma_cut;

typedef struct cup__wgmma_maps {
    CUtensorMap a, b, y, pre;
} cup__wgmma_maps;

/* Elements of a tile along k. */
static inline int64_t cup__wgmma_tile_k(const cup__product *p)
{
    return CUP__WGMMA_LINE / cup_dtype_size(p->dtype);
}

/* Columns of b. */
static inline int64_t cup__wgmma_columns(const cup__product *p)
{
    return p->activation == PRODUCT_SWIGLU ? 2 * p->n : p->n;
}

/* The bytes of a line of so many columns on its way to y: 128, or 64 where that goes in evenly. */
static inline int64_t cup__wgmma_stored_line(int64_t bytes)
{
    return bytes % CUP__WGMMA_LINE ? CUP__WGMMA_LINE / 2 : CUP__WGMMA_LINE;
}

/* False when TMA cannot read them. */
bool cup__wgmma_operands(const cup__product *p, cup__wgmma_operand *a, cup__wgmma_operand *b);
bool cup__wgmma_can_store(const cup__product *p);
cup__wgmma_cut cup__wgmma_cut_of(const cup__product *p, const cup__wgmma_plan *plan);
int cup__wgmma_group_of(const cup__wgmma_plan *plan, int multiprocessors);
/* The buffers in which a warp puts results on their way, and all shared memory. */
int cup__wgmma_other_buffers(const cup__product *p, const cup__wgmma_plan *plan);
int cup__wgmma_staging(const cup__product *p, const cup__wgmma_plan *plan);
int cup__wgmma_shared(const cup__product *p, const cup__wgmma_plan *plan);
cup_status cup__wgmma_encode(cup_context *c, const cup__product *p, const cup__wgmma_plan *plan,
                             const cup__wgmma_operand *a, const cup__wgmma_operand *b, bool store,
                             cup__wgmma_maps *to);

#endif
