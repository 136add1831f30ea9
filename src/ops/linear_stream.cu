/* A few rows times weights of 16, 8 or 4 BITS on Hopper, at the speed at which weights can be read:
 * y [m,n] = activation(x w^T + bias), m <= 8 OCTETS.
 *
 * A cluster has some units of 16 rows of w, and each of its blocks a part of k. One thread orders
 * bulk copies of TILES units into a ring of STAGES in shared memory; WARPS warps multiply, each
 * PIECES times 64 bytes of every row, against rows of x that stay in registers (HOLD) or shared
 * memory (XSHARED) where all of the part fits. Their sums are added in the block, then sent to the
 * block of the cluster that owns the unit, which adds those of all parts, in order, at the end. */
#ifndef CUP_T
#define CUP_T 3
#endif
#ifndef OCTETS
#define OCTETS 1
#endif
#ifndef TILES
#define TILES 1
#endif
#ifndef PIECES
#define PIECES 4
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef STAGES
#define STAGES 6
#endif
#ifndef HOLD
#define HOLD 1
#endif
#ifndef AFTER /* scales multiply the sums of a piece, not weights; not with XSHARED */
#define AFTER 1
#endif
#ifndef XSHARED
#define XSHARED 0
#endif
#ifndef BLOCKS /* on a multiprocessor */
#define BLOCKS 1
#endif
#include "packed.cuh"
#include "pipe.cuh"
#include "stream.cuh"

#define THREADS (32 * WARPS + 32)
#define TOKENS (8 * OCTETS)
#define ROWS (16 * TILES)
#define PIECE_K (4 * LANE_K)
#define WARP_BYTES (64 * PIECES)
#define CHUNK (WARPS * WARP_BYTES) /* bytes of each row in a stage */
#define PITCH (CHUNK % 128 ? CHUNK : CHUNK + 64) /* so that lanes of two rows read 32 banks */
#define STAGE_BYTES (ROWS * PITCH)
#define SUM_PITCH (ROWS + 4)
#define SUMS (TOKENS * SUM_PITCH) /* of a warp */
#define TURNS (XSHARED ? 1 : 2) /* pieces of memory for sums */
#define CHAINS (TILES * OCTETS == 1 ? 2 : 1)

#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)

/* By one thread: copies are ordered by registers that a warp shares. */
DEVICE void produce(const stream_call &s, const place &p, const ring<STAGES> &pipe)
{
    const char *weight = s.weight + p.batch * s.weight_batch + p.begin;
    weight += p.first * 16 * s.weight_row;
    ring_place<STAGES> place = {0, 0};
    for (int unit = 0; unit < p.units; unit += TILES) {
        int rows = min(s.n - (p.first + unit) * 16, min(p.units - unit, TILES) * 16);
        for (int at = 0; at < p.bytes; at += CHUNK, place.next()) {
            uint32_t bytes = min(p.bytes - at, CHUNK), full = pipe.full(place.stage);
            uint32_t to = p.stages + place.stage * STAGE_BYTES;
            const char *from = weight + at;
            pipe.claim(place, bytes * rows);
#pragma unroll 4
            for (int r = 0; r < rows; r++, to += PITCH, from += s.weight_row)
                bulk_load(to, from, bytes, full);
        }
        weight += ROWS * s.weight_row;
    }
}

/* The order of k that unpacking leaves. */
DEVICE uint4 in_order(const uint4 &x)
{
#if BITS == 4
    return shuffled(x);
#elif BITS == 8
    return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
                      __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632));
#else
    return x;
#endif
}

/* The lane's place for 16 bytes of x in shared memory. */
DEVICE uint32_t x_place(const place &p, int i, int word, int o)
{
    int warp = threadIdx.x / 32;
    return p.x + 16 * ((((warp * PIECES + i) * X_WORDS + word) * OCTETS + o) * 32 + lane());
}

typedef uint4 x_part[XSHARED ? 1 : PIECES][X_WORDS][OCTETS];

/* Sixteen bytes of x for the lane; k is that of the lane's part of piece i. */
DEVICE uint4 read_x16(const stream_call &s, const place &p, int k, int word, int o)
{
    int token = 8 * o + lane() / 4;
    const T *x = (const T *)s.x + p.batch * s.x_batch + token * s.x_row + k;
    return token < s.m && k < (p.begin + p.bytes) / BITS * 8 ? __ldg((const uint4 *)x + word)
                                                             : make_uint4(0, 0, 0, 0);
}

/* The lane's part of x beside the warp's part of a chunk; `k` is the lane's first. */
DEVICE void read_x(const stream_call &s, const place &p, int k, x_part &to)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int word = 0; word < X_WORDS; word++)
#pragma unroll
            for (int o = 0; o < OCTETS; o++)
                if (!XSHARED)
                    to[i][word][o] = read_x16(s, p, k + i * PIECE_K, word, o);
                else
                    store_shared16(x_place(p, i, word, o),
                                   in_order(read_x16(s, p, k + i * PIECE_K, word, o)));
}

DEVICE void order_x(x_part &x)
{
#pragma unroll
    for (int i = 0; i < (XSHARED ? 0 : PIECES * X_WORDS * OCTETS); i++)
        (&x[0][0][0])[i] = in_order((&x[0][0][0])[i]);
}

#if BITS < 16
/* As it is in memory: it is turned into numbers where they are needed, long after. */
struct lane_scale {
    scale_type times;
    uint8_t zero;
};
typedef lane_scale scales[PIECES][2 * TILES];

/* What scales the lane's rows of a stage; zero beyond the edges. */
DEVICE void read_scales(const stream_call &s, const place &p, int unit, int k, scales &to)
{
    int end = (p.begin + p.bytes) / BITS * 8;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        int at_k = k + i * PIECE_K, group = s.shift >= 0 ? at_k >> s.shift : at_k / s.group;
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) {
            int row = (p.first + unit) * 16 + 8 * j + lane() / 4;
            bool valid = unit < p.units && row < s.n && at_k < end;
            long long at = (long long)row * s.groups + group;
            to[i][j] = {};
            if (valid)
                to[i][j].times = ((const scale_type *)s.scale)[at];
            if (BITS == 4 && valid && s.zero)
                to[i][j].zero = s.zero[at];
        }
    }
}
#else
typedef int scales[1];
#endif

/* Four pairs along k of a row: what 16 bytes of x, the `word`th of a piece, are multiplied with. */
DEVICE void weights_of(const uint4 &row, int word, uint32_t minus, uint32_t times,
                       uint32_t (&to)[4])
{
    const uint32_t words[4] = {row.x, row.y, row.z, row.w};
#if BITS == 16
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = words[i];
#elif BITS == 8
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pairs[2];
        codes(words[2 * word + half], minus, pairs);
        to[2 * half] = pairs[0];
        to[2 * half + 1] = pairs[1];
    }
#else
    codes(words[word], minus, to);
#endif
    if (BITS < 16 && !AFTER)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = pair_fma(to[i], times, 0x80008000u);
}

/* Sixteen rows, of which the lane has two, times 16 bytes of x. */
DEVICE void multiply_word(const uint4 &upper, const uint4 &lower, int word,
                          const uint32_t (&minus)[2], const uint32_t (&times)[2],
                          const uint4 (&x)[OCTETS], float (&sum)[OCTETS][4])
{
    uint32_t top[4], bottom[4];
    weights_of(upper, word, minus[0], times[0], top);
    weights_of(lower, word, minus[1], times[1], bottom);
    uint32_t first[4] = {top[0], bottom[0], top[1], bottom[1]};
    uint32_t second[4] = {top[2], bottom[2], top[3], bottom[3]};
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        multiply_add(sum[o], first, x[o].x, x[o].y, T());
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        multiply_add(sum[o], second, x[o].z, x[o].w, T());
}

typedef float stage_sums[CHAINS][TILES][OCTETS][4];

/* What turns the codes of piece i of the lane's rows of tile t into weights. */
DEVICE void take_scale(const stream_call &s, const scales &scale, int i, int t,
                       uint32_t (&minus)[2], uint32_t (&times)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        minus[h] = times[h] = 0;
#if BITS < 16
        const lane_scale &one = scale[i][2 * t + h];
        if (BITS == 4)
            minus[h] = pair_of(-(MAGIC_VALUE + (float)(s.zero ? one.zero : 8)));
        if (!AFTER)
            times[h] = pair_of(convert<float>(one.times));
#endif
    }
}

DEVICE void multiply_tile(const stream_call &s, const uint4 &upper, const uint4 &lower,
                          const uint4 (&x)[X_WORDS][OCTETS], const scales &scale, int i, int t,
                          stage_sums &sum)
{
    uint32_t minus[2], times[2];
    take_scale(s, scale, i, t, minus, times);
    float part[OCTETS][4] = {};
#pragma unroll
    for (int word = 0; word < X_WORDS; word++)
        multiply_word(upper, lower, word, minus, times, x[word], AFTER ? part : sum[i % CHAINS][t]);
#if BITS < 16 && AFTER
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int l = 0; l < 4; l++)
            sum[i % CHAINS][t][o][l] += convert<float>(scale[i][2 * t + l / 2].times) * part[o][l];
#endif
}

DEVICE void multiply_stage(const stream_call &s, const place &p, uint32_t from, int k, int end,
                           const x_part &x, const scales &scale, stage_sums &sum)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        uint4 upper[TILES], lower[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            upper[t] = load_shared16(from + 16 * t * PITCH + 64 * i);
            lower[t] = load_shared16(from + (16 * t + 8) * PITCH + 64 * i);
            if (BITS == 16 && k + i * PIECE_K >= end)
                upper[t] = lower[t] = make_uint4(0, 0, 0, 0);
        }
#if XSHARED
        uint32_t minus[TILES][2], times[TILES][2];
#pragma unroll
        for (int t = 0; t < TILES; t++)
            take_scale(s, scale, i, t, minus[t], times[t]);
#pragma unroll
        for (int word = 0; word < X_WORDS; word++) {
            uint4 values[OCTETS];
#pragma unroll
            for (int o = 0; o < OCTETS; o++)
                values[o] = load_shared16(x_place(p, i, word, o));
#pragma unroll
            for (int t = 0; t < TILES; t++)
                multiply_word(upper[t], lower[t], word, minus[t], times[t], values,
                              sum[i % CHAINS][t]);
        }
#else
#pragma unroll
        for (int t = 0; t < TILES; t++)
            multiply_tile(s, upper[t], lower[t], x[i], scale, i, t, sum);
#endif
    }
}

/* Adds what the warps have of up to TILES units and sends it to the owners. */
DEVICE void send_sums(const stream_call &s, const place &p, int unit, uint32_t sums,
                      const stage_sums &sum)
{
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int token = 8 * o + lane() % 4 * 2 + l % 2, row = 16 * t + lane() / 4 + l / 2 * 8;
                float v = sum[0][t][o][l] + (CHAINS > 1 ? sum[CHAINS - 1][t][o][l] : 0);
                store_shared4(sums + 4 * (threadIdx.x / 32 * SUMS + token * SUM_PITCH + row),
                              __float_as_uint(v));
            }
    meet(1, 32 * WARPS);
#pragma unroll 1
    for (int i = threadIdx.x; i < TILES * 4 * s.m; i += 32 * WARPS) {
        int token = i / (TILES * 4), quad = i % (TILES * 4);
        if (unit + quad / 4 >= p.units)
            continue;
        float total[4] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            uint4 v = load_shared16(sums + 4 * (w * SUMS + token * SUM_PITCH + 4 * quad));
            total[0] += __uint_as_float(v.x), total[1] += __uint_as_float(v.y);
            total[2] += __uint_as_float(v.z), total[3] += __uint_as_float(v.w);
        }
        send_quad(s, p, unit + quad / 4, token, quad % 4, total);
    }
}

DEVICE void consume(const stream_call &s, const place &p, const ring<STAGES> &pipe)
{
    int inside = threadIdx.x / 32 * WARP_BYTES + lane() % 4 * 16, turn = 0;
    int k0 = (p.begin + inside) / BITS * 8, end = (p.begin + p.bytes) / BITS * 8;
    uint32_t from = p.stages + lane() / 4 * PITCH + inside;
    ring_place<STAGES> place = {0, 0};
    x_part x;
    scales now, next;
    if (HOLD)
        read_x(s, p, k0, x);
#if BITS < 16
    read_scales(s, p, 0, k0, next);
#endif
    if (HOLD)
        order_x(x);
    for (int unit = 0; unit < p.units; unit += TILES) {
        stage_sums sum = {};
        for (int at = 0; at < p.bytes; at += CHUNK, place.next()) {
            int k = k0 + at / BITS * 8;
            if (!HOLD) {
                read_x(s, p, k, x);
                order_x(x);
            }
#if BITS < 16
            bool last = HOLD || at + CHUNK >= p.bytes;
#pragma unroll
            for (int i = 0; i < PIECES * 2 * TILES; i++)
                (&now[0][0])[i] = (&next[0][0])[i];
            read_scales(s, p, last ? unit + TILES : unit, last ? k0 : k + CHUNK / BITS * 8, next);
#endif
            pipe.wait_full(place);
            multiply_stage(s, p, from + place.stage * STAGE_BYTES, k, end, x, now, sum);
            __syncwarp();
            pipe.release<1>(place.stage);
        }
        if (unit == 0)
            wait_for_cluster(p);
        send_sums(s, p, unit, p.sums + turn * WARPS * SUMS * 4, sum);
        if (TURNS == 1)
            meet(1, 32 * WARPS);
        else
            turn ^= 1;
    }
    write_owned(s, p);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    linear_stream(const __grid_constant__ stream_call s)
{
#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)
    extern __shared__ __align__(128) char shared[];
    place p;
    p.stages = shared_address(shared);
    p.joint = p.stages + STAGES * (STAGE_BYTES + 16);
    p.sums = p.joint + 16;
    p.x = p.sums + TURNS * WARPS * SUMS * 4;
    p.inbox = p.x + XSHARED * WARPS * PIECES * X_WORDS * OCTETS * 512;
    take_place(s, p);
    ring<STAGES> pipe = {p.stages + STAGES * STAGE_BYTES};
    if (threadIdx.x / 32 == WARPS) {
        if (lane() == 0) {
            barrier_init(p.joint, 1);
            pipe.init(WARPS);
        }
        __syncwarp();
        come_to_cluster(p);
        pass(2, THREADS);
        if (lane() == 0)
            produce(s, p, pipe);
        __syncwarp();
        wait_for_cluster(p);
    } else {
        come_to_cluster(p);
        meet(2, THREADS);
        if (threadIdx.x == 0 && p.cluster > 1 && p.units > p.rank)
            barrier_expect(p.joint, (owned_of(p) << p.shift) * s.m * 64);
        consume(s, p, pipe);
    }
#endif
}
