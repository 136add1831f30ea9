/* The arguments of conv_halo.cu and conv_halo_weight.cu beside their tensor maps, as the host fills
 * them and the kernels read them. Plain C, included by both. Of two numbers the first is for rows,
 * the second for columns. */
#ifndef CUP_OPS_CONV_CONV_HALO_CUH
#define CUP_OPS_CONV_CONV_HALO_CUH

#include "wgmma_call.cuh"

typedef struct conv_halo {
    wgmma_call all;    /* of which bias, n and units are looked at */
    divisor tiles[2];  /* of an image */
    int from[2];       /* where the first tap of the first place lies in the image */
    int weight;        /* which matrix the first tap has, and how far those of the next row */
    int weight_step[2]; /* and of the next column are apart */
} conv_halo;

typedef struct conv_halo_weight {
    float *sums;       /* of each part, by result, tap and channel, of these whole chunks */
    divisor chunks[2]; /* of 64 results and channels, each two of which are blocks */
    divisor tiles[2];  /* of an image */
    int from[2];
    int units, part;   /* tiles of all images, and of a part */
    int results;
} conv_halo_weight;

#endif
