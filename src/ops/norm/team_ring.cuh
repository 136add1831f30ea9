/* Rows on their way through shared memory (sm_90 and on): a team of threads has a ring of STAGES
 * places, each for SHARE neighbouring rows of every input, and one of its threads orders the rows
 * of a place by asynchronous copies as soon as the team has read what was there. So the bytes in
 * flight depend neither on registers nor on how long the arithmetic takes.
 *
 * A team is a group of rows.cuh, or the groups of one warp, which then take neighbouring rows.
 * Blocks stay: team t of the grid takes the shares t, t + teams, ... */
#ifndef CUP_OPS_NORM_TEAM_RING_CUH
#define CUP_OPS_NORM_TEAM_RING_CUH

#include "hopper.cuh"
#include "rows.cuh"

/* A knob: STAGES. */
#define TEAM (GROUP < 32 ? 32 : GROUP)
#define TEAMS (THREADS / TEAM)
#define SHARE (TEAM / GROUP) /* rows a team works on at once */

#if __CUDA_ARCH__ >= 900

DEVICE void team_barrier()
{
    if (GROUP <= 32)
        __syncwarp();
    else if (GROUPS == 1)
        __syncthreads();
    else
        group_barrier(1 + (int)threadIdx.x / TEAM, TEAM);
}

template <typename Element, int Inputs> struct team_ring {
    const Element *from[Inputs];
    int64_t rows, shares, step;
    int width, slot;
    uint32_t full, place, phase; /* addresses in shared memory */
    const Element *memory;
    bool leader;

    __device__ __forceinline__ int elements() const { return SHARE * width; }

    /* The leader's: the rows of share `share` into place `to`. */
    __device__ __forceinline__ void order(int64_t share, int to) const
    {
        int64_t first = share * SHARE;
        int count = rows - first < SHARE ? (int)(rows - first) : SHARE;
        uint32_t bytes = (uint32_t)(count * width * (int)sizeof(Element));
        uint32_t size = (uint32_t)(elements() * (int)sizeof(Element));
        barrier_expect(full + 8 * to, bytes * Inputs);
#pragma unroll
        for (int i = 0; i < Inputs; i++)
            copy_bulk(place + (to * Inputs + i) * size, from[i] + first * width, bytes,
                      full + 8 * to);
    }

    /* All threads of the block call, with 8 * TEAMS * STAGES bytes of shared memory for the
     * barriers and, aligned to 16 bytes, that of the places. */
    __device__ __forceinline__ int64_t begin(uint64_t *barriers, unsigned char *places)
    {
        int team = (int)threadIdx.x / TEAM;
        shares = (rows + SHARE - 1) / SHARE;
        step = (int64_t)gridDim.x * TEAMS;
        memory = (const Element *)places + team * STAGES * Inputs * elements();
        full = shared_address(barriers + team * STAGES);
        place = shared_address(memory);
        leader = threadIdx.x % TEAM == 0;
        slot = 0;
        phase = 0;
        int64_t share = (int64_t)blockIdx.x * TEAMS + team;
        if (leader) {
            for (int i = 0; i < STAGES; i++)
                barrier_init(full + 8 * i, 1);
            barrier_init_done();
            for (int i = 0; i < STAGES; i++)
                if (share + i * step < shares)
                    order(share + i * step, i);
        }
        __syncthreads();
        return share;
    }

    __device__ __forceinline__ void wait() const { barrier_wait(full + 8 * slot, phase); }

    /* Row `at` of the place of input `i`. */
    __device__ __forceinline__ const Element *row(int i, int at) const
    {
        return memory + (slot * Inputs + i) * elements() + at * width;
    }

    /* After a barrier of the team behind its last read of the place. */
    __device__ __forceinline__ void refill(int64_t share) const
    {
        if (leader && share + STAGES * step < shares)
            order(share + STAGES * step, slot);
    }

    __device__ __forceinline__ void next()
    {
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
};

#endif
#endif
