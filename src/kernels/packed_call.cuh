/* Weights of 8 or 4 bits with scales, as the host describes them and the kernels read them. Plain
 * C, included by both. */
#ifndef CUP_KERNELS_PACKED_CALL_CUH
#define CUP_KERNELS_PACKED_CALL_CUH

typedef struct packed_call {
    void *weight;         /* n rows of k numbers: int8, or two of 4 bits a byte, the lower first */
    void *scale;          /* n x groups */
    unsigned char *zero;  /* n x groups, of 4 bits; null: 8 */
    long long n, k, groups, group;
} packed_call;

/* The argument of weight_only_stream.cu and skinny_stream.cu. A cluster of blocks has `units`
 * times 16 rows of the weights, of which each block reads `part` bytes; where weights lie along
 * n it is columns and lines. */
typedef struct stream_call {
    const char *weight;
    const void *x;
    long long weight_row; /* in bytes */
    int n, line, part, units, m; /* line: the bytes of a row of weights */
    int cluster_shift;           /* clusters have 1 << cluster_shift blocks */
    long long x_row, y_row;
    long long weight_batch, x_batch, y_batch; /* weight_batch in bytes */
    void *y, *pre;
    const void *bias;
    const void *scale;
    const unsigned char *zero;
    int groups, shift; /* a group has 1 << shift of k, or all */
} stream_call;

/* The argument of weight_only_wgmma.cu. Stages are 64 of k. */
typedef struct codes_call {
    void *y;
    const void *bias, *scale;
    const unsigned char *zero;
    long long m, n, tiles, tiles_m, tiles_n; /* tiles_m: along rows of x */
    int groups, group_stages, stages, part_stages;
} codes_call;

#endif
