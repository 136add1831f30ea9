/* What the kernels that stream weights past a few rows of x share: which part of the weights is a
 * block's, and how sums of parts of k find the block that adds them. Uses their knob WARPS, how
 * many warps multiply. */
#ifndef CUP_STREAM_CUH
#define CUP_STREAM_CUH

#include "packed.cuh"
#include "pipe.cuh"
#include "tma.cuh"

#if __CUDA_ARCH__ >= 900

/* What a block works on. */
struct place {
    int first, units; /* of 16 rows */
    int begin, bytes; /* of every row */
    int rank, cluster, shift; /* of 1 << shift blocks */
    long long batch;
    uint32_t stages, joint, sums, inbox, x; /* addresses in shared memory */
};

/* Says that this block has made its barriers; waits until all blocks have. */
DEVICE void come_to_cluster(const place &p)
{
    if (p.cluster > 1)
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

DEVICE void wait_for_cluster(const place &p)
{
    if (p.cluster > 1)
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(TMA_EVICT_FIRST)
                 : "memory");
}

DEVICE void take_place(const stream_call &s, place &p)
{
    p.shift = s.cluster_shift;
    p.cluster = 1 << p.shift;
    p.rank = blockIdx.x & (p.cluster - 1);
    p.batch = blockIdx.y;
    p.first = (blockIdx.x >> p.shift) * s.units;
    p.units = min(s.units, (s.n + 15) / 16 - p.first);
    p.begin = p.rank * s.part;
    p.bytes = max(0, min(s.part, s.line - p.begin));
}

/* Sends four neighbours of a unit's row of sums to the unit's owner. */
DEVICE void send_quad(const stream_call &s, const place &p, int unit, int token, int quad,
                      const float (&total)[4])
{
    uint32_t words[4] = {__float_as_uint(total[0]), __float_as_uint(total[1]),
                         __float_as_uint(total[2]), __float_as_uint(total[3])};
    int slot = (unit >> p.shift << p.shift) + p.rank;
    uint32_t to = p.inbox + 16 * ((slot * s.m + token) * 4 + quad);
    if (p.cluster == 1)
        store_shared16(to, make_uint4(words[0], words[1], words[2], words[3]));
    else
        send16(to, p.joint, unit & (p.cluster - 1), words);
}

/* A sum, all its parts added. */
DEVICE void write_one(const stream_call &s, const place &p, int token, int row, float v)
{
    if (row >= s.n)
        return;
    if (s.bias)
        v += to_real(((const T *)s.bias)[row]);
    long long at = p.batch * s.y_batch + token * s.y_row + row;
    if (s.pre)
        ((T *)s.pre)[at] = from_real<T>(v);
    ((T *)s.y)[at] = from_real<T>(activated(v));
}

/* How many of the units this block owns. */
DEVICE int owned_of(const place &p)
{
    return (p.units - p.rank + p.cluster - 1) >> p.shift;
}

DEVICE void write_owned(const stream_call &s, const place &p)
{
    int lines = owned_of(p) * s.m;
    if (lines <= 0)
        return;
    float one_token = 1.0f / (float)s.m;
    if (p.cluster == 1)
        meet(1, 32 * WARPS);
    else
        barrier_wait(p.joint, 0);
#pragma unroll 1
    for (int i = threadIdx.x; i < lines * 16; i += 32 * WARPS) {
        int unit = (int)(((float)(i / 16) + 0.5f) * one_token), token = i / 16 - unit * s.m;
        int row = (p.first + (unit << p.shift) + p.rank) * 16 + i % 16;
        float v = 0;
        uint32_t from = p.inbox + 4 * (((unit << p.shift) * s.m + token) * 16 + i % 16);
#pragma unroll 1
        for (int block = 0; block < p.cluster; block++, from += 64 * s.m)
            v += __uint_as_float(load_shared4(from));
        write_one(s, p, token, row, v);
    }
}

/* The last warp makes the barriers and produces by one thread, which `prepares` while the kernel in
 * front of this one ends; the others consume. */
template <int Stages, typename Prepare, typename Produce, typename Consume>
DEVICE void stream(const stream_call &s, const place &p, const ring<Stages> &pipe, Prepare prepare,
                   Produce produce, Consume consume)
{
    const int threads = 32 * WARPS + 32;
    if (threadIdx.x / 32 == WARPS) {
        if (lane() == 0) {
            barrier_init(p.joint, 1);
            pipe.init(WARPS);
        }
        __syncwarp();
        come_to_cluster(p);
        pass(2, threads);
        if (lane() == 0)
            prepare();
        wait_for_previous_kernel();
        if (lane() == 0)
            produce();
        __syncwarp();
        wait_for_cluster(p);
    } else {
        come_to_cluster(p);
        meet(2, threads);
        if (threadIdx.x == 0 && p.cluster > 1 && p.units > p.rank)
            barrier_expect(p.joint, (owned_of(p) << p.shift) * s.m * 64);
        wait_for_previous_kernel();
        let_next_kernel_start();
        consume();
    }
}

#endif
#endif
