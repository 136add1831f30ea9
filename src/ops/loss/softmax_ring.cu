/* Softmax, or with LOG its logarithm, of rows of some thousand elements on Hopper and later, f32
 * and 16-bit floats. A row comes into shared memory in parts (ops/loss/row_ring.cuh), its logsumexp
 * is found as they arrive, it is overwritten there and copied out. x is read once, y written once;
 * the warps of BLOCKS blocks a multiprocessor fill each other's waits. */
#include "row_found.cuh"

/* A knob: LOG. */

#if __CUDA_ARCH__ >= 900

struct outcome {
    exponential e;
    float most, scale; /* what an element is multiplied by, or has taken from it */

    __device__ __forceinline__ explicit outcome(const found &f)
        : e(f.most), most(f.most), scale(LOG ? log_of(f.sum) : 1 / f.sum)
    {
    }
    __device__ __forceinline__ float operator()(float x) const
    {
        return LOG ? (x - most) - scale : e(x) * scale;
    }
};

DEVICE void overwrite_part(const row_ring &ring, int64_t k, int part, const outcome &o)
{
    unit *at = ring.slot(k) + part * RING_PART + lane();
    int count = ring.part_count(part) - lane();
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (p * 32 >= count)
            break;
        unit v = load_plain<VEC>((const T *)(at + p * 32));
        float out[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++)
            out[i] = o(to_real(v.at[i]));
        store((T *)(at + p * 32), from_reals<T, VEC>(out));
    }
}

/* Into the places of row k, when all copies out of them have been read. */
DEVICE void fetch_again(const row_ring &ring, const T *x, int vectors, int64_t k)
{
    if (lane() == 0) {
        bulk_stores_read<0>();
        for (int part = 0; part < ring.parts; part++)
            ring.fetch(x, vectors, k + RING, part);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(RING_THREADS, BLOCKS)
softmax_sm90(const T *x, T *y, int64_t rows, int width)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ row_ring_shared shared;
    int vectors = width / VEC;
    row_ring ring(&shared, (unit *)memory, vectors, rows);
    ring.fetch_first(x, vectors);
    for (int64_t k = 0; k < ring.rows; k++) {
        found f = {lowest(0.0f), 0, 0, 0};
        for (int part = 0; part < ring.parts; part++) {
            ring.wait(k, part);
            take_part(f, ring, k, part, width, false);
        }
        if (RING > 1 && k > 0)
            fetch_again(ring, x, vectors, k - 1);
        send(ring, k, f, false);
        f = receive(ring, k, false);
        outcome o(f);
        for (int part = 0; part < ring.parts; part++) {
            overwrite_part(ring, k, part, o);
            publish_shared();
            __syncwarp();
            if (lane() == 0)
                ring.put(y, vectors, k, part);
        }
        if (RING == 1)
            fetch_again(ring, x, vectors, k);
    }
    ring.leave();
#endif
}
