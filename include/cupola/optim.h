/* cupola/optim.h: optimizers over many parameters at once, and learning-rate schedules. */
#ifndef CUPOLA_OPTIM_H
#define CUPOLA_OPTIM_H

#include "cupola/comm.h"
#include "cupola/methods.h"
#include "cupola/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name of a method, "adamw"; "?" for a value that is none. */
CUP_API const char *cup_method_name(cup_method method);

/* Finds a method by name; CUP_ARGUMENT when there is none. */
CUP_API cup_status cup_method_find(const char *name, cup_method *out);

/* Bytes of the text of groups, with the 0 behind it. */
#define CUP_PARAMETER_GROUPS 512

/* How to optimize. All zero means AdamW with the defaults.
 *
 * The methods are those of: Loshchilov and Hutter 2019, "Decoupled weight decay regularization"
 * (AdamW); Chen and others 2023, "Symbolic discovery of optimization algorithms" (Lion); Jordan
 * and others 2024, "Muon: an optimizer for hidden layers in neural networks"; Kingma and Ba 2015,
 * "Adam: a method for stochastic optimization"; Tieleman and Hinton 2012, lecture 6.5 of "Neural
 * networks for machine learning" (RMSprop); Duchi, Hazan and Singer 2011, "Adaptive subgradient
 * methods for online learning and stochastic optimization" (Adagrad); Dettmers, Lewis, Shleifer
 * and Zettlemoyer 2022, "8-bit optimizers via block-wise quantization" (adamw8, with other codes:
 * of the first state 1 bit for the sign, 4 of exponent and 3 behind the point, of the second 5
 * and 3). */
typedef struct cup_optimizer_options {
    size_t size; /* of this struct, see CUP_OPTIONS */
    cup_method method;
    double beta1, beta2, epsilon, momentum; /* of the methods that name them in methods.h, with */
    bool nesterov;                          /* what 0 means */
    double weight_decay; /* of the parameters whose `decay` is set; 0 means none */
    double clip;         /* gradients whose common norm is larger are scaled down to it; 0: never */
    bool stochastic;     /* bf16 parameters have no master copy, which saves 4 bytes a number; they
                            are rounded up or down at random, so that the mean is right */
    bool single;         /* Muon makes its directions in f32 on a GPU too, as on a CPU */
    double average;      /* keeps an exponential moving average of each parameter in f32, of which
                            a step leaves so much, 0.999 for example; 0: none. Not of parameters
                            that are `stochastic` */
    cup_comm *split; /* each of its processes keeps the states of a share of the parameters and
                        makes their steps, behind which all have the values, which saves memory:
                        gradients must be the same on all of them. Of what some share out, as
                        experts or all of a list, in groups of ranks that follow each other, it is
                        those of the same part. NULL: not. Borrowed */
    /* How much more they share out, see cup_optimizer_new: 2 gradients, 3 parameters too; else
     * nothing. */
    int stage;
    bool offload; /* on a GPU: states, master copies and averages lie in pinned memory of the host,
                     from where they come to the GPU in pieces of 16 MiB, are changed, and go back;
                     all bits are those without. On a CPU they are in the host's memory anyway */
    /* Groups of parameters, with spaces between: each is PATTERN=DECAY or PATTERN=DECAY,RATE, as
     * "*.bias=0 wte.weight=0.01,0.5". The parameters whose whole name is the pattern, in which *
     * stands for any letters and ? for one, have this weight decay, whatever their `decay` says,
     * and RATE times their learning rate, where 0 leaves them as they are. Of several groups that a
     * name is in the last one counts; a group without any is CUP_ARGUMENT. */
    char groups[CUP_PARAMETER_GROUPS];
} cup_optimizer_options;

/* A tensor to be trained, borrowed for as long as the optimizer lives. The name is copied. */
typedef struct cup_parameter {
    const char *name;
    cup_tensor *tensor; /* f32, f64, f16 or bf16, in row-major order */
    bool decay;         /* weight decay pulls at it */
    double rate;        /* multiplies the learning rate for it; 0 means 1 */
    bool hidden;        /* a matrix between layers, not one of embeddings: Muon's */
} cup_parameter;

typedef struct cup_optimizer cup_optimizer;

/* An optimizer of the parameters, each of which it marks with cup_require_grad. For parameters of
 * 16 bits it keeps a master copy in f32, which is what the steps change. NULL options mean the
 * defaults. Free it before the context.
 *
 * With `split` each parameter belongs to one process, which makes its step. At stage 2 each process
 * brings the gradients of its own loss: a step adds them up on the process that they belong to, and
 * frees them on the others; a cup_loop does so while backward goes on. At stage 3 the values of a
 * parameter, too, are with that process alone between its uses. They begin as those of rank 0, and
 * come to all when a call needs them, some MB of parameters at a time (CUP_COMM_BUCKET) and those
 * that were needed next in the step before ahead of their use; so all processes make the same calls
 * on parameters, evaluations included. To read or write them by cup_tensor_read and the like is
 * CUP_STATE on other processes. A context has one such optimizer, and a parameter has memory of its
 * own; both are CUP_UNSUPPORTED else. */
CUP_API cup_optimizer *cup_optimizer_new(cup_context *c, const cup_parameter *parameters, int count,
                                         const cup_optimizer_options *options);
CUP_API void cup_optimizer_free(cup_optimizer *o);

/* Sets the learning rate of the next steps, and what their gradients are multiplied with first: 1,
 * or 1/n where cup_backward has added up n batches. A captured step takes what is set when it is
 * replayed. */
CUP_API cup_status cup_optimizer_set(cup_optimizer *o, double rate, double scale);

/* Changes every parameter that has a gradient, in one pass over all. Where the norm of the
 * gradients is infinite or no number nothing changes, and cup_optimizer_skipped counts it. Nothing
 * is read back from the device. */
CUP_API cup_status cup_optimizer_step(cup_optimizer *o);

/* Forgets the gradients of all parameters. */
CUP_API void cup_optimizer_clear(cup_optimizer *o);

/* The common norm of the gradients in the last step, before scale and clip: one f32 number, which
 * is the optimizer's and stays where it is. */
CUP_API cup_tensor *cup_optimizer_norm(const cup_optimizer *o);

/* Steps taken and steps skipped so far; -1 on failure. Waits for the device. */
CUP_API int64_t cup_optimizer_taken(cup_optimizer *o);
CUP_API int64_t cup_optimizer_skipped(cup_optimizer *o);

/* Puts the moving averages in the place of the parameters, to evaluate or to save them, or the
 * parameters back as they were; meanwhile no step can be taken. Before the first step the averages
 * are the parameters. CUP_STATE where no averages are kept. With `split` all its processes call it,
 * and all see the averages. */
CUP_API cup_status cup_optimizer_show_average(cup_optimizer *o, bool on);

/* All that the optimizer remembers, as tensors to save and to fill again: "NAME.first",
 * "NAME.second", "NAME.master" and "NAME.average" for each parameter, and "steps"; with `split` of
 * this process's share. Those of adamw8 are u8 [blocks,260]: for each 256 numbers their codes, the
 * exponent of the largest and three zeros. Borrowed. */
CUP_API const cup_named *cup_optimizer_state(const cup_optimizer *o, int64_t *count);

/* How a learning rate declines: what is left of it over the part x of the decline. */
typedef enum cup_decline {
    CUP_DECLINE_COSINE = 0,   /* (1 + cos(pi x)) / 2 */
    CUP_DECLINE_LINEAR = 1,   /* 1 - x */
    CUP_DECLINE_CONSTANT = 2, /* 1: it does not */
    CUP_DECLINE_ROOT = 3      /* 1 - sqrt(x) */
} cup_decline;

/* The name of a decline, "cosine"; "?" for a value that is none. */
CUP_API const char *cup_decline_name(cup_decline decline);

/* Finds a decline by name; CUP_ARGUMENT when there is none. */
CUP_API cup_status cup_decline_find(const char *name, cup_decline *out);

/* A learning rate over the steps of a run: step i < warmup has high (i + 1) / (warmup + 1); then it
 * stays at `high` until the last `decline_steps`, in which it declines to low + (high - low) left,
 * and is `low` from step `steps` on. Where decline_steps is 0, or there are not so many behind the
 * rise, it declines from the rise on. The cosine is that of Loshchilov and Hutter 2017, "SGDR:
 * stochastic gradient descent with warm restarts", without the restarts; a decline in the last
 * steps only that of Hu and others 2024, "MiniCPM". */
typedef struct cup_schedule {
    double high, low;
    int64_t warmup, steps;
    cup_decline decline;
    int64_t decline_steps;
} cup_schedule;

/* The rate of a step, counted from 0. */
CUP_API double cup_schedule_rate(const cup_schedule *s, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
