/* The gradient of conv2d's weight without tensor cores: any strides, sizes and dtype.
 *
 * A product of TILE results and TILE elements of the columns, summed over the places of a part.
 * Grid: x counts tiles, y groups, z parts; 256 threads, each with SIDE x SIDE sums in groups of
 * four. Where the next DEPTH places lie is found by DEPTH threads, which walk on from the last. The
 * sums of parts go to memory, where conv_join adds them in order. */
#include "conv.cuh"

#ifndef TILE
#define TILE 64
#endif
#define DEPTH 16
#define SIDE (TILE / 16)
#define EACH (TILE * DEPTH / CONV_THREADS)
#define ROW (TILE + 4)
#define BY_ROWS (ALONG == CONV_ALONG_ROWS)
#define CHUNK 128 /* places that are summed by themselves, so that roundings do not pile up */

/* Here `to` of a place is where its first result lies in dy. */
struct shared_tile {
    real left[2][DEPTH][ROW], right[2][DEPTH][ROW];
    conv_place place[2][DEPTH];
    conv_element element[BY_ROWS ? TILE : 1]; /* where a thread reads several */
    conv_walk walk[DEPTH]; /* of the threads that find places */
};

/* Side by side are places of a row, or channels. */
DEVICE int line_of(int i)
{
    int piece = (int)threadIdx.x + i * CONV_THREADS;
    return BY_ROWS ? piece / DEPTH : piece % TILE;
}

DEVICE int depth_of(int i)
{
    int piece = (int)threadIdx.x + i * CONV_THREADS;
    return BY_ROWS ? piece % DEPTH : piece / TILE;
}

/* Element i of the SIDE that a thread owns along one side of the tile. */
DEVICE int owned(int thread, int i)
{
    return thread * 4 + i % 4 + i / 4 * 64;
}

DEVICE conv_place place_of(const conv_call &c, const conv_class &l, const conv_walk &at, bool there)
{
    conv_place p = {0, -1, CONV_NOWHERE, CONV_NOWHERE};
    if (!there)
        return p;
    p.row = l.line[0].from + at.row * l.line[0].step;
    p.column = l.line[1].from + at.column * l.line[1].step;
    p.from = at.image * c.x_step[0] + p.row * c.x_step[2] + p.column * c.x_step[3];
    p.to = at.image * c.w_step[0] + at.row * c.w_step[2] + at.column * c.w_step[3];
    return p;
}

/* The one that the walk comes to next. */
DEVICE conv_place place_after(const conv_call &c, const conv_class &l, conv_walk &walk, bool there)
{
    conv_walk at = walk;
    at.next(l);
    walk = at;
    return place_of(c, l, at, there);
}

struct bringer {
    const T *x, *dy;
    conv_element element; /* unless BY_ROWS */
    long long dy_step;
    int results, elements; /* from this tile on */
    T from_x[EACH], from_dy[EACH];

    __device__ __forceinline__ void read(const conv_class &l, const shared_tile &s, int now)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            conv_place p = s.place[now][depth_of(i)];
            conv_element e = BY_ROWS ? s.element[line_of(i)] : element;
            from_x[i] = T();
            from_dy[i] = T();
            if (line_of(i) < elements && conv_inside(l, p.row + e.row, p.column + e.column))
                from_x[i] = x[p.from + e.x];
            if (p.to >= 0 && line_of(i) < results)
                from_dy[i] = dy[p.to + line_of(i) * dy_step];
        }
    }

    __device__ __forceinline__ void put(shared_tile &s, int now) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            s.left[now][depth_of(i)][line_of(i)] = to_real(from_dy[i]);
            s.right[now][depth_of(i)][line_of(i)] = to_real(from_x[i]);
        }
    }
};

DEVICE void multiply(const real (*left)[ROW], const real (*right)[ROW], real (&sum)[SIDE][SIDE])
{
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        real a[SIDE], b[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            a[i] = left[k][owned(threadIdx.x / 16, i)];
            b[i] = right[k][owned(threadIdx.x % 16, i)];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                sum[i][j] += a[i] * b[j];
    }
}

DEVICE void add_chunk(real (&chunk)[SIDE][SIDE], real (&sum)[SIDE][SIDE])
{
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            sum[i][j] += chunk[i][j];
            chunk[i][j] = 0;
        }
}

DEVICE void one_tile(const conv_call &c, const conv_parts &p, const conv_class &l, int group,
                     int result0, int depth0, shared_tile &s)
{
    bringer bring;
    bring.x = (const T *)c.x + group * c.x_group;
    bring.dy = (const T *)c.w + group * c.w_group + result0 * c.w_step[1];
    bring.dy_step = c.w_step[1];
    bring.results = c.results - result0;
    bring.elements = l.depth - depth0;
    bring.element = conv_element_of(c, l, depth0 + (int)threadIdx.x % TILE);
    if (BY_ROWS && threadIdx.x < TILE)
        s.element[threadIdx.x] = bring.element;
    long long begin = blockIdx.z * p.part, end = begin + p.part;
    end = end < p.all ? end : p.all;
    if (threadIdx.x < DEPTH) {
        conv_walk first(l, begin + threadIdx.x, DEPTH);
        s.place[0][threadIdx.x] = place_of(c, l, first, begin + threadIdx.x < end);
        s.walk[threadIdx.x] = first;
    }
    __syncthreads();
    real sum[SIDE][SIDE] = {}, chunk[SIDE][SIDE] = {};
    bring.read(l, s, 0);
    if (threadIdx.x < DEPTH)
        s.place[1][threadIdx.x] =
            place_after(c, l, s.walk[threadIdx.x], begin + DEPTH + threadIdx.x < end);
    int now = 0;
    for (long long at = begin; at < end; at += DEPTH, now ^= 1) {
        bring.put(s, now);
        __syncthreads();
        if (at + DEPTH < end) {
            bring.read(l, s, now ^ 1);
            if (threadIdx.x < DEPTH)
                s.place[now][threadIdx.x] =
                    place_after(c, l, s.walk[threadIdx.x], at + 2 * DEPTH + threadIdx.x < end);
        }
        multiply(s.left[now], s.right[now], chunk);
        if ((at - begin + DEPTH) % CHUNK == 0 || at + DEPTH >= end)
            add_chunk(chunk, sum);
    }
    real *to = (real *)p.sums + ((long long)blockIdx.z * c.groups + group) * c.results * p.depth;
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            int result = result0 + owned(threadIdx.x / 16, i);
            int k = depth0 + owned(threadIdx.x % 16, j);
            if (result < c.results && k < p.depth)
                to[(long long)result * p.depth + k] = sum[i][j];
        }
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_weight(const __grid_constant__ conv_call c, const __grid_constant__ conv_parts p)
{
    __shared__ shared_tile s;
    conv_class l(c, 0, 0);
    int result0 = (int)(blockIdx.x / p.depths) * TILE, depth0 = (int)(blockIdx.x % p.depths) * TILE;
    for (int group = blockIdx.y; group < c.groups; group += gridDim.y) {
        one_tile(c, p, l, group, result0, depth0, s);
        __syncthreads();
    }
}
