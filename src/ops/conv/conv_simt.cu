/* conv2d and the gradient of its input without tensor cores: any strides, sizes and dtype; f32 and
 * f64 at full accuracy, 16-bit types and codes of 8 bits with f32 sums, integers exactly.
 *
 * A product of TILE places and TILE results, whose columns are read where they lie. Grid: x counts
 * tiles of results, of places and classes, y groups; 256 threads. A thread owns SIDE x SIDE sums in
 * groups of four; the next DEPTH elements of the columns are on their way while the last ones are
 * multiplied out of shared memory, and where those after them lie is found by DEPTH threads.
 * Every CHUNK of the columns are summed by themselves, so that roundings do not pile up.
 * Operations: 2 for each place, result and element of the columns. */
#include "conv.cuh"

#ifndef TILE
#define TILE 64
#endif
#define DEPTH 16
#define SIDE (TILE / 16)
#define EACH (TILE * DEPTH / CONV_THREADS)
#define ROW (TILE + 4)
#define BY_ROWS (ALONG == CONV_ALONG_ROWS)
#define CHUNK 128

/* Where a place's first tap lies; in shared memory, where a thread reads several places. */
struct alignas(16) place_start {
    long long from;
    int row, column;
};

struct shared_tile {
    number left[2][DEPTH][ROW], right[2][DEPTH][ROW];
    conv_element element[2][DEPTH];
    long long to[TILE];
    place_start start[BY_ROWS ? 1 : TILE];
};

/* Piece i of this thread's: side by side are places of a row, or elements of the columns. */
DEVICE int place_of(int i)
{
    int piece = (int)threadIdx.x + i * CONV_THREADS;
    return BY_ROWS ? piece % TILE : piece / DEPTH;
}

DEVICE int depth_of(int i)
{
    int piece = (int)threadIdx.x + i * CONV_THREADS;
    return BY_ROWS ? piece / TILE : piece % DEPTH;
}

/* Element i of the SIDE that a thread owns along one side of the tile. */
DEVICE int owned(int thread, int i)
{
    return thread * 4 + i % 4 + i / 4 * 64;
}

struct bringer {
    const T *x, *w;
    place_start start; /* with BY_ROWS */
    long long w_step;
    int results; /* from this tile on */
    T from_x[EACH], from_w[EACH];

    __device__ __forceinline__ void read(const conv_class &l, const shared_tile &s, int now, int k0)
    {
        const conv_element *element = s.element[now];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            place_start p = BY_ROWS ? start : s.start[place_of(i)];
            conv_element e = element[depth_of(i)];
            from_x[i] = T();
            if (k0 + depth_of(i) < l.depth && conv_inside(l, p.row + e.row, p.column + e.column))
                from_x[i] = x[p.from + e.x];
        }
        conv_element e = element[threadIdx.x % DEPTH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int result = (int)threadIdx.x / DEPTH + i * (CONV_THREADS / DEPTH);
            from_w[i] = T();
            if (k0 + (int)threadIdx.x % DEPTH < l.depth && result < results)
                from_w[i] = w[result * w_step + e.w];
        }
    }

    __device__ __forceinline__ void put(shared_tile &s, int now) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            s.left[now][depth_of(i)][place_of(i)] = to_real(from_x[i]);
            s.right[now][threadIdx.x % DEPTH][threadIdx.x / DEPTH + i * (CONV_THREADS / DEPTH)] =
                to_real(from_w[i]);
        }
    }
};

/* Threads whose numbers follow each other own neighbours in memory: places or results. */
DEVICE int thread_of_place()
{
    return BY_ROWS ? threadIdx.x % 16 : threadIdx.x / 16;
}

DEVICE int thread_of_result()
{
    return BY_ROWS ? threadIdx.x / 16 : threadIdx.x % 16;
}

DEVICE void multiply(const number (*left)[ROW], const number (*right)[ROW],
                     number (&sum)[SIDE][SIDE])
{
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        number a[SIDE], b[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            a[i] = left[k][owned(thread_of_place(), i)];
            b[i] = right[k][owned(thread_of_result(), i)];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                sum[i][j] += a[i] * b[j];
    }
}

DEVICE void add_chunk(number (&chunk)[SIDE][SIDE], number (&sum)[SIDE][SIDE])
{
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            sum[i][j] += chunk[i][j];
            chunk[i][j] = 0;
        }
}

DEVICE void finish(const conv_call &c, int group, int result0, const shared_tile &s,
                   const number (&sum)[SIDE][SIDE])
{
#pragma unroll
    for (int j = 0; j < SIDE; j++) {
        int result = result0 + owned(thread_of_result(), j);
        if (result >= c.results)
            continue;
        long long channel = (long long)group * c.results + result;
        conv_end end(c, channel);
        result_type *y = (result_type *)c.y + group * c.y_group + result * c.y_step[1];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            long long to = s.to[owned(thread_of_place(), i)];
            if (to >= 0)
                y[to] = from_real<result_type>(end.of(sum[i][j]));
        }
    }
}

DEVICE void one_tile(const conv_call &c, const conv_class &l, int group, long long place0,
                     int result0, shared_tile &s)
{
    bringer bring;
    bring.x = (const T *)c.x + group * c.x_group;
    bring.w = (const T *)c.w + group * c.w_group + result0 * c.w_step[0];
    bring.w_step = c.w_step[0];
    bring.results = c.results - result0;
    conv_place own = l.place(c, place0 + threadIdx.x % TILE); /* as place_of has it BY_ROWS */
    bring.start = {own.from, own.row, own.column};
    if (threadIdx.x < TILE) {
        s.to[threadIdx.x] = own.to;
        if (!BY_ROWS)
            s.start[threadIdx.x] = bring.start;
    }
    if (threadIdx.x < DEPTH)
        s.element[0][threadIdx.x] = conv_element_of(c, l, threadIdx.x);
    __syncthreads();
    number sum[SIDE][SIDE] = {}, chunk[SIDE][SIDE] = {};
    bring.read(l, s, 0, 0);
    if (threadIdx.x < DEPTH)
        s.element[1][threadIdx.x] = conv_element_of(c, l, DEPTH + threadIdx.x);
    int now = 0;
    for (int k = 0; k < l.depth; k += DEPTH, now ^= 1) {
        bring.put(s, now);
        __syncthreads();
        if (k + DEPTH < l.depth) {
            bring.read(l, s, now ^ 1, k + DEPTH);
            if (threadIdx.x < DEPTH)
                s.element[now][threadIdx.x] = conv_element_of(c, l, k + 2 * DEPTH + threadIdx.x);
        }
        multiply(s.left[now], s.right[now], chunk);
        if ((k + DEPTH) % CHUNK == 0 || k + DEPTH >= l.depth)
            add_chunk(chunk, sum);
    }
    finish(c, group, result0, s, sum);
}

#define BLOCKS_EACH (TILE == 64 && sizeof(number) == 4 ? 2 : 1) /* of a multiprocessor */

extern "C" __global__ void __launch_bounds__(CONV_THREADS, BLOCKS_EACH)
    conv_simt(const __grid_constant__ conv_call c, const __grid_constant__ conv_tiles t)
{
    __shared__ shared_tile s;
    unsigned rest = blockIdx.x / t.results, place = rest % t.places, which = rest / t.places;
    int result0 = (int)(blockIdx.x % t.results) * TILE;
    conv_class l(c, (int)(which / t.classes[1]), (int)(which % t.classes[1]));
    if ((long long)place * TILE >= l.places(c))
        return;
    for (int group = blockIdx.y; group < c.groups; group += gridDim.y) {
        one_tile(c, l, group, (long long)place * TILE, result0, s);
        __syncthreads();
    }
}
