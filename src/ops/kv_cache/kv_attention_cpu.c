/* kv_attention on the CPU in single precision: the tokens of all heads that share keys meet blocks
 * of these, each read once, with a running maximum and sum. One head of keys is the work of one
 * thread from end to end, so that results do not depend on how many there are. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "base/wide_math.h"
#include "ops/attention/attention_score.h"
#include "ops/kv_cache/kv_cache.h"
#include "tensor/floats.h"

#define LANES 16
#define KEYS 64 /* a block */

typedef struct job {
    cup__kv_attention a;
    int64_t padded, value_padded; /* sizes, up to a multiple of LANES */
    atomic_bool failed;
} job;

/* Floats of one head of keys: a block of keys and of values, queries, sums and scores. */
typedef struct room {
    float *all, *keys, *values, *q, *part, *out, *most, *sum;
    float score[KEYS];
} room;

static int64_t padded(int64_t size)
{
    return (size + LANES - 1) / LANES * LANES;
}

CUP__WIDE static void score_keys(const float *q, const float *keys, int64_t size, int64_t count,
                                 float scale, float *score)
{
    for (int64_t k = 0; k < count; k++, keys += size) {
        float part[LANES] = {0}, sum = 0;
        for (int64_t d = 0; d < size; d += LANES)
            for (int i = 0; i < LANES; i++)
                part[i] += q[d + i] * keys[d + i];
        for (int i = 0; i < LANES; i++)
            sum += part[i];
        score[k] = sum * scale;
    }
}

CUP__WIDE static void cap_scores(float *score, int64_t count, float cap)
{
    for (int64_t k = 0; k < count; k++)
        score[k] = cap * cup__tanh_f32(score[k] / cap);
}

/* Adds the values, by the weights that the scores become, to a row of sums: those of a block first,
 * so that sums over many keys stay exact. */
CUP__WIDE static void add_values(float *score, const float *values, int64_t size, int64_t count,
                                 float *part, float *out, float *most, float *sum)
{
    float top = *most, weights = 0;
    for (int64_t k = 0; k < count; k++)
        top = score[k] > top ? score[k] : top;
    float base = top == -INFINITY ? 0 : top, fade = cup__exp_f32(*most - base);
    *most = top;
    memset(part, 0, (size_t)size * sizeof *part);
    for (int64_t k = 0; k < count; k++) {
        float p = cup__exp_f32(score[k] - base);
        weights += p;
        for (int64_t d = 0; d < size; d++)
            part[d] += p * values[k * size + d];
    }
    *sum = *sum * fade + weights;
    for (int64_t d = 0; d < size; d++)
        out[d] = out[d] * fade + part[d];
}

static void load_row(float *to, const cup_tensor *t, int64_t at, float scale)
{
    int64_t size = t->shape[3];
    cup__floats_read(to, t, at, t->stride[3], size);
    for (int64_t d = 0; scale != 1 && d < size; d++)
        to[d] *= scale;
}

static void load_block(const job *j, room *r, int64_t b, int64_t head, int64_t first, int64_t count)
{
    const cup__kv *kv = &j->a.kv;
    for (int64_t k = 0; k < count; k++) {
        int64_t at = first + k;
        load_row(r->keys + k * j->padded, kv->keys, cup__kv_at(kv, kv->keys, b, head, at),
                 (float)cup__kv_scale(kv, kv->key_scales, b, head, at));
        load_row(r->values + k * j->value_padded, kv->values,
                 cup__kv_at(kv, kv->values, b, head, at),
                 (float)cup__kv_scale(kv, kv->value_scales, b, head, at));
    }
}

/* Where a row, a token of one of the heads that share keys, lies in a tensor. */
static int64_t place_of(const cup__kv_attention *a, const cup_tensor *t, int64_t b, int64_t kv_head,
                        int64_t row)
{
    int64_t head = kv_head * (a->heads / a->kv.heads) + row / a->kv.tokens;
    return b * t->stride[0] + head * t->stride[1] + row % a->kv.tokens * t->stride[2];
}

static void begin_rows(const job *j, room *r, int64_t b, int64_t kv_head, int64_t rows)
{
    const cup__kv_attention *a = &j->a;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = place_of(a, a->q, b, kv_head, i);
        for (int64_t d = 0; d < a->kv.size; d++)
            r->q[i * j->padded + d] = (float)cup__load(a->q, at + d * a->q->stride[3]);
        r->most[i] = -INFINITY;
        r->sum[i] = 0;
    }
    memset(r->out, 0, (size_t)(rows * j->value_padded) * sizeof *r->out);
}

/* A row against the block of keys from `first` on. */
static void meet(const job *j, room *r, int64_t row, int64_t end, int64_t first, int64_t count)
{
    const cup__kv_attention *a = &j->a;
    int64_t from = end > a->window ? end - a->window : 0;
    int64_t skipped = from > first ? from - first : 0;
    count = end - first < count ? end - first : count;
    if (skipped >= count)
        return;
    score_keys(r->q + row * j->padded, r->keys + skipped * j->padded, j->padded, count - skipped,
               (float)a->scale, r->score);
    if (a->soft_cap > 0)
        cap_scores(r->score, count - skipped, (float)a->soft_cap);
    add_values(r->score, r->values + skipped * j->value_padded, j->value_padded, count - skipped,
               r->part, r->out + row * j->value_padded, &r->most[row], &r->sum[row]);
}

static void finish_rows(const job *j, room *r, int64_t b, int64_t kv_head, int64_t rows)
{
    const cup__kv_attention *a = &j->a;
    for (int64_t i = 0; i < rows; i++) {
        int64_t head = kv_head * (a->heads / a->kv.heads) + i / a->kv.tokens;
        double most = r->most[i], sum = r->sum[i], fade = 1;
        if (a->sinks && sum != 0)
            fade = cup__attention_sink(cup__attention_of_head(a->sinks, head), &most, &sum);
        int64_t at = place_of(a, a->o, b, kv_head, i);
        for (int64_t d = 0; d < a->kv.value_size; d++)
            cup__store(a->o, at + d * a->o->stride[3],
                       sum == 0 ? 0 : r->out[i * j->value_padded + d] * fade / sum);
    }
}

static void attend(const job *j, room *r, int64_t b, int64_t kv_head)
{
    const cup__kv_attention *a = &j->a;
    int64_t length = cup__kv_length(&a->kv, b), count = cup__kv_count(&a->kv, b);
    int64_t rows = a->heads / a->kv.heads * a->kv.tokens, end = count ? length + count : 0;
    int64_t low = length + 1 > a->window ? length + 1 - a->window : 0;
    begin_rows(j, r, b, kv_head, rows);
    for (int64_t first = low; first < end; first += KEYS) {
        int64_t keys = end - first < KEYS ? end - first : KEYS;
        load_block(j, r, b, kv_head, first, keys);
        for (int64_t i = 0; i < rows; i++)
            if (i % a->kv.tokens < count)
                meet(j, r, i, length + i % a->kv.tokens + 1, first, keys);
    }
    finish_rows(j, r, b, kv_head, rows);
}

static void attend_some(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__kv_attention *a = &j->a;
    int64_t rows = a->heads / a->kv.heads * a->kv.tokens;
    int64_t each = j->padded + j->value_padded;
    room r = {.all = cup__calloc((size_t)((KEYS + rows) * each + j->value_padded + 2 * rows),
                                  sizeof *r.all)};
    if (!r.all) {
        atomic_store(&j->failed, true);
        return;
    }
    r.keys = r.all;
    r.values = r.keys + KEYS * j->padded;
    r.q = r.values + KEYS * j->value_padded;
    r.part = r.q + rows * j->padded;
    r.out = r.part + j->value_padded;
    r.most = r.out + rows * j->value_padded;
    r.sum = r.most + rows;
    for (int64_t i = begin; i < end; i++)
        attend(j, &r, i / a->kv.heads, i % a->kv.heads);
    cup__free(r.all);
}

cup_status cup__kv_attention_cpu(cup__call *call)
{
    job j = {.a = cup__kv_attention_of(call)};
    j.padded = padded(j.a.kv.size);
    j.value_padded = padded(j.a.kv.value_size);
    CUP_TRY(cup__kv_fits(call, &j.a.kv));
    cup__parallel_for(j.a.kv.batch * j.a.kv.heads, 1, attend_some, &j);
    return atomic_load(&j.failed) ? cup__call_fail(call, CUP_MEMORY, "out of host memory") : CUP_OK;
}
