#include "prof/check_backward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "grad/tape.h"
#include "dispatch/attributes.h"
#include "prof/ahead.h"
#include "prof/attributes.h"
#include "prof/check.h"
#include "prof/compare.h"
#include "prof/draw.h"
#include "prof/gradient_bound.h"
#include "prof/kernels.h"
#include "prof/random.h"
#include "prof/reference.h"

#define MOST_INPUTS 64
#define NOISES 3
#define KEPT NOISES /* in as many runs behind these nothing moves but what is stored */
#define SHARE 4.0
#define SEED 20261122u
#define MOST_ELEMENTS 2e5
#define MOST_WORK 2e7
#define LARGE_ONE_OF 32 /* drawn calls with sizes of models */
#define LARGE_ELEMENTS 2e6
#define LARGE_WORK 4e7

/* A sample's call or a drawn one. */
typedef struct backward_call {
    const cup__row *row;
    const cup__sample *sample; /* NULL: it was drawn */
    cup_dtype dtype;
} backward_call;

typedef struct outcome {
    int in_count;
    bool differentiable;
    cup_tensor *in[MOST_INPUTS], *back[CUP__MAX_OUT];
} outcome;

typedef struct room {
    cup_context *c; /* a CPU context */
    backward_call call;
    cup__drawn drawn;
    bool there; /* there is such a call */
    outcome want;
    double moved[MOST_INPUTS];     /* in epsilons of its size */
    cup_tensor *kept[MOST_INPUTS]; /* by how much for what is stored; NULL: nothing is */
} room;

typedef struct checker {
    const cup__gpu_facts *facts; /* NULL: on a CPU */
    cup__precision precision;
    backward_call *calls; /* the samples' */
    int64_t samples;
    const cup__row *const *rows;
    int row_count, threads;
    uint64_t seed;
} checker;

static const void *attributes_of(const room *r)
{
    const void *drawn = r->call.row->attributes_size ? r->drawn.attributes : NULL;
    return r->call.sample ? r->call.sample->attributes : drawn;
}

static int make_inputs(const room *r, cup_context *c, cup_dtype hold, cup_tensor **in)
{
    if (!r->call.sample)
        return cup__drawn_inputs(&r->drawn, c, hold, in, MOST_INPUTS);
    return cup__sample_inputs_filled(c, r->call.row, r->call.sample, r->call.dtype, hold,
                                     CUP__ROW_MAJOR, SEED, (cup__filling){.alike = true}, in,
                                     MOST_INPUTS);
}

/* Floats that a gradient can be asked of. */
static bool is_real(const cup_tensor *t)
{
    return t && cup__dtype_is_float(t->dtype) && cup_dtype_size(t->dtype) > 1;
}

/* Moves the inputs as rounding would. */
static void move_inputs(const room *r, cup_context *c, outcome *o, int noise)
{
    double scale = cup__epsilon(r->call.dtype);
    for (int i = 0; i < o->in_count; i++) {
        if (!is_real(o->in[i]))
            continue;
        cup__shape shape = cup__shape_of(o->in[i]);
        cup_tensor *by = cup__gradient_numbers(
            c, &shape, CUP_F64, CUP_F64, SEED + (uint64_t)(noise * 100 + i), 1, scale);
        o->in[i] = cup_mul(c, o->in[i], by);
    }
}

static cup__gradient_call described(const room *r, const outcome *o)
{
    return (cup__gradient_call){.row = r->call.row,
                                .attributes = attributes_of(r),
                                .dtype = r->call.dtype,
                                .in_count = o->in_count,
                                .in = o->in,
                                .back = o->back};
}

static cup_status move_kept(const room *r, cup_context *c, const outcome *o,
                            cup_tensor *const *out, int draw)
{
    cup_tensor *own[MOST_INPUTS];
    cup__gradient_call g = described(r, o);
    if (make_inputs(r, c, r->call.dtype, own) < 0)
        return c->error.status;
    return cup__gradient_move_kept(c, &g, own, out, draw);
}

/* Forward and backward, with random gradients of the results: a loss of which nothing but these
 * flows back. */
static cup_status run(const room *r, cup_context *c, cup_dtype hold, int noise, outcome *o)
{
    cup_tensor *in[MOST_INPUTS], *out[CUP__MAX_OUT] = {NULL}, *loss = NULL;
    cup_seed(c, SEED);
    *o = (outcome){0};
    int count = o->in_count = make_inputs(r, c, hold, o->in);
    if (count < 0)
        return c->error.status;
    /* The specification of an op that rounds on the way is otherwise run in the dtype itself. */
    for (int i = 0; i < count && hold == CUP_F64 && r->call.row->op->rounds; i++)
        o->in[i] = is_real(o->in[i]) ? cup_cast(c, o->in[i], CUP_F64) : o->in[i];
    if (noise && noise <= KEPT)
        move_inputs(r, c, o, noise);
    for (int i = 0; i < count; i++)
        if (is_real(o->in[i]))
            cup_require_grad(o->in[i]);
    memcpy(in, o->in, sizeof in);
    if (cup__overwrites(r->call.row->op, attributes_of(r)) && in[0])
        in[0] = cup_scale(c, in[0], 1);
    cup_random_step(c, 1);
    if (!cup__op_call(c, r->call.row, in, count, attributes_of(r), out))
        return c->error.status;
    if (noise > KEPT)
        CUP_TRY(move_kept(r, c, o, out, noise - KEPT));
    for (int i = 0; i < r->call.row->visible; i++) {
        if (!is_real(out[i]) || !cup__leads_to_parameter(c, out[i]))
            continue;
        cup__shape shape = cup__shape_of(out[i]);
        /* Numbers that every dtype holds, whatever that of the result is. */
        cup_tensor *d = cup__gradient_numbers(c, &shape, CUP_F8E4M3, out[i]->dtype,
                                              SEED + 77 + (uint64_t)i, 0, 2);
        if (noise && noise <= KEPT) /* what flows back moves as well */
            d = cup_mul(c, d,
                        cup__gradient_numbers(c, &shape, CUP_F64, CUP_F64,
                                              SEED + (uint64_t)(noise * 1000 + i), 1,
                                              cup__epsilon(r->call.dtype)));
        o->back[i] = d;
        cup_tensor *part = cup_sum(c, cup_mul(c, out[i], d), NULL, 0, false);
        if (part && part->dtype != CUP_F32 && hold != CUP_F64)
            part = cup_cast(c, part, CUP_F32); /* results may be of several dtypes */
        loss = loss ? cup_add(c, loss, part) : part;
    }
    o->differentiable = loss != NULL;
    return loss ? cup_backward(c, loss) : c->error.status;
}

/* Runs it once more with noise, and notes how far gradients moved. */
static cup_status expect_moved(room *r, int noise)
{
    double unit = cup__epsilon(CUP_F64) / cup__epsilon(r->call.dtype);
    outcome other;
    char note[200];
    cup_scope_open(r->c);
    cup_status status = run(r, r->c, CUP_F64, noise, &other);
    for (int i = 0; i < other.in_count && status == CUP_OK; i++) {
        cup_tensor *a = r->want.in[i] ? cup_grad(r->want.in[i]) : NULL;
        cup_tensor *b = other.in[i] ? cup_grad(other.in[i]) : NULL;
        if (a && b && noise > KEPT)
            cup__gradient_apart(a, b, r->kept[i]);
        else if (a && b)
            r->moved[i] = fmax(r->moved[i], unit * cup__compare(a, b, 0, note, sizeof note));
    }
    cup__scope_pop(r->c);
    return status;
}

static void expect_kept(room *r)
{
    for (int i = 0; i < r->want.in_count; i++) {
        cup_tensor *a = r->want.in[i] ? cup_grad(r->want.in[i]) : NULL;
        cup__shape shape = a ? cup__shape_of(a) : (cup__shape){0};
        r->kept[i] = a ? cup__full(r->c, &shape, 0) : NULL;
    }
    for (int draw = 1; draw <= NOISES && r->c->error.status == CUP_OK; draw++)
        expect_moved(r, KEPT + draw);
}

static void expect(room *r)
{
    memset(r->moved, 0, sizeof r->moved);
    memset(r->kept, 0, sizeof r->kept);
    cup_status status = run(r, r->c, CUP_F64, 0, &r->want);
    if (status != CUP_OK || !r->want.differentiable)
        return;
    cup__gradient_call g = described(r, &r->want);
    double growth = cup__gradient_growth(r->c, &g);
    for (int noise = 1; noise <= NOISES && status == CUP_OK; noise++)
        status = expect_moved(r, noise);
    if (r->call.row->op->saves >> 16)
        expect_kept(r);
    for (int i = 0; i < MOST_INPUTS; i++)
        r->moved[i] *= growth;
}

/* A sample's call, or one that is drawn; `scratch` is a CPU context. */
static bool choose(const checker *k, int64_t number, cup_context *scratch, room *r)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    int tries;
    if (number < k->samples) {
        r->call = k->calls[number];
        return true;
    }
    int64_t drawn = number - k->samples;
    const cup__row *row = k->rows[drawn % k->row_count];
    cup__draw_limits limits = {.elements = MOST_ELEMENTS, .work = MOST_WORK, .tame = true,
                               .dtypes = 1u << dtypes[drawn / k->row_count % 3]};
    if ((drawn % k->row_count + drawn / k->row_count) % LARGE_ONE_OF == LARGE_ONE_OF - 1) {
        limits.elements = LARGE_ELEMENTS;
        limits.least = LARGE_ELEMENTS / 8;
        limits.work = LARGE_WORK;
    }
    bool there = cup__draw(scratch, row, &limits, k->seed, drawn, &r->drawn, &tries);
    cup__error_clear(&scratch->error);
    r->call = (backward_call){row, NULL, r->drawn.dtype};
    return there;
}

/* The kernels of a call, from a run on a dry GPU. */
static void prepare(int64_t number, void *user)
{
    const checker *k = user;
    cup_context *scratch = cup__context_cpu(k->threads);
    room *r = cup__calloc(1, sizeof *r);
    if (r && cup_error(scratch) == CUP_OK && choose(k, number, scratch, r)) {
        cup_context *c = cup__kernels_note(k->facts, k->precision);
        outcome ignored;
        if (c)
            run(r, c, r->call.dtype, 0, &ignored);
        cup__kernels_get_noted(c);
    }
    cup__free(r);
    cup_context_free(scratch);
}

/* A context without tensors or an error. */
static bool refresh(room *r, int threads)
{
    r->c = cup__reference_context(r->c, threads);
    return cup_error(r->c) == CUP_OK;
}

static void make(int64_t number, void *user_room, void *user)
{
    const checker *k = user;
    room *r = user_room;
    r->there = refresh(r, k->threads) && choose(k, number, r->c, r);
    if (r->there)
        expect(r);
}

static void drop(void *user_room)
{
    cup_context_free(((room *)user_room)->c);
}

/* What of each element's error is that of what is stored. */
static double *forgiven_of(const room *r, int i, int64_t count)
{
    double *by = cup__calloc((size_t)count, sizeof *by);
    const double *kept = r->kept[i] ? r->kept[i]->data : NULL;
    double usual = kept ? cup__gradient_usual(r->kept[i]) / 2 : 0;
    for (int64_t k = 0; by && kept && k < count; k++)
        by[k] = SHARE * fmax(kept[k], usual);
    return by;
}

static void hold(const room *r, const outcome *got, int i, cup__backward_result *result,
                 char note[300])
{
    cup__gradient_call g = described(r, &r->want);
    cup_tensor host, *a = r->want.in[i] ? cup_grad(r->want.in[i]) : NULL;
    cup_tensor *b = got->in[i] ? cup_grad(got->in[i]) : NULL;
    char where[200] = "it is not there";
    void *memory = NULL;
    double error = INFINITY;
    double tolerance = cup__gradient_roundings(&g, i, SHARE) + SHARE * r->moved[i];
    if ((!a && !b) || !is_real(got->in[i]))
        return;
    /* What is f32 beside a call in 16 bits is no better than what flows back to it. */
    double finer = b ? fmin(1, cup__epsilon(b->dtype) / cup__epsilon(r->call.dtype)) : 1;
    if (a && b && cup__on_host(b, &host, &memory)) {
        *where = 0;
        double *forgiven = forgiven_of(r, i, a->count), least = cup__smallest(b->dtype);
        for (int pass = 0; forgiven && pass < 2 && error > tolerance; pass++) {
            if (pass == 1) /* which may take long */
                cup__gradient_cancelling(&g, i, forgiven);
            error = finer * cup__compare_beyond(a, &host, forgiven, least, where, sizeof where);
        }
        cup__free(forgiven);
    }
    cup__free(memory);
    if (result->tolerance > 0 && !(error / tolerance > result->error / result->tolerance))
        return;
    result->error = error;
    result->tolerance = tolerance;
    snprintf(note, 300, "gradient of input %d: %s", i + 1, where);
}

/* Runs it on the device; false where in double the op refuses it or has no gradient. */
static bool judge(cup_context *c, const room *r, cup__backward_result *result, char note[300])
{
    outcome got;
    if (!r->there || r->c->error.status != CUP_OK || !r->want.differentiable)
        return false;
    *result = (cup__backward_result){
        .op = r->call.row->name, .dtype = r->call.dtype, .note = note};
    *note = 0;
    cup_scope_open(c);
    cup_status status = run(r, c, r->call.dtype, 0, &got);
    if (status == CUP_OK)
        status = c->device->calls->synchronize(c->device);
    for (int i = 0; i < got.in_count && status == CUP_OK; i++)
        hold(r, &got, i, result, note);
    result->passed = status == CUP_OK && result->error <= result->tolerance;
    if (status != CUP_OK) {
        result->error = INFINITY;
        snprintf(note, 300, "%.299s", c->error.text);
    }
    cup_tape_clear(c);
    cup__scope_pop(c);
    if (c->error.status != CUP_MEMORY)
        cup__error_clear(&c->error);
    return true;
}

typedef struct retry {
    cup_context *c; /* the device's */
    room room;
    cup__backward_result result;
    char note[300];
} retry;

static bool fails(const cup__drawn *d, void *user)
{
    retry *t = user;
    room *r = &t->room;
    r->there = refresh(r, cup__threads());
    r->drawn = *d;
    r->call = (backward_call){d->row, NULL, d->dtype};
    if (r->there)
        expect(r);
    return judge(t->c, r, &t->result, t->note) && !t->result.passed;
}

/* The smallest call that still fails, and what is said of it. */
static void shrink(cup_context *c, room *r, cup__backward_result *result, char note[300])
{
    retry *t = cup__calloc(1, sizeof *t);
    cup_context *scratch = cup__context_cpu(cup__threads());
    if (t && cup_error(scratch) == CUP_OK) {
        t->c = c;
        cup__shrink(&r->drawn, scratch, fails, t);
        if (fails(&r->drawn, t)) {
            *result = t->result;
            result->note = note;
            memcpy(note, t->note, sizeof t->note);
        }
        drop(&t->room);
    }
    cup__free(t);
    cup_context_free(scratch);
}

/* Where memory was short since `failures`, nothing is known; the context then has that error. */
static void conclude(cup_context *c, room *r, long failures, cup__backward_report report,
                     void *user)
{
    char note[300] = "";
    cup__text text = {0};
    cup__backward_result result;
    bool judged = judge(c, r, &result, note);
    if ((!judged || !result.passed) && cup__memory_failures() != failures)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for gradients");
    if (!judged || c->error.status == CUP_MEMORY)
        return;
    if (!result.passed && !r->call.sample && !cup__device_is_lost(c->device))
        shrink(c, r, &result, note);
    result.drawn = !r->call.sample;
    if (r->call.sample) {
        cup__text_add(&text, "%s %s %s ", r->call.row->name, cup_dtype_name(r->call.dtype),
                      r->call.sample->shapes);
        cup__attributes_text(r->call.row, r->call.sample->attributes, &text);
    } else {
        cup__drawn_text(&r->drawn, &text);
    }
    result.call = cup__text_string(&text);
    report(&result, user);
    cup__text_free(&text);
}

static int64_t list_samples(const cup__row *row, uint32_t wanted, backward_call *to)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    int64_t count = 0;
    for (const cup__sample *s = row->op->samples; s && s->shapes; s++)
        for (int d = 0; d < 3; d++)
            if ((cup__check_dtypes(row) & wanted) >> dtypes[d] & 1) {
                if (to)
                    to[count] = (backward_call){row, s, dtypes[d]};
                count++;
            }
    return count;
}

/* Of the samples those dtypes, as bits. */
static cup_status check(cup_context *c, const cup__row *const *rows, int row_count,
                        uint32_t dtypes, uint64_t seed, int64_t count,
                        cup__backward_report report, void *user)
{
    const cup__row *some[CUP__OP_COUNT] = {0};
    checker k = {.rows = some, .threads = cup__threads(), .seed = seed, .precision = c->precision};
    if (c->device->is_cuda)
        k.facts = cup__cuda_facts(cup__cuda_of(c->device));
    for (int i = 0; i < row_count; i++)
        if (rows[i]->op->gradient && rows[i]->is_public) {
            some[k.row_count++] = rows[i];
            k.samples += list_samples(rows[i], dtypes, NULL);
        }
    long failures = cup__memory_failures();
    k.calls = cup__calloc((size_t)k.samples + 1, sizeof *k.calls);
    for (int64_t i = 0, at = 0; k.calls && i < k.row_count; i++)
        at += list_samples(some[i], dtypes, k.calls + at);
    int64_t all = k.samples + (k.row_count ? count : 0);
    bool dry = cup__device_is_dry(c->device);
    cup__ahead *ahead = k.calls ? cup__ahead_new(all, sizeof(room), k.facts ? prepare : NULL,
                                                 dry ? cup__ahead_nothing : make, drop, &k)
                                : NULL;
    for (int64_t i = 0; ahead && i < all && !cup__device_is_lost(c->device) &&
                        c->error.status != CUP_MEMORY; i++) {
        room *r = cup__ahead_get(ahead, i);
        if (!dry)
            conclude(c, r, failures, report, user);
    }
    cup__ahead_free(ahead);
    cup__free(k.calls);
    return ahead ? c->error.status
                 : cup__fail(&c->error, CUP_MEMORY, "out of host memory for gradients");
}

cup_status cup__check_backward(cup_context *c, const cup__row *const *rows, int row_count,
                               uint64_t seed, int64_t count, cup__backward_report report,
                               void *user)
{
    return check(c, rows, row_count, CUP__DTYPES_FLOAT, seed, count, report, user);
}

cup_status cup__check_backward_call(cup_context *c, const char *text, cup__backward_report report,
                                    void *user)
{
    long failures = cup__memory_failures();
    room *r = cup__calloc(1, sizeof *r);
    if (!r)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for gradients");
    cup_status status = cup__drawn_parse(&c->error, text, &r->drawn);
    if (status == CUP_OK && (!r->drawn.row->op->gradient || !r->drawn.row->is_public))
        status = cup__fail(&c->error, CUP_ARGUMENT, "%s has no gradient", r->drawn.row->name);
    if (status == CUP_OK) {
        r->call = (backward_call){r->drawn.row, NULL, r->drawn.dtype};
        r->there = refresh(r, cup__threads());
        if (r->there)
            expect(r);
        conclude(c, r, failures, report, user);
        status = c->error.status == CUP_MEMORY ? CUP_MEMORY : CUP_OK;
    }
    drop(r);
    cup__free(r);
    return status;
}

cup_status cup__check_backward_samples(cup_context *c, const cup__row *const *rows, int row_count,
                                       cup__backward_report report, void *user)
{
    return check(c, rows, row_count, CUP__DTYPE(F32), 1, 0, report, user);
}
