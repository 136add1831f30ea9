/* What an eager call costs on the host: an add of two one-element tensors, and a pool allocation.
 * Build and run: make build/bench/overhead && build/bench/overhead [device] */
#include <stdio.h>
#include <time.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/context.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void time_adds(cup_context *c, cup_tensor *a, cup_tensor *b, const char *what)
{
    const int rounds = 200, calls = 500;
    double best = 1e9;
    for (int round = 0; round < rounds; round++) {
        cup_scope_open(c);
        double start = now();
        for (int i = 0; i < calls; i++)
            cup_add(c, a, b);
        double spent = (now() - start) / calls;
        cup_scope_close(c);
        cup_synchronize(c);
        if (spent < best)
            best = spent;
    }
    printf("%s: %.0f ns a call\n", what, best * 1e9);
}

static void time_allocations(cup_context *c)
{
    const int calls = 20000;
    void *memory;
    double best = 1e9;
    for (int round = 0; round < 50; round++) {
        double start = now();
        for (int i = 0; i < calls; i++)
            if (c->device->calls->allocate(c->device, 4096, "bench", &memory) == CUP_OK)
                c->device->calls->release(c->device, memory);
        double spent = (now() - start) / calls;
        if (spent < best)
            best = spent;
    }
    printf("allocate and release 4 KiB: %.0f ns\n", best * 1e9);
}

int main(int argc, char **argv)
{
    cup_context *c = cup_context_new(&(cup_options){.device = argc > 1 ? argv[1] : "auto"});
    float one = 1;
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){1}, &one);
    cup_tensor *b = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){1}, &one);
    printf("%s\n", cup_device_text(c));
    time_allocations(c);
    time_adds(c, a, b, "add of one element");
    cup_require_grad(a);
    time_adds(c, a, b, "the same, recorded");
    if (cup_error(c))
        fprintf(stderr, "%s\n", cup_error_text(c));
    int code = cup_error(c) != CUP_OK;
    cup_context_free(c);
    return code;
}
