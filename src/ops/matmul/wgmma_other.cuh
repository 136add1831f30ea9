/* The tiles of a matrix that lies as y does, which a product is added to or multiplied with, on
 * their way through shared memory; and how results lie there. Uses wgmma.cu's knobs and
 * sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_OTHER_CUH
#define CUP_OPS_MATMUL_WGMMA_OTHER_CUH

#include "hopper.cuh"
#include "product.cuh"
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"

#ifndef FACTOR /* whether the product has one */
#define FACTOR 0
#endif
#ifndef OTHER /* what is done with a matrix that lies as y does */
#define OTHER 0
#endif
#ifndef OTHER_BUFFERS /* tiles of it that shared memory has room for: 1 or 2 */
#define OTHER_BUFFERS 1
#endif
#define SWIGLU (ACTIVATION == PRODUCT_SWIGLU)
#define COLUMNS (SWIGLU ? TILE_N / 2 : TILE_N) /* of y in a tile */
#ifndef STORE16 /* results go to y by stores of 16 bytes, for which nobody waits, not by TMA */
#define STORE16 0
#endif
#ifndef SPREAD /* whether y's rows are places of a convolution that are not evenly spread */
#define SPREAD 0
#endif
/* A warp stages 16 rows of 128 bytes at a time, or of 64. */
#define STAGE_LINE (STORE16 || COLUMNS * (int)sizeof(result) % 128 ? 64 : 128)
#define STAGE_PIECE (STORE16 ? 1024 : 2048) /* bytes of shared memory for them */
#define STAGE_COLUMNS (STAGE_LINE / (int)sizeof(result))

/* What shared memory holds; the first two at multiples of 1024 bytes. */
struct layout {
    uint32_t stages, other, staging, barriers;
    char *bias, *scales;
};

/* One unit of work. */
struct unit {
    int row, column;    /* of y, where the tile of this block begins */
    int row_end;        /* with GROUPS of rows, where those of the group end */
    int k_first, depth; /* with GROUPS of k, where that begins, and what is left of the last tile */
    int batch[2];
    int k, k_tiles;     /* the part of k, in tiles */
    int tile, part;
    int item;           /* of a list, else 0 */
    unsigned mine;      /* chunks that this part finishes */
};

/* Where TMA looks for a piece of 16 bytes of a line: they are mixed by the line. */
DEVICE uint32_t staged_at(uint32_t buffer, int line, int piece)
{
    int mix = STAGE_LINE == 128 ? line & 7 : line >> 1 & 3;
    return buffer + line * STAGE_LINE + ((piece ^ mix) << 4);
}

/* The tile of the matrix that lies as y does, brought by TMA while products are summed: panels of
 * STAGE_COLUMNS columns, or of two such matrices one after the other. */
struct other_tile {
    uint32_t at;
};

#define OTHER_PANEL (TILE_M * STAGE_LINE)
#define OTHER_HALF (COLUMNS / STAGE_COLUMNS * OTHER_PANEL)
#define OTHER_BYTES (OTHER ? OTHER_HALF * (OTHER == PRODUCT_SWIGLU_GRAD ? 2 : 1) : 0)

/* Eight values as a thread has them of sums, of 16 rows of the tile from `row` on. */
DEVICE void read_other(const other_tile &other, int half, int row, int column, float (&o)[8])
{
    uint32_t panel = other.at + half * OTHER_HALF + column / STAGE_COLUMNS * OTHER_PANEL;
    column %= STAGE_COLUMNS;
#if Y_T == CUP_F32
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int line = row + lane() / 4 + i % 2 * 8, piece = column / 4 + i / 2 * 2 + lane() % 4 / 2;
        uint32_t from = staged_at(panel, line, piece) + lane() % 2 * 8;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(o[2 * i]), "=f"(o[2 * i + 1])
                     : "r"(from)
                     : "memory");
    }
#else
    union {
        uint32_t words[4];
        vec<result, 8> elements;
    } eight;
    load_matrices(eight.words, staged_at(panel, row + lane() % 16, column / 8 + lane() / 16));
    to_reals(eight.elements, o);
#endif
}

/* Where the tile of a block's unit of this number goes. */
DEVICE uint32_t other_at(const layout &at, int number)
{
    return at.other + number % OTHER_BUFFERS * OTHER_BYTES;
}

/* The barriers of the other matrix's tile: its bytes are in, for units of even and odd number, as
 * the warpgroups that take turns wait for different ones; and it has been read, for each buffer. */
DEVICE uint32_t other_full(const layout &at, int number)
{
    return at.barriers + 16 * STAGES + number % 2 * 8;
}

DEVICE uint32_t other_empty(const layout &at, int number)
{
    return at.barriers + 16 * STAGES + 16 + number % OTHER_BUFFERS * 8;
}

/* Takes 16 staged rows of 64 bytes to y, whose rows start at multiples of 16 bytes. */
DEVICE void put_vectors(const wgmma_call &c, result *y, const unit &u, int row, int column,
                        uint32_t buffer)
{
    const int end = GROUPS == PRODUCT_GROUPS_OF_ROWS ? u.row_end : c.m;
    const int each = 16 / sizeof(result), place = lane() % 4;
    column += place * each;
    y += u.batch[0] * c.y_batch[0] + u.batch[1] * c.y_batch[1] + column;
#pragma unroll
    for (int r = lane() / 4; r < 16; r += 8) {
        uint4 v = load_shared16(staged_at(buffer, r, place));
        if (row + r < end && column < c.n)
            *(uint4 *)(y + (row + r) * c.y_row) = v;
    }
    __syncwarp();
}

/* Takes 16 staged rows to their places in y. */
DEVICE void put_places(const wgmma_conv &v, int row, int column, uint32_t buffer)
{
    const int pieces = STAGE_LINE / 16, place = lane() % pieces;
    column += place * (16 / (int)sizeof(result));
#pragma unroll
    for (int r = lane() / pieces; r < 16; r += 32 / pieces) {
        uint4 words = load_shared16(staged_at(buffer, r, place));
        unsigned rest = (unsigned)(row + r);
        int j = (int)split(&rest, v.places[1]), i = (int)split(&rest, v.places[0]);
        if (row + r < v.all.m && column < v.all.n)
            *(uint4 *)((result *)v.all.y + rest * v.y_step[0] + i * v.y_step[1] +
                       j * v.y_step[2] + column) = words;
    }
    __syncwarp();
}

#endif
