#include "prof/kernels.h"

#include "cuda/dry.h"
#include "prof/check.h"

#define MOST_INPUTS 64

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

static cup_status run_sample(cup_context *c, const cup__row *row, const cup__sample *sample,
                             cup_dtype dtype, cup__layout layout)
{
    cup_tensor *in[MOST_INPUTS];
    cup_scope_open(c);
    int count = cup__sample_inputs(c, row, sample, dtype, dtype, layout, 0, in, MOST_INPUTS);
    cup_status status = c->error.status;
    if (count >= 0 && !row->op->view)
        status = run_impls(c, row, sample, in, count);
    cup__scope_pop(c);
    /* A call that this architecture has no implementation for needs no kernel. */
    if (status == CUP_UNSUPPORTED) {
        cup__error_clear(&c->error);
        status = CUP_OK;
    }
    return status;
}

static cup_status run_samples(cup_context *c, const cup__row *row, const cup__sample *samples)
{
    uint32_t dtypes = cup__check_dtypes(row);
    for (const cup__sample *s = samples; s && s->shapes; s++)
        for (int dtype = 0; dtype < 32; dtype++)
            for (int layout = CUP__ROW_MAJOR; layout <= CUP__TRANSPOSED; layout++)
                if (dtypes >> dtype & 1)
                    CUP_TRY(run_sample(c, row, s, (cup_dtype)dtype, (cup__layout)layout));
    return CUP_OK;
}

cup_status cup__kernels_build(cup__error *error, const char *arch, int threads,
                              cup__kernel_progress progress, void *user, int *count)
{
    *count = 0;
    cup_context *c = cup__context_dry(arch);
    cup_status status = cup_error(c);
    for (const cup__row *row = cup__rows; row->name && status == CUP_OK; row++) {
        status = run_samples(c, row, row->op->samples);
        if (status == CUP_OK)
            status = run_samples(c, row, row->op->bench);
    }
    if (status != CUP_OK) {
        cup__fail(error, status, "%s", cup_error_text(c));
    } else {
        const cup__kernel_request *requests =
            cup__dry_requests(cup__cuda_of(c->device), count);
        status = cup__kernels_prepare(error, arch, requests, *count, threads, progress, user);
    }
    cup_context_free(c);
    return status;
}
