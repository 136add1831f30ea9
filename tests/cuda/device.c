/* Opening, copies, launches and graphs on the fake driver. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "cuda/heap.h"
#include "support.h"
#include "test.h"

static void close_all(cup__cuda *gpu)
{
    gpu->device.calls->close(&gpu->device);
    fake_expect_nothing_left();
}

TEST(cuda_fake_open)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    EXPECT_TEXT(gpu->device.text, "cuda:0, Fake GPU, 1.0 GiB");
    EXPECT_TEXT(cup__cuda_facts(gpu)->arch, "sm_90a");
    EXPECT_INT(cup__cuda_facts(gpu)->multiprocessors, 4);
    close_all(gpu);
}

static void expect_refused(int index, cup_status status, const char *part)
{
    cup__error error = {0};
    cup__device *device;
    EXPECT_INT(cup__cuda_open(&error, index, 0, &device), status);
    EXPECT(device == NULL);
    EXPECT_CONTAINS(error.text, part);
    fake_expect_nothing_left();
}

TEST(cuda_fake_no_such_index)
{
    fake_begin();
    expect_refused(7, CUP_NO_DEVICE, "cuda:7 is not there: this machine shows one GPU, cuda:0");
    expect_refused(-1, CUP_NO_DEVICE, "cuda:-1 is not there");
}

TEST(cuda_fake_several)
{
    setenv("FAKE_CUDA_DEVICES", "4", 1);
    fake_begin();
    char why[512];
    EXPECT_INT(cup__cuda_count(why), 4);
    expect_refused(4, CUP_NO_DEVICE, "shows 4 GPUs, cuda:0 to cuda:3");
    cup__error error = {0};
    cup__device *devices[4];
    for (int i = 0; i < 4; i++)
        EXPECT_OK(&error, cup__cuda_open(&error, i, 0, &devices[i]));
    for (int i = 0; i < 4; i++) {
        void *memory;
        EXPECT_OK(&error, devices[i]->calls->allocate(devices[i], 100, "test", &memory));
        CUcontext current;
        cup__driver.cuCtxGetCurrent(&current);
        EXPECT(current == cup__cuda_of(devices[i])->context);
    }
    for (int i = 0; i < 4; i++)
        devices[i]->calls->close(devices[i]);
    fake_expect_nothing_left();
}

TEST(cuda_fake_no_device)
{
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    fake_begin();
    char why[512];
    EXPECT_INT(cup__cuda_count(why), 0);
    EXPECT_CONTAINS(why, "CUDA finds no GPU");
}

TEST(cuda_fake_hidden)
{
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    fake_begin();
    char why[512];
    EXPECT_INT(cup__cuda_count(why), 0);
    EXPECT_CONTAINS(why, "CUDA_VISIBLE_DEVICES");
}

TEST(cuda_fake_old_driver)
{
    setenv("FAKE_CUDA_DRIVER", "11020", 1);
    fake_begin();
    expect_refused(0, CUP_NO_DEVICE, "the driver is for CUDA 11.2, and 11.4 is needed");
}

TEST(cuda_fake_old_card)
{
    setenv("FAKE_CUDA_CAPABILITY", "61", 1);
    fake_begin();
    expect_refused(0, CUP_NO_DEVICE, "has compute capability 6.1, and 7.5 is the least");
}

TEST(cuda_fake_mismatch)
{
    setenv("FAKE_CUDA_INIT", "803", 1);
    fake_begin();
    expect_refused(0, CUP_NO_DEVICE, "different versions");
}

TEST(cuda_no_driver)
{
    setenv("CUP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    cup__error error = {0};
    cup__device *device;
    EXPECT_INT(cup__cuda_open(&error, 0, 0, &device), CUP_NO_DEVICE);
    EXPECT_CONTAINS(error.text, "there is no file /nowhere/libcuda.so.1");
}

TEST(cuda_wrong_driver)
{
    setenv("CUP_LIBCUDA", "libm.so.6", 1);
    cup__error error = {0};
    cup__device *device;
    EXPECT_INT(cup__cuda_open(&error, 0, 0, &device), CUP_NO_DEVICE);
    EXPECT_CONTAINS(error.text, "it lacks cuInit");
}

TEST(cuda_fake_fork)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    pid_t child = fork();
    if (child == 0) {
        cup__device *device;
        cup__error own = {0};
        void *memory;
        bool good = cup__cuda_open(&own, 0, 0, &device) == CUP_STATE &&
                    strstr(own.text, "forked") &&
                    gpu->device.calls->synchronize(&gpu->device) == CUP_STATE &&
                    gpu->device.calls->allocate(&gpu->device, 1 << 26, "test", &memory) != CUP_OK;
        gpu->device.calls->close(&gpu->device);
        _exit(good ? 0 : 1);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_INT(WEXITSTATUS(status), 0);
    close_all(gpu);
}

/* Copies of all sizes round the pieces of the ring, checked at the end only. */
static void copies(void)
{
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    static const size_t sizes[] = {1, 255, 4096, 65537, (4u << 20) - 1, 4u << 20, (4u << 20) + 1,
                                   (17u << 20) + 3};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t bytes = sizes[i];
            unsigned char *host = cup__malloc(bytes), *back = cup__calloc(bytes, 1);
            void *a, *b;
            for (size_t j = 0; j < bytes; j++)
                host[j] = (unsigned char)(j * 7 + j / 251 + i);
            EXPECT_OK(&error, d->calls->allocate(d, bytes, "a", &a));
            EXPECT_OK(&error, d->calls->allocate(d, bytes, "b", &b));
            EXPECT_OK(&error, d->calls->write(d, a, host, bytes));
            unsigned char kept = host[bytes / 2];
            memset(host, 0xee, bytes); /* it may be used again */
            EXPECT_OK(&error, d->calls->copy(d, b, a, bytes));
            EXPECT_OK(&error, d->calls->fill(d, a, 0x5a, bytes));
            EXPECT_OK(&error, d->calls->read(d, back, b, bytes));
            for (size_t j = 0; j < bytes; j++)
                if (back[j] != (unsigned char)(j * 7 + j / 251 + i))
                    test_fail(__FILE__, __LINE__, "byte %zu of %zu is %d", j, bytes, back[j]);
            EXPECT_INT(back[bytes / 2], kept);
            EXPECT_OK(&error, d->calls->read(d, back, a, bytes));
            EXPECT(back[0] == 0x5a && back[bytes - 1] == 0x5a);
            d->calls->release(d, a);
            d->calls->release(d, b);
            cup__free(host);
            cup__free(back);
        }
    close_all(gpu);
}

TEST(cuda_fake_copies)
{
    fake_begin();
    copies();
}

TEST(cuda_fake_copies_unpinned)
{
    fake_begin();
    fake_fail("cuMemHostAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    copies();
}

TEST(cuda_fake_many_small_writes)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    enum { COUNT = 60000 };
    uint32_t *back = cup__malloc(COUNT * sizeof *back);
    void *memory;
    EXPECT_OK(&error, d->calls->allocate(d, COUNT * sizeof *back, "numbers", &memory));
    long before = fake_calls("cuStreamSynchronize");
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT_OK(&error, d->calls->write(d, (uint32_t *)memory + i, &i, sizeof i));
    EXPECT_INT(fake_calls("cuStreamSynchronize"), before);
    EXPECT_OK(&error, d->calls->read(d, back, memory, COUNT * sizeof *back));
    for (uint32_t i = 0; i < COUNT; i++)
        EXPECT_INT(back[i], i);
    cup__free(back);
    d->calls->release(d, memory);
    close_all(gpu);
}

TEST(cuda_fake_launch)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    uint32_t numbers[5] = {1, 2, 3, 4, 5};
    void *memory;
    EXPECT_OK(&error, d->calls->allocate(d, sizeof numbers, "numbers", &memory));
    EXPECT_OK(&error, d->calls->write(d, memory, numbers, sizeof numbers));
    EXPECT_OK(&error, fake_add(gpu, memory, 5, 10));
    EXPECT_OK(&error, fake_add(gpu, memory, 4, 100));
    EXPECT_OK(&error, d->calls->read(d, numbers, memory, sizeof numbers));
    EXPECT(numbers[0] == 111 && numbers[3] == 114 && numbers[4] == 15);
    d->calls->release(d, memory);
    close_all(gpu);
}

static void *add_there(void *user)
{
    cup__cuda *gpu = user;
    void *memory;
    uint32_t number = 1;
    bool good = gpu->device.calls->allocate(&gpu->device, 4, "number", &memory) == CUP_OK &&
                gpu->device.calls->write(&gpu->device, memory, &number, 4) == CUP_OK &&
                fake_add(gpu, memory, 1, 41) == CUP_OK &&
                gpu->device.calls->read(&gpu->device, &number, memory, 4) == CUP_OK;
    return good && number == 42 ? NULL : user;
}

/* A context may move from thread to thread. */
TEST(cuda_fake_other_thread)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *failed;
        EXPECT_INT(pthread_create(&thread, NULL, add_there, gpu), 0);
        EXPECT_INT(pthread_join(thread, &failed), 0);
        EXPECT(!failed);
    }
    close_all(gpu);
}

static void expect_fault(cup__cuda *gpu, cup_status status, const char *part)
{
    cup__error *error = gpu->device.error;
    EXPECT(status != CUP_OK);
    EXPECT_INT(error->status, status);
    EXPECT_CONTAINS(error->text, part);
    cup__error_clear(error);
}

TEST(cuda_fake_launch_checks)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__kernel *k = cup__kernel_get(gpu, "add.cu", "fake_add", NULL, 0);
    EXPECT(k != NULL);
    void *memory = NULL;
    uint32_t count = 0, value = 0;
    int64_t wide = 0;
    cup__grid grid = {.x = 1, .threads = 32}, bad = grid;
    cup__cuda_op(gpu, "gelu");
    expect_fault(gpu, cup__launch(gpu, k, grid, CUP__ARG(memory)),
                 "gelu: fake_add: launched with 1 arguments, it takes 3");
    expect_fault(gpu, cup__launch(gpu, k, grid, CUP__ARG(memory), CUP__ARG(wide), CUP__ARG(value)),
                 "argument 2 has 8 bytes, the kernel's has 4");
    bad.threads = 2048;
    expect_fault(gpu, cup__launch(gpu, k, bad, CUP__ARG(memory), CUP__ARG(count), CUP__ARG(value)),
                 "cannot be launched");
    bad = grid;
    bad.y = 65536;
    expect_fault(gpu, cup__launch(gpu, k, bad, CUP__ARG(memory), CUP__ARG(count), CUP__ARG(value)),
                 "cannot be launched");
    bad = grid;
    bad.shared = 300000;
    expect_fault(gpu, cup__launch(gpu, k, bad, CUP__ARG(memory), CUP__ARG(count), CUP__ARG(value)),
                 "300000 bytes of dynamic shared memory");
    long before = fake_calls("cuFuncSetAttribute"), launches = fake_calls("cuLaunchKernel");
    grid.shared = 200000;
    for (int i = 0; i < 3; i++)
        EXPECT_OK(&error, cup__launch(gpu, k, grid, CUP__ARG(memory), CUP__ARG(count),
                                      CUP__ARG(value)));
    EXPECT_INT(fake_calls("cuFuncSetAttribute") - before, 1);
    EXPECT_INT(fake_calls("cuLaunchKernel") - launches, 3);
    grid.cluster = 2;
    EXPECT_OK(&error, cup__launch(gpu, k, grid, CUP__ARG(memory), CUP__ARG(count),
                                  CUP__ARG(value)));
    EXPECT_INT(fake_calls("cuLaunchKernelEx"), 1);
    grid.x = 0;
    EXPECT_OK(&error, cup__launch(gpu, k, grid, CUP__ARG(memory)));
    close_all(gpu);
}

TEST(cuda_fake_lost)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    void *memory;
    EXPECT_OK(&error, d->calls->allocate(d, 64, "numbers", &memory));
    cup__cuda_op(gpu, "softmax");
    EXPECT_OK(&error, fake_add(gpu, memory, 1, 1));
    cup__cuda_op(gpu, "add");
    fake_fail("cuStreamSynchronize", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_fault(gpu, d->calls->synchronize(d), "fake_add for softmax");
    /* It stays so, without asking the driver again. */
    long calls = fake_calls(NULL);
    expect_fault(gpu, d->calls->synchronize(d), "CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_fault(gpu, fake_add(gpu, memory, 1, 1), "start it again");
    EXPECT_INT(fake_calls(NULL), calls);
    close_all(gpu);
}

TEST(cuda_fake_timer)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__timer *timer;
    double milliseconds;
    EXPECT_OK(&error, cup__timer_new(gpu, &timer));
    EXPECT_OK(&error, cup__timer_start(timer));
    EXPECT_OK(&error, cup__timer_stop(timer, &milliseconds));
    EXPECT_NEAR(milliseconds, 0.25, 0);
    cup__timer_free(timer);
    close_all(gpu);
}

TEST(cuda_fake_graph)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    uint32_t number = 0, seven = 7;
    void *result, *inside, *before;
    EXPECT_OK(&error, d->calls->allocate(d, 4, "before", &before));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "result", &result));
    EXPECT_OK(&error, d->calls->fill(d, result, 0, 4));
    cup__graph *graph;
    EXPECT_OK(&error, cup__graph_begin(gpu, NULL));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "inside", &inside));
    EXPECT_OK(&error, d->calls->write(d, inside, &seven, 4));
    seven = 0; /* the graph keeps its own copy */
    EXPECT_OK(&error, fake_add(gpu, inside, 1, 1));
    EXPECT_OK(&error, d->calls->copy(d, result, inside, 4));
    EXPECT_OK(&error, fake_add(gpu, result, 1, 100));
    d->calls->release(d, inside);
    d->calls->release(d, before);
    expect_fault(gpu, d->calls->read(d, &number, result, 4), "cannot be captured");
    expect_fault(gpu, cup__graph_begin(gpu, NULL), "captured already");
    EXPECT_OK(&error, cup__graph_end(gpu, &graph));
    EXPECT_OK(&error, d->calls->read(d, &number, result, 4));
    EXPECT_INT(number, 0);
    /* The memory of the graph, and what was released meanwhile, is not handed out. */
    for (int i = 0; i < 100; i++) {
        void *other;
        EXPECT_OK(&error, d->calls->allocate(d, 4, "other", &other));
        EXPECT(other != inside && other != before);
        EXPECT_OK(&error, d->calls->fill(d, other, 0xff, 4));
    }
    for (int i = 0; i < 3; i++)
        EXPECT_OK(&error, cup__graph_launch(graph));
    EXPECT_OK(&error, d->calls->read(d, &number, result, 4));
    EXPECT_INT(number, 108);
    EXPECT(cup__pool_check(gpu->pool) == NULL);
    cup__graph_free(graph);
    EXPECT(cup__pool_check(gpu->pool) == NULL);
    close_all(gpu);
}

/* A graph may be freed after its GPU, and a capture may be left open. */
TEST(cuda_fake_graph_order)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    void *kept;
    cup__graph *graph;
    EXPECT_OK(&error, cup__graph_begin(gpu, NULL));
    EXPECT_OK(&error, gpu->device.calls->allocate(&gpu->device, 1 << 22, "kept", &kept));
    EXPECT_OK(&error, cup__graph_end(gpu, &graph));
    EXPECT_OK(&error, cup__graph_begin(gpu, NULL));
    EXPECT_OK(&error, gpu->device.calls->allocate(&gpu->device, 100, "kept", &kept));
    close_all(gpu);
    EXPECT_INT(cup__graph_launch(graph), CUP_STATE);
    cup__graph_free(graph);
}

/* Two graphs of one work: the second finds what the first has left, uses the first's free memory
 * again, and may outlive it. */
TEST(cuda_fake_graph_in_parts)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    uint32_t number = 0, one = 1;
    void *result, *sum, *first, *second;
    EXPECT_OK(&error, d->calls->allocate(d, 4, "result", &result));
    cup__graph *graphs[2];
    EXPECT_OK(&error, cup__graph_begin(gpu, NULL));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "sum", &sum));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "first", &first));
    EXPECT_OK(&error, d->calls->write(d, first, &one, 4));
    EXPECT_OK(&error, d->calls->copy(d, sum, first, 4));
    d->calls->release(d, first);
    EXPECT_OK(&error, cup__graph_end(gpu, &graphs[0]));
    EXPECT_OK(&error, cup__graph_begin(gpu, graphs[0]));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "second", &second));
    EXPECT(second == first);
    EXPECT_OK(&error, fake_add(gpu, sum, 1, 10));
    EXPECT_OK(&error, d->calls->copy(d, result, sum, 4));
    d->calls->release(d, second);
    d->calls->release(d, sum);
    EXPECT_OK(&error, cup__graph_end(gpu, &graphs[1]));
    for (int i = 0; i < 100; i++) {
        void *other;
        EXPECT_OK(&error, d->calls->allocate(d, 4, "other", &other));
        EXPECT(other != first && other != sum);
        EXPECT_OK(&error, d->calls->fill(d, other, 0xff, 4));
    }
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(&error, cup__graph_launch(graphs[0]));
        EXPECT_OK(&error, cup__graph_launch(graphs[1]));
        EXPECT_OK(&error, d->calls->read(d, &number, result, 4));
        EXPECT_INT(number, 11);
    }
    cup__graph_free(graphs[0]);
    EXPECT(cup__pool_check(gpu->pool) == NULL);
    for (int i = 0; i < 100; i++) {
        void *other;
        EXPECT_OK(&error, d->calls->allocate(d, 4, "other", &other));
        EXPECT(other != first && other != sum);
    }
    EXPECT_OK(&error, cup__graph_launch(graphs[1]));
    cup__graph_free(graphs[1]);
    EXPECT(cup__pool_check(gpu->pool) == NULL);
    close_all(gpu);
}
