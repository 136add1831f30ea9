/* The one argument of the rope kernel, as the host fills it and the kernel reads it. Plain C,
 * included by both. */
#ifndef CUP_OPS_ROPE_ROPE_CALL_CUH
#define CUP_OPS_ROPE_ROPE_CALL_CUH

#define ROPE_PAIRS 256
#define ROPE_THREADS 128

typedef struct rope_call {
    const void *x;
    void *y;
    long long x_stride[4], y_stride[4]; /* batch, head, position, feature; in elements */
    long long rows;                     /* batch times positions */
    int heads, positions, size, pairs;
    int heads_turned, heads_each; /* of all, and of one thread */
    int inverse;
    long long offset;
    double frequency[ROPE_PAIRS]; /* in turns a position; for f64 in radians */
    double amplitude; /* of cosines and sines, where the kernel is AMPLIFIED */
    const void *starts;   /* added to positions, where it is PLACED: of each batch, */
    int starts_step;      /* or with 0 of all */
} rope_call;

#endif
