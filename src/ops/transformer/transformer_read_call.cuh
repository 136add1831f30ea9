/* The one argument of the kernel of transformer_read, as the host fills it and it reads it. Plain
 * C, included by both. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_CALL_CUH
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_CALL_CUH

#define LAYER_PAIRS 128 /* of a head, that turn */
#define LAYER_WARPS 8
#define LAYER_THREADS (32 * LAYER_WARPS + 32) /* the last warp brings weights */

/* Lines of a weight come as boxes of tensor maps: pieces of a line, so wide that a warp reads one
 * at a time, of several lines. The pieces of a stage lie behind each other. */
#define LAYER_PIECES(columns) (((columns) + 255) / 256)
#define LAYER_PIECE(columns) \
    (((columns) / 8 + LAYER_PIECES(columns) - 1) / LAYER_PIECES(columns) * 8)
#define LAYER_BOX(columns, lines) ((2 * (lines) * LAYER_PIECE(columns) + 127) / 128 * 128)

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
    int ahead;           /* the kernel before writes no weights and no position */
    float eps, scale;    /* scale: of a score, for powers of 2 */
    double frequency[LAYER_PAIRS];
} layer_call;

#endif
