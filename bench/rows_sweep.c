/* Times the knobs of the kernels for long rows on one card: cross-entropy through the ring of
 * kernels/row_ring.cuh.
 *
 *     rows_sweep [rows columns]...      8192 50304 where none are given */
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

static void time_ring(cup_tensor *logits, cup_tensor *targets, int warps, int pieces, int ring,
                      int cluster, int in_place)
{
    int64_t rows = logits->shape[0], width = logits->shape[1];
    int64_t vectors = width * (int64_t)cup_dtype_size(logits->dtype) / 16;
    int64_t slice = (vectors + cluster * warps - 1) / (cluster * warps);
    int64_t bytes = slice * warps * ring * 16;
    if (bytes + 12000 > 232448 || slice > 16 * pieces * 32)
        return;
    const cup__knob knobs[] = {{"CUP_T", logits->dtype}, {"INDEX", targets->dtype},
                               {"IN_PLACE", in_place},   {"CLUSTER", cluster},
                               {"WARPS", warps},         {"PIECES", pieces},
                               {"RING", ring}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "cross_entropy_sm90.cu", "cross_entropy_sm90", knobs, 7);
    check(c->error.status);
    cup_tensor *losses = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){rows});
    cup_tensor *loss = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){1});
    rule r = {rows, -1, (int)width, (int)width, 0, 0};
    int64_t clusters = cup__cuda_facts(gpu)->multiprocessors / cluster;
    cup__grid grid = {.x = (rows < clusters ? rows : clusters) * cluster,
                      .threads = warps * 32,
                      .cluster = cluster,
                      .shared = (int)bytes};
    cup__timer *timer;
    check(cup__timer_new(gpu, &timer));
    double us[RUNS], ms;
    void *none = NULL;
    for (int i = -2; i < RUNS; i++) {
        check(c->device->calls->fill(c->device, flush, 0x33, FLUSH));
        check(cup__timer_start(timer));
        check(cup__launch(gpu, kernel, grid, CUP__ARG(logits->data), CUP__ARG(targets->data),
                          CUP__ARG(none), CUP__ARG(none), CUP__ARG(losses->data),
                          CUP__ARG(loss->data), CUP__ARG(r)));
        check(cup__timer_stop(timer, &ms));
        if (i >= 0)
            us[i] = ms * 1e3;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    double moved = (double)(rows * vectors) * 16 * (in_place ? 2 : 1);
    printf("%-4s %lldx%-7lld warps %2d pieces %d ring %d cluster %d %s %9.1f us %7.0f GB/s\n",
           cup_dtype_name(logits->dtype), (long long)rows, (long long)width, warps, pieces, ring,
           cluster, in_place ? "in place" : "loss    ", us[RUNS / 2], moved / us[RUNS / 2] * 1e-3);
    fflush(stdout);
    cup__timer_free(timer);
    cup_tensor_free(losses);
    cup_tensor_free(loss);
}

static void sweep(int64_t rows, int64_t width, cup_dtype dtype)
{
    static const int warps[] = {8, 12, 16}, pieces[] = {2, 4, 6}, rings[] = {2, 3, 4};
    cup_tensor *logits = cup_normal(c, dtype, (int64_t[]){rows, width}, 2, 0, 2);
    cup_tensor *targets = cup_full(c, CUP_I32, (int64_t[]){rows}, 1, 5);
    check(c->error.status);
    for (int in_place = 1; in_place >= 0; in_place--)
        for (int w = 0; w < 3; w++)
            for (int p = 0; p < 3; p++)
                for (int r = 0; r < 3; r++)
                    for (int cluster = 1; cluster <= 4; cluster *= 2)
                        if (in_place || (p == 1 && w != 1))
                            time_ring(logits, targets, warps[w], pieces[p], rings[r], cluster,
                                      in_place);
    cup_tensor_free(logits);
    cup_tensor_free(targets);
}

int main(int argc, char **argv)
{
    c = cup_context_new(&(cup_options){.device = "cuda"});
    check(cup_error(c));
    gpu = cup__cuda_of(c->device);
    check(c->device->calls->allocate(c->device, FLUSH, "cache flush", &flush));
    if (argc < 3)
        sweep(8192, 50304, CUP_BF16);
    for (int i = 1; i + 1 < argc; i += 2)
        sweep(atoll(argv[i]), atoll(argv[i + 1]), CUP_BF16);
    cup_context_free(c);
    return 0;
}
