#include "prof/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cuda/dry.h"
#include "prof/ahead.h"
#include "prof/cost.h"
#include "prof/kernels.h"
#include "prof/random_plan.h"

#define MOST_FAILING 64 /* implementations that are told apart */
#define MOVES 4 /* of the inputs, to see how far a result moves */
#define MOST_SHRUNK 3   /* failures of one of them that are made smaller */

/* A call that was drawn ahead, with what it is held against. */
typedef struct room {
    cup__reference reference;
    cup__drawn drawn;
    cup__text text, shapes;
    bool is_drawn;
    int tries;
} room;

typedef struct failing {
    const char *op, *impl;
    int count;
} failing;

typedef struct random_check {
    cup_context *c, *scratch;
    const cup__random_options *options;
    cup__report report;
    void *user;
    int threads;
    long failures; /* of allocations, as the check began */
    const cup__gpu_facts *facts; /* NULL: on a CPU */
    cup__random_plan *plan;      /* NULL: each call as it comes */
    cup__precision precision;
    const cup__drawn *drawn; /* the call at hand */
    failing failing[MOST_FAILING];
} random_check;

/* Moves each float by up to the part `by` of itself; where the specification works in the dtype
 * itself (`rounds`), as far as that can tell numbers apart. */
static void move(cup_tensor *t, double by, uint64_t state)
{
    for (int64_t i = 0; t && cup__dtype_is_float(t->dtype) && i < t->count; i++) {
        double unit = (double)(cup__draw_word(&state) >> 11) * 0x1p-52 - 1;
        int64_t at = cup__offset_of(t, i);
        cup__store(t, at, cup__load(t, at) * (1 + by * unit));
    }
}

/* `moved`: by which part of themselves the inputs are off; 0: not at all. */
static cup_status compute(cup__reference *r, const cup__drawn *d, double moved, uint64_t seed)
{
    cup_seed(r->c, CUP__CHECK_SEED);
    int count = cup__drawn_inputs(d, r->c, CUP_F64, r->in, CUP__CHECK_INPUTS);
    if (count < 0)
        return r->c->error.status;
    for (int i = 0; i < count && moved > 0; i++)
        move(r->in[i], moved, seed + (uint64_t)i);
    CUP_TRY(cup__call_begin(&r->call, r->c, d->row, r->in, count, d->attributes));
    cup__reference_widen_codes(&r->call);
    r->call.saving = true;
    r->call.out_count = d->row->results_count;
    CUP_TRY(cup__call_allocate(&r->call));
    return cup__call_run(&r->call, NULL);
}

/* The kernels of a call, from a run on a dry GPU. */
static void prepare(int64_t i, void *user)
{
    const random_check *all = user;
    const cup__random_options *o = all->options;
    i += o->first;
    cup_context *scratch = cup__reference_context(NULL, all->threads);
    cup__drawn *d = cup__malloc(sizeof *d);
    int tries;
    if (scratch && d && cup__random_plan_draw(all->plan, o, i, scratch, d, &tries)) {
        cup_context *c = cup__kernels_note(all->facts, all->precision);
        if (c)
            cup__random_note(c, d);
        cup__kernels_get_noted(c);
    }
    cup__free(d);
    cup_context_free(scratch);
}

static void make(int64_t i, void *at, void *user)
{
    random_check *all = user;
    room *r = at;
    const cup__random_options *o = all->options;
    i += o->first;
    r->is_drawn = false;
    r->reference.c = cup__reference_context(r->reference.c, all->threads);
    if (!r->reference.c)
        return;
    r->is_drawn = cup__random_plan_draw(all->plan, o, i, r->reference.c, &r->drawn, &r->tries);
    if (!r->is_drawn)
        return;
    r->text.length = r->shapes.length = 0;
    cup__drawn_text(&r->drawn, &r->text);
    cup__drawn_shapes_text(&r->drawn, &r->shapes);
    if (o->begins)
        o->begins(cup__text_string(&r->text), all->user);
    compute(&r->reference, &r->drawn, 0, 0);
}

static void drop(void *at)
{
    room *r = at;
    cup_context_free(r->reference.c);
    cup__text_free(&r->text);
    cup__text_free(&r->shapes);
}

/* What is reported in place of a result when there is no specification to hold it against. */
static void report_missing(random_check *all, const room *r)
{
    cup_check_result result = {.op = r->drawn.row->name,
                               .impl = "specification",
                               .dtype = r->drawn.dtype,
                               .layout = "random",
                               .shapes = cup__text_string(&r->shapes),
                               .repeat = cup__text_string(&r->text),
                               .error = INFINITY,
                               .tolerance = 1,
                               .note = r->reference.c->error.text};
    all->report(&result, all->user);
}

/* The root of the mean square of how far what moved of a result did: rows that a mask leaves empty
 * stay 0 whatever the inputs are, and say nothing of the others. */
static double distance(const cup_tensor *a, const cup_tensor *b)
{
    double squares = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double by = cup__load(a, cup__offset_of(a, i)) - cup__load(b, cup__offset_of(b, i));
        if (!isfinite(by) || by == 0)
            continue;
        squares += by * by;
        count++;
    }
    return count ? sqrt(squares / (double)count) : 0;
}

/* How many results are not 0; rows that a mask leaves empty took no operations. */
static int64_t not_zero(const cup_tensor *t)
{
    int64_t count = 0;
    for (int64_t i = 0; i < t->count; i++)
        count += cup__load(t, cup__offset_of(t, i)) != 0;
    return count;
}

/* What f32 may be rounded to on its way into products, of which 10 and 7 bits are kept. */
static double rounding_of(const cup_context *c)
{
    static const double by[] = {[CUP__HIGHEST] = 0, [CUP__HIGH] = 0x1p-10, [CUP__MEDIUM] = 0x1p-7};
    return c->device->is_cuda ? by[c->precision] : 0;
}

/* By which part of themselves inputs are moved: what the sums are kept in, f64 or f32 or what the
 * implementation says of itself, and more where each result takes many operations. */
static double part_of(const cup__check_call *k, const cup__drawn *d)
{
    double by = d->dtype == CUP_F64 ? 0x1p-52 : 0x1p-23, bytes, flops;
    by *= d->row->op->rounds ? 2 : 1; /* a smaller step than the dtype's own is often none */
    double rounding = d->dtype == CUP_F32 ? rounding_of(k->c) : 0;
    for (const cup__impl *impl = d->row->op->impls; impl && impl->name; impl++)
        if (!strcmp(impl->name, k->only))
            by = fmax(by, impl->slack);
    const cup__call *call = &k->want->call;
    int64_t count = call->out_count ? not_zero(call->out[0]) : 0;
    for (int i = 0; !call->out_count && i < call->in_count; i++)
        count += call->in[i] && cup__call_changes(call, i) ? call->in[i]->count : 0;
    if (!count || (!call->out_count && !call->op->cost))
        return fmax(by, rounding);
    cup__call_cost(call, &bytes, &flops);
    return fmax(by * fmax(1, sqrt(flops / (double)count) / 8), rounding);
}

/* The bound of attention's scores, 0 without. */
static double soft_cap_of(const cup__call *call)
{
    for (const cup__attribute *a = call->row->attributes; a && a->name; a++)
        if (!strcmp(a->name, "soft_cap"))
            return *(const double *)(const void *)((const char *)call->attributes + a->offset);
    return 0;
}

/* Probabilities are exponentials of scores less their logsumexp, both rounded to f32: the result is
 * off by as much of itself, of which the op's tolerance allows at least 16. A score under a cap is
 * the difference of two numbers of the cap's size. */
static double of_scores(const cup__call *want)
{
    const cup_tensor *o = want->out[0], *lse = want->out[1];
    double most = soft_cap_of(want), squares = 0;
    for (int64_t i = 0; i < lse->count; i++) {
        double size = fabs(cup__load(lse, cup__offset_of(lse, i)));
        most = isfinite(size) ? fmax(most, size) : most;
    }
    for (int64_t i = 0; i < o->count; i++)
        squares += pow(cup__load(o, cup__offset_of(o, i)), 2);
    return o->count ? 0x1p-23 * most * sqrt(squares / (double)o->count) / 16 : 0;
}

/* Sets the least units of errors: how far each result moves, in double, when the inputs are off by
 * what its sums can tell apart, and f32's smallest normal number, below which it may be 0. Results
 * of which most cancelled, such as the sum of many products that is near 0, cannot be closer than
 * that. Tried only where a result is too far off otherwise. */
static void find_least(random_check *all, cup__check_call *k, const cup__drawn *d)
{
    const cup__call *want = &k->want->call;
    if (d->row->op->steady) /* which is not to move */
        return;
    double by = part_of(k, d), tiny = d->dtype == CUP_F64 || d->dtype == CUP_F16 ? 0 : 0x1p-126;
    for (int i = 0; i < CUP__MAX_OUT; i++)
        k->least_out[i] = tiny;
    if (strstr(d->row->name, "attention") && want->out_count > 1 && d->dtype != CUP_F64) {
        k->least_out[0] = fmax(tiny, of_scores(want));
        /* A logarithm is off by the roundings of a capped score, twice; six units are allowed. */
        if (strstr(d->row->results, "lse"))
            k->least_out[1] = fmax(tiny, 0x1p-23 * soft_cap_of(want) / 3);
    }
    cup__reference *moved = cup__calloc(1, sizeof *moved);
    for (int try = 0; moved && try < MOVES; try++) {
        moved->c = cup__reference_context(moved->c, all->threads);
        if (!moved->c || compute(moved, d, by, d->seed + 1000 * (uint64_t)try) != CUP_OK)
            break;
        for (int i = 0; i < moved->call.out_count; i++)
            k->least_out[i] =
                fmax(k->least_out[i], distance(moved->call.out[i], k->want->call.out[i]));
        for (int i = 0; i < moved->call.in_count; i++)
            if (moved->in[i] && cup__call_changes(&moved->call, i))
                k->least_in[i] =
                    fmax(k->least_in[i], distance(moved->in[i], k->want->in[i]));
    }
    if (moved)
        cup_context_free(moved->c);
    cup__free(moved);
}

static void run_on_device(random_check *all, const cup__drawn *d, const cup__reference *want,
                          const room *texts, cup__report report, void *user, const char *only)
{
    cup__check_call k = {.c = all->c,
                         .row = d->row,
                         .attributes = d->attributes,
                         .dtype = d->dtype,
                         .layout = "random",
                         .shapes = texts ? cup__text_string(&texts->shapes) : "",
                         .repeat = texts ? cup__text_string(&texts->text) : "",
                         .report = report,
                         .user = user,
                         .want = want,
                         .out_offset = d->out_offset,
                         .failures = all->failures,
                         .only = only};
    if (texts && all->options->begins)
        all->options->begins(k.repeat, all->user);
    cup_seed(all->c, CUP__CHECK_SEED);
    cup_scope_open(all->c);
    k.in_count = cup__drawn_inputs(d, all->c, d->dtype, k.in, CUP__CHECK_INPUTS);
    if (only && !d->row->op->view)
        find_least(all, &k, d);
    cup__check_run(&k, k.in_count < 0 ? all->c->error.status : CUP_OK);
    cup__scope_pop(all->c);
}

static void note_failure(const cup_check_result *r, void *user)
{
    bool *failed = user;
    *failed |= !r->passed;
}

typedef struct retry {
    random_check *all;
    const char *impl;
} retry;

static bool fails(const cup__drawn *d, void *user)
{
    retry *t = user;
    if (cup__device_is_lost(t->all->c->device))
        return false;
    bool failed = false, is_specification = !strcmp(t->impl, "specification");
    cup__reference *want = cup__calloc(1, sizeof *want);
    if (!want)
        return false;
    want->c = cup__reference_context(NULL, t->all->threads);
    if (want->c && t->all->options->begins) {
        cup__text text = {0};
        cup__drawn_text(d, &text);
        t->all->options->begins(cup__text_string(&text), t->all->user);
        cup__text_free(&text);
    }
    if (want->c && compute(want, d, 0, 0) == CUP_OK && want->c->error.status == CUP_OK)
        run_on_device(t->all, d, want, NULL, note_failure, &failed, t->impl);
    else
        failed = is_specification;
    cup_context_free(want->c);
    cup__free(want);
    return failed;
}

/* Whether this failure is among the first ones of its implementation. */
static bool is_early(random_check *all, const cup_check_result *r)
{
    for (int i = 0; i < MOST_FAILING; i++) {
        failing *f = &all->failing[i];
        if (f->op && (strcmp(f->op, r->op) != 0 || strcmp(f->impl, r->impl) != 0))
            continue;
        f->op = r->op;
        f->impl = r->impl;
        return f->count++ < MOST_SHRUNK;
    }
    return false;
}

static void report_call(const cup_check_result *r, void *user)
{
    random_check *all = user;
    retry t = {all, r->impl};
    cup_check_result small = *r;
    if (cup__device_is_lost(all->c->device)) {
        all->report(r, all->user);
        return;
    }
    bool again = !r->passed && fails(all->drawn, &t);
    if (!r->passed && (all->c->error.status == CUP_MEMORY ||
                       cup__memory_failures() != all->failures)) {
        cup__fail(&all->c->error, CUP_MEMORY, "out of host memory to repeat a call");
        return;
    }
    if (!r->passed && !again) {
        small.passed = true;
        small.error = r->tolerance; /* as far as it is known */
    }
    if (small.passed || all->options->no_shrinking || !is_early(all, r)) {
        all->report(&small, all->user);
        return;
    }
    char note[400];
    cup__drawn *d = cup__malloc(sizeof *d);
    cup__text text = {0}, shapes = {0};
    snprintf(note, sizeof note, "%s", r->note);
    if (d) {
        *d = *all->drawn;
        cup__shrink(d, all->scratch, fails, &t);
        cup__drawn_text(d, &text);
        cup__drawn_shapes_text(d, &shapes);
        small.repeat = cup__text_string(&text);
        small.shapes = cup__text_string(&shapes);
    }
    small.note = note;
    all->report(&small, all->user);
    cup__text_free(&text);
    cup__text_free(&shapes);
    cup__free(d);
}

static void check_room(random_check *all, const room *r)
{
    all->drawn = &r->drawn;
    if (r->reference.c->error.status == CUP_MEMORY)
        cup__fail(&all->c->error, CUP_MEMORY, "the specification of %s: %s", r->drawn.row->name,
                  r->reference.c->error.text);
    else if (r->reference.c->error.status != CUP_OK)
        report_missing(all, r);
    else
        run_on_device(all, &r->drawn, &r->reference, r, report_call, all, NULL);
}

cup_status cup__random_check(cup_context *c, const cup__random_options *options,
                             cup__random_count *counts, cup__report report, void *user)
{
    random_check all = {.c = c, .options = options, .report = report, .user = user,
                        .precision = c->precision, .failures = cup__memory_failures()};
    all.threads = cup__threads();
    if (c->device->is_cuda)
        all.facts = cup__cuda_facts(cup__cuda_of(c->device));
    all.scratch = cup__context_cpu(all.threads);
    bool dry = cup__device_is_dry(c->device);
    bool plans = all.facts && options->kernels;
    if (plans)
        all.plan = cup__random_plan_new(options, all.facts, all.precision);
    cup__ahead *ahead = NULL;
    if (!plans || all.plan)
        ahead = cup__ahead_new(options->calls - options->first, sizeof(room),
                               all.facts ? prepare : NULL, dry ? cup__ahead_nothing : make, drop,
                               &all);
    cup_status status = ahead && all.scratch ? CUP_OK : CUP_MEMORY;
    for (int64_t i = options->first; i < options->calls && status == CUP_OK; i++) {
        if (cup__device_is_lost(c->device))
            break;
        const room *r = cup__ahead_get(ahead, i - options->first);
        cup__random_count *count = counts ? &counts[i % options->row_count] : NULL;
        if (!dry && !r->reference.c) {
            status = CUP_MEMORY;
            break;
        }
        if (count) {
            count->drawn += r->is_drawn;
            count->refused += !r->is_drawn;
            count->tries += r->tries;
        }
        if (r->is_drawn)
            check_room(&all, r);
        if (c->error.status == CUP_MEMORY)
            status = CUP_MEMORY;
        if (options->done)
            options->done(i + 1, user);
    }
    cup__ahead_free(ahead);
    cup__random_plan_free(all.plan);
    cup_context_free(all.scratch);
    if (status != CUP_OK)
        return cup__fail(&c->error, status, "no memory for random calls");
    return CUP_OK;
}

cup_status cup__random_repeat(cup_context *c, const char *text, const cup__random_options *options,
                              cup__report report, void *user)
{
    cup__random_options given = *options;
    given.no_shrinking = true;
    random_check all = {.c = c, .options = &given, .report = report, .user = user,
                        .failures = cup__memory_failures()};
    all.threads = cup__threads();
    room *r = cup__calloc(1, sizeof *r);
    cup_status status = r ? cup__drawn_parse(&c->error, text, &r->drawn) : CUP_MEMORY;
    if (status == CUP_OK) {
        for (int i = 0; i < options->row_count; i++)
            if (!strcmp(options->rows[i]->name, r->drawn.row->name))
                r->drawn.row = options->rows[i];
        r->reference.c = cup__reference_context(NULL, all.threads);
        cup__drawn_text(&r->drawn, &r->text);
        cup__drawn_shapes_text(&r->drawn, &r->shapes);
        if (!r->reference.c) {
            status = cup__fail(&c->error, CUP_MEMORY, "no context for the specification");
        } else {
            if (given.begins)
                given.begins(cup__text_string(&r->text), user);
            compute(&r->reference, &r->drawn, 0, 0);
            check_room(&all, r);
            status = c->error.status == CUP_MEMORY ? CUP_MEMORY : CUP_OK;
        }
    }
    if (r)
        drop(r);
    cup__free(r);
    return status;
}
