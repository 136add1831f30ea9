/* cupola/grad.h: gradients by a tape that records what is computed. */
#ifndef CUPOLA_GRAD_H
#define CUPOLA_GRAD_H

#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a tensor as a parameter: calls that use it are recorded, and cup_backward adds to its
 * gradient. It must be floating point and not itself a recorded result. Returns the tensor. */
CUP_API cup_tensor *cup_require_grad(cup_tensor *t);

/* Adds d loss / d p to the gradient of every parameter p that the loss depends on, and drops what
 * was recorded, unless it is kept. The loss must have one element. */
CUP_API cup_status cup_backward(cup_context *c, cup_tensor *loss);

/* The same from `count` tensors at once, of any shapes: gradients[i] says what the gradient of
 * tensors[i] is, with its shape and dtype. It, or `gradients`, may be NULL for tensors of one
 * element: a gradient of 1. The gradients given are read only. */
CUP_API cup_status cup_backward_from(cup_context *c, cup_tensor *const *tensors,
                                     cup_tensor *const *gradients, int count);

/* Sets out[i] to d loss / d inputs[i], a new tensor, or to NULL where the loss does not depend on
 * the input; parameters' own gradients are not touched. The loss must have one element. An input
 * is a parameter or a recorded result, and none comes twice. Only what lies between the loss and
 * the inputs is worked on. Drops what was recorded, unless it is kept. When it fails, all of `out`
 * is NULL. */
CUP_API cup_status cup_gradients(cup_context *c, cup_tensor *loss, cup_tensor *const *inputs,
                                 int count, cup_tensor **out);

/* The same, with what computes the gradients recorded as well, and all kept: cup_backward of what
 * is made of them gives second derivatives. docs/GRADIENTS.md says which ops allow it;
 * formulas and recomputed blocks do, ops of your own may; what else lies between is refused with
 * CUP_UNSUPPORTED. */
CUP_API cup_status cup_gradients_recorded(cup_context *c, cup_tensor *loss,
                                          cup_tensor *const *inputs, int count, cup_tensor **out);

/* Switches whether backward keeps what was recorded, so that it can be gone through again; returns
 * what it was. It is off in a new context. What is kept takes its memory until cup_tape_clear, the
 * end of the outermost scope, or a backward after this was switched off. */
CUP_API bool cup_tape_keep(cup_context *c, bool on);

/* A tensor of the same elements in the same memory that leads nowhere back: no gradient flows
 * through it. What may not be changed in place may not through it either. */
CUP_API cup_tensor *cup_detach(cup_tensor *t);

/* Has backward add d loss / d t to cup_grad(t) of a recorded result, as it does for parameters;
 * cup_gradients does not. Returns the tensor. It lives until it was freed and what was recorded
 * dropped, its gradient as long. For a parameter nothing needs to be done. */
CUP_API cup_tensor *cup_retain_grad(cup_tensor *t);

/* The gradient of a parameter or of a result under cup_retain_grad, borrowed; NULL before the first
 * backward and after cup_grad_clear. */
CUP_API cup_tensor *cup_grad(cup_tensor *t);

/* Forgets a tensor's gradient; the next backward starts from nothing. */
CUP_API void cup_grad_clear(cup_tensor *t);

/* Switches recording on or off, for example off while a model is evaluated; returns what it was.
 * It is on in a new context. */
CUP_API bool cup_grad_recording(cup_context *c, bool on);

/* Drops what the tape has recorded. */
CUP_API void cup_tape_clear(cup_context *c);

/* One block of a model: makes its output from `count` inputs. */
typedef cup_tensor *(*cup_block)(cup_context *c, cup_tensor *const *inputs, int count, void *user);

/* What a model leaves out of what forward keeps for backward, which computes it again: nothing; the
 * inside of each block, by cup_recompute; what norms give, or norms, activations and other
 * functions of each element, by cup_recompute_results; or, of a training run (cupola/train.h), as
 * little of it as memory needs. */
typedef enum cup_recompute_policy {
    CUP_RECOMPUTE_POLICY_NONE = 0,
    CUP_RECOMPUTE_POLICY_BLOCK = 1,
    CUP_RECOMPUTE_POLICY_NORMS = 2,
    CUP_RECOMPUTE_POLICY_AUTO = 3,
    CUP_RECOMPUTE_POLICY_POINTWISE = 4
} cup_recompute_policy;

/* Runs the block without keeping its intermediate results, and runs it again, with the same
 * random numbers, when backward needs them: memory for time. `user` must stay valid until then.
 * Parameters used inside get their gradients as usual. What is changed in place inside, such as
 * the running statistics of batchnorm, is changed twice. A block makes the same each time, closes
 * the scopes that it opens and no other, and neither goes backward nor drops what is recorded:
 * CUP_STATE. */
CUP_API cup_tensor *cup_recompute(cup_context *c, cup_block block, cup_tensor *const *inputs,
                                  int count, void *user);

/* The same of a block that sets all of `outputs`, from 1 to 8 tensors. */
typedef cup_status (*cup_blocks)(cup_context *c, cup_tensor *const *inputs, int count, void *user,
                                 cup_tensor **outputs);
CUP_API cup_status cup_recompute_all(cup_context *c, cup_blocks block, cup_tensor *const *inputs,
                                     int count, void *user, cup_tensor **outputs,
                                     int output_count);

/* Says which results are not kept for what follows them but computed again when backward needs
 * them, from what they were made of, which is kept anyway: some memory for little time. With NORMS
 * those of layernorm and rmsnorm, also with a sum before them; with POINTWISE also those of gelu,
 * silu and swiglu, also behind a linear layer, and of functions of one tensor whose gradient is
 * made of what they were given, as sin; with NONE, as in a new context, none. No product is
 * computed twice. Results have the same bits but for activations behind linear layers in 16 bits,
 * whose kept sum was rounded, and on a GPU for rounding. Returns what it was; another policy is
 * CUP_ARGUMENT. */
CUP_API cup_recompute_policy cup_recompute_results(cup_context *c, cup_recompute_policy policy);

/* What the backward of an op of your own gets and gives. All tensors are borrowed. */
typedef struct cup_custom_grad {
    cup_tensor *const *inputs, *const *outputs; /* NULL where the op does not save them */
    /* Gradients of the outputs, in row-major order and not to be changed; NULL: none came. */
    cup_tensor *const *d_outputs;
    const bool *wanted;           /* which inputs need a gradient */
    /* To be set for those: a tensor of the input's shape and dtype; NULL: no gradient. */
    cup_tensor **d_inputs;
    int input_count, output_count;
    const void *attributes;
} cup_custom_grad;

/* An op of your own, of other calls, formulas and kernels; what is all zero may be left out. */
typedef struct cup_custom_op {
    size_t size;           /* see CUP_OPTIONS */
    const char *name;      /* for messages; must stay as long as what is recorded of the op */
    int output_count;      /* 1 to 32 */
    uint32_t saves_inputs; /* bit i: backward reads input i; these live until it ran */
    uint32_t saves_outputs;
    size_t attributes_size; /* of what is copied for backward */
    /* Sets each of `outputs` to a tensor that it made, in the scope it was called in. Recording is
     * off meanwhile. What it makes besides is freed behind it. */
    cup_status (*forward)(cup_context *c, cup_tensor *const *inputs, int count,
                          const void *attributes, cup_tensor **outputs);
    /* NULL: the op has no gradient, and its inputs may lead to no parameter. */
    cup_status (*backward)(cup_context *c, const cup_custom_grad *g);
    /* `backward` is made of what is recorded: ops, formulas, and other ops of your own, in which
     * kernels and what reads values must stand. Then cup_gradients_recorded goes through it. */
    bool second_derivatives;
    /* Or NULL: makes the first output once more, a new tensor with the same bits, from the inputs
     * that the op saves, which alone are set of `g`. What reads that output then does not keep it:
     * it is there again when backward needs it, once for all who do. Recording is off meanwhile.
     * Within cup_recompute, which runs forward again anyway, it is kept until backward is done. */
    cup_tensor *(*again)(cup_context *c, const cup_custom_grad *g);
} cup_custom_op;

/* Runs the op's forward on up to 32 inputs, which may be NULL if it allows that, and records it as
 * one step, whose gradients its backward computes. `outputs` takes output_count tensors; all NULL
 * when it fails. A callback that returns an error leaves it in the context. It closes the scopes
 * that it opens and no other, and drops nothing that is recorded; none but forward, where that is
 * kept, may go backward itself: CUP_STATE. Within cup_recompute forward runs again; within a
 * capture what the callbacks call on the context is captured. */
CUP_API cup_status cup_custom(cup_context *c, const cup_custom_op *op, cup_tensor *const *inputs,
                              int count, const void *attributes, cup_tensor **outputs);

#ifdef __cplusplus
}
#endif
#endif
