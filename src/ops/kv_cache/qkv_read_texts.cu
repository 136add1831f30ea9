/* Attention of the tokens that come next of many texts, as qkv_attention_read.cu has it, where
 * there are at least as many (text, kv head) as multiprocessors: a block each, none is shared
 * (sm_90 and on).
 *
 * Keys and values of such a pair lie side by side. Each warp takes every WARPSth piece of KEYS keys
 * and copies them through a ring of its own, so that blocks meet only when queries are there and
 * when warps' sums are joined. Where the kernel in front leaves keys, values and places alone
 * (c.early) the first pieces are ordered before it is done; else L2 is asked for them. A key is
 * read by LANES lanes, EACH elements a lane, and the lanes of a warp hold several keys; each such
 * group keeps a base and sums of its own. The new key is the first of group 0. */
#include "pipe.cuh"
#include "qkv_read.cuh"
#include "vec.cuh"

/* Knobs, beside those of qkv_read.cuh: HEADS (of queries that share keys), UNROLL (keys that a lane
 * reads at once), SLOTS (of a warp's ring), BLOCKS (which registers are to suffice for on a
 * multiprocessor). */
#define WARPS 4
#define THREADS (32 * WARPS)
#define HELD_MOST 2 /* queries in registers; more are read for each piece */
#define KEYS (GROUPS * UNROLL) /* of a piece */
#define TILE (KEYS * SIZE)     /* elements */

#if __CUDA_ARCH__ >= 900

#define NEW_KEY (HEADS * SIZE)
#define NEW_VALUE (NEW_KEY + SIZE)

extern __shared__ uint4 memory[]; /* of each warp SLOTS times keys and values */
static __shared__ real asked[(HEADS + 2) * SIZE]; /* queries, scaled, then the new key and value */
static __shared__ real joined[WARPS * HEADS * ROW];
static __shared__ uint64_t barriers[WARPS * SLOTS];
static __shared__ uint4 nothing; /* zeros */
static __shared__ int found;     /* the place */

/* The block's (text, kv head), and the warp's ring. */
struct task {
    int batch, kv, place; /* of the new key; -1: not known */
    int first, next;      /* of the keys that are seen, and of those that the warp orders next */
    T *keys, *values;
    int slots;     /* elements before the warp's slots */
    uint32_t full; /* barrier of its first slot */
};

/* From the L2 cache, as what other caches have may be older. */
DEVICE int place_now(const read_call &c, const task &t)
{
    long long place = (long long)__ldcg(place_at(c, t.batch));
    return is_known(c, place) ? (int)place : -1;
}

/* By all: one thread reads it, since all blocks may ask for the same number at once. */
DEVICE void find_place(const read_call &c, int warp, task &t)
{
    if (threadIdx.x == 0)
        found = place_now(c, t);
    __syncthreads();
    t.place = __shfl_sync(0xffffffff, found, 0);
    t.first = first_seen(c, t.place);
    t.next = t.first + warp * KEYS;
}

/* By one lane: orders keys from t.next on, and their values behind them, into a slot. */
DEVICE void order(const read_call &c, const task &t, int slot)
{
    int rows = min(t.place - t.next, KEYS);
    if (rows <= 0)
        return;
    uint32_t bytes = (uint32_t)(rows * c.size * (int)sizeof(T)), full = t.full + 8 * slot;
    uint32_t to = shared_address(memory) + (t.slots + slot * 2 * TILE) * (int)sizeof(T);
    long long skipped = (long long)t.next * c.size;
    barrier_expect(full, 2 * bytes);
    copy_bulk(to, t.keys + skipped, bytes, full);
    copy_bulk(to + TILE * (int)sizeof(T), t.values + skipped, bytes, full);
}

/* The warp's first pieces. */
DEVICE void order_first(const read_call &c, task &t)
{
#pragma unroll 1
    for (int slot = 0; slot < SLOTS; slot++) {
        if (elected())
            order(c, t, slot);
        t.next += WARPS * KEYS;
    }
}

DEVICE void ask_for(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* By one thread: asks L2 for the first keys and values while the kernel in front ends, which may be
 * moving the place on, so that nothing else may follow from it. */
DEVICE void ask_ahead(const read_call &c, const task &t)
{
    int place = place_now(c, t), first = first_seen(c, place);
    long long bytes = (long long)(place - first) * c.size * (int)sizeof(T);
    bytes = bytes < c.ahead ? bytes : c.ahead / 16 * 16;
    if (bytes <= 0)
        return;
    ask_for(t.keys + (long long)first * c.size, (uint32_t)bytes);
    ask_for(t.values + (long long)first * c.size, (uint32_t)bytes);
}

/* Of the text's row of qkv, what becomes `number` of what is asked: where it begins, or null. */
DEVICE const T *head_asked(const read_call &c, const task &t, int number)
{
    int group = c.heads / c.kv_heads;
    if (t.place < 0 || (number >= group && number < HEADS))
        return 0;
    long long row = (long long)t.batch * (c.heads + 2 * c.kv_heads);
    int own = number < HEADS ? t.kv * group + number
                             : c.heads + (number - HEADS) * c.kv_heads + t.kv;
    return (const T *)c.qkv + (row + own) * c.size;
}

/* What is asked, and what is new behind what was kept. */
DEVICE void ask(const read_call &c, const task &t)
{
    if (threadIdx.x == 0)
        nothing = make_uint4(0, 0, 0, 0);
    const long long kept = (long long)t.place * c.size;
#if TURNED
    long long position = position_of(c, t.batch, t.place);
    for (int i = (int)threadIdx.x; i < (HEADS + 2) * SIZE; i += THREADS) {
        int head = i / SIZE, d = i % SIZE;
        const T *from = head_asked(c, t, head);
        bool valid = from && d < c.size;
        real x = !valid ? 0 : head > HEADS ? to_real(from[d]) : turned(c, from, d, position);
        asked[i] = head < HEADS ? x * (real)c.scale : x;
        if (valid && head >= HEADS)
            (head == HEADS ? t.keys : t.values)[kept + d] = from_real<T>(x);
    }
#else
    for (int i = (int)threadIdx.x; i < (HEADS + 2) * LANES; i += THREADS) {
        int head = i / LANES, d = i % LANES * EACH;
        const T *from = head_asked(c, t, head);
        real x[EACH] = {};
        if (from && d < c.size) {
            vec<T, EACH> all = load_plain<EACH>(from + d);
            to_reals(all, x);
            if (head >= HEADS)
                store((head == HEADS ? t.keys : t.values) + kept + d, all);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
            asked[i * EACH + e] = head < HEADS ? x[e] * (real)c.scale : x[e];
    }
#endif
}

DEVICE void load_query(int head, real (&to)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = asked[head * SIZE + lane() % LANES * EACH + e];
}

/* 2 to the power x, which is 0 before it is no longer a normal number. */
DEVICE real power_of(real x)
{
    real y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Makes the rows of a slot that no copy filled zeros, with which nothing is added. */
DEVICE void fill_up(T *keys, int filled, int size)
{
#pragma unroll 1
    for (int i = filled * size + lane(); i < KEYS * size; i += 32)
        keys[i] = keys[TILE + i] = from_real<T>(0);
    __syncwarp();
}

/* Adds a piece of keys, of which the first is `distance` places before the new one; who is not
 * before it is none. */
DEVICE void add_piece(const read_call &c, T *piece, int distance, const real (&q)[HEADS][EACH],
                      const real (&slope)[HEADS], sums (&s)[HEADS])
{
    int size = c.size, column = lane() % LANES * EACH, first = lane() / LANES;
    bool none = column >= size; /* of what lies there is the lane's */
    const T *keys = none ? (const T *)&nothing : piece + first * size + column;
    int row = none ? 0 : GROUPS * size, beyond = none ? 0 : TILE, before = distance - first;
    if (distance < KEYS)
        fill_up(piece, distance, size);
    real key[UNROLL][EACH], value[UNROLL][EACH];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        to_reals(load_plain<EACH>(keys + u * row), key[u]);
        to_reals(load_plain<EACH>(keys + beyond + u * row), value[u]);
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
            if (SOFT_CAP || SLOPES)
                score[u] = score_of(c, score[u], slope[h], before - u * GROUPS);
            if (before <= u * GROUPS)
                score[u] = lowest();
            base = larger(base, score[u]);
        }
        real from = base == lowest() ? 0 : base;
        if (base > s[h].base) {
            real factor = power_of(s[h].base - from);
            s[h].base = base;
            s[h].weight *= factor;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                s[h].o[e] *= factor;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            real weight = power_of(score[u] - from);
            s[h].weight += weight;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                s[h].o[e] += weight * value[u][e];
        }
    }
}

/* The warp's sums, for all to see. */
DEVICE void show(int warp, sums (&s)[HEADS])
{
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

/* Sums of nothing, or in group 0 of the block of the new key alone. */
DEVICE void begin_sums(const read_call &c, const real (&q)[EACH], real slope, sums &s)
{
    const real *key = asked + NEW_KEY + lane() % LANES * EACH, *value = key + SIZE;
    bool has = threadIdx.x < LANES;
    real score = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        score += q[e] * key[e];
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2)
        score += shuffle_xor(score, mask);
    score = has ? score_of(c, score, slope, 0) : lowest();
    s.base = larger(score, lowest());
    s.weight = weight_of(score, s.base);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        s.o[e] = has ? s.weight * value[e] : 0;
}

DEVICE void attend(const read_call &c, int warp, task &t)
{
    real q[HEADS][EACH], slope[HEADS];
    sums s[HEADS];
    int group = c.heads / c.kv_heads;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        slope[h] = slope_of(c, t.kv * group + (h < group ? h : 0));
        load_query(h, q[h]);
        begin_sums(c, q[h], slope[h], s[h]);
    }
    ring_place<SLOTS> at = {0, 0};
#pragma unroll 1
    for (int k = t.first + warp * KEYS; k < t.place; k += WARPS * KEYS) {
        barrier_wait(t.full + 8 * at.stage, at.phase);
        add_piece(c, (T *)memory + t.slots + at.stage * 2 * TILE, t.place - k, q, slope, s);
        __syncwarp();
        if (elected())
            order(c, t, at.stage);
        t.next += WARPS * KEYS;
        at.next();
    }
    show(warp, s);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < HEADS * SIZE; i += THREADS) {
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
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    long long pair = blockIdx.x, first = pair * c.length * c.size;
    task t;
    t.batch = (int)pair / c.kv_heads;
    t.kv = (int)pair % c.kv_heads;
    t.keys = (T *)c.keys + first;
    t.values = (T *)c.values + first;
    t.slots = warp * SLOTS * 2 * TILE;
    t.full = shared_address(barriers) + 8 * SLOTS * warp;
    if (elected()) {
        for (int slot = 0; slot < SLOTS; slot++)
            barrier_init(t.full + 8 * slot, 1);
        barrier_init_done();
    }
    __syncwarp();
    if (!c.early) {
        if (threadIdx.x == 0)
            ask_ahead(c, t);
        wait_for_previous_kernel();
    }
    find_place(c, warp, t);
    order_first(c, t);
    if (c.early)
        wait_for_previous_kernel();
    let_next_kernel_start();
    ask(c, t);
    __syncthreads();
    attend(c, warp, t);
#endif
}
