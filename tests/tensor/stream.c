/* The order of work between contexts and streams; the fake driver runs streams as far apart as
 * their waits allow, so that one that is missing shows. */
#include "cupola/stream.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "tensor/context.h"
#include "test.h"

static cup_context *context_on(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

static cup_tensor *vector(cup_context *c, float first)
{
    return cup_keep(cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){first, first + 1}));
}

/* Queues a copy of the elements of two vectors, which may be of two contexts. */
static void queue_copy(cup_context *c, cup_tensor *to, cup_tensor *from)
{
    EXPECT_INT(c->device->calls->copy(c->device, cup_tensor_data(to), cup_tensor_data(from), 8),
               CUP_OK);
}

static float first_of(cup_tensor *t)
{
    float to[2];
    EXPECT_INT(cup_tensor_read(t, to, sizeof to), CUP_OK);
    return to[0];
}

static void expect_error(cup_context *c, cup_status status, const char *words)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(stream_events_order_two_contexts)
{
    fake_begin();
    cup_context *a = context_on("cuda"), *b = context_on("cuda");
    cup_tensor *x = vector(a, 1), *y = vector(b, 5), *z = vector(b, 7);
    cup_synchronize(a);
    cup_synchronize(b);
    cup_event *e = cup_event_new(a);
    /* Without the wait b reads x before a has written it. */
    EXPECT_INT(cup_tensor_write(x, (float[]){3, 4}, 8), CUP_OK);
    EXPECT_INT(cup_event_record(e), CUP_OK);
    EXPECT(!cup_event_is_done(e));
    queue_copy(b, z, x);
    EXPECT(first_of(z) == 1);
    EXPECT_INT(cup_event_wait(b, e), CUP_OK);
    queue_copy(b, y, x);
    EXPECT(first_of(y) == 3);
    EXPECT(cup_event_is_done(e));
    EXPECT(fabs(cup_event_elapsed(e, e)) >= 0);
    cup_event_free(e);
    cup_context_free(a);
    cup_context_free(b);
    fake_expect_nothing_left();
}

TEST(stream_of_the_callers)
{
    CUstream stream;
    fake_begin();
    cup_context *c = context_on("cuda");
    void *own = cup_stream_handle(c);
    cup__driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cup_tensor *x = vector(c, 1), *y = vector(c, 2), *z = vector(c, 3);
    /* Each change of stream keeps the order of what the context does, and so the use of memory. */
    for (int i = 0; i < 20; i++) {
        EXPECT_INT(cup_stream_use(c, i % 3 == 2 ? NULL : stream), CUP_OK);
        EXPECT(cup_stream_handle(c) == (i % 3 == 2 ? own : (void *)stream));
        cup_tensor *held = vector(c, (float)(10 + i));
        queue_copy(c, x, held);
        cup_tensor_free(held);
        if (i % 2)
            queue_copy(c, y, x);
        cup_tensor *next = vector(c, 100); /* in the same memory */
        cup_tensor_free(next);
    }
    EXPECT(first_of(x) == 29 && first_of(y) == 29);
    /* Work of others on a stream of theirs, before and behind. */
    cup_stream_use(c, NULL);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)cup_tensor_data(z);
    cup__driver.cuMemsetD8Async(at, 0, 8, stream);
    EXPECT_INT(cup_stream_wait(c, stream), CUP_OK);
    queue_copy(c, y, z);
    EXPECT(first_of(y) == 0);
    cup_tensor_write(x, (float[]){6, 7}, 8);
    EXPECT_INT(cup_stream_lead(c, stream), CUP_OK);
    cup__driver.cuMemcpyDtoDAsync(at, (CUdeviceptr)(uintptr_t)cup_tensor_data(x), 8, stream);
    cup__driver.cuStreamSynchronize(stream);
    EXPECT(first_of(z) == 6);
    EXPECT_INT(cup_stream_use(c, stream), CUP_OK);
    cup_context_free(c); /* which leaves the stream alone */
    EXPECT_INT(cup__driver.cuStreamDestroy(stream), CUDA_SUCCESS);
    fake_expect_nothing_left();
}

TEST(stream_graphs_go_on_on_another)
{
    CUstream stream;
    fake_begin();
    cup_context *c = context_on("cuda");
    cup__driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cup_tensor *x = vector(c, 1), *y = vector(c, 2);
    cup_event *e = cup_event_new(c);
    cup_event_record(e);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    queue_copy(c, y, x);
    EXPECT_INT(cup_stream_use(c, stream), CUP_STATE);
    expect_error(c, CUP_STATE, "end the capture first");
    EXPECT_INT(cup_stream_wait(c, stream), CUP_STATE);
    cup_error_clear(c);
    EXPECT_INT(cup_stream_lead(c, stream), CUP_STATE);
    cup_error_clear(c);
    EXPECT_INT(cup_event_record(e), CUP_STATE);
    cup_error_clear(c);
    EXPECT_INT(cup_event_wait(c, e), CUP_STATE);
    cup_error_clear(c);
    cup_graph *graph = cup_capture_end(c);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_stream_use(c, stream), CUP_OK);
    cup_tensor_write(x, (float[]){8, 9}, 8);
    EXPECT_INT(cup_graph_launch(graph), CUP_OK);
    EXPECT(first_of(y) == 8);
    cup_graph_free(graph);
    cup_event_free(e);
    cup_context_free(c);
    cup__driver.cuStreamDestroy(stream);
    fake_expect_nothing_left();
}

TEST(stream_refuses_in_words)
{
    fake_begin();
    cup_context *c = context_on("cuda"), *other = context_on("cuda");
    cup_event *e = cup_event_new(c), *host;
    EXPECT_INT(cup_stream_wait(c, NULL), CUP_ARGUMENT);
    expect_error(c, CUP_ARGUMENT, "the stream is NULL");
    EXPECT_INT(cup_stream_lead(c, NULL), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_event_wait(other, NULL), CUP_ARGUMENT);
    expect_error(other, CUP_ARGUMENT, "the event is NULL");
    EXPECT_INT(cup_event_wait(other, e), CUP_STATE);
    expect_error(other, CUP_STATE, "never recorded");
    EXPECT_INT(cup_event_record(e), CUP_OK);
    EXPECT(isnan(cup_event_elapsed(e, e)));
    expect_error(c, CUP_STATE, "cup_event_synchronize first");
    cup_context *cpu = context_on("cpu");
    host = cup_event_new(cpu);
    cup_event_record(host);
    EXPECT(isnan(cup_event_elapsed(e, host)));
    expect_error(c, CUP_ARGUMENT, "one is of a CPU");
    EXPECT_INT(cup_event_wait(cpu, e), CUP_OK);
    EXPECT_INT(cup_event_wait(c, host), CUP_OK);
    cup_event_free(host);
    cup_context_free(cpu);
    cup_context_free(c);
    EXPECT_INT(cup_event_wait(other, e), CUP_STATE);
    expect_error(other, CUP_STATE, "context was freed");
    EXPECT_INT(cup_event_record(e), CUP_STATE);
    EXPECT(cup_event_is_done(e));
    cup_event_free(e);
    for (long n = 1; n < 12; n++) {
        fake_fail(NULL, n, CUDA_ERROR_OUT_OF_MEMORY);
        e = cup_event_new(other);
        if (e && cup_event_record(e) == CUP_OK)
            cup_event_wait(other, e);
        cup_stream_lead(other, (void *)1);
        fake_fail(NULL, 0, CUDA_SUCCESS);
        cup_error_clear(other);
        cup_event_free(e);
    }
    cup_context_free(other);
    fake_expect_nothing_left();
}

TEST(stream_on_a_cpu_waits_for_nothing)
{
    cup_context *c = context_on("cpu");
    cup_event *a = cup_event_new(c), *b = cup_event_new(c);
    EXPECT(cup_event_is_done(a) && cup_event_is_done(NULL));
    EXPECT_INT(cup_event_record(a), CUP_OK);
    EXPECT_INT(cup_event_record(b), CUP_OK);
    EXPECT_INT(cup_event_wait(c, a), CUP_OK);
    EXPECT_INT(cup_event_synchronize(b), CUP_OK);
    double ms = cup_event_elapsed(a, b);
    EXPECT(ms >= 0 && ms < 10000);
    EXPECT_INT(cup_stream_use(c, (void *)1), CUP_OK);
    EXPECT_INT(cup_stream_wait(c, (void *)1), CUP_OK);
    EXPECT(!cup_stream_handle(c));
    cup__memory_fail_at(1, true);
    EXPECT(!cup_event_new(c));
    cup__memory_fail_at(0, false);
    expect_error(c, CUP_MEMORY, "event");
    cup_event_free(a);
    cup_event_free(b);
    cup_context_free(c);
}
