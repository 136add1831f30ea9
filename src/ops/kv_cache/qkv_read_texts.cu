/* Attention of the tokens that come next of many texts, as qkv_attention_read.cu has it, where
 * there are at least as many (text, kv head) as multiprocessors: a block each, none is shared
 * (sm_90 and on).
 *
 * Keys and values of such a pair lie side by side, so a thread copies them in pieces of STEP keys
 * through a ring that has room for most of a short text at once; the others prepare the queries
 * meanwhile, and keep the new key and value. A key is read by LANES lanes, EACH elements a lane,
 * and the lanes of a warp hold several keys; each such group keeps a base and sums of its own,
 * which are joined at the end. */
#include "pipe.cuh"
#include "qkv_read.cuh"
#include "vec.cuh"

/* Knobs, beside those of qkv_read.cuh: HEADS (of queries that share keys), SLOTS (of the ring),
 * BLOCKS (on a multiprocessor). */
#define WARPS 4
#define USERS (32 * WARPS)
#define THREADS (USERS + 32)
#define UNROLL 2
#define HELD_MOST 2 /* queries in registers; more are read for each step */
#define STEP (WARPS * GROUPS * UNROLL)
#define TILE (STEP * SIZE) /* elements */

#if __CUDA_ARCH__ >= 900

#define NEW_KEY (HEADS * SIZE)
#define NEW_VALUE (NEW_KEY + SIZE)

extern __shared__ uint4 memory[]; /* SLOTS times keys and values */
static __shared__ real asked[(HEADS + 2) * SIZE]; /* queries, scaled, then the new key and value */
static __shared__ real joined[WARPS * HEADS * ROW];
static __shared__ uint64_t barriers[2 * SLOTS];

/* The block's (text, kv head). */
struct task {
    int batch, kv, place; /* of the new key; -1: not known */
    T *keys, *values;
};

DEVICE void ask_for(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Asks L2 for the first keys and values of the block while the kernel before it ends. Where that
 * one moves the place on it is one too small, so nothing else may follow from it. */
DEVICE void ask_ahead(const read_call &c, const task &t)
{
    long long place = (long long)__ldcg(place_at(c, t.batch));
    const T *keys = t.keys, *values = t.values;
    bool known = is_known(c, place);
#if WINDOWED
    long long first = known ? first_seen(c, (int)place) : 0;
    keys += first * c.size;
    values += first * c.size;
    place -= first;
#endif
    long long bytes = known ? place * c.size * (int)sizeof(T) : 0;
    bytes = bytes < c.ahead ? bytes : c.ahead / 16 * 16;
    if (bytes == 0)
        return;
    ask_for(keys, (uint32_t)bytes);
    ask_for(values, (uint32_t)bytes);
}

/* By one thread: keys and values that were kept before. */
DEVICE void copy_keys(const read_call &c, const task &t, const ring<SLOTS> &pipe)
{
    ring_place<SLOTS> at = {0, 0};
    for (int k = first_seen(c, t.place); k <= t.place; k += STEP) {
        int rows = t.place - k < STEP ? t.place - k : STEP;
        uint32_t bytes = (uint32_t)(rows * c.size * (int)sizeof(T));
        uint32_t to = shared_address(memory) + at.stage * 2 * TILE * (int)sizeof(T);
        long long from = (long long)k * c.size;
        pipe.claim(at, 2 * bytes);
        if (bytes) {
            copy_bulk(to, t.keys + from, bytes, pipe.full(at.stage));
            copy_bulk(to + TILE * (int)sizeof(T), t.values + from, bytes, pipe.full(at.stage));
        }
        at.next();
    }
}

/* By all warps but that of the copies: what is asked, and what is new behind what was kept. */
DEVICE void ask(const read_call &c, const task &t)
{
    int group = c.heads / c.kv_heads, size = c.size;
    long long position = position_of(c, t.batch, t.place);
    const T *row = (const T *)c.qkv + (long long)t.batch * (c.heads + 2 * c.kv_heads) * size;
    for (int i = (int)threadIdx.x; i < (HEADS + 2) * SIZE; i += USERS) {
        int head = i / SIZE, d = i % SIZE;
        bool valid = t.place >= 0 && d < size && (head < group || head >= HEADS);
        int own = head < HEADS ? t.kv * group + head : c.heads + (head - HEADS) * c.kv_heads + t.kv;
        const T *from = row + (long long)own * size;
        real x = !valid ? 0 : head > HEADS ? to_real(from[d]) : turned(c, from, d, position);
        asked[i] = head < HEADS ? x * (real)c.scale : x;
        if (valid && head >= HEADS)
            (head == HEADS ? t.keys : t.values)[(long long)t.place * size + d] = from_real<T>(x);
    }
}

/* Of a key or value that is kept, of the new one, or of none. */
DEVICE void load_lane(const T *row, const real *fresh, int at, int place, int column, int size,
                      real (&to)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = at == place ? fresh[column + e] : 0;
    if (at < place && column < size)
        to_reals(load_plain<EACH>(row + column), to);
}

DEVICE void load_query(int head, real (&to)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = asked[head * SIZE + lane() % LANES * EACH + e];
}

/* Adds STEP keys from `first` on, which lie at `keys` with their values behind, to the sums. */
DEVICE void add_keys(const read_call &c, const T *keys, int first, int place,
                     const real (&q)[HEADS][EACH], const real (&slope)[HEADS], sums (&s)[HEADS])
{
    int size = c.size, warp = (int)threadIdx.x / 32, column = lane() % LANES * EACH;
    real key[UNROLL][EACH], value[UNROLL][EACH];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int row = (u * WARPS + warp) * GROUPS + lane() / LANES;
        load_lane(keys + row * size, asked + NEW_KEY, first + row, place, column, size, key[u]);
        load_lane(keys + TILE + row * size, asked + NEW_VALUE, first + row, place, column, size,
                  value[u]);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        real own[EACH], score[UNROLL], base = s[h].base;
        if (HEADS > HELD_MOST)
            load_query(h, own);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            score[u] = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                score[u] += (HEADS > HELD_MOST ? own[e] : q[h][e]) * key[u][e];
#pragma unroll
            for (int mask = 1; mask < LANES; mask *= 2)
                score[u] += shuffle_xor(score[u], mask);
            int at = first + (u * WARPS + warp) * GROUPS + lane() / LANES;
            if (SOFT_CAP || SLOPES)
                score[u] = score_of(c, score[u], slope[h], place - at);
            if (at > place)
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

/* The warp's sums, for all to see. */
DEVICE void show(sums (&s)[HEADS])
{
    int warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        join_groups(s[h]);
        real *row = joined + (warp * HEADS + h) * ROW;
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

/* By all warps but that of the copies. */
DEVICE void attend(const read_call &c, const task &t, const ring<SLOTS> &pipe)
{
    real q[HEADS][EACH], slope[HEADS];
    sums s[HEADS];
    int group = c.heads / c.kv_heads;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        slope[h] = slope_of(c, t.kv * group + (h < group ? h : 0));
        s[h].base = lowest();
        s[h].weight = 0;
        load_query(h, q[h]);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            s[h].o[e] = 0;
    }
    ring_place<SLOTS> at = {0, 0};
    for (int k = first_seen(c, t.place); k <= t.place; k += STEP) {
        pipe.wait_full(at);
        add_keys(c, (const T *)memory + at.stage * 2 * TILE, k, t.place, q, slope, s);
        __syncwarp();
        pipe.release<1>(at.stage);
        at.next();
    }
    show(s);
    meet(1, USERS);
    for (int i = (int)threadIdx.x; i < HEADS * SIZE; i += USERS) {
        int h = i / SIZE, d = i % SIZE;
        if (h >= group || d >= c.size)
            continue;
        real base, weight;
        real value = sum_of(joined + h * ROW, WARPS, HEADS * ROW, SIZE, d, &base, &weight);
        store_mean(c, (long long)blockIdx.x * group + h, d, value, base, weight, t.place >= 0);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    read_texts(const __grid_constant__ read_call c)
{
#if __CUDA_ARCH__ >= 900
    const ring<SLOTS> pipe = {shared_address(barriers)};
    long long pair = blockIdx.x, first = pair * c.length * c.size;
    task t = {(int)pair / c.kv_heads, (int)pair % c.kv_heads, -1, (T *)c.keys + first,
              (T *)c.values + first};
    if (threadIdx.x == USERS) {
        pipe.init(WARPS);
        ask_ahead(c, t);
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    long long place = place_of(c, t.batch);
    if (is_known(c, place))
        t.place = (int)place;
    if (threadIdx.x == USERS) {
        copy_keys(c, t, pipe);
    } else if (threadIdx.x < USERS) {
        ask(c, t);
        meet(1, USERS);
        attend(c, t, pipe);
    }
#endif
}
