/* A ring of stages in shared memory between one thread that orders copies into them and warps that
 * use what came (sm_90 and on). A stage has two barriers: `full` ends when its bytes are in,
 * `empty` when all its users have let go of it. */
#ifndef CUP_PIPE_CUH
#define CUP_PIPE_CUH

#include "hopper.cuh"

#if __CUDA_ARCH__ >= 900

/* The place in the ring of one side of it. Both sides begin with {0, 0}. */
template <int Stages> struct ring_place {
    int stage;
    uint32_t phase;

    __device__ __forceinline__ void next()
    {
        if (++stage == Stages) {
            stage = 0;
            phase ^= 1;
        }
    }

    __device__ __forceinline__ void skip(int count)
    {
        stage += count;
        phase ^= stage / Stages & 1;
        stage %= Stages;
    }
};

/* The barriers of a ring: from `barriers`, `full` of stage i at 8 i, `empty` at 8 (Stages + i). */
template <int Stages> struct ring {
    uint32_t barriers;

    __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return barriers + 8 * (Stages + stage);
    }

    /* By one thread, before a barrier of the block or cluster. `users` is how often a stage is let
     * go of before it is empty; `fillers` how often something is said to have come. */
    __device__ __forceinline__ void init(int users, int fillers = 1) const
    {
        for (int i = 0; i < Stages; i++) {
            barrier_init(full(i), fillers);
            barrier_init(empty(i), users);
        }
        barrier_init_done();
    }

    /* The producer's: waits until the stage is empty, then says how many bytes will come. */
    __device__ __forceinline__ void claim(const ring_place<Stages> &at, uint32_t bytes) const
    {
        barrier_wait(empty(at.stage), at.phase ^ 1);
        barrier_expect(full(at.stage), bytes);
    }

    __device__ __forceinline__ void wait_full(const ring_place<Stages> &at) const
    {
        barrier_wait(full(at.stage), at.phase);
    }

    /* A user's warp lets go of a stage, in its own block and in the others of a cluster of
     * `Blocks` that write into it. */
    template <int Blocks> __device__ __forceinline__ void release(int stage) const
    {
        if (Blocks == 1) {
            if (lane() == 0)
                barrier_arrive(empty(stage));
        } else if (lane() < Blocks) {
            barrier_arrive_at(empty(stage), lane());
        }
    }
};

#endif
#endif
