/* What attention by lists of blocks of keys takes beside all keys, with the same tensors, L2
 * flushed: for each block of queries a tenth of the blocks of keys, drawn at random.
 * Build and run: make build/bench/attention_lists && build/bench/attention_lists */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cupola/ops.h"
#include "tensor/context.h"

#define ROUNDS 21
#define FLUSH ((size_t)256 << 20)

typedef struct rig {
    cup_context *c;
    cup__timer *timer;
    void *flush;
} rig;

static void must(rig *r)
{
    if (cup_error(r->c) == CUP_OK)
        return;
    fprintf(stderr, "FAILED: %s\n", cup_error_text(r->c));
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* For each block of queries of each head so many of `blocks` numbers, none of them twice. */
static cup_tensor *draw_lists(rig *r, int64_t heads, int64_t blocks, int64_t named)
{
    int32_t *all = malloc((size_t)(heads * blocks * named) * sizeof *all);
    int32_t *order = malloc((size_t)blocks * sizeof *order);
    if (!all || !order)
        exit(1);
    srand(1);
    for (int64_t i = 0; i < heads * blocks; i++) {
        for (int64_t j = 0; j < blocks; j++)
            order[j] = (int32_t)j;
        for (int64_t j = 0; j < named; j++) {
            int64_t k = j + rand() % (blocks - j);
            int32_t drawn = order[k];
            order[k] = order[j];
            all[i * named + j] = order[j] = drawn;
        }
    }
    cup_tensor *t = cup_tensor_from(r->c, CUP_I32, 4, (int64_t[]){1, heads, blocks, named}, all);
    free(all);
    free(order);
    must(r);
    return t;
}

/* Both by turns. */
static void time_both(rig *r, cup_tensor *const q[3], const cup_attention_options *lists,
                      double us[2])
{
    double taken[2][ROUNDS];
    for (int i = -1; i < ROUNDS; i++)
        for (int w = 0; w < 2; w++) {
            double ms;
            r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
            cup__timer_start(r->timer);
            cup_tensor *o = cup_attention(r->c, q[0], q[1], q[2], w ? lists : NULL);
            cup__timer_stop(r->timer, &ms);
            cup_tensor_free(o);
            must(r);
            if (i >= 0)
                taken[w][i] = ms * 1000;
        }
    for (int w = 0; w < 2; w++) {
        qsort(taken[w], ROUNDS, sizeof *taken[w], by_value);
        us[w] = taken[w][ROUNDS / 2];
    }
}

static void time_shape(rig *r, const int64_t shape[4], int block)
{
    cup_scope_open(r->c);
    cup_tensor *q[3];
    for (int i = 0; i < 3; i++)
        q[i] = cup_normal(r->c, CUP_BF16, 4, shape, 0, 1);
    int64_t blocks = shape[2] / block, named = (blocks + 5) / 10;
    double us[2];
    cup_attention_options lists = {.size = sizeof lists, .block_size = block,
                                   .key_blocks = draw_lists(r, shape[1], blocks, named)};
    time_both(r, q, &lists, us);
    printf("%lldx%lldx%lldx%lld, %2lld of %3lld blocks of %3d: %8.1f us of %8.1f, %.1f %% for "
           "%.1f %%\n",
           (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)shape[3],
           (long long)named, (long long)blocks, block, us[1], us[0], 100 * us[1] / us[0],
           100.0 * (double)named / (double)blocks);
    fflush(stdout);
    cup_scope_close(r->c);
}

int main(void)
{
    static const int64_t shapes[][4] = {{4, 32, 4096, 64}, {8, 12, 2048, 64}, {2, 16, 8192, 64},
                                        {4, 16, 4096, 128}, {1, 16, 16384, 128}};
    rig r = {cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda")), NULL, NULL};
    must(&r);
    r.c->device->calls->allocate(r.c->device, FLUSH, "flush", &r.flush);
    cup__timer_new(cup__cuda_of(r.c->device), &r.timer);
    must(&r);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int block = 64; block <= 128; block *= 2)
            time_shape(&r, shapes[i], block);
    cup__timer_free(r.timer);
    r.c->device->calls->release(r.c->device, r.flush);
    cup_context_free(r.c);
    return 0;
}
