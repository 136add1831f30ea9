/* The gradient of conv2d's weight without tensor cores: any strides, sizes and dtype.
 *
 * A product of TILE results and TILE elements of the columns, summed over the places of a part.
 * Grid: x counts tiles, y groups, z parts; 256 threads, each with SIDE x SIDE sums. Where the next
 * DEPTH places lie is found by DEPTH threads. The sums of parts go to memory, where conv_join adds
 * them in order. */
#include "conv.cuh"

#define TILE 64
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

DEVICE conv_place place_of(const conv_call &c, const conv_class &l, long long at, long long end)
{
    conv_place p = l.place(c, at < end ? at : l.places(c));
    if (p.to < 0)
        return p;
    long long rest = at / l.line[1].count, image = rest / l.line[0].count;
    p.to = image * c.w_step[0] + (rest - image * l.line[0].count) * c.w_step[2] +
           (at - rest * l.line[1].count) * c.w_step[3];
    return p;
}

struct bringer {
    const T *x, *dy;
    conv_element element[BY_ROWS ? EACH : 1];
    bool has_element[BY_ROWS ? EACH : 1];
    long long dy_step;
    int results;
    T from_x[EACH], from_dy[EACH];

    __device__ __forceinline__ void read(const conv_class &l, const conv_place *place)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            conv_place p = place[depth_of(i)];
            const conv_element &e = element[BY_ROWS ? i : 0];
            from_x[i] = T();
            from_dy[i] = T();
            if (has_element[BY_ROWS ? i : 0] && conv_inside(l, p.row + e.row, p.column + e.column))
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
            a[i] = left[k][threadIdx.x / 16 * SIDE + i];
            b[i] = right[k][threadIdx.x % 16 * SIDE + i];
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
#pragma unroll
    for (int i = 0; i < (BY_ROWS ? EACH : 1); i++) {
        bring.element[i] = conv_element_of(c, l, depth0 + line_of(i));
        bring.has_element[i] = depth0 + line_of(i) < l.depth;
    }
    long long begin = blockIdx.z * p.part, end = begin + p.part;
    end = end < p.all ? end : p.all;
    if (threadIdx.x < DEPTH)
        s.place[0][threadIdx.x] = place_of(c, l, begin + threadIdx.x, end);
    __syncthreads();
    real sum[SIDE][SIDE] = {}, chunk[SIDE][SIDE] = {};
    bring.read(l, s.place[0]);
    if (threadIdx.x < DEPTH)
        s.place[1][threadIdx.x] = place_of(c, l, begin + DEPTH + threadIdx.x, end);
    int now = 0;
    for (long long at = begin; at < end; at += DEPTH, now ^= 1) {
        bring.put(s, now);
        __syncthreads();
        if (at + DEPTH < end) {
            bring.read(l, s.place[now ^ 1]);
            if (threadIdx.x < DEPTH)
                s.place[now][threadIdx.x] = place_of(c, l, at + 2 * DEPTH + threadIdx.x, end);
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
            int result = result0 + (int)threadIdx.x / 16 * SIDE + i;
            int k = depth0 + (int)threadIdx.x % 16 * SIDE + j;
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
