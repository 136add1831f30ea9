/* Times the knobs of the kernels for long rows on one card: cross-entropy and softmax
 * through the ring of ops/loss/row_ring.cuh.
 *
 *     rows_sweep [rows columns]...      8192 50304, and softmax, where none are given
 *     rows_sweep registers              softmax in registers alone */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gpu.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

#define FLUSH ((size_t)256 << 20)
#define RUNS 15

typedef struct rule {
    int64_t rows, ignore;
    int width, classes;
    float smoothing, z_loss;
} rule;

static cup_context *c;
static cup__cuda *gpu;
static void *flush;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(cup_status status)
{
    if (status == CUP_OK && cup_error(c) == CUP_OK)
        return;
    printf("FAILED: %s\n", cup_error_text(c));
    exit(1);
}

typedef struct knobs {
    int warps, pieces, ring, cluster, blocks;
} knobs;

/* Bytes of shared memory, or 0 where the knobs do not fit. */
static int64_t shared_of(int64_t vectors, const knobs *k)
{
    int64_t lines = (vectors + 31) / 32;
    int64_t slice = (lines + k->cluster * k->warps - 1) / (k->cluster * k->warps);
    int64_t bytes = slice * k->warps * k->ring * 512;
    bool fits = bytes + 1024 + k->ring * k->warps * 128 + k->cluster * k->warps * 64 <=
                    233472 / k->blocks - 1024 &&
                slice <= 16 * k->pieces;
    return fits ? bytes : 0;
}

static double time_kernel(cup__kernel *kernel, cup__grid grid, const cup__argument *arguments,
                          int count)
{
    cup__timer *timer;
    double us[RUNS], ms;
    check(cup__timer_new(gpu, &timer));
    for (int i = -2; i < RUNS; i++) {
        check(c->device->calls->fill(c->device, flush, 0x33, FLUSH));
        check(cup__timer_start(timer));
        check(cup__launch_arguments(gpu, kernel, grid, arguments, count));
        check(cup__timer_stop(timer, &ms));
        if (i >= 0)
            us[i] = ms * 1e3;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    cup__timer_free(timer);
    return us[RUNS / 2];
}

static void print(const char *what, const cup_tensor *x, const knobs *k, double us, double moved)
{
    printf("%9.1f us %7.0f GB/s  %-8s %-4s %lldx%-7lld warps %2d pieces %d ring %d cluster %d "
           "blocks %d\n",
           us, moved / us * 1e-3, what, cup_dtype_name(x->dtype), (long long)x->shape[0],
           (long long)x->shape[1], k->warps, k->pieces, k->ring, k->cluster, k->blocks);
    fflush(stdout);
}

static cup__grid grid_of(int64_t rows, const knobs *k, int64_t shared)
{
    int64_t clusters = (k->cluster > 2 ? 128 : 132) / k->cluster * k->blocks;
    return (cup__grid){.x = (rows < clusters ? rows : clusters) * k->cluster,
                       .threads = k->warps * 32,
                       .cluster = k->cluster,
                       .shared = (int)shared};
}

static void time_entropy(cup_tensor *logits, cup_tensor *targets, const knobs *k, int in_place)
{
    int64_t rows = logits->shape[0], width = logits->shape[1];
    int64_t vectors = width * (int64_t)cup_dtype_size(logits->dtype) / 16;
    int64_t shared = shared_of(vectors, k);
    if (!shared)
        return;
    const cup__knob list[] = {{"CUP_T", logits->dtype}, {"INDEX", targets->dtype},
                               {"IN_PLACE", in_place},   {"CLUSTER", k->cluster},
                               {"WARPS", k->warps},      {"PIECES", k->pieces},
                               {"RING", k->ring},        {"BLOCKS", k->blocks}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "cross_entropy_ring.cu", "cross_entropy_sm90", list, 8);
    check(c->error.status);
    cup_tensor *losses = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){rows});
    cup_tensor *loss = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){1});
    rule r = {rows, -1, (int)width, (int)width, 0, 0};
    void *none = NULL;
    const cup__argument arguments[] = {CUP__ARG(logits->data), CUP__ARG(targets->data),
                                       CUP__ARG(none),         CUP__ARG(none),
                                       CUP__ARG(none),         CUP__ARG(losses->data),
                                       CUP__ARG(loss->data),   CUP__ARG(r)};
    double us = time_kernel(kernel, grid_of(rows, k, shared), arguments, 8);
    print(in_place ? "in place" : "loss", logits, k, us,
          (double)(rows * vectors) * 16 * (in_place ? 2 : 1));
    cup_tensor_free(losses);
    cup_tensor_free(loss);
}

static void time_softmax(cup_tensor *x, cup_tensor *y, const knobs *k)
{
    int64_t rows = x->shape[0], vectors = x->shape[1] * (int64_t)cup_dtype_size(x->dtype) / 16;
    int64_t shared = shared_of(vectors, k);
    int width = (int)x->shape[1];
    if (!shared)
        return;
    const cup__knob list[] = {{"CUP_T", x->dtype},   {"CLUSTER", k->cluster},
                               {"WARPS", k->warps},   {"PIECES", k->pieces},
                               {"RING", k->ring},     {"BLOCKS", k->blocks}};
    cup__kernel *kernel = cup__kernel_get(gpu, "softmax_ring.cu", "softmax_sm90", list, 6);
    check(c->error.status);
    const cup__argument arguments[] = {CUP__ARG(x->data), CUP__ARG(y->data), CUP__ARG(rows),
                                       CUP__ARG(width)};
    double us = time_kernel(kernel, grid_of(rows, k, shared), arguments, 4);
    print("softmax", x, k, us, (double)(rows * vectors) * 32);
}

/* The kernel that keeps a row in registers. */
static void time_registers(cup_tensor *x, cup_tensor *y, int group, int pieces)
{
    int64_t rows = x->shape[0], size = (int64_t)cup_dtype_size(x->dtype), vec = 16 / size;
    int width = (int)x->shape[1];
    if (group * pieces * vec < width || (int64_t)group * (pieces - 1) * vec >= width)
        return;
    const cup__knob list[] = {{"CUP_T", x->dtype}, {"LOG", 0},           {"LONG", 0},
                              {"VEC", vec},        {"GROUP", group},     {"PIECES", pieces},
                              {"THREADS", group}};
    cup__kernel *kernel = cup__kernel_get(gpu, "softmax.cu", "softmax_fwd", list, 7);
    check(c->error.status);
    const cup__argument arguments[] = {CUP__ARG(x->data), CUP__ARG(y->data), CUP__ARG(rows),
                                       CUP__ARG(width)};
    double us = time_kernel(kernel, (cup__grid){.x = rows, .threads = group}, arguments, 4);
    print("rows", x, &(knobs){group / 32, pieces, 0, 0, 0}, us,
          (double)(rows * width * size) * 2);
}

static const knobs for_entropy[] = {
    {16, 6, 2, 1, 1}, {20, 5, 2, 1, 1}, {24, 4, 2, 1, 1}, {24, 5, 2, 1, 1}, {12, 6, 2, 1, 1},
    {12, 8, 2, 1, 1}, {20, 4, 2, 1, 1}, {16, 5, 2, 1, 1}, {8, 8, 1, 1, 2},  {8, 5, 1, 1, 2},
    {12, 6, 1, 1, 2}, {12, 4, 1, 1, 2}, {16, 4, 1, 2, 1}, {16, 5, 1, 2, 1}, {20, 5, 1, 2, 1},
};

static void sweep_entropy(int64_t rows, int64_t width, cup_dtype dtype)
{
    cup_tensor *logits = cup_normal(c, dtype, 2, (int64_t[]){rows, width}, 0, 2);
    cup_tensor *targets = cup_full(c, CUP_I32, 1, (int64_t[]){rows}, 5);
    check(c->error.status);
    for (int in_place = 1; in_place >= 0; in_place--)
        for (size_t i = 0; i < sizeof for_entropy / sizeof *for_entropy; i++)
            time_entropy(logits, targets, &for_entropy[i], in_place);
    cup_tensor_free(logits);
    cup_tensor_free(targets);
}

static void sweep_softmax(int64_t rows, int64_t width, cup_dtype dtype, bool rings)
{
    static const int warps[] = {2, 4, 8, 16}, pieces[] = {2, 4, 8};
    cup_tensor *x = cup_normal(c, dtype, 2, (int64_t[]){rows, width}, 0, 2);
    cup_tensor *y = cup_normal(c, dtype, 2, (int64_t[]){rows, width}, 0, 2);
    check(c->error.status);
    for (int group = 64; group <= 1024; group *= 2)
        for (int p = 1; p <= 16; p++)
            time_registers(x, y, group, p);
    for (int w = 1; rings && w < 3; w++)
        for (int p = 0; p < 3; p++)
            for (int ring = 1; ring <= 3; ring++)
                for (int blocks = 1; blocks <= 8 && blocks * warps[w] <= 32; blocks++) {
                    knobs k = {warps[w], pieces[p], ring, 1, blocks};
                    int64_t bytes = shared_of(width * (int64_t)cup_dtype_size(dtype) / 16, &k);
                    if (bytes * blocks > 90000 && (blocks * warps[w] >= 12 || blocks == 8))
                        time_softmax(x, y, &k);
                }
    cup_tensor_free(x);
    cup_tensor_free(y);
}

int main(int argc, char **argv)
{
    c = cup_context_new(&(cup_options){.device = "cuda"});
    check(cup_error(c));
    gpu = cup__cuda_of(c->device);
    check(c->device->calls->allocate(c->device, FLUSH, "cache flush", &flush));
    if (argc == 1)
        sweep_entropy(8192, 50304, CUP_BF16);
    if (argc < 3) {
        sweep_softmax(8192, 8192, CUP_BF16, argc == 1);
        sweep_softmax(4096, 10000, CUP_F32, argc == 1);
    }
    for (int i = 1; i + 1 < argc; i += 2)
        sweep_entropy(atoll(argv[i]), atoll(argv[i + 1]), CUP_BF16);
    cup_context_free(c);
    return 0;
}
