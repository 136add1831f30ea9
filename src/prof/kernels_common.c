/* Which kernels are worth shipping. */
#include "cuda/dry.h"
#include "prof/check.h"
#include "prof/kernels.h"
#include "train/trainer.h"

#define MOST_INPUTS 1024
#define GPT2_VOCABULARY 50257
#define CHARACTERS 65

/* The call as a caller makes it and, with hidden results, as training does. */
static cup_status run_taken(cup_context *c, const cup__row *row, const cup__sample *sample,
                            cup_tensor **in, int count)
{
    for (int saving = 0; saving < 2; saving++) {
        cup__call call;
        CUP_TRY(cup__call_begin(&call, c, row, in, count, sample->attributes));
        call.saving = saving == 1;
        call.out_count = saving ? row->results_count : row->visible;
        CUP_TRY(cup__call_allocate(&call));
        const cup__impl *taken = cup__call_choose(&call);
        if (taken)
            CUP_TRY(cup__call_run(&call, taken));
    }
    return CUP_OK;
}

static void run_row(cup_context *c, const cup__row *row)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    const cup__sample *samples = row->op->bench ? row->op->bench : row->op->samples;
    cup_tensor *in[MOST_INPUTS];
    for (const cup__sample *s = samples; s && s->shapes && !row->op->view; s++)
        for (int i = 0; i < 3; i++) {
            if (!(cup__check_dtypes(row) >> dtypes[i] & 1))
                continue;
            cup_scope_open(c);
            int count = cup__sample_inputs(c, row, s, dtypes[i], dtypes[i], CUP__ROW_MAJOR, 0, in,
                                           MOST_INPUTS);
            if (count >= 0)
                run_taken(c, row, s, in, count);
            cup__scope_pop(c);
            /* What this card does not take needs no kernel. */
            cup__error_clear(&c->error);
        }
}

static void run_presets(cup_context *c)
{
    for (const cup_preset *p = cup_presets(); p->name; p++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            cup_training a = p->training;
            a.dtype = bf16 ? CUP_BF16 : CUP_F32;
            if (!a.model.vocabulary)
                a.model.vocabulary = a.model.context < 1024 ? CHARACTERS : GPT2_VOCABULARY;
            if (cup__training_check(c, &a) == CUP_OK)
                cup__training_kernels(c, &a);
            cup__error_clear(&c->error);
        }
}

/* One call, by the implementation that is taken or by all that accept. */
static cup_status run_benched(cup_context *c, const cup__row *row, const cup__sample *sample,
                              cup_dtype dtype, bool only_taken)
{
    cup_tensor *in[MOST_INPUTS];
    int count = cup__sample_inputs(c, row, sample, dtype, dtype, CUP__ROW_MAJOR, 0, in,
                                   MOST_INPUTS);
    if (count < 0)
        return c->error.status;
    for (const cup__impl *impl = row->op->impls; impl && impl->name; impl++) {
        cup__call call;
        CUP_TRY(cup__call_begin(&call, c, row, in, count, sample->attributes));
        call.saving = cup__overwrites(row->op, sample->attributes);
        if (call.saving)
            call.out_count = row->results_count;
        CUP_TRY(cup__call_allocate(&call));
        if (impl->place == CUP__CUDA && (!only_taken || impl == cup__call_choose(&call)) &&
            !(impl->refuses && impl->refuses(&call)))
            CUP_TRY(cup__call_run(&call, impl));
    }
    return CUP_OK;
}

void cup__kernels_for_bench(cup_context *user, const cup__row *row, const cup__sample *samples,
                            cup_dtype dtype, bool only_taken)
{
    if (!user->device->is_cuda)
        return;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(user->device));
    cup_context *c = cup__context_dry(facts->arch);
    cup__error ignored = {0};
    int count;
    if (cup_error(c) == CUP_OK) {
        cup__cuda *dry = cup__cuda_of(c->device);
        cup__dry_like(dry, facts);
        c->precision = user->precision;
        for (const cup__sample *s = samples; s && s->shapes; s++) {
            cup_scope_open(c);
            run_benched(c, row, s, dtype, only_taken);
            cup__scope_pop(c);
            cup__error_clear(&c->error);
        }
        const cup__kernel_request *requests = cup__dry_requests(dry, &count);
        cup__kernels_prepare(&ignored, facts->arch, requests, count, 0, NULL, NULL);
    }
    cup_context_free(c);
}

cup_status cup__kernels_build_common(cup__error *error, const char *arch, int threads,
                                     cup__kernel_progress progress, void *user, int *count)
{
    *count = 0;
    cup_context *c = cup__context_dry(arch);
    cup_status status = cup_error(c);
    if (status == CUP_OK) {
        for (const cup__row *row = cup__rows; row->name; row++)
            run_row(c, row);
        run_presets(c);
        const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), count);
        status = cup__kernels_prepare(error, arch, requests, *count, threads, progress, user);
    } else {
        cup__fail(error, status, "%s", cup_error_text(c));
    }
    cup_context_free(c);
    return status;
}
