#include "ops/attention/attention_blocks.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/floats.h"

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#define FAST
#else
#define UNROLL _Pragma("GCC unroll 4")
#define FAST __attribute__((optimize("O3"))) /* in builds with sanitizers too */
#endif

/* c[4, 2 vectors] += a[4, count] b[count, 2 vectors], or one vector wide. */
#define TILE(name, vector)                                                                         \
    static inline __attribute__((always_inline)) void tile_##name(cup__matrices m, int64_t count,  \
                                                                  int vectors)                     \
    {                                                                                              \
        enum { LANES = sizeof(vector) / sizeof(float) };                                           \
        vector sum[4][2];                                                                          \
        UNROLL for (int r = 0; r < 4; r++) UNROLL for (int w = 0; w < vectors; w++)                \
            sum[r][w] = *(const vector *)(m.c + r * m.c_row + w * LANES);                          \
        for (int64_t k = 0; k < count; k++)                                                        \
            UNROLL for (int r = 0; r < 4; r++) UNROLL for (int w = 0; w < vectors; w++)            \
                sum[r][w] += m.a[r * m.a_row + k * m.a_step] *                                     \
                             *(const vector *)(m.b + k * m.b_row + w * LANES);                     \
        UNROLL for (int r = 0; r < 4; r++) UNROLL for (int w = 0; w < vectors; w++)                \
            *(vector *)(m.c + r * m.c_row + w * LANES) = sum[r][w];                                \
    }

#define MULTIPLY(name, attribute, vector)                                                          \
    TILE(name, vector)                                                                             \
    attribute static void multiply_##name(cup__matrices m, int64_t rows, int64_t width,            \
                                          int64_t count)                                           \
    {                                                                                              \
        enum { TWO = 2 * sizeof(vector) / sizeof(float) };                                         \
        for (int64_t n = 0; n < width; n += TWO)                                                   \
            for (int64_t r = 0; r < rows; r += 4) {                                                \
                cup__matrices part = m;                                                            \
                part.c += r * m.c_row + n;                                                         \
                part.a += r * m.a_row;                                                             \
                part.b += n;                                                                       \
                if (n + TWO <= width)                                                              \
                    tile_##name(part, count, 2);                                                   \
                else                                                                               \
                    tile_##name(part, count, 1);                                                   \
            }                                                                                      \
    }

/* gcc keeps vectors longer than the machine's in memory, at a thirtieth of the speed. */
typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));
MULTIPLY(plain, FAST, float4)
#if defined(__x86_64__)
typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float float16 __attribute__((vector_size(64), aligned(4), may_alias));
MULTIPLY(avx2, FAST __attribute__((target("avx2"))), float8)
MULTIPLY(avx512, FAST __attribute__((target("avx512f"))), float16)
#endif

void cup__blocks_multiply(cup__matrices m, int64_t rows, int64_t width, int64_t count)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        multiply_avx512(m, rows, width, count);
    else if (__builtin_cpu_supports("avx2"))
        multiply_avx2(m, rows, width, count);
    else
#endif
        multiply_plain(m, rows, width, count);
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
