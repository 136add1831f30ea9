/* The pool against a plain model, on the fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "cuda/heap.h"
#include "support.h"
#include "test.h"

#define MOST 400

typedef struct held {
    unsigned char *memory;
    size_t bytes;
    unsigned char mark;
} held;

static cup__error error;

static void expect_sound(const cup__pool *pool)
{
    const char *wrong = cup__pool_check(pool);
    if (wrong)
        test_fail(__FILE__, __LINE__, "%s", wrong);
}

/* Fake device memory can be written: the ends of each block hold a mark of its own, so that two
 * blocks that overlap disturb each other. */
static void mark(held *h)
{
    static unsigned char next;
    h->mark = ++next;
    h->memory[0] = h->memory[h->bytes / 2] = h->memory[h->bytes - 1] = h->mark;
}

static void expect_mark(const held *h)
{
    EXPECT(h->memory[0] == h->mark && h->memory[h->bytes / 2] == h->mark &&
           h->memory[h->bytes - 1] == h->mark);
}

static size_t random_size(void)
{
    uint64_t kind = test_random() % 8;
    uint64_t most = kind < 4 ? 5000 : kind < 6 ? 1 << 20 : kind < 7 ? 3 << 20 : 40 << 20;
    return 1 + (size_t)(test_random() % most);
}

static void random_life(cup__cuda *gpu, int steps, int64_t most_bytes)
{
    cup__pool *pool = gpu->pool;
    held all[MOST] = {0};
    int64_t bytes = 0;
    for (int step = 0; step < steps; step++) {
        held *h = &all[test_random() % MOST];
        if (h->memory) {
            expect_mark(h);
            cup__pool_release(pool, h->memory);
            bytes -= (int64_t)h->bytes;
            h->memory = NULL;
        } else {
            void *memory;
            h->bytes = random_size();
            cup_status status = cup__pool_allocate(pool, h->bytes, "test", &memory);
            if (status != CUP_OK) {
                EXPECT_INT(status, CUP_MEMORY);
                EXPECT(bytes + (int64_t)h->bytes > most_bytes / 4);
                EXPECT_CONTAINS(error.text, "out of memory on cuda:0");
                cup__error_clear(&error);
                continue;
            }
            EXPECT((uintptr_t)memory % 256 == 0);
            h->memory = memory;
            mark(h);
            bytes += (int64_t)h->bytes;
        }
        if (step % 64 == 0)
            expect_sound(pool);
        if (step % 1000 == 999)
            cup__pool_trim(pool);
    }
    cup__memory_use use;
    cup__pool_use(pool, &use);
    EXPECT(use.allocated >= bytes && use.reserved >= use.allocated);
    EXPECT(use.peak_reserved <= most_bytes && use.peak_allocated <= use.peak_reserved);
    for (int i = 0; i < MOST; i++)
        if (all[i].memory) {
            expect_mark(&all[i]);
            cup__pool_release(pool, all[i].memory);
        }
    expect_sound(pool);
    cup__pool_use(pool, &use);
    EXPECT_INT(use.allocated, 0);
    cup__pool_trim(pool);
    expect_sound(pool);
    cup__pool_use(pool, &use);
    EXPECT_INT(use.reserved, 0);
    EXPECT_INT(use.free, use.total);
}

static cup__cuda *begin(int64_t limit)
{
    cup__device *device;
    fake_begin();
    EXPECT_OK(&error, cup__cuda_open(&error, 0, limit, &device));
    return cup__cuda_of(device);
}

static void end(cup__cuda *gpu)
{
    gpu->device.calls->close(&gpu->device);
    fake_expect_nothing_left();
}

TEST(pool_random)
{
    cup__cuda *gpu = begin(0);
    random_life(gpu, 20000, 1 << 30);
    end(gpu);
}

TEST(pool_random_tight)
{
    setenv("FAKE_CUDA_MEMORY", "167772160", 1);
    cup__cuda *gpu = begin(0);
    random_life(gpu, 20000, 160 << 20);
    end(gpu);
}

TEST(pool_random_limited)
{
    cup__cuda *gpu = begin(96 << 20);
    random_life(gpu, 20000, 96 << 20);
    end(gpu);
}

TEST(pool_random_unmapped)
{
    setenv("FAKE_CUDA_VMM", "0", 1);
    setenv("FAKE_CUDA_MEMORY", "268435456", 1);
    cup__cuda *gpu = begin(0);
    random_life(gpu, 20000, 256 << 20);
    end(gpu);
}

/* Few addresses: several ranges; none: plain allocations. */
TEST(pool_random_few_addresses)
{
    setenv("FAKE_CUDA_ADDRESSES", "67108864", 1);
    setenv("FAKE_CUDA_MEMORY", "268435456", 1);
    cup__cuda *gpu = begin(0);
    random_life(gpu, 10000, 256 << 20);
    EXPECT(gpu->virtual_memory);
    end(gpu);
}

TEST(pool_random_no_addresses)
{
    setenv("FAKE_CUDA_ADDRESSES", "0", 1);
    setenv("FAKE_CUDA_MEMORY", "268435456", 1);
    cup__cuda *gpu = begin(0);
    random_life(gpu, 10000, 256 << 20);
    EXPECT(!gpu->virtual_memory);
    end(gpu);
}

/* Host memory that runs out at random makes allocations fail, and nothing else. */
TEST(pool_random_without_host_memory)
{
    cup__cuda *gpu = begin(0);
    void *memory[MOST] = {0};
    for (int step = 0; step < 5000; step++) {
        int i = (int)(test_random() % MOST);
        if (memory[i])
            cup__pool_release(gpu->pool, memory[i]);
        memory[i] = NULL;
        cup__memory_fail_at(1 + (long)(test_random() % 3), true);
        if (test_random() % 50 == 0)
            cup__pool_trim(gpu->pool);
        if (cup__pool_allocate(gpu->pool, random_size(), "test", &memory[i]) != CUP_OK)
            cup__error_clear(&error);
        cup__memory_fail_at(0, false);
        if (step % 64 == 0)
            expect_sound(gpu->pool);
    }
    expect_sound(gpu->pool);
    end(gpu);
}

/* Equal steps find all they need in the pool. */
TEST(pool_is_reused)
{
    cup__cuda *gpu = begin(0);
    void *memory[50];
    long calls = 0;
    for (int step = 0; step < 10; step++) {
        if (step == 1)
            calls = fake_calls("cuMemCreate");
        for (int i = 0; i < 50; i++)
            EXPECT_OK(&error, cup__pool_allocate(gpu->pool, (size_t)(i * i + 1) * 4000, "step",
                                                 &memory[i]));
        for (int i = 0; i < 50; i++)
            cup__pool_release(gpu->pool, memory[i * 7 % 50]);
    }
    EXPECT_INT(fake_calls("cuMemCreate"), calls);
    cup__memory_use use;
    cup__pool_use(gpu->pool, &use);
    EXPECT_INT(use.allocations, 500);
    EXPECT(use.cached >= 450);
    end(gpu);
}

/* Mapped memory has no borders between what was got at different times: freed pieces join. */
TEST(pool_has_no_borders)
{
    setenv("FAKE_CUDA_MEMORY", "335544320", 1); /* 320 MiB */
    cup__cuda *gpu = begin(0);
    void *memory[30], *large;
    for (int i = 0; i < 30; i++)
        EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 10 << 20, "part", &memory[i]));
    for (int i = 0; i < 30; i++)
        cup__pool_release(gpu->pool, memory[i]);
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 300 << 20, "whole", &large));
    cup__pool_release(gpu->pool, large);
    /* Every second one freed: the memory behind the gaps goes back and comes again elsewhere. */
    for (int i = 0; i < 30; i++)
        EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 10 << 20, "part", &memory[i]));
    for (int i = 0; i < 30; i += 2)
        cup__pool_release(gpu->pool, memory[i]);
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 100 << 20, "whole", &large));
    expect_sound(gpu->pool);
    end(gpu);
}

TEST(pool_out_of_memory_is_told)
{
    setenv("FAKE_CUDA_OTHERS", "536870912", 1);
    cup__cuda *gpu = begin(0);
    void *memory[4], *more;
    for (int i = 0; i < 4; i++)
        EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 100 << 20,
                                             i < 3 ? "activations" : "weights", &memory[i]));
    cup__cuda_op(gpu, "matmul");
    EXPECT_INT(cup__pool_allocate(gpu->pool, 300 << 20, "output", &more), CUP_MEMORY);
    EXPECT(more == NULL);
    EXPECT_CONTAINS(error.text, "matmul: out of memory on cuda:0: 300 MiB for output; ");
    EXPECT_CONTAINS(error.text, "of 1.0 GiB are free on the card");
    EXPECT_CONTAINS(error.text, "of which 400 MiB are in use");
    EXPECT_CONTAINS(error.text, "most used by: 300 MiB in 3 blocks of activations, 100 MiB in 1 "
                                "block of weights");
    EXPECT_CONTAINS(error.text, "other programs");
    EXPECT_CONTAINS(error.text, "a smaller batch");
    EXPECT(!strstr(error.text, "memory_limit"));
    /* The pool goes on. */
    cup__error_clear(&error);
    cup__pool_release(gpu->pool, memory[0]);
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 120 << 20, "output", &more));
    EXPECT_INT(cup__pool_allocate(gpu->pool, (size_t)5 << 30, "x", &more), CUP_MEMORY);
    EXPECT_CONTAINS(error.text, "the card has less than that in all");
    cup__error_clear(&error);
    EXPECT_INT(cup__pool_allocate(gpu->pool, SIZE_MAX - 5, "x", &more), CUP_MEMORY);
    expect_sound(gpu->pool);
    end(gpu);
}

TEST(pool_limit_is_told)
{
    cup__cuda *gpu = begin(64 << 20);
    void *memory, *more;
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 40 << 20, "weights", &memory));
    EXPECT_INT(cup__pool_allocate(gpu->pool, 40 << 20, "output", &more), CUP_MEMORY);
    EXPECT_CONTAINS(error.text, "the limit of 64.0 MiB would be passed");
    EXPECT_CONTAINS(error.text, "raising memory_limit to 80.0 MiB would do");
    cup__memory_use use;
    cup__pool_use(gpu->pool, &use);
    EXPECT_INT(use.limit, 64 << 20);
    EXPECT(use.peak_reserved <= 64 << 20);
    cup__error_clear(&error);
    cup__pool_release(gpu->pool, memory);
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 60 << 20, "output", &more));
    end(gpu);
}

TEST(pool_history_and_users)
{
    cup__cuda *gpu = begin(0);
    void *a, *b;
    cup__cuda_op(gpu, "gelu");
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 1000, "a", &a));
    EXPECT_OK(&error, cup__pool_allocate(gpu->pool, 5000, "b", &b));
    cup__pool_release(gpu->pool, a);
    cup__pool_event event;
    EXPECT(cup__pool_history(gpu->pool, 0, &event));
    EXPECT(event.action == CUP__POOL_RELEASE && event.address == (uintptr_t)a);
    EXPECT(cup__pool_history(gpu->pool, 1, &event));
    EXPECT(event.action == CUP__POOL_ALLOCATE && event.bytes == 5120);
    EXPECT_TEXT(event.tag, "b");
    EXPECT_TEXT(event.op, "gelu");
    EXPECT(!cup__pool_history(gpu->pool, 1000, &event));
    cup__pool_user users[4];
    EXPECT_INT(cup__pool_users(gpu->pool, users, 4), 1);
    EXPECT_TEXT(users[0].tag, "b");
    EXPECT_INT(users[0].bytes, 5120);
    /* A release of what is not allocated is told, and harmless. */
    cup__pool_release(gpu->pool, a);
    EXPECT_INT(error.status, CUP_INTERNAL);
    cup__error_clear(&error);
    cup__pool_release(gpu->pool, NULL);
    EXPECT_INT(error.status, CUP_OK);
    end(gpu);
}

/* Graphs and plain work in turn, with blocks that outlive their graph. */
TEST(pool_private_random)
{
    cup__cuda *gpu = begin(0);
    held all[MOST] = {0};
    cup__pool_private *graphs[6] = {0};
    for (int round = 0; round < 60; round++) {
        int g = (int)(test_random() % 6);
        if (graphs[g]) {
            cup__pool_private_free(graphs[g]);
            graphs[g] = NULL;
        } else {
            EXPECT_OK(&error, cup__pool_private_begin(gpu->pool, &graphs[g]));
        }
        for (int step = 0; step < 100; step++) {
            held *h = &all[test_random() % MOST];
            if (h->memory) {
                expect_mark(h);
                cup__pool_release(gpu->pool, h->memory);
                h->memory = NULL;
            } else {
                void *memory;
                h->bytes = 1 + (size_t)(test_random() % (2 << 20));
                EXPECT_OK(&error, cup__pool_allocate(gpu->pool, h->bytes, "test", &memory));
                h->memory = memory;
                mark(h);
            }
        }
        if (graphs[g])
            cup__pool_private_end(gpu->pool);
        expect_sound(gpu->pool);
        if (round % 5 == 0)
            cup__pool_trim(gpu->pool);
        expect_sound(gpu->pool);
    }
    for (int g = 0; g < 6; g++)
        cup__pool_private_free(graphs[g]);
    for (int i = 0; i < MOST; i++)
        if (all[i].memory)
            cup__pool_release(gpu->pool, all[i].memory);
    cup__pool_trim(gpu->pool);
    expect_sound(gpu->pool);
    cup__memory_use use;
    cup__pool_use(gpu->pool, &use);
    EXPECT_INT(use.reserved, 0);
    EXPECT(gpu->pool->heaps->next && !gpu->pool->heaps->next->next);
    end(gpu);
}
