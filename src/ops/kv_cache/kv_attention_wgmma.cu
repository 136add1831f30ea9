/* kv_attention on Hopper, of f16 and bf16 that are kept as they are: products by a warpgroup, of up
 * to 64 rows at once, and copies by TMA, so that no thread looks for what it reads.
 *
 * Block x takes (sequence, kv head), y a share of the tiles of STEP keys, z 64 rows: the new tokens
 * of all heads that share keys. The last warp orders boxes of BOX keys, each of one page, into a
 * ring of SLOTS: keys and values of a tile in turn. The other four multiply. Two blocks find place
 * on a multiprocessor, so that one's softmax meets the other's products.
 *
 * Tiles are those of the whole sequence, so that the first may begin before what a row sees and the
 * last end behind it. Anything may stand there in memory, and weights of 0 would not hide it:
 * such values become 0. */
#define WARPGROUPS 1
#ifndef STEP
#define STEP 64
#endif
#ifndef BOX
#define BOX STEP
#endif
#ifndef SLOTS
#define SLOTS 7
#endif
#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif
#ifndef SINKS
#define SINKS 0
#endif

#include "attention_wgmma.cuh"
#include "kv_cache.cuh"

#define MULTIPLIERS 128 /* threads; then a warp that orders copies */
#define BOXES (STEP / BOX)

#if CUP_HAS_WGMMA

typedef uint32_t query_fragments[SIZE / 16][4];

/* What a block is at: a sequence, a head of keys, its first row and how many the head has. */
struct task {
    int batch, kv, first, rows;
};

/* A row of the head's: which head, and which of the new tokens. */
struct kv_row {
    int head, token;
};

DEVICE kv_row row_at(const kv_call &c, int kv, int row)
{
    int head = row / c.tokens;
    return {kv * (c.heads / c.kv_heads) + head, row - head * c.tokens};
}

/* The tiles [begin, end) of a share; any row sees positions from `low` to `limit` alone. */
struct share {
    int low, limit, begin, end;
};

DEVICE share share_of(const kv_call &c, const kv_sequence &s)
{
    share r;
    r.low = s.length + 1 > c.window ? s.length + 1 - c.window : 0;
    r.limit = s.count ? s.length + s.count : r.low;
    int first = r.low / STEP, all = r.limit > r.low ? (r.limit + STEP - 1) / STEP - first : 0;
    r.begin = first + (int)((long long)all * blockIdx.y / c.shares);
    r.end = first + (int)((long long)all * (blockIdx.y + 1) / c.shares);
    return r;
}

/* The page of a box; where there is none, one behind the last, which TMA reads as zeros. */
DEVICE int page_of(const kv_call &c, int batch, int box)
{
    int position = box * BOX, page = batch;
    if (PAGED)
        page = position < c.room
                   ? c.table[batch * c.table_batch + position / c.page * c.table_step]
                   : -1;
    return page < 0 ? c.pages : page;
}

/* A warp brings keys or values of a tile; lane i knows the page of box i. */
DEVICE void bring_tile(const kv_call &c, const tensor_map &map, uint32_t slots,
                       const ring<SLOTS> &pipe, ring_place<SLOTS> &at, int kv, int tile, int page)
{
    uint32_t to = slots + at.stage * STEP_BYTES;
    if (lane() == 0)
        pipe.claim(at, STEP_BYTES);
    for (int i = 0; i < BOXES; i++) {
        int position = tile * STEP + i * BOX, own = __shfl_sync(0xffffffffu, page, i);
        if (lane() > 0)
            continue;
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            box b = {{64 * p, PAGED ? position % c.page : position, kv, own}};
            tma_load<4>(map, to + (p * STEP + i * BOX) * 128, b, pipe.full(at.stage),
                        TMA_EVICT_FIRST);
        }
    }
    at.next();
}

DEVICE void produce(const kv_call &c, const tensor_map &keys, const tensor_map &values,
                    uint32_t slots, const ring<SLOTS> &pipe, const task &own, const share &r)
{
    ring_place<SLOTS> at = {0, 0};
    int next = page_of(c, own.batch, r.begin * BOXES + lane() % BOXES);
    for (int n = r.begin; n < r.end; n++) {
        int page = next;
        if (PAGED)
            next = page_of(c, own.batch, (n + 1) * BOXES + lane() % BOXES);
        bring_tile(c, keys, slots, pipe, at, own.kv, n, page);
        bring_tile(c, values, slots, pipe, at, own.kv, n, page);
    }
}

/* This thread's rows, as the A of products. */
DEVICE void load_queries(const kv_call &c, const task &own, int row, query_fragments &q)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool valid = row + 8 * r < own.rows;
        kv_row at = row_at(c, own.kv, valid ? row + 8 * r : 0);
        const T *from = (const T *)c.q.data + own.batch * c.q.batch + at.head * c.q.head +
                        at.token * c.q.token;
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++) {
            int column = 8 * i + 2 * (lane() % 4);
            q[i / 2][i % 2 * 2 + r] =
                valid && column < c.size ? *(const uint32_t *)(from + column) : 0;
        }
    }
}

DEVICE void start_rows(scores &s, const query_fragments &q, uint64_t keys)
{
#pragma unroll
    for (int i = 0; i < SIZE / 16; i++)
        wgmma<STEP>::run_registers<ALONG_K>(
            s, q[i], keys + (i / 4 * STEP * 128 >> 4) + wgmma_step(ALONG_K, i % 4), i > 0);
    wgmma_commit();
}

/* Which positions a thread's rows see. */
struct sight {
    int first[2], end[2];
};

DEVICE sight sight_of(const kv_call &c, const kv_sequence &s, const task &own, int row)
{
    sight see;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int token = row_at(c, own.kv, row + 8 * r).token, end = s.length + token + 1;
        see.first[r] = end - c.window;
        see.end[r] = row + 8 * r < own.rows && token < s.count ? end : 0;
    }
    return see;
}

/* Scores of the keys from `key` on: capped, and -infinity where a row does not see them. */
DEVICE void change(const kv_call &c, const kv_sequence &s, const sight &see, int key, scores &x)
{
#pragma unroll
    for (int i = 0; SOFT_CAP && i < STEP / 2; i++)
        x[i] = (float)c.cap * tanhf(x[i] * (float)c.scale);
    if (key + STEP > s.length + 1 || s.count < c.tokens)
        mask_scores(x, see.end[0] - key, see.end[1] - key);
#pragma unroll
    for (int i = 0; WINDOWED && i < STEP / 2; i++)
        if (key + i / 4 * 8 + 2 * (lane() % 4) + i % 2 < see.first[i / 2 % 2])
            x[i] = -INFINITE;
}

/* Values of the tile, whose first key is `key`, that no row sees become 0. */
DEVICE void clear_unseen(uint32_t tile, int key, const share &r)
{
    for (int i = (int)threadIdx.x; i < STEP * PANELS * 8; i += MULTIPLIERS) {
        int at = key + i / 8 % STEP;
        if (at < r.low || at >= r.limit)
            store_shared16(tile + 16 * i, make_uint4(0, 0, 0, 0));
    }
    publish_shared();
    meet(1, MULTIPLIERS);
}

DEVICE void walk(const kv_call &c, const kv_sequence &s, uint32_t slots, const ring<SLOTS> &pipe,
                 const query_fragments &q, const sight &see, const share &r, results &o,
                 softmax_state &state)
{
    ring_place<SLOTS> at = {0, 0};
    uint64_t keys = wgmma_describe(slots, ALONG_K, 0);
    uint64_t values = wgmma_describe(slots, ALONG_MN, STEP * 128);
    float scale = SOFT_CAP ? 1 : (float)c.scale;
#pragma unroll 1
    for (int n = r.begin; n < r.end; n++) {
        scores x;
        fragments p;
        float fade[2];
        int key = n * STEP;
        pipe.wait_full(at);
        wgmma_fence();
        start_rows(x, q, keys + (STEP_BYTES >> 4) * at.stage);
        wgmma_wait<0>();
        wgmma_hold(x);
        pipe.release<1>(at.stage);
        at.next();
        change(c, s, see, key, x);
        soften(x, state, fade, scale);
        fade_rows(o, fade);
        pack_a(p, x);
        pipe.wait_full(at);
        if (key < r.low || key + STEP > r.limit)
            clear_unseen(slots + at.stage * STEP_BYTES, key, r);
        wgmma_fence();
        start_results(o, p, values + (STEP_BYTES >> 4) * at.stage);
        wgmma_wait<0>();
        wgmma_hold(o);
        pipe.release<1>(at.stage);
        at.next();
    }
}

/* A head's sink, in a row's sum; returns what the row's other sums are multiplied by. */
DEVICE float add_sink(const kv_call &c, int head, float base, float *sum)
{
    if (!SINKS)
        return 1;
    float sink = ((const float *)c.sinks)[head * c.sinks_step] * LOG2_E, top = fmaxf(base, sink);
    if (top == -INFINITE)
        return 1;
    float fade = exp2_fast(base - top);
    *sum = *sum * fade + exp2_fast(sink - top);
    return fade;
}

/* One of a thread's two rows: to memory, or with several shares to `part`, which kv_join joins. */
DEVICE void store_row(const kv_call &c, const task &own, int row, int r, const results &o,
                      float base, float sum, bool known)
{
    kv_row at = row_at(c, own.kv, row);
    int column = 2 * (lane() % 4);
    if (c.shares > 1) {
        long long place = ((long long)own.batch * c.heads + at.head) * c.tokens + at.token;
        float *part = (float *)c.part + (place * c.shares + blockIdx.y) * (c.size + 2);
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++)
            if (8 * j < c.size)
                *(float2 *)(part + 8 * j + column) = make_float2(o[4 * j + 2 * r],
                                                                 o[4 * j + 2 * r + 1]);
        if (lane() % 4 == 0)
            *(float2 *)(part + c.size) = make_float2(base, sum);
        return;
    }
    float fade = add_sink(c, at.head, base, &sum);
    float scale = !known ? INFINITE * 0 : sum == 0 ? 0 : fade / sum;
    T *to = (T *)c.o.data + own.batch * c.o.batch + at.head * c.o.head + at.token * c.o.token;
#pragma unroll
    for (int i = 0; i < SIZE / 4; i++) {
        int d = i / 2 * 8 + column + i % 2;
        if (d < c.size)
            to[d * c.o.feature] = from_real<T>(o[i / 2 * 4 + 2 * r + i % 2] * scale);
    }
}

DEVICE void multiply(const kv_call &c, const kv_sequence &s, uint32_t slots,
                     const ring<SLOTS> &pipe, const task &own, const share &r)
{
    int row = own.first + (int)threadIdx.x / 32 * 16 + lane() / 4;
    query_fragments q;
    load_queries(c, own, row, q);
    sight see = sight_of(c, s, own, row);
    softmax_state state = {{-INFINITE, -INFINITE}, {0, 0}};
    results o;
    clear(o);
    walk(c, s, slots, pipe, q, see, r, o, state);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = state.sum[i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row + 8 * i < own.rows)
            store_row(c, own, row + 8 * i, i, o, state.base[i], sum, s.known);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, 2)
    kv_sm90(const __grid_constant__ tensor_map keys, const __grid_constant__ tensor_map values,
            const __grid_constant__ kv_call c)
{
#if CUP_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t slots = shared_address(memory);
    ring<SLOTS> pipe = {slots + SLOTS * STEP_BYTES};
    if (slots % 1024)
        __trap();
    if (threadIdx.x == 0) {
        tma_prefetch_map(keys);
        tma_prefetch_map(values);
        pipe.init(MULTIPLIERS / 32);
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    task own = {(int)blockIdx.x / c.kv_heads, (int)blockIdx.x % c.kv_heads, (int)blockIdx.z * 64,
                c.heads / c.kv_heads * c.tokens};
    kv_sequence s = sequence_of(c, own.batch);
    share r = share_of(c, s);
    if (threadIdx.x >= MULTIPLIERS)
        produce(c, keys, values, slots, pipe, own, r);
    else
        multiply(c, s, slots, pipe, own, r);
#endif
}
