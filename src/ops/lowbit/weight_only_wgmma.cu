/* Products of many rows with weights of 8 or 4 BITS on Hopper: y [m,n] = x w^T + bias.
 *
 * A tile is 128 rows of w by TOKENS rows of x. One thread orders copies of 64 of k at a time, of x
 * and of the codes of w, into a ring of STAGES. Two warpgroups turn the codes of 64 rows each into
 * weights in registers while the tensor cores work on those before, and multiply them with x out of
 * shared memory: the sums are y turned, and are turned back on their way to memory. A cluster of
 * blocks can share k: each of them adds up some of the columns, which the others send. */
/* Knobs: TOKENS, STAGES. */
#ifndef PARTS /* of k, the blocks of a cluster */
#define PARTS 1
#endif
#include "packed.cuh"
#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#define TILE_ROWS 128
#define STAGE_K 64
#define CODE_BYTES (STAGE_K * BITS / 8) /* of a row */
#define X_STAGE (TOKENS * STAGE_K * 2)
#define STAGE_BYTES (X_STAGE + TILE_ROWS * CODE_BYTES)
#define TURN_TOKENS 64 /* that are turned at a time */
#define TURN_BYTES (TURN_TOKENS * 128)
#define OWN_TOKENS (TOKENS / PARTS)

#if CUP_HAS_WGMMA && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)

typedef float sums[TOKENS / 2];

/* What the block works on: stages of k, a tile's first row of w and first row of x. */
struct place {
    int begin, end;
    long long row, token;
};

DEVICE place place_of(const codes_call &c, long long tile)
{
    place p;
    int rank = PARTS > 1 ? cluster_rank() : 0;
    p.begin = rank * c.part_stages;
    p.end = min(c.stages, p.begin + c.part_stages);
    long long tile_row, tile_token;
    tile_place(tile, c.tiles_n, c.tiles_m, &tile_row, &tile_token);
    p.row = tile_row * TILE_ROWS;
    p.token = tile_token * TOKENS;
    return p;
}

DEVICE void produce(const codes_call &c, const tensor_map &x, const tensor_map &w,
                    const ring<STAGES> &pipe, uint32_t stages)
{
    ring_place<STAGES> at = {0, 0};
    for (long long tile = blockIdx.x / PARTS; tile < c.tiles; tile += gridDim.x / PARTS) {
        place p = place_of(c, tile);
        for (int i = p.begin; i < p.end; i++, at.next()) {
            uint32_t stage = stages + at.stage * STAGE_BYTES, full = pipe.full(at.stage);
            pipe.claim(at, STAGE_BYTES);
            box codes = {{i * CODE_BYTES, (int)p.row}}, values = {{i * STAGE_K, (int)p.token}};
            tma_load<2>(w, stage + X_STAGE, codes, full, TMA_EVICT_NORMAL);
            tma_load<2>(x, stage, values, full, TMA_EVICT_NORMAL);
        }
    }
}

/* What turns the codes of the lane's rows, 8 apart, into weights. `next` is that of the next group
 * as it is in memory. */
struct row_scales {
    const scale_type *scale[2];
    const uint8_t *zero[2];
    scale_type next[2];
    uint8_t next_zero[2];
    uint32_t times[2], minus[2];
    int group, left; /* left: stages of the group that are still to come */
};

DEVICE void read_group(const codes_call &c, row_scales &r)
{
    if (r.group >= c.groups)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.next[h] = r.scale[h][r.group];
        if (BITS == 4 && c.zero)
            r.next_zero[h] = r.zero[h][r.group];
    }
}

/* Before a stage: goes on to the next group where one ends. */
DEVICE void next_scales(const codes_call &c, row_scales &r)
{
    if (r.left-- > 0)
        return;
    r.left = c.group_stages - 1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.times[h] = pair_of(convert<float>(r.next[h]));
        if (BITS == 4)
            r.minus[h] = pair_of(-(MAGIC_VALUE + (float)(c.zero ? r.next_zero[h] : 8)));
    }
    r.group++;
    read_group(c, r);
}

DEVICE void begin_scales(const codes_call &c, long long row, int stage, row_scales &r)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        long long at = min(row + 8 * h, c.n - 1) * c.groups;
        r.scale[h] = (const scale_type *)c.scale + at;
        r.zero[h] = c.zero + at;
    }
    r.group = stage / c.group_stages;
    r.left = 0;
    read_group(c, r);
    next_scales(c, r);
    r.left = c.group_stages - stage % c.group_stages;
}

DEVICE uint32_t load_code(uint32_t from)
{
    uint32_t v;
#if BITS == 8
    uint16_t code;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(code) : "r"(from) : "memory");
    v = code;
    return __byte_perm(v, 0, 0x4140);
#else
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v + (v << 12);
#endif
}

/* The weights of a stage as the tensor cores take them: of each 16 of k, pairs 2t and 2t + 8. */
DEVICE void read_weights(uint32_t codes_at, int row, const row_scales &scale, uint32_t (&a)[4][4])
{
    int t = lane() % 4;
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int h = i % 2, far = i / 2, r = row + 8 * h;
#if BITS == 8
            uint32_t from = codes_at + r * 64 + (step ^ (r >> 1 & 3)) * 16 + 2 * t + 8 * far;
            uint32_t v = byte_pair(load_code(from));
#else
            uint32_t from = codes_at + r * 32 + (step / 2 ^ (r >> 2 & 1)) * 16 + step % 2 * 8 + t +
                            4 * far;
            uint32_t v = pair_fma(masked(load_code(from), 0x000f000fu, MAGIC), pair_of(1.0f),
                                  scale.minus[h]);
#endif
            a[step][i] = pair_fma(v, scale.times[h], 0x80008000u);
        }
}

/* The state of a warpgroup in its loop over k. */
struct crew {
    ring_place<STAGES> at; /* of the stage whose weights are made next */
    int row; /* the lane's first, within the tile */
    row_scales scale;
};

/* Makes the weights of the next stage; returns where it is. */
DEVICE uint32_t make_weights(const codes_call &c, const ring<STAGES> &pipe,
                             uint32_t stages, crew &me, uint32_t (&a)[4][4])
{
    next_scales(c, me.scale);
    pipe.wait_full(me.at);
    uint32_t stage = stages + me.at.stage * STAGE_BYTES;
    read_weights(stage + X_STAGE, me.row, me.scale, a);
    me.at.next();
    return stage;
}

DEVICE void multiply(uint32_t stage, const uint32_t (&a)[4][4], bool add, sums &d)
{
    uint64_t b = wgmma_describe(stage, PRODUCT_ALONG_K, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma<TOKENS>::run_registers<PRODUCT_ALONG_K>(
            d, a[step], b + wgmma_step(PRODUCT_ALONG_K, step), add || step > 0);
    wgmma_commit();
}

DEVICE void let_go(const ring<STAGES> &pipe, uint32_t stages, uint32_t stage)
{
    wgmma_wait<0>();
    pipe.release<1>((stage - stages) / STAGE_BYTES);
}

/* The sums over this block's part of k. While products run, the weights of the next stage are
 * made. */
DEVICE void multiply_all(const codes_call &c, const place &p, const ring<STAGES> &pipe,
                         uint32_t stages, crew &me, sums &d)
{
    uint32_t a[4][4], b[4][4];
    begin_scales(c, p.row + me.row, p.begin, me.scale);
    uint32_t stage_a = make_weights(c, pipe, stages, me, a), stage_b = 0;
    for (int i = p.begin; i < p.end; i += 2) {
        bool more = i + 1 < p.end;
        multiply(stage_a, a, i > p.begin, d);
        if (more)
            stage_b = make_weights(c, pipe, stages, me, b);
        let_go(pipe, stages, stage_a);
        if (!more)
            break;
        multiply(stage_b, b, true, d);
        if (i + 2 < p.end)
            stage_a = make_weights(c, pipe, stages, me, a);
        let_go(pipe, stages, stage_b);
    }
    wgmma_hold(d);
}

/* Sends the columns of other blocks to them, and adds up those of this one. */
DEVICE void add_parts(uint32_t inbox, uint32_t joint, sums &d)
{
    int rank = (int)cluster_rank();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        int owner = j / (OWN_TOKENS / 8), place = rank * (OWN_TOKENS / 8) + j % (OWN_TOKENS / 8);
        uint32_t words[4] = {__float_as_uint(d[4 * j]), __float_as_uint(d[4 * j + 1]),
                             __float_as_uint(d[4 * j + 2]), __float_as_uint(d[4 * j + 3])};
        send16(inbox + 16 * (place * 256 + threadIdx.x), joint, owner, words);
    }
    barrier_wait(joint, 0);
#pragma unroll
    for (int j = 0; j < OWN_TOKENS / 8; j++) {
        float total[4] = {};
#pragma unroll
        for (int block = 0; block < PARTS; block++) {
            uint4 v = load_shared16(inbox +
                                    16 * ((block * (OWN_TOKENS / 8) + j) * 256 + threadIdx.x));
            total[0] += __uint_as_float(v.x), total[1] += __uint_as_float(v.y);
            total[2] += __uint_as_float(v.z), total[3] += __uint_as_float(v.w);
        }
#pragma unroll
        for (int l = 0; l < 4; l++)
            d[4 * j + l] = total[l];
    }
}

/* Up to eight neighbours of a row of y. */
DEVICE void write16(const codes_call &c, long long token, long long row, const uint4 &v)
{
    if (token >= c.m || row >= c.n)
        return;
    T *to = (T *)c.y + token * c.n + row;
    if (c.n % 8 == 0) {
        *(uint4 *)to = v;
        return;
    }
    const T *from = (const T *)&v;
    for (int i = 0; i < 8 && row + i < c.n; i++)
        to[i] = from[i];
}

/* Turns the sums, some columns at a time, and writes them. `first` is the block's first column. */
DEVICE void finish(const codes_call &c, const place &p, int first, uint32_t turn, int row, sums &d)
{
    int group = threadIdx.x / 128, thread = threadIdx.x % 128, i = lane();
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        long long at = p.row + row + 8 * h;
        bias[h] = c.bias && at < c.n ? to_real(((const T *)c.bias)[at]) : 0;
    }
    const int columns = OWN_TOKENS < TURN_TOKENS ? OWN_TOKENS : TURN_TOKENS;
#pragma unroll
    for (int begin = 0; begin < OWN_TOKENS; begin += columns) {
        meet(1 + group, 128);
#pragma unroll
        for (int j = 0; j < columns / 8; j += 2) {
            uint32_t r[4];
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int at = 4 * (begin / 8 + j + l / 2) + l % 2 * 2;
                r[l] = pack(d[at] + bias[l % 2], d[at + 1] + bias[l % 2], T());
            }
            int token = 8 * (j + i / 16) + i % 8, chunk = thread / 32 * 2 + i / 8 % 2;
            store_matrices_turned(turn + token * 128 + (chunk ^ (token & 7)) * 16, r);
        }
        meet(1 + group, 128);
        for (int at = thread; at < columns * 8; at += 128) {
            int token = at / 8, chunk = at % 8;
            write16(c, p.token + first + begin + token, p.row + group * 64 + chunk * 8,
                    load_shared16(turn + token * 128 + (chunk ^ (token & 7)) * 16));
        }
    }
}

DEVICE void consume(const codes_call &c, const ring<STAGES> &pipe, uint32_t stages, uint32_t turn,
                    uint32_t joint)
{
    crew me = {{0, 0}, (int)threadIdx.x / 32 * 16 + lane() / 4, {}};
    for (long long tile = blockIdx.x / PARTS; tile < c.tiles; tile += gridDim.x / PARTS) {
        place p = place_of(c, tile);
        sums d;
        multiply_all(c, p, pipe, stages, me, d);
        if (PARTS > 1)
            add_parts(stages, joint, d);
        finish(c, p, PARTS > 1 ? cluster_rank() * OWN_TOKENS : 0,
               turn + threadIdx.x / 128 * TURN_BYTES, me.row, d);
        if (PARTS > 1)
            break;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(384, 1)
    linear_codes(const __grid_constant__ tensor_map x, const __grid_constant__ tensor_map w,
                 const __grid_constant__ codes_call c)
{
#if CUP_HAS_WGMMA && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = shared_address(shared), turn = stages + STAGES * STAGE_BYTES;
    uint32_t joint = turn + 2 * TURN_BYTES;
    ring<STAGES> pipe = {joint + 16};
    if (threadIdx.x == 0) {
        barrier_init(joint, 1);
        pipe.init(8);
        if (PARTS > 1)
            barrier_expect(joint, TOKENS * 512);
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        registers_give<40>();
        if (threadIdx.x == 256)
            produce(c, x, w, pipe, stages);
        if (PARTS > 1) {
            asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
            asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
        }
    } else {
        registers_take<232>();
        consume(c, pipe, stages, turn, joint);
    }
#endif
}
