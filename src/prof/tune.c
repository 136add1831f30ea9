/* Measures the ways to do a call at given shapes, and joins files of what was measured. */
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "dispatch/contest.h"
#include "dispatch/memo.h"
#include "dispatch/tuned.h"
#include "dispatch/tuning.h"
#include "prof/attributes.h"
#include "prof/check.h"
#include "prof/kernels.h"
#include "tensor/context.h"

#define MOST_INPUTS 1024
#define SEED 99u

typedef struct tuner {
    cup_context *c;
    const cup__row *row;
    bool channels_last;
    void (*report)(const cup_tune_result *result, void *user);
    void *user;
} tuner;

static cup_status tune_call(const tuner *t, cup__call *call, const char *shapes, cup_dtype dtype)
{
    cup_tune_result result = {.op = t->row->name, .shapes = shapes, .dtype = dtype};
    double start = cup__seconds_now();
    cup__text text = {0};
    cup__way way;
    CUP_TRY(cup__call_allocate(call));
    CUP_TRY(cup__tune_call(call, &way, &result.us, &result.ways));
    if (!way.impl)
        return CUP_OK;
    cup__way_text(&way, &text);
    result.way = cup__text_string(&text);
    result.seconds = cup__seconds_now() - start;
    t->report(&result, t->user);
    cup__text_free(&text);
    return CUP_OK;
}

/* Once as inference calls it, and once more where training wants hidden results. */
static cup_status tune_sample(const tuner *t, const cup__sample *sample, cup_dtype dtype)
{
    cup_tensor *in[MOST_INPUTS];
    int count = cup__sample_inputs_filled(t->c, t->row, sample, dtype, dtype, CUP__ROW_MAJOR, SEED,
                                          (cup__filling){.channels_last = t->channels_last}, in,
                                          MOST_INPUTS);
    if (count < 0)
        return t->c->error.status;
    for (int saving = 0; saving <= (t->row->results_count > t->row->visible); saving++) {
        cup__call call;
        CUP_TRY(cup__call_begin(&call, t->c, t->row, in, count, sample->attributes));
        call.saving = saving;
        call.out_count = saving ? t->row->results_count : t->row->visible;
        CUP_TRY(tune_call(t, &call, sample->shapes, dtype));
    }
    return CUP_OK;
}

static cup_status tune_samples(const tuner *t, const cup__sample *samples, cup_dtype dtype)
{
    cup_status status = CUP_OK;
    for (const cup__sample *s = samples; s && s->shapes && status == CUP_OK; s++) {
        cup__kernels_for_bench(t->c, t->row, (cup__sample[]){*s, {0}}, dtype, false);
        cup_scope_open(t->c);
        status = tune_sample(t, s, dtype);
        cup__scope_pop(t->c);
    }
    return status;
}

static cup_status tune_given(const tuner *t, const cup_bench_options *options)
{
    size_t size = t->row->attributes_size;
    char *attributes = cup__calloc(1, size + 1);
    if (!attributes)
        return cup__fail(&t->c->error, CUP_MEMORY, "out of host memory for tuning");
    const cup__sample given[] = {{options->shapes, attributes}, {0}};
    cup_status status = CUP_OK;
    if (options->attributes)
        status = cup__attributes_parse(&t->c->error, t->row, options->attributes, attributes);
    if (status == CUP_OK)
        status = tune_samples(t, given, options->dtype);
    cup__free(attributes);
    return status;
}

cup_status cup_tune(cup_context *c, const char *op, const cup_bench_options *options,
                    void (*report)(const cup_tune_result *result, void *user), void *user)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    tuner t = {.c = c, .row = cup__row_find(op), .report = report, .user = user};
    if (!t.row)
        return cup__fail(&c->error, CUP_ARGUMENT, "there is no op \"%.60s\"; cupola ops lists them",
                         op ? op : "");
    if (!report || !options)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "tune: it needs options and a function to report to");
    cup_bench_options own;
    CUP_TRY(cup__options_take(&c->error, "tune", &own, sizeof own, options));
    if (!c->device->is_cuda)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "tuning is for GPUs; on a CPU the first implementation that takes a call "
                         "does it");
    t.channels_last = own.channels_last;
    const cup__sample *samples = t.row->op->bench ? t.row->op->bench : t.row->op->samples;
    return own.shapes ? tune_given(&t, &own) : tune_samples(&t, samples, own.dtype);
}

cup_status cup_tuning(cup_context *c, bool on)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    c->tuning = on;
    cup__memo_forget(c);
    return CUP_OK;
}

cup_status cup_tuning_merge(cup_context *c, const char *const *from, int count, const char *to)
{
    if (!c || c->error.status != CUP_OK)
        return cup_error(c);
    if (!from || !to)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "tuning: name the files to merge, and one to write");
    cup__tuning all = {0};
    cup_status status = CUP_OK;
    for (int i = 0; i < count && status == CUP_OK; i++)
        status = cup__tuning_read(&c->error, from[i], true, &all);
    if (status == CUP_OK)
        status = cup__tuning_save(&c->error, &all, to);
    cup__tuning_free(&all);
    return status;
}
