#include "ops/attention/attention_blocks.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/floats.h"

typedef float lanes __attribute__((vector_size(4 * CUP__LANES), aligned(4), may_alias));

/* c[4, 16 wide] += a[4, count] b[count, 16 wide] */
static inline __attribute__((always_inline)) void tile(cup__matrices m, int64_t count, int wide)
{
    lanes sum[4][2];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            sum[r][w] = *(const lanes *)(m.c + r * m.c_row + w * CUP__LANES);
    for (int64_t k = 0; k < count; k++) {
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
            for (int w = 0; w < wide; w++)
                sum[r][w] += m.a[r * m.a_row + k * m.a_step] *
                             *(const lanes *)(m.b + k * m.b_row + w * CUP__LANES);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
#pragma GCC unroll 2
        for (int w = 0; w < wide; w++)
            *(lanes *)(m.c + r * m.c_row + w * CUP__LANES) = sum[r][w];
}

/* c[rows, width] += a[rows, count] b[count, width]; rows are a multiple of 4, width of lanes. */
CUP__WIDE void cup__blocks_multiply(cup__matrices m, int64_t rows, int64_t width, int64_t count)
{
    for (int64_t n = 0; n < width; n += 2 * CUP__LANES)
        for (int64_t r = 0; r < rows; r += 4) {
            cup__matrices part = m;
            part.c += r * m.c_row + n;
            part.a += r * m.a_row;
            part.b += n;
            if (n + 2 * CUP__LANES <= width)
                tile(part, count, 2);
            else
                tile(part, count, 1);
        }
}

static int64_t offset_of(const cup__heads *h, cup__rows_of at, int64_t row)
{
    return h->offset + at.batch * h->stride[0] + at.head * h->stride[1] +
           (at.first + row) * h->stride[2];
}

/* Rows of a head as floats, `padded` apart and filled up with zeros; rows past the end are zero. */
void cup__blocks_load(float *to, const cup__heads *h, cup__rows_of from, int64_t room, int64_t size,
                      int64_t padded)
{
    for (int64_t i = 0; i < from.count; i++, to += padded) {
        cup__floats_read(to, h->tensor, offset_of(h, from, i), h->stride[3], size);
        memset(to + size, 0, (size_t)(padded - size) * sizeof *to);
    }
    memset(to, 0, (size_t)((room - from.count) * padded) * sizeof *to);
}

void cup__blocks_store(const cup__heads *h, cup__rows_of to, const float *from, int64_t size,
                       int64_t padded)
{
    for (int64_t i = 0; i < to.count; i++, from += padded)
        cup__floats_write(h->tensor, offset_of(h, to, i), h->stride[3], from, size);
}

/* A block of CUP__COLS rows turned: [padded, CUP__COLS]. */
CUP__WIDE void cup__blocks_turn(float *to, const float *from, int64_t padded)
{
    for (int64_t d = 0; d < padded; d++)
        for (int64_t k = 0; k < CUP__COLS; k++)
            to[d * CUP__COLS + k] = from[k * padded + d];
}

/* What dropout multiplies the probabilities of a block by. */
void cup__blocks_keep(float *keep, const cup__attention *a, int64_t row, int64_t query, int64_t key)
{
    uint32_t threshold = cup__attention_threshold(a->dropout);
    float factor = (float)cup__attention_factor(a->dropout);
    for (int64_t i = 0; i < CUP__ROWS * CUP__COLS / 8; i++) {
        int64_t r = i / (CUP__COLS / 4) % 8 + i / (CUP__COLS * 2) * 16;
        int64_t c = i % 4 * 2 + i / 4 % (CUP__COLS / 16) * 16;
        uint64_t block = cup__attention_random_block(a, row, query + r, key + c);
        cup__philox_words words = cup__philox_block(a->random, a->sequence, block);
        for (int n = 0; n < 8; n++) {
            int64_t y = r + (n & 1) * 8, x = c + (n >> 1 & 1) + (n >> 2) * 8;
            keep[y * CUP__COLS + x] = cup__attention_number(&words, y, x) < threshold ? 0 : factor;
        }
    }
}

static int64_t within(int64_t key)
{
    return key < 0 ? 0 : key > CUP__COLS ? CUP__COLS : key;
}

cup__range cup__blocks_seen(const cup__attention *a, int64_t batch, int64_t query, int64_t key)
{
    if (query >= a->queries)
        return (cup__range){0, 0};
    return (cup__range){within(cup__attention_first(&a->mask, batch, query) - key),
                        within(cup__attention_end(&a->mask, batch, query) - key)};
}

/* Blocks of keys that the queries below `end` see anything of, and those before them that the
 * queries from `first` on see nothing of. */
int64_t cup__blocks_end(const cup__attention *a, int64_t batch, int64_t end)
{
    return end > 0 ? (cup__attention_end(&a->mask, batch, end - 1) + CUP__COLS - 1) / CUP__COLS : 0;
}

int64_t cup__blocks_begin(const cup__attention *a, int64_t batch, int64_t first)
{
    return cup__attention_first(&a->mask, batch, first) / CUP__COLS;
}

cup_status cup__blocks_run(cup__blocks *j, int64_t count, cup__body body, const char *name)
{
    cup__parallel_for(count, 1, body, j);
    if (atomic_load(&j->failed))
        return cup__fail(&j->a->c->error, CUP_MEMORY, "%s: out of host memory", name);
    return CUP_OK;
}

void cup__blocks_bias(const cup__attention *a, cup__rows_of at, int64_t key, float *score)
{
    int64_t count = cup__least(a->keys - key, CUP__COLS);
    if (!a->score.bias || at.first >= a->queries)
        return;
    for (int64_t i = 0; i < count; i++)
        score[i] += (float)cup__attention_bias(&a->score, at.batch, at.head, at.first, key + i);
}

bool cup__blocks_listed(const cup__attention *a, cup__rows_of at, int64_t key)
{
    int64_t to = cup__least(key + CUP__COLS, a->keys);
    for (int64_t r = 0; r < at.count; r++)
        if (cup__attention_is_any_listed(&a->lists, at.batch, at.head, at.first + r, key, to))
            return true;
    return false;
}

void cup__blocks_hide(const cup__attention *a, cup__rows_of at, int64_t key, float scale,
                      float *score)
{
    int64_t count = cup__least(a->keys - key, CUP__COLS);
    for (int64_t r = 0; r < at.count && a->lists.bits; r++)
        for (int64_t i = 0; i < count; i++)
            if (!cup__attention_is_listed(&a->lists, at.batch, at.head, at.first + r, key + i))
                score[r * CUP__COLS + i] = scale < 0 ? INFINITY : -INFINITY;
}

cup__score_run cup__blocks_formula(const cup__attention *a, cup__rows_of at, int64_t key,
                                   float *score, float *room)
{
    float scale = (float)a->scale;
    for (int i = 0; i < CUP__COLS; i++)
        score[i] *= scale;
    cup__score_place place = {at.batch, at.head, at.first, key, CUP__COLS};
    cup__score_run r = cup__score_evaluate(a, place, false, score, room);
    memmove(score, r.gives[CUP__GIVES_SCORE], CUP__COLS * sizeof *score);
    return r;
}
