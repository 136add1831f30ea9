/* Batches of samples: their order, where they come from, and that none is read too early. */
#include "cupola/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "data/source.h"
#include "tensor/context.h"
#include "test.h"

#define SAMPLES 103
#define SIZED .size = sizeof(cup_loader_options)

/* Sample i is x = (i, i + 0.5), y = i. */
static float xs[SAMPLES][2];
static int32_t ys[SAMPLES];
static const cup_loader_array arrays[] = {
    {.data = xs, .dtype = CUP_F32, .ndim = 2, .shape = (int64_t[]){SAMPLES, 2}},
    {.data = ys, .dtype = CUP_I32, .ndim = 1, .shape = (int64_t[]){SAMPLES}}};

static const char *folder; /* of the test */

static cup_context *begin(const char *device)
{
    for (int i = 0; i < SAMPLES; i++) {
        xs[i][0] = (float)i;
        xs[i][1] = (float)i + 0.5f;
        ys[i] = i;
    }
    if (!folder)
        folder = fake_begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

/* Takes a batch, checks that x and y belong together, and appends the samples. */
static int take(cup_loader *l, cup_context *c, int32_t *to)
{
    cup_tensor *batch[2];
    float x[SAMPLES][2];
    cup_scope_open(c);
    cup_loader_next(l, batch);
    EXPECT_TEXT(cup_error_text(c), "");
    int rows = (int)cup_tensor_count(batch[1]);
    EXPECT_INT(cup_tensor_size(batch[0], 0), rows);
    EXPECT_INT(cup_tensor_size(batch[0], 1), 2);
    cup_tensor_read(batch[0], x, sizeof *x * (size_t)rows);
    cup_tensor_read(batch[1], to, sizeof *to * (size_t)rows);
    for (int i = 0; i < rows; i++)
        EXPECT(x[i][0] == (float)to[i] && x[i][1] == (float)to[i] + 0.5f);
    cup_scope_close(c);
    return rows;
}

static void expect_permutation(const int32_t *order)
{
    bool seen[SAMPLES] = {false};
    for (int i = 0; i < SAMPLES; i++) {
        EXPECT(order[i] >= 0 && order[i] < SAMPLES && !seen[order[i]]);
        seen[order[i]] = true;
    }
}

/* Two epochs in batches of 10, in one order whatever reads them and wherever they lie. */
static void take_two(const char *device, const cup_loader_array *from, int prefetch, bool debug,
                     int32_t *order)
{
    cup_context *c = begin(device);
    if (debug) {
        cup_context_free(c);
        c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .debug = true));
    }
    cup_loader *l = cup_loader_new(
        c, from, 2, &(cup_loader_options){SIZED, .batch = 10, .shuffle = true, .seed = 5,
                                          .prefetch = prefetch});
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_loader_samples(l), SAMPLES);
    EXPECT_INT(cup_loader_batches(l), 11);
    for (int b = 0, at = 0; b < 22; b++) {
        int rows = take(l, c, order + at);
        EXPECT_INT(rows, b % 11 == 10 ? 3 : 10);
        at += rows;
    }
    cup_loader_free(l);
    cup_context_free(c);
}

TEST(loader_orders_do_not_depend_on_threads)
{
    int32_t plain[2 * SAMPLES], other[2 * SAMPLES];
    uint32_t order[SAMPLES];
    take_two("cpu", arrays, -1, false, plain);
    expect_permutation(plain);
    expect_permutation(plain + SAMPLES);
    EXPECT(memcmp(plain, plain + SAMPLES, sizeof plain / 2));
    cup__order_make(order, SAMPLES, 5, 1);
    EXPECT(!memcmp(plain + SAMPLES, order, sizeof order));
    for (int prefetch = 0; prefetch < 4; prefetch++) {
        take_two("cpu", arrays, prefetch, prefetch == 2, other);
        EXPECT(!memcmp(plain, other, sizeof plain));
    }
    for (int prefetch = -1; prefetch < 4; prefetch++) {
        take_two("cuda", arrays, prefetch, prefetch == 2, other);
        EXPECT(!memcmp(plain, other, sizeof plain));
    }
    fake_expect_nothing_left();
}

/* Each of the orders of 4 samples about as often. */
TEST(loader_orders_are_alike)
{
    int count[256] = {0}, most = 0, orders = 0;
    uint32_t order[4];
    for (int epoch = 0; epoch < 24000; epoch++) {
        cup__order_make(order, 4, 9, epoch);
        int key = (int)(order[0] << 6 | order[1] << 4 | order[2] << 2 | order[3]);
        orders += count[key]++ == 0;
    }
    for (int i = 0; i < 256; i++) {
        EXPECT(!count[i] || count[i] > 850); /* of 1000 each, 4.7 deviations */
        most = count[i] > most ? count[i] : most;
    }
    EXPECT_INT(orders, 24);
    EXPECT(most < 1150);
}

TEST(loader_reads_files)
{
    char x[400], both[400], head[80];
    int32_t plain[2 * SAMPLES], other[2 * SAMPLES];
    take_two("cpu", arrays, -1, false, plain);
    snprintf(x, sizeof x, "%s/x.npy", folder);
    snprintf(both, sizeof both, "%s/both.safetensors", folder);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_named named[] = {
        {"x", cup_tensor_from(c, CUP_F32, 2, (int64_t[]){SAMPLES, 2}, xs)},
        {"y", cup_tensor_from(c, CUP_I32, 1, (int64_t[]){SAMPLES}, ys)}};
    EXPECT_INT(cup_safetensors_save(c, both, named, 2), CUP_OK);
    cup_context_free(c);
    FILE *file = fopen(x, "wb");
    int used = snprintf(head, sizeof head,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 2), }", SAMPLES);
    fwrite("\x93NUMPY\1\0\x76\0", 1, 10, file);
    fprintf(file, "%s%*s", head, 118 - used, "\n");
    fwrite(xs, 1, sizeof xs, file);
    fclose(file);
    const cup_loader_array from[] = {{.path = x}, {.path = both, .name = "y"}};
    for (int prefetch = -1; prefetch < 3; prefetch++) {
        take_two("cpu", from, prefetch, false, other);
        EXPECT(!memcmp(plain, other, sizeof plain));
    }
    take_two("cuda", from, 0, false, other);
    EXPECT(!memcmp(plain, other, sizeof plain));
    /* Cut off behind its opening: said in words, and the batch stays the next one. */
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_loader *l = cup_loader_new(c, from, 2, &(cup_loader_options){SIZED, .batch = 50});
    EXPECT_INT(take(l, c, other), 50);
    cup_loader_state before, after;
    cup_tensor *batch[2];
    cup_loader_where(l, &before);
    cup_loader_resume(l, &(cup_loader_state){.epoch = 3, .sample = 50});
    EXPECT_INT(truncate(x, 200), 0);
    EXPECT_INT(cup_loader_next(l, batch), CUP_IO);
    EXPECT_CONTAINS(cup_error_text(c), "x.npy");
    EXPECT(!batch[0] && !batch[1]);
    cup_error_clear(c);
    cup_loader_where(l, &after);
    EXPECT(after.epoch == 3 && after.sample == 50 && before.sample == 50);
    cup_loader_free(l);
    cup_context_free(c);
}

static void expect_resumed(const char *device)
{
    int32_t whole[2 * SAMPLES + 10], rest[2 * SAMPLES + 10];
    cup_context *c = begin(device);
    cup_loader_options o = {SIZED, .batch = 10, .shuffle = true, .seed = 77, .prefetch = 3};
    cup_loader *l = cup_loader_new(c, arrays, 2, &o);
    cup_loader_state state;
    int at = 0, from = 0;
    for (int b = 0; at < 2 * SAMPLES; b++) {
        at += take(l, c, whole + at);
        if (b != 12)
            continue;
        EXPECT_INT(cup_loader_where(l, &state), CUP_OK);
        from = at;
        EXPECT(state.epoch == 1 && state.sample == at - SAMPLES && state.seed == 77);
    }
    EXPECT_INT(cup_loader_resume(l, &state), CUP_OK);
    int got = 0;
    while (got < at - from)
        got += take(l, c, rest + got);
    EXPECT(!memcmp(whole + from, rest, sizeof *rest * (size_t)(at - from)));
    cup_loader_free(l);
    o.batch = 7;
    o.seed = 0;
    l = cup_loader_new(c, arrays, 2, &o);
    EXPECT_INT(cup_loader_resume(l, &state), CUP_OK);
    for (got = 0; got < at - from;)
        got += take(l, c, rest + got);
    EXPECT(!memcmp(whole + from, rest, sizeof *rest * (size_t)(at - from)));
    cup_loader_free(l);
    cup_context_free(c);
}

TEST(loader_resumes_at_the_sample)
{
    expect_resumed("cpu");
    expect_resumed("cuda");
    fake_expect_nothing_left();
}

TEST(loader_resumes_at_no_state_beyond_all)
{
    static const cup_loader_state wrong[] = {
        {0, -1, 0}, {0, INT64_MAX, 0}, {0, 0, -1}, {0, 0, SAMPLES + 1}, {0, 0, INT64_MAX}};
    cup_context *c = begin("cpu");
    cup_loader *l = cup_loader_new(c, arrays, 2, &(cup_loader_options){SIZED, .batch = SAMPLES});
    int32_t got[SAMPLES];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_INT(cup_loader_resume(l, &wrong[i]), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "cannot go on at this epoch and sample");
        cup_error_clear(c);
    }
    const cup_loader_state last = {0, (int64_t)1 << 62, 0};
    EXPECT_INT(cup_loader_resume(l, &last), CUP_OK);
    for (int i = 0; i < 3; i++)
        EXPECT_INT(take(l, c, got), SAMPLES);
    cup_loader_free(l);
    cup_context_free(c);
}

TEST(loader_drops_the_last)
{
    int32_t got[SAMPLES];
    cup_context *c = begin("cpu");
    cup_loader *l = cup_loader_new(c, arrays, 2,
                                   &(cup_loader_options){SIZED, .batch = 50, .drop_last = true});
    EXPECT_INT(cup_loader_batches(l), 2);
    for (int b = 0; b < 5; b++) {
        EXPECT_INT(take(l, c, got), 50);
        EXPECT_INT(got[49], b % 2 * 50 + 49);
    }
    cup_loader_free(l);
    l = cup_loader_new(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 1000});
    EXPECT_INT(cup_loader_batches(l), 1);
    EXPECT_INT(take(l, c, got), SAMPLES);
    cup_loader_free(l);
    cup_context_free(c);
}

static void expect_refused(cup_context *c, const cup_loader_array *from, int count,
                           const cup_loader_options *o, cup_status status, const char *words)
{
    EXPECT(!cup_loader_new(c, from, count, o));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(loader_refuses_in_words)
{
    cup_context *c = begin("cpu");
    const cup_loader_options ten = {SIZED, .batch = 10};
    cup_loader_array other[] = {arrays[0], arrays[1]};
    expect_refused(c, NULL, 1, &ten, CUP_ARGUMENT, "1 to 16 arrays");
    expect_refused(c, arrays, 17, &ten, CUP_ARGUMENT, "1 to 16 arrays");
    expect_refused(c, arrays, 2, NULL, CUP_ARGUMENT, "batch of 0");
    expect_refused(c, arrays, 2, &(cup_loader_options){SIZED}, CUP_ARGUMENT, "batch of 0");
    expect_refused(c, arrays, 2, &(cup_loader_options){.batch = 1}, CUP_ARGUMENT,
                   "CUP_OPTIONS");
    expect_refused(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 1, .prefetch = 17},
                   CUP_ARGUMENT, "prefetch 17");
    expect_refused(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 104, .drop_last = true},
                   CUP_ARGUMENT, "103 samples make no batch of 104");
    other[1].shape = (int64_t[]){102};
    expect_refused(c, other, 2, &ten, CUP_SHAPE, "103 and 102 samples");
    other[1].ndim = 0;
    expect_refused(c, other, 2, &ten, CUP_SHAPE, "no dimension of samples");
    other[1].data = NULL;
    expect_refused(c, other, 2, &ten, CUP_ARGUMENT, "neither a path nor data");
    other[1].path = "/nowhere.npy";
    expect_refused(c, other, 2, &ten, CUP_IO, "/nowhere.npy");
    cup_loader *l = cup_loader_new(c, arrays, 2, &ten);
    EXPECT_INT(cup_loader_resume(l, &(cup_loader_state){.sample = 104}), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_loader_next(l, NULL), CUP_ARGUMENT);
    cup_error_clear(c);
    cup_loader_free(l);
    cup_context_free(c);
}

static void fail_each_allocation(const char *device)
{
    for (long n = 1; n < 40; n++) {
        cup_context *c = begin(device);
        cup_tensor *batch[2];
        cup__memory_fail_at(n, false);
        cup_loader *l = cup_loader_new(
            c, arrays, 2,
            &(cup_loader_options){SIZED, .batch = 40, .shuffle = true, .prefetch = -1});
        if (l && cup_loader_next(l, batch) != CUP_OK)
            EXPECT_INT(cup_error(c), CUP_MEMORY);
        cup__memory_fail_at(0, false);
        EXPECT(l || cup_error(c) == CUP_MEMORY);
        cup_error_clear(c);
        int32_t got[SAMPLES];
        if (l)
            EXPECT(take(l, c, got) <= 40);
        cup_loader_free(l);
        cup_context_free(c);
    }
}

TEST(loader_lacks_memory)
{
    fail_each_allocation("cpu");
    fail_each_allocation("cuda");
    fake_expect_nothing_left();
}

/* Nothing waits for the GPU here: what a step reads must not be overwritten by a later batch that
 * was given the same memory, nor read before it is there. */
TEST(loader_copies_neither_early_nor_late)
{
    enum { STEPS = 40, BATCH = 10 };
    for (int prefetch = -1; prefetch < 3; prefetch++) {
        cup_context *c = begin("cuda");
        int32_t got[STEPS * BATCH];
        cup_tensor *seen = cup_tensor_new(c, CUP_I32, 1, (int64_t[]){STEPS * BATCH});
        cup_loader *l = cup_loader_new(
            c, arrays, 2,
            &(cup_loader_options){SIZED, .batch = BATCH, .drop_last = true, .prefetch = prefetch});
        for (int step = 0; step < STEPS; step++) {
            cup_tensor *batch[2];
            cup_scope_open(c);
            EXPECT_INT(cup_loader_next(l, batch), CUP_OK);
            c->device->calls->copy(c->device, (int32_t *)cup_tensor_data(seen) + step * BATCH,
                                   cup_tensor_data(batch[1]), BATCH * sizeof *got);
            cup_scope_close(c);
        }
        EXPECT_INT(cup_tensor_read(seen, got, sizeof got), CUP_OK);
        for (int i = 0; i < STEPS * BATCH; i++)
            EXPECT_INT(got[i], i % 100);
        cup_loader_free(l);
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

TEST(loader_and_a_captured_graph)
{
    cup_context *c = begin("cuda");
    cup_tensor *batch[2];
    int32_t got[SAMPLES];
    cup_loader *l = cup_loader_new(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 10});
    EXPECT_INT(take(l, c, got), 10);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    EXPECT_INT(cup_loader_next(l, batch), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "while a graph is captured");
    cup_error_clear(c);
    cup_graph_free(cup_capture_end(c));
    EXPECT_INT(take(l, c, got), 10);
    EXPECT_INT(got[0], 10);
    cup_loader_free(l);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* With each call of the driver failing once: said in words, nothing left, nothing crashed. */
TEST(loader_and_a_failing_driver)
{
    for (long n = 1; n < 60; n++) {
        cup_context *c = begin("cuda");
        cup_tensor *batch[2];
        fake_fail(NULL, n, CUDA_ERROR_OUT_OF_MEMORY);
        cup_loader *l = cup_loader_new(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 10});
        for (int i = 0; l && i < 3; i++)
            if (cup_loader_next(l, batch) != CUP_OK) {
                EXPECT(cup_error_text(c)[0]);
                cup_error_clear(c);
            }
        fake_fail(NULL, 0, CUDA_SUCCESS);
        cup_loader_free(l);
        cup_context_free(c);
        fake_expect_nothing_left();
    }
}

TEST(loader_freed_behind_its_context)
{
    for (int cuda = 0; cuda < 2; cuda++) {
        cup_context *c = begin(cuda ? "cuda" : "cpu");
        int32_t got[SAMPLES];
        cup_tensor *batch[2];
        cup_loader *l =
            cup_loader_new(c, arrays, 2, &(cup_loader_options){SIZED, .batch = 10, .prefetch = 4});
        EXPECT_INT(take(l, c, got), 10);
        cup_context_free(c);
        EXPECT_INT(cup_loader_next(l, batch), CUP_STATE);
        cup_loader_free(l);
    }
    fake_expect_nothing_left();
}
