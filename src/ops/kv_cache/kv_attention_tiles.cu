/* kv_attention on tensor cores, in f16 and bf16. The limit is how fast keys and values can be read,
 * which is done once for up to 64 rows: the new tokens of all heads that share keys.
 *
 * Block x takes (sequence, kv head), y a share of the keys, z 16 ROW_WARPS rows. All its threads
 * copy tiles of KEYS keys and values through a ring of STAGES tiles; its warps take 16 rows and
 * KEYS / KEY_WARPS keys of each, and put their sums together at the end. What is kept as codes is
 * made wide in shared memory: values with their scales, keys without, whose scales the scores take.
 * With several shares each block writes its sums to `part`, and kv_join of kv_attention.cu joins
 * them. */
#ifndef SIZE
#define SIZE 128 /* of a head, up to a multiple of 16 */
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 1
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 4
#endif
#ifndef KEYS
#define KEYS 64
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef SOFT_CAP
#define SOFT_CAP 0
#endif
#ifndef WINDOWED
#define WINDOWED 0
#endif

#define A_IN_REGISTERS (SIZE <= 128)
#include "attention.cuh"
#include "dependent.cuh"
#include "kv_cache.cuh"

#define THREADS (ROW_WARPS * KEY_WARPS * 32)
#define ROWS (ROW_WARPS * 16)
#define OWN (KEYS / KEY_WARPS)
#define CODES (STORED != CUP_T)
#define KEPT_BYTES (CODES ? 1 : 2)
#define KEPT_IN_16_BYTES (16 / KEPT_BYTES)
#define KEPT_PITCH (CODES ? SIZE : PITCH)
#define TILE (KEYS * PITCH)
#define KEPT_TILE (KEYS * KEPT_PITCH)
#define STAGE (2 * KEPT_TILE + (SCALED ? 8 * KEYS : 0)) /* keys, values, scales of both */
#define ROW_FLOATS (SIZE + 4) /* of a row of sums in shared memory */

/* A row of the group: a head of it and a token. */
struct place {
    int head, token;
};

DEVICE place place_of(const kv_call &c, int kv, int row)
{
    int head = row / c.tokens;
    return {kv * (c.heads / c.kv_heads) + head, row - head * c.tokens};
}

DEVICE void load_queries(const kv_call &c, uint32_t to, int batch, int kv, int first, int rows)
{
    const int chunks = SIZE / IN_16_BYTES;
    for (int i = (int)threadIdx.x; i < ROWS * chunks; i += THREADS) {
        int row = first + i / chunks, column = i % chunks * IN_16_BYTES;
        place p = place_of(c, kv, row < rows ? row : 0);
        bool valid = row < rows && column < c.size;
        const T *from = (const T *)c.q.data + batch * c.q.batch + p.head * c.q.head +
                        p.token * c.q.token;
        copy_async16(to + i / chunks * PITCH + i % chunks * 16, from + (valid ? column : 0), valid);
    }
}

/* Begins to copy the keys from `first` up to `limit`, and their values; others are 0. */
DEVICE void load_stage(const kv_call &c, uint32_t to, int batch, int kv, int first, int limit)
{
    const int chunks = SIZE / KEPT_IN_16_BYTES;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < KEYS * chunks; i += THREADS) {
        int key = first + i / chunks, column = i % chunks * KEPT_IN_16_BYTES;
        kv_place place = {0, 0, false};
        if (key < limit && column < c.size)
            place = place_kept(c, batch, key);
        long long k_at = place.known ? offset_kept(c.keys, place, kv) + column : 0;
        long long v_at = place.known ? offset_kept(c.values, place, kv) + column : 0;
        uint32_t there = to + i / chunks * KEPT_PITCH + i % chunks * 16;
        copy_async16(there, (const kept *)c.keys.data + k_at, place.known);
        copy_async16(there + KEPT_TILE, (const kept *)c.values.data + v_at, place.known);
    }
    for (int i = (int)threadIdx.x; SCALED && i < KEYS; i += THREADS) {
        kv_place place = {0, 0, false};
        if (first + i < limit)
            place = place_kept(c, batch, first + i);
        long long k_at = place.known ? offset_kept(c.key_scales, place, kv) : 0;
        long long v_at = place.known ? offset_kept(c.value_scales, place, kv) : 0;
        uint32_t there = to + 2 * KEPT_TILE + i * 4;
        copy_async4(there, (const float *)c.key_scales.data + k_at, place.known);
        copy_async4(there + 4 * KEYS, (const float *)c.value_scales.data + v_at, place.known);
    }
}

/* Sixteen codes, times a scale, as elements. */
DEVICE void widen_codes(uint32_t to, uint32_t from, float scale)
{
    union {
        uint4 words;
        kept codes[16];
    } u;
    u.words = load_shared16(from);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[i] = pack((float)to_real(u.codes[8 * half + 2 * i]) * scale,
                           (float)to_real(u.codes[8 * half + 2 * i + 1]) * scale, T());
        store_shared16(to + 16 * half, make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

DEVICE void widen_stage(uint32_t to, uint32_t stage)
{
    const int chunks = SIZE / 16;
    for (int i = (int)threadIdx.x; i < KEYS * chunks; i += THREADS) {
        int row = i / chunks, chunk = i % chunks;
        uint32_t from = stage + row * KEPT_PITCH + chunk * 16;
        uint32_t scale = stage + 2 * KEPT_TILE + 4 * (KEYS + row);
        widen_codes(to + row * PITCH + chunk * 32, from, 1);
        widen_codes(to + TILE + row * PITCH + chunk * 32, from + KEPT_TILE,
                    SCALED ? __uint_as_float(load_shared4(scale)) : 1);
    }
}

/* What becomes of scores before they are weights; `scales` are those of their keys. */
DEVICE void change(float (&s)[OWN / 8][4], const kv_call &c, uint32_t scales)
{
#pragma unroll
    for (int j = 0; j < OWN / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (SCALED)
                s[j][i] *= __uint_as_float(
                    load_shared4(scales + 4 * (8 * j + lane_id() % 4 * 2 + i % 2)));
            if (SOFT_CAP)
                s[j][i] = (float)c.cap * tanhf(s[j][i] * (float)c.scale);
        }
}

DEVICE void store_element(const kv_call &c, int batch, place p, int d, float value)
{
    T *to = (T *)c.o.data + batch * c.o.batch + p.head * c.o.head + p.token * c.o.token;
    to[d * c.o.feature] = from_real<T>(value);
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

/* Puts the sums of the warps together: `sums` holds [KEY_WARPS, ROWS, ROW_FLOATS], of which the
 * last floats of a row are its base and its sum. */
DEVICE void join_warps(const kv_call &c, const float *sums, int batch, int kv, int first, int rows,
                       bool known)
{
    for (int i = (int)threadIdx.x / 32; i < ROWS && first + i < rows; i += THREADS / 32) {
        float base = -INFINITE, sum = 0, weight[KEY_WARPS];
        for (int w = 0; w < KEY_WARPS; w++)
            base = fmaxf(base, sums[(w * ROWS + i) * ROW_FLOATS + SIZE]);
        for (int w = 0; w < KEY_WARPS; w++) {
            const float *row = sums + (w * ROWS + i) * ROW_FLOATS;
            weight[w] = exp2_fast(row[SIZE] - (base == -INFINITE ? 0 : base));
            sum += weight[w] * row[SIZE + 1];
        }
        place p = place_of(c, kv, first + i);
        long long at = ((long long)batch * c.heads + p.head) * c.tokens + p.token;
        float *part = (float *)c.part + (at * c.shares + blockIdx.y) * (c.value_size + 2);
        float whole = sum, fade = c.shares > 1 ? 1 : add_sink(c, p.head, base, &whole);
        float scale = !known ? INFINITE * 0 : whole == 0 ? 0 : fade / whole;
        for (int d = lane_id(); d < c.value_size; d += 32) {
            float value = 0;
            for (int w = 0; w < KEY_WARPS; w++)
                value += weight[w] * sums[(w * ROWS + i) * ROW_FLOATS + d];
            if (c.shares > 1)
                part[d] = value;
            else
                store_element(c, batch, p, d, value * scale);
        }
        if (lane_id() == 0 && c.shares > 1) {
            part[c.value_size] = base;
            part[c.value_size + 1] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    kv_tiles(const __grid_constant__ kv_call c)
{
    extern __shared__ uint4 memory[];
    const int warp = (int)threadIdx.x / 32;
    const int row_warp = warp % ROW_WARPS, key_warp = warp / ROW_WARPS;
    const int g = lane_id() / 4, t = lane_id() % 4;
    uint32_t q_tile = shared_address(memory), wide = q_tile + ROWS * PITCH;
    uint32_t stages = wide + (CODES ? 2 * TILE : 0);
    int batch = (int)blockIdx.x / c.kv_heads, kv = (int)blockIdx.x % c.kv_heads;
    int first = (int)blockIdx.z * ROWS, rows = c.heads / c.kv_heads * c.tokens;
    wait_for_previous_kernel();
    let_next_kernel_start();
    kv_sequence s = sequence_of(c, batch);
    int low = s.length + 1 > c.window ? s.length + 1 - c.window : 0;
    int span = s.count ? s.length + s.count - low : 0;
    int from = low + (int)((long long)span * blockIdx.y / c.shares);
    int to = low + (int)((long long)span * (blockIdx.y + 1) / c.shares);
    int tiles = (to - from + KEYS - 1) / KEYS;

    load_queries(c, q_tile, batch, kv, first, rows);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < tiles)
            load_stage(c, stages + i * STAGE, batch, kv, from + i * KEYS, to);
        copies_end();
    }
    copies_wait<STAGES - 2>();
    __syncthreads();
    uint32_t q[DEPTH_STEPS][4], own_q = q_tile + row_warp * 16 * PITCH;
    load_fragments(q, own_q);
    float o[SIZE / 8][4], scale = SOFT_CAP ? 1 : (float)c.scale;
    clear(o);
    softmax_state state = {{-INFINITE, -INFINITE}, {0, 0}};
    int end[2], begin[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first + row_warp * 16 + g + 8 * r;
        place p = place_of(c, kv, row);
        begin[r] = s.length + p.token + 1 - c.window;
        end[r] = s.length + p.token + 1;
        end[r] = row >= rows || p.token >= s.count ? 0 : end[r] < to ? end[r] : to;
    }
    int stage = 0;
    for (int n = 0; n < tiles; n++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        int next = n + STAGES - 1, free_stage = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < tiles)
            load_stage(c, stages + free_stage * STAGE, batch, kv, from + next * KEYS, to);
        copies_end();
        uint32_t here = stages + stage * STAGE, k_tile = CODES ? wide : here;
        if (CODES) {
            widen_stage(wide, here);
            __syncthreads();
        }
        uint32_t v_tile = k_tile + TILE + key_warp * OWN * PITCH;
        int key = from + n * KEYS + key_warp * OWN;
        float scores[OWN / 8][4], fade[2];
        multiply_rows(scores, q, own_q, k_tile + key_warp * OWN * PITCH);
        if (SCALED || SOFT_CAP)
            change(scores, c, here + 2 * KEPT_TILE + key_warp * OWN * 4);
        if (key + OWN > s.length + 1 || key + OWN > to || s.count < c.tokens)
            mask_scores(scores, end[0] - key, end[1] - key);
        if (WINDOWED)
            mask_before(scores, begin[0] - key, begin[1] - key);
        soften(scores, state, fade, scale);
        if (__any_sync(0xffffffffu, fade[0] != 1 || fade[1] != 1))
            fade_rows(o, fade);
        multiply_columns(o, scores, v_tile, 0);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    float *sums = (float *)memory + (key_warp * ROWS + row_warp * 16) * ROW_FLOATS;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++)
            sums[(g + i / 2 * 8) * ROW_FLOATS + 8 * j + 2 * t + i % 2] = o[j][i];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) {
            sums[(g + 8 * r) * ROW_FLOATS + SIZE] = state.base[r];
            sums[(g + 8 * r) * ROW_FLOATS + SIZE + 1] = sum;
        }
    }
    __syncthreads();
    join_warps(c, (const float *)memory, batch, kv, first, rows, s.known);
}
