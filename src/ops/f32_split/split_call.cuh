/* The arguments of f32_split.cu and f32_split_wgmma.cu, as the host fills them and the kernels
 * read them. Plain C, included by both. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_CALL_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_CALL_CUH

/* Words that the kernels of one product leave each other; all are 0 between products. */
enum {
    SPLIT_WIDE,  /* set when an element is too small beside the largest of its row or column */
    SPLIT_LOOKS, /* blocks of the last kernel that have looked */
    SPLIT_SMALL, /* elements so small that they have lost bits */
    SPLIT_AGAIN, /* set when such bits may be missed in an element of the result */
    SPLIT_WORDS
};

/* A batch of matrices that becomes planes: lines of neighbours, `distance` apart. */
typedef struct split_side {
    const float *from;
    unsigned short *to;  /* planes x batch x lines x padded */
    int *exponents;      /* powers of two that rows of a, or columns of b, were scaled by */
    float *most;         /* chunks x batch x length, where lines do not lie along k */
    long long length, lines, distance, padded, batch, batch_distance;
    int along;           /* PRODUCT_ALONG_K or PRODUCT_ALONG_MN */
    int whole;           /* elements can be read four at a time */
    int chunks;          /* into how many pieces the lines are shared out, of chunk_lines each */
    long long chunk_lines, blocks;
} split_side;

typedef struct split_call {
    split_side side[2];
    unsigned *words; /* SPLIT_WORDS */
    int when;        /* whether the kernel does anything only if the product is done again */
} split_call;

/* What the product needs beside wgmma_call. */
typedef struct split_product {
    const float *a, *b;
    long long a_row, a_k, a_batch, b_column, b_k, b_batch, k;
    const int *a_exponents, *b_exponents; /* or null */
    int a_matrices, b_matrices;           /* in a plane: 1, or those of the batch */
    unsigned *words;                      /* SPLIT_WORDS, or null */
} split_product;

#endif
