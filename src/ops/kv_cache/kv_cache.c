#include "ops/kv_cache/kv_cache.h"

/* The inputs behind keys and values, from the lengths on. */
enum { LENGTHS, TABLE, KEY_SCALES, VALUE_SCALES, COUNTS };

static cup_tensor *input(const cup__call *call, int i)
{
    return i < call->in_count ? call->in[i] : NULL;
}

cup__kv cup__kv_of(const cup__call *call, int first, int rest, int64_t batch, int64_t tokens)
{
    cup__kv kv = {.keys = call->in[first],
                  .values = call->in[first + 1],
                  .lengths = call->in[rest + LENGTHS],
                  .table = input(call, rest + TABLE),
                  .key_scales = input(call, rest + KEY_SCALES),
                  .value_scales = input(call, rest + VALUE_SCALES),
                  .counts = input(call, rest + COUNTS),
                  .batch = batch,
                  .tokens = tokens};
    kv.pages = kv.keys->shape[0];
    kv.heads = kv.keys->shape[1];
    kv.page = kv.room = kv.keys->shape[2];
    kv.size = kv.keys->shape[3];
    kv.value_size = kv.values->shape[3];
    if (kv.table)
        kv.room = kv.page * kv.table->shape[1];
    return kv;
}

static bool is_code(cup_dtype dtype)
{
    return dtype == CUP_I8 || dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2;
}

bool cup__kv_is_codes(const cup__kv *kv)
{
    return is_code(kv->keys->dtype);
}

static cup_status check_numbers(cup__call *call, const cup_tensor *t, const char *name,
                                int64_t batch)
{
    if (t->dtype != CUP_I32 && t->dtype != CUP_I64)
        return cup__call_fail(call, CUP_DTYPE, "%s must be in i32 or i64; cast them", name);
    if (t->ndim > 1 || (t->count != 1 && t->count != batch))
        return cup__call_fail(call, CUP_SHAPE,
                              "%s must be one number, or one for each of the %lld sequences", name,
                              (long long)batch);
    return CUP_OK;
}

static cup_status check_table(cup__call *call, const cup__kv *kv)
{
    const cup_tensor *t = kv->table;
    if (!t && kv->pages != kv->batch)
        return cup__call_fail(call, CUP_SHAPE,
                              "there is no table, so keys must be kept for each of the %lld "
                              "sequences, not for %lld",
                              (long long)kv->batch, (long long)kv->pages);
    if (t && t->dtype != CUP_I32)
        return cup__call_fail(call, CUP_DTYPE, "the table must be in i32; cast it");
    if (t && (t->ndim != 2 || t->shape[0] != kv->batch))
        return cup__call_fail(call, CUP_SHAPE,
                              "the table must be [%lld,N], the pages of each sequence",
                              (long long)kv->batch);
    if (kv->page > CUP__KV_POSITIONS || (t && t->shape[1] > CUP__KV_POSITIONS) ||
        kv->room > CUP__KV_POSITIONS)
        return cup__call_fail(call, CUP_SHAPE, "a sequence has over 2^30 positions");
    return CUP_OK;
}

static cup_status check_scales(cup__call *call, const cup__kv *kv, int like)
{
    cup_dtype dtype = call->in[like]->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    const cup_tensor *all[] = {kv->key_scales, kv->value_scales};
    if (!all[0] != !all[1])
        return cup__call_fail(call, CUP_ARGUMENT,
                              "keys and values have scales together, or neither has any");
    for (int i = 0; i < 2 && all[i]; i++)
        if (all[i]->dtype != dtype || all[i]->ndim != 3 || all[i]->shape[0] != kv->pages ||
            all[i]->shape[1] != kv->heads || all[i]->shape[2] != kv->page)
            return cup__call_fail(call, CUP_SHAPE, "scales must be [%lld,%lld,%lld] in %s",
                                  (long long)kv->pages, (long long)kv->heads,
                                  (long long)kv->page, cup_dtype_name(dtype));
    return CUP_OK;
}

cup_status cup__kv_check(cup__call *call, int first, int rest, int like)
{
    int64_t batch = call->in[like]->shape[0], tokens = call->in[like]->shape[2];
    const cup_tensor *k = call->in[first], *v = call->in[first + 1];
    CUP_TRY(cup__need_ndim(call, first, 4, 4));
    CUP_TRY(cup__need_ndim(call, first + 1, 4, 4));
    CUP_TRY(cup__need_same_dtype(call, first, first + 1));
    for (int i = 0; i < 3; i++)
        if (k->shape[i] != v->shape[i])
            return cup__call_fail(call, CUP_SHAPE, "kept keys and values must have the same "
                                                   "shape, but for the size of a head");
    if (k->shape[3] < 1 || v->shape[3] < 1)
        return cup__call_fail(call, CUP_SHAPE, "heads must have a size of at least 1");
    CUP_TRY(check_numbers(call, call->in[rest + LENGTHS], "lengths", batch));
    const cup_tensor *table = input(call, rest + TABLE), *counts = input(call, rest + COUNTS);
    if (counts) {
        CUP_TRY(check_numbers(call, counts, "counts", batch));
        CUP_TRY(cup__need_same_dtype(call, rest + LENGTHS, rest + COUNTS));
    }
    if (table && table->ndim != 2)
        return cup__call_fail(call, CUP_SHAPE, "the table must be [%lld,N], the pages of each "
                                               "sequence",
                              (long long)batch);
    cup__kv kv = cup__kv_of(call, first, rest, batch, tokens);
    CUP_TRY(check_table(call, &kv));
    return check_scales(call, &kv, like);
}

static int64_t number(const cup_tensor *t, int64_t i)
{
    int64_t at = t->count > 1 ? cup__offset_of(t, i) : 0;
    return t->dtype == CUP_I64 ? ((const int64_t *)t->data)[at] : ((const int32_t *)t->data)[at];
}

int64_t cup__kv_length(const cup__kv *kv, int64_t sequence)
{
    return number(kv->lengths, sequence);
}

int64_t cup__kv_count(const cup__kv *kv, int64_t sequence)
{
    return kv->counts ? number(kv->counts, sequence) : kv->tokens;
}

static int64_t page_of(const cup__kv *kv, int64_t sequence, int64_t i)
{
    const cup_tensor *t = kv->table;
    return t ? ((const int32_t *)t->data)[sequence * t->stride[0] + i * t->stride[1]] : sequence;
}

int64_t cup__kv_at(const cup__kv *kv, const cup_tensor *t, int64_t sequence, int64_t head,
                   int64_t position)
{
    int64_t page = page_of(kv, sequence, position / kv->page);
    return page * t->stride[0] + head * t->stride[1] + position % kv->page * t->stride[2];
}

double cup__kv_scale(const cup__kv *kv, const cup_tensor *scales, int64_t sequence, int64_t head,
                     int64_t position)
{
    return scales ? cup__load(scales, cup__kv_at(kv, scales, sequence, head, position)) : 1;
}

cup_status cup__kv_fits(cup__call *call, const cup__kv *kv)
{
    for (int64_t b = 0; b < kv->batch; b++) {
        int64_t length = cup__kv_length(kv, b), count = cup__kv_count(kv, b);
        if (count < 0 || count > kv->tokens)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "%lld of the %lld new tokens of sequence %lld cannot be there",
                                  (long long)count, (long long)kv->tokens, (long long)b);
        if (length < 0 || length > kv->room - count)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "sequence %lld has room for %lld tokens, not for %lld more "
                                  "behind %lld",
                                  (long long)b, (long long)kv->room, (long long)count,
                                  (long long)length);
        for (int64_t i = 0; kv->table && i * kv->page < length + count; i++)
            if (page_of(kv, b, i) < 0 || page_of(kv, b, i) >= kv->pages)
                return cup__call_fail(call, CUP_ARGUMENT,
                                      "the table has page %lld as number %lld of sequence %lld, "
                                      "and there are %lld pages",
                                      (long long)page_of(kv, b, i), (long long)i, (long long)b,
                                      (long long)kv->pages);
    }
    return CUP_OK;
}

static kv_numbers numbers_of(const cup_tensor *t)
{
    if (!t)
        return (kv_numbers){0};
    return (kv_numbers){t->data, t->count > 1 ? t->stride[0] : 0};
}

kv_heads cup__kv_heads(const cup_tensor *t)
{
    if (!t)
        return (kv_heads){0};
    return (kv_heads){t->data, t->stride[0], t->stride[1], t->stride[2],
                      t->ndim > 3 ? t->stride[3] : 0};
}

void cup__kv_fill(kv_call *to, const cup__kv *kv)
{
    *to = (kv_call){.keys = cup__kv_heads(kv->keys),
                    .values = cup__kv_heads(kv->values),
                    .key_scales = cup__kv_heads(kv->key_scales),
                    .value_scales = cup__kv_heads(kv->value_scales),
                    .lengths = numbers_of(kv->lengths),
                    .counts = numbers_of(kv->counts),
                    .table = kv->table ? kv->table->data : NULL,
                    .table_batch = kv->table ? kv->table->stride[0] : 0,
                    .table_step = kv->table ? kv->table->stride[1] : 0,
                    .batch = (int)kv->batch,
                    .kv_heads = (int)kv->heads,
                    .tokens = (int)kv->tokens,
                    .size = (int)kv->size,
                    .value_size = (int)kv->value_size,
                    .pages = (int)kv->pages,
                    .page = (int)kv->page,
                    .room = (int)kv->room,
                    .shares = 1};
}

int cup__kv_knobs(const cup__kv *kv, cup_dtype dtype, cup__knob *out)
{
    int count = 0;
    out[count++] = (cup__knob){"CUP_T", dtype};
    out[count++] = (cup__knob){"STORED", kv->keys->dtype};
    out[count++] = (cup__knob){"CUP_ID", kv->lengths->dtype};
    if (kv->table)
        out[count++] = (cup__knob){"PAGED", 1};
    if (kv->key_scales)
        out[count++] = (cup__knob){"SCALED", 1};
    return count;
}
