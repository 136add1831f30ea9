/* The path by NCCL, on the stand-ins for it and for the driver: which queue and capture, and move
 * nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/together.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "cuda/support.h"
#include "test.h"

static cup_context *open_begun(void)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/fake/libnccl.so", test_build());
    setenv("CUP_LIBNCCL", path, 1);
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
}

static cup_context *open_gpu(void)
{
    fake_begin();
    return open_begun();
}

static cup_comm *join(cup_context *c)
{
    cup_comm *m = cup_comm_new(
        c, CUP_OPTIONS(cup_comm_options, .count = 1, .address = "127.0.0.1:1", .timeout = 20));
    if (!m)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    EXPECT_TEXT(cup_comm_backend(m), "NCCL");
    return m;
}

static void call_all(cup_context *c, cup_comm *m)
{
    const int64_t size = 6;
    cup_tensor *a = cup_tensor_new(c, CUP_F32, 1, &size), *b = cup_tensor_new(c, CUP_F32, 1, &size);
    cup_tensor *list[] = {a, b, cup_tensor_new(c, CUP_BF16, 1, (int64_t[]){0})};
    EXPECT_INT(cup_comm_all_reduce(m, list, 3, CUP_COMBINE_MEAN), CUP_OK);
    EXPECT_INT(cup_comm_broadcast(m, list, 3, 0), CUP_OK);
    EXPECT_INT(cup_comm_reduce_scatter(m, a, b, CUP_COMBINE_SUM), CUP_OK);
    EXPECT_INT(cup_comm_all_gather(m, a, b), CUP_OK);
    EXPECT_INT(cup_comm_all_to_all(m, a, b), CUP_OK);
}

TEST(comm_nccl_queues_and_captures)
{
    cup_context *c = open_gpu();
    cup_comm *m = join(c);
    long streams = fake_calls("cuStreamCreate");
    cup_comm *part = cup_comm_split_new(m, 4);
    EXPECT_TEXT(cup_comm_backend(part), "NCCL");
    /* Both have one order. */
    EXPECT_INT(fake_calls("cuStreamCreate"), streams);
    call_all(c, m);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    call_all(c, part);
    cup_graph *graph = cup_capture_end(c);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_INT(cup_graph_launch(graph), CUP_OK);
    EXPECT_INT(cup_synchronize(c), CUP_OK);
    cup_graph_free(graph);
    cup_comm_free(part);
    cup_comm_free(m);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* A process of several on the stand-ins: its context, and a communicator beside that of the
 * hosts. */
static cup_context *open_beside(void)
{
    char folder[400];
    const char *address = together_address() + strlen("file:");
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(address, '/') - address), address);
    fake_begin_in(folder);
    return open_begun();
}

static cup_comm *join_beside(cup_context *c, cup_comm *hosts)
{
    char address[500];
    snprintf(address, sizeof address, "%s-gpu", together_address());
    return cup_comm_new(c, CUP_OPTIONS(cup_comm_options, .count = cup_comm_count(hosts),
                                       .rank = cup_comm_rank(hosts), .address = address,
                                       .timeout = 20));
}

static void attend(cup_context *c, cup_comm *m)
{
    cup_tensor *x =
        cup_require_grad(cup_full(c, CUP_BF16, 3, (int64_t[]){2, 8, 4 * 16}, 0.5));
    cup_tensor *y = cup_comm_attention(
        m, x, 2, CUP_OPTIONS(cup_comm_attention_options, .kv_heads = 1, .causal = true));
    cup_backward(c, cup_sum(c, y, NULL, 0, false));
    if (!cup_grad(x))
        wrong("no gradient: %s", cup_error_text(c));
}

/* Called and captured. */
static void go_round(cup_context *hosts, cup_comm *all, void *user)
{
    (void)hosts, (void)user;
    cup_context *c = open_beside();
    cup_comm *m = join_beside(c, all);
    attend(c, m);
    cup_capture_begin(c);
    attend(c, m);
    cup_graph *graph = cup_capture_end(c);
    if (cup_graph_launch(graph) != CUP_OK || cup_synchronize(c) != CUP_OK)
        wrong("not captured: %s", cup_error_text(c));
    cup_graph_free(graph);
    cup_comm_free(m);
    cup_context_free(c);
    fake_expect_nothing_left();
}

TEST(comm_nccl_goes_round)
{
    together(2, go_round, NULL);
    together(4, go_round, NULL);
}

/* By sockets it brings what the one before has. */
static void rotate(cup_context *hosts, cup_comm *all, void *user)
{
    (void)hosts, (void)user;
    setenv("CUP_COMM", "sockets", 1);
    cup_context *c = open_beside();
    cup_comm *m = join_beside(c, all);
    float values[] = {0, 0, 0};
    int64_t size = 3, before = (cup_comm_rank(all) + 2) % 3;
    cup_tensor *from[] = {cup_tensor_new(c, CUP_F32, 1, &size)};
    cup_tensor *to[] = {cup_tensor_new(c, CUP_F32, 1, &size)};
    values[1] = (float)cup_comm_rank(all) + 1;
    cup_tensor_write(from[0], values, sizeof values);
    cup__comm_rotate_begin(m, from, to, 1);
    cup__comm_join(m);
    cup_tensor_read(to[0], values, sizeof values);
    if (values[0] != 0 || values[1] != (float)before + 1)
        wrong("%g has come; %s", (double)values[1], cup_error_text(c));
    cup_comm_free(m);
    cup_context_free(c);
}

TEST(comm_sockets_rotate_tensors_of_a_gpu)
{
    together(3, rotate, NULL);
}

TEST(comm_nccl_refuses)
{
    cup_context *c = open_gpu();
    cup_comm *m = join(c);
    cup_tensor *t = cup_full(c, CUP_BOOL, 1, (int64_t[]){4}, 1);
    EXPECT_INT(cup_comm_all_reduce(m, &t, 1, CUP_COMBINE_SUM), CUP_DTYPE);
    EXPECT_CONTAINS(cup_error_text(c), "bool cannot be reduced so");
    cup_error_clear(c);
    EXPECT_INT(cup_comm_send(m, t, 0), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "there is no other process 0 among 1");
    cup_error_clear(c);
    EXPECT_INT(cup_comm_broadcast(m, &t, 1, 1), CUP_ARGUMENT);
    cup_error_clear(c);
    cup_comm_free(m);
    setenv("CUP_LIBNCCL", "off", 1);
    cup_context_free(c);
}

TEST(comm_nccl_that_is_not_there_is_said)
{
    cup_context *c = open_gpu();
    setenv("CUP_LIBNCCL", "off", 1);
    EXPECT(cup_comm_new(c, CUP_OPTIONS(cup_comm_options, .count = 1, .address = "h:1")) == NULL);
    EXPECT_INT(cup_error(c), CUP_NO_DEVICE);
    EXPECT_CONTAINS(cup_error_text(c), "NCCL: CUP_LIBNCCL=off; install it");
    cup_context_free(c);
}

TEST(comm_sockets_take_tensors_of_a_gpu)
{
    const int64_t size = 3;
    float values[] = {1, 2, 3};
    setenv("CUP_COMM", "sockets", 1);
    cup_context *c = open_gpu();
    cup_comm *m = cup_comm_new(c, CUP_OPTIONS(cup_comm_options, .count = 1, .address = "h:1"));
    EXPECT_TEXT(cup_comm_backend(m), "sockets");
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 1, &size, values);
    cup_tensor *b = cup_tensor_new(c, CUP_F32, 1, &size);
    EXPECT_INT(cup_comm_all_reduce(m, &a, 1, CUP_COMBINE_MAX), CUP_OK);
    EXPECT_INT(cup_comm_all_gather(m, a, b), CUP_OK);
    memset(values, 0, sizeof values);
    EXPECT_INT(cup_tensor_read(b, values, sizeof values), CUP_OK);
    EXPECT(values[0] == 1 && values[2] == 3);
    cup_comm_free(m);
    cup_context_free(c);
}

/* Waits of a stream for another since the last call. */
static long waits(void)
{
    static long before;
    long now = fake_calls("cuStreamWaitEvent"), since = now - before;
    before = now;
    return since;
}

static cup_tensor *begin_sum(cup_context *c, cup_comm *m, cup_tensor *x)
{
    waits();
    cup_tensor *y = cup__comm_sum_beside(m, x);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_INT(waits(), 1); /* of NCCL's for the context's */
    return y;
}

/* Who reads a sum waits for it, and who reads something else does not; nor is what it reads
 * changed meanwhile, or freed. */
TEST(comm_nccl_sums_end_where_they_are_read)
{
    const int64_t size = 8;
    cup_context *c = open_gpu();
    cup_comm *m = join(c);
    cup_tensor *x = cup_full(c, CUP_F32, 1, &size, 1), *other = cup_full(c, CUP_F32, 1, &size, 2);
    cup_tensor *y = begin_sum(c, m, x);
    cup_mul(c, x, other);
    EXPECT_INT(waits(), 0);
    cup_mul(c, y, other);
    EXPECT_INT(waits(), 1);
    cup_mul(c, y, other);
    EXPECT_INT(waits(), 0);
    y = begin_sum(c, m, x);
    EXPECT_INT(cup_copy_into(c, x, other), CUP_OK);
    EXPECT_INT(waits(), 1);
    cup_tensor_free(begin_sum(c, m, x));
    EXPECT_INT(waits(), 1);
    cup_tensor *first = begin_sum(c, m, x), *second = begin_sum(c, m, x);
    cup_mul(c, first, other);
    EXPECT_INT(waits(), 1);
    cup_mul(c, second, other);
    EXPECT_INT(waits(), 1);
    y = begin_sum(c, m, x);
    cup_tensor_free(x);
    EXPECT_INT(waits(), 0);
    cup_comm_free(m);
    EXPECT_INT(waits(), 1);
    cup_context_free(c);
    fake_expect_nothing_left();
}
