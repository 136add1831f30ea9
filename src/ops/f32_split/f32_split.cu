/* Cuts matrices of f32 into planes of 16-bit numbers, which tensor cores multiply
 * (f32_split_wgmma.cu). bf16: the leading 8 bits of every element, the next 8, the last 8. f16:
 * rows of a and columns of b are first scaled by powers of two, so that their largest element is
 * below 2^15; the second plane is 2^11 times what the first leaves.
 *
 * matmul_split: blocks of 256 threads take both sides, first those of side 0. Along k, GROUP
 * threads take a line. Along m or n a block takes 128 columns of a chunk of lines; what their
 * largest elements are is found before by matmul_split_most, for every chunk of lines. What is not
 * finite stays whole in the first plane. 4 bytes are read and 2 PLANES written an element. */
/* A knob: PLANES. */
#ifndef LONG /* whether lines along k are longer than a group takes at once */
#define LONG 0
#endif
#ifndef PIECES
#define PIECES 4
#endif
#define VEC 4
#include "hopper.cuh"
#include "product_call.cuh"
#include "rows.cuh"
#include "split_call.cuh"
#include "split_planes.cuh"
#include "vec.cuh"

#define WARPS (THREADS / 32)
#define COLUMNS 128    /* of a block, along m or n */
#define CHUNKS_MOST 16 /* pieces into which the lines of a side are shared out */

/* Four neighbours; 0 beyond the end. */
DEVICE void read_four(const split_side &s, const float *line, long long at, float (&x)[4])
{
    if (s.whole && at < s.length) {
        vec<float, 4> v = load<4>(line + at);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = v.at[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = at + i < s.length ? __ldg(line + at + i) : 0.0f;
}

DEVICE float larger(float most, float x)
{
    return is_finite(x) ? fmaxf(most, fabsf(x)) : most;
}

/* Puts four elements, at number `at` of plane 0. */
DEVICE void put_four(const split_side &s, long long at, float (&x)[4], const float (&factor)[4],
                     findings &f)
{
    long long plane_size = s.batch * s.lines * s.padded;
    if (SCALED)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= factor[i];
            f.note(x[i]);
        }
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
        unsigned bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits[i] = take(&x[i]);
        *(uint2 *)(s.to + plane * plane_size + at) =
            make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    }
}

DEVICE void read_span(const split_side &s, const float *line, long long begin,
                      float (&x)[PIECES][4])
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        read_four(s, line, begin + piece_at(p), x[p]);
}

DEVICE void put_span(const split_side &s, long long line, long long begin, float (&x)[PIECES][4],
                     float factor, findings &f)
{
    const float factors[4] = {factor, factor, factor, factor};
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (begin + piece_at(p) < s.padded)
            put_four(s, line * s.padded + begin + piece_at(p), x[p], factors, f);
}

DEVICE float largest(const float (&x)[PIECES][4], float most)
{
#pragma unroll
    for (int i = 0; i < PIECES * 4; i++)
        most = larger(most, x[i / 4][i % 4]);
    return most;
}

/* One line along k. */
DEVICE void cut_line(const split_side &s, long long line, findings &f)
{
    const float *from = s.from + line / s.lines * s.batch_distance + line % s.lines * s.distance;
    float x[PIECES][4], most = 0, factor = 1;
    read_span(s, from, 0, x);
    if (SCALED) {
        most = largest(x, 0);
        for (long long begin = SPAN; LONG && begin < s.length; begin += SPAN) {
            read_span(s, from, begin, x);
            most = largest(x, most);
        }
        most = group_reduce<0>(most, max_op());
        int exponent = exponent_for(most);
        factor = power_of_two(exponent);
        if (threadIdx.x % GROUP == 0)
            s.exponents[line] = exponent;
        if (LONG)
            read_span(s, from, 0, x);
    }
    put_span(s, line, 0, x, factor, f);
    for (long long begin = SPAN; LONG && begin < s.length; begin += SPAN) {
        read_span(s, from, begin, x);
        put_span(s, line, begin, x, factor, f);
    }
}

/* The part of a side whose lines lie along m or n that a block takes. */
struct part {
    long long column, batch, line, end;
    int chunk;
};

DEVICE part part_of(const split_side &s, long long block)
{
    part p;
    long long across = (s.padded + COLUMNS - 1) / COLUMNS;
    p.column = block % across * COLUMNS + threadIdx.x % 32 * 4;
    p.chunk = (int)(block / across % s.chunks);
    p.batch = block / across / s.chunks;
    p.line = p.chunk * s.chunk_lines + threadIdx.x / 32;
    p.end = min((p.chunk + 1) * s.chunk_lines, s.lines);
    return p;
}

/* The largest elements of the thread's four columns, over all chunks. */
DEVICE void join_chunks(const split_side &s, const part &p, float (&most)[4])
{
    __shared__ float found[2][COLUMNS];
    long long column = p.column - threadIdx.x % 32 * 4 + threadIdx.x % COLUMNS;
    float x[CHUNKS_MOST / 2], all = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS_MOST / 2; i++) {
        int chunk = 2 * i + threadIdx.x / COLUMNS;
        x[i] = chunk < s.chunks && column < s.length
                   ? s.most[(chunk * s.batch + p.batch) * s.length + column]
                   : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < CHUNKS_MOST / 2; i++)
        all = fmaxf(all, x[i]);
    found[threadIdx.x / COLUMNS][threadIdx.x % COLUMNS] = all;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
        most[i] = fmaxf(found[0][threadIdx.x % 32 * 4 + i], found[1][threadIdx.x % 32 * 4 + i]);
}

DEVICE void cut_part(const split_side &s, long long block, findings &f)
{
    part p = part_of(s, block);
    float most[4] = {};
    if (SCALED)
        join_chunks(s, p, most);
    if (p.column >= s.padded)
        return;
    float factor[4] = {1, 1, 1, 1};
    if (SCALED)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int exponent = exponent_for(most[i]);
            factor[i] = power_of_two(exponent);
            if (p.chunk == 0 && threadIdx.x < 32 && p.column + i < s.length)
                s.exponents[p.batch * s.length + p.column + i] = exponent;
        }
    const float *from = s.from + p.batch * s.batch_distance;
#pragma unroll 1
    for (; p.line < p.end; p.line += 4 * WARPS) {
        float x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p.line + i * WARPS < p.end)
                read_four(s, from + (p.line + i * WARPS) * s.distance, p.column, x[i]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p.line + i * WARPS < p.end)
                put_four(s, (p.batch * s.lines + p.line + i * WARPS) * s.padded + p.column, x[i],
                         factor, f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_split(const __grid_constant__ split_call c)
{
#if __CUDA_ARCH__ >= 900
    wait_for_previous_kernel();
#endif
    const volatile unsigned *words = c.words;
    if (c.when && words[SPLIT_WIDE] == 0 && words[SPLIT_AGAIN] == 0)
        return;
    bool second = blockIdx.x >= c.side[0].blocks;
    findings f = {0, false};
    const split_side &s = c.side[second];
    long long block = blockIdx.x - (second ? c.side[0].blocks : 0);
    if (s.along == PRODUCT_ALONG_K)
        for (long long line = block * GROUPS; line < s.lines * s.batch; line += s.blocks * GROUPS) {
            if (line + threadIdx.x / GROUP < s.lines * s.batch)
                cut_line(s, line + threadIdx.x / GROUP, f);
            if (GROUP > 32)
                __syncthreads();
        }
    else
        cut_part(s, block, f);
#if SCALED && PLANES > 1
    leave(c.words, f);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_split_most(const __grid_constant__ split_call c)
{
    __shared__ float found[WARPS][COLUMNS];
    bool second = blockIdx.x >= c.side[0].blocks;
    const split_side &s = c.side[second];
    if (s.along == PRODUCT_ALONG_K)
        return;
    part p = part_of(s, blockIdx.x - (second ? c.side[0].blocks : 0));
    const float *from = s.from + p.batch * s.batch_distance;
    float most[4] = {};
#pragma unroll 1
    for (; p.line < p.end; p.line += 4 * WARPS) {
        float x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            read_four(s, from + min(p.line + i * WARPS, p.end - 1) * s.distance, p.column, x[i]);
#pragma unroll
        for (int i = 0; i < 16; i++)
            most[i % 4] = larger(most[i % 4], x[i / 4][i % 4]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        found[threadIdx.x / 32][threadIdx.x % 32 * 4 + i] = most[i];
    __syncthreads();
    long long column = p.column - threadIdx.x % 32 * 4 + threadIdx.x;
    if (threadIdx.x >= COLUMNS || column >= s.length)
        return;
    float all = 0;
    for (int warp = 0; warp < WARPS; warp++)
        all = fmaxf(all, found[warp][threadIdx.x]);
    s.most[(p.chunk * s.batch + p.batch) * s.length + column] = all;
}
