/* How the next token of a text is drawn from what a model says of all. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_H
#define CUP_OPS_RANDOM_DRAW_TOKEN_H

#include <stdint.h>

typedef struct cup__draw {
    double temperature; /* 0: 1; below 0: the likeliest */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0: all */
    uint64_t seed, number;
} cup__draw;

/* One of `count` tokens; -1 where no logit is a number, -2 where there is no memory. */
int64_t cup__draw_token(const float *logits, int64_t count, const cup__draw *how);

#endif
