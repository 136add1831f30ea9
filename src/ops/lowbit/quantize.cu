/* Codes of 8 bits and their scales: scale = largest size in a block over the largest code, y = x /
 * scale. All entries read and write VEC elements at a time.
 *
 * quantize_most, then quantize_all: one block for everything; the first leaves the largest size
 * that each thread block saw, the second folds those and makes the codes. quantize_rows: a thread
 * block takes a row. quantize_runs: 128 / VEC neighbouring threads take 128 columns of a row.
 * quantize_tiles: 256 threads take 128 rows of 128 columns and hold them in registers. Memory
 * bound: x is read once, twice for quantize_all. */
#include "reduce.cuh"
#include "vec.cuh"

/* Knobs: Y_T, VEC. */

#define THREADS 256
#define RUN 128
#define LANES (RUN / VEC) /* threads that take a run */

typedef dtype_of<Y_T>::type code;
#if Y_T == CUP_F8E4M3
#define MOST 448.0f
#elif Y_T == CUP_F8E5M2
#define MOST 57344.0f
#else
#define MOST 127.0f
#endif

DEVICE float scale_of(float most)
{
    return most == 0 ? 1.0f : fmaxf(__fdiv_rn(most, MOST), 0x1p-126f);
}

/* NaN does not count. */
DEVICE float most_of(const vec<T, VEC> &v, float most)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        most = fmaxf(most, fabsf((float)to_real(v.at[i])));
    return most;
}

DEVICE void put_code(float v, int8_t *to)
{
    *to = v != v ? (int8_t)0 : (int8_t)__float2int_rn(fmaxf(-127.0f, fminf(127.0f, v)));
}

/* NaN stays NaN. */
template <typename Element> DEVICE void put_code(float v, Element *to)
{
    from_float(v > MOST ? MOST : v < -MOST ? -MOST : v, to);
}

DEVICE void put_codes(code *to, const vec<T, VEC> &v, float factor)
{
    vec<code, VEC> codes;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        put_code((float)to_real(v.at[i]) * factor, &codes.at[i]);
    store(to, codes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_most(const T *x, float *partial, long long count)
{
    float most = 0;
    long long step = (long long)gridDim.x * THREADS * VEC;
#pragma unroll 4
    for (long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * VEC; i < count; i += step)
        most = most_of(load<VEC>(x + i), most);
    most = block_max(most);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = most;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_all(const T *x, code *y, float *scale, const float *partial, int partials,
                 long long count)
{
    float most = 0;
    for (int i = threadIdx.x; i < partials; i += THREADS)
        most = fmaxf(most, partial[i]);
    float s = scale_of(block_max(most)), factor = __fdiv_rn(1.0f, s);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *scale = s;
    long long step = (long long)gridDim.x * THREADS * VEC;
#pragma unroll 4
    for (long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * VEC; i < count; i += step)
        put_codes(y + i, load<VEC>(x + i), factor);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_rows(const T *x, code *y, float *scale, long long rows, long long columns)
{
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * columns;
        float most = 0;
#pragma unroll 4
        for (long long k = threadIdx.x * VEC; k < columns; k += THREADS * VEC)
            most = most_of(load<VEC>(from + k), most);
        float s = scale_of(block_max(most)), factor = __fdiv_rn(1.0f, s);
        if (threadIdx.x == 0)
            scale[row] = s;
#pragma unroll 4
        for (long long k = threadIdx.x * VEC; k < columns; k += THREADS * VEC)
            put_codes(y + row * columns + k, load<VEC>(from + k), factor);
    }
}

/* The largest over the threads that take a run: 16 neighbours, or 32 each with several vectors. */
DEVICE float run_max(float most)
{
#pragma unroll
    for (int mask = LANES < 32 ? LANES / 2 : 16; mask > 0; mask /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    return most;
}

#define WIDE (LANES < 32 ? LANES : 32)
#define PIECES (LANES / WIDE)

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_runs(const T *x, code *y, float *scale, long long rows, long long columns,
                  long long scale_row, long long scale_column)
{
    long long across = (columns + RUN - 1) / RUN, runs = rows * across;
    long long run = ((long long)blockIdx.x * THREADS + threadIdx.x) / WIDE;
    long long row = run / across, column = run % across * RUN + threadIdx.x % WIDE * VEC;
    bool valid = run < runs;
    vec<T, VEC> v[PIECES];
    float most = 0;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        v[i] = {};
        if (valid && column + i * WIDE * VEC < columns)
            v[i] = load<VEC>(x + row * columns + column + i * WIDE * VEC);
        most = most_of(v[i], most);
    }
    float s = scale_of(run_max(most)), factor = __fdiv_rn(1.0f, s);
    if (valid && threadIdx.x % WIDE == 0)
        scale[row * scale_row + run % across * scale_column] = s;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        if (valid && column + i * WIDE * VEC < columns)
            put_codes(y + row * columns + column + i * WIDE * VEC, v[i], factor);
}

#define TILE_PIECES (RUN * RUN / VEC / THREADS)
/* What does not fit the registers, single elements, is read again. */
#define HELD (TILE_PIECES * VEC * (int)sizeof(T) <= 256 && VEC > 1)
constexpr int tile_unroll = HELD ? TILE_PIECES : 8;

/* Piece number i of a thread in a tile: whether it is there, and where. */
DEVICE bool tile_piece(int i, long long row0, long long column0, long long rows, long long columns,
                       long long *at)
{
    int piece = i * THREADS + (int)threadIdx.x;
    long long row = row0 + piece / LANES, column = column0 + piece % LANES * VEC;
    *at = row * columns + column;
    return row < rows && column < columns;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_tiles(const T *x, code *y, float *scale, long long rows, long long columns)
{
    long long across = (columns + RUN - 1) / RUN, at;
    long long row0 = blockIdx.x / across * RUN, column0 = blockIdx.x % across * RUN;
    vec<T, VEC> held[HELD ? TILE_PIECES : 1];
    float most = 0;
#pragma unroll tile_unroll
    for (int i = 0; i < TILE_PIECES; i++) {
        vec<T, VEC> v = {};
        if (tile_piece(i, row0, column0, rows, columns, &at))
            v = load<VEC>(x + at);
        if (HELD)
            held[i % (HELD ? TILE_PIECES : 1)] = v;
        most = most_of(v, most);
    }
    float s = scale_of(block_max(most)), factor = __fdiv_rn(1.0f, s);
    if (threadIdx.x == 0)
        scale[blockIdx.x] = s;
#pragma unroll tile_unroll
    for (int i = 0; i < TILE_PIECES; i++)
        if (tile_piece(i, row0, column0, rows, columns, &at))
            put_codes(y + at, HELD ? held[i % (HELD ? TILE_PIECES : 1)] : load<VEC>(x + at),
                      factor);
}
