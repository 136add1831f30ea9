/* The one argument of a reduction's kernels, as the host fills it and the kernel reads it. Plain
 * C, included by both. Dimensions stand outermost first, neighbours merged where they could be. */
#ifndef CUP_OPS_REDUCE_REDUCE_CALL_CUH
#define CUP_OPS_REDUCE_REDUCE_CALL_CUH

#define REDUCE_DIMS 8
#define REDUCE_THREADS 256
#define REDUCE_COUNTERS 4096 /* results, or tiles of them, that several blocks may share */

typedef struct reduce_call {
    const void *x;
    void *y, *partial;                   /* a state for each piece of each result */
    long long outputs, length;           /* results, and elements folded into each */
    long long pieces, piece;             /* of a result, and their elements */
    long long across_size, across_step;  /* the kept dimension that tiles lie along: its size, */
    long long tiles;                     /* and how far its neighbours are apart in the result */
    double argument; /* of the fold, for its result */
    int kept, folded, across; /* dimensions */
    long long kept_size[REDUCE_DIMS], kept_stride[REDUCE_DIMS];
    long long folded_size[REDUCE_DIMS], folded_stride[REDUCE_DIMS];
} reduce_call;

#endif
