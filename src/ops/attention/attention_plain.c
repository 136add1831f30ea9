/* The host side of attention_plain.cu. */
#include "ops/attention/attention_launch.h"

#define PLAIN_WARPS 4
#define PLAIN_CHUNK 256

/* A warp for each of the rows and part of its features, or a thread for each. */
static cup_status simple(const cup__attention *a, const char *entry, int64_t rows, bool by_threads,
                         const attention_call *argument)
{
    int64_t each = by_threads ? PLAIN_WARPS * 32 : PLAIN_WARPS;
    cup__attention_kernel l = {
        .file = "attention_plain.cu",
        .entry = entry,
        .knobs = {{"CUP_T", a->dtype}, {"DROPOUT", a->dropout > 0}},
        .knob_count = 2,
        .grid = {.x = (rows + each - 1) / each,
                 .y = by_threads ? 1 : (a->size + PLAIN_CHUNK - 1) / PLAIN_CHUNK,
                 .threads = PLAIN_WARPS * 32},
    };
    return cup__attention_launch(a, &l, argument);
}

cup_status cup__attention_simple(cup__attention *a)
{
    attention_call argument = cup__attention_call_of(a);
    return simple(a, "attention_plain_fwd", a->batch * a->heads * a->queries, false, &argument);
}

cup_status cup__attention_simple_grad(cup__attention *a)
{
    int64_t rows = a->batch * a->heads * a->queries;
    cup_tensor *given = a->lse, *lse = cup__contiguous(a->c, given);
    cup_tensor *delta = lse ? cup__attention_numbers(a, lse->dtype, rows) : NULL;
    cup_status status = a->c->error.status;
    if (delta) {
        attention_call argument = cup__attention_call_of(a);
        argument.lse = lse->data;
        argument.delta = delta->data;
        status = simple(a, "attention_plain_delta", rows, true, &argument);
        if (status == CUP_OK)
            status = simple(a, "attention_plain_queries", rows, false, &argument);
        if (status == CUP_OK)
            status = simple(a, "attention_plain_keys", a->batch * a->kv_heads * a->keys, false,
                            &argument);
    }
    if (lse != given)
        cup_tensor_free(lse);
    cup_tensor_free(delta);
    return status;
}
