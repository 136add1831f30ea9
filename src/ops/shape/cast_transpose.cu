/* Matrices [rows, columns] in another dtype, and their transposes, from one reading.
 *
 * Grid: one block of 256 threads a tile of SIDE x SIDE, tiles across fastest, then down, then
 * matrices. G rows below each other become words of one column in shared memory; a warp writes a
 * column of a tile, a word a lane. VEC elements of x are read at once; WORDS says whether columns
 * of the transpose begin where words may. Bytes: x once, both results once. */
#include "divide.cuh"
#include "dtype.cuh"

/* Knobs: CUP_TO, VEC, WORDS. */
#define THREADS 256
#define SIDE 64
#define WORD_BYTES (sizeof(to_type) < 4 ? 4 : sizeof(to_type))
#define G ((int)(WORD_BYTES / sizeof(to_type)))
#define PITCH (SIDE / G + 1)
#define CHUNKS (SIDE / VEC)
#define ITEMS (SIDE / G * CHUNKS)

typedef dtype_of<CUP_TO>::type to_type;
typedef word_of<WORD_BYTES>::type word;

union stacked {
    to_type at[G];
    word whole;
    __device__ __forceinline__ stacked() {}
};

/* Reads VEC columns of G rows, writes them to y and, as words, into the tile. */
DEVICE void take_item(const T *x, to_type *y, word *tile, int item, int rows, int columns,
                      int64_t pitch)
{
    int column_at = item % CHUNKS * VEC, group = item / CHUNKS;
    vec<T, VEC> in[G];
    stacked out[VEC];
#pragma unroll
    for (int g = 0; g < G; g++)
        if (group * G + g < rows && column_at < columns)
            in[g] = load_once<VEC>(x + (group * G + g) * pitch + column_at);
#pragma unroll
    for (int g = 0; g < G; g++) {
        vec<to_type, VEC> row;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            out[k].at[g] = row.at[k] = convert<to_type>(in[g].at[k]);
        if (group * G + g < rows && column_at < columns)
            store(y + (group * G + g) * pitch + column_at, row);
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        tile[(column_at + k) * PITCH + group] = out[k].whole;
}

extern "C" __global__ void __launch_bounds__(THREADS)
cast_transpose_fwd(const T *x, to_type *y, to_type *transposed, int64_t all_rows,
                   int64_t all_columns, divisor across, divisor down)
{
    __shared__ __align__(16) word tile[SIDE * PITCH];
    unsigned rest = divided(blockIdx.x, across), matrix = divided(rest, down);
    int64_t column = (int64_t)(blockIdx.x - rest * across.size) * SIDE;
    int64_t row = (int64_t)(rest - matrix * down.size) * SIDE;
    int64_t base = matrix * all_rows * all_columns;
    int rows = all_rows - row < SIDE ? (int)(all_rows - row) : SIDE;
    int columns = all_columns - column < SIDE ? (int)(all_columns - column) : SIDE;
    x += base + row * all_columns + column;
    y += base + row * all_columns + column;
    transposed += base + column * all_rows + row;
#pragma unroll
    for (int i = 0; i < ITEMS; i += THREADS)
        if (i + (int)threadIdx.x < ITEMS)
            take_item(x, y, tile, i + (int)threadIdx.x, rows, columns, all_columns);
    __syncthreads();
    for (int c = (int)threadIdx.x / 32; c < columns; c += THREADS / 32)
        for (int w = (int)threadIdx.x % 32; w * G < rows; w += 32) {
            stacked out;
            out.whole = tile[c * PITCH + w];
            to_type *to = transposed + c * all_rows + w * G;
            if (WORDS && w * G + G <= rows) {
                *(word *)to = out.whole;
                continue;
            }
#pragma unroll
            for (int g = 0; g < G; g++)
                if (w * G + g < rows)
                    to[g] = out.at[g];
        }
}
