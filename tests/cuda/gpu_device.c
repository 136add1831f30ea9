/* The driver layer on a real GPU: what the fake driver cannot vouch for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "cuda/heap.h"
#include "support.h"
#include "test.h"

static const char source[] =
    "#include \"dtype.cuh\"\n"
    "extern \"C\" __global__ void fill(uint32_t *y, uint32_t value, int64_t n)\n"
    "{\n"
    "    int64_t step = (int64_t)gridDim.x * blockDim.x;\n"
    "    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)\n"
    "        y[i] = value + (uint32_t)i;\n"
    "}\n"
    "extern \"C\" __global__ void check(uint32_t *bad, const uint32_t *x, uint32_t value,\n"
    "                                 int64_t n)\n"
    "{\n"
    "    int64_t step = (int64_t)gridDim.x * blockDim.x;\n"
    "    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)\n"
    "        if (x[i] != value + (uint32_t)i) *bad = 1;\n"
    "}\n"
    "extern \"C\" __global__ void add(uint32_t *y, uint32_t value) { atomicAdd(y, value); }\n"
    "extern \"C\" __global__ void shared(uint32_t *y, int bytes)\n"
    "{\n"
    "    extern __shared__ uint32_t memory[];\n"
    "    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) memory[i] = i;\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x == 0) *y = memory[bytes / 4 - 1];\n"
    "}\n"
    "extern \"C\" __global__ void wild(uint32_t *y) { y[(1ull << 40) + threadIdx.x] = 1; }\n"
    "extern \"C\" __global__ void nothing(uint32_t *y, int64_t n) { }\n";

static cup__error error;
static cup__device *d;

static cup__cuda *begin(void)
{
    const char *folder = test_folder();
    fake_source(folder, "device.cu", source);
    setenv("CUP_KERNELS", folder, 1);
    cup__cuda *gpu = gpu_open(&error);
    d = &gpu->device;
    return gpu;
}

static cup__kernel *kernel(cup__cuda *gpu, const char *entry)
{
    cup__kernel *found = cup__kernel_get(gpu, "device.cu", entry, NULL, 0);
    if (!found)
        test_fail(__FILE__, __LINE__, "%s: %s", entry, error.text);
    return found;
}

static const cup__grid wide = {.x = 264, .threads = 256};

TEST(gpu_facts)
{
    cup__cuda *gpu = begin();
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    EXPECT(facts->major >= 7 && facts->multiprocessors > 0 && facts->shared_per_block >= 49152);
    EXPECT(facts->memory_bytes > 1 << 28 && facts->l2_bytes > 0);
    EXPECT_CONTAINS(d->text, facts->name);
    printf("%s, %s\n", d->text, facts->arch);
    d->calls->close(d);
}

/* Sizes round the pieces of the ring, checked byte for byte, while nothing waits in between. */
TEST(gpu_copies)
{
    begin();
    static const size_t sizes[] = {1, 255, 65537, (4u << 20) - 1, (4u << 20) + 1, (70u << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        unsigned char *host = cup__malloc(bytes), *back = cup__calloc(bytes, 1);
        void *a, *b;
        for (size_t j = 0; j < bytes; j++)
            host[j] = (unsigned char)(j * 7 + j / 251 + i);
        EXPECT_OK(&error, d->calls->allocate(d, bytes, "a", &a));
        EXPECT_OK(&error, d->calls->allocate(d, bytes, "b", &b));
        EXPECT_OK(&error, d->calls->write(d, a, host, bytes));
        memset(host, 0xee, bytes);
        EXPECT_OK(&error, d->calls->copy(d, b, a, bytes));
        EXPECT_OK(&error, d->calls->fill(d, a, 0x5a, bytes));
        EXPECT_OK(&error, d->calls->read(d, back, b, bytes));
        for (size_t j = 0; j < bytes; j++)
            if (back[j] != (unsigned char)(j * 7 + j / 251 + i))
                test_fail(__FILE__, __LINE__, "byte %zu of %zu is %d", j, bytes, back[j]);
        d->calls->release(d, a);
        d->calls->release(d, b);
        cup__free(host);
        cup__free(back);
    }
    d->calls->close(d);
}

#define HELD 60

/* Blocks that overlap would disturb each other's numbers; memory is used again at once, while the
 * kernels that used it last may still run. */
TEST_LIMITED(gpu_pool_random, 120)
{
    cup__cuda *gpu = begin();
    struct {
        void *memory;
        int64_t count;
        uint32_t value;
    } held[HELD] = {0};
    void *bad;
    uint32_t found = 0;
    EXPECT_OK(&error, d->calls->allocate(d, 4, "flag", &bad));
    EXPECT_OK(&error, d->calls->fill(d, bad, 0, 4));
    cup__kernel *fill = kernel(gpu, "fill"), *check = kernel(gpu, "check");
    for (int step = 0; step < 3000; step++) {
        int i = (int)(test_random() % HELD);
        if (held[i].memory) {
            EXPECT_OK(&error, cup__launch(gpu, check, wide, CUP__ARG(bad), CUP__ARG(held[i].memory),
                                          CUP__ARG(held[i].value), CUP__ARG(held[i].count)));
            d->calls->release(d, held[i].memory);
            held[i].memory = NULL;
        } else {
            held[i].count = 1 + (int64_t)(test_random() % (step % 4 ? 30000 : 8 << 20));
            held[i].value = (uint32_t)test_random();
            EXPECT_OK(&error, d->calls->allocate(d, (size_t)held[i].count * 4, "numbers",
                                                 &held[i].memory));
            EXPECT_OK(&error, cup__launch(gpu, fill, wide, CUP__ARG(held[i].memory),
                                          CUP__ARG(held[i].value), CUP__ARG(held[i].count)));
        }
        if (step % 500 == 499)
            cup__pool_trim(gpu->pool);
    }
    EXPECT_OK(&error, d->calls->read(d, &found, bad, 4));
    EXPECT_INT(found, 0);
    EXPECT(cup__pool_check(gpu->pool) == NULL);
    d->calls->close(d);
}

TEST(gpu_graph)
{
    cup__cuda *gpu = begin();
    void *result, *inside, *large;
    uint32_t number = 0, seven = 7, one = 1, hundred = 100;
    cup__grid single = {.x = 1, .threads = 1};
    cup__kernel *add = kernel(gpu, "add"), *fill = kernel(gpu, "fill");
    cup__graph *graph;
    int64_t count = 5 << 20;
    EXPECT_OK(&error, d->calls->allocate(d, 4, "result", &result));
    EXPECT_OK(&error, d->calls->fill(d, result, 0, 4));
    EXPECT_OK(&error, cup__graph_begin(gpu, NULL));
    EXPECT_OK(&error, d->calls->allocate(d, 4, "inside", &inside));
    EXPECT_OK(&error, d->calls->allocate(d, (size_t)count * 4, "large", &large));
    EXPECT_OK(&error, d->calls->write(d, inside, &seven, 4));
    EXPECT_OK(&error, cup__launch(gpu, fill, wide, CUP__ARG(large), CUP__ARG(one),
                                  CUP__ARG(count)));
    EXPECT_OK(&error, cup__launch(gpu, add, single, CUP__ARG(inside), CUP__ARG(one)));
    EXPECT_OK(&error, d->calls->copy(d, result, inside, 4));
    EXPECT_OK(&error, cup__launch(gpu, add, single, CUP__ARG(result), CUP__ARG(hundred)));
    d->calls->release(d, large);
    d->calls->release(d, inside);
    EXPECT_OK(&error, cup__graph_end(gpu, &graph));
    for (int i = 0; i < 3; i++)
        EXPECT_OK(&error, cup__graph_launch(graph));
    EXPECT_OK(&error, d->calls->read(d, &number, result, 4));
    EXPECT_INT(number, 108);
    cup__graph_free(graph);
    d->calls->release(d, result);
    d->calls->close(d);
}

TEST(gpu_launch_checks)
{
    cup__cuda *gpu = begin();
    void *memory;
    int bytes = cup__cuda_facts(gpu)->shared_per_block;
    uint32_t number = 0;
    EXPECT_OK(&error, d->calls->allocate(d, 4, "number", &memory));
    cup__grid grid = {.x = 1, .threads = 128, .shared = bytes};
    EXPECT_OK(&error, cup__launch(gpu, kernel(gpu, "shared"), grid, CUP__ARG(memory),
                                  CUP__ARG(bytes)));
    EXPECT_OK(&error, d->calls->read(d, &number, memory, 4));
    EXPECT_INT(number, bytes / 4 - 1);
    if (cup__cuda_facts(gpu)->major >= 9) {
        cup__grid cluster = {.x = 8, .threads = 128, .shared = 65536, .cluster = 8,
                             .dependent = true};
        bytes = 65536;
        EXPECT_OK(&error, cup__launch(gpu, kernel(gpu, "shared"), cluster, CUP__ARG(memory),
                                      CUP__ARG(bytes)));
        cluster.x = cluster.cluster = 16;
        EXPECT_OK(&error, cup__launch(gpu, kernel(gpu, "shared"), cluster, CUP__ARG(memory),
                                      CUP__ARG(bytes)));
        EXPECT_OK(&error, d->calls->synchronize(d));
    }
    grid.shared = 0;
    if (kernel(gpu, "add")->argument_count >= 0) {
        EXPECT_INT(cup__launch(gpu, kernel(gpu, "add"), grid, CUP__ARG(memory)), CUP_INTERNAL);
        EXPECT_CONTAINS(error.text, "launched with 1 arguments, it takes 2");
    }
    d->calls->close(d);
}

/* All the card's memory is asked for; the pool goes on after the failure. */
TEST_ALONE(gpu_out_of_memory)
{
    cup__cuda *gpu = begin();
    void *memory[4096], *more;
    int count = 0;
    size_t bytes = (size_t)cup__cuda_facts(gpu)->memory_bytes / 64;
    while (count < 4096 && d->calls->allocate(d, bytes, "tensors", &memory[count]) == CUP_OK)
        count++;
    EXPECT_INT(error.status, CUP_MEMORY);
    EXPECT_CONTAINS(error.text, "blocks of tensors");
    printf("%d blocks, then: %s\n", count, error.text);
    EXPECT(count >= 32 && count <= 64);
    cup__error_clear(&error);
    d->calls->release(d, memory[--count]);
    EXPECT_OK(&error, d->calls->allocate(d, bytes, "again", &more));
    d->calls->release(d, more);
    while (count)
        d->calls->release(d, memory[--count]);
    EXPECT_OK(&error, d->calls->allocate(d, bytes * 20, "in one piece", &more));
    d->calls->close(d);
}

static int lose(void)
{
    cup__cuda *gpu = begin();
    void *memory;
    if (d->calls->allocate(d, 4, "number", &memory) != CUP_OK)
        return 1;
    cup__grid grid = {.x = 1, .threads = 32};
    cup__cuda_op(gpu, "gelu");
    cup_status launched = cup__launch(gpu, kernel(gpu, "wild"), grid, CUP__ARG(memory));
    cup__cuda_op(gpu, "softmax");
    cup_status status = d->calls->synchronize(d);
    printf("%s\n", error.text);
    bool told = launched == CUP_OK && status == CUP_DRIVER && strstr(error.text, "wild for gelu") &&
                strstr(error.text, "ILLEGAL_ADDRESS");
    d->calls->close(d);
    return told ? 0 : 2;
}

/* In a process of its own, whose GPU is lost after that. */
TEST(gpu_lost)
{
    pid_t child = fork();
    if (child == 0)
        _exit(lose());
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status));
    if (WEXITSTATUS(status))
        test_fail(__FILE__, __LINE__, "the fault was not told (%d)", WEXITSTATUS(status));
}
