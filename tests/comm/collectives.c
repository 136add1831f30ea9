/* Operations between processes on a CPU, against what they are by their meaning. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "comm/together.h"
#include "test.h"

static const int counts[] = {1, 2, 3, 4, 7};
#define COUNTS (int)(sizeof counts / sizeof *counts)

/* A number that rank r has at place i; sums of a few are exact in every dtype. */
static double value(int rank, int64_t i)
{
    return (double)((rank * 7 + i * 3) % 11 - 5);
}

static cup_tensor *make(cup_context *c, cup_dtype dtype, int rank, int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value(rank, i);
    cup_tensor *t = cup_tensor_from(c, CUP_F64, 1, &count, values);
    free(values);
    return cup_cast(c, t, dtype);
}

/* Element i, asked in order. */
static double at(cup_context *c, cup_tensor *t, int64_t i)
{
    static double values[100000];
    if (i == 0)
        cup_tensor_read(cup_cast(c, t, CUP_F64), values,
                        (size_t)cup_tensor_count(t) * sizeof *values);
    return values[i];
}

static double reduced(int count, int64_t i, cup_combine how)
{
    double sum = value(0, i);
    for (int r = 1; r < count; r++) {
        double v = value(r, i);
        sum = how == CUP_COMBINE_MIN   ? fmin(sum, v)
              : how == CUP_COMBINE_MAX ? fmax(sum, v)
                                         : sum + v;
    }
    return how == CUP_COMBINE_MEAN ? sum / count : sum;
}

/* As all do, or as GPUs that are deterministic. */
static void reduce(cup_comm *m, cup_tensor *t, cup_combine how, bool ordered)
{
    if (!ordered) {
        cup_comm_all_reduce(m, &t, 1, how);
        return;
    }
    if (cup__operation_begin(m, CUP__ALL_REDUCE) == CUP_OK)
        cup__ordered_all_reduce(m, &t, 1, how);
    cup__operation_end(m);
}

static void reduce_all(cup_context *c, cup_comm *m, void *user)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F64, CUP_F16, CUP_BF16, CUP_I32, CUP_I64};
    static const int64_t sizes[] = {0, 1, 5, 1000, 70001};
    int n = cup_comm_count(m);
    c->options.deterministic = user != NULL;
    for (int d = 0; d < 6; d++)
        for (int s = 0; s < 5; s++)
            for (int how = 0; how < 4; how++) {
                if ((dtypes[d] >= CUP_I64 && how == CUP_COMBINE_MEAN) ||
                    (user && !cup__comm_is_ordered(m, dtypes[d], (cup_combine)how)))
                    continue;
                cup_scope_open(c);
                cup_tensor *t = make(c, dtypes[d], cup_comm_rank(m), sizes[s]);
                reduce(m, t, (cup_combine)how, user != NULL);
                for (int64_t i = 0; i < sizes[s]; i++) {
                    double want = reduced(n, i, (cup_combine)how), got = at(c, t, i);
                    double room = how == CUP_COMBINE_MEAN ? 0.02 : 0;
                    if (!(fabs(got - want) <= room))
                        wrong("all_reduce %s %d at %d: %g, not %g", cup_dtype_name(dtypes[d]), how,
                              (int)i, got, want);
                }
                cup_scope_close(c);
            }
}

TEST(comm_all_reduce)
{
    for (int i = 0; i < COUNTS; i++)
        together(counts[i], reduce_all, NULL);
}

TEST(comm_all_reduce_in_order)
{
    for (int i = 1; i < COUNTS; i++)
        together(counts[i], reduce_all, "in order");
}

/* Tensors of several dtypes and sizes at once. */
static void reduce_list(cup_context *c, cup_comm *m, void *user)
{
    int r = cup_comm_rank(m), n = cup_comm_count(m);
    cup_tensor *list[] = {make(c, CUP_F32, r, 3), make(c, CUP_F32, r, 100), make(c, CUP_BF16, r, 7),
                          make(c, CUP_F32, r, 0), make(c, CUP_F32, r, 2)};
    (void)user;
    cup_comm_all_reduce(m, list, 5, CUP_COMBINE_SUM);
    for (int k = 0; k < 5; k++)
        for (int64_t i = 0; i < cup_tensor_count(list[k]); i++)
            if (at(c, list[k], i) != reduced(n, i, CUP_COMBINE_SUM))
                wrong("tensor %d of a list, element %d", k, (int)i);
}

/* More than goes at once: some tensors together, a large one alone. */
static void reduce_much(cup_context *c, cup_comm *m, void *user)
{
    int r = cup_comm_rank(m), n = cup_comm_count(m);
    const int64_t large = 9 << 20, small = 90000;
    cup_tensor *list[] = {make(c, CUP_F32, r, small), cup_full(c, CUP_F32, 1, &large, r + 1.0),
                          make(c, CUP_F32, r, small), cup_full(c, CUP_F32, 1, &large, r + 2.0),
                          cup_full(c, CUP_F32, 1, &large, r + 3.0)};
    (void)user;
    cup_comm_all_reduce(m, list, 5, CUP_COMBINE_SUM);
    for (int k = 0; k < 5; k++) {
        if (k == 0 || k == 2) {
            for (int64_t i = 0; i < small; i++)
                if (at(c, list[k], i) != reduced(n, i, CUP_COMBINE_SUM))
                    wrong("tensor %d of much, element %d", k, (int)i);
            continue;
        }
        double own = k == 1 ? 1 : k == 3 ? 2 : 3;
        double want = (double)n * own + (double)(n * (n - 1) / 2);
        cup_tensor *low = cup_min(c, list[k], NULL, 0, false);
        cup_tensor *high = cup_max(c, list[k], NULL, 0, false);
        if (cup_tensor_item(low) != want || cup_tensor_item(high) != want)
            wrong("tensor %d of much: %g to %g, not %g", k, cup_tensor_item(low),
                  cup_tensor_item(high), want);
    }
}

TEST(comm_all_reduce_of_much)
{
    together(2, reduce_much, NULL);
}

TEST(comm_all_reduce_of_a_list)
{
    together(3, reduce_list, NULL);
}

static void scatter_and_gather(cup_context *c, cup_comm *m, void *user)
{
    const int64_t part = 37;
    int r = cup_comm_rank(m), n = cup_comm_count(m);
    int64_t all = part * n;
    (void)user;
    cup_tensor *from = make(c, CUP_F32, r, all), *to = cup_tensor_new(c, CUP_F32, 1, &part);
    cup_tensor *whole = cup_tensor_new(c, CUP_F32, 1, &all);
    cup_comm_reduce_scatter(m, from, to, CUP_COMBINE_SUM);
    for (int64_t i = 0; i < part; i++)
        if (at(c, to, i) != reduced(n, part * r + i, CUP_COMBINE_SUM))
            wrong("reduce_scatter, element %d", (int)i);
    cup_comm_all_gather(m, to, whole);
    for (int64_t i = 0; i < all; i++)
        if (at(c, whole, i) != reduced(n, i, CUP_COMBINE_SUM))
            wrong("all_gather, element %d", (int)i);
    cup_comm_all_to_all(m, from, whole);
    for (int64_t i = 0; i < all; i++)
        if (at(c, whole, i) != value((int)(i / part), part * r + i % part))
            wrong("all_to_all, element %d", (int)i);
}

TEST(comm_scatter_gather_all_to_all)
{
    for (int i = 0; i < COUNTS; i++)
        together(counts[i], scatter_and_gather, NULL);
}

static void pass_on(cup_context *c, cup_comm *m, void *user)
{
    int r = cup_comm_rank(m), n = cup_comm_count(m);
    (void)user;
    for (int root = 0; root < n; root++) {
        cup_tensor *t[] = {make(c, CUP_I32, r, 9), make(c, CUP_F64, r, 2000)};
        cup_comm_broadcast(m, t, 2, root);
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < cup_tensor_count(t[k]); i++)
                if (at(c, t[k], i) != value(root, i))
                    wrong("broadcast from %d, element %d", root, (int)i);
    }
    /* Around a ring, while others may be further already. */
    cup_tensor *t = make(c, CUP_F32, r, 50000);
    if (n > 1 && r > 0)
        cup_comm_receive(m, t, r - 1);
    if (n > 1)
        cup_comm_send(m, t, (r + 1) % n);
    if (n > 1 && r == 0)
        cup_comm_receive(m, t, n - 1);
    for (int64_t i = 0; i < cup_tensor_count(t); i++)
        if (at(c, t, i) != value(0, i))
            wrong("around the ring, element %d", (int)i);
    cup_comm_barrier(m);
    int64_t numbers[] = {r, -r, r == 1 ? 5 : 2};
    cup_comm_agree(m, numbers, 3);
    if (numbers[0] != n - 1 || numbers[1] != 0 || numbers[2] != (n > 1 ? 5 : 2))
        wrong("agreed on %d, %d, %d", (int)numbers[0], (int)numbers[1], (int)numbers[2]);
}

TEST(comm_broadcast_send_agree)
{
    for (int i = 0; i < COUNTS; i++)
        together(counts[i], pass_on, NULL);
}

/* Rows and columns of a grid of two by two, and one that stays out. */
static void split(cup_context *c, cup_comm *m, void *user)
{
    int r = cup_comm_rank(m);
    (void)user;
    cup_comm *row = cup_comm_split_new(m, r < 4 ? r / 2 : -1);
    cup_comm *column = cup_comm_split_new(m, r < 4 ? r % 2 : -3);
    if (r == 4) {
        if (row || column || cup_error(c))
            wrong("rank 4 is in a part");
        return;
    }
    if (cup_comm_count(row) != 2 || cup_comm_rank(row) != r % 2 || cup_comm_rank(column) != r / 2)
        wrong("a part of %d, rank %d", cup_comm_count(row), cup_comm_rank(row));
    cup_tensor *t = cup_full(c, CUP_F32, 0, NULL, (double)(1 << (2 * r)));
    cup_comm_all_reduce(row, &t, 1, CUP_COMBINE_SUM);
    if (cup_tensor_item(t) != (r < 2 ? 1 + 4 : 16 + 64))
        wrong("sum of a row: %g", cup_tensor_item(t));
    cup_comm_all_reduce(column, &t, 1, CUP_COMBINE_SUM);
    if (cup_tensor_item(t) != 85)
        wrong("sum of rows and columns: %g", cup_tensor_item(t));
    cup_comm_free(row);
    cup_comm_free(column);
}

TEST(comm_split)
{
    together(5, split, NULL);
}

/* Sums of floats that are not exact: the same bits on every process and in every run. */
static void sum_random(cup_context *c, cup_comm *m, void *user)
{
    const int64_t size = 5000;
    float own[5000];
    c->options.deterministic = user != NULL;
    cup_tensor *t = cup_tensor_new(c, CUP_F32, 1, &size);
    for (int64_t i = 0; i < size; i++)
        own[i] = (float)sin((double)(i * 7 + 1) * (cup_comm_rank(m) + 1)) * 1e3f;
    cup_tensor_write(t, own, sizeof own);
    reduce(m, t, CUP_COMBINE_SUM, user != NULL);
    cup_tensor_read(t, own, sizeof own);
    cup_tensor *all = cup_tensor_new(c, CUP_F32, 2, (int64_t[]){cup_comm_count(m), size});
    float *rows = malloc((size_t)(cup_comm_count(m) * size) * sizeof *rows);
    cup_comm_all_gather(m, t, all);
    cup_tensor_read(all, rows, (size_t)(cup_comm_count(m) * size) * sizeof *rows);
    for (int r = 0; r < cup_comm_count(m); r++)
        if (memcmp(rows + r * size, own, sizeof own))
            wrong("rank %d has other bits", r);
    for (int64_t i = 0; i < size; i++) {
        double sum = 0;
        for (int r = 0; r < cup_comm_count(m); r++)
            sum += (double)((float)sin((double)(i * 7 + 1) * (r + 1)) * 1e3f);
        if (user ? fabs(own[i] - sum) > 1e-3 : own[i] != (float)sum)
            wrong("element %d is %.9g, not %.9g", (int)i, (double)own[i], sum);
    }
    free(rows);
}

TEST(comm_sums_have_one_order)
{
    together(4, sum_random, NULL);
    together(4, sum_random, "in order");
}

/* Each allocation fails in turn: an error, and what follows goes on as if nothing had been. */
TEST(comm_without_memory)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1));
    cup_tensor *list[] = {make(c, CUP_F32, 0, 100), make(c, CUP_F32, 0, 7)};
    int failures = 0;
    for (long n = 1; n < 200; n++) {
        cup__memory_fail_at(n, false);
        cup_comm *m =
            cup_comm_new(c, CUP_OPTIONS(cup_comm_options, .count = 1, .address = "127.0.0.1:1"));
        cup_comm *part = cup_comm_split_new(m, 0);
        cup_comm_all_reduce(part, list, 2, CUP_COMBINE_SUM);
        cup_comm_all_gather(m, list[0], list[0]);
        cup_comm_barrier(m);
        cup__memory_fail_at(0, false);
        bool failed = cup_error(c) != CUP_OK;
        if (failed)
            EXPECT_INT(cup_error(c), CUP_MEMORY);
        failures += failed;
        cup_error_clear(c);
        cup_comm_free(part);
        cup_comm_free(m);
        if (!failed)
            break;
    }
    EXPECT(failures > 8 && failures < 199);
    EXPECT_NEAR(at(c, list[0], 0), value(0, 0), 0);
    cup_context_free(c);
}
