/* Attention of few queries over many keys: what a model does for each token it
 * writes. The limit is how fast K and V can be read.
 *
 * The queries of all heads of a group are rows of one A of 16. Block x takes (batch, kv head), y a
 * share of the keys, z 16 rows; its warps take tiles of KEYS keys in turn, each through a ring of
 * STAGES tiles of its own, and put their sums together at the end. With several shares each block
 * writes its sums to `part`, and attention_combine joins them.
 * K and V once: 4 B G S D bytes. */
#ifndef SIZE
#define SIZE 128 /* of a head, up to a multiple of 16 */
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef KEYS
#define KEYS 16
#endif
#ifndef STAGES
#define STAGES 3
#endif

#define A_IN_REGISTERS (!WIDE && SIZE <= 128)
#include "attention.cuh"

#define TILE (KEYS * PITCH)
#define ROW_FLOATS (SIZE + 4) /* of a row of sums in shared memory */

/* A packed row: a head of the group and a query. */
DEVICE void place_of(const attention_call &c, int row, int *head, int *query)
{
    *head = row / c.queries;
    *query = row % c.queries;
}

DEVICE void load_packed(const attention_call &c, uint32_t to, int batch, int kv, int first,
                        int rows)
{
    const int chunks = SIZE / IN_16_BYTES;
    int group = c.heads / c.kv_heads;
    for (int i = (int)threadIdx.x; i < 16 * chunks; i += WARPS * 32) {
        int row = first + i / chunks, chunk = i % chunks, head, query;
        place_of(c, row < rows ? row : 0, &head, &query);
        bool valid = row < rows && chunk * IN_16_BYTES < c.size;
        const T *from = head_of(c.q, batch, kv * group + head) + query * c.q.position;
        copy_async16(to + i / chunks * PITCH + chunk * 16, from + (valid ? chunk * IN_16_BYTES : 0),
                     valid);
    }
}

DEVICE int seen_by_row(const attention_call &c, int batch, int row)
{
    return seen_by(c, batch, row % c.queries);
}

DEVICE score_rows rows_scored(const attention_call &c, int batch, int kv, int row, int row8)
{
    int group = c.heads / c.kv_heads, head, query, head8, query8;
    place_of(c, row, &head, &query);
    place_of(c, row8, &head8, &query8);
    /* Rows past the last have no head. */
    head = head < group ? head : 0;
    head8 = head8 < group ? head8 : 0;
    return score_rows_of(c, batch, kv * group + head, query, kv * group + head8, query8);
}

/* The sums of one row, weights already made equal. */
DEVICE void store_row(const attention_call &c, int batch, int head, int query, int column,
                      float value)
{
    if (column < c.size)
        head_of(c.o, batch, head)[query * c.o.position + column] = from_real<T>(value);
}

DEVICE void store_lse(const attention_call &c, int batch, int head, int query, float base,
                      float sum)
{
    if (c.lse)
        ((float *)c.lse)[((long long)batch * c.heads + head) * c.queries + query] =
            lse_of(base, sum, score_scale(c));
}

/* Puts the sums of the warps together: `sums` holds [WARPS, 16, ROW_FLOATS], of which the last
 * floats of a row are its base and its sum. */
DEVICE void join_warps(const attention_call &c, const float *sums, int batch, int kv, int first,
                       int rows)
{
    int warp = (int)threadIdx.x / 32, group = c.heads / c.kv_heads;
    for (int i = warp; i < 16 && first + i < rows; i += WARPS) {
        float base = -INFINITE, sum = 0, weight[WARPS];
        for (int w = 0; w < WARPS; w++)
            base = fmaxf(base, sums[(w * 16 + i) * ROW_FLOATS + SIZE]);
        for (int w = 0; w < WARPS; w++) {
            const float *row = sums + (w * 16 + i) * ROW_FLOATS;
            weight[w] = fade_of(row[SIZE], base == -INFINITE ? 0 : base, score_scale(c));
            sum += weight[w] * row[SIZE + 1];
        }
        int head, query;
        place_of(c, first + i, &head, &query);
        head += kv * group;
        long long place = ((long long)batch * c.heads + head) * c.queries + query;
        float fade = c.splits > 1 ? 1 : take_sink(c, head, &base, &sum);
        float *part = (float *)c.part + (place * c.splits + blockIdx.y) * (c.size + 2);
        float scale = c.splits > 1 ? 1 : sum == 0 ? 0 : fade / sum;
        for (int d = lane_id(); d < c.size; d += 32) {
            float value = 0;
            for (int w = 0; w < WARPS; w++)
                value += weight[w] * sums[(w * 16 + i) * ROW_FLOATS + d];
            if (c.splits > 1)
                part[d] = value;
            else
                store_row(c, batch, head, query, d, value * scale);
        }
        if (lane_id() == 0 && c.splits > 1) {
            part[c.size] = base;
            part[c.size + 1] = sum;
        } else if (lane_id() == 0) {
            store_lse(c, batch, head, query, base, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    attention_decode(const __grid_constant__ attention_call c)
{
    extern __shared__ uint4 memory[];
    int warp = (int)threadIdx.x / 32, lane = lane_id();
    uint32_t q_tile = shared_address(memory);
    uint32_t k_tiles = q_tile + 16 * PITCH + warp * STAGES * 2 * TILE, v_tiles = k_tiles + TILE;
    int batch = (int)blockIdx.x / c.kv_heads, kv = (int)blockIdx.x % c.kv_heads;
    int first = (int)blockIdx.z * 16, rows = c.heads / c.kv_heads * c.queries;
    const T *keys = head_of(c.k, batch, kv), *values = head_of(c.v, batch, kv);
    const int begin = first_tile(c, batch, 0, KEYS);
    int end = WINDOW ? seen_by(c, batch, c.queries - 1) : c.keys;
    int all = (end + KEYS - 1) / KEYS - begin;
    if (WINDOW && all < 0)
        all = 0;
    int from = begin + (int)((long long)all * blockIdx.y / c.splits) + warp;
    int to = begin + (int)((long long)all * (blockIdx.y + 1) / c.splits);

    load_packed(c, q_tile, batch, kv, first, rows);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        int key = (from + i * WARPS) * KEYS, limit = from + i * WARPS < to ? c.keys : 0;
        load_tile<KEYS, 32>(lane, k_tiles + i * 2 * TILE, keys, c.k.position, key, limit, c.size);
        load_tile<KEYS, 32>(lane, v_tiles + i * 2 * TILE, values, c.v.position, key, limit, c.size);
        copies_end();
    }
    copies_wait<STAGES - 2>();
    __syncthreads();
    uint32_t q[DEPTH_STEPS][4];
    load_fragments(q, q_tile);
    float o[SIZE / 8][4], scale = score_scale(c);
    clear(o);
    softmax_state state = {{-INFINITE, -INFINITE}, {0, 0}};
    int seen_g = seen_by_row(c, batch, first + lane / 4),
        seen_g8 = seen_by_row(c, batch, first + lane / 4 + 8);
    int first_g = first_seen(c, batch, (first + lane / 4) % c.queries);
    int first_g8 = first_seen(c, batch, (first + lane / 4 + 8) % c.queries);
    score_rows scored = rows_scored(c, batch, kv, first + lane / 4, first + lane / 4 + 8);
    int stage = 0;
    for (int n = from; n < to; n += WARPS) {
        int next = n + (STAGES - 1) * WARPS, free_stage = stage == 0 ? STAGES - 1 : stage - 1;
        __syncwarp();
        if (next < to) {
            int offset = free_stage * 2 * TILE;
            load_tile<KEYS, 32>(lane, k_tiles + offset, keys, c.k.position, next * KEYS, c.keys,
                                c.size);
            load_tile<KEYS, 32>(lane, v_tiles + offset, values, c.v.position, next * KEYS, c.keys,
                                c.size);
        }
        copies_end();
        copies_wait<STAGES - 1>();
        __syncwarp();
        float s[KEYS / 8][4], fade[2];
        multiply_rows(s, q, q_tile, k_tiles + stage * 2 * TILE);
        change_scores(s, c, scored, n * KEYS);
        if (CAUSAL || WINDOW || (n + 1) * KEYS > c.keys)
            mask_scores(s, seen_g - n * KEYS, seen_g8 - n * KEYS);
        if (WINDOW)
            mask_before(s, first_g - n * KEYS, first_g8 - n * KEYS);
        soften(s, state, fade, scale);
        if (__any_sync(0xffffffffu, fade[0] != 1 || fade[1] != 1))
            fade_rows(o, fade);
        multiply_columns(o, s, v_tiles + stage * 2 * TILE, 0);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    float *sums = (float *)memory + (long long)warp * 16 * ROW_FLOATS;
    int g = lane / 4, t = lane % 4;
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
    join_warps(c, (const float *)memory, batch, kv, first, rows);
}

/* Joins the parts of one query of one head; a warp each. */
extern "C" __global__ void __launch_bounds__(128)
    attention_combine(const __grid_constant__ attention_call c)
{
    long long place = (long long)blockIdx.x * 4 + threadIdx.x / 32;
    if (place >= (long long)c.batch * c.heads * c.queries)
        return;
    int query = (int)(place % c.queries), head = (int)(place / c.queries % c.heads);
    int batch = (int)(place / c.queries / c.heads), lane = lane_id();
    const float *part = (const float *)c.part + place * c.splits * (c.size + 2);
    float base = -INFINITE, sum = 0;
    for (int i = 0; i < c.splits; i++)
        base = fmaxf(base, part[i * (c.size + 2) + c.size]);
    float finite = base == -INFINITE ? 0 : base;
    for (int i = 0; i < c.splits; i++) {
        const float *row = part + i * (c.size + 2);
        sum += fade_of(row[c.size], finite, score_scale(c)) * row[c.size + 1];
    }
    const float fade = take_sink(c, head, &base, &sum);
    for (int d = lane; d < c.size; d += 32) {
        float value = 0;
        for (int i = 0; i < c.splits; i++) {
            const float *row = part + i * (c.size + 2);
            value += fade_of(row[c.size], finite, score_scale(c)) * row[d];
        }
        store_row(c, batch, head, query, d, sum == 0 ? 0 : value * fade / sum);
    }
    if (lane == 0)
        store_lse(c, batch, head, query, base, sum);
}
