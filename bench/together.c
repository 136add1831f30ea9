/* Operations between processes, checked and timed: under a launcher, as
 *     cupola launch --processes 2 -- build/bench/together cuda
 * Sums are of small whole numbers, which are exact in every dtype. Rank 0 prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupola/cupola.h"

static cup_context *c;
static cup_comm *m;
static int rank, count, checked, wrong;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double value(int r, int64_t i)
{
    return (double)((r * 5 + i * 3) % 7 - 3);
}

static cup_tensor *make(cup_dtype dtype, int64_t size)
{
    double *values = malloc((size_t)(size + 1) * sizeof *values);
    for (int64_t i = 0; i < size; i++)
        values[i] = value(rank, i);
    cup_tensor *t = cup_cast(c, cup_tensor_from(c, CUP_F64, 1, &size, values), dtype);
    free(values);
    return t;
}

typedef double (*expected)(int64_t i, int64_t part);

static double the_sum(int64_t i, int64_t part)
{
    double sum = 0;
    (void)part;
    for (int r = 0; r < count; r++)
        sum += value(r, i);
    return sum;
}

static double the_own_sum(int64_t i, int64_t part)
{
    return the_sum(part * rank + i, part);
}

static double the_largest(int64_t i, int64_t part)
{
    double most = value(0, i);
    (void)part;
    for (int r = 1; r < count; r++)
        most = value(r, i) > most ? value(r, i) : most;
    return most;
}

static double what_others_have(int64_t i, int64_t part)
{
    return value((int)(i / part), i % part);
}

static double what_others_send(int64_t i, int64_t part)
{
    return value((int)(i / part), part * rank + i % part);
}

static double what_the_last_has(int64_t i, int64_t part)
{
    (void)part;
    return value(count - 1, i);
}

static void look(const char *what, cup_tensor *t, int64_t part, expected want)
{
    int64_t size = cup_tensor_count(t), bad = 0, first = 0;
    double *got = malloc((size_t)(size + 1) * sizeof *got), at = 0;
    cup_tensor_read(cup_cast(c, t, CUP_F64), got, (size_t)size * sizeof *got);
    for (int64_t i = size - 1; i >= 0; i--)
        if (cup_error(c) || got[i] != want(i, part)) {
            bad++;
            first = i;
            at = got[i];
        }
    checked++;
    wrong += bad > 0;
    if (bad)
        fprintf(stderr, "rank %d: %s %s of %lld: %lld wrong, the first %lld: %g, not %g\n", rank,
                what, cup_dtype_name(cup_tensor_dtype(t)), (long long)size, (long long)bad,
                (long long)first, at, want(first, part));
    free(got);
}

static void check_size(cup_dtype dtype, int64_t part)
{
    int64_t all = part * count;
    cup_scope_open(c);
    cup_tensor *t = make(dtype, part), *list[] = {make(dtype, part), make(CUP_F32, 3)};
    cup_comm_all_reduce(m, &t, 1, CUP_COMBINE_MAX);
    look("all_reduce, largest,", t, part, the_largest);
    cup_comm_all_reduce(m, list, 2, CUP_COMBINE_SUM);
    look("all_reduce", list[0], part, the_sum);
    look("all_reduce, beside it,", list[1], 3, the_sum);
    cup_tensor *from = make(dtype, all), *own = make(dtype, part), *to = make(dtype, all);
    cup_comm_all_gather(m, own, to);
    look("all_gather", to, part, what_others_have);
    cup_comm_reduce_scatter(m, from, own, CUP_COMBINE_SUM);
    look("reduce_scatter", own, part, the_own_sum);
    cup_comm_all_to_all(m, from, to);
    look("all_to_all", to, part, what_others_send);
    t = make(dtype, part);
    cup_comm_broadcast(m, &t, 1, count - 1);
    look("broadcast", t, part, what_the_last_has);
    cup_scope_close(c);
}

/* A captured sum is one each time it is launched. */
static void check_graph(void)
{
    const int64_t size = 1 << 20;
    cup_tensor *from = make(CUP_F32, size), *to = make(CUP_F32, size);
    if (!cup_device_is_cuda(c) || strcmp(cup_comm_backend(m), "NCCL"))
        return;
    cup_comm_all_reduce(m, &to, 1, CUP_COMBINE_SUM);
    cup_capture_begin(c);
    cup_tensor *copy = cup_copy(c, from);
    cup_comm_all_reduce(m, &copy, 1, CUP_COMBINE_SUM);
    cup_graph *graph = cup_capture_end(c);
    for (int i = 0; graph && i < 3; i++)
        cup_graph_launch(graph);
    cup_comm_barrier(m);
    look("all_reduce, in a graph,", copy, size, the_sum);
    cup_synchronize(c);
    cup_graph_free(graph);
}

/* The contexts: a plain one, and one that is deterministic, whose sums have one order. */
static cup_context *contexts[2];
static cup_comm *comms[2];

static void take(bool in_order)
{
    c = contexts[in_order];
    m = comms[in_order];
}

/* Whether sums of numbers that round have the bits of the first time each time. */
static void repeat_sums(bool in_order)
{
    const int64_t size = (int64_t)count << 20;
    size_t bytes = (size_t)size * sizeof(float);
    float *first = malloc(bytes), *again = malloc(bytes);
    int differ = 0, times = 5;
    take(in_order);
    for (int i = 0; i < times && first && again; i++) {
        cup_scope_open(c);
        cup_seed(c, 17 + (uint64_t)rank);
        cup_tensor *t = cup_normal(c, CUP_F32, 1, &size, 0, 1);
        cup_comm_all_reduce(m, &t, 1, CUP_COMBINE_SUM);
        cup_tensor_read(t, i ? again : first, bytes);
        differ += i && memcmp(first, again, bytes) != 0;
        cup_scope_close(c);
    }
    if (rank == 0)
        printf("%s: %d of %d further sums have other bits\n",
               in_order ? "in one order" : "all_reduce", differ, times - 1);
    free(first);
    free(again);
}

static double seconds_of(int64_t size, bool in_order, int times)
{
    double start = 0;
    take(in_order);
    cup_scope_open(c);
    cup_tensor *t = cup_full(c, CUP_F32, 1, &size, 0);
    for (int i = -5; i < times; i++) {
        if (i == 0) {
            cup_synchronize(c);
            cup_comm_barrier(m);
            start = now();
        }
        cup_comm_all_reduce(m, &t, 1, CUP_COMBINE_SUM);
    }
    cup_synchronize(c);
    cup_scope_close(c);
    return (now() - start) / times;
}

static void time_sum(int64_t bytes)
{
    const int64_t size = bytes / 4 / count * count;
    int times = bytes > 100000000 ? 10 : 50;
    double each = seconds_of(size, false, times), ordered = seconds_of(size, true, times);
    if (rank == 0)
        printf("all_reduce %10lld bytes: %9.1f us, bus %6.1f GB/s; in one order %9.1f us, %.2f "
               "times as long\n",
               (long long)bytes, each * 1e6,
               2.0 * (count - 1) / count * (double)bytes / each * 1e-9, ordered * 1e6,
               ordered / each);
}

/* The gradients of GPT-2's smallest model: as its tensors, and as many bytes in one. */
static void time_gradients(int layers, int64_t width)
{
    const int64_t each[] = {3 * width * width, 4 * width * width, 4 * width * width, width * width,
                            3 * width, 4 * width, width, width, width, width, width, width};
    cup_tensor *list[12 * 64], *flat;
    int64_t all = 0;
    int tensors = 0;
    cup_scope_open(c);
    for (int i = 0; i < 12 * layers; i++, tensors++) {
        list[i] = cup_full(c, CUP_BF16, 1, &each[i % 12], 0);
        all += each[i % 12];
    }
    flat = cup_full(c, CUP_BF16, 1, &all, 0);
    for (int way = 0; way < 2; way++) {
        double start = 0;
        for (int i = -3; i < 20; i++) {
            if (i == 0) {
                cup_synchronize(c);
                cup_comm_barrier(m);
                start = now();
            }
            cup_comm_all_reduce(m, way ? &flat : list, way ? 1 : tensors, CUP_COMBINE_SUM);
        }
        cup_synchronize(c);
        if (rank == 0)
            printf("all_reduce of %3d tensors%s, %lld bytes: %9.1f us\n", way ? 1 : tensors,
                   c == contexts[1] ? " in one order" : "",
                   (long long)(2 * all), (now() - start) / 20 * 1e6);
    }
    cup_scope_close(c);
}

int main(int argc, char **argv)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F64, CUP_F16, CUP_BF16, CUP_I32, CUP_I64};
    static const int64_t sizes[] = {1, 5, 1000, 262147};
    cup_launched run;
    char device[32] = "cpu";
    cup_launched_look(NULL, &run);
    if (argc > 1 && !strcmp(argv[1], "cuda"))
        snprintf(device, sizeof device, "cuda:%d", run.local_rank);
    for (int i = 0; i < 2; i++) {
        contexts[i] = cup_context_new(
            CUP_OPTIONS(cup_options, .device = device, .deterministic = i == 1));
        comms[i] = cup_comm_new(contexts[i], NULL);
    }
    bool all = comms[0] && comms[1];
    take(false);
    rank = cup_comm_rank(m);
    count = cup_comm_count(m);
    if (m && rank == 0)
        printf("%d processes, %s, %s\n", count, cup_device_text(c), cup_comm_backend(m));
    for (int i = 0; i < 2 && all; i++) {
        take(i);
        for (int d = 0; d < 6; d++)
            for (int s = 0; s < 4; s++)
                check_size(dtypes[d], sizes[s]);
        check_graph();
        repeat_sums(i);
    }
    bool is_cuda = all && cup_device_is_cuda(c);
    for (int64_t bytes = 1 << 10; all && bytes <= (is_cuda ? 1 << 30 : 1 << 26); bytes *= 4)
        time_sum(bytes);
    for (int i = 0; i < 2 && is_cuda; i++) {
        take(i);
        time_gradients(12, 768);
    }
    if (rank == 0)
        printf("%d results checked, %d wrong\n", checked, wrong);
    bool failed = wrong > 0 || !all;
    for (int i = 0; i < 2; i++) {
        if (cup_error(contexts[i]))
            fprintf(stderr, "rank %d: %s\n", rank, cup_error_text(contexts[i]));
        failed |= cup_error(contexts[i]) != CUP_OK;
        cup_comm_free(comms[i]);
        cup_context_free(contexts[i]);
    }
    return failed;
}
