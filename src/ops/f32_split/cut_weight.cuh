/* The argument of cut_weight.cu beside its tensor maps, as the host fills it and the kernel reads
 * it. Plain C, included by both. */
#ifndef CUP_OPS_F32_SPLIT_CUT_WEIGHT_CUH
#define CUP_OPS_F32_SPLIT_CUT_WEIGHT_CUH

#include "wgmma_call.cuh"

#define CUT_WEIGHT_STEP 32 /* places that are multiplied at a time */

typedef struct cut_weight {
    wgmma_conv walk;   /* of which places, steps, taps and chunks of 32 channels are looked at */
    float *sums;       /* of each part, by result, tap and channel, the last in whole chunks */
    divisor tiles_m, tiles_n; /* of the sides of a tile, whichever stands on each */
    int m, n;          /* results, and taps by channels */
    int steps, part;   /* of all places, and of a part */
} cut_weight;

#endif
