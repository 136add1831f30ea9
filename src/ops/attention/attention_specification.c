/* The specification of attention and of its gradient: one score at a time, in double. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "ops/attention/attention.h"
#include "tensor/sums.h"

uint32_t cup__attention_threshold(double dropout)
{
    double scaled = floor(dropout * 65536 + 0.5);
    return scaled > 65535 ? 65535 : (uint32_t)scaled;
}

double cup__attention_factor(double dropout)
{
    return 65536.0 / (65536.0 - cup__attention_threshold(dropout));
}

void cup__attention_draws(cup__attention *a, int64_t sequence)
{
    int64_t share = sequence >> 32, count = share >> 16, rank = share & 0xffff;
    a->sequence = (uint32_t)sequence;
    a->others = count ? (count - 1) * a->heads : 0;
    a->first = rank * a->heads;
}

/* Of a position in its whole sequence. */
static int64_t place_of(const cup__stretches *s, int64_t position)
{
    int second = position >= s->half;
    return s->place[second] + position - second * s->half;
}

uint64_t cup__attention_random_block(const cup__attention *a, int64_t head, int64_t query,
                                     int64_t key)
{
    head += head / a->heads * a->others + a->first;
    int64_t queries = a->drawn ? a->drawn->rows.all : a->queries;
    int64_t keys = a->drawn ? a->drawn->keys.all : a->keys;
    if (a->drawn) {
        query = place_of(&a->drawn->rows, query);
        key = place_of(&a->drawn->keys, key);
    }
    uint64_t down = (uint64_t)(queries + 15) / 16, across = (uint64_t)(keys + 15) / 16;
    uint64_t tile = ((uint64_t)head * down + (uint64_t)query / 16) * across + (uint64_t)key / 16;
    return tile * 32 + (uint64_t)(query % 8 * 4 + key % 8 / 2);
}

double cup__attention_keep_factor(const cup__attention *a, int64_t head, int64_t query, int64_t key)
{
    if (a->dropout == 0)
        return 1;
    uint64_t block = cup__attention_random_block(a, head, query, key);
    cup__philox_words words = cup__philox_block(a->random, a->sequence, block);
    uint32_t number = cup__attention_number(&words, query, key);
    return number < cup__attention_threshold(a->dropout) ? 0 : cup__attention_factor(a->dropout);
}

static int64_t at(const cup__heads *h, int64_t b, int64_t head, int64_t position)
{
    return h->offset + b * h->stride[0] + head * h->stride[1] + position * h->stride[2];
}

static double dot(const cup__heads *x, int64_t x_at, const cup__heads *y, int64_t y_at,
                  int64_t size)
{
    return cup__dot(x->tensor, x_at, x->stride[3], y->tensor, y_at, y->stride[3], size);
}

/* Adds a row of a head, times a factor. */
static void add_scaled(double *to, double factor, const cup__heads *x, int64_t x_at, int64_t size)
{
    cup__add_scaled(to, factor, x->tensor, x_at, x->stride[3], size);
}

/* A scaled score, changed by soft cap, slope and bias or by a formula, for which there is room. */
static double changed(const cup__attention *a, double score, cup__score_place at, void *room)
{
    double slope;
    if (a->score.formula) {
        cup__score_run r = cup__score_evaluate(a, at, true, &score, room);
        return *(const double *)r.gives[CUP__GIVES_SCORE];
    }
    int64_t distance = cup__attention_position(&a->mask, at.batch, at.query) - at.key;
    score = cup__attention_changed(&a->score, score, at.head, distance, &slope);
    return score + cup__attention_bias(&a->score, at.batch, at.head, at.query, at.key);
}

/* One query: `score` and `out` are scratch of `keys` and `size` numbers, with a formula's room
 * behind. */
static void attend(cup__attention *a, int64_t b, int64_t head, int64_t query, double *score,
                   double *out)
{
    int64_t kv = head / (a->heads / a->kv_heads), row = b * a->heads + head;
    int64_t first = cup__attention_first(&a->mask, b, query);
    int64_t seen = cup__attention_end(&a->mask, b, query);
    double most = -INFINITY, sum = 0;
    for (int64_t k = first; k < seen; k++) {
        score[k] = -INFINITY;
        if (!cup__attention_is_listed(&a->lists, b, head, query, k))
            continue;
        score[k] =
            a->scale * dot(&a->q, at(&a->q, b, head, query), &a->k, at(&a->k, b, kv, k),
                       a->key_size);
        score[k] = changed(a, score[k], (cup__score_place){b, head, query, k, 1}, out + a->size);
        most = score[k] > most ? score[k] : most;
    }
    for (int64_t d = 0; d < a->value_size; d++)
        out[d] = 0;
    for (int64_t k = first; k < seen; k++) {
        double p = exp(score[k] - (most == -INFINITY ? 0 : most));
        sum += p;
        p *= cup__attention_keep_factor(a, row, query, k);
        add_scaled(out, p, &a->v, at(&a->v, b, kv, k), a->value_size);
    }
    double fade = a->score.sinks ? cup__attention_sink(cup__attention_of_head(a->score.sinks, head),
                                                       &most, &sum)
                                 : 1;
    for (int64_t d = 0; d < a->value_size; d++)
        cup__store(a->o.tensor, at(&a->o, b, head, query) + d * a->o.stride[3],
                   sum == 0 ? 0 : out[d] * fade / sum);
    if (a->lse)
        cup__store(a->lse, row * a->queries + query, sum == 0 ? -INFINITY : most + log(sum));
}

cup_status cup__attention_plain(cup__attention *a)
{
    int64_t room = cup__score_floats(a, 1);
    double *score = cup__calloc((size_t)(a->keys + a->size + room), sizeof *score);
    if (!score)
        return cup__fail(&a->c->error, CUP_MEMORY, "attention: out of host memory");
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t query = 0; query < a->queries; query++)
                attend(a, b, head, query, score, score + a->keys);
    cup__free(score);
    return CUP_OK;
}

static void store_row(cup__heads *to, int64_t to_at, const double *from, int64_t size)
{
    for (int64_t d = 0; d < size; d++)
        cup__store(to->tensor, to_at + d * to->stride[3], from[d]);
}

void cup__attention_store_numbers(const cup__attention *a, int64_t b, int64_t head, int64_t query,
                                  double d_slope, double lse, double delta)
{
    int64_t at = (b * a->heads + head) * a->queries + query;
    if (a->score.slopes)
        cup__store(a->d_slopes, cup__offset_of(a->d_slopes, at), d_slope);
    if (!a->score.sinks)
        return;
    double sink = cup__attention_of_head(a->score.sinks, head);
    double p = isinf(lse) ? 0 : exp(sink - lse);
    cup__store(a->d_sinks, cup__offset_of(a->d_sinks, at), -p * delta);
}

/* Numbers of one query that are summed over its keys: for the slope, and for tensors. */
typedef struct query_sums {
    double d_slope, d_rows[CUP__SCORE_TENSORS];
} query_sums;

/* A score's probability and how its gradient is passed on. */
typedef struct passed {
    double p, slope;
    const double *by_tensor[CUP__SCORE_TENSORS]; /* of a formula */
} passed;

static passed pass(const cup__attention *a, double score, double lse, cup__score_place at,
                   void *room)
{
    passed to;
    if (a->score.formula) {
        cup__score_run run = cup__score_evaluate(a, at, true, &score, room);
        to.p = exp(*(const double *)run.gives[CUP__GIVES_SCORE] - lse);
        to.slope = to.p == 0 ? 0 : *(const double *)run.gives[CUP__GIVES_SLOPE];
        memcpy(to.by_tensor, run.gives + CUP__GIVES_TENSORS, sizeof to.by_tensor);
        return to;
    }
    int64_t distance = cup__attention_position(&a->mask, at.batch, at.query) - at.key;
    score = cup__attention_changed(&a->score, score, at.head, distance, &to.slope);
    to.p = exp(score + cup__attention_bias(&a->score, at.batch, at.head, at.query, at.key) - lse);
    return to;
}

/* What the gradient of a changed score gives a bias, a slope and a formula's tensors. */
static void hand_on(const cup__attention *a, const passed *from, double ds, cup__score_place at,
                    query_sums *sums)
{
    int64_t distance = cup__attention_position(&a->mask, at.batch, at.query) - at.key;
    if (a->d_bias)
        cup__attention_store_bias(a, at.batch, at.head, at.query, at.key, ds);
    sums->d_slope -= ds * fabs((double)distance);
    for (int i = 0; i < CUP__SCORE_TENSORS && (a->row_grads | a->pair_grads) >> i; i++) {
        bool wanted = (a->row_grads | a->pair_grads) >> i & 1;
        double d = wanted && from->p != 0 ? ds * *from->by_tensor[i] : 0;
        if (a->row_grads >> i & 1)
            sums->d_rows[i] += d;
        else if (a->pair_grads >> i & 1)
            cup__score_store_pair(a, i, at, d);
    }
}

/* One query: adds to dk and dv of its head, [keys, size] each, and writes its dq, behind which a
 * formula has room. */
static void attend_back(cup__attention *a, int64_t b, int64_t head, int64_t query, double *dq,
                        double *dk, double *dv)
{
    int64_t kv = head / (a->heads / a->kv_heads), row = b * a->heads + head;
    int64_t first = cup__attention_first(&a->mask, b, query);
    int64_t seen = cup__attention_end(&a->mask, b, query);
    int64_t q_at = at(&a->q, b, head, query), o_at = at(&a->d_o, b, head, query);
    double lse = cup__load(a->lse, cup__offset_of(a->lse, row * a->queries + query));
    double delta = dot(&a->d_o, o_at, &a->o, at(&a->o, b, head, query), a->value_size);
    query_sums sums = {.d_slope = 0};
    cup__score_place place = {b, head, query, first, 1};
    for (int64_t d = 0; d < a->size; d++)
        dq[d] = 0;
    for (int64_t k = first; k < seen && lse != -INFINITY; k++) {
        if (!cup__attention_is_listed(&a->lists, b, head, query, k))
            continue;
        int64_t k_at = at(&a->k, b, kv, k), v_at = at(&a->v, b, kv, k);
        double score = a->scale * dot(&a->q, q_at, &a->k, k_at, a->key_size);
        place.key = k;
        passed at_key = pass(a, score, lse, place, dq + a->size);
        double p = at_key.p, keep = cup__attention_keep_factor(a, row, query, k);
        double dp = keep * dot(&a->d_o, o_at, &a->v, v_at, a->value_size);
        double ds = a->scale * at_key.slope * p * (dp - delta);
        hand_on(a, &at_key, p * (dp - delta), place, &sums);
        add_scaled(dq, ds, &a->k, k_at, a->key_size);
        add_scaled(dk + k * a->size, ds, &a->q, q_at, a->key_size);
        add_scaled(dv + k * a->size, p * keep, &a->d_o, o_at, a->value_size);
    }
    store_row(&a->dq, at(&a->dq, b, head, query), dq, a->key_size);
    cup__attention_store_numbers(a, b, head, query, sums.d_slope, lse, delta);
    for (int i = 0; i < CUP__SCORE_TENSORS; i++)
        if (a->row_grads >> i & 1)
            cup__score_store_row(a, i, place, sums.d_rows[i]);
}

cup_status cup__attention_plain_grad(cup__attention *a)
{
    int64_t group = a->kv_heads ? a->heads / a->kv_heads : 0;
    size_t of_keys = (size_t)(a->keys * a->size), room = (size_t)cup__score_floats(a, 1);
    for (int64_t i = 0; i < a->batch * a->kv_heads; i++) {
        double *dk = cup__calloc(2 * of_keys + (size_t)a->size + room, sizeof *dk);
        if (!dk)
            return cup__fail(&a->c->error, CUP_MEMORY, "attention_grad: out of host memory");
        double *dv = dk + of_keys, *dq = dv + of_keys;
        int64_t b = i / a->kv_heads, kv = i % a->kv_heads;
        for (int64_t n = 0; n < group * a->queries; n++)
            attend_back(a, b, kv * group + n / a->queries, n % a->queries, dq, dk, dv);
        for (int64_t k = 0; k < a->keys; k++) {
            store_row(&a->dk, at(&a->dk, b, kv, k), dk + k * a->size, a->key_size);
            store_row(&a->dv, at(&a->dv, b, kv, k), dv + k * a->size, a->value_size);
        }
        cup__free(dk);
    }
    return CUP_OK;
}
