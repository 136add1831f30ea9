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
 * was recorded. The loss must have one element. */
CUP_API cup_status cup_backward(cup_context *c, cup_tensor *loss);

/* The parameter's gradient, borrowed; NULL before the first backward and after cup_grad_clear. */
CUP_API cup_tensor *cup_grad(cup_tensor *parameter);

/* Forgets a parameter's gradient; the next backward starts from nothing. */
CUP_API void cup_grad_clear(cup_tensor *parameter);

/* Switches recording on or off, for example off while a model is evaluated; returns what it was.
 * It is on in a new context. */
CUP_API bool cup_grad_recording(cup_context *c, bool on);

/* Drops what the tape has recorded. */
CUP_API void cup_tape_clear(cup_context *c);

/* One block of a model: makes its output from `count` inputs. */
typedef cup_tensor *(*cup_block)(cup_context *c, cup_tensor *const *inputs, int count, void *user);

/* Runs the block without keeping its intermediate results, and runs it again, with the same
 * random numbers, when backward needs them: memory for time. `user` must stay valid until then.
 * Parameters used inside get their gradients as usual. What is changed in place inside, such as
 * the running statistics of batchnorm, is changed twice. */
CUP_API cup_tensor *cup_recompute(cup_context *c, cup_block block, cup_tensor *const *inputs,
                                  int count, void *user);

#ifdef __cplusplus
}
#endif
#endif
