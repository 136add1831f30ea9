/* The host side of attention_flash.cu and attention_flash_grad.cu. */
#include "ops/attention/attention_launch.h"

static const char *refuses(const cup__call *call)
{
    cup__attention a = cup__attention_of(call);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    if (facts->major * 10 + facts->minor < (a.dtype == CUP_F16 ? 75 : 80))
        return "the GPU's tensor cores do not take this dtype";
    if (a.size % 8 || a.size > 256)
        return "the size of a head must be a multiple of 8 up to 256";
    if (a.scale < 0)
        return "the scale is negative";
    if (!cup__attention_is_any(&a))
        return "there are no queries or no keys";
    return a.queries > CUP__POSITIONS_MOST || a.keys > CUP__POSITIONS_MOST
               ? "there are over 2^30 positions"
               : NULL;
}

const char *cup__attention_flash_refuses(const cup__call *call)
{
    cup_dtype dtype = cup__attention_of(call).dtype;
    return dtype == CUP_F16 || dtype == CUP_BF16 ? refuses(call) : "it takes f16 and bf16";
}

const char *cup__attention_flash_f32_refuses(const cup__call *call)
{
    return cup__attention_of(call).dtype == CUP_F32 ? refuses(call) : "it takes f32";
}

int64_t cup__attention_padded(const cup__attention *a)
{
    int64_t step = a->size > 128 ? 32 : 16;
    return (a->size + step - 1) / step * step;
}

bool cup__attention_splits(const cup__attention *a)
{
    return a->dtype == CUP_F32 && a->c->precision == CUP__HIGHEST;
}

int64_t cup__attention_pitch(const cup__attention *a)
{
    return cup__attention_padded(a) * cup_dtype_size(a->dtype) + 16;
}

/* The knobs of a walk over tiles: the first of the list whose tiles fit in shared memory. */
typedef struct plan {
    int warps, step, stages;
} plan;

static int64_t bytes_of(const plan *p, const cup__attention *a, bool backward)
{
    int64_t rows = (backward ? 2 : 1) * 16 * p->warps + 2 * p->stages * p->step;
    int numbers = cup__attention_splits(a) ? 3 : 2;
    return rows * cup__attention_pitch(a) + (backward ? p->stages * p->step * numbers * 4 : 0);
}

static plan choose(const cup__attention *a, int64_t size, bool backward)
{
    static const plan forward_plans[] = {
        {4, 64, 2}, {4, 32, 2}, {4, 32, 1}, {4, 16, 2}, {2, 16, 1}};
    static const plan backward_plans[] = {
        {4, 64, 2}, {4, 32, 2}, {4, 16, 2}, {2, 16, 2}, {2, 16, 1}};
    const plan *plans = backward ? backward_plans : forward_plans;
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(a->c->device));
    /* Wider heads leave fewer registers for scores; for narrow ones the compiler spills. */
    int most = size == 64 || (size > 64 && size <= 128 && !backward) ? 64 : 32;
    if (a->dtype == CUP_F32)
        most = size <= 64 ? 32 : 16;
    else if (backward && size > 128)
        most = 16;
    for (int i = 0; i < 5; i++)
        if (plans[i].step <= most && bytes_of(&plans[i], a, backward) <= facts->shared_per_block)
            return plans[i];
    return plans[4];
}

static cup__attention_kernel kernel_of(const char *file, const char *entry, const cup__attention *a,
                                       int64_t size, const plan *p, const char *step)
{
    return (cup__attention_kernel){
        .file = file,
        .entry = entry,
        .knobs = {{"CUP_T", a->dtype},
                  {"SIZE", size},
                  {"WARPS", p->warps},
                  {step, p->step},
                  {"STAGES", p->stages},
                  {"CAUSAL", a->mask.causal},
                  {"DROPOUT", a->dropout > 0},
                  {"SPLIT", cup__attention_splits(a)}},
        .knob_count = 8,
        .grid.threads = p->warps * 32,
    };
}

static cup_status flash(cup__attention *a)
{
    attention_call argument = cup__attention_call_of(a);
    int64_t size = cup__attention_padded(a);
    plan p = choose(a, size, false);
    cup__attention_kernel l = kernel_of("attention_flash.cu", "attention_fwd", a, size, &p, "KEYS");
    l.grid.x = cup__attention_tiles(a->queries, 16 * p.warps) * a->batch * a->heads;
    l.grid.shared = (int)bytes_of(&p, a, false);
    return cup__attention_launch(a, &l, &argument);
}

cup_status cup__attention_flash(cup__attention *a)
{
    return cup__attention_with_copies(a, flash);
}

static cup_status flash_grad(cup__attention *a)
{
    int64_t rows = a->batch * a->heads * a->queries, size = cup__attention_padded(a);
    cup_tensor *space = cup__attention_numbers(a, CUP_F32, 3 * rows);
    if (!space)
        return a->c->error.status;
    attention_call argument = cup__attention_call_of(a);
    argument.delta = space->data;
    argument.lse_log2 = (float *)space->data + rows;
    argument.inverse = (float *)space->data + 2 * rows;
    plan p = choose(a, size, true);
    cup__attention_kernel l =
        kernel_of("attention_flash_grad.cu", "attention_grad_queries", a, size, &p, "STEP");
    l.grid.x = cup__attention_tiles(a->queries, 16 * p.warps) * a->batch * a->heads;
    l.grid.shared = (int)bytes_of(&p, a, true);
    cup_status status = cup__attention_launch(a, &l, &argument);
    l.entry = "attention_grad_keys";
    l.grid.x = cup__attention_tiles(a->keys, 16 * p.warps) * a->batch * a->kv_heads;
    l.grid.y = size > 128 ? 2 : 1;
    if (status == CUP_OK)
        status = cup__attention_launch(a, &l, &argument);
    cup_tensor_free(space);
    return status;
}

cup_status cup__attention_flash_grad(cup__attention *a)
{
    return cup__attention_with_copies(a, flash_grad);
}
