/* Layernorm and its kin of long rows on Hopper and later. As
 * layernorm_spread.cu, but parts of rows come through a ring in shared memory, and a block tells
 * the moments of its next part before it waits for those of the others and writes the part before:
 * by then they have long been told, so memory is never idle. Reads x once, writes y once.
 * Grid: blocks that all run at once and take every gridDim-th part. */
#define PIVOT 1
#include "hopper.cuh"
#include "layernorm_row.cuh"
#include "spread.cuh"

/* Knobs: BLOCKS (that run at once on a multiprocessor), SLOTS (parts that a block has room for). */
#define INPUTS (1 + ADD)

#if __CUDA_ARCH__ >= 900

/* Part `task` of the rows, and its row. */
struct part {
    int64_t row, first;
    int from;
    extent e, whole;

    __device__ __forceinline__ part(int64_t task, int chunks, int width)
    {
        row = task / chunks;
        from = (int)(task - row * chunks) * SPAN;
        int64_t start = first = row * width;
        whole = extent_of(start, width, 0);
        e = extent_of(first, width, from);
    }
};

struct inputs {
    const T *x, *residual;
    T *memory; /* [SLOTS][INPUTS][SPAN] */
    uint32_t full;

    __device__ __forceinline__ T *slot(int at) const { return memory + at * INPUTS * SPAN; }

    __device__ __forceinline__ void order(const part &p, int at) const
    {
        int count = p.e.end < SPAN ? (p.e.end + VEC - 1) / VEC * VEC : SPAN;
        uint32_t bytes = count > 0 ? (uint32_t)count * (uint32_t)sizeof(T) : 0;
        uint32_t barrier = full + 8 * at;
        barrier_expect(barrier, INPUTS * bytes);
        if (!bytes)
            return;
        copy_bulk(shared_address(slot(at)), x + p.first, bytes, barrier);
        if (ADD)
            copy_bulk(shared_address(slot(at) + SPAN), residual + p.first, bytes, barrier);
    }
};

/* Vector `p` of this thread, of x and what is added. */
DEVICE void unpack(const T *slot, int p, real (&v)[VEC])
{
    to_reals(load_plain<VEC>(slot + piece_at(p)), v);
    if (ADD) {
        real other[VEC];
        to_reals(load_plain<VEC>(slot + SPAN + piece_at(p)), other);
        add_rounded(v, other);
    }
}

DEVICE real pivot_of(const T *slot, extent e)
{
    int at = e.begin > 0 ? e.begin : 0;
    if (!CENTRED)
        return 0;
    return ADD ? rounded_sum(slot[at], slot[SPAN + at]) : to_real(slot[at]);
}

DEVICE pair sums_of(const T *slot, extent e, real pivot)
{
    pair sums[2] = {};
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (e.has(p)) {
            real v[VEC];
            unpack(slot, p, v);
            add_moments(sums, v, p, e, pivot, CENTRED);
        }
    return two_sums()(sums[0], sums[1]);
}

DEVICE void tell_part(const T *slot, const part &p, uint64_t *notes, int64_t task)
{
    real pivot = pivot_of(slot, p.e), n = (real)(p.e.count() > 0 ? p.e.count() : 1);
    pair sums = group_reduce<0>(sums_of(slot, p.e, pivot), two_sums());
    real shift = CENTRED ? sums.a / n : 0;
    real squares = CENTRED ? sums.b - sums.a * shift : sums.b;
    if (CENTRED && shift * sums.a > FAR * squares) {
        pivot += shift;
        sums = group_reduce<1>(sums_of(slot, p.e, pivot), two_sums());
        shift = sums.a / n;
        squares = sums.b - sums.a * shift;
    }
    if (threadIdx.x == 0)
        tell(notes, task, CENTRED ? pivot + shift : 0, squares);
}

DEVICE void write_part(const T *slot, const part &part, const weights &gamma, const weights &beta,
                       T *y, T *sum, real mean, real rstd)
{
    real pivot = pivot_of(slot, part.e), less = (pivot - mean) * rstd;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (part.e.has(p)) {
            real v[VEC];
            unpack(slot, p, v);
            if (ADD)
                write_vector(sum + part.first, p, part.e, v);
            write_weighed(y + part.first, p, part.e, v, gamma, beta, pivot, rstd, less);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_spread_sm90(const T *x, const T *residual, const P *gammas, const P *betas, T *y, T *sum,
                      real *means, real *rstds, uint64_t *notes, int64_t rows, int width,
                      int chunks, real eps)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t barriers[SLOTS];
    __shared__ found shared;
    inputs in = {x, residual, (T *)memory, shared_address(barriers)};
    int64_t step = gridDim.x, last = rows * chunks - 1;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++)
            barrier_init(in.full + 8 * i, 1);
        barrier_init_done();
        for (int i = 0; i < SLOTS; i++)
            if (blockIdx.x + i * step <= last)
                in.order(part(blockIdx.x + i * step, chunks, width), i);
    }
    __syncthreads();
    int slot = 0, before = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int64_t task = blockIdx.x; task - step <= last; task += step) {
        if (task <= last) {
            barrier_wait(in.full + 8 * slot, phase);
            tell_part(in.slot(slot), part(task, chunks, width), notes, task);
        }
        int64_t old = task - step;
        if (old >= 0) {
            part p(old, chunks, width);
            weights gamma, beta;
            gamma.read(gammas, 1, p.e);
            beta.read(betas, 0, p.e);
            if (threadIdx.x < 32) {
                found all = hear_all(notes + 2 * p.row * chunks, chunks, p.whole);
                if (threadIdx.x == 0)
                    shared = all;
            }
            __syncthreads();
            real mean = shared.mean, rstd = 1 / sqrt(shared.squares / (real)width + eps);
            write_part(in.slot(before), p, gamma, beta, y, sum, mean, rstd);
            if (p.from == 0 && threadIdx.x == 0) {
                if (means)
                    means[p.row] = mean;
                if (rstds)
                    rstds[p.row] = rstd;
            }
        }
        __syncthreads();
        if (old >= 0) {
            if (threadIdx.x == 0 && old + SLOTS * step <= last)
                in.order(part(old + SLOTS * step, chunks, width), before);
            before = before + 1 == SLOTS ? 0 : before + 1;
        }
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
}

#endif
