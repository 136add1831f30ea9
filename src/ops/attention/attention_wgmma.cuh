/* What the attention kernels for Hopper share: how the work of a persistent grid is cut, softmax on
 * the sums of a warpgroup, dropout, and rows of results on their way to memory.
 *
 * A tile of positions lies in shared memory as panels of 64 features, 128 swizzled bytes a
 * position, as TMA brings them. The file that includes this one names STEP, the positions walked
 * over at a time, and WARPGROUPS, those that multiply. A warpgroup's sums s[] hold in s[i], for
 * thread t of 128 with lane l: row 16 (t / 32) + l / 4, 8 further down where i & 2, and column 8 (i
 * / 4) + 2 (l % 4) + (i & 1). */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_CUH

#include "attention_call.cuh"
#include "attention_spans.cuh"
#include "philox.cuh"
#include "pipe.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#ifndef QUEUED
#define QUEUED SKIPS
#endif
#include "units.cuh"

#ifndef SIZE
#define SIZE 128 /* features of a head, up to a multiple of 64 */
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef ROUNDED
#define ROUNDED 0 /* the call is one of f32: q, k, v and d_o are rounded, all else is f32 */
#endif

#ifndef ORDER
#define ORDER 1 /* warpgroups start their products in turn */
#endif

#define ROWS (64 * WARPGROUPS)
#define THREADS (128 * (WARPGROUPS + 1))
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)
#define PANELS (SIZE / 64)
#define ROW_BYTES (64 * 128 * PANELS) /* of the rows of one warpgroup */
#define STEP_BYTES (STEP * 128 * PANELS)
#define NUMBERS_ROUND 128 /* what the queries are rounded up to in delta and lse_log2 */
#define ALONG_K PRODUCT_ALONG_K
#define ALONG_MN PRODUCT_ALONG_MN

#if CUP_HAS_WGMMA

typedef float scores[STEP / 2];
typedef float results[SIZE / 2];
typedef uint32_t fragments[STEP / 16][4];

#if ROUNDED
typedef float outer; /* an element of what the kernels do not multiply: o, dq, dk and dv */
#else
typedef T outer;
#endif

DEVICE outer *head_of(const attention_heads &h, int batch, int head)
{
    return (outer *)h.data + batch * h.batch + head * h.head;
}

/* What each of q, k, v and d_o must be multiplied by. */
DEVICE float4 scales_of(const attention_call &c)
{
    return ROUNDED ? *(const float4 *)c.scales : make_float4(1, 1, 1, 1);
}

/* One thread brings `Lines` positions, all panels. */
template <int Lines>
DEVICE void bring(const tensor_map &map, uint32_t to, uint32_t full, int position, int head,
                  int batch, uint64_t hint)
{
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        box b = {{p * 64, position, head, batch}};
        tma_load<4>(map, to + p * Lines * 128, b, full, hint);
    }
}

/* One thread brings plain memory, 16-byte pieces of it. */
DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t full)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(full)
        : "memory");
}

/* s = a b^T over features: 64 rows against STEP rows of a stage. Leaves it under way. */
DEVICE void start_scores(scores &s, uint64_t a, uint64_t b)
{
#pragma unroll
    for (int i = 0; i < SIZE / 16; i++)
        wgmma<STEP>::run<ALONG_K, ALONG_K>(
            s, a + (i / 4 * 8192 >> 4) + wgmma_step(ALONG_K, i % 4),
            b + (i / 4 * STEP * 128 >> 4) + wgmma_step(ALONG_K, i % 4), i > 0);
    wgmma_commit();
}

/* o += p b over STEP rows of a stage. Leaves it under way. */
DEVICE void start_results(results &o, const fragments &p, uint64_t b)
{
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        wgmma<SIZE>::run_registers<ALONG_MN>(o, p[i], b + wgmma_step(ALONG_MN, i), 1);
    wgmma_commit();
}

DEVICE void clear(results &o)
{
#pragma unroll
    for (int i = 0; i < SIZE / 2; i++)
        o[i] = 0;
}

/* Which of the block's warpgroups, and which of its warps. */
struct place {
    int group, warp;
};

DEVICE place find_place()
{
    place p = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128 / 32};
    p.group = __shfl_sync(0xffffffffu, p.group, 0);
    p.warp = __shfl_sync(0xffffffffu, p.warp, 0);
    return p;
}

/* The tiles of queries of one head, as units of work of about the same size: where causality makes
 * the last tile the longest, a unit is one from the end and one from the beginning. Where blocks
 * take the next one each, as a formula skips nobody knows what or such pairs leave many blocks
 * without one at the end, each tile is a unit, from the last on. */
struct unit_of_queries {
    int row, batch, head, count, late, early; /* the first queries of its one or two tiles */

    __device__ __forceinline__ int first(int half) const
    {
        return half ? early : late;
    }
};

DEVICE int units_of(const attention_call &c, int rows)
{
    int tiles = (c.queries + rows - 1) / rows;
    return (CAUSAL && !QUEUED ? (tiles + 1) / 2 : tiles) * c.batch * c.heads;
}

DEVICE unit_of_queries unit_at(const attention_call &c, int index, int rows)
{
    int tiles = (c.queries + rows - 1) / rows, each = CAUSAL ? (tiles + 1) / 2 : tiles;
    int at = index % each;
    unit_of_queries u;
    if (QUEUED) {
        u.row = row_of_unit(index, c.batch * c.heads, tiles, &at);
        at = tiles - 1 - at;
    } else {
        u.row = index / each;
    }
    u.batch = u.row / c.heads;
    u.head = u.row % c.heads;
    u.late = (CAUSAL && !QUEUED ? tiles - 1 - at : at) * rows;
    u.early = at * rows;
    u.count = u.late != u.early ? 2 : 1;
    return u;
}

/* Where some warpgroups have no queries of a head's last tile, these tiles come after all whole
 * ones of all heads, so that blocks get as many of them each. Without causality. */
DEVICE unit_of_queries unit_with_short_last(const attention_call &c, int index)
{
    int whole = c.queries / ROWS, rest = c.queries % ROWS, heads = c.batch * c.heads;
    if (whole == 0 || rest == 0 || rest > ROWS - 64)
        return unit_at(c, index, ROWS);
    bool last = index >= whole * heads;
    unit_of_queries u;
    u.row = last ? index - whole * heads : index / whole;
    u.batch = u.row / c.heads;
    u.head = u.row % c.heads;
    u.late = u.early = (last ? whole : index % whole) * ROWS;
    u.count = 1;
    return u;
}

/* A warpgroup waits until it is its turn, and says that it is the next one's. */
DEVICE void wait_turn(int group)
{
    if (ORDER)
        meet(1 + group, 256);
}

DEVICE void pass_turn(int group)
{
    if (ORDER)
        pass(1 + (group + 1) % WARPGROUPS, 256);
}

struct softmax_state {
    float base[2], sum[2]; /* of rows l / 4 and l / 4 + 8: scaled maximum so far, this lane's sum */
};

/* Scores of keys that are not seen, from `seen` on of the tile, become -infinity. */
template <int Count> DEVICE void mask_scores(float (&s)[Count], int seen_low, int seen_high)
{
    seen_low -= 2 * (lane() % 4);
    seen_high -= 2 * (lane() % 4);
#pragma unroll
    for (int i = 0; i < Count; i++)
        if (i / 4 * 8 + i % 2 >= (i & 2 ? seen_high : seen_low))
            s[i] = -INFINITE;
}

/* Scores become probabilities relative to the row's maximum; `fade` is what the row's sums so far
 * must be multiplied by. */
template <int Count>
DEVICE void soften(float (&s)[Count], softmax_state &state, float (&fade)[2], float scale_log2)
{
    float most[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
    for (int i = 4; i < Count; i++)
        most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], s[i]);
    float sum[2][2], base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(most[r][0], most[r][1]), before = state.base[r];
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        state.base[r] = fmaxf(before, top * scale_log2);
        base[r] = state.base[r] == -INFINITE ? 0 : state.base[r];
        fade[r] = exp2_fast(before - base[r]);
        sum[r][0] = state.sum[r] * fade[r];
        sum[r][1] = 0;
    }
#pragma unroll
    for (int i = 0; i < Count; i++) {
        s[i] = exp2_fast(s[i] * scale_log2 - base[i / 2 % 2]);
        sum[i / 2 % 2][i % 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        state.sum[r] = sum[r][0] + sum[r][1];
}

template <int Count> DEVICE void fade_rows(float (&o)[Count], const float (&fade)[2])
{
#pragma unroll
    for (int i = 0; i < Count; i++)
        o[i] *= fade[i / 2 % 2];
}

template <int Count> DEVICE void multiply(float (&s)[Count], float by)
{
#pragma unroll
    for (int i = 0; i < Count; i++)
        s[i] *= by;
}

/* Sums packed as the A of another product: 16 columns an entry. */
template <int Count> DEVICE void pack_a(uint32_t (&a)[Count / 8][4], const float (&s)[Count])
{
#pragma unroll
    for (int k = 0; k < Count / 8; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1], T());
}

/* The numbers of dropout for a tile of 16 queries and 16 keys: the word of e = key % 2 and
 * r = query / 8 % 2 is 2 e + r, its upper half that of key / 8 % 2. */
DEVICE uint64_t random_tile(const attention_call &c, int row, int query, int key)
{
    return DRAWN_TILE(c, row, query, key) * 32;
}

DEVICE bool keeps(uint32_t word, int upper, uint32_t threshold)
{
    return (upper ? word >> 16 : word & 0xffff) >= threshold;
}

/* `query` is the first of the warp's 16. */
template <int Count>
DEVICE void drop(const attention_call &c, float (&s)[Count], int row, int query, int key)
{
#pragma unroll
    for (int k = 0; k < Count / 8; k++) {
        struct philox_words words = philox_block((const uint64_t *)c.random, c.sequence,
                                                 random_tile(c, row, query, key + 16 * k) + lane());
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!keeps(words.at[2 * (i % 2) + i / 2 % 2], i / 4, c.threshold))
                s[8 * k + i] = 0;
    }
}

/* The four words of the four lanes of a row change places, so that word k of lane t becomes word t
 * of lane k: then a lane has 16 bytes of neighbours. */
DEVICE void turn_words(uint32_t (&w)[4])
{
    bool odd = lane() & 1, upper = lane() & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? got : w[i];
        w[i + 1] = odd ? w[i + 1] : got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
        w[i] = upper ? got : w[i];
        w[i + 2] = upper ? w[i + 2] : got;
    }
}

/* A row's results of a lane of four, which lie in pairs of columns. */
template <int Count>
DEVICE void store_pairs(float *row, int size, const float (&o)[Count], int r, float scale)
{
#pragma unroll
    for (int j = 0; j < Count / 4; j++) {
        int column = 8 * j + 2 * (lane() % 4);
        if (column < size)
            *(float2 *)(row + column) =
                make_float2(o[4 * j + 2 * r] * scale, o[4 * j + 2 * r + 1] * scale);
    }
}

/* A warp's 16 rows of results of `size` columns, from `position` on, straight to memory. */
template <int Count>
DEVICE void store_rows(int size, outer *head, long long stride, int position, int limit,
                       const float (&o)[Count], float low, float high)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int at = position + lane() / 4 + 8 * r;
        float scale = r ? high : low;
        outer *row = head + at * stride;
#if ROUNDED
        if (at < limit)
            store_pairs(row, size, o, r, scale);
#else
#pragma unroll
        for (int j = 0; j < Count / 16; j++) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = pack(o[16 * j + 4 * k + 2 * r] * scale,
                            o[16 * j + 4 * k + 2 * r + 1] * scale, T());
            turn_words(w);
            int column = 32 * j + 8 * (lane() % 4);
            if (at < limit && column < size)
                *(uint4 *)(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
#endif
    }
}

/* The rows that delta and lse_log2 have for each head. */
DEVICE long long padded(const attention_call &c)
{
    return (c.queries + NUMBERS_ROUND - 1) / NUMBERS_ROUND * NUMBERS_ROUND;
}

#endif
#endif
