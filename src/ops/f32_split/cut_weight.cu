/* The gradient of a convolution's weight, of f32 that is cut into parts of bf16 on its way to the
 * tensor cores of Hopper: dw = dy x under each tap, summed over places. x and dy are read once for
 * each tile of results and columns, and nothing is written but sums.
 *
 * A block has TILE_M results by TILE_N columns, taps and their channels, and a share of the places,
 * STEP at a time. One thread orders copies by TMA into a ring of STAGES; two warpgroups cut what
 * came into PLANES planes while the products of the step before run: the leading 8 bits of each
 * number, the next 8, the last 8, so that three planes lose nothing. PLANES 2: three products, for
 * f32 that may be rounded; 3: six, the leading ones of each step added up outside of the tensor
 * cores, which cut sums off. What is not finite is what the leading planes say.
 *
 * 2 places results columns operations for each product. */
#include "product.cuh"

/* Knobs: PLANES; TILE_M, 64 or 128, and WIDTH, 64 or 128 columns of a warpgroup; TURNED, whether
 * the image is on the side of TILE_M; STAGES. CUP_T is that of the planes. */
#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#include "wgmma_call.cuh"
#include "split_scale.cuh"

#define STEP CUT_WEIGHT_STEP
#define TILE_K 32               /* channels of f32 in a line of 128 bytes */
#define TILE_N (TILE_M == 64 ? 2 * WIDTH : WIDTH) /* 64 x WIDTH for each warpgroup */
#define PANEL (STEP * 128)      /* bytes of 32 columns of f32, or of 64 of a plane */
#define PAIRS ((TILE_M + TILE_N) / 64)
#define STAGE_BYTES (2 * PAIRS * PANEL)
#define PLANE_BYTES (PAIRS * PANEL)
#define CONSUMERS 2
#define THREADS (128 * (CONSUMERS + 1))
#define SUMS (WIDTH / 2)
#define ALONG PRODUCT_ALONG_MN
#define TILE_RESULTS (TURNED ? TILE_N : TILE_M)
#define TILE_TAPS (TURNED ? TILE_M : TILE_N) /* columns */

#include "wgmma_places.cuh"
#include "cut_weight.cuh"

#if CUP_HAS_WGMMA

/* The results, columns of taps and channels, and steps of a block. */
struct share {
    int result, column, first, end, part;
};

DEVICE share share_of(const cut_weight &c)
{
    unsigned rest = blockIdx.x;
    int row = (int)split(&rest, c.tiles_m), column = (int)split(&rest, c.tiles_n);
    int part = (int)rest, first = part * c.part;
    int left = row * TILE_M, right = column * TILE_N, end = min(first + c.part, c.steps);
    return {TURNED ? right : left, TURNED ? left : right, first, end, part};
}

/* The one thread that orders all copies. */
DEVICE void produce(const cut_weight &c, const tensor_map &dy, const tensor_map &image,
                    uint32_t stages, const ring<STAGES> &pipe)
{
    ring_place<STAGES> place = {0, 0};
    share mine = share_of(c);
    tap_place tap[TILE_TAPS / CHUNK];
#pragma unroll
    for (int j = 0; j < TILE_TAPS / CHUNK; j++)
        tap[j].find(c.walk, mine.column / CHUNK + j);
    for (int t = mine.first; t < mine.end; t++, place.next()) {
        pipe.claim(place, STAGE_BYTES);
        uint32_t left = stages + place.stage * STAGE_BYTES, right = left + TILE_M / CHUNK * PANEL;
        uint32_t full = pipe.full(place.stage);
#pragma unroll
        for (int i = 0; i < TILE_RESULTS / CHUNK; i++)
            tma_load<2>(dy, (TURNED ? right : left) + i * PANEL,
                        {{mine.result + i * CHUNK, t * STEP, 0, 0}}, full, TMA_EVICT_NORMAL);
        box first = place_of(c.walk, t * STEP);
#pragma unroll
        for (int j = 0; j < TILE_TAPS / CHUNK; j++) {
            first.at[0] = tap[j].chunk * CHUNK;
            tma_load_places(image, (TURNED ? left : right) + j * PANEL, first,
                            tap[j].column * c.walk.tap_step[1], tap[j].row * c.walk.tap_step[0],
                            full, TMA_EVICT_NORMAL);
        }
    }
}

/* Takes the leading 8 bits off two numbers. */
DEVICE uint32_t take(float &a, float &b)
{
    uint32_t x = __float_as_uint(a), y = __float_as_uint(b);
    a -= __uint_as_float(x & 0xffff0000);
    b -= __uint_as_float(y & 0xffff0000);
    return __byte_perm(x, y, 0x7632);
}

#define LINES (STEP / 16) /* of a pair of panels that a thread has a part of */

/* Four neighbours of each of a thread's lines of a pair of panels; 16 threads have a line. */
DEVICE void read_pair(uint32_t stage, int pair, uint4 (&words)[LINES])
{
    const int thread = (int)threadIdx.x - 128, at = thread % 16, line = thread / 16;
#pragma unroll
    for (int i = 0; i < LINES; i++)
        words[i] = load_shared16(stage + (2 * pair + at / 8) * PANEL + (line + 16 * i) * 128 +
                                 ((at % 8 ^ (line & 7)) << 4));
}

/* The same become planes. */
DEVICE void put_pair(uint32_t planes, int pair, const uint4 (&words)[LINES])
{
    const int thread = (int)threadIdx.x - 128, at = thread % 16, line = thread / 16;
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        uint32_t to = planes + pair * PANEL + (line + 16 * l) * 128 +
                      ((at / 2 ^ (line & 7)) << 4) + at % 2 * 8;
        float v[4] = {__uint_as_float(words[l].x), __uint_as_float(words[l].y),
                      __uint_as_float(words[l].z), __uint_as_float(words[l].w)};
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = __fadd_rn(v[i], -0.0f); /* NaN has its leading bits set then */
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++, to += PLANE_BYTES) {
            bool last = plane == PLANES - 1;
            uint32_t a = last ? pack(v[0], v[1], T()) : take(v[0], v[1]);
            uint32_t b = last ? pack(v[2], v[3], T()) : take(v[2], v[3]);
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
        }
    }
}

/* A stage becomes planes; what comes next is read meanwhile. */
DEVICE void cut(uint32_t stage, uint32_t planes)
{
    uint4 words[2][LINES];
    read_pair(stage, 0, words[0]);
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        if (pair + 1 < PAIRS)
            read_pair(stage, pair + 1, words[(pair + 1) % 2]);
        put_pair(planes, pair, words[pair % 2]);
    }
}

/* Step t, which comes next, to the one of two buffers that is not read meanwhile. */
DEVICE void cut_next(uint32_t stages, uint32_t planes, int t, const ring<STAGES> &pipe,
                     ring_place<STAGES> &place)
{
    pipe.wait_full(place);
    cut(stages + place.stage * STAGE_BYTES, planes + (t & 1) * PLANES * PLANE_BYTES);
    publish_shared();
    __syncwarp();
    pipe.release<1>(place.stage);
    place.next();
}

/* Plane i of dy times plane j of the image. */
DEVICE void multiply(float (&sum)[SUMS], uint64_t dy, uint64_t image, int i, int j, bool add)
{
#pragma unroll
    for (int step = 0; step < STEP / 16; step++)
        wgmma<WIDTH>::run<ALONG, ALONG>(
            sum, dy + (uint64_t)(i * (PLANE_BYTES >> 4)) + wgmma_step(ALONG, step),
            image + (uint64_t)(j * (PLANE_BYTES >> 4)) + wgmma_step(ALONG, step),
            add || step > 0);
}

struct sums {
    float leading[SUMS], rest[SUMS];
};

/* What a step adds, smaller products first; `now` are its leading ones where those are added
 * outside. */
DEVICE void begin_step(sums &s, float (&now)[SUMS], uint64_t dy, uint64_t image, bool add)
{
    wgmma_fence();
#if PLANES == 3
    multiply(now, dy, image, 0, 0, false);
    multiply(s.rest, dy, image, 2, 0, add);
    multiply(s.rest, dy, image, 0, 2, true);
    multiply(s.rest, dy, image, 1, 1, true);
    multiply(s.rest, dy, image, 1, 0, true);
    multiply(s.rest, dy, image, 0, 1, true);
#else
    multiply(s.leading, dy, image, 0, 0, add);
    multiply(s.rest, dy, image, 1, 0, add);
    multiply(s.rest, dy, image, 0, 1, true);
#endif
    wgmma_commit();
}

DEVICE void end_step(sums &s, float (&now)[SUMS], bool add)
{
    wgmma_wait<0>();
    wgmma_hold(s.rest);
#if PLANES == 3
    wgmma_hold(now);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        s.leading[i] = now[i] + (add ? s.leading[i] : 0);
#else
    wgmma_hold(s.leading);
#endif
}

/* The sums go to their part: by result, tap and channel. */
DEVICE void put_sums(const cut_weight &c, const share &mine, int group, const sums &s)
{
    const int thread = (int)threadIdx.x % 128;
    int left = (TILE_M == 128 ? group * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
    int right = (TILE_M == 128 ? 0 : group * WIDTH) + thread % 4 * 2;
    float *to = c.sums + (long long)mine.part * c.m * c.n;
#pragma unroll
    for (int i = 0; i < SUMS; i += 2) {
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            v[k] = is_finite(s.leading[i + k]) ? s.leading[i + k] + s.rest[i + k]
                                               : s.leading[i + k];
        int here = left + i / 2 % 2 * 8, there = right + i / 4 * 8;
        int result = mine.result + (TURNED ? there : here);
        int column = mine.column + (TURNED ? here : there);
        float *at = to + (long long)result * c.n + column;
        if (result >= c.m || column >= c.n)
            continue;
        if (TURNED) {
            at[0] = v[0];
            if (result + 1 < c.m)
                at[c.n] = v[1];
        } else {
            *(float2 *)at = make_float2(v[0], v[1]);
        }
    }
}

DEVICE void consume(const cut_weight &c, uint32_t stages, uint32_t planes,
                    const ring<STAGES> &pipe)
{
    int group = __shfl_sync(0xffffffff, (int)threadIdx.x / 128 - 1, 0);
    const int panel_m = TILE_M == 128 ? group : 0;
    const int panel_n = TILE_M == 128 ? 0 : WIDTH / 64 * group;
    uint64_t dy = wgmma_describe(planes + panel_m * PANEL, ALONG, PANEL);
    uint64_t image = wgmma_describe(planes + (TILE_M / 64 + panel_n) * PANEL, ALONG, PANEL);
    ring_place<STAGES> place = {0, 0};
    share mine = share_of(c);
    sums s;
    float now[SUMS];
    cut_next(stages, planes, mine.first, pipe, place);
    meet(1, 128 * CONSUMERS);
#pragma unroll 1
    for (int t = mine.first; t < mine.end; t++) {
        uint64_t buffer = (uint64_t)((t & 1) * (PLANES * PLANE_BYTES >> 4));
        begin_step(s, now, dy + buffer, image + buffer, t > mine.first);
        if (t + 1 < mine.end)
            cut_next(stages, planes, t + 1, pipe, place);
        end_step(s, now, t > mine.first);
        meet(1, 128 * CONSUMERS);
    }
    put_sums(c, mine, group, s);
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    cut_weight_sm90(const __grid_constant__ tensor_map dy, const __grid_constant__ tensor_map image,
                    const __grid_constant__ cut_weight c)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) char shared[];
    uint32_t stages = shared_address(shared), planes = stages + STAGES * STAGE_BYTES;
    ring<STAGES> pipe = {planes + 2 * PLANES * PLANE_BYTES};
    if (stages % 1024)
        __trap();
    if (threadIdx.x == 0) {
        tma_prefetch_map(dy);
        tma_prefetch_map(image);
        pipe.init(4 * CONSUMERS);
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x < 128) {
        registers_give<56>();
        if (threadIdx.x < 32 && elected())
            produce(c, dy, image, stages, pipe);
    } else {
        registers_take<224>();
        consume(c, stages, planes, pipe);
    }
#endif
}
