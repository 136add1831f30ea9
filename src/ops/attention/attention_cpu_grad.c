/* Backward of attention on the CPU, by the same blocks as forward. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/wide_math.h"
#include "ops/attention/attention_blocks.h"

/* Where backward keeps the numbers of one head of keys. */
typedef struct desk {
    float *k, *dk, *dv;               /* [blocks, CUP__COLS, padded] */
    float *k_turned, *v_turned;       /* [blocks, padded, CUP__COLS] */
    float *q, *d_o, *dq;              /* [CUP__ROWS, padded] */
    float *score, *ds, *keep, *slope; /* [CUP__ROWS, CUP__COLS] */
    float *by_tensor;                 /* the same for each tensor of a formula with a gradient */
    float *room;                      /* of a formula */
} desk;

static int64_t floats_by_tensor(const cup__attention *a)
{
    return __builtin_popcount(a->row_grads | a->pair_grads) * CUP__ROWS * CUP__COLS;
}

static void desk_lay(desk *w, const cup__attention *a, float *memory, int64_t keys, int64_t queries)
{
    float **parts[] = {&w->k,   &w->k_turned, &w->v_turned, &w->dk, &w->dv,   &w->q,
                       &w->d_o, &w->dq,       &w->score,    &w->ds, &w->keep, &w->slope};
    for (int i = 0; i < 12; i++) {
        *parts[i] = memory;
        memory += i < 5 ? keys : i < 8 ? queries : CUP__ROWS * CUP__COLS;
    }
    w->by_tensor = memory;
    w->room = memory + floats_by_tensor(a);
}

/* What is known of the queries of a block. */
typedef struct numbers {
    cup__range seen[CUP__ROWS]; /* of the keys of one block */
    float lse[CUP__ROWS], delta[CUP__ROWS], d_slope[CUP__ROWS];
    float d_rows[CUP__SCORE_TENSORS][CUP__ROWS];
} numbers;

/* The part of a block that queries and keys there are in, up to what products take at once. */
typedef struct part {
    int64_t queries, keys, rows, wide;
} part;

/* Scores become probabilities times what dropout leaves of them, and `ds` the gradients of the
 * scores; ds holds the gradients of the probabilities before. */
CUP__WIDE static void soften_back(float *score, float *ds, const float *keep, const numbers *q,
                                  part size, float scale)
{
    for (int64_t r = 0; r < size.rows; r++)
        for (int64_t n = 0; n < size.wide; n += CUP__LANES)
            for (int64_t k = n; k < n + CUP__LANES; k++) {
                int64_t i = r * CUP__COLS + k;
                float p = cup__exp_f32(score[i] * scale - q->lse[r]);
                p = k >= q->seen[r].from && k < q->seen[r].to ? p : 0;
                float factor = keep ? keep[i] : 1;
                ds[i] = p * (ds[i] * factor - q->delta[r]) * scale;
                score[i] = p * factor;
            }
}

/* A row of scores by a formula, with its derivatives kept. */
static void change_by_formula(const cup__attention *a, cup__rows_of at, int64_t key, const desk *w,
                              int64_t r)
{
    const size_t bytes = CUP__COLS * sizeof(float);
    float *to = w->by_tensor + r * CUP__COLS;
    cup__score_run run =
        cup__blocks_formula(a, (cup__rows_of){at.batch, at.head, at.first + r, 1}, key,
                            w->score + r * CUP__COLS, w->room);
    memcpy(w->slope + r * CUP__COLS, run.gives[CUP__GIVES_SLOPE], bytes);
    for (int i = 0; i < CUP__SCORE_TENSORS; i++)
        if ((a->row_grads | a->pair_grads) >> i & 1) {
            memcpy(to, run.gives[CUP__GIVES_TENSORS + i], bytes);
            to += CUP__ROWS * CUP__COLS;
        }
}

CUP__WIDE static void change_rows(const cup__attention *a, cup__rows_of at, int64_t key,
                                  const desk *w)
{
    for (int64_t r = 0; r < CUP__ROWS; r++) {
        if (a->score.formula) {
            change_by_formula(a, at, key, w, r);
            continue;
        }
        cup__attention_change(&a->score, (float)a->scale, at.head,
                              cup__attention_position(&a->mask, at.batch, at.first + r), key,
                              CUP__COLS, w->score + r * CUP__COLS, w->slope + r * CUP__COLS);
        cup__blocks_bias(a, (cup__rows_of){at.batch, at.head, at.first + r, 1}, key,
                         w->score + r * CUP__COLS);
    }
}

CUP__WIDE static void change_rows_back(const cup__attention *a, cup__rows_of at, int64_t key,
                                       const desk *w, numbers *q)
{
    for (int64_t r = 0; r < CUP__ROWS; r++)
        q->d_slope[r] += cup__attention_change_back(
            &a->score, (float)a->scale, cup__attention_position(&a->mask, at.batch, at.first + r),
            key, CUP__COLS, w->slope + r * CUP__COLS, w->ds + r * CUP__COLS);
}

/* The gradients of what a formula made of the scores become those of its tensors and of the scores
 * before they were scaled. A derivative counts where the gradient is not 0: of keys that are hidden
 * it may be no number. */
static void pass_by_formula(const cup__attention *a, cup__rows_of at, int64_t key, const desk *w,
                            numbers *q)
{
    const float *by_tensor = w->by_tensor;
    for (int i = 0; i < CUP__SCORE_TENSORS; i++) {
        bool of_row = a->row_grads >> i & 1, of_pair = a->pair_grads >> i & 1;
        if (!of_row && !of_pair)
            continue;
        for (int64_t r = 0; r < at.count; r++)
            for (int64_t k = q->seen[r].from; k < q->seen[r].to; k++) {
                float ds = w->ds[r * CUP__COLS + k];
                float d = ds == 0 ? 0 : ds * by_tensor[r * CUP__COLS + k];
                if (of_row)
                    q->d_rows[i][r] += d;
                else
                    cup__score_store_pair(
                        a, i, (cup__score_place){at.batch, at.head, at.first + r, key + k, 1}, d);
            }
        by_tensor += CUP__ROWS * CUP__COLS;
    }
    for (int64_t i = 0; i < CUP__ROWS * CUP__COLS; i++)
        w->ds[i] = w->ds[i] == 0 ? 0 : w->ds[i] * w->slope[i] * (float)a->scale;
}

/* Queries that see one block of keys only: delta from the products that the gradients are made of,
 * so that what cancels in exact arithmetic cancels here, as all does where one key is seen. Where
 * this is not what o and lse say but for rounding, they are of other keys too, and count. */
static void delta_of_few(const float *score, const float *dp, const float *keep, const float *lse,
                         float *delta, cup__range seen, float scale, float of_sink)
{
    const float alike = 0x1p-10f;
    float sum = of_sink, products = 0, sizes = 0;
    for (int64_t i = seen.from; i < seen.to; i++) {
        float p = cup__exp_f32(score[i] * scale - *lse);
        sum += p;
        float product = p * (dp[i] * (keep ? keep[i] : 1));
        products += product;
        sizes += fabsf(product);
    }
    if (fabsf(sum - 1) < alike && fabsf(products - *delta) <= sizes * alike)
        *delta = products / sum;
}

/* Whether a query sees some of the block of keys from `key` on, and no other keys. */
static bool sees_only(const cup__attention *a, cup__rows_of at, int64_t query, int64_t key)
{
    int64_t first = cup__attention_first(&a->mask, at.batch, query);
    int64_t end = cup__attention_end(&a->mask, at.batch, query), next = key + CUP__COLS;
    if (first >= next || end <= key)
        return false;
    return !cup__attention_is_any_listed(&a->lists, at.batch, at.head, query, first, key) &&
           !cup__attention_is_any_listed(&a->lists, at.batch, at.head, query, next, end);
}

CUP__WIDE static float dot(const float *x, const float *y, int64_t count)
{
    float lanes[CUP__LANES] = {0};
    for (int64_t i = 0; i < count; i += CUP__LANES)
        for (int k = 0; k < CUP__LANES; k++)
            lanes[k] += x[i + k] * y[i + k];
    return cup__sum_lanes(lanes);
}

static void load_block(const cup__blocks *j, desk *w, cup__rows_of at, numbers *q)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, row = (at.batch * a->heads + at.head) * a->queries + at.first;
    cup__blocks_load(w->q, &a->o, at, CUP__ROWS, a->size, padded);
    cup__blocks_load(w->d_o, &a->d_o, at, CUP__ROWS, a->size, padded);
    for (int64_t r = 0; r < at.count; r++) {
        q->delta[r] = dot(w->q + r * padded, w->d_o + r * padded, padded);
        q->lse[r] = (float)cup__load(a->lse, cup__offset_of(a->lse, row + r));
        q->lse[r] = q->lse[r] == -INFINITY ? INFINITY : q->lse[r];
    }
    cup__blocks_load(w->q, &a->q, at, CUP__ROWS, a->size, padded);
    memset(w->dq, 0, (size_t)(CUP__ROWS * padded) * sizeof *w->dq);
}

static void refine_delta(const cup__attention *a, const desk *w, cup__rows_of at, int64_t key,
                         const float *keep, numbers *q)
{
    const cup_tensor *sinks = a->score.sinks;
    float scale = a->score.changed ? 1 : (float)a->scale;
    for (int64_t r = 0; r < at.count; r++) {
        int64_t row = r * CUP__COLS;
        double of_sink = sinks ? exp(cup__attention_of_head(sinks, at.head) - q->lse[r]) : 0;
        if (sees_only(a, at, at.first + r, key))
            delta_of_few(w->score + row, w->ds + row, keep ? keep + row : NULL, q->lse + r,
                         q->delta + r, q->seen[r], scale, (float)of_sink);
    }
}

/* The queries of a block against block `n` of the keys. */
static void backward_tile(const cup__blocks *j, desk *w, cup__rows_of at, int64_t n, numbers *q)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, block = CUP__COLS * padded, key = n * CUP__COLS;
    float scale = a->score.changed ? 1 : (float)a->scale, *k = w->k + n * block;
    part size = {at.count, cup__least(a->keys - key, CUP__COLS), (at.count + 3) & ~3, 0};
    size.wide = cup__lanes(size.keys);
    for (int r = 0; r < CUP__ROWS; r++)
        q->seen[r] = cup__blocks_seen(a, at.batch, at.first + r, key);
    memset(w->score, 0, 2 * CUP__ROWS * CUP__COLS * sizeof *w->score);
    cup__matrices scores = {w->score, w->q,     w->k_turned + n * block, CUP__COLS, padded,
                            1,        CUP__COLS};
    cup__matrices dp = {w->ds, w->d_o, w->v_turned + n * block, CUP__COLS, padded, 1, CUP__COLS};
    cup__blocks_multiply(scores, size.rows, size.wide, a->size);
    cup__blocks_multiply(dp, size.rows, size.wide, a->size);
    if (a->score.changed)
        change_rows(a, at, key, w);
    cup__blocks_hide(a, at, key, scale, w->score);
    if (a->dropout > 0)
        cup__blocks_keep(w->keep, a, at.batch * a->heads + at.head, at.first, key);
    const float *keep = a->dropout > 0 ? w->keep : NULL;
    refine_delta(a, w, at, key, keep, q);
    soften_back(w->score, w->ds, keep, q, size, scale);
    for (int64_t r = 0; r < at.count && a->d_bias; r++)
        for (int64_t i = q->seen[r].from; i < q->seen[r].to; i++)
            cup__attention_store_bias(a, at.batch, at.head, at.first + r, key + i,
                                      w->ds[r * CUP__COLS + i]);
    if (a->score.formula)
        pass_by_formula(a, at, key, w, q);
    else if (a->score.changed)
        change_rows_back(a, at, key, w, q);
    cup__matrices dq = {w->dq, w->ds, k, padded, CUP__COLS, 1, padded};
    cup__matrices dk = {w->dk + n * block, w->ds, w->q, padded, 1, CUP__COLS, padded};
    cup__matrices dv = {w->dv + n * block, w->score, w->d_o, padded, 1, CUP__COLS, padded};
    cup__blocks_multiply(dq, size.rows, padded, size.keys);
    cup__blocks_multiply(dk, (size.keys + 3) & ~3, padded, size.queries);
    cup__blocks_multiply(dv, (size.keys + 3) & ~3, padded, size.queries);
}

static void backward_block(const cup__blocks *j, desk *w, int64_t b, int64_t head, int64_t first)
{
    const cup__attention *a = j->a;
    cup__rows_of at = {b, head, first, cup__least(a->queries - first, CUP__ROWS)};
    numbers q = {.lse = {0}};
    load_block(j, w, at, &q);
    int64_t blocks = cup__blocks_end(a, b, first + at.count);
    for (int64_t n = cup__blocks_begin(a, b, first); n < blocks; n++)
        if (cup__blocks_listed(a, at, n * CUP__COLS))
            backward_tile(j, w, at, n, &q);
    cup__blocks_store(&a->dq, at, w->dq, a->size, j->padded);
    for (int64_t r = 0; r < at.count; r++)
        cup__attention_store_numbers(a, b, head, first + r, q.d_slope[r], q.lse[r], q.delta[r]);
    for (int i = 0; i < CUP__SCORE_TENSORS; i++)
        for (int64_t r = 0; a->row_grads >> i & 1 && r < at.count; r++)
            cup__score_store_row(a, i, (cup__score_place){b, head, first + r, 0, 1},
                                 q.d_rows[i][r]);
}

static void backward_head(const cup__blocks *j, desk *w, int64_t b, int64_t kv)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, block = CUP__COLS * padded, group = a->heads / a->kv_heads;
    memset(w->dk, 0, (size_t)(2 * j->blocks * block) * sizeof *w->dk);
    /* The place of the keys holds the values until these are turned. */
    for (int64_t n = 0; n < j->blocks; n++) {
        int64_t first = n * CUP__COLS, count = cup__least(a->keys - first, CUP__COLS);
        cup__blocks_load(w->k + n * block, &a->v, (cup__rows_of){b, kv, first, count}, CUP__COLS,
                         a->size, padded);
        cup__blocks_turn(w->v_turned + n * block, w->k + n * block, padded);
        cup__blocks_load(w->k + n * block, &a->k, (cup__rows_of){b, kv, first, count}, CUP__COLS,
                         a->size, padded);
        cup__blocks_turn(w->k_turned + n * block, w->k + n * block, padded);
    }
    for (int64_t g = 0; g < group; g++)
        for (int64_t first = 0; first < a->queries; first += CUP__ROWS)
            backward_block(j, w, b, kv * group + g, first);
    cup__blocks_store(&a->dk, (cup__rows_of){b, kv, 0, a->keys}, w->dk, a->size, padded);
    cup__blocks_store(&a->dv, (cup__rows_of){b, kv, 0, a->keys}, w->dv, a->size, padded);
}

static void backward_heads(int64_t begin, int64_t end, void *user)
{
    cup__blocks *j = user;
    float *memory = cup__aligned(64, (size_t)j->scratch * sizeof *memory);
    if (!memory) {
        atomic_store(&j->failed, true);
        return;
    }
    desk w;
    desk_lay(&w, j->a, memory, j->blocks * CUP__COLS * j->padded, CUP__ROWS * j->padded);
    for (int64_t i = begin; i < end; i++)
        backward_head(j, &w, i / j->a->kv_heads, i % j->a->kv_heads);
    cup__free(memory);
}

cup_status cup__attention_cpu_grad(cup__attention *a)
{
    cup__blocks j = {
        .a = a, .padded = cup__lanes(a->size), .blocks = (a->keys + CUP__COLS - 1) / CUP__COLS};
    j.scratch = 5 * j.blocks * CUP__COLS * j.padded + 3 * CUP__ROWS * j.padded +
                4 * CUP__ROWS * CUP__COLS + floats_by_tensor(a) + cup__score_floats(a, CUP__COLS);
    return cup__blocks_run(&j, a->batch * a->kv_heads, backward_heads, "attention_grad");
}
