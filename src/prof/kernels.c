#include "prof/kernels.h"

#include <string.h>

#include "cuda/dry.h"
#include "prof/check.h"
#include "prof/check_call.h"

#define MOST_INPUTS 1024

/* Every implementation that takes the sample, as the check calls it and, with hidden results, as
 * training does. */
static cup_status run_impls(cup_context *c, const cup__row *row, const cup__sample *sample,
                            cup_tensor **in, int count)
{
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++)
        for (int saving = 0; saving < 2 && impl->place == CUP__CUDA; saving++) {
            cup__call call;
            CUP_TRY(cup__call_begin(&call, c, row, in, count, sample->attributes));
            if (impl->refuses && impl->refuses(&call))
                continue;
            call.saving = saving;
            call.out_count = saving ? row->results_count : row->visible;
            CUP_TRY(cup__call_allocate(&call));
            CUP_TRY(cup__call_run(&call, impl));
        }
    return CUP_OK;
}

/* A call that this architecture has no implementation for needs no kernel; other failures are
 * kept for the end, so that one does not hide the rest. */
static void run_sample(cup_context *c, const cup__row *row, const cup__sample *sample,
                       cup_dtype dtype, cup__layout layout, cup__error *first)
{
    cup_tensor *in[MOST_INPUTS];
    cup_scope_open(c);
    int count = cup__sample_inputs(c, row, sample, dtype, dtype, layout, 0, in, MOST_INPUTS);
    if (count >= 0 && !row->op->view)
        run_impls(c, row, sample, in, count);
    cup__scope_pop(c);
    if (c->error.status != CUP_OK && c->error.status != CUP_UNSUPPORTED)
        cup__fail(first, c->error.status, "%s", c->error.text);
    cup__error_clear(&c->error);
}

static void run_samples(cup_context *c, const cup__row *row, const cup__sample *samples,
                        cup__error *first)
{
    uint32_t dtypes = cup__check_dtypes(row);
    for (const cup__sample *s = samples; s && s->shapes; s++)
        for (int dtype = 0; dtype < 32; dtype++)
            for (cup__layout layout = 0; layout < CUP__LAYOUTS; layout++)
                if (dtypes >> dtype & 1 && cup__check_has_layout(row, s, layout))
                    run_sample(c, row, s, (cup_dtype)dtype, layout, first);
}

cup_status cup__kernels_build(cup__error *error, const char *arch, const char *op, int threads,
                              cup__kernel_progress progress, void *user, int *count)
{
    *count = 0;
    cup_context *c = cup__context_dry(arch);
    if (cup_error(c) != CUP_OK) {
        cup__fail(error, cup_error(c), "%s", cup_error_text(c));
        cup_context_free(c);
        return error->status;
    }
    for (const cup__row *row = cup__rows; row->name; row++) {
        if (op && strcmp(op, row->name))
            continue;
        run_samples(c, row, row->op->samples, error);
        run_samples(c, row, row->op->bench, error);
    }
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), count);
    cup_status status =
        cup__kernels_prepare(error, arch, requests, *count, threads, progress, user);
    cup_context_free(c);
    return error->status != CUP_OK ? error->status : status;
}

cup_context *cup__kernels_note(const cup__gpu_facts *facts, cup__precision precision)
{
    cup_context *c = cup__context_dry(facts->arch);
    if (c && cup_error(c) == CUP_OK) {
        cup__dry_like(cup__cuda_of(c->device), facts);
        c->precision = precision;
        return c;
    }
    cup_context_free(c);
    return NULL;
}

void cup__kernels_get_noted(cup_context *c)
{
    int count;
    if (!c)
        return;
    const cup__cuda *dry = cup__cuda_of(c->device);
    const cup__kernel_request *requests = cup__dry_requests(dry, &count);
    cup__kernels_ahead(cup__cuda_facts(dry)->arch, requests, count);
    cup_context_free(c);
}

void cup__kernels_run_all(cup_context *c, const cup__row *row, cup_tensor **in, int count,
                          const void *attributes, int out_offset)
{
    cup__check_call k = {.c = c, .row = row, .attributes = attributes, .out_offset = out_offset};
    if (count < 0 || count > CUP__CHECK_INPUTS)
        return;
    memcpy(k.in, in, (size_t)count * sizeof *in);
    k.in_count = count;
    cup__error_clear(&c->error);
    cup__check_launches(&k);
}

void cup__kernels_for_check(const cup__gpu_facts *facts, cup__precision precision,
                            const cup__row *row, const cup__sample *sample, cup_dtype dtype)
{
    cup_context *c = cup__kernels_note(facts, precision);
    for (cup__layout layout = 0; c && layout < CUP__LAYOUTS; layout++) {
        cup_tensor *in[MOST_INPUTS];
        if (!cup__check_has_layout(row, sample, layout))
            continue;
        cup_scope_open(c);
        int count = cup__sample_inputs(c, row, sample, dtype, dtype, layout, 0, in,
                                       MOST_INPUTS);
        cup__kernels_run_all(c, row, in, count, sample->attributes, layout == CUP__PADDED);
        cup__scope_pop(c);
    }
    cup__kernels_get_noted(c);
}
