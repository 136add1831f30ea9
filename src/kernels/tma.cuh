/* Copies of boxes of a tensor by the tensor memory accelerator (sm_90 and on). The host describes
 * the tensor, its box and how it is swizzled in a tensor map; coordinates are in elements, the
 * dimension that is contiguous first. What lies outside the tensor reads as zero and is not
 * written. */
#ifndef CUP_TMA_CUH
#define CUP_TMA_CUH

#include "dtype.cuh"

struct alignas(64) tensor_map {
    uint64_t words[16];
};

#define TMA_DIMS 4

/* Where a box begins. A map has Rank dimensions; the others are not looked at. */
struct box {
    int at[TMA_DIMS];
};

/* How likely the bytes are to be read again. */
#define TMA_EVICT_NORMAL 0x1000000000000000ull
#define TMA_EVICT_FIRST 0x12F0000000000000ull
#define TMA_EVICT_LAST 0x14F0000000000000ull

#if __CUDA_ARCH__ >= 900

DEVICE void tma_prefetch_map(const tensor_map &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* Brings a box; `barrier` is told of its bytes. */
template <int Rank>
DEVICE void tma_load(const tensor_map &map, uint32_t to, const box &b, uint32_t barrier,
                     uint64_t hint)
{
    if (Rank == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "l"(hint)
                     : "memory");
    else if (Rank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]), "l"(hint)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]),
                     "r"(b.at[3]), "l"(hint)
                     : "memory");
}

/* The same into all blocks of the cluster whose bit is in `blocks`: to the same address, told to
 * the same barrier, in each. */
template <int Rank>
DEVICE void tma_load_shared(const tensor_map &map, uint32_t to, const box &b, uint32_t barrier,
                            uint16_t blocks, uint64_t hint)
{
    if (Rank == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(
                         to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "h"(blocks), "l"(hint)
                     : "memory");
    else if (Rank == 3)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, "
                     "%7;" ::"r"(to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]),
                     "h"(blocks), "l"(hint)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, "
                     "%8;" ::"r"(to),
                     "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]),
                     "r"(b.at[3]), "h"(blocks), "l"(hint)
                     : "memory");
}

/* Brings places of an image [N][H][W][C], some channels of each; its map says how they are walked
 * over, and how many. The first is at `b`; all are read `right` columns and `down` rows further
 * on. */
DEVICE void tma_load_places(const tensor_map &map, uint32_t to, const box &b, int right, int down,
                            uint32_t barrier, uint64_t hint)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col"
                 ".mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], "
                 "[%2], {%7, %8}, %9;" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]), "r"(b.at[3]),
                 "h"((uint16_t)right), "h"((uint16_t)down), "l"(hint)
                 : "memory");
}

/* Takes a box to the tensor. */
template <int Rank> DEVICE void tma_store(const tensor_map &map, uint32_t from, const box &b)
{
    if (Rank == 2)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], "
                     "[%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1])
                     : "memory");
    else if (Rank == 3)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], "
                     "[%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2])
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, "
                     "%5}], [%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]), "r"(b.at[3])
                     : "memory");
}

/* Adds a box to what the tensor has there. */
template <int Rank> DEVICE void tma_add(const tensor_map &map, uint32_t from, const box &b)
{
    if (Rank == 2)
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, "
                     "{%2, %3}], [%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1])
                     : "memory");
    else if (Rank == 3)
        asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, "
                     "{%2, %3, %4}], [%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2])
                     : "memory");
    else
        asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, "
                     "{%2, %3, %4, %5}], [%1];" ::"l"(&map),
                     "r"(from), "r"(b.at[0]), "r"(b.at[1]), "r"(b.at[2]), "r"(b.at[3])
                     : "memory");
}

DEVICE void tma_store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most Pending of this thread's committed stores still read shared memory. */
template <int Pending> DEVICE void tma_store_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

#endif
#endif
