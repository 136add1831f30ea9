/* Compiles ahead the kernels that the random parts of `make gpu` take on a GPU of this kind, where
 * the GPU need not be: `check_kernels sm_90a SEED [CALLS] [KERNELS]`, as `make gpu` has them. With
 * names of ops behind these, the kernels of random calls of those alone, all of them small, as
 * `make sanitize` has them. The cache folder has them then, beside those of
 * `cupola kernels build`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/dry.h"
#include "prof/check_backward.h"
#include "prof/check_graph.h"
#include "prof/random.h"
#include "tensor/context.h"

#define MOST_ROWS 4096
#define EACH 1000 /* calls that a line of progress tells of */

typedef struct part {
    const char *name;
    int64_t calls;
} part;

static void on_done(int64_t calls, void *user)
{
    const part *p = user;
    if (calls % EACH == 0 || calls == p->calls)
        fprintf(stderr, "%s: %lld of %lld calls\n", p->name, (long long)calls,
                (long long)p->calls);
}

/* Whether a row is one of the ops that are named; all are where none is. */
static bool is_named(const cup__row *row, char **names)
{
    bool named = !*names;
    for (; *names && !named; names++)
        named = !strcmp(row->name, *names);
    return named;
}

int main(int argc, char **argv)
{
    static const cup__row *rows[MOST_ROWS];
    if (argc < 3) {
        fprintf(stderr, "usage: check_kernels ARCH SEED [CALLS] [KERNELS] [OP...]\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[2], NULL, 10);
    int64_t calls = argc > 3 ? atoll(argv[3]) : 20000, kernels = argc > 4 ? atoll(argv[4]) : 5000;
    char **names = argv + (argc > 5 ? 5 : argc);
    int count = 0;
    for (const cup__row *row = cup__rows; row->name && count < MOST_ROWS; row++) {
        if (is_named(row, names))
            rows[count++] = row;
    }
    cup_context *c = cup__context_dry(argv[1]);
    part random = {"random calls", calls};
    if (cup_error(c) == CUP_OK)
        cup__random_check(c,
                          &(cup__random_options){.rows = rows, .row_count = count, .calls = calls,
                                                 .seed = seed, .kernels = kernels,
                                                 .large = !*names, .done = on_done},
                          NULL, NULL, &random);
    if (cup_error(c) == CUP_OK && !*names)
        cup__check_backward(c, rows, count, seed, calls / 10, NULL, NULL);
    if (cup_error(c) == CUP_OK && !*names)
        cup__check_graphs(c, seed, calls / 10, NULL, NULL);
    bool failed = cup_error(c) != CUP_OK;
    fprintf(failed ? stderr : stdout, "%s\n", failed ? cup_error_text(c) : "kernels are ready");
    cup_context_free(c);
    return failed;
}
