/* Flash attention, forward, on tensor cores fed from registers (mma.sync), for 16-bit floats
 * and f32.
 *
 * Block x computes ROWS queries of one head; each of its warps has 16 of them, Q in registers, and
 * walks over tiles of KEYS keys that all share, copied asynchronously one tile ahead. Scores stay
 * in registers: running maximum and sum a row, probabilities packed into the A of the second
 * product. The last rows of a head, which see the most keys, are started first. 4 B H T S D flops,
 * halved by causality; Q, K, V, O once, K and V mostly from the L2 cache. */
#ifndef SIZE
#define SIZE 64 /* of a head, up to a multiple of 16 */
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef KEYS
#define KEYS 64
#endif
#ifndef STAGES
#define STAGES 2 /* tiles of keys and of values in shared memory */
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

#define A_IN_REGISTERS (!WIDE && SIZE <= 128)
#include "attention.cuh"

#define ROWS (16 * WARPS)
/* Where in the ring tile n of keys is, the `met`-th that is met. */
#define PLACE(n, met) ((LISTS ? (met) : (n)) % STAGES)

DEVICE void drop(const attention_call &c, float (&s)[KEYS / 8][4], int head, int query, int key)
{
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
        struct philox_words words =
            philox_block((const uint64_t *)c.random, c.sequence,
                         random_tile(c, head, query, key + 16 * j) + lane_id());
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int upper = i / 4, r = i / 2 % 2, e = i % 2;
            if (!keeps(words.at[2 * e + r], upper, c.threshold))
                s[2 * j + upper][2 * r + e] = 0;
        }
    }
}

DEVICE void finish(const attention_call &c, softmax_state &state, float (&o)[SIZE / 8][4],
                   int batch, int head, int query, uint32_t tile)
{
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = state.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        float fade = take_sink(c, head, &state.base[r], &sum);
        scale[r] = sum == 0 ? 0 : (DROPOUT ? c.factor : 1.0f) * fade / sum;
        int row = query + lane_id() / 4 + 8 * r;
        if (c.lse && lane_id() % 4 == 0 && row < c.queries)
            ((float *)c.lse)[((long long)batch * c.heads + head) * c.queries + row] =
                lse_of(state.base[r], sum, score_scale(c));
    }
    store_rows(head_of(c.o, batch, head), c.o.position, query, c.queries, 0, c.size, tile, o,
               scale[0], scale[1]);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    attention_fwd(const __grid_constant__ attention_call c)
{
    extern __shared__ uint4 memory[];
    const int tile_bytes = KEYS * PITCH;
    uint32_t q_tile = shared_address(memory), k_tiles = q_tile + ROWS * PITCH;
    uint32_t v_tiles = k_tiles + STAGES * tile_bytes;
    int blocks = (c.queries + ROWS - 1) / ROWS, row = (int)(blockIdx.x / (unsigned)blocks);
    int first = (blocks - 1 - (int)(blockIdx.x % (unsigned)blocks)) * ROWS;
    int batch = row / c.heads, head = row % c.heads, kv = head / (c.heads / c.kv_heads);
    const T *keys = head_of(c.k, batch, kv), *values = head_of(c.v, batch, kv);
    int last = first + ROWS < c.queries ? first + ROWS : c.queries;
    int end = seen_by(c, batch, last - 1), tiles = end > 0 ? (end + KEYS - 1) / KEYS : 0;
    const int begin = listed_from(c, batch, head, first, ROWS,
                                  first_tile(c, batch, first, KEYS), tiles, KEYS);
    int query = first + (int)threadIdx.x / 32 * 16;
    uint32_t own_tile = q_tile + (int)threadIdx.x / 32 * 16 * PITCH;

    load_tile<ROWS, WARPS * 32>(threadIdx.x, q_tile, head_of(c.q, batch, head), c.q.position, first,
                                c.queries, c.size);
    copies_end();
    if (STAGES == 2 && (WINDOW || LISTS ? begin < tiles : tiles)) {
        int to = PLACE(begin, 0) * tile_bytes;
        load_tile<KEYS, WARPS * 32>(threadIdx.x, k_tiles + to, keys, c.k.position, begin * KEYS,
                                    c.keys, c.size);
        load_tile<KEYS, WARPS * 32>(threadIdx.x, v_tiles + to, values, c.v.position, begin * KEYS,
                                    c.keys, c.size);
    }
    copies_end();
    copies_wait<1>();
    __syncthreads();
    uint32_t q[DEPTH_STEPS][4];
    load_fragments(q, own_tile);
    float o[SIZE / 8][4], scale = score_scale(c);
    clear(o);
    softmax_state state = {{-INFINITE, -INFINITE}, {0, 0}};
    score_rows rows =
        score_rows_of(c, batch, head, query + lane_id() / 4, head, query + lane_id() / 4 + 8);

#pragma unroll 1
    for (int n = begin, met = 0, after; n < tiles; n = after, met++) {
        after = listed_from(c, batch, head, first, ROWS, n + 1, tiles, KEYS);
        int next = STAGES == 2 ? after : n;
        if (next < tiles) {
            int to = PLACE(next, met + STAGES - 1) * tile_bytes;
            load_tile<KEYS, WARPS * 32>(threadIdx.x, k_tiles + to, keys, c.k.position, next * KEYS,
                                        c.keys, c.size);
            load_tile<KEYS, WARPS * 32>(threadIdx.x, v_tiles + to, values, c.v.position,
                                        next * KEYS, c.keys, c.size);
        }
        copies_end();
        copies_wait<STAGES - 1>();
        __syncthreads();
        int at = PLACE(n, met) * tile_bytes;
        if (n * KEYS < seen_by(c, batch, query + 15) &&
            (!WINDOW || (n + 1) * KEYS > first_seen(c, batch, query)) &&
            is_listed(c, batch, head, query, 16, n * KEYS, KEYS)) {
            float s[KEYS / 8][4], fade[2];
            multiply_rows(s, q, own_tile, k_tiles + at);
            change_scores(s, c, rows, n * KEYS);
            if ((n + 1) * KEYS > seen_by(c, batch, query))
                mask_scores(s, seen_by(c, batch, query + lane_id() / 4) - n * KEYS,
                            seen_by(c, batch, query + lane_id() / 4 + 8) - n * KEYS);
            if (WINDOW && n * KEYS < first_seen(c, batch, query + 15))
                mask_before(s, first_seen(c, batch, query + lane_id() / 4) - n * KEYS,
                            first_seen(c, batch, query + lane_id() / 4 + 8) - n * KEYS);
            mask_unlisted(c, batch, head, query, n * KEYS, s);
            soften(s, state, fade, scale);
            fade_rows(o, fade);
            if (DROPOUT)
                drop(c, s, row, query, n * KEYS);
            multiply_columns(o, s, v_tiles + at, 0);
        }
        __syncthreads();
    }
    finish(c, state, o, batch, head, query, own_tile);
}
