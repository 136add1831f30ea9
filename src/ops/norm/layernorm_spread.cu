/* Layernorm and its kin of rows too long for the registers of a block: each of `chunks` blocks
 * holds a part of a row, tells the others its moments through global memory and waits for theirs,
 * so that x is read once and y written once. Notes carry their own mark: memory that was cleared,
 * then written in single words. Grid: blocks that all run at once and take every gridDim-th part;
 * a row has no more parts than there are blocks, so a block waits only for blocks that are at this
 * row or one before. */
#define PIVOT 1
#include "layernorm_row.cuh"
#include "spread.cuh"

/* A knob: BLOCKS (that run at once on a multiprocessor). */

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
layernorm_spread(const T *x, const T *residual, const P *gammas, const P *betas, T *y, T *sum,
                 real *means, real *rstds, uint64_t *notes, int64_t rows, int width, int chunks,
                 real eps)
{
    __shared__ found shared;
#pragma unroll 1
    for (int64_t task = blockIdx.x; task < rows * chunks; task += gridDim.x) {
        int64_t row = task / chunks, first = row * width, start = first;
        int from = (int)(task - row * chunks) * SPAN;
        extent whole = extent_of(start, width, 0), e = extent_of(first, width, from);
        row_in r;
        weights gamma, beta;
        r.read(x, residual, first, e);
        gamma.read(gammas, 1, e);
        beta.read(betas, 0, e);
        r.add(e);
        real n = (real)(e.count() > 0 ? e.count() : 1);
        pair sums = group_reduce<0>(r.sums(e, CENTRED), two_sums());
        real shift = CENTRED ? sums.a / n : 0;
        real squares = CENTRED ? sums.b - sums.a * shift : sums.b;
        if (CENTRED && shift * sums.a > FAR * squares) {
            r.pivot += shift;
            sums = group_reduce<1>(r.sums(e, true), two_sums());
            shift = sums.a / n;
            squares = sums.b - sums.a * shift;
        }
        if (threadIdx.x == 0)
            tell(notes, task, CENTRED ? r.pivot + shift : 0, squares);
        if (threadIdx.x < 32) {
            found all = hear_all(notes + 2 * row * chunks, chunks, whole);
            if (threadIdx.x == 0)
                shared = all;
        }
        __syncthreads();
        real mean = shared.mean, rstd = 1 / sqrt(shared.squares / (real)width + eps);
        write_row(r, gamma, beta, y, sum, first, e, rstd, (r.pivot - mean) * rstd);
        if (from == 0 && threadIdx.x == 0) {
            if (means)
                means[row] = mean;
            if (rstds)
                rstds[row] = rstd;
        }
    }
}
