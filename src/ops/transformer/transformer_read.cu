/* One row through a block of a transformer, behind the rows whose keys and values are kept: what is
 * done for each token that is written, where the weights cost all and each launch as much as
 * reading a few of them.
 *
 * A thread of the last warp orders boxes of the lines of weights that are the block's into a ring
 * of stages, as far ahead as there is room, from before the kernel in front of this one is done;
 * the other warps multiply, on tensor cores, by numbers that are split in two so that nothing is
 * rounded away. Most of its time goes by while instructions are fetched that run once, so that
 * loops are not unrolled where they turn once. A cluster takes heads of keys with their queries,
 * then columns of the MLP; the blocks of a cluster hand each other what they computed. Sums over
 * heads go through memory, behind the only wait of all blocks for each other; those over columns
 * are made by the blocks that come last, in a fixed order.
 * Grid: clusters that all run at once. */
#include "real_math.cuh"
#include "rope_turn.cuh"
#include "transformer_read_weights.cuh"

#if __CUDA_ARCH__ >= 900

/* The weights, as their boxes come. */
struct weights {
    const tensor_map &qkv, &out, &up, &down;
};

DEVICE void prefetch_maps(const weights &w)
{
    tma_prefetch_map(w.qkv);
    tma_prefetch_map(w.out);
    tma_prefetch_map(w.up);
    tma_prefetch_map(w.down);
}

/* Where head `i` of those that a head of keys takes of qkv begins: its queries, itself, its
 * values. */
DEVICE int head_of(int kv, int i)
{
    return (i < HEADS ? kv * HEADS + i : KV_HEADS * i + kv) * SIZE;
}

DEVICE void produce(const place &p, const ring<STAGES> &pipe, const weights &w)
{
    ring_place<STAGES> at = {0, 0};
#pragma unroll 1
    for (int kv = p.cluster; kv < KV_HEADS; kv += p.clusters) {
#pragma unroll 1
        for (int head = 0; head < HEADS + 2; head++)
            bring<qkv_boxes>(p, pipe, at, w.qkv, 0, head_of(kv, head) + p.rank * HEAD_LINES,
                             HEAD_LINES);
        bring<out_boxes>(p, pipe, at, w.out, kv * TAKEN, p.rank * OWN, OWN);
    }
    bring<up_boxes>(p, pipe, at, w.up, 0, p.first + p.own, p.owned);
    bring<down_boxes>(p, pipe, at, w.down, p.first, p.rank * OWN, OWN);
}

/* The sum over a row in shared memory of what `of` makes of its elements, in all lanes. */
template <typename Of> DEVICE float sum_of_row(const float *row, Of of)
{
    float sum = 0;
#pragma unroll 8
    for (int i = 4 * lane(); i < WIDTH; i += 128) {
        vec<float, 4> v = load_plain<4>(row + i);
        sum += of(v.at[0]) + of(v.at[1]) + (of(v.at[2]) + of(v.at[3]));
    }
    return warp_sum(sum);
}

/* The norm of a row in shared memory; every warp computes mean and deviation for itself. */
DEVICE void norm(place &p, const float *row, int which)
{
    float mean = RMS ? 0 : sum_of_row(row, [](float v) { return v; }) / WIDTH;
    float variance = sum_of_row(row, [=](float v) { return (v - mean) * (v - mean); }) / WIDTH;
    float rstd = rsqrtf(variance + p.c.eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < WIDTH; i += WORKERS)
        p.m.normed[i] = split((row[i] - mean) * rstd * to_real(p.m.norm[2 * which][i]) +
                              to_real(p.m.norm[2 * which + 1][i]));
    meet_workers();
}

DEVICE float real_at(const void *from, int i)
{
    return from ? to_real(((const T *)from)[i]) : 0;
}

/* The biases of the lines of qkv that this block computes for a head of keys. */
DEVICE void read_qkv_bias(place &p, int kv)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN_LINES; i += WORKERS)
        p.m.qkv_bias[i] = real_at(p.c.qkv_bias, head_of(kv, i / HEAD_LINES) +
                                                    p.rank * HEAD_LINES + i % HEAD_LINES);
}

#include "transformer_read_attention.cuh"

/* Norms and biases, which come while others work. */
DEVICE void read_vectors(place &p)
{
    const layer_call &c = p.c;
#pragma unroll 1
    for (int i = threadIdx.x; i < WIDTH; i += WORKERS) {
        p.m.norm[0][i] = ((const T *)c.norm1)[i];
        p.m.norm[1][i] = from_real<T>(real_at(c.norm1_bias, i));
        p.m.norm[2][i] = ((const T *)c.norm2)[i];
        p.m.norm[3][i] = from_real<T>(real_at(c.norm2_bias, i));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN; i += WORKERS) {
        p.m.out_bias[i] = real_at(c.out_bias, p.rank * OWN + i);
        p.m.down_bias[i] = real_at(c.down_bias, p.rank * OWN + i);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < p.owned * UP_LINES; i += WORKERS)
        p.up_bias[i] =
            real_at(c.up_bias, p.first + p.own + i / UP_LINES + i % UP_LINES * HIDDEN);
    if (p.cluster < KV_HEADS)
        read_qkv_bias(p, p.cluster);
}

/* Waits until `count` blocks have come here by arrive_all. */
DEVICE void wait_all(unsigned *counter, unsigned count)
{
    if (threadIdx.x == 0) {
        unsigned come;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(counter)
                         : "memory");
        while (come < count);
    }
    meet_workers();
}

/* Says that what this block wrote is there; how many have said so before. */
DEVICE unsigned arrive_all(unsigned *counter)
{
    meet_workers();
    if (threadIdx.x != 0)
        return 0;
    __threadfence();
    return atomicAdd(counter, 1u);
}

/* x with what all heads add: this block's part of it, sent to the others of the cluster. */
DEVICE void sum_heads(place &p)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN; i += WORKERS) {
        int column = p.rank * OWN + i;
        float value = p.m.x[column] + p.m.out_bias[i];
#pragma unroll 16
        for (int kv = 0; kv < KV_HEADS; kv++)
            value += __ldcg(p.c.attended + kv * WIDTH + column);
        for (int block = 0; block < CLUSTER; block++)
            send(&p.m.sum[column], &p.m.come[SUM], block, value);
    }
    wait_inbox(p, SUM, 0);
}

/* The columns of the MLP that are this cluster's. */
DEVICE void run_up(place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at)
{
    factors<up_boxes> x;
    norm(p, p.m.sum, 1);
    x.load(p.m.normed, WIDTH);
    multiply(p, pipe, at, p.owned, WIDTH, x, 0, UP_MOST);
    meet_workers();
#pragma unroll 1
    for (int i = threadIdx.x; i < p.owned * CLUSTER; i += WORKERS) {
        int column = i / CLUSTER;
        float u = product_of<up_boxes>(p, column) + p.up_bias[UP_LINES * column], value;
        if (GATED)
            value = u * sigmoid_of(u) * (product_of<up_boxes>(p, GATED * UP_MOST + column) +
                                         p.up_bias[UP_LINES * column + GATED]);
        else
            value = gelu_of(u);
        send(&p.columns[p.own + column], &p.m.come[COLUMNS], i % CLUSTER, split(value));
    }
    wait_inbox(p, COLUMNS, 0);
}

/* What these columns add to x, this block's part of it. */
DEVICE void run_down(place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at)
{
    factors<down_boxes> x;
    x.load(p.columns, p.count);
    float *part = p.c.parts + (long long)p.cluster * WIDTH + p.rank * OWN;
    multiply(p, pipe, at, OWN, p.count, x, 0);
    meet_workers();
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN; i += WORKERS)
        part[i] = product_of<down_boxes>(p, i);
}

/* Counters: blocks that are through with attention; for each rank, blocks that are through with the
 * MLP; ranks whose results are written. Who comes last clears them. */
DEVICE void finish(place &p)
{
    unsigned *ranks = p.c.counters + 1, *done = ranks + CLUSTER;
    unsigned before = arrive_all(ranks + p.rank);
    if (threadIdx.x == 0) {
        p.m.last = before == (unsigned)p.clusters - 1;
        if (p.m.last)
            __threadfence();
    }
    meet_workers();
    if (!p.m.last)
        return;
#pragma unroll 1
    for (int i = threadIdx.x; i < OWN; i += WORKERS) {
        int column = p.rank * OWN + i;
        float value = p.m.down_bias[i];
#pragma unroll 16
        for (int k = 0; k < p.clusters; k++)
            value += __ldcg(p.c.parts + (long long)k * WIDTH + column);
        ((T *)p.c.change)[column] = from_real<T>(value);
        ((T *)p.c.sum)[column] = from_real<T>(p.m.sum[column]);
    }
    if (threadIdx.x == 0) {
        ranks[p.rank] = 0;
        if (atomicAdd(done, 1u) == CLUSTER - 1)
            *done = *p.c.counters = 0;
    }
}

DEVICE void work(place &p, const ring<STAGES> &pipe)
{
    ring_place<STAGES> at = {0, 0};
    const layer_call &c = p.c;
    expect(p, SUM, WIDTH);
    expect(p, COLUMNS, p.count);
    if (c.ahead)
        read_vectors(p);
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (!c.ahead)
        read_vectors(p);
    long long position = (long long)*(const id_type *)c.position;
#pragma unroll 1
    for (int i = threadIdx.x; i < WIDTH; i += WORKERS)
        p.m.x[i] = real_at(c.x, i) + real_at(c.delta, i);
    meet_workers();
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    int round = 0;
    for (int kv = p.cluster; kv < KV_HEADS; kv += p.clusters, round++)
        attend(p, pipe, at, kv, position, round);
    if (round)
        arrive_all(c.counters);
    wait_all(c.counters, CLUSTER * min(KV_HEADS, p.clusters));
    sum_heads(p);
    run_up(p, pipe, at);
    run_down(p, pipe, at);
    finish(p);
}

#endif

extern "C" __global__ void __launch_bounds__(LAYER_THREADS, 2)
    transformer_read(const __grid_constant__ tensor_map qkv,
                     const __grid_constant__ tensor_map out, const __grid_constant__ tensor_map up,
                     const __grid_constant__ tensor_map down, const __grid_constant__ layer_call c)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char memory[];
    shared_memory &m = *(shared_memory *)(memory + STAGES * STAGE_BYTES);
    uint32_t *columns = (uint32_t *)(memory + STAGES * STAGE_BYTES + BESIDE);
    place p = {c, m, columns, (float *)(columns + COLUMNS_MOST), shared_address(memory),
               (int)blockIdx.x % CLUSTER, (int)blockIdx.x / CLUSTER, (int)gridDim.x / CLUSTER};
    p.first = 8 * share_of(HIDDEN / 8, p.cluster, p.clusters);
    p.count = 8 * share_of(HIDDEN / 8, p.cluster + 1, p.clusters) - p.first;
    p.own = share_of(p.count, p.rank, CLUSTER);
    p.owned = share_of(p.count, p.rank + 1, CLUSTER) - p.own;
    ring<STAGES> pipe = {shared_address(m.full)};
    weights w = {qkv, out, up, down};
    if (threadIdx.x == WORKERS)
        prefetch_maps(w);
    if (threadIdx.x == 0) {
        pipe.init(WARPS);
        for (int i = 0; i < INBOXES; i++)
            barrier_init(shared_address(&m.come[i]), 1);
        barrier_init_done();
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    if (threadIdx.x >= WORKERS) {
        if (!c.ahead)
            wait_for_previous_kernel();
        if (lane() == 0)
            produce(p, pipe, w);
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    } else {
        work(p, pipe);
    }
#endif
}
