/* Each call of the driver, and each host allocation, fails in turn: nothing crashes or is left. */
#include <stdlib.h>

#include "base/memory.h"
#include "cuda/heap.h"
#include "support.h"
#include "test.h"

/* One pass over all that the driver is asked for; false at the first failure. */
static bool one_life(void)
{
    cup__error error = {0};
    cup__device *d;
    if (cup__cuda_open(&error, 0, 0, &d) != CUP_OK)
        return false;
    cup__cuda *gpu = cup__cuda_of(d);
    uint32_t number = 1;
    void *memory = NULL, *large = NULL, *inside = NULL;
    cup__graph *graph = NULL;
    cup__timer *timer = NULL;
    double milliseconds;
    bool good =
        d->calls->allocate(d, 4, "small", &memory) == CUP_OK &&
        d->calls->allocate(d, 3 << 20, "large", &large) == CUP_OK &&
        d->calls->write(d, memory, &number, 4) == CUP_OK &&
        d->calls->fill(d, large, 1, 64) == CUP_OK && cup__timer_new(gpu, &timer) == CUP_OK &&
        cup__timer_start(timer) == CUP_OK && fake_add(gpu, memory, 1, 1) == CUP_OK &&
        cup__timer_stop(timer, &milliseconds) == CUP_OK && cup__graph_begin(gpu, NULL) == CUP_OK &&
        d->calls->allocate(d, 4, "inside", &inside) == CUP_OK &&
        d->calls->write(d, inside, &number, 4) == CUP_OK && fake_add(gpu, inside, 1, 1) == CUP_OK &&
        cup__graph_end(gpu, &graph) == CUP_OK && cup__graph_launch(graph) == CUP_OK &&
        d->calls->read(d, &number, inside, 4) == CUP_OK && number == 2 &&
        d->calls->synchronize(d) == CUP_OK;
    if (!good)
        EXPECT(error.status != CUP_OK && error.text[0]);
    const char *wrong = cup__pool_check(gpu->pool);
    if (wrong)
        test_fail(__FILE__, __LINE__, "%s", wrong);
    cup__timer_free(timer);
    if (inside)
        d->calls->release(d, inside);
    cup__graph_free(graph);
    if (large)
        d->calls->release(d, large);
    cup__pool_trim(gpu->pool);
    wrong = cup__pool_check(gpu->pool);
    if (wrong)
        test_fail(__FILE__, __LINE__, "%s", wrong);
    d->calls->close(d);
    return good;
}

static void fail_each(CUresult result)
{
    fake_begin();
    long calls = fake_calls(NULL), failures = 0;
    EXPECT(one_life());
    fake_expect_nothing_left();
    calls = fake_calls(NULL) - calls;
    for (long n = 1; n <= calls; n++) {
        fake_fail(NULL, n, result);
        failures += !one_life();
        fake_fail(NULL, 0, CUDA_SUCCESS);
        fake_expect_nothing_left();
    }
    EXPECT(failures > 30);
}

TEST(cuda_fake_fail_each_call)
{
    fail_each(CUDA_ERROR_INVALID_VALUE);
}

TEST(cuda_fake_fail_each_call_for_memory)
{
    fail_each(CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(cuda_fake_fail_each_call_lost)
{
    fail_each(CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(cuda_fake_fail_each_call_unmapped)
{
    setenv("FAKE_CUDA_VMM", "0", 1);
    fail_each(CUDA_ERROR_OUT_OF_MEMORY);
}

/* Host memory that runs out, at each allocation in turn. */
TEST(cuda_fake_fail_each_host_allocation)
{
    fake_begin();
    EXPECT(one_life());
    for (long n = 1; n < 200; n++) {
        cup__memory_fail_at(n, false);
        bool good = one_life();
        cup__memory_fail_at(0, false);
        fake_expect_nothing_left();
        if (good && n > 60)
            return;
    }
}
