/* The argument of conv_halo.cu beside its tensor maps, as the host fills it and the kernel reads
 * it. Plain C, included by both. Of two numbers the first is for rows, the second for columns. */
#ifndef CUP_OPS_CONV_CONV_HALO_CUH
#define CUP_OPS_CONV_CONV_HALO_CUH

#include "wgmma_call.cuh"

typedef struct conv_halo {
    wgmma_call all;    /* of which bias, n, units, moments and, for these, m are looked at */
    divisor tiles[2];  /* of an image */
    int from[2];       /* where the first tap of the first place lies in the image */
    int weight;        /* which matrix the first tap has, and how far those of the next row */
    int weight_step[2]; /* and of the next column are apart */
} conv_halo;

#endif
