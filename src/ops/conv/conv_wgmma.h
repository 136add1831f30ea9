/* A launch of wgmma.cu for a convolution, and its tensor maps. */
#ifndef CUP_OPS_CONV_CONV_WGMMA_H
#define CUP_OPS_CONV_CONV_WGMMA_H

#include "kernels/wgmma_call.cuh"
#include "ops/conv/conv_cuda.h"
#include "ops/matmul/wgmma_maps.h"

/* Channels of a line of 16 bits, and places of a step of the weight's gradient. */
#define CUP__CONV_CHUNK 64
#define CUP__CONV_GROUPS_MOST 64 /* each of which is a launch */
#define CUP__CONV_BOX 256 /* elements along each side of what TMA brings at a time, at most */

/* How TMA walks over the places of a class along a side. */
typedef struct cup__conv_walk {
    int64_t from, end; /* where the first and the last first tap are read, from each end */
    int64_t apart;     /* taps */
    int tap, every;    /* number of the first tap, and from one to the next */
} cup__conv_walk;

typedef struct cup__conv_work {
    cup_context *c;
    const conv_call *call;
    conv_line line[2];
    cup__conv_walk walk[2];
    cup__product p;
    cup_dtype bias_dtype;
    cup__scaling scaling; /* of codes, to which `p` points then */
    cup__wgmma_plan plan;
    bool depth, spread;
    bool as_f32;   /* images of f32 are brought as they are, and not as tf32 */
    bool matrices; /* k is places, and its parts are matrices of their own */
    int64_t residual_row; /* of what lies as y does, which `p` calls other */
    bool beside;   /* it may run beside the launch before it, which writes other results */
    wgmma_conv argument;
    CUtensorMap a, b, y, residual;
} cup__conv_work;

cup__conv_walk cup__conv_walk_of(const conv_line *l);

/* Begins the results of a class of rows and one of columns: the product, how TMA walks over the
 * image, and where results go; false where no tap reaches them. Zeros for all results of a call
 * where some are reached by none. */
bool cup__conv_begin_class(cup__conv_work *w, const cup__call *call, const cup__conv *v, int high,
                           int wide);
cup_status cup__conv_clear_unreached(cup__call *call, const conv_call *c);
/* In how many steps of 32 bytes a line of channels has elements. */
int cup__conv_steps(const cup__conv_work *w);

/* Begins a convolution without strides by tiles of an image, and how far a tile's last tap is from
 * its first along a side. */
void cup__conv_begin_tiles(cup__conv_work *w, const cup__call *call, const cup__conv *v);
static inline int64_t cup__conv_reach(const cup__conv_work *w, int side)
{
    return (w->line[side].taps - 1) * w->walk[side].apart;
}
/* Whether the channels that are summed are neighbours in the weight, as f32 must lie: those of the
 * image's gradient are not unless it was turned. */
static inline bool cup__conv_weight_along_k(const conv_call *c)
{
    return !c->back || c->w_step[1] == 1;
}
/* Which matrix of the weight the first tap has, and how far those of the next row and column are
 * apart. */
void cup__conv_weight_walk(const cup__conv_work *w, int *first, int step[2]);

/* Begins the gradient of a weight: the product, and how TMA walks over the image. And whether its
 * elements are so many that parts are better added by the blocks that have them than left in memory
 * as matrices. */
void cup__conv_begin_depth(cup__conv_work *w, const cup__call *call, const cup__conv *v);
static inline bool cup__conv_is_whole(const cup__conv_work *w)
{
    return w->p.m * w->p.n > 4 * w->p.k;
}

/* Memory for so many parts of a weight's sums, or fewer. */
cup_tensor *cup__conv_make_parts(const cup__conv_work *w, int count, conv_parts *out);
/* Where the blocks of a tile hand over their parts. */
cup_status cup__conv_parts_memory(cup__conv_work *w);

/* The image, of which `places` are read at a time, `bytes` of the channels of each, 128 or 64; the
 * weight, as a matrix for each tap, whose lines are its channels; dy, whose places are `step`
 * elements apart; the results and what is added to them; and the matrices of parts, in f32. */
cup_status cup__conv_encode_image(const cup__conv_work *w, CUtensorMap *map, int places, int bytes);
cup_status cup__conv_encode_weight(cup__conv_work *w);
/* Images with so many channels and a side of rows and one of columns, of which boxes of rows,
 * columns and channels of one image are read or written. */
cup_status cup__conv_encode_boxes(const cup__conv_work *w, CUtensorMap *map, cup_dtype dtype,
                                  const void *data, int channels, const int side[2],
                                  const long long step[4], const int64_t box[3]);
cup_status cup__conv_encode_dy(cup__conv_work *w, int64_t step);
cup_status cup__conv_encode_results(cup__conv_work *w);
cup_status cup__conv_encode_parts(cup__conv_work *w, const conv_parts *parts);

#endif
