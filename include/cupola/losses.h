/* cupola/losses.h: losses beside cup_cross_entropy, each one kernel that goes over its inputs once,
 * forward and backward.
 *
 *     cup_tensor *loss = cup_mse(c, y, target, CUP_REDUCTION_MEAN);
 *
 * Inputs are floats. Targets of numbers have the shape of x and may need a gradient too; targets of
 * classes, i32 or i64, are one for each row of x, which has a column for each class in its last
 * dimension. A class that is none is an error on the CPU and NaN on a GPU. Arithmetic is in f32, in
 * f64 where an input is f64; a sum or mean of 16-bit inputs is f32. All return NULL with an error
 * in the context for inputs that do not fit. */
#ifndef CUPOLA_LOSSES_H
#define CUPOLA_LOSSES_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of the losses of all elements, or rows: their mean; their sum; nothing, so that the
 * result has the shape of the targets; their sum over the size of the first dimension. A mean of
 * none is NaN. */
typedef enum cup_reduction {
    CUP_REDUCTION_MEAN = 0,
    CUP_REDUCTION_SUM = 1,
    CUP_REDUCTION_NONE = 2,
    CUP_REDUCTION_BATCH_MEAN = 3
} cup_reduction;

/* (x - target)^2 */
CUP_API cup_tensor *cup_mse(cup_context *c, cup_tensor *x, cup_tensor *target,
                            cup_reduction reduction);
/* |x - target|, with the slope 0 at 0. */
CUP_API cup_tensor *cup_l1(cup_context *c, cup_tensor *x, cup_tensor *target,
                           cup_reduction reduction);
/* With d = |x - target|: d^2 / 2 up to delta, which is above 0, then delta (d - delta / 2). */
CUP_API cup_tensor *cup_huber(cup_context *c, cup_tensor *x, cup_tensor *target, double delta,
                              cup_reduction reduction);
/* cup_huber over its delta, which is called beta and may be 0: then it is cup_l1. */
CUP_API cup_tensor *cup_smooth_l1(cup_context *c, cup_tensor *x, cup_tensor *target, double beta,
                                  cup_reduction reduction);
/* -weight (pos_weight target log sigmoid(x) + (1 - target) log sigmoid(-x)), without a loss of
 * digits where one of the two terms is next to nothing. Both weights broadcast to the shape of x
 * and may be NULL: 1. A mean is over all elements, whatever they weigh. */
CUP_API cup_tensor *cup_bce_with_logits(cup_context *c, cup_tensor *x, cup_tensor *target,
                                        cup_tensor *weight, cup_tensor *pos_weight,
                                        cup_reduction reduction);
/* target (log target - x), where x are logarithms; 0 where the target is 0. With log_target the
 * targets are logarithms as well. The divergence of distributions in rows is CUP_REDUCTION_SUM, or
 * its mean over a batch CUP_REDUCTION_BATCH_MEAN. */
CUP_API cup_tensor *cup_kl_div(cup_context *c, cup_tensor *x, cup_tensor *target, bool log_target,
                               cup_reduction reduction);

/* -weight[t] x[.., t] for the class t of each row, where x are logarithms of probabilities. Rows of
 * class ignore_index, -1 where there is no such class, count 0. weight, one number a class, may be
 * NULL: 1. A mean is the sum over the sum of the weights of the rows that count, 0 where these
 * weigh nothing. */
CUP_API cup_tensor *cup_nll(cup_context *c, cup_tensor *x, cup_tensor *targets, cup_tensor *weight,
                            int64_t ignore_index, cup_reduction reduction);
/* cup_nll of log_softmax of the logits over their last dimension. label_smoothing, from 0 to 1, of
 * a row's loss is the mean over all classes of the losses that they would have as targets. Where
 * there are no weights and a mean is wanted, cup_cross_entropy is faster. */
CUP_API cup_tensor *cup_class_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                            cup_tensor *weight, int64_t ignore_index,
                                            double label_smoothing, cup_reduction reduction);
/* The same for targets that are probabilities of all classes, in the shape of the logits: the sum
 * over a row of -weight target log_softmax(logits). A mean is over the rows, whatever they
 * weigh. */
CUP_API cup_tensor *cup_soft_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *target,
                                           cup_tensor *weight, double label_smoothing,
                                           cup_reduction reduction);

#ifdef __cplusplus
}
#endif
#endif
