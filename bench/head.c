/* The last layer of a language model and its loss, forward and backward: logits whole against
 * logits in chunks of rows. Time of a pass and the peak of memory.
 *
 *     head [rows width classes [chunk]]
 *
 * 8192 768 50304 and several chunks where none are given. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gpu.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

#define RUNS 9

static cup_context *c;

static void check(cup_status status)
{
    if (status == CUP_OK && cup_error(c) == CUP_OK)
        return;
    printf("FAILED: %s\n", cup_error_text(c));
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double pass(cup_tensor *x, cup_tensor *w, cup_tensor *targets, int64_t chunk)
{
    cup_scope_open(c);
    cup_tensor *y = cup_scale(c, x, 1), *loss;
    if (chunk)
        loss = cup_linear_cross_entropy(
            c, y, w, targets, -1, CUP_OPTIONS(cup_linear_cross_entropy_options, .chunk = chunk));
    else
        loss = cup_cross_entropy(c, cup_linear(c, y, w, NULL), targets, -1,
                                 CUP_OPTIONS(cup_cross_entropy_options, .in_place = true));
    check(cup_backward(c, loss));
    double value = cup_tensor_item(loss);
    cup_grad_clear(x);
    cup_grad_clear(w);
    cup_scope_close(c);
    return value;
}

static void measure(cup_tensor *x, cup_tensor *w, cup_tensor *targets, int64_t chunk)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__memory_use before, after;
    cup__timer *timer;
    double us[RUNS], ms, loss = 0;
    check(cup__timer_new(gpu, &timer));
    c->device->calls->memory_use(c->device, &before);
    for (int i = -2; i < RUNS; i++) {
        check(cup__timer_start(timer));
        loss = pass(x, w, targets, chunk);
        check(cup__timer_stop(timer, &ms));
        if (i >= 0)
            us[i] = ms * 1e3;
    }
    c->device->calls->memory_use(c->device, &after);
    qsort(us, RUNS, sizeof *us, by_value);
    double rows = (double)x->shape[0], flops = 6 * rows * (double)w->count;
    printf("%-6s rows at once %6lld: %9.1f us, %6.1f TFLOP/s, loss %.5f, peak %7.1f MB over %.1f\n",
           chunk ? "chunks" : "whole", (long long)chunk, us[RUNS / 2],
           flops / us[RUNS / 2] * 1e-6, loss, (double)after.peak_allocated * 1e-6,
           (double)before.allocated * 1e-6);
    fflush(stdout);
    cup__timer_free(timer);
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 3 ? atoll(argv[1]) : 8192, width = argc > 3 ? atoll(argv[2]) : 768;
    int64_t classes = argc > 3 ? atoll(argv[3]) : 50304;
    c = cup_context_new(&(cup_options){.device = "cuda"});
    check(cup_error(c));
    cup_tensor *x = cup_keep(cup_normal(c, CUP_BF16, 2, (int64_t[]){rows, width}, 0, 1));
    cup_tensor *w = cup_keep(cup_normal(c, CUP_BF16, 2, (int64_t[]){classes, width}, 0, 0.02));
    cup_tensor *targets = cup_full(c, CUP_I32, 1, (int64_t[]){rows}, 5);
    cup_require_grad(x);
    cup_require_grad(w);
    check(cup_error(c));
    printf("%lld rows, %lld wide, %lld classes, bf16\n", (long long)rows, (long long)width,
           (long long)classes);
    for (int64_t chunk = 1024; argc < 5 && chunk <= rows; chunk *= 2)
        measure(x, w, targets, chunk);
    measure(x, w, targets, argc > 4 ? atoll(argv[4]) : 0); /* whole last: its peak stays */
    cup_context_free(c);
    return 0;
}
