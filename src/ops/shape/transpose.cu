/* Transposes matrices [rows, columns], neighbours along columns in x, along rows in y, through
 * tiles of SIDE x SIDE elements in shared memory. Grid: one block of 256 threads a tile, tiles
 * across fastest, then down, then matrices. Bytes: every element read and written once, each in
 * runs of SIDE elements and accesses of up to 16 bytes; ACROSS and DOWN are how many neighbours
 * the alignment of x and y lets one access have.
 *
 * G = 4 / size rows side by side become words of one column, so that shared memory is only ever
 * accessed in words. Word w of column c lies at c * PITCH + (w ^ 4 s), where s numbers groups of
 * columns: writes of a warp, 4 row groups of 8 column chunks, fall into 32 different banks, and
 * the 16-byte reads keep their 4 words together. */
#include "copy_call.cuh"
#include "vec.cuh"

/* Knobs: SIZE (bytes of an element), SIDE, ACROSS, DOWN. */

#define G (SIZE < 4 ? 4 / SIZE : 1)   /* elements of a word in shared memory */
#define C (16 / SIZE)                 /* elements of 16 bytes */
#define PITCH (SIDE / G)              /* words of a column */
#define CHUNKS (SIDE / C)             /* 16-byte chunks of a row */
#define ITEMS (PITCH * CHUNKS / COPY_THREADS) /* of G chunks, for a thread */
#define WORD_BYTES (SIZE < 4 ? 4 : SIZE)

typedef word_of<SIZE>::type element;
typedef word_of<WORD_BYTES>::type word;

/* G chunks, of rows below each other. */
struct chunks {
    element at[G][C];
};
union column {
    element at[G];
    word whole;
};
union output {
    vec<word, 16 / WORD_BYTES> words;
    element at[C];
};

/* Reads C neighbours of which the first `valid` exist. */
DEVICE void read_chunk(element *to, const element *from, int valid)
{
    if (valid >= C) {
#pragma unroll
        for (int i = 0; i < C; i += ACROSS) {
            vec<element, ACROSS> piece = load<ACROSS>(from + i);
#pragma unroll
            for (int k = 0; k < ACROSS; k++)
                to[i + k] = piece.at[k];
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < C; i++)
        if (i < valid)
            to[i] = from[i];
}

DEVICE void write_chunk(element *to, const element *from, int valid)
{
    if (valid >= C) {
#pragma unroll
        for (int i = 0; i < C; i += DOWN) {
            vec<element, DOWN> piece;
#pragma unroll
            for (int k = 0; k < DOWN; k++)
                piece.at[k] = from[i + k];
            store(to + i, piece);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < C; i++)
        if (i < valid)
            to[i] = from[i];
}

/* C elements of a column from number `from` on, put together from the two aligned pieces of shared
 * memory in which they lie. */
DEVICE output shifted(const word *tile, int column, int from)
{
    union {
        vec<word, 16 / WORD_BYTES> pieces[2];
        uint32_t words[8];
    } v;
    union {
        output whole;
        uint32_t words[4];
    } u;
    int w = from / G, piece = w & ~3, turn = 4 * (column / C % 8);
    const word *line = tile + column * PITCH;
    v.pieces[0] = load_plain<16 / WORD_BYTES>(line + (piece ^ turn));
    if (piece + 4 < PITCH)
        v.pieces[1] = load_plain<16 / WORD_BYTES>(line + (piece + 4 ^ turn));
#pragma unroll
    for (int i = 0; i < 6; i++)
        v.words[i] = w & 2 ? v.words[i + 2] : v.words[i];
#pragma unroll
    for (int i = 0; i < 5; i++)
        v.words[i] = w & 1 ? v.words[i + 1] : v.words[i];
#pragma unroll
    for (int i = 0; i < 4; i++)
        u.words[i] = __funnelshift_r(v.words[i], v.words[i + 1], from % G * SIZE * 8);
    return u.whole;
}

/* Where y's columns begin anywhere: each is written in pieces of 16 bytes from where one may stand;
 * elements before the first and behind the last stand alone. */
DEVICE void write_shifted(const tiles_call &c, const word *tile, element *y, int rows, int columns)
{
    const int at_once = 32 / CHUNKS; /* columns of a warp */
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int most = rows < SIDE ? rows : SIDE, last = columns < SIDE ? columns : SIDE;
    for (int column = warp * at_once + lane / CHUNKS; column < last;
         column += COPY_THREADS / 32 * at_once) {
        element *to = y + column * c.y_column;
        int alone = (int)((C - (uint64_t)to / SIZE % C) % C);
        int from = alone + lane % CHUNKS * C;
        if (lane % CHUNKS == 0) {
            output out = shifted(tile, column, 0);
#pragma unroll
            for (int k = 0; k < C - 1; k++)
                if (k < alone && k < most)
                    to[k] = out.at[k];
        }
        if (from >= most)
            continue;
        output out = shifted(tile, column, from);
        if (from + C <= most)
            store(to + from, *(const vec<element, C> *)out.at);
        else
#pragma unroll
            for (int k = 0; k < C - 1; k++)
                if (k < most - from)
                    to[from + k] = out.at[k];
    }
}

/* The word of shared memory that holds rows G w and on of a column. */
DEVICE word word_at(const word *tile, int column, int w)
{
    return tile[column * PITCH + (w ^ 4 * (column / C % 8))];
}

/* Where y's columns begin anywhere: lanes write words side by side, each from where in y a word
 * may stand, put together from two of shared memory; elements before the first and behind the last
 * stand alone. */
DEVICE void write_words(const tiles_call &c, const word *tile, element *y, int rows, int columns)
{
    int lane = (int)threadIdx.x % 32, most = rows < SIDE ? rows : SIDE;
    for (int column = (int)threadIdx.x / 32; column < SIDE && column < columns;
         column += COPY_THREADS / 32) {
        element *to = y + column * c.y_column;
        int alone = (int)((G - (uint64_t)to / SIZE % G) % G);
        alone = alone < most ? alone : most;
        for (int w = lane; w < PITCH; w += 32) {
            int row = w * G + alone;
            union column low, high, out;
            low.whole = word_at(tile, column, w);
            if (w == 0)
                for (int k = 0; k < alone; k++)
                    to[k] = low.at[k];
            if (row >= most)
                continue;
            high.whole = low.whole;
            if (alone && w + 1 < PITCH)
                high.whole = word_at(tile, column, w + 1);
#pragma unroll
            for (int k = 0; k < G; k++)
                out.at[k] = k + alone < G ? low.at[(k + alone) % G] : high.at[(k + alone) % G];
            if (row + G <= most)
                *(word *)(to + row) = out.whole;
            else
                for (int k = 0; k < most - row; k++)
                    to[row + k] = out.at[k];
        }
    }
}

/* One tile, from its first elements on. All of a whole one exists. */
template <bool Whole>
DEVICE void move_tile(const tiles_call &c, word *tile, element *y, const element *x, int rows,
                      int columns)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    chunks read[ITEMS];
    /* An item is one chunk of columns in G rows: 8 lanes side by side, 4 below each other. */
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int item = i * (COPY_THREADS / 32) + warp;
        int column = (item % (CHUNKS / 8) * 8 + lane % 8) * C;
        int row = (item / (CHUNKS / 8) * 4 + lane / 8) * G;
#pragma unroll
        for (int g = 0; g < G; g++)
            read_chunk(read[i].at[g], x + (row + g) * c.x_row + column,
                       Whole ? C : row + g < rows ? columns - column : 0);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int item = i * (COPY_THREADS / 32) + warp;
        int chunk = item % (CHUNKS / 8) * 8 + lane % 8, group = item / (CHUNKS / 8) * 4 + lane / 8;
#pragma unroll
        for (int k = 0; k < C; k++) {
            union column w;
#pragma unroll
            for (int g = 0; g < G; g++)
                w.at[g] = read[i].at[g][k];
            tile[(chunk * C + k) * PITCH + (group ^ 4 * (chunk % 8))] = w.whole;
        }
    }
    __syncthreads();
    if (DOWN * SIZE < 8 && C > 2) {
        if (SIZE < 4)
            write_shifted(c, tile, y, rows, columns);
        else
            write_words(c, tile, y, rows, columns);
        return;
    }
#pragma unroll
    for (int i = 0; i < ITEMS * G; i++) {
        int item = i * COPY_THREADS + (int)threadIdx.x;
        int down = item % CHUNKS, column = item / CHUNKS;
        const int words = 16 / WORD_BYTES;
        output out;
        out.words =
            load_plain<words>(tile + column * PITCH + (down * words ^ 4 * (column / C % 8)));
        if (Whole || column < columns)
            write_chunk(y + column * c.y_column + down * C, out.at, Whole ? C : rows - down * C);
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    transpose_fwd(const __grid_constant__ tiles_call c)
{
    __shared__ __align__(16) word tile[SIDE * PITCH];
    unsigned index = blockIdx.x;
    unsigned column = split(&index, c.across) * SIDE, row = split(&index, c.down) * SIDE;
    const element *x = (const element *)c.x + row * c.x_row + column;
    element *y = (element *)c.y + column * c.y_column + row;
#pragma unroll 1
    for (int d = 0; d < COPY_DIMS && index; d++) {
        unsigned place = split(&index, c.dim[d]);
        x += place * c.x_stride[d];
        y += place * c.y_stride[d];
    }
    if (row + SIDE <= c.rows && column + SIDE <= c.columns)
        move_tile<true>(c, tile, y, x, SIDE, SIDE);
    else
        move_tile<false>(c, tile, y, x, (int)(c.rows - row), (int)(c.columns - column));
}
