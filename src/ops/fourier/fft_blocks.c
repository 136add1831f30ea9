/* Transforms of short lines on a GPU: what fft.cu takes, and its launch. */
#include "cuda/cuda.h"
#include "ops/fourier/fft.h"
#include "ops/fourier/fft_call.cuh"

#define LINES_MOST 32 /* of a block: so many lie beside each other for whole sectors of memory */

/* The factors of n, of 2, 3, 4 and 5; 0: it has others, or too many. */
static int factors_of(int64_t n, int factor[FFT_STAGES])
{
    int count = 0;
    for (int p = 5; p > 1; p--)
        for (; n % p == 0 && count < FFT_STAGES; n /= p)
            factor[count++] = p;
    return n == 1 ? count : 0;
}

static int64_t room(const cup_tensor *x)
{
    return FFT_SHARED / (4 * cup_dtype_size(x->dtype));
}

const char *cup__fft_blocks_refuses(const cup__call *call)
{
    int factor[FFT_STAGES];
    int64_t n = cup__fft_lines_of(call).length;
    if (n > room(call->in[0]))
        return "it takes lines that fit into shared memory";
    if (n > 1 && !factors_of(n, factor))
        return "it takes lines whose length has the factors 2, 3 and 5";
    uintptr_t pair = 2 * (uintptr_t)cup_dtype_size(call->in[0]->dtype);
    bool aligned = (uintptr_t)call->in[0]->data % pair == 0 &&
                   (!call->out[0] || (uintptr_t)call->out[0]->data % pair == 0);
    return aligned ? NULL : "it reads and writes pairs that are aligned to their size";
}

cup_status cup__fft_blocks(cup__call *call)
{
    cup__fft_lines l = cup__fft_lines_of(call);
    const cup_tensor *x = call->in[0];
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t most = room(x) / l.length, lines = l.outer * l.inner;
    /* Few lines are spread over the card. */
    int64_t spread = lines / (2 * (int64_t)cup__cuda_facts(gpu)->multiprocessors) + 1;
    most = most < LINES_MOST ? most : LINES_MOST;
    fft_call c = {.x = x->data,
                  .y = call->out[0]->data,
                  .lines = lines,
                  .inner = l.inner,
                  .length = (int)l.length,
                  .block_lines = (int)(most < spread ? most : spread),
                  .scale = l.inverse ? 1 / (double)l.length : 1,
                  .sign = l.inverse ? 1 : -1};
    c.stages = factors_of(l.length, c.factor);
    cup__knob knobs[] = {{"CUP_T", x->dtype}};
    cup__grid grid = {.x = (lines + c.block_lines - 1) / c.block_lines,
                      .threads = FFT_THREADS,
                      .shared = (int)(4 * cup_dtype_size(x->dtype) * c.block_lines * l.length)};
    return cup__launch(gpu, cup__kernel_get(gpu, "fft.cu", "fft_fwd", knobs, 1), grid, CUP__ARG(c));
}
