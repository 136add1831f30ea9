/* cupola/methods.h: the optimizers, generated from src/dispatch/ops.def by `make gen`.
 * In parentheses the fields of cup_optimizer_options that each heeds beside those for all,
 * with what 0 means. */
#ifndef CUPOLA_METHODS_H
#define CUPOLA_METHODS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cup_method {
    /* AdamW: along the mean of the gradients over the root of their mean square; weight decay
     * pulls at the parameter itself (beta1: 0.9, beta2: 0.999, epsilon: 1e-8) */
    CUP_METHOD_ADAMW = 0,
    /* gradient descent, with momentum, plain or in Nesterov's form; weight decay is part of the
     * gradient (momentum: 0, nesterov) */
    CUP_METHOD_SGD = 1,
    /* Lion: by the sign of a mixture of momentum and gradient (beta1: 0.9, beta2: 0.99) */
    CUP_METHOD_LION = 2,
    /* Muon: hidden matrices along their momentum made orthogonal, the other parameters by
     * AdamW. On a GPU the products that make a direction are in bf16: all that is promised is
     * that its singular values are near 1, not its digits; see `single` (momentum: 0.95) */
    CUP_METHOD_MUON = 3,
    /* Adam: as AdamW, but weight decay is part of the gradient (beta1: 0.9, beta2: 0.999,
     * epsilon: 1e-8) */
    CUP_METHOD_ADAM = 4,
    /* RMSprop: along the gradient over the root of its mean square, with momentum of such
     * steps; weight decay is part of the gradient (beta2: 0.99, epsilon: 1e-8, momentum: 0) */
    CUP_METHOD_RMSPROP = 5,
    /* Adagrad: along the gradient over the root of the sum of all its squares so far; weight
     * decay is part of the gradient (epsilon: 1e-10) */
    CUP_METHOD_ADAGRAD = 6,
    /* AdamW with states of 8 bits, which are 2 bytes a number in place of 8: floats of few bits
     * below the largest of each 256, rounded at random; not of parameters that processes share
     * out (beta1: 0.9, beta2: 0.999, epsilon: 1e-8) */
    CUP_METHOD_ADAMW8 = 7,
} cup_method;

/* The name of each, as cup_method_find takes it. */
#define CUP_METHOD_NAMES "adamw|sgd|lion|muon|adam|rmsprop|adagrad|adamw8"

#ifdef __cplusplus
}
#endif
#endif
