/* What a call of each op costs on the host, on small inputs: in all, and without the driver, whose
 * launches and copies then return at once. What scopes free is part of it.
 * Build and run: make build/bench/calls && build/bench/calls [device [markdown]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/dry.h"
#include "cuda/gpu.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/op.h"
#include "prof/check.h"
#include "tensor/context.h"

#define MOST_INPUTS 1024
#define MOST_ELEMENTS 20000
#define CALLS 50
#define ROUNDS 15

static long launches;
static bool idle; /* the driver's calls do nothing */
static __typeof__(cup__driver.cuLaunchKernel) launch_plain;
static __typeof__(cup__driver.cuLaunchKernelEx) launch_extended;
static __typeof__(cup__driver.cuMemsetD8Async) set_memory;
static __typeof__(cup__driver.cuMemcpyDtoDAsync) copy_memory;

static CUresult on_launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned tx,
                          unsigned ty, unsigned tz, unsigned shared, CUstream stream,
                          void **arguments, void **extra)
{
    launches++;
    return idle ? CUDA_SUCCESS
                : launch_plain(function, x, y, z, tx, ty, tz, shared, stream, arguments, extra);
}

static CUresult on_extended(const CUlaunchConfig *config, CUfunction function, void **arguments,
                            void **extra)
{
    launches++;
    return idle ? CUDA_SUCCESS : launch_extended(config, function, arguments, extra);
}

static CUresult on_set(CUdeviceptr to, unsigned char byte, size_t count, CUstream stream)
{
    launches++;
    return idle ? CUDA_SUCCESS : set_memory(to, byte, count, stream);
}

static CUresult on_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    launches++;
    return idle ? CUDA_SUCCESS : copy_memory(to, from, bytes, stream);
}

static void stand_between(void)
{
    launch_plain = cup__driver.cuLaunchKernel;
    launch_extended = cup__driver.cuLaunchKernelEx;
    set_memory = cup__driver.cuMemsetD8Async;
    copy_memory = cup__driver.cuMemcpyDtoDAsync;
    cup__driver.cuLaunchKernel = on_launch;
    cup__driver.cuMemsetD8Async = on_set;
    cup__driver.cuMemcpyDtoDAsync = on_copy;
    if (launch_extended)
        cup__driver.cuLaunchKernelEx = on_extended;
}

typedef struct subject {
    cup_context *c;
    const cup__row *row;
    const cup__sample *sample;
    cup_tensor *in[MOST_INPUTS];
    int count;
    bool backward;
} subject;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void call(subject *s)
{
    cup_tensor *y = cup__op_call(s->c, s->row, s->in, s->count, s->sample->attributes, NULL);
    if (s->backward) {
        cup_backward(s->c, y && y->count > 1 ? cup_sum(s->c, y, NULL, 0, false) : y);
        for (int i = 0; i < s->count; i++)
            cup_grad_clear(s->in[i]);
        cup_tape_clear(s->c);
    }
}

/* The least mean nanoseconds of a call over the rounds. */
static double time_calls(subject *s)
{
    double best = 1e18;
    for (int round = -1; round < ROUNDS && cup_error(s->c) == CUP_OK; round++) {
        double start = now();
        cup_scope_open(s->c);
        for (int i = 0; i < CALLS; i++)
            call(s);
        cup_scope_close(s->c);
        double spent = (now() - start) / CALLS;
        cup_synchronize(s->c);
        if (round >= 0 && spent < best)
            best = spent;
    }
    return best;
}

/* With the driver and without it, and how often it is called; false where the op fails. */
static bool time_both(subject *s, double *all, double *ours, double *each)
{
    idle = false;
    launches = 0;
    *all = time_calls(s);
    *each = (double)launches / (CALLS * (ROUNDS + 1));
    idle = true;
    *ours = time_calls(s);
    idle = false;
    bool good = cup_error(s->c) == CUP_OK;
    if (!good)
        fprintf(stderr, "%s: %s\n", s->row->name, cup_error_text(s->c));
    cup_error_clear(s->c);
    return good;
}

static bool fits(const subject *s)
{
    int64_t elements = 0;
    bool empty = false;
    for (int i = 0; i < s->count; i++)
        if (s->in[i]) {
            elements += s->in[i]->count;
            empty = empty || !s->in[i]->count;
        }
    return !empty && elements <= MOST_ELEMENTS;
}

/* The largest of the op's samples that is small. */
static bool choose(subject *s)
{
    int64_t most = -1;
    const cup__sample *found = NULL;
    for (s->sample = s->row->op->samples; s->sample && s->sample->shapes; s->sample++) {
        int64_t elements = 0;
        cup_scope_open(s->c);
        s->count = cup__sample_inputs(s->c, s->row, s->sample, CUP_F32, CUP_F32, CUP__ROW_MAJOR, 0,
                                      s->in, MOST_INPUTS);
        for (int i = 0; i < s->count; i++)
            elements += s->in[i] ? s->in[i]->count : 0;
        if (s->count >= 0 && fits(s) && elements > most) {
            most = elements;
            found = s->sample;
        }
        cup_error_clear(s->c);
        cup_scope_close(s->c);
    }
    s->sample = found;
    if (found)
        s->count = cup__sample_inputs(s->c, s->row, found, CUP_F32, CUP_F32, CUP__ROW_MAJOR, 7,
                                      s->in, MOST_INPUTS);
    return found && s->count >= 0;
}

static void require_gradients(subject *s)
{
    s->backward = s->row->op->gradient && s->row->visible && !s->row->op->in_place &&
                  !cup__overwrites(s->row->op, s->sample->attributes);
    for (int i = 0; i < s->count && s->backward; i++)
        if (s->in[i] && cup__dtype_is_float(s->in[i]->dtype))
            cup_require_grad(s->in[i]);
}

/* Compiles what all calls need, by making them on a GPU that is not there. */
static void prepare(const cup__gpu_facts *facts)
{
    cup_context *c = cup__context_dry(facts->arch);
    cup__error error = {0};
    int count;
    cup__dry_like(cup__cuda_of(c->device), facts);
    for (const cup__row *row = cup__rows; row->name; row++) {
        subject s = {.c = c, .row = row};
        cup_scope_open(c);
        if (choose(&s)) {
            call(&s);
            require_gradients(&s);
            call(&s);
        }
        cup_error_clear(c);
        cup_scope_close(c);
    }
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    cup__kernels_prepare(&error, facts->arch, requests, count, 0, NULL, NULL);
    cup_context_free(c);
}

static void time_op(cup_context *c, const cup__row *row, bool markdown)
{
    subject s = {.c = c, .row = row};
    double all, ours, each, both = 0, both_ours = 0, both_each = 0;
    cup_scope_open(c);
    if (choose(&s) && time_both(&s, &all, &ours, &each)) {
        require_gradients(&s);
        if (s.backward && !time_both(&s, &both, &both_ours, &both_each))
            both = both_ours = 0;
        printf(markdown ? "| %s | %s | %.1f | %.2f | %.2f |" : "%-20s %-32.32s %5.1f %8.2f %8.2f",
               row->name, s.sample->shapes, each, all * 1e-3, ours * 1e-3);
        if (both > 0)
            printf(markdown ? " %.1f | %.2f | %.2f |\n" : " %5.1f %8.2f %8.2f\n", both_each,
                   both * 1e-3, both_ours * 1e-3);
        else
            printf(markdown ? " | | |\n" : "\n");
    }
    cup_error_clear(c);
    cup_scope_close(c);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    bool markdown = argc > 2 && !strcmp(argv[2], "markdown");
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = argc > 1 ? argv[1] : "cuda"));
    if (cup_error(c) == CUP_OK && cup_device_is_cuda(c)) {
        prepare(cup__cuda_facts(cup__cuda_of(c->device)));
        stand_between();
        printf(markdown ? "| op | inputs | launches | us | ours | launches, with backward | us | "
                          "ours |\n|---|---|---:|---:|---:|---:|---:|---:|\n"
                        : "%-20s %-32s %5s %8s %8s %5s %8s %8s\n",
               "op", "inputs", "calls", "us", "ours", "back", "us", "ours");
        for (const cup__row *row = cup__rows; row->name; row++)
            time_op(c, row, markdown);
    } else {
        fprintf(stderr, "%s\n", cup_error(c) ? cup_error_text(c) : "this is about GPUs");
    }
    cup_context_free(c);
    return 0;
}
