/* What moves data in backward's one pass on Hopper: how shared memory is laid out, the thread that
 * orders what comes, and those that add to dq in memory. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_WGMMA_COPIES_CUH
#define CUP_OPS_ATTENTION_ATTENTION_WGMMA_COPIES_CUH

/* Knobs: DQ_STAGES and those of attention_wgmma_grad.cuh. */
#include "attention_wgmma_grad.cuh"

#if CUP_HAS_WGMMA

#define NUMBER_BYTES (STEP * 4) /* of delta or of lse, of one step */
#define DS_BYTES (ROWS * STEP * 2)

struct grad_layout {
    uint32_t k, v, q, d_o, ds, dq, numbers; /* numbers: of each stage the lse and the delta */
    ring<1> k_pipe, v_pipe;
    ring<STAGES> q_pipe, d_o_pipe;
    uint32_t dq_pipes;

    __device__ __forceinline__ ring<DQ_STAGES> dq_pipe(int group) const
    {
        ring<DQ_STAGES> r = {dq_pipes + 16 * DQ_STAGES * group};
        return r;
    }

    __device__ __forceinline__ uint32_t dq_block(int group, int stage) const
    {
        return dq + (group * DQ_STAGES + stage) * BLOCK_BYTES;
    }
};

DEVICE grad_layout lay_out(uint32_t memory)
{
    grad_layout at;
    at.k = memory;
    at.v = at.k + WARPGROUPS * ROW_BYTES;
    at.q = at.v + WARPGROUPS * ROW_BYTES;
    at.d_o = at.q + STAGES * STEP_BYTES;
    at.ds = at.d_o + STAGES * STEP_BYTES;
    at.dq = at.ds + 2 * DS_BYTES;
    at.numbers = at.dq + WARPGROUPS * DQ_STAGES * BLOCK_BYTES;
    at.q_pipe.barriers = at.numbers + STAGES * 2 * NUMBER_BYTES;
    at.d_o_pipe.barriers = at.q_pipe.barriers + 16 * STAGES;
    at.k_pipe.barriers = at.d_o_pipe.barriers + 16 * STAGES;
    at.v_pipe.barriers = at.k_pipe.barriers + 16;
    at.dq_pipes = at.v_pipe.barriers + 16;
    return at;
}

/* The same number, but the compiler does not know: what is made of it is made again each time
 * instead of being kept in registers, of which none are left. */
template <typename Number> DEVICE Number fresh(Number x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* A walk of one block of threads, of one batch and head of keys. */
struct grad_unit {
    int batch, kv, unit, walks;
};

DEVICE int grad_units(const attention_call &c, const pass_shape &s)
{
    return pass_units(s) * c.batch * c.kv_heads;
}

DEVICE grad_unit grad_unit_at(const attention_call &c, const pass_shape &s, int index)
{
    int each = pass_units(s), pair = index / each;
    grad_unit u = {pair / c.kv_heads, pair % c.kv_heads, index % each, 0};
    u.walks = pass_walks(s, u.unit);
    return u;
}

/* The call's shape, made anew. */
DEVICE pass_shape fresh_shape(const attention_call &c, const attention_pass &p)
{
    pass_shape s = {CAUSAL, fresh(c.queries), fresh(c.keys), STEP, fresh(p.around),
                    WINDOW, WINDOW ? fresh(c.mask.before) : 0, WINDOW ? fresh(c.mask.after) : 0};
    return s;
}

DEVICE void bring_rows(const tensor_map &map, uint32_t to, const ring<1> &pipe,
                       const ring_place<1> &place, int key, int kv, int batch)
{
    pipe.claim(place, WARPGROUPS * ROW_BYTES);
#pragma unroll
    for (int w = 0; w < WARPGROUPS; w++)
        bring<64>(map, to + w * ROW_BYTES, pipe.full(0), key + 64 * w, kv, batch,
                  TMA_EVICT_FIRST);
}

DEVICE void bring_step(const attention_call &c, const tensor_map &map, uint32_t to,
                       const ring<STAGES> &pipe, const ring_place<STAGES> &place, uint32_t numbers,
                       const void *from, int query, int row)
{
    pipe.claim(place, STEP_BYTES + NUMBER_BYTES);
    bring<STEP>(map, to + place.stage * STEP_BYTES, pipe.full(place.stage), query, row % c.heads,
                row / c.heads, TMA_EVICT_LAST);
    bulk_load(numbers + place.stage * 2 * NUMBER_BYTES,
              (const float *)from + (long long)row * padded(c) + query, NUMBER_BYTES,
              pipe.full(place.stage));
}

/* A step of queries; before the first ones of a tile are needed, also its keys. */
DEVICE void produce_step(const attention_call &c, const tensor_map &q, const tensor_map &k,
                         const tensor_map &v, const tensor_map &d_o, const grad_layout &at,
                         const ring_place<1> &row_place, const ring_place<STAGES> &place, int row,
                         int query, int key, bool first)
{
    int kv = row % c.heads / (c.heads / c.kv_heads), batch = row / c.heads;
    bring_step(c, q, at.q, at.q_pipe, place, at.numbers, c.lse_log2, query, row);
    if (first)
        bring_rows(k, at.k, at.k_pipe, row_place, key, kv, batch);
    bring_step(c, d_o, at.d_o, at.d_o_pipe, place, at.numbers + NUMBER_BYTES, c.delta, query, row);
    if (first)
        bring_rows(v, at.v, at.v_pipe, row_place, key, kv, batch);
}

/* What is done at each step of all walks of this block: the producer and those who add do it with
 * hardly any registers, so they keep little and find the rest again. */
template <typename Do>
DEVICE void walk_all(const attention_call &c, const attention_pass &p, Do each)
{
#pragma unroll 1
    for (int index = blockIdx.x; index < grad_units(c, fresh_shape(c, p)); index += gridDim.x)
#pragma unroll 1
        for (int half = 0;; half++) {
            grad_unit u = grad_unit_at(c, fresh_shape(c, p), fresh(index));
            if (half == u.walks)
                break;
            pass_walk walk = pass_walk_of(fresh_shape(c, p), u.unit, half);
            int row = u.batch * c.heads + u.kv * (c.heads / c.kv_heads);
            int count = walk.count * (c.heads / c.kv_heads);
#pragma unroll 1
            for (int n = 0, i = 0; n < count; n++) {
                each(row, walk.tile, pass_step(fresh_shape(c, p), walk, i), n == 0);
                if (++i == walk.count) {
                    i = 0;
                    row++;
                }
            }
        }
}

DEVICE void produce(const attention_call &c, const attention_pass &p, const tensor_map &q,
                    const tensor_map &k, const tensor_map &v, const tensor_map &d_o,
                    uint32_t memory)
{
    ring_place<1> row_place = {0, 0};
    ring_place<STAGES> place = {0, 0};
    walk_all(c, p, [&](int row, int tile, int step, bool first) {
        produce_step(c, q, k, v, d_o, lay_out(fresh(memory)), row_place, place, row, step * STEP,
                     tile * ROWS, first);
        if (first)
            row_place.next();
        place.next();
    });
}

/* Waits for the tiles that add to a block before this one. */
DEVICE void wait_for_turn(const unsigned *turns, unsigned turn)
{
    unsigned now;
    uint64_t since = WATCHDOG ? nanoseconds() : 0;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turns) : "memory");
        if (WATCHDOG && nanoseconds() - since > WATCHDOG)
            __trap();
    } while (now != turn);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

DEVICE void give_turn(unsigned *turns, unsigned turn)
{
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(turns),
                 "r"(turn)
                 : "memory");
}

/* One thread adds a block to memory, or puts it there as the first; the copies are one group. */
DEVICE void start_adding(float *to, uint32_t from, bool first)
{
    if (first)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(from), "n"(BLOCK_BYTES)
                     : "memory");
    else
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], "
                     "%2;" ::"l"(to),
                     "r"(from), "n"(BLOCK_BYTES)
                     : "memory");
    tma_store_commit();
}

DEVICE void add_block(const attention_pass &p, const grad_layout &at, ring_place<DQ_STAGES> &place,
                      long long block, unsigned turn, int group)
{
    ring<DQ_STAGES> pipe = at.dq_pipe(group);
    pipe.wait_full(place);
    if (turn > 0)
        wait_for_turn(p.turns + block, turn);
    start_adding(p.dq + block * BLOCK_NUMBERS, at.dq_block(group, place.stage), turn == 0);
    tma_store_wait<0>();
    barrier_arrive(pipe.empty(place.stage));
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    give_turn(p.turns + block, turn + 1);
    place.next();
}

/* One thread for each warpgroup. */
DEVICE void add_blocks(const attention_call &c, const attention_pass &p, uint32_t memory, int group)
{
    ring_place<DQ_STAGES> place = {0, 0};
    walk_all(c, p, [&](int row, int tile, int step, bool) {
        pass_shape s = fresh_shape(c, p);
        long long block = ((long long)row * pass_steps(s) + step) * 2 + group;
        add_block(p, lay_out(fresh(memory)), place, block, pass_turn(s, tile, step), group);
    });
}

#endif
#endif
