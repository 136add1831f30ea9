/* What blocks of Hopper and later work with: barriers that count arrivals and bytes, clusters,
 * registers handed between warpgroups. */
#ifndef CUP_HOPPER_CUH
#define CUP_HOPPER_CUH

#include "dependent.cuh"
#include "ptx.cuh"

#ifndef WATCHDOG
#define WATCHDOG 0 /* nanoseconds after which a wait ends in a trap; 0: never */
#endif

/* The warpgroup instructions are Hopper's alone; later cards have the rest of this file. */
#ifdef __CUDA_ARCH__
#define CUP_HAS_WGMMA (__CUDA_ARCH__ == 900)
#else
#define CUP_HAS_WGMMA 0
#endif

DEVICE int lane()
{
    return threadIdx.x % 32;
}

#if __CUDA_ARCH__ >= 900

/* The reverse of load_matrices: lane i gives the address of row i % 8 of matrix i / 8. */
DEVICE void store_matrices(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* The same with each matrix turned: as load_matrices_turned reads it. */
DEVICE void store_matrices_turned(uint32_t address, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* True in one lane of a warp whose lanes are all here. */
DEVICE bool elected()
{
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(is));
    return is != 0;
}

/* Barriers of shared memory: a phase ends when `count` arrivals and all announced bytes are in. */
DEVICE void barrier_init(uint32_t barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* Makes barriers that were just made known to copies and to the other blocks of the cluster. */
DEVICE void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and announces bytes that copies will bring. */
DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* Arrives when all copies that this thread has ordered with copy_async are there. */
DEVICE void barrier_arrive_with_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Arrives at the same barrier of block `block` of the cluster. Says that this block has read what
 * copies brought, which needs no fence; writes of this block are not published to that one: a
 * release at cluster scope would wait until all memory of the GPU has settled, some 1000 cycles. */
DEVICE void barrier_arrive_at(uint32_t barrier, uint32_t block)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
                 "r"(block)
                 : "memory");
}

/* Acquires for the block only: at cluster scope each wait would empty the L1 cache. What copies
 * wrote is visible by the barrier itself. */
DEVICE bool barrier_is_over(uint32_t barrier, uint32_t phase)
{
    uint32_t is;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(is)
                 : "r"(barrier), "r"(phase)
                 : "memory");
    return is != 0;
}

/* Orders a copy of neighbouring bytes of global memory, a multiple of 16 and aligned to that, into
 * shared memory; `barrier` is told of them. */
DEVICE void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

DEVICE uint64_t nanoseconds()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Waits until the phase of this parity is over. */
DEVICE void barrier_wait(uint32_t barrier, uint32_t phase)
{
    uint64_t since = WATCHDOG ? nanoseconds() : 0;
    while (!barrier_is_over(barrier, phase))
        if (WATCHDOG && nanoseconds() - since > WATCHDOG)
            __trap();
}

/* Barriers between warps of a block, by number: `threads` must come. */
DEVICE void meet(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Comes without waiting. */
DEVICE void pass(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Makes what this thread wrote to shared memory visible to asynchronous copies and products. */
DEVICE void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all blocks of the cluster. */
DEVICE void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* The same where nothing that threads wrote is handed over, beside barriers by barrier_init_done:
 * without a release, which waits some 1000 cycles for memory. */
DEVICE void cluster_gather()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Sends 16 bytes to the same address of the shared memory of block `block` of the cluster, and
 * tells the same barrier there. Unlike cluster_meet it waits for nothing that this thread wrote. */
DEVICE void send16(uint32_t to, uint32_t barrier, uint32_t block, const uint32_t (&words)[4])
{
    asm volatile("{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 told, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], "
                 "{%3, %4, %5, %6}, [told];\n}\n" ::"r"(to),
                 "r"(barrier), "r"(block), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

DEVICE void send16(uint32_t to, uint32_t barrier, uint32_t block, const float *v)
{
    asm volatile("{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 told, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
                 "{%3, %4, %5, %6}, [told];\n}\n" ::"r"(to),
                 "r"(barrier), "r"(block), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
}

#endif

#if CUP_HAS_WGMMA

/* Registers of each thread of a warpgroup: what one gives up others can take. */
template <int Count> DEVICE void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count> DEVICE void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

#endif
#endif
