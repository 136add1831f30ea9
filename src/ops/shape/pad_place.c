/* pad and repeat on both places. */
#include <string.h>

#include "base/parallel.h"
#include "cuda/cuda.h"
#include "ops/shape/pad.h"
#include "ops/shape/pad_call.cuh"

#define GRAIN 65536

cup__placing cup__placing_of(const cup_tensor *y, const cup_tensor *x, const int64_t *before,
                             bool wrap)
{
    cup__placing p = {.ndim = 1, .size = {1}, .from = {1}, .wrap = wrap};
    for (int i = y->ndim; i-- > 0;) {
        int at = i - (y->ndim - x->ndim), last = p.ndim - 1;
        int64_t from = at < 0 ? 1 : x->shape[at], start = before ? before[i] : 0;
        /* What lies inside of a dimension of which nothing is left out is a part of its places. */
        if (p.size[last] == p.from[last]) {
            p.before[last] = start * p.size[last];
            p.from[last] *= from;
            p.size[last] *= y->shape[i];
        } else if (y->shape[i] != 1 || from != 1) {
            p.size[p.ndim] = y->shape[i];
            p.from[p.ndim] = from;
            p.before[p.ndim++] = start;
        }
    }
    return p;
}

typedef struct job {
    const cup__placing *p;
    const char *x;
    char *y;
    int64_t size; /* bytes of an element */
} job;

static void fill_elements(const job *j, char *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * j->size, &j->p->value, (size_t)j->size);
}

/* The row of x that a row of y holds, or -1. */
static int64_t row_of(const cup__placing *p, int64_t row)
{
    int64_t line = 0, step = 1;
    for (int d = 1; d < p->ndim; d++) {
        int64_t place = row % p->size[d];
        row /= p->size[d];
        place = p->wrap ? place % p->from[d] : place - p->before[d];
        if (place < 0 || place >= p->from[d])
            return -1;
        line += place * step;
        step *= p->from[d];
    }
    return line;
}

static void place_rows(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    const cup__placing *p = j->p;
    int64_t width = p->size[0], from = p->from[0], bytes = from * j->size;
    for (int64_t row = begin; row < end; row++) {
        char *y = j->y + row * width * j->size;
        int64_t source = row_of(p, row);
        if (source < 0) {
            fill_elements(j, y, width);
            continue;
        }
        for (int64_t at = 0; p->wrap && at < width; at += from)
            memcpy(y + at * j->size, j->x + source * bytes, (size_t)bytes);
        if (p->wrap)
            continue;
        fill_elements(j, y, p->before[0]);
        memcpy(y + p->before[0] * j->size, j->x + source * bytes, (size_t)bytes);
        fill_elements(j, y + p->before[0] * j->size + bytes, width - p->before[0] - from);
    }
}

cup_status cup__place_cpu(cup__call *call, const cup__placing *p)
{
    cup_tensor *y = call->out[0];
    job j = {p, call->in[0]->data, y->data, cup_dtype_size(y->dtype)};
    cup__parallel_for(y->count / p->size[0], GRAIN / p->size[0] + 1, place_rows, &j);
    return CUP_OK;
}

static divisor small_divisor(int64_t size)
{
    return divisor_of(size > 0 && size < INT32_MAX ? size : 1);
}

cup_status cup__place_cuda(cup__call *call, const cup__placing *p)
{
    const cup_tensor *x = call->in[0], *y = call->out[0];
    int size = (int)cup_dtype_size(y->dtype), vec = 16 / size;
    while (vec > 1 && (p->size[0] % vec || (uintptr_t)y->data % (uintptr_t)(vec * size)))
        vec /= 2;
    bool rows = p->from[0] % vec == 0 && p->before[0] % vec == 0 &&
                (uintptr_t)x->data % (uintptr_t)(vec * size) == 0;
    bool wide = y->count > INT32_MAX - PAD_THREADS;
    pad_call argument = {.y = y->data, .x = x->data, .words = y->count / vec, .value = p->value};
    int64_t step = 1;
    for (int d = 0; d < p->ndim; d++) {
        argument.dim[d] = (pad_dim){.size = p->size[d],
                                    .from = p->from[d],
                                    .before = p->before[d],
                                    .step = step,
                                    .size_small = small_divisor(p->size[d] / (d ? 1 : vec)),
                                    .from_small = small_divisor(p->from[d])};
        step *= p->from[d];
    }
    cup__knob knobs[] = {{"SIZE", size},      {"VEC", vec},   {"NDIM", p->ndim},
                         {"WRAP", p->wrap},   {"ROWS", rows}, {"WIDE", wide}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "pad.cu", "pad_fwd", knobs, 6);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = (argument.words + PAD_THREADS - 1) / PAD_THREADS,
                      .threads = PAD_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}
