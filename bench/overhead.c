/* What a call costs on the host beside the driver's own launch, what a kernel of a replayed graph
 * costs, and how long the first result takes.
 * Build and run: make build/bench/overhead && build/bench/overhead [device]
 * Without a GPU, all but the driver: build/bench/overhead dry
 * The first result: build/bench/overhead first [nanoseconds of the clock when it was started] */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/gpu.h"
#include "cupola/grad.h"
#include "cupola/graph.h"
#include "cupola/nn.h"
#include "cupola/ops.h"
#include "tensor/context.h"

#define CALLS 400
#define ROUNDS 100

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct subject {
    cup_context *c;
    cup_tensor *a, *b, *rows, *weight, *square, *heads;
    CUfunction empty, waiting;
    CUdeviceptr memory;
    cup_graph *graph;
} subject;

typedef void work(subject *s);

/* The least mean time of a call over the rounds, each of fewer calls than the driver queues. */
static double time_calls(subject *s, work *call, const char *what)
{
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        cup_scope_open(s->c);
        double start = now();
        for (int i = 0; i < CALLS; i++)
            call(s);
        double spent = (now() - start) / CALLS;
        cup_scope_close(s->c);
        cup_synchronize(s->c);
        if (spent < best)
            best = spent;
    }
    printf("%-52s %7.0f ns\n", what, best * 1e9);
    return best;
}

static void call_add(subject *s)
{
    cup_add(s->c, s->a, s->b);
}

static void call_sum(subject *s)
{
    cup_sum(s->c, s->rows, NULL, 0, false);
}

static void call_rmsnorm(subject *s)
{
    cup_rmsnorm(s->c, s->rows, s->weight, 1e-5f);
}

static void call_linear(subject *s)
{
    cup_linear(s->c, s->rows, s->rows, NULL);
}

static void call_product(subject *s)
{
    cup_linear(s->c, s->square, s->square, NULL);
}

static void call_attention(subject *s)
{
    cup_attention(s->c, s->heads, s->heads, s->heads,
                  CUP_OPTIONS(cup_attention_options, .causal = true));
}

static void call_allocate(subject *s)
{
    void *memory;
    if (s->c->device->calls->allocate(s->c->device, 4096, "bench", &memory) == CUP_OK)
        s->c->device->calls->release(s->c->device, memory);
}

static void launch_empty(subject *s, CUfunction function, bool dependent)
{
    CUdeviceptr a = s->memory, b = s->memory, y = s->memory;
    int64_t count = 1;
    void *values[] = {&a, &b, &y, &count};
    CUstream stream = cup__cuda_stream(cup__cuda_of(s->c->device));
    if (!dependent) {
        cup__driver.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream, values, NULL);
        return;
    }
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256,
                             .blockDimY = 1, .blockDimZ = 1, .hStream = stream,
                             .attrs = &attribute, .numAttrs = 1};
    cup__driver.cuLaunchKernelEx(&config, function, values, NULL);
}

static void call_driver(subject *s)
{
    launch_empty(s, s->empty, false);
}

static void call_dependent(subject *s)
{
    launch_empty(s, s->waiting, true);
}

/* The driver's calls while its launches are replaced by the next two. */
static cup__driver_calls kept;

static CUresult launch_twice(CUfunction function, unsigned x, unsigned y, unsigned z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                             CUstream stream, void **values, void **extra)
{
    kept.cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared, stream, values,
                        extra);
    return kept.cuLaunchKernel(function, x, y, z, block_x, block_y, block_z, shared, stream,
                               values, extra);
}

static CUresult launch_twice_ex(const CUlaunchConfig *config, CUfunction function, void **values,
                                void **extra)
{
    kept.cuLaunchKernelEx(config, function, values, extra);
    return kept.cuLaunchKernelEx(config, function, values, extra);
}

/* What a call costs beside the driver's launch of its own kernel, with its own attributes and
 * arguments: the driver's part is what a call takes longer when that launch is made twice. */
static void time_launches_twice(subject *s, work *call, const char *what)
{
    double once = time_calls(s, call, what);
    kept = cup__driver;
    cup__driver.cuLaunchKernel = launch_twice;
    if (kept.cuLaunchKernelEx)
        cup__driver.cuLaunchKernelEx = launch_twice_ex;
    double twice = time_calls(s, call, "  the same, its kernel launched twice");
    cup__driver = kept;
    printf("%-52s %7.0f ns, ours %.0f ns\n", "  so the driver's launch of that kernel",
           (twice - once) * 1e9, (2 * once - twice) * 1e9);
}

static const char ptx[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry empty(.param .u64 a, .param .u64 b, .param .u64 y, .param .u64 n)\n"
    "{\nret;\n}\n"
    ".visible .entry waiting(.param .u64 a, .param .u64 b, .param .u64 y, .param .u64 n)\n"
    "{\ngriddepcontrol.launch_dependents;\ngriddepcontrol.wait;\nret;\n}\n";

static bool load_empty(subject *s)
{
    CUmodule module;
    return cup__driver.cuModuleLoadDataEx(&module, ptx, 0, NULL, NULL) == CUDA_SUCCESS &&
           cup__driver.cuModuleGetFunction(&s->empty, module, "empty") == CUDA_SUCCESS &&
           cup__driver.cuModuleGetFunction(&s->waiting, module, "waiting") == CUDA_SUCCESS;
}

/* A chain of CALLS calls as a graph: the host's part of a launch, and a kernel's share of the time
 * until the work is done. */
static double time_graph(subject *s, work *call, const char *what)
{
    cup_scope_open(s->c);
    cup_capture_begin(s->c);
    for (int i = 0; i < CALLS; i++)
        call(s);
    cup_graph *graph = cup_capture_end(s->c);
    double best = 1e9, host = 1e9;
    for (int round = 0; graph && round < ROUNDS; round++) {
        cup_synchronize(s->c);
        double start = now();
        cup_graph_launch(graph);
        double launched = now() - start;
        for (int i = 0; i < 7; i++)
            cup_graph_launch(graph);
        cup_synchronize(s->c);
        double spent = (now() - start) / (8 * CALLS);
        best = spent < best ? spent : best;
        host = launched < host ? launched : host;
    }
    cup_graph_free(graph);
    cup_scope_close(s->c);
    printf("%-52s %7.0f ns a kernel, %.1f us on the host in all\n", what, best * 1e9, host * 1e6);
    return best;
}

static void time_cuda(subject *s)
{
    s->memory = (CUdeviceptr)(uintptr_t)cup_tensor_data(s->a);
    if (!load_empty(s)) {
        printf("the driver does not take the empty kernel\n");
        return;
    }
    double driver = time_calls(s, call_driver, "the driver's launch of an empty kernel");
    time_calls(s, call_dependent, "the same as a dependent launch");
    double ours = time_calls(s, call_add, "add of one element");
    printf("%-52s %7.0f ns\n", "  of that ours", (ours - driver) * 1e9);
    time_launches_twice(s, call_add, "add of one element");
    time_launches_twice(s, call_product, "linear of bf16 512x512 by 512x512");
    time_graph(s, call_driver, "replayed: an empty kernel");
    time_graph(s, call_dependent, "replayed: an empty dependent kernel");
    time_graph(s, call_add, "replayed: add of one element");
    time_graph(s, call_rmsnorm, "replayed: rmsnorm 64x64");
}

static void time_all(cup_context *c)
{
    float values[64 * 64] = {1};
    subject s = {.c = c};
    s.a = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){1}, values);
    s.b = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){1}, values);
    s.rows = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){64, 64}, values);
    s.weight = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){64}, values);
    s.square = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, 512});
    s.heads = cup_tensor_new(c, CUP_BF16, 4, (int64_t[]){1, 8, 64, 64});
    printf("%s\n", cup_device_text(c));
    time_calls(&s, call_allocate, "allocate and release 4 KiB");
    time_calls(&s, call_add, "add of one element");
    time_calls(&s, call_sum, "sum of 64x64");
    time_calls(&s, call_rmsnorm, "rmsnorm of 64x64");
    time_calls(&s, call_linear, "linear of 64x64 by 64x64");
    time_calls(&s, call_product, "linear of bf16 512x512 by 512x512");
    time_calls(&s, call_attention, "attention of bf16 1x8x64x64");
    if (cup_device_is_cuda(c) && !cup__cuda_of(c->device)->dry)
        time_cuda(&s);
    cup_require_grad(s.a);
    time_calls(&s, call_add, "add of one element, recorded");
}

static void say(const char *what, double *since)
{
    double time = now();
    printf("%-52s %9.2f ms\n", what, (time - *since) * 1e3);
    *since = now();
}

/* From the start of the process to the first number, the driver's context taken apart: it is made
 * before ours, which then shares it. */
static void time_first(double started)
{
    double since = now(), whole = started > 0 ? started : since, apart;
    CUcontext context;
    CUdevice device;
    printf("process to main: %.2f ms\n", (since - whole) * 1e3);
    apart = since;
    if (cup__library_open(CUP__LIBCUDA)) {
        say("loading the driver", &since);
        apart = since;
        cup__driver.cuInit(0);
        cup__driver.cuDeviceGet(&device, 0);
        cup__driver.cuDevicePrimaryCtxRetain(&context, device);
        say("the driver's context", &since);
    }
    double driver = since - apart;
    cup_context *c = cup_context_new(NULL);
    say("cup_context_new", &since);
    float values[1024] = {1};
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){1024}, values);
    say("a tensor written", &since);
    cup_tensor *y = cup_gelu(c, x);
    say("gelu launched", &since);
    cup_tensor_read(y, values, sizeof values);
    say("gelu read", &since);
    printf("first result, the driver's context excluded: %.2f ms\n",
           (since - whole - driver) * 1e3);
    cup_tensor_read(cup_rmsnorm(c, x, x, 1e-5f), values, sizeof values);
    say("a second kernel, read", &since);
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){32, 32}, values);
    cup_tensor_read(cup_matmul(c, a, a, false, false), values, sizeof values);
    say("a matrix product, read", &since);
    if (cup_error(c))
        fprintf(stderr, "%s\n", cup_error_text(c));
    cup_context_free(c);
    say("cup_context_free", &since);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "first")) {
        time_first(argc > 2 ? strtod(argv[2], NULL) * 1e-9 : 0);
        return 0;
    }
    const char *device = argc > 1 ? argv[1] : "auto";
    /* The memory of a dry GPU is malloc's, which must not go to the system and back each time. */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 1 << 28);
    cup_context *c = strcmp(device, "dry")
                         ? cup_context_new(CUP_OPTIONS(cup_options, .device = device))
                         : cup__context_dry("sm_90a");
    if (cup_error(c) == CUP_OK)
        time_all(c);
    if (cup_error(c))
        fprintf(stderr, "%s\n", cup_error_text(c));
    int code = cup_error(c) != CUP_OK;
    cup_context_free(c);
    return code;
}
