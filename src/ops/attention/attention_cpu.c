/* Attention on the CPU in single precision: the heads are packed once, then blocks of queries meet
 * blocks of keys with a running maximum and sum. One head is the work of one thread from end to
 * end, so that results do not depend on how many there are. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/wide_math.h"
#include "ops/attention/attention_blocks.h"

/* The first `wide` scores of one query become e^(scaled score - maximum); returns what the row's
 * sums so far must be multiplied by. */
static inline __attribute__((always_inline)) float soften(float *score, int wide, cup__range seen,
                                                          float scale, float *most, float *sum)
{
    float top[CUP__LANES], part[CUP__LANES] = {0}, before = *most;
    for (int i = 0; i < CUP__LANES; i++)
        top[i] = before;
    for (int n = 0; n < wide; n += CUP__LANES)
        for (int i = 0; i < CUP__LANES; i++) {
            float *at = score + n + i;
            *at = n + i >= seen.from && n + i < seen.to ? *at * scale : -INFINITY;
            top[i] = *at > top[i] ? *at : top[i];
        }
    for (int i = 0; i < CUP__LANES; i++)
        *most = top[i] > *most ? top[i] : *most;
    float base = *most == -INFINITY ? 0 : *most;
    for (int n = 0; n < wide; n += CUP__LANES)
        for (int i = 0; i < CUP__LANES; i++) {
            score[n + i] = cup__exp_f32(score[n + i] - base);
            part[i] += score[n + i];
        }
    float fade = cup__exp_f32(before - base);
    *sum = *sum * fade + cup__sum_lanes(part);
    return fade;
}

typedef struct state {
    float most[CUP__ROWS], sum[CUP__ROWS];
    cup__range seen[CUP__ROWS];
} state;

CUP__WIDE static void soften_rows(float *score, int wide, float *out, state *s, int64_t rows,
                                  int64_t padded, float scale)
{
    for (int64_t r = 0; r < rows; r++) {
        float fade =
            soften(score + r * CUP__COLS, wide, s->seen[r], scale, &s->most[r], &s->sum[r]);
        for (int64_t d = 0; d < padded; d++)
            out[r * padded + d] *= fade;
    }
}

/* `room` is a formula's. */
CUP__WIDE static void change_rows(const cup__attention *a, int64_t row, int64_t query, int64_t key,
                                  int64_t rows, float *score, float *room)
{
    float slope[CUP__COLS];
    for (int64_t r = 0; r < rows; r++) {
        if (a->score.formula) {
            cup__blocks_formula(a, (cup__rows_of){row / a->heads, row % a->heads, query + r, 1},
                                key, score + r * CUP__COLS, room);
            continue;
        }
        cup__attention_change(&a->score, (float)a->scale, row % a->heads,
                              cup__attention_position(&a->mask, row / a->heads, query + r), key,
                              CUP__COLS, score + r * CUP__COLS, slope);
        cup__blocks_bias(a, (cup__rows_of){row / a->heads, row % a->heads, query + r, 1}, key,
                         score + r * CUP__COLS);
    }
}

CUP__WIDE static void weigh(float *score, const float *keep, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        score[i] *= keep[i];
}

/* Keys turned and values of all blocks up to `blocks`. */
static void pack_keys(const cup__blocks *j, float *turned, float *values, float *scratch, int64_t b,
                      int64_t kv, int64_t blocks)
{
    const cup__attention *a = j->a;
    for (int64_t n = 0; n < blocks; n++) {
        int64_t first = n * CUP__COLS, block = CUP__COLS * j->padded;
        int64_t count = a->keys - first < CUP__COLS ? a->keys - first : CUP__COLS;
        cup__blocks_load(scratch, &a->k, (cup__rows_of){b, kv, first, count}, CUP__COLS, a->size,
                         j->padded);
        cup__blocks_turn(turned + n * block, scratch, j->padded);
        cup__blocks_load(values + n * block, &a->v, (cup__rows_of){b, kv, first, count}, CUP__COLS,
                         a->size, j->padded);
    }
}

static void finish_rows(const cup__attention *a, int64_t head, int64_t first, int64_t count,
                        float *out, const state *s, int64_t padded)
{
    for (int64_t r = 0; r < count; r++) {
        double most = s->most[r], sum = s->sum[r], fade = 1;
        if (a->score.sinks)
            fade = cup__attention_sink(cup__attention_of_head(a->score.sinks, head % a->heads),
                                       &most, &sum);
        float inverse = sum == 0 ? 0 : a->score.sinks ? (float)(fade / sum) : 1 / s->sum[r];
        for (int64_t d = 0; d < a->size; d++)
            out[r * padded + d] = sum == 0 ? 0 : out[r * padded + d] * inverse;
        if (a->lse)
            ((float *)a->lse->data)[head * a->queries + first + r] =
                sum == 0 ? -INFINITY : (float)most + logf((float)sum);
    }
    cup__blocks_store(&a->o, (cup__rows_of){head / a->heads, head % a->heads, first, count}, out,
                      a->size, padded);
}

/* One block of queries against all the keys it sees. */
static void forward_block(const cup__blocks *j, int64_t head, int64_t first, const float *turned,
                          const float *values, float *q)
{
    const cup__attention *a = j->a;
    int64_t padded = j->padded, count = cup__least(a->queries - first, CUP__ROWS),
            rows = (count + 3) & ~3;
    float *out = q + CUP__ROWS * padded, *score = out + CUP__ROWS * padded,
          *keep = score + CUP__ROWS * CUP__COLS;
    cup__rows_of at = {head / a->heads, head % a->heads, first, count};
    state s = {.sum = {0}};
    for (int r = 0; r < CUP__ROWS; r++)
        s.most[r] = -INFINITY;
    cup__blocks_load(q, &a->q, at, CUP__ROWS, a->size, padded);
    memset(out, 0, (size_t)(CUP__ROWS * padded) * sizeof *out);
    int64_t blocks = cup__blocks_end(a, head / a->heads, first + count);
    for (int64_t n = cup__blocks_begin(a, head / a->heads, first); n < blocks; n++) {
        if (!cup__blocks_listed(a, at, n * CUP__COLS))
            continue;
        for (int r = 0; r < rows; r++)
            s.seen[r] = cup__blocks_seen(a, head / a->heads, first + r, n * CUP__COLS);
        int64_t keys = cup__least(a->keys - n * CUP__COLS, CUP__COLS), wide = cup__lanes(keys);
        memset(score, 0, (size_t)(rows * CUP__COLS) * sizeof *score);
        cup__blocks_multiply((cup__matrices){score, q, turned + n * CUP__COLS * padded, CUP__COLS,
                                             padded, 1, CUP__COLS},
                             rows, wide, a->size);
        if (a->score.changed)
            change_rows(a, head, first, n * CUP__COLS, rows, score, keep + CUP__ROWS * CUP__COLS);
        float scale = a->score.changed ? 1 : (float)a->scale;
        cup__blocks_hide(a, at, n * CUP__COLS, scale, score);
        soften_rows(score, (int)wide, out, &s, rows, padded, scale);
        if (a->dropout > 0) {
            cup__blocks_keep(keep, a, head, first, n * CUP__COLS);
            weigh(score, keep, rows * CUP__COLS);
        }
        cup__blocks_multiply((cup__matrices){out, score, values + n * CUP__COLS * padded, padded,
                                             CUP__COLS, 1, padded},
                             rows, padded, keys);
    }
    finish_rows(a, head, first, count, out, &s, padded);
}

static void forward_pieces(int64_t begin, int64_t end, void *user)
{
    cup__blocks *j = user;
    const cup__attention *a = j->a;
    float *scratch = cup__aligned(64, (size_t)j->scratch * sizeof *scratch);
    if (!scratch) {
        atomic_store(&j->failed, true);
        return;
    }
    float *turned = scratch, *values = turned + j->blocks * CUP__COLS * j->padded;
    float *rest = values + j->blocks * CUP__COLS * j->padded;
    int64_t query_blocks = (a->queries + CUP__ROWS - 1) / CUP__ROWS;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / j->pieces, piece = i % j->pieces;
        int64_t from = query_blocks * piece / j->pieces;
        int64_t to = query_blocks * (piece + 1) / j->pieces;
        int64_t kv = head % a->heads / (a->heads / a->kv_heads);
        pack_keys(j, turned, values, rest, head / a->heads, kv,
                  cup__blocks_end(a, head / a->heads, cup__least(to * CUP__ROWS, a->queries)));
        for (int64_t n = from; n < to; n++)
            forward_block(j, head, n * CUP__ROWS, turned, values, rest);
    }
    cup__free(scratch);
}

cup_status cup__attention_cpu(cup__attention *a)
{
    cup__blocks j = {.a = a,
                     .padded = cup__lanes(a->size),
                     .blocks = (a->keys + CUP__COLS - 1) / CUP__COLS,
                     .pieces = 1};
    int64_t heads = a->batch * a->heads, query_blocks = (a->queries + CUP__ROWS - 1) / CUP__ROWS;
    if (heads < 4 * cup__threads() && query_blocks > 1)
        j.pieces = cup__least(query_blocks, 4);
    j.scratch = 2 * j.blocks * CUP__COLS * j.padded + (CUP__COLS + 2 * CUP__ROWS) * j.padded +
                2 * CUP__ROWS * CUP__COLS + cup__score_floats(a, CUP__COLS);
    return cup__blocks_run(&j, heads * j.pieces, forward_pieces, "attention");
}
