/* The one argument of the kernel of transformer_read, as the host fills it and it reads it. Plain
 * C, included by both. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_CALL_CUH
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_CALL_CUH

#define LAYER_PAIRS 128 /* of a head, that turn */
#define LAYER_WARPS 8
#define LAYER_THREADS (32 * LAYER_WARPS + 32) /* the last warp brings weights */

typedef struct layer_call {
    const void *x, *delta, *position; /* delta: NULL where there is none */
    void *keys, *values;
    const void *norm1, *norm1_bias, *qkv, *qkv_bias, *out, *out_bias;
    const void *norm2, *norm2_bias, *up, *up_bias, *down, *down_bias;
    void *sum, *change;  /* the results: x with all but the MLP added, and what the MLP adds */
    float *attended;     /* [kv_heads, width]: what each adds to x */
    float *parts;        /* [clusters, width]: the same of the MLP */
    unsigned *counters;  /* zero between kernels; see there */
    int length;          /* of keys */
    int columns;         /* of the MLP that a cluster has at most */
    int ahead;           /* the kernel before writes no weights and no position */
    float eps, scale;    /* scale: of a score, for powers of 2 */
    double frequency[LAYER_PAIRS];
} layer_call;

#endif
