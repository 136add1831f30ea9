/* A few rows times weights of 16, 8 or 4 BITS on Hopper, at the speed at which weights can be read:
 * y [m,n] = activation(x w^T + bias), m <= 8 OCTETS.
 *
 * A cluster has some units of 16 rows of w, and each of its blocks a part of k. One thread orders
 * bulk copies into a ring of STAGES in shared memory, a chunk of a unit's rows each; WARPS warps
 * multiply, each PIECES times 64 bytes of every row, against rows of x. Those of HELD chunks stay
 * in registers, or in shared memory (XSHARED); with HELD 0 they are read again for each unit. A
 * block ALONE writes its sums; others send theirs to the block of the cluster that owns the unit,
 * which adds those of all parts, in order, at the end. */
/* Knobs: OCTETS, PIECES, WARPS, STAGES, HELD, XSHARED, ALONE; WHOLE: a chunk is whole rows, which
 * lie behind each other and come by one copy. */
#ifndef AFTER /* scales multiply the sums of a piece, not weights */
#define AFTER 1
#endif
#ifndef BLOCKS /* on a multiprocessor */
#define BLOCKS 1
#endif
#include "packed.cuh"
#include "pipe.cuh"
#include "stream.cuh"

#define THREADS (32 * WARPS + 32)
#define TOKENS (8 * OCTETS)
#define PIECE_K (4 * LANE_K)
#define WARP_BYTES (64 * PIECES)
#define CHUNK (WARPS * WARP_BYTES) /* bytes of each row in a stage */
#define CHUNK_K (CHUNK * 8 / BITS)
#define PITCH (CHUNK % 128 ? CHUNK : CHUNK + 64) /* so that lanes of two rows read 32 banks */
#define STAGE_BYTES (16 * PITCH)
#define SUM_PITCH 20
#define SUMS (TOKENS * SUM_PITCH) /* of a warp */
#define TURNS (OCTETS > 2 ? 1 : 2) /* pieces of memory for sums */
#define CHAINS (OCTETS == 1 ? 2 : 1)
#define X_KEPT (HELD > 1 ? HELD : 1) /* chunks */

#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)

/* Bytes from a row of a stage to the next. */
DEVICE int pitch_of(const place &p)
{
    return WHOLE ? p.bytes : PITCH;
}

/* By one thread: copies are ordered by registers that a warp shares. */
DEVICE void produce(const stream_call &s, const place &p, const ring<STAGES> &pipe)
{
    const char *weight = s.weight + p.batch * s.weight_batch + p.begin;
    weight += p.first * 16 * s.weight_row;
    ring_place<STAGES> place = {0, 0};
    for (int unit = 0; unit < p.units; unit++) {
        int rows = min(s.n - (p.first + unit) * 16, 16);
        for (int at = 0; at < p.bytes; at += CHUNK, place.next()) {
            uint32_t bytes = min(p.bytes - at, CHUNK), full = pipe.full(place.stage);
            uint32_t to = p.stages + place.stage * STAGE_BYTES;
            const char *from = weight + at;
            pipe.claim(place, bytes * rows);
            if (WHOLE) {
                bulk_load(to, from, bytes * rows, full);
                continue;
            }
#pragma unroll 4
            for (int r = 0; r < rows; r++, to += PITCH, from += s.weight_row)
                bulk_load(to, from, bytes, full);
        }
        weight += 16 * s.weight_row;
    }
}

/* Where the lane keeps 16 bytes of x in shared memory. */
DEVICE uint32_t x_place(const place &p, int chunk, int i, int word, int o)
{
    int warp = threadIdx.x / 32, piece = (chunk * WARPS + warp) * PIECES + i;
    return p.x + 16 * (((piece * X_WORDS + word) * OCTETS + o) * 32 + lane());
}

typedef uint4 x_part[XSHARED ? 1 : X_KEPT][PIECES][X_WORDS][OCTETS];

/* Sixteen bytes of x for the lane; k is that of the lane's part of a piece. */
DEVICE uint4 read_x16(const stream_call &s, const place &p, int k, int word, int o)
{
    int token = 8 * o + lane() / 4;
    const T *x = (const T *)s.x + p.batch * s.x_batch + token * s.x_row + k;
    return token < s.m && k < (p.begin + p.bytes) / BITS * 8 ? __ldg((const uint4 *)x + word)
                                                             : make_uint4(0, 0, 0, 0);
}

/* The lane's part of x beside `chunks` chunks; `k` is its first. */
template <int Chunks> DEVICE void read_x(const stream_call &s, const place &p, int k, x_part &to)
{
#pragma unroll
    for (int chunk = 0; chunk < Chunks; chunk++)
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int word = 0; word < X_WORDS; word++)
#pragma unroll
                for (int o = 0; o < OCTETS; o++)
                    to[chunk][i][word][o] =
                        read_x16(s, p, k + chunk * CHUNK_K + i * PIECE_K, word, o);
}

template <int Chunks> DEVICE void order_x(x_part &x)
{
#pragma unroll
    for (int i = 0; i < Chunks * PIECES * X_WORDS * OCTETS; i++)
        (&x[0][0][0][0])[i] = in_order((&x[0][0][0][0])[i]);
}

/* Puts the lane's part of x into shared memory, a chunk at a time. */
DEVICE void keep_x(const stream_call &s, const place &p, int k)
{
#pragma unroll 2
    for (int chunk = 0; chunk < HELD; chunk++) {
        x_part x;
        read_x<1>(s, p, k + chunk * CHUNK_K, x);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int word = 0; word < X_WORDS; word++)
#pragma unroll
                for (int o = 0; o < OCTETS; o++)
                    store_shared16(x_place(p, chunk, i, word, o), in_order(x[0][i][word][o]));
    }
}

#if BITS < 16
/* As it is in memory: it is turned into numbers where they are needed, long after. */
struct lane_scale {
    scale_type times;
    uint8_t zero;
};
typedef lane_scale scales[PIECES][2];

/* What scales the lane's rows of a stage; zero beyond the end of k, which what scales the sums of
 * a piece must not be while any of the four lanes that have a row is before it. */
DEVICE void read_scales(const stream_call &s, const place &p, int unit, int k, scales &to)
{
    int end = (p.begin + p.bytes) / BITS * 8 + (AFTER ? lane() % 4 * LANE_K : 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = min((p.first + unit) * 16 + 8 * h + lane() / 4, s.n - 1);
        const scale_type *scale = (const scale_type *)s.scale + (long long)row * s.groups;
        const uint8_t *zero = s.zero + (long long)row * s.groups;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int at = k + i * PIECE_K, group = at >> s.shift;
            to[i][h] = {};
            if (at < end)
                to[i][h].times = scale[group];
            if (BITS == 4 && s.zero && at < end)
                to[i][h].zero = zero[group];
        }
    }
}
#else
typedef int scales[1];
#endif

/* Sixteen rows, of which the lane has two, times 16 bytes of x. */
DEVICE void multiply_word(const uint4 &upper, const uint4 &lower, int word,
                          const uint32_t (&minus)[2], const uint32_t (&times)[2],
                          const uint4 (&x)[OCTETS], float (&sum)[OCTETS][4])
{
    uint32_t top[4], bottom[4];
    codes_of(upper, word, minus[0], top);
    codes_of(lower, word, minus[1], bottom);
    if (BITS < 16 && !AFTER)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            top[i] = pair_fma(top[i], times[0], 0x80008000u);
            bottom[i] = pair_fma(bottom[i], times[1], 0x80008000u);
        }
    uint32_t first[4] = {top[0], bottom[0], top[1], bottom[1]};
    uint32_t second[4] = {top[2], bottom[2], top[3], bottom[3]};
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        multiply_add(sum[o], first, x[o].x, x[o].y, T());
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        multiply_add(sum[o], second, x[o].z, x[o].w, T());
}

typedef float unit_sums[CHAINS][OCTETS][4];

/* What turns the codes of piece i of the lane's rows into weights. */
DEVICE void take_scale(const stream_call &s, const scales &scale, int i, uint32_t (&minus)[2],
                       uint32_t (&times)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        minus[h] = times[h] = 0;
#if BITS < 16
        if (BITS == 4)
            minus[h] = pair_of(-(MAGIC_VALUE + (float)(s.zero ? scale[i][h].zero : 8)));
        if (!AFTER)
            times[h] = pair_of(convert<float>(scale[i][h].times));
#endif
    }
}

/* Piece i of the lane's rows, times x; `kept` is the chunk of x that goes with it. */
DEVICE void multiply_piece(const stream_call &s, const place &p, const uint4 &upper,
                           const uint4 &lower, const x_part &x, int kept, int i,
                           const scales &scale, float (&sum)[OCTETS][4])
{
    uint32_t minus[2], times[2];
    float part[OCTETS][4] = {};
    take_scale(s, scale, i, minus, times);
#pragma unroll
    for (int word = 0; word < X_WORDS; word++) {
        uint4 values[OCTETS];
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
            values[o] = XSHARED && HELD ? load_shared16(x_place(p, kept, i, word, o))
                                        : x[kept][i][word][o];
        multiply_word(upper, lower, word, minus, times, values, BITS < 16 && AFTER ? part : sum);
    }
#if BITS < 16 && AFTER
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int l = 0; l < 4; l++)
            sum[o][l] += convert<float>(scale[i][l / 2].times) * part[o][l];
#endif
}

DEVICE void multiply_stage(const stream_call &s, const place &p, uint32_t from, int k,
                           const x_part &x, int kept, const scales &scale, unit_sums &sum)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        uint4 upper = load_shared16(from + 64 * i);
        uint4 lower = load_shared16(from + 8 * pitch_of(p) + 64 * i);
        if (BITS == 16 && k + i * PIECE_K >= (p.begin + p.bytes) / BITS * 8)
            upper = lower = make_uint4(0, 0, 0, 0);
        multiply_piece(s, p, upper, lower, x, kept, i, scale, sum[i % CHAINS]);
    }
}

/* Adds what the warps have of a unit and writes it or sends it to its owner. */
DEVICE void finish_unit(const stream_call &s, const place &p, int unit, uint32_t sums,
                        const unit_sums &sum)
{
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int l = 0; l < 4; l++) {
            int token = 8 * o + lane() % 4 * 2 + l % 2, row = lane() / 4 + l / 2 * 8;
            float v = sum[0][o][l] + (CHAINS > 1 ? sum[CHAINS - 1][o][l] : 0);
            store_shared4(sums + 4 * (threadIdx.x / 32 * SUMS + token * SUM_PITCH + row),
                          __float_as_uint(v));
        }
    meet(1, 32 * WARPS);
#pragma unroll 1
    for (int i = threadIdx.x; i < 4 * s.m; i += 32 * WARPS) {
        float total[4] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            uint4 v = load_shared16(sums + 4 * (w * SUMS + i / 4 * SUM_PITCH + i % 4 * 4));
            total[0] += __uint_as_float(v.x), total[1] += __uint_as_float(v.y);
            total[2] += __uint_as_float(v.z), total[3] += __uint_as_float(v.w);
        }
        if (!ALONE)
            send_quad(s, p, unit, i / 4, i % 4, total);
        else
#pragma unroll
            for (int l = 0; l < 4; l++)
                write_one(s, p, i / 4, (p.first + unit) * 16 + i % 4 * 4 + l, total[l]);
    }
    if (TURNS == 1)
        meet(1, 32 * WARPS);
}

/* The state of a warp in its loop over stages. */
struct worker {
    ring_place<STAGES> place;
    uint32_t from; /* of the lane, in the first stage */
    int k0;        /* the lane's first */
    scales next;
};

/* A chunk of a unit. */
DEVICE void take_stage(const stream_call &s, const place &p, const ring<STAGES> &pipe, int unit,
                       int chunk, int kept, const x_part &x, worker &me, unit_sums &sum)
{
    int k = me.k0 + chunk * CHUNK_K;
#if BITS < 16
    scales now;
    bool last = (chunk + 1) * CHUNK >= p.bytes;
#pragma unroll
    for (int i = 0; i < 2 * PIECES; i++)
        (&now[0][0])[i] = (&me.next[0][0])[i];
    read_scales(s, p, last ? unit + 1 : unit, last ? me.k0 : k + CHUNK_K, me.next);
#else
    const scales &now = me.next;
#endif
    pipe.wait_full(me.place);
    multiply_stage(s, p, me.from + me.place.stage * STAGE_BYTES, k, x, kept, now, sum);
    __syncwarp();
    pipe.release<1>(me.place.stage);
    me.place.next();
}

DEVICE void consume(const stream_call &s, const place &p, const ring<STAGES> &pipe)
{
    int inside = threadIdx.x / 32 * WARP_BYTES + lane() % 4 * 16;
    worker me = {{0, 0},
                 p.stages + lane() / 4 * pitch_of(p) + inside,
                 (p.begin + inside) / BITS * 8};
    x_part x;
    if (HELD && !XSHARED)
        read_x<X_KEPT>(s, p, me.k0, x);
#if BITS < 16
    read_scales(s, p, 0, me.k0, me.next);
#endif
    if (HELD && XSHARED)
        keep_x(s, p, me.k0);
    else if (HELD)
        order_x<X_KEPT>(x);
    for (int unit = 0; unit < p.units; unit++) {
        unit_sums sum = {};
        if (HELD && !XSHARED) {
#pragma unroll
            for (int chunk = 0; chunk < HELD; chunk++)
                if (chunk * CHUNK < p.bytes)
                    take_stage(s, p, pipe, unit, chunk, chunk, x, me, sum);
        } else {
#pragma unroll 1
            for (int chunk = 0; chunk * CHUNK < p.bytes; chunk++) {
                if (!HELD) {
                    read_x<1>(s, p, me.k0 + chunk * CHUNK_K, x);
                    order_x<1>(x);
                }
                take_stage(s, p, pipe, unit, chunk, HELD ? chunk : 0, x, me, sum);
            }
        }
        if (!ALONE && unit == 0)
            wait_for_cluster(p);
        finish_unit(s, p, unit, p.sums + unit % TURNS * WARPS * SUMS * 4, sum);
    }
    if (!ALONE)
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
    p.inbox = p.x + XSHARED * HELD * WARPS * PIECES * X_WORDS * OCTETS * 512;
    take_place(s, p);
    ring<STAGES> pipe = {p.stages + STAGES * STAGE_BYTES};
    stream<STAGES>(
        s, p, pipe, [] {}, [&] { produce(s, p, pipe); }, [&] { consume(s, p, pipe); });
#endif
}
