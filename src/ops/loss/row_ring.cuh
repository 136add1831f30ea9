/* Long rows that go through shared memory once (sm_90 and on): copied in ahead of their use, read
 * there as often as needed, and copied out from there after they were overwritten.
 *
 * A persistent grid of clusters; a cluster of CLUSTER blocks takes a row at a time, and each of its
 * CLUSTER * WARPS warps a slice of it. Every warp keeps a ring of RING slices of its own, so that
 * warps meet only where they join what they found. A row is made of lines of 32 vectors, one for
 * each lane, of which only the last can be short; a slice is copied in parts of PIECES lines, each
 * with a barrier, and a part's place is free for a later row as soon as the copy out of it has been
 * read. */
#ifndef CUP_OPS_LOSS_ROW_RING_CUH
#define CUP_OPS_LOSS_ROW_RING_CUH

#include "hopper.cuh"
#include "row_share.cuh"
#include "vec.cuh"

/* Knobs: WARPS, PIECES, RING, BLOCKS (that fit a multiprocessor together), CLUSTER. */
#define VEC (16 / (int)sizeof(T))
#define RING_THREADS (WARPS * 32)
#define RING_PART (32 * PIECES)
#define RING_PARTS 16 /* of a slice, at most */
#define ROW_WORDS 2   /* rows whose words are kept */

typedef vec<T, VEC> unit;

#if __CUDA_ARCH__ >= 900

DEVICE void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most Pending of this thread's stores still read shared memory. */
template <int Pending> DEVICE void bulk_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/* What the warps tell each other of a row: 16 bytes from each. */
struct alignas(16) row_word {
    float at[4];
};

struct row_ring_shared {
    row_word words[ROW_WORDS][CLUSTER * WARPS];
    alignas(8) uint64_t full[RING][WARPS][RING_PARTS], met[ROW_WORDS];
};

/* One warp's view. Rows are numbered as this cluster meets them: 0, 1, 2, ... */
struct row_ring {
    row_ring_shared *shared;
    unit *slots;     /* RING slices of this warp */
    int warp, place, slice; /* in the block; in the cluster; vectors a slice has room for */
    row_share own;          /* of the row's vectors */
    int parts;
    int64_t stride, rows; /* rows: how many this cluster has */

    __device__ __forceinline__ row_ring(row_ring_shared *shared_, unit *memory, int vectors,
                                        int64_t all_rows)
    {
        shared = shared_;
        warp = (int)threadIdx.x / 32;
        const int all = CLUSTER * WARPS;
        slice = row_share_room(vectors, all);
        place = (CLUSTER > 1 ? (int)cluster_rank() : 0) * WARPS + warp;
        own = row_share_of(vectors, place, all);
        parts = (own.count + RING_PART - 1) / RING_PART;
        slots = memory + warp * RING * slice;
        stride = gridDim.x / CLUSTER;
        int64_t begin = blockIdx.x / CLUSTER;
        rows = begin < all_rows ? (all_rows - begin + stride - 1) / stride : 0;
        for (int i = lane(); i < RING * RING_PARTS; i += 32)
            barrier_init(full(i / RING_PARTS, i % RING_PARTS), 1);
        if (threadIdx.x < ROW_WORDS)
            barrier_init(shared_address(&shared->met[threadIdx.x]), CLUSTER == 1 ? WARPS : 1);
        barrier_init_done();
        __syncwarp();
        if (CLUSTER > 1)
            cluster_meet();
        else
            __syncthreads();
    }

    __device__ __forceinline__ uint32_t full(int slot, int part) const
    {
        return shared_address(&shared->full[slot][warp][part]);
    }

    /* The row of the tensor that is this cluster's row k. */
    __device__ __forceinline__ int64_t row(int64_t k) const
    {
        return blockIdx.x / CLUSTER + k * stride;
    }

    __device__ __forceinline__ unit *slot(int64_t k) const { return slots + k % RING * slice; }

    __device__ __forceinline__ int part_count(int part) const
    {
        return row_part_count(own, part, RING_PART);
    }

    /* Whether a part of this warp has a vector of the row. */
    __device__ __forceinline__ bool holds(int part, int vector) const
    {
        return row_part_holds(own, part, RING_PART, vector);
    }

    /* By one lane: starts the copy of a part of row k of `x`. */
    __device__ __forceinline__ void fetch(const T *x, int vectors, int64_t k, int part) const
    {
        if (k >= rows)
            return;
        int at = part * RING_PART;
        uint32_t bytes = (uint32_t)part_count(part) * 16, barrier = full((int)(k % RING), part);
        barrier_expect(barrier, bytes);
        copy_bulk(shared_address(slot(k) + at),
                  x + (row(k) * vectors + own.first + at) * VEC, bytes, barrier);
    }

    __device__ __forceinline__ void fetch_first(const T *x, int vectors) const
    {
        if (lane() == 0)
            for (int k = 0; k < RING; k++)
                for (int part = 0; part < parts; part++)
                    fetch(x, vectors, k, part);
    }

    __device__ __forceinline__ void wait(int64_t k, int part) const
    {
        barrier_wait(full((int)(k % RING), part), (uint32_t)(k / RING) & 1);
    }

    /* By one lane: copies a part of row k out to `y`. */
    __device__ __forceinline__ void put(T *y, int vectors, int64_t k, int part) const
    {
        int at = part * RING_PART;
        bulk_store(y + (row(k) * vectors + own.first + at) * VEC, shared_address(slot(k) + at),
                   (uint32_t)part_count(part) * 16);
    }

    /* Gives the warp's word of row k to all warps of the cluster. All lanes call. Row k + 2 takes
     * the place of row k: who sends that has received row k + 1, whose senders have read row k. */
    __device__ __forceinline__ void send(int64_t k, const row_word &word) const
    {
        int turn = (int)k % ROW_WORDS;
        uint32_t met = shared_address(&shared->met[turn]);
        if (CLUSTER == 1) {
            if (lane() == 0) {
                shared->words[turn][warp] = word;
                barrier_arrive(met);
            }
            return;
        }
        if (threadIdx.x == 0)
            barrier_expect(met, CLUSTER * WARPS * sizeof(row_word));
        if (lane() < CLUSTER)
            asm volatile("{\n.reg .b32 to, met;\n"
                         "mapa.shared::cluster.u32 to, %0, %2;\n"
                         "mapa.shared::cluster.u32 met, %1, %2;\n"
                         "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], "
                         "{%3, %4, %5, %6}, [met];\n}\n" ::"r"(
                             shared_address(&shared->words[turn][place])),
                         "r"(met), "r"(lane()), "f"(word.at[0]), "f"(word.at[1]), "f"(word.at[2]),
                         "f"(word.at[3])
                         : "memory");
    }

    /* The words of row k, CLUSTER * WARPS of them in the order of the row. */
    __device__ __forceinline__ const row_word *receive(int64_t k) const
    {
        int turn = (int)k % ROW_WORDS;
        barrier_wait(shared_address(&shared->met[turn]), (uint32_t)(k / ROW_WORDS) & 1);
        return shared->words[turn];
    }

    /* Before the end: nothing may be on its way to or from the shared memory of a block that is
     * gone. */
    __device__ __forceinline__ void leave() const
    {
        if (lane() == 0)
            bulk_stores_read<0>();
        if (CLUSTER > 1)
            cluster_meet();
    }
};

#endif
#endif
