/* What the kernels of a layer take behind each other, as when texts are written side by side:
 * chains of products, norms among them, captured in a graph, each with weights of its own so that
 * they come from memory.
 * Build and run: make build/bench/texts_chain && build/bench/texts_chain [device [rows]] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cupola/cupola.h"

#define LINKS 48
#define REPLAYS 40
#define MOST 4

/* Sides of the products that follow each other; a gelu behind the first where there are two. */
typedef struct chain {
    const char *name;
    int64_t side[MOST];
    int count;
    bool norm;
} chain;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cup_tensor *normal(cup_context *c, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows > 0 ? rows : columns, columns};
    return cup_normal(c, CUP_BF16, rows > 0 ? 2 : 1, shape, 0, 0.03);
}

static void run_links(cup_context *c, const chain *one, cup_tensor *x, cup_tensor *const *weight,
                      cup_tensor *const *bias)
{
    for (int i = 0; i < LINKS; i++) {
        int at = i % one->count;
        cup_tensor *from = x;
        if (one->norm && at == 0)
            from = cup_layernorm(c, from, NULL, NULL, 1e-5);
        x = one->count > 1 && at == 0 ? cup_linear_gelu(c, from, weight[i], bias[i])
                                      : cup_linear(c, from, weight[i], bias[i]);
    }
}

static void measure(cup_context *c, const chain *one, int64_t rows)
{
    cup_tensor *weight[LINKS], *bias[LINKS];
    cup_scope_open(c);
    for (int i = 0; i < LINKS; i++) {
        int64_t k = one->side[i % one->count], n = one->side[i % one->count + 1];
        weight[i] = normal(c, n, k);
        bias[i] = normal(c, 0, n);
    }
    cup_tensor *x = normal(c, rows, one->side[0]);
    run_links(c, one, x, weight, bias);
    cup_capture_begin(c);
    run_links(c, one, x, weight, bias);
    cup_graph *graph = cup_capture_end(c);
    double best = 1;
    for (int i = 0; graph && i < REPLAYS; i++) {
        cup_synchronize(c);
        double start = now();
        cup_graph_launch(graph);
        cup_synchronize(c);
        double took = now() - start;
        best = took < best ? took : best;
    }
    printf("%-32s %6.2f us a link\n", one->name, best / LINKS * 1e6);
    if (cup_error(c) != CUP_OK)
        printf("  %s\n", cup_error_text(c));
    cup_graph_free(graph);
    cup_scope_close(c);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const chain chains[] = {{"768 to 768", {768, 768}, 1, false},
                                   {"768 to 768 behind norms", {768, 768}, 1, true},
                                   {"768 to 3072 and back", {768, 3072, 768}, 2, false},
                                   {"768 to 2304 and back", {768, 2304, 768}, 2, false},
                                   {"3072 to 3072", {3072, 3072}, 1, false},
                                   {"1024 to 4096 and back", {1024, 4096, 1024}, 2, false},
                                   {"2048 to 2048", {2048, 2048}, 1, false}};
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = argc > 1 ? argv[1] : "cuda"));
    if (cup_error(c) != CUP_OK) {
        fprintf(stderr, "%s\n", cup_error_text(c));
        return 1;
    }
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        measure(c, &chains[i], argc > 2 ? atoi(argv[2]) : 64);
    cup_context_free(c);
    return 0;
}
