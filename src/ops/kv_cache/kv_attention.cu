/* Attention of new tokens to all that is kept of their sequences, in plain arithmetic: what tensor
 * cores do not take. How long a sequence is stands in memory, so that a graph of such calls is a
 * step of writing, launched for each token. The limit is how fast keys and values can be read.
 *
 * The new tokens of all heads that share keys are rows. Block x takes (sequence, kv head), y a
 * share of the keys, z ROWS of the rows. A key is read by LANES lanes, EACH elements a lane, and
 * the lanes of a warp hold several keys; each such group keeps a base and sums of its own, which
 * are joined at the end, of several shares by kv_join. */
#include "dependent.cuh"
#include "kv_cache.cuh"
#include "reduce.cuh"
#include "vec.cuh"

/* Knobs, beside those of kv_cache.cuh: EACH, LANES, ROWS, WARPS, WHOLE (heads are whole vectors of
 * EACH elements), SOFT_CAP, SINKS. */
#ifndef EACH
#define EACH 4
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef SINKS
#define SINKS 0
#endif
#define UNROLL (EACH > 4 ? 2 : 4)
#define LOG2_E 1.4426950408889634
#define JOIN_THREADS 128
#include "lane_sums.cuh"

DEVICE void load_lane(const kept *from, long long step, int column, int size, real (&to)[EACH])
{
#if WHOLE
    if (column < size) {
        const vec<kept, EACH> v = load_plain<EACH>(from + column);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            to[e] = (real)to_real(v.at[e]);
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = !WHOLE && column + e < size ? (real)to_real(from[(column + e) * step]) : 0;
}

DEVICE real scale_of(const kv_heads &h, const kv_place &place, int head)
{
    return SCALED && place.known ? ((const real *)h.data)[offset_kept(h, place, head)] : 1;
}

DEVICE void store_mean(const kv_call &c, int batch, int head, int token, int d, real value,
                       real base, real weight, bool known)
{
#if SINKS
    real sink = ((const real *)c.sinks)[head * c.sinks_step] * (real)LOG2_E;
    real top = larger(base, sink), factor = weight == 0 ? 0 : exp2(base - top);
    if (weight != 0) {
        weight = weight * factor + weight_of(sink, top);
        value *= factor;
    }
#endif
    real mean = weight == 0 ? 0 : value / weight;
    T *to = (T *)c.o.data + batch * c.o.batch + head * c.o.head + token * c.o.token;
    to[d * c.o.feature] = from_real<T>(known ? mean : lowest() * 0);
}

/* A row of the block: the keys that it sees. */
struct sight {
    int first, end;
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    kv_lanes(const __grid_constant__ kv_call c)
{
    __shared__ real query[ROWS * SIZE], joined[WARPS * ROWS * ROW];
    int batch = (int)blockIdx.x / c.kv_heads, kv = (int)blockIdx.x % c.kv_heads;
    int group = c.heads / c.kv_heads, first = (int)blockIdx.z * ROWS;
    int rows = group * c.tokens - first;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    wait_for_previous_kernel();
    let_next_kernel_start();
    kv_sequence s = sequence_of(c, batch);
    int low = s.length + 1 > c.window ? s.length + 1 - c.window : 0;
    int span = s.count ? s.length + s.count - low : 0;
    int from = low + (int)((long long)span * blockIdx.y / c.shares);
    int to = low + (int)((long long)span * (blockIdx.y + 1) / c.shares);
    for (int i = (int)threadIdx.x; i < ROWS * SIZE; i += WARPS * 32) {
        int row = i / SIZE, d = i % SIZE, token = (first + row) % c.tokens;
        int head = kv * group + (first + row) / c.tokens;
        const T *at = (const T *)c.q.data + batch * c.q.batch + head * c.q.head +
                      token * c.q.token + d * c.q.feature;
        query[i] = row < rows && d < c.size ? to_real(*at) * (real)c.scale : 0;
    }
    __syncthreads();
    int column = lane % LANES * EACH, own = lane / LANES;
    real q[ROWS][EACH];
    sums all[ROWS];
    sight seen[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int token = (first + r) % c.tokens, end = s.length + token + 1;
        bool valid = r < rows && token < s.count;
        seen[r].first = end - c.window;
        seen[r].end = valid ? (end < to ? end : to) : 0;
        all[r].base = lowest();
        all[r].weight = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            q[r][e] = query[r * SIZE + column + e];
            all[r].o[e] = 0;
        }
    }
    for (int k = from + warp * GROUPS; k < to; k += WARPS * GROUPS * UNROLL) {
        real key[UNROLL][EACH], value[UNROLL][EACH], key_scale[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int at = k + u * WARPS * GROUPS + own;
            kv_place place = {0, 0, false};
            if (at < to)
                place = place_kept(c, batch, at);
            if (!place.known)
                place.page = 0;
            load_lane((const kept *)c.keys.data + offset_kept(c.keys, place, kv), c.keys.feature,
                      column, place.known ? c.size : 0, key[u]);
            load_lane((const kept *)c.values.data + offset_kept(c.values, place, kv),
                      c.values.feature, column, place.known ? c.value_size : 0, value[u]);
            key_scale[u] = scale_of(c.key_scales, place, kv);
            real scale = scale_of(c.value_scales, place, kv);
#pragma unroll
            for (int e = 0; e < EACH && SCALED; e++)
                value[u][e] *= scale;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            real score[UNROLL], base = all[r].base;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int at = k + u * WARPS * GROUPS + own;
                score[u] = 0;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    score[u] += q[r][e] * key[u][e];
#pragma unroll
                for (int mask = 1; mask < LANES; mask *= 2)
                    score[u] += shuffle_xor(score[u], mask);
                if (SCALED)
                    score[u] *= key_scale[u];
                if (SOFT_CAP)
                    score[u] = (real)c.cap * tanh(score[u]);
                if (at < seen[r].first || at >= seen[r].end)
                    score[u] = lowest();
                base = larger(base, score[u]);
            }
            if (base > all[r].base)
                fade(all[r], base);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                real weight = weight_of(score[u], base);
                all[r].weight += weight;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    all[r].o[e] += weight == 0 ? 0 : weight * value[u][e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        join_groups(all[r]);
        real *to_row = joined + (warp * ROWS + r) * ROW;
        if (lane < LANES)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                to_row[column + e] = all[r].o[e];
        if (lane == 0) {
            to_row[SIZE] = all[r].base;
            to_row[SIZE + 1] = all[r].weight;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < ROWS * SIZE; i += WARPS * 32) {
        int r = i / SIZE, d = i % SIZE;
        if (r >= rows || d >= c.value_size)
            continue;
        real base, weight, value = sum_of(joined + r * ROW, WARPS, ROWS * ROW, SIZE, d, &base,
                                          &weight);
        int token = (first + r) % c.tokens, head = kv * group + (first + r) / c.tokens;
        if (c.shares == 1) {
            store_mean(c, batch, head, token, d, value, base, weight, s.known);
            continue;
        }
        long long place = ((long long)batch * c.heads + head) * c.tokens + token;
        real *part = (real *)c.part + (place * c.shares + blockIdx.y) * (c.value_size + 2);
        part[d] = value;
        if (d == 0) {
            part[c.value_size] = base;
            part[c.value_size + 1] = weight;
        }
    }
}

/* Joins the shares of a row, a block each. Every warp finds what they weigh, a lane a share; then a
 * thread adds up a column of them. */
extern "C" __global__ void __launch_bounds__(JOIN_THREADS)
    kv_join(const __grid_constant__ kv_call c)
{
    __shared__ real factors[KV_SHARES_MOST];
    long long place = blockIdx.x;
    int lane = (int)threadIdx.x % 32, row = c.value_size + 2;
    int token = (int)(place % c.tokens), head = (int)(place / c.tokens % c.heads);
    int batch = (int)(place / c.tokens / c.heads);
    wait_for_previous_kernel();
    let_next_kernel_start();
    bool known = sequence_of(c, batch).known;
    const real *parts = (const real *)c.part + place * c.shares * row;
    real base = lowest(), weight = 0;
    for (int i = lane; i < c.shares; i += 32)
        base = larger(base, parts[i * row + c.value_size]);
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
        base = larger(base, shuffle_xor(base, mask));
    for (int i = lane; i < c.shares; i += 32) {
        real own = parts[i * row + c.value_size + 1];
        real factor = own == 0 ? 0 : exp2(parts[i * row + c.value_size] - base);
        weight += factor * own;
        if (threadIdx.x < 32)
            factors[i] = factor;
    }
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
        weight += shuffle_xor(weight, mask);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < c.value_size; d += JOIN_THREADS) {
        real value = 0;
#pragma unroll 16
        for (int i = 0; i < c.shares; i++)
            value += factors[i] * parts[i * row + d];
        store_mean(c, batch, head, token, d, value, base, weight, known);
    }
}
