/* Attention of the token that comes next: its query and key are turned, its key and value put
 * behind those that are there, and all of them attended to. Where they go is read from memory, so
 * that a graph of such calls is a step of writing, launched for each token. The limit is how fast
 * keys and values can be read.
 *
 * Block x takes (text, kv head), y a share of the keys, z HEADS of its queries. A key is read by
 * LANES lanes, EACH elements a lane, and the lanes of a warp hold several keys; each such group
 * keeps a base and sums of its own, which are joined at the end, of several shares by read_join.
 * The block that takes the new key writes it before it reads. */
#include "qkv_read.cuh"
#include "vec.cuh"

/* Knobs, beside those of qkv_read.cuh: HEADS, WARPS, WHOLE (heads are whole vectors of EACH
 * elements). */
#define UNROLL 4

DEVICE void load_lane(const T *from, int column, int size, real (&to)[EACH])
{
#if WHOLE
    if (column < size) {
        to_reals(load_plain<EACH>(from + column), to);
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = !WHOLE && column + e < size ? to_real(from[column + e]) : 0;
}

#define LINE 128

/* The block's share of the keys that are seen. */
DEVICE void share_of(const read_call &c, long long place, int *from, int *to)
{
    int first = first_seen(c, (int)place), seen = (int)place + 1 - first, y = (int)blockIdx.y;
    bool known = is_known(c, place);
    *from = known ? first + (int)((long long)seen * y / c.shares) : 0;
    *to = known ? first + (int)((long long)seen * (y + 1) / c.shares) : 0;
}

/* Asks L2 for the first keys and values of the block while the kernel before it ends. Where that
 * one moves the place on it is one too small, so nothing else may follow from it. */
DEVICE void ask_ahead(const read_call &c, const T *keys, const T *values, int batch, int from)
{
    long long to = (long long)__ldcg(place_at(c, batch));
#if WINDOWED
    int end;
    share_of(c, to, &from, &end);
    to = end;
#else
    to = to < from + c.share ? to : from + c.share;
#endif
    to = to < c.length ? to : c.length;
    long long bytes = (to - from) * c.size * (int)sizeof(T);
    bytes = bytes < c.ahead ? bytes : c.ahead;
    const char *key = (const char *)(keys + (long long)from * c.size);
    const char *value = (const char *)(values + (long long)from * c.size);
    for (long long i = (long long)threadIdx.x * LINE; i < bytes; i += WARPS * 32 * LINE) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(key + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(value + i));
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    read_fwd(const __grid_constant__ read_call c)
{
    __shared__ real query[HEADS * SIZE], fresh[SIZE], joined[WARPS * HEADS * ROW];
    int batch = (int)blockIdx.x / c.kv_heads, kv = (int)blockIdx.x % c.kv_heads;
    int group = c.heads / c.kv_heads, first = kv * group + (int)blockIdx.z * HEADS;
    int heads = (kv + 1) * group - first, size = c.size;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    T *keys = (T *)c.keys + (long long)blockIdx.x * c.length * size;
    T *values = (T *)c.values + (long long)blockIdx.x * c.length * size;
    int from = (int)blockIdx.y * c.share, to = from + c.share;
    if (blockIdx.z == 0)
        ask_ahead(c, keys, values, batch, from);
    wait_for_previous_kernel();
    let_next_kernel_start();
    long long place = place_of(c, batch), position = position_of(c, batch, place);
    bool known = is_known(c, place);
    const T *row = (const T *)c.qkv + (long long)batch * (c.heads + 2 * c.kv_heads) * size;
#if WINDOWED
    share_of(c, place, &from, &to);
#else
    to = known && to > place + 1 ? (int)place + 1 : known ? to : from;
#endif
    for (int i = (int)threadIdx.x; i < (HEADS + 1) * SIZE; i += WARPS * 32) {
        int head = i / SIZE, d = i % SIZE;
        bool is_key = head == HEADS, valid = d < size && (is_key || head < heads);
        const T *at = row + (is_key ? c.heads + kv : first + head) * size;
        real x = valid ? turned(c, at, d, position) : 0;
        if (is_key)
            fresh[d] = x;
        else
            query[i] = x * (real)c.scale;
        if (is_key && valid && from <= place && place < to) {
            keys[place * size + d] = from_real<T>(x);
            values[place * size + d] = row[(c.heads + c.kv_heads + kv) * size + d];
        }
    }
    __syncthreads();
    int column = lane % LANES * EACH, own = lane / LANES;
    real q[HEADS][EACH], slope[HEADS];
    sums s[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        slope[h] = slope_of(c, h < heads ? first + h : first);
        s[h].base = lowest();
        s[h].weight = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            q[h][e] = query[h * SIZE + column + e];
            s[h].o[e] = 0;
        }
    }
    for (int k = from + warp * GROUPS; k < to; k += WARPS * GROUPS * UNROLL) {
        real key[UNROLL][EACH], value[UNROLL][EACH];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = k + u * WARPS * GROUPS + own, inside = at < to ? size : 0;
            load_lane(keys + (long long)at * size, column, inside, key[u]);
            load_lane(values + (long long)at * size, column, inside, value[u]);
#pragma unroll
            for (int e = 0; e < EACH; e++)
                key[u][e] = at == place ? fresh[column + e] : key[u][e];
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            real score[UNROLL], base = s[h].base;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                score[u] = 0;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    score[u] += q[h][e] * key[u][e];
#pragma unroll
                for (int mask = 1; mask < LANES; mask *= 2)
                    score[u] += shuffle_xor(score[u], mask);
                int at = k + u * WARPS * GROUPS + own;
                score[u] = score_of(c, score[u], slope[h], (int)place - at);
                if (at >= to)
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
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        join_groups(s[h]);
        real *to_row = joined + (warp * HEADS + h) * ROW;
        if (lane < LANES)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                to_row[column + e] = s[h].o[e];
        if (lane == 0) {
            to_row[SIZE] = s[h].base;
            to_row[SIZE + 1] = s[h].weight;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < HEADS * SIZE; i += WARPS * 32) {
        int h = i / SIZE, d = i % SIZE;
        if (h >= heads || d >= size)
            continue;
        real base, weight;
        real value = sum_of(joined + h * ROW, WARPS, HEADS * ROW, SIZE, d, &base, &weight);
        long long head = (long long)batch * c.heads + first + h;
        if (c.shares == 1) {
            store_mean(c, head, d, value, base, weight, known);
            continue;
        }
        real *part = (real *)c.part + (head * c.shares + blockIdx.y) * (size + 2);
        part[d] = value;
        if (d == 0) {
            part[size] = base;
            part[size + 1] = weight;
        }
    }
}

/* Joins the shares of a head; a block each. */
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    read_join(const __grid_constant__ read_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    long long head = blockIdx.x;
    bool known = is_known(c, place_of(c, (int)(head / c.heads)));
    const real *parts = (const real *)c.part + head * c.shares * (c.size + 2);
    for (int d = (int)threadIdx.x; d < c.size; d += WARPS * 32) {
        real base, weight;
        real value = sum_of(parts, c.shares, c.size + 2, c.size, d, &base, &weight);
        store_mean(c, head, d, value, base, weight, known);
    }
}
