/* The argument of the kernels of draw_token, as the host fills it and they read it. Plain C,
 * included by both. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_CALL_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_CALL_CUH

#define DRAW_THREADS 1024
#define DRAW_LEAST -40.0f /* powers of 2 below have no weight */
#define DRAW_WORD 0x73616d70u /* sets these random numbers apart from others */

typedef struct draw_call {
    const void *logits;
    int *tokens;
    long long *counters;
    int counter_count, rows, count;
    long long row;  /* from one row of logits to the next */
    int top_k;      /* 0: all */
    int likeliest;  /* nothing is drawn */
    float scale;    /* of a logit, for powers of 2 */
    float reach;    /* from the likeliest to logits that have no weight, with a margin */
    double top_p;   /* 0: all */
    unsigned long long seed;
    unsigned *done; /* of draw_token_codes.cu: rows that are, 0 before and after */
} draw_call;

#endif
