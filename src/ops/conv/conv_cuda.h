/* Convolutions on a GPU. */
#ifndef CUP_OPS_CONV_CONV_CUDA_H
#define CUP_OPS_CONV_CONV_CUDA_H

#include "cuda/cuda.h"
#include "ops/conv/conv.h"
#include "ops/conv/conv_launch.cuh"

static inline int cup__conv_multiprocessors(const cup__call *call)
{
    return cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
}

const char *cup__conv_simt_refuses(const cup__call *call);
const char *cup__conv_few_refuses(const cup__call *call);
cup_status cup__conv_simt(cup__call *call);
cup_status cup__conv_few(cup__call *call);
cup_status cup__conv_weight_simt(cup__call *call);
cup_status cup__conv_weight_few(cup__call *call);

/* Of one channel a group, where channels are neighbours in memory. */
const char *cup__conv_depthwise_refuses(const cup__call *call);
cup_status cup__conv_depthwise(cup__call *call);
cup_status cup__conv_weight_depthwise(cup__call *call);

/* With windows of one place and up to 8 channels on one side, where the channels of a place are
 * neighbours in memory: outer products, sums over many channels, and over places. */
const char *cup__conv_rows_refuses(const cup__call *call);
cup_status cup__conv_rows(cup__call *call);
const char *cup__conv_dots_refuses(const cup__call *call);
cup_status cup__conv_dots(cup__call *call);
const char *cup__conv_weight_rows_refuses(const cup__call *call);
cup_status cup__conv_weight_rows(cup__call *call);

/* By tensor cores, of 16-bit elements. */
const char *cup__conv_mma_refuses(const cup__call *call);
cup_status cup__conv_mma(cup__call *call);
cup_status cup__conv_weight_mma(cup__call *call);

/* By those of Hopper alone: many channels, or a few, or the gradient of an image that has a few;
 * and why none of them can do a call. */
const char *cup__conv_wgmma_never(const cup__call *call);
const char *cup__conv_wgmma_few_refuses(const cup__call *call);
cup_status cup__conv_wgmma_few(cup__call *call);
cup_status cup__conv_weight_wgmma_few(cup__call *call);
const char *cup__conv_wgmma_blocks_refuses(const cup__call *call);
cup_status cup__conv_wgmma_blocks(cup__call *call);
/* The same of strides of 1 by sums over taps of products that are made once, and of images with few
 * results, so that x is read once. */
const char *cup__conv_taps_refuses(const cup__call *call);
cup_status cup__conv_taps(cup__call *call);
const char *cup__conv_wgmma_refuses(const cup__call *call);
cup_status cup__conv_wgmma(cup__call *call);
/* Of up to 128 results, whose image is brought once for all taps; and where that is likely to be
 * faster. */
const char *cup__conv_halo_best_refuses(const cup__call *call);
const char *cup__conv_halo_refuses(const cup__call *call);
cup_status cup__conv_halo(cup__call *call);
/* The same of 16 bits that f32 was rounded to, with results in f32: whether that is likely to be
 * faster than cup__conv_wgmma_rows, and all of a call that lies as it has to. */
bool cup__conv_halo_pays(const cup__call *call, const cup__conv *v);
cup_status cup__conv_halo_rows(cup__call *call, const cup__conv *v);
const char *cup__conv_weight_halo_refuses(const cup__call *call);
const char *cup__conv_weight_halo_best_refuses(const cup__call *call);
cup_status cup__conv_weight_halo(cup__call *call);
/* With windows of one place, which make it a product of matrices, by that kernel. */
const char *cup__conv_wgmma_product_refuses(const cup__call *call);
cup_status cup__conv_wgmma_product(cup__call *call);
cup_status cup__conv_weight_wgmma(cup__call *call);
/* The gradient of a weight of nine taps by tiles that have all of them, and the same only where
 * that is likely to be fastest. */
const char *cup__conv_weight_taps_refuses(const cup__call *call);
const char *cup__conv_weight_taps_best_refuses(const cup__call *call);
cup_status cup__conv_weight_taps(cup__call *call);
/* The same of f32 whose products may be rounded, by the kernel of such products. */
const char *cup__conv_f32_product_refuses(const cup__call *call);
cup_status cup__conv_f32_product(cup__call *call);
/* Why a call of f32 cannot be done as one of 16 bits by the kernels above; and its products. */
const char *cup__conv_f32_refuses(const cup__call *call);
static inline int64_t cup__conv_products(const conv_call *c)
{
    return (int64_t)c->images * c->side[0].out * c->side[1].out * c->results * c->channels *
           c->groups * c->side[0].taps * c->side[1].taps;
}
/* f32 whose products may be rounded, on the way to tensor cores, or in f16 before. */
const char *cup__conv_tf32_refuses(const cup__call *call);
const char *cup__conv_tf32_best_refuses(const cup__call *call);
cup_status cup__conv_tf32(cup__call *call);
const char *cup__conv_rounded_refuses(const cup__call *call);
cup_status cup__conv_rounded(cup__call *call);
cup_status cup__conv_weight_rounded(cup__call *call);

/* Their parts, of convolutions that may be another than the call's: the results of a class of rows
 * and one of columns, of which forward has one each; and the sums of a weight's gradient in parts,
 * by result, tap and channel, the last rounded up to 64 where there are several taps. */
cup_status cup__conv_wgmma_class(cup__call *call, const cup__conv *v, int high, int wide);
/* All of a call that lies as it has to, see cup__conv_run_last. */
cup_status cup__conv_wgmma_rows(cup__call *call, const cup__conv *v);
/* Whether TMA can walk over the places and taps of a convolution. */
bool cup__conv_wgmma_reaches(const conv_call *c);
cup_tensor *cup__conv_wgmma_sums(cup__call *call, const cup__conv *v, conv_parts *parts);

/* Runs a call whose channels shall be neighbours in memory, in pieces of 16 bytes, and dy and the
 * weight's taps evenly spread: as it is, or with copies in place of its tensors. Without `all` the
 * image, its gradient and the weight are left as they are. */
#define CUP__CONV_PIECE_BYTES 16
#define CUP__CONV_PIECE 8 /* elements of 16 bits */
cup_status cup__conv_run_last(cup__call *call, bool all, cup_status (*run)(cup__call *call));
/* The same for what makes tensors on its way, which are freed behind it. */
cup_status cup__conv_run_scoped(cup__call *call, bool all, cup_status (*run)(cup__call *call));
/* Whether a tensor of images lies so. */
bool cup__conv_lies_last(const cup_tensor *t);
/* The same for the first input alone, whatever the others and the result lie as. */
cup_status cup__conv_run_image_last(cup__call *call, cup_status (*run)(cup__call *call));

/* Tiles of `tile` places and results, and how many blocks they make with their classes. */
conv_tiles cup__conv_tiles_of(const conv_call *c, int64_t tile_places, int64_t tile_results,
                              int64_t *blocks);

/* Into how many parts the places of a weight's gradient are put so that `blocks` of each keep the
 * card busy; the places of a part are a multiple of `step`. Makes the memory of their sums. */
cup_tensor *cup__conv_parts_make(cup__call *call, const cup__conv *v, int64_t blocks, int64_t step,
                                 conv_parts *out);
cup_status cup__conv_join(cup__call *call, const cup__conv *v, const conv_parts *p, int along);
/* Adds parts of one group in f32 by result, tap and channel, and puts the sums, times the scales
 * that there are, where they go. */
cup_status cup__conv_add_parts(cup__call *call, const cup__conv *v, const conv_parts *p);

/* The elements from a place to the next, of so many images with `high` rows of `wide` places, or of
 * a convolution with windows of one place; 0 where they do not lie evenly. */
int64_t cup__conv_step_of(const long long *step, int64_t images, int64_t high, int64_t wide);
int64_t cup__conv_place_step(const conv_call *c, const long long *step);

#endif
