/* What transformer_read means, in plain loops. */
#include <math.h>

#include "base/memory.h"
#include "ops/rope/rope.h"
#include "ops/transformer/transformer_read.h"

/* Numbers on the way through the block. */
typedef struct work {
    const cup__transformer_read_attributes *a;
    cup_tensor **in;
    int64_t width, heads, kv_heads, size, hidden, length, position;
    double *x, *y, *qkv, *attended, *up, *score;
} work;

static double at(const cup_tensor *t, int64_t i)
{
    return t ? cup__load(t, cup__offset_of(t, i)) : 0;
}

static void norm(const work *w, cup__read_input weight, cup__read_input bias)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < w->width && !w->a->rms; i++)
        mean += w->x[i] / (double)w->width;
    for (int64_t i = 0; i < w->width; i++)
        squares += (w->x[i] - mean) * (w->x[i] - mean);
    double rstd = 1 / sqrt(squares / (double)w->width + w->a->eps);
    for (int64_t i = 0; i < w->width; i++)
        w->y[i] = (w->x[i] - mean) * rstd * at(w->in[weight], i) + at(w->in[bias], i);
}

/* y = x weight^T + bias */
static void linear(const work *w, cup__read_input weight, cup__read_input bias, const double *x,
                   double *y)
{
    int64_t rows = w->in[weight]->shape[0], columns = w->in[weight]->shape[1];
    for (int64_t i = 0; i < rows; i++) {
        double sum = at(w->in[bias], i);
        for (int64_t k = 0; k < columns; k++)
            sum += x[k] * at(w->in[weight], i * columns + k);
        y[i] = sum;
    }
}

static void turn(const work *w)
{
    int64_t pairs = w->size / 2;
    cup__rope_rule rule = {.base = w->a->rope_base};
    for (int64_t i = 0; w->a->rope_base > 0 && i < (w->heads + w->kv_heads) * pairs; i++) {
        double *u = w->qkv + i / pairs * w->size + i % pairs, *v = u + pairs, a = *u, b = *v;
        double angle = (double)w->position * cup__rope_frequency(&rule, i % pairs, pairs);
        *u = a * cos(angle) - b * sin(angle);
        *v = a * sin(angle) + b * cos(angle);
    }
}

/* The new key and value as they are, not as they are kept. */
static double kept(const work *w, bool value, int64_t head, int64_t key, int64_t d)
{
    const cup_tensor *all = w->in[value ? CUP__READ_VALUES : CUP__READ_KEYS];
    int64_t fresh = (w->heads + (value ? w->kv_heads : 0) + head) * w->size + d;
    return key == w->position ? w->qkv[fresh] : at(all, (head * w->length + key) * w->size + d);
}

static void attend(const work *w, int64_t head)
{
    int64_t kv = head / (w->heads / w->kv_heads);
    double most = -INFINITY, sum = 0;
    for (int64_t k = 0; k <= w->position; k++) {
        double dot = 0;
        for (int64_t d = 0; d < w->size; d++)
            dot += w->qkv[head * w->size + d] * kept(w, false, kv, k, d);
        w->score[k] = dot / sqrt((double)w->size);
        most = fmax(most, w->score[k]);
    }
    for (int64_t k = 0; k <= w->position; k++)
        sum += w->score[k] = exp(w->score[k] - most);
    for (int64_t d = 0; d < w->size; d++) {
        double value = 0;
        for (int64_t k = 0; k <= w->position; k++)
            value += w->score[k] * kept(w, true, kv, k, d);
        w->attended[head * w->size + d] = value / sum;
    }
}

static void keep(const work *w)
{
    for (int64_t i = 0; i < w->kv_heads * w->size; i++) {
        int64_t to = (i / w->size * w->length + w->position) * w->size + i % w->size;
        cup_tensor *keys = w->in[CUP__READ_KEYS], *values = w->in[CUP__READ_VALUES];
        cup__store(keys, cup__offset_of(keys, to), w->qkv[w->heads * w->size + i]);
        cup__store(values, cup__offset_of(values, to),
                   w->qkv[(w->heads + w->kv_heads) * w->size + i]);
    }
}

static double activated(const work *w, int64_t i)
{
    double u = w->up[i];
    if (w->a->gated)
        return u / (1 + exp(-u)) * w->up[w->hidden + i];
    return 0.5 * u * (1 + tanh(sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
}

static void run(work *w, cup_tensor *const *out)
{
    for (int64_t i = 0; i < w->width; i++)
        w->x[i] = at(w->in[CUP__READ_X], i) + at(w->in[CUP__READ_DELTA], i);
    norm(w, CUP__READ_NORM1, CUP__READ_NORM1_BIAS);
    linear(w, CUP__READ_QKV, CUP__READ_QKV_BIAS, w->y, w->qkv);
    turn(w);
    for (int64_t head = 0; head < w->heads; head++)
        attend(w, head);
    keep(w);
    linear(w, CUP__READ_OUT, CUP__READ_OUT_BIAS, w->attended, w->y);
    for (int64_t i = 0; i < w->width; i++)
        w->x[i] += w->y[i];
    norm(w, CUP__READ_NORM2, CUP__READ_NORM2_BIAS);
    linear(w, CUP__READ_UP, CUP__READ_UP_BIAS, w->y, w->up);
    for (int64_t i = 0; i < w->hidden; i++)
        w->up[i] = activated(w, i);
    linear(w, CUP__READ_DOWN, CUP__READ_DOWN_BIAS, w->up, w->y);
    for (int64_t i = 0; i < w->width; i++) {
        cup__store(out[0], cup__offset_of(out[0], i), w->x[i]);
        cup__store(out[1], cup__offset_of(out[1], i), w->y[i]);
    }
}

cup_status cup__transformer_read_specification(cup__call *call)
{
    cup_tensor **in = call->in, *keys = in[CUP__READ_KEYS], *position = in[CUP__READ_POSITION];
    const cup__transformer_read_attributes *a = call->attributes;
    work w = {.a = a,
              .in = in,
              .width = in[CUP__READ_X]->shape[2],
              .heads = a->heads,
              .kv_heads = keys->shape[1],
              .size = keys->shape[3],
              .length = keys->shape[2],
              .hidden = in[CUP__READ_DOWN]->shape[1]};
    w.position = position->dtype == CUP_I64 ? *(const int64_t *)position->data
                                            : *(const int32_t *)position->data;
    if (w.position < 0 || w.position >= w.length)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "position %lld is not among the %lld that keys have room for",
                              (long long)w.position, (long long)w.length);
    int64_t rows = (w.heads + 2 * w.kv_heads) * w.size, up = w.hidden * (1 + a->gated);
    double *all = cup__malloc((size_t)(2 * w.width + rows + w.heads * w.size + up + w.length) *
                              sizeof *all);
    if (!all)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    w.x = all;
    w.y = w.x + w.width;
    w.qkv = w.y + w.width;
    w.attended = w.qkv + rows;
    w.up = w.attended + w.heads * w.size;
    w.score = w.up + up;
    run(&w, call->out);
    cup__free(all);
    return CUP_OK;
}
