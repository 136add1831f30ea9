/* A handful of rows times weights of few bits: y [m,n] = activation(x w^T + bias), where reading w
 * [n,k] is most of what it costs. BITS 16: w is of x's type. 8 and 4: w = scale (number - zero), a
 * scale for each group of a row; the numbers become 16-bit floats on their way to the tensor cores.
 *
 * linear_packed: 16-bit x. A block of 8 warps takes 16 TILES rows of w and up to TOKENS rows of x
 * (blockIdx.z counts those). The warps take runs of 256 bytes of rows in turn, each lane 16 bytes
 * of a row at a time, copied ahead into a ring of STAGES in shared memory that only the lane itself
 * reads. As the order of k is free, the bytes serve as they come, if x is read in the same order.
 * blockIdx.y counts the parts k is cut into; the part that comes last adds all, in order.
 * linear_packed_plain: any floats, a warp a row of w. */
#ifndef CUP_T
#define CUP_T 3
#endif
#include "packed_call.cuh"
#include "product.cuh"
#include "ptx.cuh"
#include "reduce.cuh"

#ifndef SCALE_T
#define SCALE_T 0
#endif
#ifndef BITS
#define BITS 8
#endif
#ifndef TOKENS /* rows of x at a time, a multiple of 8 for linear_packed */
#define TOKENS 8
#endif
#ifndef TILES
#define TILES 1
#endif
#ifndef STAGES
#define STAGES 2
#endif

#define WARPS 8
#define LANE_K (128 / BITS) /* of k in 16 bytes */
#define STEPS 4
#define STEP_K (4 * LANE_K) /* of k that a warp multiplies at a time */
#define RUN (STEPS * STEP_K)
#define OCTETS (TOKENS / 8)
#define ROWS (16 * TILES)
#define SLOTS (2 * TILES)
#define X_WORDS (LANE_K / 8) /* of 16 bytes of x beside 16 bytes of w */

typedef dtype_of<SCALE_T>::type scale_type;

DEVICE void put(const product_call &c, long long token, long long row, real v)
{
    if (token >= c.m || row >= c.n)
        return;
    if (c.bias)
        v += to_real(((const T *)c.bias)[row]);
    long long at = token * c.y_row + row;
    if (c.pre)
        ((T *)c.pre)[at] = from_real<T>(v);
    ((T *)c.y)[at] = from_real<T>(activated<T>(v));
}

#if (CUP_T == CUP_F16 || CUP_T == CUP_BF16) && TOKENS % 8 == 0
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

#if CUP_T == CUP_F16
#define MAGIC 0x64006400u /* 1024, twice: with a number in its low bits 1024 + number */
#define MAGIC_VALUE 1024.0f
#define PAIR_TYPE "f16x2"
#else
#define MAGIC 0x43004300u /* 128, twice */
#define MAGIC_VALUE 128.0f
#define PAIR_TYPE "bf16x2"
#endif

/* Two 16-bit numbers: a b + c. */
DEVICE uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn." PAIR_TYPE " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE uint32_t pair_of(float x)
{
    return pack(x, x, T());
}

/* What turns the numbers of a group into weights: (v + minus) times. */
struct group_scale {
    uint32_t times, minus;
};

#if BITS == 8
/* Four numbers of 8 bits as two pairs. */
DEVICE void unpack_bytes(uint32_t word, const group_scale &s, uint32_t (&to)[2])
{
    word ^= 0x80808080u;
#if CUP_T == CUP_F16
    to[0] = __byte_perm(word, 0x64646464u, 0x4140);
    to[1] = __byte_perm(word, 0x64646464u, 0x4342);
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[i] = pair_fma(to[i], pair_of(1.0f), pair_of(-1152.0f));
#else
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)) - 8388736.0f;
    to[0] = pack(v[0], v[1], T());
    to[1] = pack(v[2], v[3], T());
#endif
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[i] = pair_fma(to[i], s.times, 0x80008000u);
}

#elif BITS == 4
/* Eight numbers of 4 bits as pairs of numbers four apart. */
DEVICE void unpack_nibbles(uint32_t word, const group_scale &s, uint32_t (&to)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v = (word >> 4 * i & 0x000f000fu) | MAGIC;
        to[i] = pair_fma(pair_fma(v, pair_of(1.0f), s.minus), s.times, 0x80008000u);
    }
}
#endif

struct place {
    const product_call &c;
    const packed_call &w;
    long long row, token; /* the first of the block */
    uint32_t ring;        /* of this lane */
};

/* Where a lane's 16 bytes lie: tile i / 2, its upper or lower half. */
DEVICE uint32_t slot(const place &p, int stage, int step, int i)
{
    return p.ring + ((stage * STEPS + step) * SLOTS + i) * 512;
}

/* Orders the copies of one run. */
DEVICE void bring(const place &p, int stage, long long run)
{
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            long long k = run * RUN + step * STEP_K + threadIdx.x % 4 * LANE_K;
            long long row = p.row + 8 * i + threadIdx.x % 32 / 4;
            bool valid = row < p.c.n && k < p.c.k;
            const char *from = (const char *)p.c.b + (valid ? row * p.c.b_mn + k * BITS / 8 : 0);
            copy_async16(slot(p, stage, step, i), from, valid);
        }
}

struct side_data {
    uint4 x[X_WORDS][OCTETS];
    group_scale scale[BITS == 16 ? 1 : SLOTS];
};

#if BITS == 4
/* Words of x in the order that unpack_nibbles leaves: (0, 4), (1, 5), (2, 6), (3, 7). */
DEVICE uint4 shuffled(const uint4 &x)
{
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                      __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}
#endif

/* The part of x, and the scales, that belong to STEP_K from k on. */
DEVICE void read_side(const place &p, long long k, side_data &to)
{
    k += threadIdx.x % 4 * LANE_K;
    const T *x = (const T *)p.c.a + k;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
#pragma unroll
        for (int i = 0; i < X_WORDS; i++) {
            long long token = p.token + 8 * o + threadIdx.x % 32 / 4;
            to.x[i][o] = token < p.c.m && k < p.c.k
                             ? __ldg((const uint4 *)(x + token * p.c.a_mn + 8 * i))
                             : make_uint4(0, 0, 0, 0);
        }
#if BITS < 16
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        long long row = p.row + 8 * i + threadIdx.x % 32 / 4;
        long long at = row * p.w.groups + k / p.w.group;
        bool valid = row < p.c.n && k < p.c.k;
        float scale = valid ? convert<float>(((const scale_type *)p.w.scale)[at]) : 0.0f;
        float zero = valid && p.w.zero ? (float)p.w.zero[at] : 8.0f;
        to.scale[i].times = pair_of(scale);
        to.scale[i].minus = pair_of(-(MAGIC_VALUE + zero));
    }
#endif
#if BITS == 4
#pragma unroll
    for (int i = 0; i < X_WORDS * OCTETS; i++)
        (&to.x[0][0])[i] = shuffled((&to.x[0][0])[i]);
#endif
}

typedef float sums[TILES][OCTETS][4];

/* Four pairs along k of each of two rows, at number `i` of the words of x. */
DEVICE void multiply_pairs(const uint32_t *top, const uint32_t *bottom, const side_data &side,
                           int word, int half, float (&sum)[OCTETS][4])
{
    uint32_t a[4] = {top[0], bottom[0], top[1], bottom[1]};
#pragma unroll
    for (int o = 0; o < OCTETS; o++) {
        const uint4 &x = side.x[word][o];
        multiply_add(sum[o], a, half ? x.z : x.x, half ? x.w : x.y, T());
    }
}

DEVICE void multiply(const place &p, int stage, int step, const side_data &side, sums &sum)
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        uint4 rows[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            rows[i] = load_shared16(slot(p, stage, step, 2 * tile + i));
        const uint32_t top[4] = {rows[0].x, rows[0].y, rows[0].z, rows[0].w};
        const uint32_t bottom[4] = {rows[1].x, rows[1].y, rows[1].z, rows[1].w};
#if BITS == 16
        multiply_pairs(top, bottom, side, 0, 0, sum[tile]);
        multiply_pairs(top + 2, bottom + 2, side, 0, 1, sum[tile]);
#else
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t t[8 / BITS * 2], b[8 / BITS * 2];
#if BITS == 8
            unpack_bytes(top[j], side.scale[2 * tile], t);
            unpack_bytes(bottom[j], side.scale[2 * tile + 1], b);
            multiply_pairs(t, b, side, j / 2, j % 2, sum[tile]);
#else
            unpack_nibbles(top[j], side.scale[2 * tile], t);
            unpack_nibbles(bottom[j], side.scale[2 * tile + 1], b);
            multiply_pairs(t, b, side, j, 0, sum[tile]);
            multiply_pairs(t + 2, b + 2, side, j, 1, sum[tile]);
#endif
        }
#endif
    }
}

/* Adds up the parts of k; true when this block is to write. */
DEVICE bool add_parts(float *partial, unsigned *arrived, float *sum, unsigned *last)
{
    const int count = TOKENS * ROWS, parts = gridDim.y;
    long long tile_index = (long long)blockIdx.z * gridDim.x + blockIdx.x;
    float *tile = partial + tile_index * parts * count;
    for (int i = threadIdx.x; i < count; i += PRODUCT_THREADS)
        __stcg(tile + blockIdx.y * count + i, sum[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrived + tile_index, 1u) == (unsigned)parts - 1;
        if (*last)
            arrived[tile_index] = 0;
    }
    __syncthreads();
    if (!*last)
        return false;
    __threadfence();
    for (int i = threadIdx.x; i < count; i += PRODUCT_THREADS) {
        float total = 0;
#pragma unroll 4
        for (int part = 0; part < parts; part++)
            total += __ldcg(tile + part * count + i);
        sum[i] = total;
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    linear_packed(const __grid_constant__ product_call c, const __grid_constant__ packed_call w,
                  int part_runs, float *partial, unsigned *arrived)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ unsigned last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    place p = {c, w, (long long)blockIdx.x * ROWS, (long long)blockIdx.z * TOKENS,
               shared_address(shared) + warp * STAGES * STEPS * SLOTS * 512 + lane * 16};
    int runs = (int)((c.k + RUN - 1) / RUN), first = blockIdx.y * part_runs;
    int end = min(first + part_runs, runs), ahead = first + warp, stage = 0;
    sums sum = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++, ahead += WARPS) {
        if (ahead < end)
            bring(p, i, ahead);
        copies_end();
    }
    for (int run = first + warp; run < end; run += WARPS, ahead += WARPS) {
        int next = stage == 0 ? STAGES - 1 : stage - 1;
        if (ahead < end)
            bring(p, next, ahead);
        copies_end();
        side_data side, next_side;
        read_side(p, (long long)run * RUN, side);
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS)
                read_side(p, (long long)run * RUN + (step + 1) * STEP_K, next_side);
            multiply(p, stage, step, side, sum);
            side = next_side;
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    float *all = (float *)shared;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int o = 0; o < OCTETS; o++)
#pragma unroll
            for (int l = 0; l < 4; l++) {
                int token = 8 * o + lane % 4 * 2 + l % 2, r = 16 * i + lane / 4 + l / 2 * 8;
                all[warp * TOKENS * ROWS + token * ROWS + r] = sum[i][o][l];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS) {
        float total = all[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++)
            total += all[other * TOKENS * ROWS + i];
        all[i] = total;
    }
    if (gridDim.y > 1 && !add_parts(partial, arrived, all, &last))
        return;
    for (int i = threadIdx.x; i < TOKENS * ROWS; i += PRODUCT_THREADS)
        put(c, p.token + i / ROWS, p.row + i % ROWS, all[i]);
}

#endif
#endif

#if BITS < 16
/* One number of a row, not yet scaled. */
DEVICE real number_at(const void *weight, long long at, int zero)
{
#if BITS == 8
    return (real)((const int8_t *)weight)[at];
#else
    return (real)((((const uint8_t *)weight)[at / 2] >> at % 2 * 4 & 15) - zero);
#endif
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    linear_packed_plain(const __grid_constant__ product_call c,
                        const __grid_constant__ packed_call w)
{
    long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    long long token = (long long)blockIdx.y * TOKENS;
    if (row >= c.n)
        return;
    const T *x = (const T *)c.a + token * c.a_mn;
    real sum[TOKENS] = {};
#pragma unroll 4
    for (long long k = threadIdx.x % 32; k < c.k; k += 32) {
        long long group = row * w.groups + k / w.group;
        real scale = convert<real>(((const scale_type *)w.scale)[group]);
        real v = scale * number_at(w.weight, row * c.k + k, w.zero ? w.zero[group] : 8);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            if (token + t < c.m)
                sum[t] += v * to_real(x[t * c.a_mn + k]);
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        real total = warp_sum(sum[t]);
        if (threadIdx.x % 32 == 0)
            put(c, token + t, row, total);
    }
}
#endif
