/* Attention on the CPU in single precision: the heads are packed once, then blocks of queries meet
 * blocks of keys with a running maximum and sum. One head is the work of one thread from end to
 * end, so that results do not depend on how many there are. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide_math.h"
#include "ops/attention/attention.h"
#include "ops/elementwise/pointwise.h"

#define ROWS 32 /* queries a block */
#define COLS 64 /* keys a block */
#define LANES 16

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct job {
    cup__attention *a;
    int64_t padded;  /* size, up to a multiple of LANES */
    int64_t blocks;  /* of keys */
    int64_t pieces;  /* that the queries of a head are cut into */
    int64_t scratch; /* numbers a piece of work needs */
    atomic_bool failed;
} job;

/* c += a b; a's rows and columns may lie either way. */
typedef struct matrices {
    float *c;
    const float *a, *b;
    int64_t c_row, a_row, a_step, b_row;
} matrices;

/* c[4, 16 wide] += a[4, count] b[count, 16 wide] */
static inline __attribute__((always_inline)) void tile(matrices m, int64_t count, int wide)
{
    lanes sum[4][2];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            sum[r][w] = *(const lanes *)(m.c + r * m.c_row + w * LANES);
    for (int64_t k = 0; k < count; k++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
            for (int w = 0; w < wide; w++)
                sum[r][w] += m.a[r * m.a_row + k * m.a_step] *
                             *(const lanes *)(m.b + k * m.b_row + w * LANES);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            *(lanes *)(m.c + r * m.c_row + w * LANES) = sum[r][w];
}

/* c[rows, width] += a[rows, count] b[count, width]; rows are a multiple of 4, width of LANES. */
CUP__WIDE static void multiply(matrices m, int64_t rows, int64_t width, int64_t count)
{
    for (int64_t n = 0; n < width; n += 2 * LANES)
        for (int64_t r = 0; r < rows; r += 4) {
            matrices part = m;
            part.c += r * m.c_row + n;
            part.a += r * m.a_row;
            part.b += n;
            if (n + 2 * LANES <= width)
                tile(part, count, 2);
            else
                tile(part, count, 1);
        }
}

/* Rows of a head. */
typedef struct rows_of {
    int64_t batch, head, first, count;
} rows_of;

static int64_t offset_of(const cup__heads *h, rows_of at, int64_t row)
{
    return h->offset + at.batch * h->stride[0] + at.head * h->stride[1] +
           (at.first + row) * h->stride[2];
}

/* Rows of a head as floats, `padded` apart and filled up with zeros; rows past the end are zero. */
static void load_rows(float *to, const cup__heads *h, rows_of from, int64_t room, int64_t size,
                      int64_t padded)
{
    const cup_tensor *t = h->tensor;
    for (int64_t i = 0; i < from.count; i++, to += padded) {
        int64_t at = offset_of(h, from, i);
        if (h->stride[3] == 1)
            cup__load_f32(to, (const char *)t->data + at * cup_dtype_size(t->dtype), t->dtype,
                          size);
        else
            for (int64_t d = 0; d < size; d++)
                to[d] = (float)cup__load(t, at + d * h->stride[3]);
        memset(to + size, 0, (size_t)(padded - size) * sizeof *to);
    }
    memset(to, 0, (size_t)((room - from.count) * padded) * sizeof *to);
}

static void store_rows(const cup__heads *h, rows_of to, const float *from, int64_t size,
                       int64_t padded)
{
    cup_tensor *t = h->tensor;
    for (int64_t i = 0; i < to.count; i++, from += padded) {
        int64_t at = offset_of(h, to, i);
        if (h->stride[3] == 1)
            cup__store_f32((char *)t->data + at * cup_dtype_size(t->dtype), from, t->dtype, size);
        else
            for (int64_t d = 0; d < size; d++)
                cup__store(t, at + d * h->stride[3], from[d]);
    }
}

/* A block of COLS rows turned: [padded, COLS]. */
CUP__WIDE static void turn(float *to, const float *from, int64_t padded)
{
    for (int64_t d = 0; d < padded; d++)
        for (int64_t k = 0; k < COLS; k++)
            to[d * COLS + k] = from[k * padded + d];
}

/* What dropout multiplies the probabilities of a block by. */
static void keep_factors(float *keep, const cup__attention *a, int64_t row, int64_t query,
                         int64_t key)
{
    uint32_t threshold = cup__attention_threshold(a->dropout);
    float factor = (float)cup__attention_factor(a->dropout);
    for (int64_t i = 0; i < ROWS * COLS / 8; i++) {
        int64_t r = i / (COLS / 4) % 8 + i / (COLS * 2) * 16;
        int64_t c = i % 4 * 2 + i / 4 % (COLS / 16) * 16;
        uint64_t block = cup__attention_random_block(a, row, query + r, key + c);
        cup__philox_words words = cup__philox_block(a->random, a->sequence, block);
        for (int n = 0; n < 8; n++) {
            int64_t y = r + (n & 1) * 8, x = c + (n >> 1 & 1) + (n >> 2) * 8;
            keep[y * COLS + x] = cup__attention_number(&words, y, x) < threshold ? 0 : factor;
        }
    }
}

/* The keys [from, to) of a block that a query sees. */
typedef struct range {
    int64_t from, to;
} range;

static int64_t within(int64_t key)
{
    return key < 0 ? 0 : key > COLS ? COLS : key;
}

static range seen_of(const cup__attention *a, int64_t query, int64_t key)
{
    if (query >= a->queries)
        return (range){0, 0};
    return (range){within(cup__attention_first(&a->mask, query) - key),
                   within(cup__attention_end(&a->mask, query) - key)};
}

static inline __attribute__((always_inline)) float sum_lanes(const float *part)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += part[i];
    return sum;
}

/* Scores of one query become e^(scaled score - maximum); returns what the row's sums so far must be
 * multiplied by. */
static inline __attribute__((always_inline)) float soften(float *score, range seen, float scale,
                                                          float *most, float *sum)
{
    float top[LANES], part[LANES] = {0}, before = *most;
    for (int i = 0; i < LANES; i++)
        top[i] = before;
    for (int i = 0; i < COLS; i++) {
        score[i] = i >= seen.from && i < seen.to ? score[i] * scale : -INFINITY;
        top[i % LANES] = score[i] > top[i % LANES] ? score[i] : top[i % LANES];
    }
    for (int i = 0; i < LANES; i++)
        *most = top[i] > *most ? top[i] : *most;
    float base = *most == -INFINITY ? 0 : *most;
    for (int i = 0; i < COLS; i++) {
        score[i] = cup__exp_f32(score[i] - base);
        part[i % LANES] += score[i];
    }
    float fade = cup__exp_f32(before - base);
    *sum = *sum * fade + sum_lanes(part);
    return fade;
}

typedef struct state {
    float most[ROWS], sum[ROWS];
    range seen[ROWS];
} state;

CUP__WIDE static void soften_rows(float *score, float *out, state *s, int64_t rows, int64_t padded,
                                  float scale)
{
    for (int64_t r = 0; r < rows; r++) {
        float fade = soften(score + r * COLS, s->seen[r], scale, &s->most[r], &s->sum[r]);
        for (int64_t d = 0; d < padded; d++)
            out[r * padded + d] *= fade;
    }
}

CUP__WIDE static void weigh(float *score, const float *keep, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        score[i] *= keep[i];
}

/* Keys turned and values of all blocks up to `blocks`. */
static void pack_keys(const job *j, float *turned, float *values, float *scratch, int64_t b,
                      int64_t kv, int64_t blocks)
{
    const cup__attention *a = j->a;
    for (int64_t n = 0; n < blocks; n++) {
        int64_t first = n * COLS, block = COLS * j->padded;
        int64_t count = a->keys - first < COLS ? a->keys - first : COLS;
        load_rows(scratch, &a->k, (rows_of){b, kv, first, count}, COLS, a->size, j->padded);
        turn(turned + n * block, scratch, j->padded);
        load_rows(values + n * block, &a->v, (rows_of){b, kv, first, count}, COLS, a->size,
                  j->padded);
    }
}

static int64_t min_of(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Blocks of keys that the queries below `end` see anything of, and those before them that the
 * queries from `first` on see nothing of. */
static int64_t blocks_seen(const cup__attention *a, int64_t end)
{
    return end > 0 ? (cup__attention_end(&a->mask, end - 1) + COLS - 1) / COLS : 0;
}

static int64_t blocks_before(const cup__attention *a, int64_t first)
{
    return cup__attention_first(&a->mask, first) / COLS;
}

static void finish_rows(const cup__attention *a, int64_t head, int64_t first, int64_t count,
                        float *out, const state *s, int64_t padded)
{
    for (int64_t r = 0; r < count; r++) {
        float inverse = s->sum[r] == 0 ? 0 : 1 / s->sum[r];
        for (int64_t d = 0; d < a->size; d++)
            out[r * padded + d] = s->sum[r] == 0 ? 0 : out[r * padded + d] * inverse;
        if (a->lse)
            ((float *)a->lse->data)[head * a->queries + first + r] =
                s->sum[r] == 0 ? -INFINITY : s->most[r] + logf(s->sum[r]);
    }
    store_rows(&a->o, (rows_of){head / a->heads, head % a->heads, first, count}, out, a->size,
               padded);
}

/* One block of queries against all the keys it sees. */
static void forward_block(const job *j, int64_t head, int64_t first, const float *turned,
                          const float *values, float *q)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, count = min_of(a->queries - first, ROWS), rows = (count + 3) & ~3;
    float *out = q + ROWS * padded, *score = out + ROWS * padded, *keep = score + ROWS * COLS;
    state s = {.sum = {0}};
    for (int r = 0; r < ROWS; r++)
        s.most[r] = -INFINITY;
    load_rows(q, &a->q, (rows_of){head / a->heads, head % a->heads, first, count}, ROWS, a->size,
              padded);
    memset(out, 0, (size_t)(ROWS * padded) * sizeof *out);
    int64_t blocks = blocks_seen(a, first + count);
    for (int64_t n = blocks_before(a, first); n < blocks; n++) {
        for (int r = 0; r < rows; r++)
            s.seen[r] = seen_of(a, first + r, n * COLS);
        memset(score, 0, (size_t)(rows * COLS) * sizeof *score);
        multiply((matrices){score, q, turned + n * COLS * padded, COLS, padded, 1, COLS}, rows,
                 COLS, a->size);
        soften_rows(score, out, &s, rows, padded, (float)a->scale);
        if (a->dropout > 0) {
            keep_factors(keep, a, head, first, n * COLS);
            weigh(score, keep, rows * COLS);
        }
        multiply((matrices){out, score, values + n * COLS * padded, padded, COLS, 1, padded}, rows,
                 padded, min_of(a->keys - n * COLS, COLS));
    }
    finish_rows(a, head, first, count, out, &s, padded);
}

static void forward_pieces(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__attention *a = j->a;
    float *scratch = cup__aligned(64, (size_t)j->scratch * sizeof *scratch);
    if (!scratch) {
        atomic_store(&j->failed, true);
        return;
    }
    float *turned = scratch, *values = turned + j->blocks * COLS * j->padded;
    float *rest = values + j->blocks * COLS * j->padded;
    int64_t query_blocks = (a->queries + ROWS - 1) / ROWS;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / j->pieces, piece = i % j->pieces;
        int64_t from = query_blocks * piece / j->pieces;
        int64_t to = query_blocks * (piece + 1) / j->pieces;
        int64_t kv = head % a->heads / (a->heads / a->kv_heads);
        pack_keys(j, turned, values, rest, head / a->heads, kv,
                  blocks_seen(a, min_of(to * ROWS, a->queries)));
        for (int64_t n = from; n < to; n++)
            forward_block(j, head, n * ROWS, turned, values, rest);
    }
    cup__free(scratch);
}

static cup_status run(job *j, int64_t count, cup__body body, const char *name)
{
    cup__parallel_for(count, 1, body, j);
    if (atomic_load(&j->failed))
        return cup__fail(&j->a->c->error, CUP_MEMORY, "%s: out of host memory", name);
    return CUP_OK;
}

cup_status cup__attention_cpu(cup__attention *a)
{
    job j = {.a = a, .padded = (a->size + LANES - 1) / LANES * LANES,
             .blocks = (a->keys + COLS - 1) / COLS, .pieces = 1};
    int64_t heads = a->batch * a->heads, query_blocks = (a->queries + ROWS - 1) / ROWS;
    if (heads < 4 * cup__threads() && query_blocks > 1)
        j.pieces = min_of(query_blocks, 4);
    j.scratch = 2 * j.blocks * COLS * j.padded + (COLS + 2 * ROWS) * j.padded + 2 * ROWS * COLS;
    return run(&j, heads * j.pieces, forward_pieces, "attention");
}

/* Where backward keeps the numbers of one head of keys. */
typedef struct desk {
    float *k, *k_turned, *v_turned; /* [blocks, COLS, padded], the turned ones [padded, COLS] */
    float *dk, *dv;                 /* [blocks, COLS, padded] */
    float *q, *d_o, *dq;            /* [ROWS, padded] */
    float *score, *ds, *keep;       /* [ROWS, COLS] */
} desk;

static void desk_lay(desk *w, float *memory, int64_t keys, int64_t queries)
{
    float **parts[] = {&w->k, &w->k_turned, &w->v_turned, &w->dk, &w->dv, &w->q, &w->d_o, &w->dq,
                       &w->score, &w->ds, &w->keep};
    for (int i = 0; i < 11; i++) {
        *parts[i] = memory;
        memory += i < 5 ? keys : i < 8 ? queries : ROWS * COLS;
    }
}

/* Scores become probabilities times what dropout leaves of them, and `ds` the gradients of the
 * scores; ds holds the gradients of the probabilities before. */
CUP__WIDE static void soften_back(float *score, float *ds, const float *keep, const float *lse,
                                  const float *delta, const range *seen, float scale)
{
    for (int r = 0; r < ROWS; r++)
        for (int i = r * COLS; i < (r + 1) * COLS; i++) {
            float p = cup__exp_f32(score[i] * scale - lse[r]);
            p = i - r * COLS >= seen[r].from && i - r * COLS < seen[r].to ? p : 0;
            float factor = keep ? keep[i] : 1;
            ds[i] = p * (ds[i] * factor - delta[r]) * scale;
            score[i] = p * factor;
        }
}

/* Queries that see one block of keys only: delta from the products that the gradients are made of,
 * so that what cancels in exact arithmetic cancels here, as all does where one key is seen. Where
 * this is not what o and lse say but for rounding, they are of other keys too, and count. */
static void delta_of_few(const float *score, const float *dp, const float *keep, const float *lse,
                         float *delta, range seen, float scale)
{
    const float alike = 0x1p-10f;
    float sum = 0, products = 0, sizes = 0;
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

static int64_t keys_of(const cup__attention *a, int64_t query)
{
    return cup__attention_end(&a->mask, query) - cup__attention_first(&a->mask, query);
}

CUP__WIDE static float dot(const float *x, const float *y, int64_t count)
{
    float part[LANES] = {0};
    for (int64_t i = 0; i < count; i += LANES)
        for (int k = 0; k < LANES; k++)
            part[k] += x[i + k] * y[i + k];
    return sum_lanes(part);
}

static void backward_block(const job *j, desk *w, int64_t b, int64_t head, int64_t first)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, count = min_of(a->queries - first, ROWS), block = COLS * padded;
    int64_t row = b * a->heads + head;
    range seen[ROWS];
    float lse[ROWS] = {0}, delta[ROWS] = {0};
    load_rows(w->q, &a->o, (rows_of){b, head, first, count}, ROWS, a->size, padded);
    load_rows(w->d_o, &a->d_o, (rows_of){b, head, first, count}, ROWS, a->size, padded);
    for (int64_t r = 0; r < count; r++) {
        delta[r] = dot(w->q + r * padded, w->d_o + r * padded, padded);
        lse[r] = (float)cup__load(a->lse, cup__offset_of(a->lse, row * a->queries + first + r));
        lse[r] = lse[r] == -INFINITY ? INFINITY : lse[r];
    }
    load_rows(w->q, &a->q, (rows_of){b, head, first, count}, ROWS, a->size, padded);
    memset(w->dq, 0, (size_t)(ROWS * padded) * sizeof *w->dq);
    int64_t blocks = blocks_seen(a, first + count);
    for (int64_t n = blocks_before(a, first); n < blocks; n++) {
        for (int r = 0; r < ROWS; r++)
            seen[r] = seen_of(a, first + r, n * COLS);
        memset(w->score, 0, 2 * ROWS * COLS * sizeof *w->score);
        multiply((matrices){w->score, w->q, w->k_turned + n * block, COLS, padded, 1, COLS}, ROWS,
                 COLS, padded);
        multiply((matrices){w->ds, w->d_o, w->v_turned + n * block, COLS, padded, 1, COLS}, ROWS,
                 COLS, padded);
        if (a->dropout > 0)
            keep_factors(w->keep, a, row, first, n * COLS);
        const float *keep = a->dropout > 0 ? w->keep : NULL;
        for (int64_t r = 0; r < count; r++)
            if (seen[r].to - seen[r].from == keys_of(a, first + r) && seen[r].to > 0)
                delta_of_few(w->score + r * COLS, w->ds + r * COLS, keep ? keep + r * COLS : NULL,
                             lse + r, delta + r, seen[r], (float)a->scale);
        soften_back(w->score, w->ds, keep, lse, delta, seen, (float)a->scale);
        multiply((matrices){w->dq, w->ds, w->k + n * block, padded, COLS, 1, padded}, ROWS, padded,
                 COLS);
        multiply((matrices){w->dk + n * block, w->ds, w->q, padded, 1, COLS, padded}, COLS, padded,
                 ROWS);
        multiply((matrices){w->dv + n * block, w->score, w->d_o, padded, 1, COLS, padded}, COLS,
                 padded, ROWS);
    }
    store_rows(&a->dq, (rows_of){b, head, first, count}, w->dq, a->size, padded);
}

static void backward_head(const job *j, desk *w, int64_t b, int64_t kv)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, block = COLS * padded, group = a->heads / a->kv_heads;
    memset(w->dk, 0, (size_t)(2 * j->blocks * block) * sizeof *w->dk);
    /* The place of the keys holds the values until these are turned. */
    for (int64_t n = 0; n < j->blocks; n++) {
        int64_t first = n * COLS, count = min_of(a->keys - first, COLS);
        load_rows(w->k + n * block, &a->v, (rows_of){b, kv, first, count}, COLS, a->size, padded);
        turn(w->v_turned + n * block, w->k + n * block, padded);
        load_rows(w->k + n * block, &a->k, (rows_of){b, kv, first, count}, COLS, a->size, padded);
        turn(w->k_turned + n * block, w->k + n * block, padded);
    }
    for (int64_t g = 0; g < group; g++)
        for (int64_t first = 0; first < a->queries; first += ROWS)
            backward_block(j, w, b, kv * group + g, first);
    store_rows(&a->dk, (rows_of){b, kv, 0, a->keys}, w->dk, a->size, padded);
    store_rows(&a->dv, (rows_of){b, kv, 0, a->keys}, w->dv, a->size, padded);
}

static void backward_heads(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    float *memory = cup__aligned(64, (size_t)j->scratch * sizeof *memory);
    if (!memory) {
        atomic_store(&j->failed, true);
        return;
    }
    desk w;
    desk_lay(&w, memory, j->blocks * COLS * j->padded, ROWS * j->padded);
    for (int64_t i = begin; i < end; i++)
        backward_head(j, &w, i / j->a->kv_heads, i % j->a->kv_heads);
    cup__free(memory);
}

cup_status cup__attention_cpu_grad(cup__attention *a)
{
    job j = {.a = a, .padded = (a->size + LANES - 1) / LANES * LANES,
             .blocks = (a->keys + COLS - 1) / COLS};
    j.scratch = 5 * j.blocks * COLS * j.padded + 3 * ROWS * j.padded + 3 * ROWS * COLS;
    return run(&j, a->batch * a->kv_heads, backward_heads, "attention_grad");
}
