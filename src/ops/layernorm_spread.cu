/* Layernorm and its kin of rows too long for the registers of a block: each of `chunks` blocks
 * holds a part of a row, tells the others its moments through global memory and waits for theirs,
 * so that x is read once and y written once. Notes carry their own mark: memory that was cleared,
 * then written in single words. Grid: blocks that all run at once and take every gridDim-th part;
 * a row has no more parts than there are blocks, so a block waits only for blocks that are at this
 * row or one before. */
#define PIVOT 1
#include "layernorm_row.cuh"

#ifndef BLOCKS
#define BLOCKS 2 /* that run at once on a multiprocessor */
#endif

struct found {
    real n, mean, squares;
};

struct join_found {
    __device__ __forceinline__ found operator()(const found &a, const found &b) const
    {
        real n = a.n + b.n, share = n > 0 ? b.n / n : 0, d = b.mean - a.mean;
        return {n, a.mean + d * share, a.squares + b.squares + d * d * a.n * share};
    }
};

/* A number with a mark beside it, in one access. */
DEVICE void tell(uint64_t *to, float value)
{
    uint64_t word = (uint64_t)1 << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

DEVICE float hear(const uint64_t *from)
{
    uint64_t word;
    do
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    while (!(word >> 32));
    return __uint_as_float((uint32_t)word);
}

/* What all parts of a row say, by one warp in a fixed order. */
DEVICE found hear_all(const uint64_t *notes, int chunks, int width)
{
    found all = {0, 0, 0};
    for (int i = (int)threadIdx.x; i < chunks; i += 32) {
        int n = width - i * SPAN < SPAN ? width - i * SPAN : SPAN;
        found one = {(real)n, hear(notes + 2 * i), hear(notes + 2 * i + 1)};
        all = join_found()(all, one);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        all = join_found()(all, shuffle_xor(all, mask));
    return all;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_spread(const T *x, const T *residual, const P *gammas, const P *betas, T *y, T *sum,
                 real *means, real *rstds, uint64_t *notes, int64_t rows, int width, int chunks,
                 real eps)
{
    __shared__ found shared;
#pragma unroll 1
    for (int64_t task = blockIdx.x; task < rows * chunks; task += gridDim.x) {
        int64_t row = task / chunks;
        int from = (int)(task - row * chunks) * SPAN;
        int span = width - from < SPAN ? width - from : SPAN;
        int64_t first = row * width + from;
        row_in r;
        weights gamma, beta;
        r.read(x, residual, first, span);
        gamma.read(gammas ? gammas + from : gammas, 1, span);
        beta.read(betas ? betas + from : betas, 0, span);
        pair sums = group_reduce<0>(r.sums(span, CENTRED), two_sums());
        real shift = CENTRED ? sums.a / (real)span : 0, squares = sums.b - sums.a * shift;
        if (CENTRED && shift * sums.a > FAR * squares) {
            r.pivot += shift;
            sums = group_reduce<1>(r.sums(span, true), two_sums());
            shift = sums.a / (real)span;
            squares = sums.b - sums.a * shift;
        }
        if (!CENTRED)
            squares = sums.b;
        if (threadIdx.x == 0) {
            tell(notes + 2 * task, r.pivot + shift);
            tell(notes + 2 * task + 1, squares > 0 || squares != squares ? squares : 0);
        }
        if (threadIdx.x < 32) {
            found all = hear_all(notes + 2 * row * chunks, chunks, width);
            if (threadIdx.x == 0)
                shared = all;
        }
        __syncthreads();
        real mean = shared.mean, rstd = 1 / sqrt(shared.squares / (real)width + eps);
        write_row(r, gamma, beta, y, sum, first, span, rstd, (r.pivot - mean) * rstd);
        if (from == 0 && threadIdx.x == 0) {
            if (means)
                means[row] = mean;
            if (rstds)
                rstds[row] = rstd;
        }
    }
}
