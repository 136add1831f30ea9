/* The argument of wgmma.cu beside its tensor maps, as the host fills it and the kernel reads
 * it. Plain C, included by both. */
#ifndef CUP_KERNELS_WGMMA_CALL_CUH
#define CUP_KERNELS_WGMMA_CALL_CUH

#include "divide.cuh"
#include "product_call.cuh"

typedef struct wgmma_call {
    const void *bias;      /* n elements, two at a time aligned; or null */
    void *y, *pre;         /* for results that a tensor map cannot describe */
    const void *other;     /* a matrix that lies as y does; or null */
    long long y_row, y_batch[2];
    float factor;          /* of a b */
    int m, n;
    int k_tiles;           /* of TILE_K */
    int tiles_m, tiles_n;  /* of one matrix, in tiles of a cluster */
    int units;             /* of work: tiles of all matrices, each times `parts` */
    int group;             /* tiles along one side that are walked before the other side moves on */
    int parts, part_tiles; /* into how many parts k is cut, and of how many tiles */
    int batch_inner;       /* matrices of the innermost batch dimension */
    int a_batch[2], b_batch[2]; /* 1 where the operand moves with the batch dimension */
    float *partial;        /* sums of parts, and how many have come and gone for each tile; zero */
    unsigned *arrived;     /* between calls */
    void *a_sums;          /* where the sums of a's lines go, of y's dtype; or null */
    float *shares;         /* of these sums, and how many have come for each panel of a; zero */
    unsigned *shares_come; /* between calls */
    product_scale a_scale, b_scale;
    const unsigned long long *random; /* seed and step; as in ops/random/dropout.h */
    unsigned char *mask;              /* or null */
    unsigned threshold, sequence;
    float kept;           /* factor of what dropout keeps */
    unsigned threshold_rest;
    const float *y_scale; /* of the codes that y consists of, and the largest size before, as */
    unsigned *y_most;     /* the bits of a float, zero before the call */
    const int *groups; /* the table of group_count groups */
    int group_count;
    float *moments; /* mean and squared distances of each column, of lines of rows; or null */
} wgmma_call;

/* The same for a list of products, whose tensor maps are an argument of their own. */
#define WGMMA_LIST 32

typedef struct wgmma_item {
    int k_tiles, tiles_m, tiles_n;
    int first; /* units of the items before */
} wgmma_item;

typedef struct wgmma_list {
    wgmma_call all;
    int count;
    wgmma_item item[WGMMA_LIST];
} wgmma_list;

/* The same for convolutions, as sums over the taps of a kernel. A map of places walks over those of
 * an image, TILE_K channels of each. Of two numbers the first is for rows, the second for
 * columns. */
#define WGMMA_CONV_ROWS 1  /* a's rows are places, k their taps and channels; b is the weight, as */
                           /* a matrix for each tap */
#define WGMMA_CONV_DEPTH 2 /* k are places, of a as rows and of b under each tap, which with the */
                           /* channels makes b's columns; with BATCH y has a matrix for each */
                           /* part of k */

typedef struct wgmma_conv {
    wgmma_call all;
    divisor places[2];  /* of an image */
    int from[2];        /* where the first tap of the first place lies in the image */
    int step[2];        /* from place to place */
    int tap_step[2];    /* from tap to tap */
    int taps, taps_wide; /* all of them, and those side by side */
    int chunks;         /* of TILE_K channels */
    int weight;         /* which matrix the first tap has, and how far those of the next row */
    int weight_step[2]; /* and of the next column are apart */
    long long y_step[3]; /* images, rows and columns of y, where its rows are not evenly spread */
} wgmma_conv;

#endif
