/* Times ops on random data, with the caches flushed before each run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "prof/accuracy.h"
#include "prof/attributes.h"
#include "prof/cost.h"
#include "prof/kernels.h"
#include "tensor/context.h"

#define MOST_INPUTS 1024
#define MOST_RUNS 400
#define LEAST_RUNS 5
#define FLUSH_BYTES ((size_t)256 << 20)
#define COPY_BYTES ((size_t)1 << 30)
#define COPY_RUNS 15
#define SEED 99u
#define TF32_OVER_F32 (400.0 / 60)

typedef struct stopwatch {
    cup_context *c;
    cup__timer *timer; /* of the GPU, NULL on a CPU */
    double start;
    void *flush;
} stopwatch;

static cup_status stopwatch_open(stopwatch *w, cup_context *c, size_t flush_bytes)
{
    *w = (stopwatch){.c = c};
    CUP_TRY(c->device->calls->allocate(c->device, flush_bytes, "cache flush", &w->flush));
    return c->device->is_cuda ? cup__timer_new(cup__cuda_of(c->device), &w->timer) : CUP_OK;
}

static void stopwatch_close(stopwatch *w)
{
    if (w->flush)
        w->c->device->calls->release(w->c->device, w->flush);
    if (w->timer)
        cup__timer_free(w->timer);
}

static cup_status stopwatch_start(stopwatch *w)
{
    if (w->timer)
        return cup__timer_start(w->timer);
    w->start = cup__clock();
    return CUP_OK;
}

static cup_status stopwatch_stop(stopwatch *w, double *us)
{
    if (w->timer) {
        double ms = 0;
        CUP_TRY(cup__timer_stop(w->timer, &ms));
        *us = ms * 1e3;
        return CUP_OK;
    }
    *us = (cup__clock() - w->start) * 1e6;
    return CUP_OK;
}

/* Dense tensor-core and FMA rates by compute capability, from the vendor's data sheets scaled to
 * what large products reach under the power limit. */
static void known_flops(cup_context *c, cup_ceiling *ceiling)
{
    if (!c->device->is_cuda)
        return;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(c->device));
    if (facts->major != 9)
        return;
    ceiling->flops[CUP_F32] = 60e12;
    ceiling->flops[CUP_F64] = 60e12;
    ceiling->flops[CUP_F16] = ceiling->flops[CUP_BF16] = 795e12;
    ceiling->flops[CUP_I8] = ceiling->flops[CUP_F8E4M3] = ceiling->flops[CUP_F8E5M2] = 1450e12;
}

typedef struct copy_job {
    char *to;
    const char *from;
} copy_job;

static void copy_part(int64_t begin, int64_t end, void *user)
{
    copy_job *job = user;
    memcpy(job->to + begin, job->from + begin, (size_t)(end - begin));
}

static cup_status copy_once(cup_context *c, void *to, void *from, size_t bytes)
{
    if (c->device->is_cuda)
        return c->device->calls->copy(c->device, to, from, bytes);
    cup__parallel_for((int64_t)bytes, 1 << 20, copy_part, &(copy_job){to, from});
    return CUP_OK;
}

cup_status cup_ceiling_measure(cup_context *c, cup_ceiling *ceiling)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    if (!ceiling)
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no place for what is measured");
    memset(ceiling, 0, sizeof *ceiling);
    known_flops(c, ceiling);
    size_t bytes = c->device->is_cuda ? COPY_BYTES : COPY_BYTES / 4;
    stopwatch w;
    void *to = NULL;
    cup_status status = stopwatch_open(&w, c, bytes);
    if (status == CUP_OK)
        status = c->device->calls->allocate(c->device, bytes, "copy", &to);
    if (status == CUP_OK)
        status = c->device->calls->fill(c->device, w.flush, 0x55, bytes);
    double best = INFINITY;
    for (int i = 0; i < 8 && status == CUP_OK; i++) {
        double us = 0;
        status = stopwatch_start(&w);
        if (status == CUP_OK)
            status = copy_once(c, to, w.flush, bytes);
        if (status == CUP_OK)
            status = stopwatch_stop(&w, &us);
        best = fmin(best, us);
    }
    ceiling->copy_bytes = 2.0 * (double)bytes / (best * 1e-6);
    if (to)
        c->device->calls->release(c->device, to);
    stopwatch_close(&w);
    return status;
}

void cup__call_cost(const cup__call *call, double *bytes, double *flops)
{
    if (call->op->cost) {
        call->op->cost(call, bytes, flops);
        return;
    }
    *bytes = 0;
    for (int i = 0; i < call->in_count; i++)
        if (call->in[i])
            *bytes += (double)(call->in[i]->count * cup_dtype_size(call->in[i]->dtype)) *
                      (cup__call_changes(call, i) ? 2 : 1);
    *flops = 0;
    /* Of results that nobody wants there is none. */
    for (int i = 0; i < call->out_count; i++)
        if (call->out[i])
            *bytes += (double)(call->out[i]->count * cup_dtype_size(call->out[i]->dtype));
    if (call->out_count && call->out[0])
        *flops = (double)call->out[0]->count;
}

typedef struct bench {
    cup_context *c;
    const cup__row *row;
    const char *only_impl;
    bool only_chosen;
    double seconds;
    const cup_ceiling *ceiling;
    void (*report)(const cup_bench_result *result, void *user);
    void *user;
    stopwatch watch;
    cup__call call;
    cup__accuracy *accuracy; /* NULL: not known, or not wanted */
    cup__text attributes;
    cup_bench_result result;
} bench;

static cup_status time_once(bench *b, const cup__impl *impl, double *us)
{
    cup__device *device = b->c->device;
    CUP_TRY(device->calls->fill(device, b->watch.flush, 0, FLUSH_BYTES));
    CUP_TRY(stopwatch_start(&b->watch));
    CUP_TRY(cup__call_run(&b->call, impl));
    return stopwatch_stop(&b->watch, us);
}

static cup_status time_runs(bench *b, const cup__impl *impl)
{
    double us[MOST_RUNS], spent = 0;
    int runs = 0;
    for (int i = 0; i < 2; i++) /* the first compiles */
        CUP_TRY(time_once(b, impl, &us[0]));
    /* What takes longer than all runs may is not run again. */
    bool endless = us[0] > b->seconds * 1e6;
    if (endless)
        runs = 1;
    else
        CUP_TRY(time_once(b, impl, &us[0]));
    while (!endless && runs < MOST_RUNS && (runs < LEAST_RUNS || spent < b->seconds * 1e6)) {
        CUP_TRY(time_once(b, impl, &us[runs]));
        spent += us[runs++] + 100;
    }
    b->result.runs = runs;
    b->result.median_us = cup__median(us, runs);
    b->result.low_us = us[runs / 4];
    b->result.high_us = us[runs * 3 / 4];
    return CUP_OK;
}

/* Whether what is multiplied may be rounded, which cup_precision allows for f32. */
static bool rounds_products(const bench *b)
{
    return b->result.dtype == CUP_F32 && b->c->precision != CUP__HIGHEST;
}

static void set_floor(bench *b)
{
    cup_bench_result *r = &b->result;
    cup__call_cost(&b->call, &r->bytes, &r->flops);
    r->floor_us = r->bytes / b->ceiling->copy_bytes * 1e6;
    double rate = b->ceiling->flops[r->dtype];
    if (rounds_products(b))
        rate *= TF32_OVER_F32;
    if (rate > 0)
        r->floor_us = fmax(r->floor_us, r->flops / rate * 1e6);
}

/* The median time of a plain copy that moves the call's bytes, half of them read; NAN where there
 * is no memory for it. */
static double time_copy(bench *b, size_t bytes)
{
    cup_context *c = b->c;
    cup__device *device = c->device;
    void *from = NULL, *to = NULL;
    double us[COPY_RUNS] = {0}, warm;
    cup_status status = device->calls->allocate(device, bytes, "copy", &from);
    if (status == CUP_OK)
        status = device->calls->allocate(device, bytes, "copy", &to);
    if (status == CUP_OK)
        status = device->calls->fill(device, from, 0x55, bytes);
    for (int i = -2; i < COPY_RUNS && status == CUP_OK; i++) {
        status = device->calls->fill(device, b->watch.flush, 0, FLUSH_BYTES);
        if (status == CUP_OK)
            status = stopwatch_start(&b->watch);
        if (status == CUP_OK)
            status = copy_once(c, to, from, bytes);
        if (status == CUP_OK)
            status = stopwatch_stop(&b->watch, i < 0 ? &warm : &us[i]);
    }
    if (to)
        device->calls->release(device, to);
    if (from)
        device->calls->release(device, from);
    if (status != CUP_OK) {
        cup__error_clear(&c->error);
        return NAN;
    }
    return cup__median(us, COPY_RUNS);
}

/* Once for all implementations of a call. */
static void set_copy(bench *b)
{
    set_floor(b);
    double bytes = b->result.bytes, least = bytes / b->ceiling->copy_bytes * 1e6;
    bool by_bytes = b->result.floor_us <= 1.001 * least;
    b->result.copy_us = by_bytes && bytes >= 2 ? time_copy(b, (size_t)(bytes / 2)) : NAN;
}

static void set_error(bench *b, const cup__impl *impl)
{
    b->result.error = NAN;
    b->result.error_shapes = "";
    if (!b->accuracy)
        return;
    b->result.error = cup__accuracy_of(b->accuracy, b->c, impl);
    b->result.error_shapes = cup__accuracy_shapes(b->accuracy);
}

static cup_status bench_impls(bench *b)
{
    const cup__impl *chosen = cup__call_choose(&b->call);
    set_copy(b);
    cup__place place = b->c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    for (const cup__impl *impl = b->row->op->impls; impl && impl->name; impl++) {
        if (impl->place != place || (b->only_chosen && impl != chosen) ||
            (b->only_impl && strcmp(b->only_impl, impl->name)) ||
            (impl->refuses && impl->refuses(&b->call)))
            continue;
        b->result.impl = impl->name;
        b->result.chosen = impl == chosen;
        CUP_TRY(time_runs(b, impl));
        set_floor(b);
        set_error(b, impl);
        b->report(&b->result, b->user);
    }
    return CUP_OK;
}

static cup_status bench_sample(bench *b, const cup__sample *sample,
                               const cup_bench_options *options)
{
    cup_tensor *in[MOST_INPUTS];
    cup_dtype dtype = options->dtype;
    int64_t indices = options->indices ? options->indices : options->shapes ? 0
                                                          : b->row->op->bench_indices;
    int count = cup__sample_inputs_filled(b->c, b->row, sample, dtype, dtype, CUP__ROW_MAJOR, SEED,
                                          (cup__filling){.indices = indices,
                                                         .reversed = options->transposed,
                                                         .channels_last = options->channels_last},
                                          in, MOST_INPUTS);
    if (count < 0)
        return b->c->error.status;
    CUP_TRY(cup__call_begin(&b->call, b->c, b->row, in, count, sample->attributes));
    b->call.saving = cup__overwrites(b->row->op, sample->attributes);
    if (b->call.saving)
        b->call.out_count = b->row->results_count;
    CUP_TRY(cup__call_allocate(&b->call));
    cup__text_free(&b->attributes);
    cup__attributes_text(b->row, sample->attributes, &b->attributes);
    if (options->transposed)
        cup__text_add(&b->attributes, "%stransposed=1", b->attributes.length ? " " : "");
    if (options->channels_last)
        cup__text_add(&b->attributes, "%schannels_last=1", b->attributes.length ? " " : "");
    if (dtype == CUP_F32 && b->c->precision != CUP__HIGHEST)
        cup__text_add(&b->attributes, "%sprecision=%s", b->attributes.length ? " " : "",
                      cup__precision_names[b->c->precision]);
    b->result = (cup_bench_result){.op = b->row->name, .shapes = sample->shapes, .dtype = dtype,
                                   .attributes = cup__text_string(&b->attributes)};
    if (!options->no_error)
        b->accuracy = cup__accuracy_new(&b->call, sample, dtype);
    return bench_impls(b);
}

/* What the options ask for, in place of the op's own calls. */
static cup_status given_sample(bench *b, const cup_bench_options *options, const cup__sample *own,
                               cup__sample *out, void **attributes)
{
    size_t size = b->row->attributes_size;
    *out = (cup__sample){options->shapes, own && !options->bare ? own->attributes : NULL};
    if (!options->attributes && !options->bare)
        return CUP_OK;
    *attributes = cup__calloc(1, size + 1);
    if (!*attributes)
        return cup__fail(&b->c->error, CUP_MEMORY, "out of host memory for a benchmark");
    if (out->attributes)
        memcpy(*attributes, out->attributes, size);
    out->attributes = *attributes;
    if (!options->attributes)
        return CUP_OK;
    return cup__attributes_parse(&b->c->error, b->row, options->attributes, *attributes);
}

static cup_status bench_samples(bench *b, const cup_bench_options *options)
{
    const cup__sample *own = b->row->op->bench ? b->row->op->bench : b->row->op->samples;
    cup__sample given[2] = {{0}};
    void *attributes = NULL;
    cup_status status = CUP_OK;
    if (options->shapes)
        status = given_sample(b, options, own, given, &attributes);
    const cup__sample *samples = options->shapes ? given : own;
    if (status == CUP_OK)
        cup__kernels_for_bench(b->c, b->row, samples, options->dtype, options->chosen);
    for (const cup__sample *s = samples; s && s->shapes; s++) {
        if (status != CUP_OK)
            break;
        cup_scope_open(b->c);
        status = bench_sample(b, s, options);
        cup__accuracy_free(b->accuracy);
        b->accuracy = NULL;
        cup__scope_pop(b->c);
    }
    cup__text_free(&b->attributes);
    cup__free(attributes);
    return status;
}

cup_status cup_bench(cup_context *c, const char *op, const cup_ceiling *ceiling,
                     const cup_bench_options *options,
                     void (*report)(const cup_bench_result *result, void *user), void *user)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    cup_bench_options own;
    CUP_TRY(cup__options_take(&c->error, "bench", &own, sizeof own, options));
    options = &own;
    bench b = {
        .c = c, .row = cup__row_find(op), .ceiling = ceiling, .report = report, .user = user};
    if (!b.row)
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no op \"%.60s\"; cupola ops lists them",
                         op ? op : "");
    if (!report || !ceiling)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "bench: it needs a ceiling to compare with and a function to report to");
    if (b.row->op->view)
        return CUP_OK;
    b.only_impl = options->impl;
    b.only_chosen = options->chosen;
    b.seconds = options->seconds > 0 ? options->seconds : 0.2;
    cup_status status = stopwatch_open(&b.watch, c, FLUSH_BYTES);
    if (status == CUP_OK)
        status = bench_samples(&b, options);
    stopwatch_close(&b.watch);
    return status;
}
