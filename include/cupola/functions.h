/* cupola/functions.h: what is made of several ops, on every device and with their gradients. All
 * return NULL, or a status, with an error in the context for what does not fit. Axes may count from
 * the end. Where a size depends on values, these come to the host first, so that the call waits for
 * the device and cannot stand in a captured graph; it says so. */
#ifndef CUPOLA_FUNCTIONS_H
#define CUPOLA_FUNCTIONS_H

#include "cupola/ops.h"
#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x, with the value where the mask, of dtype bool, holds; they broadcast. */
CUP_API cup_tensor *cup_masked_fill(cup_context *c, cup_tensor *x, cup_tensor *mask, double value);
/* Tensors of one shape and dtype side by side along a new axis. */
CUP_API cup_tensor *cup_stack(cup_context *c, cup_tensor *const *x, int count, int axis);
/* Views of x cut along the axis into parts of these sizes, which add up to that of x, in out. */
CUP_API cup_status cup_split_along(cup_context *c, cup_tensor *x, const int64_t *sizes, int count,
                             int axis, cup_tensor **out);
/* x with its elements `places` further on along the axis, those beyond the end at the beginning;
 * backwards where places is below 0. */
CUP_API cup_tensor *cup_roll(cup_context *c, cup_tensor *x, int64_t places, int axis);
/* [.., classes] of the dtype for indices [..]: 1 at the place that the index names, else 0; only 0
 * for an index that is none. */
CUP_API cup_tensor *cup_one_hot(cup_context *c, cup_tensor *indices, cup_dtype dtype,
                                int64_t classes);
/* What stands at places of x: `count` lists, i32 or i64, of one shape or broadcast to it, name them
 * along its first dimensions, from the end where below 0; the result has that shape and the rest of
 * x. A place that is none is as in cup_index_select. */
CUP_API cup_tensor *cup_index(cup_context *c, cup_tensor *x, cup_tensor *const *indices, int count);
/* x with the values, which broadcast, at those places, or added to what is there. Of several values
 * for one place the last counts. A place that is none is an error on the CPU, and gets nothing on a
 * GPU. */
CUP_API cup_tensor *cup_index_put(cup_context *c, cup_tensor *x, cup_tensor *values,
                                  cup_tensor *const *indices, int count, bool add);
/* Whether any element, or all, over the axes, over all when none is given, are not 0, as bool. Of
 * no elements none is, and all are. */
CUP_API cup_tensor *cup_any(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            bool keep);
CUP_API cup_tensor *cup_all(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                            bool keep);
/* cup_linear, and its gradient, by products of f8e4m3, with one scale for each 128 rows of 128
 * columns of x, of weight, and in backward of what comes back: each number is rounded once, to 4
 * significant bits where it is not far below the largest one that shares its scale, and sums
 * are kept in f32. The gradient is that of linear at what was rounded, and is rounded itself. x,
 * weight and bias, which may be NULL, are all f32, bf16 or f16, and so are results and gradients.
 * What is not finite makes NaN of all that its 128 rows of 128 columns go into. Backward keeps the
 * codes of x in place of x. GPUs from sm_89 on multiply them as they are, others as f16. */
CUP_API cup_tensor *cup_linear_fp8(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                   cup_tensor *bias);
/* cup_embedding through whose row `padding`, from 0, no gradient flows. */
CUP_API cup_tensor *cup_embedding_padded(cup_context *c, cup_tensor *table, cup_tensor *ids,
                                         int64_t padding);

/* Sums, or with `mean` means, of rows of the table [V,C]: bag b, a row of the result [B,C], is made
 * of the rows that ids [n] name before offsets[b], i64 [B], from where the bag before it ended; an
 * empty one is 0. Offsets go up to n, and no id may be behind the last. */
CUP_API cup_tensor *cup_embedding_bag(cup_context *c, cup_tensor *table, cup_tensor *ids,
                                      cup_tensor *offsets, bool mean);

/* Sums of products by letters, as "bij,bjk->bik": each tensor has a letter for each dimension, none
 * twice, equal letters have one size, and what is not in the result is summed over. Without "->"
 * the result has, in alphabetic order, the letters that stand in one term alone. Up to 16 floats,
 * multiplied from left to right as cup_matmul does. */
CUP_API cup_tensor *cup_einsum(cup_context *c, cup_tensor *const *x, int count, const char *text);

/* The element in the middle of those along the axis, the lower of two; NaN where there is one. */
CUP_API cup_tensor *cup_median(cup_context *c, cup_tensor *x, int axis, bool keep);
/* What the part q, from 0 to 1, of the floats along the axis is at most: between two neighbours in
 * order it goes in a straight line; NaN where there is one. */
CUP_API cup_tensor *cup_quantile(cup_context *c, cup_tensor *x, double q, int axis, bool keep);
/* Where each value [.., m] belongs among sorted [.., n], whose rows go up, with the same leading
 * dimensions, or sorted [n] for all: how many elements are less than it, or with `right` at most
 * it, as i64. NaN is the largest. */
CUP_API cup_tensor *cup_searchsorted(cup_context *c, cup_tensor *sorted, cup_tensor *values,
                                     bool right);
/* How often each number below bins stands in x, as i64 [bins], or with weights, of the shape of x,
 * what those places weigh. A number that is not below bins is an error on the CPU and does not
 * count on a GPU. */
CUP_API cup_tensor *cup_bincount(cup_context *c, cup_tensor *x, cup_tensor *weights, int64_t bins);
/* `count` places for each row of floats along the last dimension, as i64 [.., count], drawn with
 * probabilities in proportion to them; 0 is never drawn while there is another. With replacement
 * each is drawn of all, through memory for count times x; without, of those that are left. */
CUP_API cup_tensor *cup_multinomial(cup_context *c, cup_tensor *x, int64_t count,
                                    bool replacement);

/* Products of each float and all before it along the axis, or with reverse all behind it. */
CUP_API cup_tensor *cup_cumprod(cup_context *c, cup_tensor *x, int axis, bool reverse);
/* The inverse of each matrix of a [..,N,N], which are small, as cup_solve takes them. */
CUP_API cup_tensor *cup_inverse(cup_context *c, cup_tensor *a);
/* The eigenvalues [..,N] of [a + a^T] / 2 for each small matrix of a [..,N,N], in f32 or f64 and N
 * up to 1024, from the lowest on, and in the columns of `vectors` [..,N,N] a unit vector of each,
 * of whose largest elements the first is not below 0. Errors are relative to the norm of the
 * matrix. NaN for one that holds NaN or inf, or whose norm is beyond the dtype. Vectors of equal
 * values are not unique and have no gradient, but inf or NaN; values have theirs. */
CUP_API cup_status cup_eigh(cup_context *c, cup_tensor *a, cup_tensor **values,
                            cup_tensor **vectors);

/* The places of the n elements that are not 0, in row-major order, as i64 [n, ndim]. Waits. */
CUP_API cup_tensor *cup_nonzero(cup_context *c, cup_tensor *x);
/* The n elements of x, in row-major order, where the mask, of dtype bool, holds, which broadcasts
 * to the shape of x: [n]. Waits. */
CUP_API cup_tensor *cup_masked_select(cup_context *c, cup_tensor *x, cup_tensor *mask);
/* The n values that x has, in order, [n]; if asked, for each element the number of its value, in
 * the shape of x, and how often each value comes, [n], as i64. NaN is no other NaN. Waits. */
CUP_API cup_status cup_unique(cup_context *c, cup_tensor *x, cup_tensor **values,
                              cup_tensor **inverse, cup_tensor **counts);

/* cup_conv2d along one dimension: x [N,C,L] under weight [O,C/groups,K], plus bias [O]. stride and
 * dilation are one number; padding one, or two: before and behind. An x that lies as [N,L,C] is
 * taken as it lies. */
CUP_API cup_tensor *cup_conv1d(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias,
                               const cup_conv2d_options *options);

/* Transposed convolutions: what stands at each place of x [N,C,..], times weight [C,O/groups,..],
 * is added up where the convolution with these options takes it from, plus bias [O]. A side of n
 * with a kernel of k becomes (n - 1) stride - padding + dilation (k - 1) + 1 + output_padding,
 * which says how much of what a stride leaves open is part of the result, and is less than the
 * stride; with `same` it becomes n stride. Numbers are one, or one for each side; padding may be
 * two for each: before and behind. It cuts places off the result and adds none to x, so that there
 * is no padding_mode. In 1, 2 and 3 dimensions; images with their channels last are taken as they
 * lie. */
typedef struct cup_conv_transpose_options {
    size_t size;
    cup_ints stride, padding, output_padding, dilation; /* none: 1, 0, 0 and 1 */
    int groups;                                         /* 0: 1 */
    bool same; /* padding and output_padding, which are not given then, are what leaves each side
                  `stride` times as long; an odd place more is cut off behind */
} cup_conv_transpose_options;

CUP_API cup_tensor *cup_conv_transpose1d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                         cup_tensor *bias,
                                         const cup_conv_transpose_options *options);
CUP_API cup_tensor *cup_conv_transpose2d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                         cup_tensor *bias,
                                         const cup_conv_transpose_options *options);
CUP_API cup_tensor *cup_conv_transpose3d(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                         cup_tensor *bias,
                                         const cup_conv_transpose_options *options);

/* cup_max_pool2d and cup_avg_pool2d along one dimension, of x [N,C,L], or [N,L,C] with
 * channels_last, and along three, of x [N,C,D,H,W] or [N,D,H,W,C]. Numbers are one, or with three
 * dimensions one each for depth, height and width. */
CUP_API cup_tensor *cup_max_pool1d(cup_context *c, cup_tensor *x, int64_t window,
                                   const cup_max_pool2d_options *options);
CUP_API cup_tensor *cup_avg_pool1d(cup_context *c, cup_tensor *x, int64_t window,
                                   const cup_avg_pool2d_options *options);
CUP_API cup_tensor *cup_max_pool3d(cup_context *c, cup_tensor *x, const int64_t *window,
                                   int window_count, const cup_max_pool2d_options *options);
CUP_API cup_tensor *cup_avg_pool3d(cup_context *c, cup_tensor *x, const int64_t *window,
                                   int window_count, const cup_avg_pool2d_options *options);

/* cup_max_pool2d, and where in its plane, as i64 row times width + column, the element of x stands
 * that each window took; either may be NULL. */
CUP_API cup_status cup_max_pool2d_indices(cup_context *c, cup_tensor *x, const int64_t *window,
                                          int window_count, const cup_max_pool2d_options *options,
                                          cup_tensor **y, cup_tensor **indices);
/* The same of cup_max_pool1d, with places in the line, and of cup_max_pool3d, with places as
 * (depth height + row) width + column. */
CUP_API cup_status cup_max_pool1d_indices(cup_context *c, cup_tensor *x, int64_t window,
                                          const cup_max_pool2d_options *options, cup_tensor **y,
                                          cup_tensor **indices);
CUP_API cup_status cup_max_pool3d_indices(cup_context *c, cup_tensor *x, const int64_t *window,
                                          int window_count, const cup_max_pool2d_options *options,
                                          cup_tensor **y, cup_tensor **indices);
/* Zeros [N,C,height,width], or [N,height,width,C] with channels_last, but what x has at the places
 * in its plane that the indices, of the shape of x, give; added up where several give one. */
CUP_API cup_tensor *cup_max_unpool2d(cup_context *c, cup_tensor *x, cup_tensor *indices,
                                     int64_t height, int64_t width, bool channels_last);
/* The same along one dimension, and along three, of this depth, height and width. */
CUP_API cup_tensor *cup_max_unpool1d(cup_context *c, cup_tensor *x, cup_tensor *indices,
                                     int64_t length, bool channels_last);
CUP_API cup_tensor *cup_max_unpool3d(cup_context *c, cup_tensor *x, cup_tensor *indices,
                                     const int64_t *size, bool channels_last);

/* cup_fft of real numbers [..], n of them along the axis: the n / 2 + 1 first results, [..,2]; the
 * others are conjugate complex to these. */
CUP_API cup_tensor *cup_rfft(cup_context *c, cup_tensor *x, int axis);
/* The n real numbers along the axis whose cup_rfft x [..,2] is. */
CUP_API cup_tensor *cup_irfft(cup_context *c, cup_tensor *x, int64_t n, int axis);

/* x / (k + alpha m)^beta for x [N,C,..], where m is the mean of the squares of so many channels
 * around each, with zeros beyond the first and the last; of an even number one more before. */
CUP_API cup_tensor *cup_local_response_norm(cup_context *c, cup_tensor *x, int64_t channels,
                                            double alpha, double beta, double k);

/* How an image gets another size: by the nearest place before, by two neighbours along each side,
 * or by four and a cubic (its free number is -0.75). */
typedef enum cup_interpolation {
    CUP_INTERPOLATION_NEAREST = 0,
    CUP_INTERPOLATION_BILINEAR = 1,
    CUP_INTERPOLATION_BICUBIC = 2
} cup_interpolation;

/* Lists for the key_blocks of attention, i32 [1,1,T',N]: for each of the T' blocks of block_size
 * queries the blocks of as many keys that it sees, then -1. The last query's own key is the last,
 * as in attention, and a block's own blocks are those of its queries' own keys. It sees, of what is
 * asked for: `local` blocks on either side, its own among them; the first `global` blocks, and all
 * where its own is one of these; and every block whose distance is a multiple of `stride`. With
 * `causal` none behind its own; the keys behind a query in them are attention's `causal` to hide.
 * Made on the host. */
typedef struct cup_attention_blocks_options {
    size_t size;
    int64_t block_size;            /* a power of two from 16 to 1024; 0: 128 */
    int64_t local, global, stride; /* in blocks; 0: none, but not all three */
    bool causal;
} cup_attention_blocks_options;

CUP_API cup_tensor *cup_attention_blocks(cup_context *c, int64_t queries, int64_t keys,
                                         const cup_attention_blocks_options *options);

/* x [N,C,..] of one to three sides, as images [N,C,H,W], in other sizes, one number for all sides
 * or one for each. Places are parts of a side of equal size, whose middles are compared, or with
 * `corners` points from its first to its last, which the nearest does not heed. */
CUP_API cup_tensor *cup_interpolate(cup_context *c, cup_tensor *x, const int64_t *size, int count,
                                    cup_interpolation mode, bool corners);

/* A learned table of positions [before + H W,width] of an image that was cut into `places` H and W,
 * behind `before` others, for one that is cut into `size`: the others as they are, and of the rest
 * an image that is interpolated, by the bicubic of its middles. */
CUP_API cup_tensor *cup_interpolate_positions(cup_context *c, cup_tensor *table, int64_t before,
                                              const int64_t *places, const int64_t *size);

/* The channels of x [N,C f f,H,W] as places [N,C,H f,W f], of f from 1 on: channel c f f + i f + j
 * of the place h, w is channel c of the place h f + i, w f + j. The other function undoes it. */
CUP_API cup_tensor *cup_pixel_shuffle(cup_context *c, cup_tensor *x, int64_t factor);
CUP_API cup_tensor *cup_pixel_unshuffle(cup_context *c, cup_tensor *x, int64_t factor);

/* A layer of long short-term memory over the steps of x [T,N,I], from h and the cell [N,H] on, for
 * a list of 2 weights, [4H,I] and [4H,H], or 4 with biases [4H] behind: of the gates input, forget,
 * cell and output, in this order. out takes all h, [T,N,H], the last h, and the last cell. */
CUP_API cup_status cup_lstm(cup_context *c, cup_tensor *x, cup_tensor *h, cup_tensor *cell,
                            cup_tensor *const *weights, int count, cup_tensor **out);
/* The same of gated recurrent units, without a cell: [3H,I] and so on of the gates reset, update
 * and new, where reset acts on what the second weight and its bias give. out takes all h and the
 * last. */
CUP_API cup_status cup_gru(cup_context *c, cup_tensor *x, cup_tensor *h,
                           cup_tensor *const *weights, int count, cup_tensor **out);

#ifdef __cplusplus
}
#endif
#endif
