/* What forward and backward of attention on the CPU share: blocks of queries and keys as floats. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_BLOCKS_H
#define CUP_OPS_ATTENTION_ATTENTION_BLOCKS_H

#include <stdatomic.h>

#include "base/parallel.h"
#include "ops/attention/attention.h"
#include "ops/elementwise/pointwise.h"

#define CUP__ROWS 32 /* queries a block */
#define CUP__COLS 64 /* keys a block */
#define CUP__LANES 16

typedef struct cup__blocks {
    cup__attention *a;
    int64_t padded;  /* size, up to a multiple of CUP__LANES */
    int64_t blocks;  /* of keys */
    int64_t pieces;  /* that the queries of a head are cut into */
    int64_t scratch; /* numbers a piece of work needs */
    atomic_bool failed;
} cup__blocks;

/* c += a b; a's rows and columns may lie either way. */
typedef struct cup__matrices {
    float *c;
    const float *a, *b;
    int64_t c_row, a_row, a_step, b_row;
} cup__matrices;

/* c[rows, width] += a[rows, count] b[count, width]; rows are a multiple of 4, width of lanes. */
void cup__blocks_multiply(cup__matrices m, int64_t rows, int64_t width, int64_t count);

/* Rows of a head. */
typedef struct cup__rows_of {
    int64_t batch, head, first, count;
} cup__rows_of;

/* Rows of a head as floats, `padded` apart and filled up with zeros; rows past the end are zero. */
void cup__blocks_load(float *to, const cup__heads *h, cup__rows_of from, int64_t room, int64_t size,
                      int64_t padded);
void cup__blocks_store(const cup__heads *h, cup__rows_of to, const float *from, int64_t size,
                       int64_t padded);

/* A block of CUP__COLS rows turned: [padded, CUP__COLS]. */
void cup__blocks_turn(float *to, const float *from, int64_t padded);

/* What dropout multiplies the probabilities of a block by. */
void cup__blocks_keep(float *keep, const cup__attention *a, int64_t row, int64_t query,
                      int64_t key);

/* The keys [from, to) of a block that a query sees. */
typedef struct cup__range {
    int64_t from, to;
} cup__range;

cup__range cup__blocks_seen(const cup__attention *a, int64_t batch, int64_t query, int64_t key);

/* Blocks of keys that the queries below `end` see anything of, and those before them that the
 * queries from `first` on see nothing of. */
int64_t cup__blocks_end(const cup__attention *a, int64_t batch, int64_t end);
int64_t cup__blocks_begin(const cup__attention *a, int64_t batch, int64_t first);

/* Whether the lists name any key of a block of keys for any query of a block. */
bool cup__blocks_listed(const cup__attention *a, cup__rows_of at, int64_t key);
/* Scores of keys that the lists do not name become what e^(scale score) is 0 of. */
void cup__blocks_hide(const cup__attention *a, cup__rows_of at, int64_t key, float scale,
                      float *score);

/* Adds the bias of one query, the first of `at`, to its scores of a block of keys. */
void cup__blocks_bias(const cup__attention *a, cup__rows_of at, int64_t key, float *score);

/* Scales the scores of one query, the first of `at`, of a block of keys and lets the formula change
 * them. */
cup__score_run cup__blocks_formula(const cup__attention *a, cup__rows_of at, int64_t key,
                                   float *score, float *room);

cup_status cup__blocks_run(cup__blocks *j, int64_t count, cup__body body, const char *name);

static inline __attribute__((always_inline)) float cup__sum_lanes(const float *part)
{
    float sum = 0;
    for (int i = 0; i < CUP__LANES; i++)
        sum += part[i];
    return sum;
}

static inline int64_t cup__least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Up to a multiple of CUP__LANES. */
static inline int64_t cup__lanes(int64_t count)
{
    return (count + CUP__LANES - 1) / CUP__LANES * CUP__LANES;
}

#endif
