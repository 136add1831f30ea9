/* Which block of a persistent grid takes which unit of work: by its number, or, QUEUED, where
 * nobody can tell ahead how long units take, the next one each time that it has taken one. Results
 * do not depend on who makes them (sm_90 and on).
 *
 * A thread of the block takes a number when all have let go of the one before. Of the two numbers
 * at `queue`, one counts those that were taken, and one the blocks that are done, the last of which
 * leaves both at 0 for the next kernel. */
#ifndef CUP_UNITS_CUH
#define CUP_UNITS_CUH

#include "pipe.cuh"
#include "ptx.cuh"

#ifndef QUEUED
#define QUEUED 0
#endif

#if __CUDA_ARCH__ >= 900

/* In shared memory: barriers, then the number of the next unit. */
struct unit_ring {
    ring<1> pipe;

    __device__ __forceinline__ void init(int warps) const
    {
        if (QUEUED)
            pipe.init(warps);
    }

    __device__ __forceinline__ uint32_t number() const
    {
        return pipe.barriers + 16;
    }
};

/* By one thread: gives out numbers up to one that is no unit's, each when all have let go of the
 * one before. */
DEVICE void give_units(unsigned *queue, const unit_ring &to, int units)
{
    ring_place<1> place = {0, 0};
    int i = blockIdx.x;
    while (true) {
        store_shared4(to.number(), (uint32_t)i);
        barrier_arrive(to.pipe.full(0));
        place.next();
        if (i >= units)
            break;
        barrier_wait(to.pipe.empty(0), place.phase ^ 1);
        i = (int)(gridDim.x + atomicAdd(queue, 1u));
    }
    if (atomicAdd(queue + 1, 1u) == gridDim.x - 1)
        queue[0] = queue[1] = 0;
}

/* The side of a warp. What multiplies lets go of a number as soon as it has read it; what orders
 * copies, which is a little ahead, when it says so, or has ordered all of its unit: then the next
 * is taken when a block is nearly there, not while others that are done sooner could have it. */
template <bool Orders> struct unit_taker {
    ring_place<1> place;
    bool holds;

    __device__ __forceinline__ void let_go(const unit_ring &from)
    {
        if (QUEUED && holds)
            from.pipe.release<1>(0);
        holds = false;
    }

    __device__ __forceinline__ int take(const unit_ring &from)
    {
        from.pipe.wait_full(place);
        int i = __shfl_sync(0xffffffffu, (int)load_shared4(from.number()), 0);
        holds = true;
        if (!Orders)
            let_go(from);
        place.next();
        return i;
    }

    __device__ __forceinline__ int first(const unit_ring &from)
    {
        place = {0, 0};
        holds = false;
        return QUEUED ? take(from) : (int)blockIdx.x;
    }

    __device__ __forceinline__ int next(const unit_ring &from, int i)
    {
        let_go(from);
        return QUEUED ? take(from) : i + (int)gridDim.x;
    }
};

/* Of unit `index` of `rows` rows with so many tiles each, its row, and its tile in *tile: the first
 * tiles of some rows, then their second ones. Those rows are a quarter as many as there are blocks,
 * so that neighbouring tiles of a row, which read the same, are under way at the same time. */
DEVICE int row_of_unit(int index, int rows, int tiles, int *tile)
{
    int most = gridDim.x > 4 ? gridDim.x / 4 : 1, first = index / (most * tiles) * most;
    int together = rows - first < most ? rows - first : most, at = index - first * tiles;
    *tile = at / together;
    return first + at % together;
}

#endif
#endif
