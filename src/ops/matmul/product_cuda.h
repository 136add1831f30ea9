/* Matrix products on a GPU. */
#ifndef CUP_OPS_MATMUL_PRODUCT_CUDA_H
#define CUP_OPS_MATMUL_PRODUCT_CUDA_H

#include "cuda/cuda.h"
#include "ops/matmul/product.h"

/* Why an implementation cannot do a product, in words; NULL when it can. */
typedef const char *(*cup__product_refuses)(cup_context *c, const cup__product *p);

/* NVIDIA's library, with its bias and GELU epilogues, or of f8 codes with one scale each. */
const char *cup__product_cublaslt_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_cublaslt(cup__call *call, const cup__product *p);

/* The same by the algorithm that stands at `rank` among those the library proposes. */
#define CUP__RANKS_MOST 4
const char *cup__product_cublaslt_rank_refuses(cup_context *c, const cup__product *p, int rank);
cup_status cup__product_cublaslt_by(cup__call *call, const cup__product *p, int rank);

/* Our kernel without tensor cores, for everything. */
const char *cup__product_plain_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_plain(cup__call *call, const cup__product *p);

/* Our kernels for a few rows, as decoding makes them. */
const char *cup__product_rows_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_rows(cup__call *call, const cup__product *p);

/* The same on Hopper, with weights that stream through shared memory, and only where that is
 * likely to be fastest. */
const char *cup__product_stream_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_stream(cup__call *call, const cup__product *p);
const char *cup__product_stream_best_refuses(cup_context *c, const cup__product *p);

/* Our kernel for more than a handful of rows and up to 64 on Hopper, where all weights have room in
 * the card's shared memory at once. */
const char *cup__product_resident_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_resident(cup__call *call, const cup__product *p);

/* Our kernel for the tensor cores of cards from Turing on. */
const char *cup__product_mma_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_mma(cup__call *call, const cup__product *p);

/* f32 by the tensor cores of Hopper, and the same only where that is likely to be fastest. */
const char *cup__product_split_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_split(cup__call *call, const cup__product *p);
const char *cup__product_split_best_refuses(cup_context *c, const cup__product *p);

/* f32 by the tensor cores of Ampere and later. */
const char *cup__product_tf32_refuses(cup_context *c, const cup__product *p);
cup_status cup__product_tf32(cup__call *call, const cup__product *p);

/* What plain, mma and tf32 differ in: the kernel, the tile of y of a block, and where tiles of k
 * wait in shared memory, how many bytes of a line a stage has. */
typedef struct cup__tiled {
    const char *file, *entry;
    int64_t tile_m, tile_n;
    int stage_bytes; /* of k; 0: there are no stages */
    int vector_most; /* elements that are read at once */
    int terms;       /* of tf32; 0 for others */
} cup__tiled;
cup_status cup__product_tiled(cup__call *call, const cup__product *p, const cup__tiled *t);

static inline int64_t cup__product_tiles(const cup__product *p, int64_t tile_m, int64_t tile_n)
{
    return (p->m + tile_m - 1) / tile_m * ((p->n + tile_n - 1) / tile_n);
}

/* Whether its tiles, of this size, do not fill the card. */
bool cup__product_few(cup__call *call, const cup__product *p, int64_t tile);

/* How many stages of so many bytes a block's shared memory has room for, at most 4. */
int cup__product_stages(const cup__gpu_facts *facts, int64_t stage);

/* Their argument. */
struct product_call;
void cup__product_fill(struct product_call *to, const cup__product *p);

/* How many elements that are neighbours in memory can be read at once, a power of two up to
 * `most`: limited by the address, by the distance of lines and batches, and by `extent`, how many
 * there are, of which it must be a divisor. */
int cup__product_vector(const cup__product *p, const cup__matrix *m, int64_t line, int64_t extent,
                        int most);

/* What the implementations keep for a context, made when first needed; NULL with an error in the
 * context. */
typedef struct cup__product_state cup__product_state;
cup__product_state *cup__product_state_of(cup_context *c);

#endif
