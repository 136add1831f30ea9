/* A few rows times weights that lie along n on Hopper, at the speed at which weights can be read:
 * y [m,n] = activation(x w + bias), w [k,n], m <= 8 OCTETS.
 *
 * As weight_only_stream.cu: a cluster has some units of 16 columns of w, and each of its blocks
 * a part of k. One thread orders copies of 64 lines of k by 128 columns into a ring of STAGES.
 * Of a stage, each of eight warps multiplies 16 lines by 64 columns, against rows of x in shared
 * memory. */
/* Knobs: OCTETS, STAGES. */
#define BITS 16
#define WARPS 8
#include "packed.cuh"
#include "pipe.cuh"
#include "stream.cuh"

#define THREADS (32 * WARPS + 32)
#define TOKENS (8 * OCTETS)
#define STAGE_K 64
#define TILES 8 /* of 16 columns */
#define PANEL (STAGE_K * 128)
#define STAGE_BYTES (2 * PANEL)
#define SUM_PITCH 68
#define SUMS (TOKENS * SUM_PITCH) /* of a warp */

#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)

DEVICE void bring(const tensor_map &w, const place &p, uint32_t to, int column, int line,
                  uint32_t full)
{
    box at = {{column, line, (int)p.batch}};
    tma_load<3>(w, to, at, full, TMA_EVICT_FIRST);
}

/* By one thread. Every block orders the same number of bytes for a stage, also beyond the edges,
 * where they come as zeros. */
DEVICE void produce(const tensor_map &w, const place &p, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    for (int unit = 0; unit < p.units; unit += TILES)
        for (int at = 0; at < p.bytes; at += STAGE_K, place.next()) {
            uint32_t full = pipe.full(place.stage), to = p.stages + place.stage * STAGE_BYTES;
            int column = (p.first + unit) * 16;
            bool both = unit + TILES / 2 < p.units;
            pipe.claim(place, both ? STAGE_BYTES : PANEL);
            bring(w, p, to, column, p.begin + at, full);
            if (both)
                bring(w, p, to + PANEL, column + 64, p.begin + at, full);
        }
}

/* Distance of rows of x in shared memory: eight of them, read side by side, lie in all banks. */
DEVICE int x_pitch(const stream_call &s)
{
    return 2 * s.part + 16;
}

/* Brings the block's part of x, with zeros beyond its edges. */
DEVICE void read_x(const stream_call &s, const place &p)
{
    const T *x = (const T *)s.x + p.batch * s.x_batch + p.begin;
    int row_words = s.part / 8;
    for (int token = threadIdx.x / 32; token < TOKENS; token += WARPS)
        for (int i = lane(); i < row_words; i += 32) {
            bool valid = token < s.m && 8 * i < p.bytes;
            copy_async16(p.x + token * x_pitch(s) + 16 * i,
                         valid ? x + token * s.x_row + 8 * i : (const T *)s.x, valid);
        }
    copies_end();
    copies_wait<0>();
    meet(1, 32 * WARPS);
}

typedef float stage_sums[TILES / 2][OCTETS][4];

/* The warp's 16 lines, from `at` of the block's part of k on, of half of the columns. */
DEVICE void multiply_stage(const stream_call &s, const place &p, uint32_t stage, int at,
                           stage_sums &sum)
{
    int warp = threadIdx.x / 32, i = lane(), line = warp % 4 * 16 + i / 16 * 8 + i % 8;
    uint32_t x[OCTETS][4];
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
        load_matrices(x[o], p.x + (8 * o + i % 8) * x_pitch(s) +
                                2 * (at + warp % 4 * 16 + i / 8 % 2 * 8));
#pragma unroll
    for (int t = 0; t < TILES / 2; t++) {
        uint32_t a[4];
        int chunk = 2 * t + i / 8 % 2;
        load_matrices_turned(a, stage + warp / 4 * PANEL + line * 128 + (chunk ^ (line & 7)) * 16);
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
            multiply_add(sum[t][o], a, x[o][0], x[o][1], T());
    }
}

/* Adds what the warps have of a pass and sends it to the owners. */
DEVICE void send_sums(const stream_call &s, const place &p, int unit, const stage_sums &sum)
{
#pragma unroll
    for (int t = 0; t < TILES / 2; t++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int token = 8 * o + lane() % 4 * 2 + l % 2, row = 16 * t + lane() / 4 + l / 2 * 8;
                store_shared4(p.sums + 4 * (threadIdx.x / 32 * SUMS + token * SUM_PITCH + row),
                              __float_as_uint(sum[t][o][l]));
            }
    meet(1, 32 * WARPS);
#pragma unroll 1
    for (int i = threadIdx.x; i < 4 * TILES * s.m; i += 32 * WARPS) {
        int token = i / (4 * TILES), quad = i % (4 * TILES), mine = unit + quad / 4;
        if (mine >= p.units)
            continue;
        float total[4] = {};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint4 v = load_shared16(p.sums + 4 * ((quad / 16 * 4 + w) * SUMS + token * SUM_PITCH +
                                                  quad % 16 * 4));
            total[0] += __uint_as_float(v.x), total[1] += __uint_as_float(v.y);
            total[2] += __uint_as_float(v.z), total[3] += __uint_as_float(v.w);
        }
        send_quad(s, p, mine, token, quad % 4, total);
    }
    meet(1, 32 * WARPS);
}

DEVICE void consume(const stream_call &s, const place &p, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    read_x(s, p);
    for (int unit = 0; unit < p.units; unit += TILES) {
        stage_sums sum = {};
        bool mine = threadIdx.x / 128 == 0 || unit + TILES / 2 < p.units;
        for (int at = 0; at < p.bytes; at += STAGE_K, place.next()) {
            pipe.wait_full(place);
            if (mine)
                multiply_stage(s, p, p.stages + place.stage * STAGE_BYTES, at, sum);
            __syncwarp();
            pipe.release<1>(place.stage);
        }
        if (unit == 0)
            wait_for_cluster(p);
        send_sums(s, p, unit, sum);
    }
    write_owned(s, p);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_stream(const __grid_constant__ tensor_map w, const __grid_constant__ stream_call s)
{
#if __CUDA_ARCH__ >= 900 && (CUP_T == CUP_F16 || CUP_T == CUP_BF16)
    extern __shared__ __align__(1024) char shared[];
    place p;
    p.stages = shared_address(shared);
    p.joint = p.stages + STAGES * (STAGE_BYTES + 16);
    p.sums = p.joint + 16;
    p.x = p.sums + WARPS * SUMS * 4;
    p.inbox = p.x + TOKENS * (2 * s.part + 16);
    take_place(s, p);
    ring<STAGES> pipe = {p.stages + STAGES * STAGE_BYTES};
    stream<STAGES>(
        s, p, pipe, [&] { tma_prefetch_map(w); }, [&] { produce(w, p, pipe); },
        [&] { consume(s, p, pipe); });
#endif
}
