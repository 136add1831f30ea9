/* Compiles ahead the kernels that a random check of all ops takes on a GPU of this kind, where the
 * GPU need not be: `random_kernels sm_90a SEED CALLS KERNELS`, as `make gpu` has them; the cache
 * folder has them then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "prof/kernels.h"
#include "prof/random_plan.h"
#include "prof/reference.h"
#include "tensor/context.h"

#define MOST_ROWS 4096
#define EACH 100 /* kernels that a line of progress tells of */

static void on_kernel(void *user, int done, int count, const cup__kernel_request *request,
                      const char *failure)
{
    (void)user;
    (void)request;
    if (failure)
        fprintf(stderr, "%s\n", failure);
    if (done % EACH == 0 || done == count)
        fprintf(stderr, "kernel %d of %d\n", done, count);
}

/* The kernels of all calls, noted by a dry GPU. */
static cup_context *note_all(const cup__random_options *o, const cup__gpu_facts *facts,
                             cup__precision precision)
{
    cup__random_plan *plan = cup__random_plan_new(o, facts, precision);
    cup_context *dry = plan ? cup__kernels_note(facts, precision) : NULL;
    cup__drawn *d = cup__malloc(sizeof *d);
    for (int64_t i = 0; dry && d && i < o->calls; i++) {
        int tries;
        cup_context *scratch = cup__reference_context(NULL, 1);
        if (scratch && cup__random_plan_draw(plan, o, i, scratch, d, &tries))
            cup__random_note(dry, d);
        cup_context_free(scratch);
    }
    cup__free(d);
    cup__random_plan_free(plan);
    return dry;
}

int main(int argc, char **argv)
{
    static const cup__row *rows[MOST_ROWS];
    if (argc != 5) {
        fprintf(stderr, "usage: random_kernels ARCH SEED CALLS KERNELS\n");
        return 2;
    }
    cup__random_options o = {.rows = rows, .seed = strtoull(argv[2], NULL, 10),
                             .calls = atoll(argv[3]), .kernels = atoll(argv[4]), .large = true};
    for (const cup__row *row = cup__rows; row->name && o.row_count < MOST_ROWS; row++)
        rows[o.row_count++] = row;
    cup_context *c = cup__context_dry(argv[1]);
    if (cup_error(c) != CUP_OK) {
        fprintf(stderr, "%s\n", cup_error_text(c));
        return 1;
    }
    cup_context *dry = note_all(&o, cup__cuda_facts(cup__cuda_of(c->device)), c->precision);
    cup__error error = {0};
    int count = 0;
    if (!dry)
        cup__fail(&error, CUP_MEMORY, "no memory for a plan of random calls");
    const cup__kernel_request *requests =
        dry ? cup__dry_requests(cup__cuda_of(dry->device), &count) : NULL;
    if (dry)
        cup__kernels_prepare(&error, argv[1], requests, count, 0, on_kernel, NULL);
    if (error.status != CUP_OK)
        fprintf(stderr, "%s\n", error.text);
    else
        printf("%d kernels are ready\n", count);
    cup_context_free(dry);
    cup_context_free(c);
    return error.status != CUP_OK;
}
