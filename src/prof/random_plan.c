#include "prof/random_plan.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/dry.h"
#include "prof/kernels.h"

#define CANDIDATES 12 /* that a call is chosen from */

/* A call: the one that is drawn by a number, or a sibling of it; with values of its own where
 * `values` is not 0. */
typedef struct choice {
    int32_t number, sibling;
    uint32_t values;
} choice;

/* The calls of one op. */
typedef struct row_plan {
    choice *calls;
    int count, kernels;
    int wanted, share; /* kernels: without a budget, and of it */
} row_plan;

struct cup__random_plan {
    const cup__random_options *options;
    const cup__gpu_facts *facts;
    cup__precision precision;
    row_plan *rows;
};

/* An op's plan under way. */
typedef struct planning {
    const cup__random_plan *all;
    const cup__row *row;
    row_plan *to;
    cup_context *scratch, *dry;
    cup__drawn *drawn;
    int32_t *taken; /* numbers of calls that were taken as they are drawn */
    int taken_count;
} planning;

void cup__random_note(cup_context *dry, const cup__drawn *d)
{
    cup_tensor *in[CUP__DRAWN_INPUTS];
    cup_scope_open(dry);
    int count = cup__drawn_inputs(d, dry, d->dtype, in, CUP__DRAWN_INPUTS);
    cup__kernels_run_all(dry, d->row, in, count, d->attributes, d->out_offset);
    cup__scope_pop(dry);
    cup__error_clear(&dry->error);
}

static int kernels_noted(const planning *p)
{
    int count;
    cup__dry_requests(cup__cuda_of(p->dry->device), &count);
    return count;
}

static bool draw_choice(cup_context *scratch, const cup__row *row,
                        const cup__random_options *options, choice one, cup__drawn *out, int *tries)
{
    cup__draw_limits limits = {.large = options->large};
    if (!cup__draw_sibling(scratch, row, &limits, options->seed, one.number, one.sibling, out,
                           tries))
        return false;
    out->seed += one.values;
    return true;
}

/* How many more kernels a call needs; -1 when the op refuses it. They are noted. */
static int kernels_of(planning *p, choice one)
{
    int tries, before = kernels_noted(p);
    if (!draw_choice(p->scratch, p->row, p->all->options, one, p->drawn, &tries))
        return -1;
    cup__random_note(p->dry, p->drawn);
    return kernels_noted(p) - before;
}

/* Call i: one of kernels that are not known while this part of the check has some to spend, else
 * the first of a few that needs none: other calls, and siblings of those before. */
static choice choose(planning *p, int i)
{
    row_plan *to = p->to;
    uint64_t state = p->all->options->seed + 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
    int known = kernels_noted(p);
    bool may_spend = (int64_t)known * to->count < (int64_t)to->share * (i + 1);
    for (int k = 0; k < CANDIDATES; k++) {
        choice one = {i + k * to->count, 0, 0};
        if (k % 2 && p->taken_count)
            one = (choice){p->taken[cup__draw_below(&state, p->taken_count)],
                           (int)(1 + cup__draw_below(&state, 1 << 20)), 0};
        int more = kernels_of(p, one);
        if (!more || (more > 0 && may_spend && (!known || known + more <= to->share))) {
            if (!one.sibling)
                p->taken[p->taken_count++] = one.number;
            return one;
        }
        cup__dry_forget(cup__cuda_of(p->dry->device), known);
    }
    int32_t again = p->taken_count ? p->taken[cup__draw_below(&state, p->taken_count)] : 0;
    return (choice){again, 0, (uint32_t)(i + 1)};
}

/* An op's calls; without a budget where `share` is not known yet, and then what they want. */
static void plan_row(planning *p, bool budget)
{
    row_plan *to = p->to;
    p->scratch = cup__context_cpu(cup__threads());
    p->dry = cup__kernels_note(p->all->facts, p->all->precision);
    p->drawn = cup__malloc(sizeof *p->drawn);
    p->taken = cup__calloc((size_t)to->count, sizeof *p->taken);
    if (p->scratch)
        cup_scope_open(p->scratch);
    for (int i = 0; i < to->count; i++) {
        bool asks = p->scratch && p->dry && p->drawn && p->taken;
        to->calls[i] = budget && asks ? choose(p, i) : (choice){i, 0, 0};
        if (!budget && asks)
            kernels_of(p, to->calls[i]);
    }
    to->kernels = p->dry ? kernels_noted(p) : 0;
    if (!budget)
        to->wanted = to->kernels;
    cup_context_free(p->scratch);
    cup_context_free(p->dry);
    cup__free(p->drawn);
    cup__free(p->taken);
}

static void plan_rows(int64_t begin, int64_t end, void *user)
{
    const cup__random_plan *all = user;
    for (int64_t r = begin; r < end; r++) {
        row_plan *to = &all->rows[r];
        bool unknown = to->wanted < 0;
        planning p = {.all = all, .row = all->options->rows[r], .to = to};
        if (unknown || to->share < to->wanted)
            plan_row(&p, !unknown);
    }
}

/* The budget, as evenly over the ops as they have use for it. */
static void share_out(cup__random_plan *plan, int count)
{
    int64_t low = 0, high = plan->options->kernels;
    while (low < high) {
        int64_t level = low + (high - low + 1) / 2, sum = 0;
        for (int r = 0; r < count; r++)
            sum += plan->rows[r].wanted < level ? plan->rows[r].wanted : level;
        if (sum <= plan->options->kernels)
            low = level;
        else
            high = level - 1;
    }
    for (int r = 0; r < count; r++)
        plan->rows[r].share = plan->rows[r].wanted < low ? plan->rows[r].wanted : (int)low;
}

cup__random_plan *cup__random_plan_new(const cup__random_options *options,
                                       const cup__gpu_facts *facts, cup__precision precision)
{
    cup__random_plan *plan = cup__calloc(1, sizeof *plan);
    int count = options->row_count;
    if (!plan)
        return NULL;
    *plan = (cup__random_plan){.options = options, .facts = facts, .precision = precision};
    plan->rows = cup__calloc((size_t)count, sizeof *plan->rows);
    bool good = plan->rows != NULL;
    for (int r = 0; good && r < count; r++) {
        row_plan *to = &plan->rows[r];
        to->count = (int)((options->calls - r + count - 1) / count);
        to->wanted = -1;
        to->calls = cup__calloc((size_t)to->count, sizeof *to->calls);
        good = to->calls || !to->count;
    }
    if (!good) {
        cup__random_plan_free(plan);
        return NULL;
    }
    cup__parallel_for(count, 1, plan_rows, plan);
    share_out(plan, count);
    cup__parallel_for(count, 1, plan_rows, plan);
    return plan;
}

void cup__random_plan_free(cup__random_plan *plan)
{
    for (int r = 0; plan && plan->rows && r < plan->options->row_count; r++)
        cup__free(plan->rows[r].calls);
    if (plan)
        cup__free(plan->rows);
    cup__free(plan);
}

bool cup__random_plan_draw(const cup__random_plan *plan, const cup__random_options *options,
                           int64_t i, cup_context *scratch, cup__drawn *out, int *tries)
{
    const cup__row *row = options->rows[i % options->row_count];
    int64_t number = i / options->row_count;
    cup__draw_limits limits = {.large = options->large};
    if (!plan)
        return cup__draw(scratch, row, &limits, options->seed, number, out, tries);
    return draw_choice(scratch, row, options, plan->rows[i % options->row_count].calls[number],
                       out, tries);
}

int64_t cup__random_plan_kernels(const cup__random_plan *plan)
{
    int64_t sum = 0;
    for (int r = 0; r < plan->options->row_count; r++)
        sum += plan->rows[r].kernels;
    return sum;
}
