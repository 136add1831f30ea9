/* How many images a second a network that is known by name looks at, of 224 x 224, in bf16, that
 * lie on the device: as it was trained, and with its batchnorms folded; call by call, and as a
 * graph on a GPU. Says by how much the two differ, as a part of the largest number.
 * Build and run: make build/bench/images_asked && build/bench/images_asked [device [network
 * [seconds [batch...]]]]; bench/images_asked_peer.py is the same in PyTorch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cupola/cupola.h"

enum { SIDE = 224, CLASSES = 1000, WAYS = 4, TURNS = 5 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct asked {
    cup_context *c;
    cup_parameters *list;
    cup_network *plain, *folded;
    cup_tensor *x, *kept;
    cup_graph *graph[2];
} asked;

static void ask(const asked *a, int way)
{
    cup_network *n = way % 2 ? a->folded : a->plain;
    if (way >= 2) {
        cup_graph_launch(a->graph[way % 2]);
        return;
    }
    cup_scope_open(a->c);
    cup_network_call(n, a->x);
    cup_scope_close(a->c);
}

/* Seconds of one, over so many. */
static double time_of(const asked *a, int way, double seconds)
{
    int count = 1;
    for (;; count *= 2) {
        cup_synchronize(a->c);
        double start = now();
        for (int i = 0; i < count && cup_error(a->c) == CUP_OK; i++)
            ask(a, way);
        cup_synchronize(a->c);
        double took = now() - start;
        if (took >= seconds || cup_error(a->c) != CUP_OK)
            return took / count;
    }
}

/* Statistics of some images, so that they are not those of nothing. */
static void settle(asked *a)
{
    cup_parameters_training(a->list, true);
    cup_scope_open(a->c);
    cup_tensor *x = cup_normal(a->c, CUP_BF16, 4, (int64_t[]){8, SIDE, SIDE, 3}, 0, 1);
    for (int i = 0; i < 4; i++)
        cup_network_call(a->plain, x);
    cup_scope_close(a->c);
    cup_parameters_training(a->list, false);
}

/* Two networks of one list would make its tensors twice: the second has a list with the values of
 * the first. */
static cup_parameters *copied(const asked *a, const char *text, const cup_network_sizes *sizes,
                              cup_network **out)
{
    cup_parameters *list = cup_parameters_new(a->c, CUP_BF16);
    int64_t count, others;
    *out = cup_network_new(a->c, list, text, sizes);
    const cup_named *to = cup_parameters_named(list, &count);
    const cup_named *from = cup_parameters_named(a->list, &others);
    for (int64_t i = 0; i < count && i < others; i++)
        cup_copy_into(a->c, to[i].tensor, from[i].tensor);
    cup_network_fold(*out);
    return list;
}

static double difference(asked *a)
{
    static float of[2][CLASSES];
    double most = 0, off = 0;
    for (int i = 0; i < 2; i++) {
        cup_scope_open(a->c);
        cup_tensor *y = cup_cast(a->c, cup_network_call(i ? a->folded : a->plain, a->x), CUP_F32);
        cup_tensor *row = cup_slice(a->c, y, (int64_t[]){0, 0}, 2, (int64_t[]){1, CLASSES}, 2);
        cup_tensor_read(cup_copy(a->c, row), of[i], sizeof of[i]);
        cup_scope_close(a->c);
    }
    for (int i = 0; i < CLASSES; i++) {
        most = fmax(most, fabs((double)of[0][i]));
        off = fmax(off, fabs((double)of[0][i] - (double)of[1][i]));
    }
    return off / most;
}

static void capture(asked *a, int which)
{
    cup_capture_begin(a->c);
    cup_scope_open(a->c);
    cup_network_call(which ? a->folded : a->plain, a->x);
    cup_scope_close(a->c);
    a->graph[which] = cup_capture_end(a->c);
}

static void tell(asked *a, const char *name, int64_t batch, double seconds)
{
    static const char *const words[] = {"calls", "calls, folded", "graph", "graph, folded"};
    int ways = cup_device_is_cuda(a->c) ? WAYS : 2;
    double best[WAYS] = {INFINITY, INFINITY, INFINITY, INFINITY};
    double off = difference(a);
    for (int i = 0; i < 2 && ways == WAYS; i++)
        capture(a, i);
    for (int turn = 0; turn < TURNS && cup_error(a->c) == CUP_OK; turn++)
        for (int way = 0; way < ways; way++)
            best[way] = fmin(best[way], time_of(a, way, seconds / TURNS));
    printf("%-10s batch %3lld, off by %.4f:", name, (long long)batch, off);
    for (int way = 0; way < ways; way++)
        printf(" %s %.3f ms %.0f images/s;", words[way], best[way] * 1e3,
               (double)batch / best[way]);
    printf("\n");
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        cup_graph_free(a->graph[i]);
}

static int run(const char *device, const char *name, int64_t batch, double seconds)
{
    char text[8192];
    asked a = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 1))};
    const cup_network_sizes sizes = {sizeof sizes, SIDE, SIDE, 3, CLASSES};
    cup_grad_recording(a.c, false);
    cup_network_text(a.c, name, SIDE, SIDE, text, sizeof text);
    a.list = cup_parameters_new(a.c, CUP_BF16);
    a.plain = cup_network_new(a.c, a.list, text, &sizes);
    a.x = cup_normal(a.c, CUP_BF16, 4, (int64_t[]){batch, SIDE, SIDE, 3}, 0, 1);
    settle(&a);
    cup_parameters *list = copied(&a, text, &sizes, &a.folded);
    if (cup_error(a.c) == CUP_OK)
        tell(&a, name, batch, seconds);
    int failed = cup_error(a.c) != CUP_OK;
    if (failed)
        printf("%s: %s\n", name, cup_error_text(a.c));
    cup_network_free(a.plain);
    cup_network_free(a.folded);
    cup_parameters_free(list);
    cup_parameters_free(a.list);
    cup_context_free(a.c);
    return failed;
}

int main(int argc, char **argv)
{
    const char *device = argc > 1 ? argv[1] : "cuda", *name = argc > 2 ? argv[2] : "resnet50";
    double seconds = argc > 3 ? atof(argv[3]) : 1;
    int failed = 0;
    if (argc <= 4)
        return run(device, name, 64, seconds);
    for (int i = 4; i < argc; i++)
        failed |= run(device, name, atoll(argv[i]), seconds);
    return failed;
}
