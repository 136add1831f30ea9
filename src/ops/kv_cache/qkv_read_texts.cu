/* Attention of the tokens that come next of many texts, as qkv_attention_read.cu has it, where
 * there are at least as many (text, kv head) as blocks, so that none is shared (sm_90 and on).
 *
 * Keys and values of such a pair lie side by side, so a thread copies them in pieces of STEP keys
 * through a ring, for one pair behind the other, and never waits for what is made of them; another
 * warp prepares the queries of the next pair and keeps the new keys and values. A key is read by
 * LANES lanes, EACH elements a lane, and the lanes of a warp hold several keys; each such group
 * keeps a base and sums of its own, which are joined at the end of the pair. */
#include "pipe.cuh"
#include "qkv_read.cuh"
#include "vec.cuh"

/* Knobs: CUP_ID, EACH, LANES, HEADS (of queries that share keys), SLOTS (of the ring), TURNED. */
#include "lane_sums.cuh"
#define WARPS 8
#define USERS (32 * WARPS)
#define THREADS (USERS + 64)
#define UNROLL 2
#define HELD_MOST 2 /* queries in registers; more are read for each step */
#define STEP (WARPS * GROUPS * UNROLL)
#define TILE (STEP * SIZE) /* elements */

#if __CUDA_ARCH__ >= 900

/* What is asked of a pair. */
struct question {
    int position; /* -1: not known */
    real rows[(HEADS + 2) * SIZE]; /* its queries, scaled, then the new key and value */
};

#define NEW_KEY (HEADS * SIZE)
#define NEW_VALUE (NEW_KEY + SIZE)

extern __shared__ uint4 memory[]; /* SLOTS times keys and values */
static __shared__ question asked[2];
static __shared__ real joined[2][WARPS * HEADS * ROW];
static __shared__ uint64_t barriers[2 * SLOTS + 4];

DEVICE T *keys_of(const read_call &c, int pair)
{
    return (T *)c.keys + (long long)pair * c.length * c.size;
}

DEVICE T *values_of(const read_call &c, int pair)
{
    return (T *)c.values + (long long)pair * c.length * c.size;
}

DEVICE void ask_for(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Asks L2 for the first keys and values of the block while the kernel before it ends. Where that
 * one moves the position on it is one too small, so nothing else may follow from it. */
DEVICE void ask_ahead(const read_call &c, int pairs)
{
    long long left = c.ahead;
    for (int pair = (int)blockIdx.x; pair < pairs && left > 0; pair += (int)gridDim.x) {
        long long position = (long long)__ldcg(place_of_position(c, pair / c.kv_heads));
        long long bytes = is_known(c, position) ? position * c.size * (int)sizeof(T) : 0;
        bytes = bytes < left ? bytes : left / 16 * 16;
        left -= bytes;
        if (bytes == 0)
            continue;
        ask_for(keys_of(c, pair), (uint32_t)bytes);
        ask_for(values_of(c, pair), (uint32_t)bytes);
    }
}

/* By one thread: keys and values that were kept before. */
DEVICE void copy_pairs(const read_call &c, const ring<SLOTS> &pipe, int pairs)
{
    ring_place<SLOTS> place = {0, 0};
    for (int pair = (int)blockIdx.x; pair < pairs; pair += (int)gridDim.x) {
        long long position = position_of(c, pair / c.kv_heads);
        if (!is_known(c, position))
            continue;
        const T *keys = keys_of(c, pair), *values = values_of(c, pair);
        for (int k = 0; k <= (int)position; k += STEP) {
            int rows = (int)position - k < STEP ? (int)position - k : STEP;
            uint32_t bytes = (uint32_t)(rows * c.size * (int)sizeof(T));
            uint32_t to = shared_address(memory) + place.stage * 2 * TILE * (int)sizeof(T);
            pipe.claim(place, 2 * bytes);
            if (bytes) {
                copy_bulk(to, keys + (long long)k * c.size, bytes, pipe.full(place.stage));
                copy_bulk(to + TILE * (int)sizeof(T), values + (long long)k * c.size, bytes,
                          pipe.full(place.stage));
            }
            place.next();
        }
    }
}

/* By one warp: the questions, and what is new behind what was kept. */
DEVICE void ask_pairs(const read_call &c, const ring<2> &asks, int pairs)
{
    ring_place<2> place = {0, 0};
    int group = c.heads / c.kv_heads, size = c.size;
    for (int pair = (int)blockIdx.x; pair < pairs; pair += (int)gridDim.x) {
        int batch = pair / c.kv_heads, kv = pair % c.kv_heads;
        long long position = position_of(c, batch);
        bool known = is_known(c, position);
        const T *row = (const T *)c.qkv + (long long)batch * (c.heads + 2 * c.kv_heads) * size;
        long long at = known ? position * size : 0;
        T *key = keys_of(c, pair) + at, *value = values_of(c, pair) + at;
        question &to = asked[place.stage];
        barrier_wait(asks.empty(place.stage), place.phase ^ 1);
#pragma unroll 4
        for (int i = lane(); i < (HEADS + 2) * SIZE; i += 32) {
            int head = i / SIZE, d = i % SIZE;
            bool valid = known && d < size && (head < group || head >= HEADS);
            int own = head < HEADS ? kv * group + head : c.heads + (head - HEADS) * c.kv_heads + kv;
            const T *from = row + (long long)own * size;
            real x = !valid ? 0 : head > HEADS ? to_real(from[d]) : turned(c, from, d, position);
            to.rows[i] = head < HEADS ? x * (real)c.scale : x;
            if (valid && head >= HEADS)
                (head == HEADS ? key : value)[d] = from_real<T>(x);
        }
        if (lane() == 0)
            to.position = known ? (int)position : -1;
        __syncwarp();
        if (lane() == 0)
            barrier_arrive(asks.full(place.stage));
        place.next();
    }
}

/* Of a key or value that is kept, of the new one, or of none. */
DEVICE void load_lane(const T *row, const real *fresh, int at, int position, int column, int size,
                      real (&to)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = at == position ? fresh[column + e] : 0;
    if (at < position && column < size)
        to_reals(load_plain<EACH>(row + column), to);
}

DEVICE void load_query(const question &from, int head, real (&to)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = from.rows[head * SIZE + lane() % LANES * EACH + e];
}

/* Adds STEP keys from `first` on, which lie at `keys` with their values behind, to the sums. */
DEVICE void add_keys(const question &from, const T *keys, int first, int size,
                     const real (&q)[HEADS][EACH], sums (&s)[HEADS])
{
    int warp = (int)threadIdx.x / 32, column = lane() % LANES * EACH;
    int position = from.position;
    real key[UNROLL][EACH], value[UNROLL][EACH];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int row = (u * WARPS + warp) * GROUPS + lane() / LANES;
        load_lane(keys + row * size, from.rows + NEW_KEY, first + row, position, column, size,
                  key[u]);
        load_lane(keys + TILE + row * size, from.rows + NEW_VALUE, first + row, position, column,
                  size, value[u]);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        real own[EACH], score[UNROLL], base = s[h].base;
        if (HEADS > HELD_MOST)
            load_query(from, h, own);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            score[u] = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                score[u] += (HEADS > HELD_MOST ? own[e] : q[h][e]) * key[u][e];
#pragma unroll
            for (int mask = 1; mask < LANES; mask *= 2)
                score[u] += shuffle_xor(score[u], mask);
            if (first + (u * WARPS + warp) * GROUPS + lane() / LANES > position)
                score[u] = lowest();
            base = larger(base, score[u]);
        }
        if (base > s[h].base)
            fade(s[h], base);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            real weight = weight_of(score[u], base);
            s[h].weight += weight;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                s[h].o[e] += weight * value[u][e];
        }
    }
}

DEVICE void begin_pair(const question &from, real (&q)[HEADS][EACH], sums (&s)[HEADS])
{
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s[h].base = lowest();
        s[h].weight = 0;
        load_query(from, h, q[h]);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            s[h].o[e] = 0;
    }
}

/* The warp's sums, for all to see. */
DEVICE void show(sums (&s)[HEADS], real *to)
{
    int warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        join_groups(s[h]);
        real *row = to + (warp * HEADS + h) * ROW;
        if (lane() < LANES)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                row[lane() % LANES * EACH + e] = s[h].o[e];
        if (lane() == 0) {
            row[SIZE] = s[h].base;
            row[SIZE + 1] = s[h].weight;
        }
    }
}

/* By the other warps. The sums of one pair are added up while the next pair's are put elsewhere. */
DEVICE void attend(const read_call &c, const ring<SLOTS> &pipe, const ring<2> &asks, int pairs)
{
    ring_place<SLOTS> place = {0, 0};
    ring_place<2> ask = {0, 0};
    int group = c.heads / c.kv_heads, size = c.size;
    for (int pair = (int)blockIdx.x; pair < pairs; pair += (int)gridDim.x) {
        real q[HEADS][EACH], *all = joined[ask.stage];
        sums s[HEADS];
        asks.wait_full(ask);
        const question &from = asked[ask.stage];
        bool known = from.position >= 0;
        begin_pair(from, q, s);
        for (int k = 0; k <= from.position; k += STEP) {
            pipe.wait_full(place);
            add_keys(from, (const T *)memory + place.stage * 2 * TILE, k, size, q, s);
            __syncwarp();
            pipe.release<1>(place.stage);
            place.next();
        }
        __syncwarp();
        asks.release<1>(ask.stage);
        show(s, all);
        meet(1, USERS);
        for (int i = (int)threadIdx.x; i < HEADS * SIZE; i += USERS) {
            int h = i / SIZE, d = i % SIZE;
            if (h >= group || d >= size)
                continue;
            real base, weight;
            real value = sum_of(all + h * ROW, WARPS, HEADS * ROW, SIZE, d, &base, &weight);
            store_mean(c, (long long)pair * group + h, d, value, weight, known);
        }
        ask.next();
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    read_texts(const __grid_constant__ read_call c)
{
#if __CUDA_ARCH__ >= 900
    const ring<SLOTS> pipe = {shared_address(barriers)};
    const ring<2> asks = {shared_address(barriers + 2 * SLOTS)};
    int pairs = c.texts * c.kv_heads, warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) {
        pipe.init(WARPS);
        asks.init(WARPS);
    }
    if (threadIdx.x == USERS)
        ask_ahead(c, pairs);
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (warp < WARPS)
        attend(c, pipe, asks, pairs);
    else if (warp > WARPS)
        ask_pairs(c, asks, pairs);
    else if (lane() == 0)
        copy_pairs(c, pipe, pairs);
#endif
}
