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

/* The work of linear_stream.cu: stages of rows of w. */
typedef struct stream_call {
    long long stages, per_tile; /* of all tiles; of one */
    float *partial;             /* two pieces of sums a block */
    unsigned *arrived;          /* for each tile, zero between kernels */
} stream_call;

#endif
