/* cupola/loop.h: a training loop for any model: accumulated batches, evaluation, checkpoints that
 * a run goes on from bit for bit, and on a GPU a step that is captured once and replayed.
 *
 * The program says what a batch is and what its loss is; the loop does the rest:
 *
 *     cup_loop *loop = cup_loop_new(parameters,
 *                                   CUP_OPTIONS(cup_loop_calls, .batch = batch, .loss = loss,
 *                                               .user = &me),
 *                                   CUP_OPTIONS(cup_loop_options, .folder = "run",
 *                                               .schedule = {.high = 1e-3, .steps = 1000}));
 *     if (cup_loop_has_checkpoint(loop))
 *         cup_loop_resume(loop);
 *     cup_loop_run(loop, NULL);
 *     cup_loop_free(loop);
 *
 * Parameters of 16 bits are trained through master copies in f32, see cup_optimizer_new. */
#ifndef CUPOLA_LOOP_H
#define CUPOLA_LOOP_H

#include "cupola/comm.h"
#include "cupola/parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a loop asks of the program. A call that fails says so in the context, or by its status, and
 * ends the run. */
typedef struct cup_loop_calls {
    size_t size; /* see CUP_OPTIONS */
    /* Brings all that step `step`, counted from 0, reads to where `loss` reads it, for all batches
     * of the step: cup_tensor_write into tensors that stay. It follows from the step's number
     * alone, so that a run that goes on reads what the uninterrupted one would have. NULL: every
     * step reads the same. */
    cup_status (*batch)(cup_context *c, int64_t step, void *user);
    /* The loss of one of the step's batches, counted from 0: one number, recorded. It reads nothing
     * back from the device, keeps nothing that it makes, and draws from the context's random
     * numbers alone: on a GPU it is called a few times only, the first time without computing
     * anything, and then captured and replayed. What is made in it is freed behind it. */
    cup_tensor *(*loss)(cup_context *c, int64_t batch, void *user);
    /* Sets *loss to that of what was kept apart, a finite number. Nothing is recorded and layers
     * are not in training meanwhile. NULL: nothing is evaluated. */
    cup_status (*evaluate)(cup_context *c, double *loss, void *user);
    /* Calls what `evaluate` calls, each shape once: on a GPU, where it computes nothing, so that
     * the kernels are there before the first step. NULL: `evaluate` itself is called so. */
    void (*rehearse)(cup_context *c, void *user);
    void *user;
    /* In the place of `loss`, where processes have stages of one model, see `pipe` of the options:
     * what this stage makes of a batch. The first is given no x, and reads the batch; the others
     * are given what the stage before has made, and the last makes the loss. What it gives it has
     * made for that, and the same holds of it as of `loss`. One process alone calls it, too. */
    cup_tensor *(*stage)(cup_context *c, int64_t batch, cup_tensor *x, void *user);
    /* In the place of `stage`, where each stage has several chunks of the model, see `chunks` of
     * the options: what chunk `chunk` of this process makes. */
    cup_tensor *(*chunk)(cup_context *c, int64_t batch, int chunk, cup_tensor *x, void *user);
} cup_loop_calls;

/* What becomes of a step whose loss or gradients are not finite; it never changes parameters or
 * states of the optimizer. */
typedef enum cup_non_finite {
    CUP_NON_FINITE_USUAL = 0, /* a loss ends the run, gradients alone let it go on */
    CUP_NON_FINITE_STOP = 1,  /* both end it, and what began to be not finite is named: the step is
                                 computed once more, and the first op that made such a value, its
                                 result, and the parameters it came from stand in the sentence.
                                 Steps that a GPU was given meanwhile change nothing */
    CUP_NON_FINITE_SKIP = 2   /* the run goes on without it; the list's buffers, as the statistics
                                 of batches, are as before it, too */
} cup_non_finite;

/* How a loop trains. */
typedef struct cup_loop_options {
    size_t size;
    cup_schedule schedule; /* learning rates; its `steps` are those of the whole run, at least 1 */
    cup_optimizer_options optimizer;
    int64_t accumulate;     /* batches whose gradients, averaged, make one step; 0: 1 */
    int64_t evaluate_every; /* steps between evaluations; 0: only before and behind all steps */
    int64_t save_every;     /* steps between checkpoints; 0: only behind all steps */
    /* Where checkpoints go, NULL for none: no other run can use it until this one is freed or its
     * process ends. It is made if it is not there. */
    const char *folder;
    const char *kind; /* what is trained; checkpoints of another kind are refused. NULL: "model" */
    /* The processes that train together, NULL for this one alone: see below. Borrowed. */
    cup_comm *comm;
    int64_t check_every; /* steps between comparisons of the weights of all processes; 0: 1000, less
                            than 0: before checkpoints only */
    /* A run's steps wait for a checkpoint only until it is copied to host memory, and go on while
     * it is written from there. It takes the place of the last one when it is whole; the run ends
     * with a sentence if it cannot be. Where there is no memory for the copy they wait. */
    bool background;
    /* Of `comm`, the processes that have the stages of one model with this one, in their order;
     * NULL where each has all of it. Borrowed, see below. What goes from stage to stage of each
     * batch is a tensor of this dtype and shape. */
    cup_comm *pipe;
    cup_dtype between_dtype;
    int between_ndim;
    int64_t between[CUP_MAX_DIMS];
    /* With `pipe` and the call `chunk`: so many chunks of the model are on each process, which gets
     * a batch as often. 0: 1. */
    int64_t chunks;
    /* See above. CUP_NON_FINITE_USUAL names what began it, too, where no step was made since. */
    cup_non_finite non_finite;
    /* For models in f16, in which small gradients have no place: what losses are multiplied with
     * before backward, and gradients divided by behind it, at first; a power of two up to 2^30, or
     * 0: not. It is halved where gradients are not finite, which skips the step, and doubled behind
     * so many steps in a row that were made, 0: 2000. CUP_NON_FINITE_STOP stops for gradients when
     * it is down to 1. It stands in checkpoints, and every process has the same. */
    double loss_scale;
    int64_t loss_scale_steps;
} cup_loop_options;

/* With a communicator each process computes an equal share of a step's batches, of which there must
 * be a multiple of the processes: `loss` is called for its share only, with their numbers in the
 * whole step, and `batch` need only bring those. The gradients are added up over all before they
 * are clipped, and every process makes the same step, so that the run is that of one process but
 * for rounding; losses are those of all batches. Random numbers of a batch follow from its number
 * in the step. All processes make the same calls on their loops. Rank 0 has the folder; what it
 * begins with, all have. Where all see that folder, each writes its share of the optimizer's states
 * there, as optimizer-00001-of-00004.safetensors and so on, and reads what it needs; else rank 0
 * alone does both. Any number of processes goes on from any checkpoint, however they split the
 * states or share out the model. `evaluate`
 * is called on all of them, and may share its work. A stop that one is asked for stops all before
 * their next step, and not within one. Before each checkpoint, and every so many steps, the weights
 * of all are compared, and a process that has others is named. */

/* Where the list's parameters are shared out (cup_parameters_among), the processes of its
 * communicator compute one loss together and are called with the same batches; a step's batches
 * are shared by such groups, each of ranks of `comm` that follow each other. Without `comm` there
 * is one group. `batch` and `evaluate` find their group's number from their rank. Gradients are
 * added up meanwhile where all record the same calls, else behind backward. In a folder that all
 * see each process writes its share of the model's tensors, which are put together whole in its
 * host memory one after the other, as model-00001-of-00004.safetensors and so on, and of the
 * optimizer's states the slices that it has; what it reads is what it needs of any checkpoint's
 * tensors. So none needs memory for more than its share and a tensor besides. In a folder that rank
 * 0 alone sees it needs memory for the whole model and all states. */

/* Where processes have stages of a model, `pipe`, each makes the parameters of its own in its
 * list, and the batches of a step go through all stages one after the other: as soon as a stage
 * has as many ahead as there are stages behind it, it goes backward with one batch for one that it
 * goes forward with, so that it keeps no more batches than that. Of a step of n batches a stage
 * waits about (stages - 1) / (n + stages - 1) of the time. With `chunks` chunk v of stage s is
 * number v stages + s of the model; a stage then waits for (stages - 1) / (chunks n) of the time
 * that it computes, where n is a multiple of the stages, and keeps as much, for passing on so many
 * times as many tensors. A parameter that several stages have under one name is one parameter; it
 * begins as the first of them has it, and its gradients are added up. Random numbers of a batch
 * begin in all stages alike; where stages are to draw what one process would, each skips those of
 * the blocks before its own, see cup_random_skip, which stages of a GPT do. Rank 0 has the first
 * stage. Ranks of `comm` stand so: those that share out a stage's parameters, then stages, then
 * groups that share the batches. Of those who have the same stage so many as follow each other may
 * share out its experts (cup_parameters_experts): all of them make the same calls in the same
 * order. An optimizer's `split` is then among those that have the same stage; at its `stage` 3
 * parameters come to these before each use, so that all of them make the same calls. Gradients of
 * the first stage are added up while it goes backward with the last batch, those of others behind
 * that, while the stages before compute. On a GPU a step is captured in one graph, with what
 * goes between stages, so that a stop waits for all of it; a stage's work and what it passes on
 * follow each other on the context's stream. */

/* What a folder's checkpoint, of a loop or of a training of a GPT, says of itself. */
typedef struct cup_checkpoint {
    char kind[64];   /* what was trained: `kind` of the loop's options, "gpt" */
    int64_t steps;   /* that were done */
    uint64_t saves;  /* that the folder has seen, this one included */
    int64_t bytes;   /* of the files it ties together */
    bool checked;    /* false: by version 0.1.0, which gave state.json itself no checksum */
} cup_checkpoint;

/* Reads it from state.json alone, at once whatever the size of the files, which are not looked at:
 * whether they are whole is said by who loads or resumes. CUP_IO where there is no such folder,
 * CUP_FORMAT where it holds no checkpoint of ours or a damaged one. */
CUP_API cup_status cup_checkpoint_look(cup_context *c, const char *folder, cup_checkpoint *out);

/* Whether a new loop may begin in a folder, which need not be there: fails with CUP_ARGUMENT where
 * its checkpoints would replace something, which the sentence names, or with the status with which
 * that cannot be read. Runs ask it themselves; this is to know before long preparations.
 * cup_training_vacant is the same for a training of a GPT. */
CUP_API cup_status cup_loop_vacant(cup_context *c, const char *folder);

/* One step of a run, or the evaluation before it. */
typedef struct cup_training_point {
    int64_t step;      /* steps that were done before */
    double loss;       /* of the step's batch; NaN where no step followed, as behind the last, or
                          where it is not finite and the step was skipped */
    double norm, rate; /* of the gradients before they were clipped; the learning rate */
    double validation; /* the loss of what was kept apart; NaN where it was not evaluated */
} cup_training_point;

/* What a run tells while it goes on. All may be NULL. */
typedef struct cup_training_hooks {
    size_t size; /* see CUP_OPTIONS */
    /* A step is done, or an evaluation (then `validation` is a number). On a GPU a few steps come
     * at once. */
    void (*point)(const cup_training_point *point, void *user);
    /* A checkpoint of so many steps is on the disk. */
    void (*saved)(int64_t steps, void *user);
    /* Asked often, also inside a step or an evaluation, which is then given up as if it had never
     * begun: true ends the run with a checkpoint of the steps done and CUP_INTERRUPTED. */
    bool (*stop)(void *user);
    void *user;
} cup_training_hooks;

typedef struct cup_loop cup_loop;

/* A run that trains what the list has to be trained. The list, and `user` of the calls, must
 * outlive the loop; the calls themselves are copied. Random numbers begin from the context's seed:
 * give it the same one to go on from a checkpoint. */
CUP_API cup_loop *cup_loop_new(cup_parameters *list, const cup_loop_calls *calls,
                               const cup_loop_options *options);
CUP_API void cup_loop_free(cup_loop *loop);

/* Whether a checkpoint stands in its folder, to resume from. */
CUP_API bool cup_loop_has_checkpoint(const cup_loop *loop);

/* Goes on from the folder's checkpoint, with the same losses, bit for bit, as if the run had never
 * stopped. Number of steps, rates, evaluations and saves may differ from the checkpoint's; what
 * else differs is refused, the names and shapes of the tensors included. */
CUP_API cup_status cup_loop_resume(cup_loop *loop);

/* Lets a new run replace what stands in its folder, with its first save. Otherwise a run that was
 * not resumed refuses to begin where a checkpoint, or a file that has a name of one, stands. */
CUP_API cup_status cup_loop_overwrite(cup_loop *loop);

/* Runs the steps that are left. CUP_INTERRUPTED when a hook said stop; CUP_STATE when a loss, or
 * gradients, are not finite and `non_finite` of the options says stop. */
CUP_API cup_status cup_loop_run(cup_loop *loop, const cup_training_hooks *hooks);

/* Writes a checkpoint now: the list's tensors, buffers too, as model.safetensors; what the
 * optimizer remembers; losses.csv; and state.json, which ties them together. Whatever stops it, the
 * folder holds a whole checkpoint, the old one or the new one. */
CUP_API cup_status cup_loop_save(cup_loop *loop);

/* For the calls `stage` and `chunk`, while they make something of a batch: adds one number,
 * recorded, to that batch's loss, beside what they give, as what experts of a stage cost. NULL adds
 * nothing. */
CUP_API cup_status cup_loop_cost(cup_loop *loop, cup_tensor *cost);

/* The steps done, and every point so far, those before a resume included. Borrowed. */
CUP_API int64_t cup_loop_steps(const cup_loop *loop);
CUP_API const cup_training_point *cup_loop_points(const cup_loop *loop, int64_t *count);

/* Steps so far that changed nothing, because their gradients or loss were not finite, of those
 * whose losses are known. It does not wait for the device. */
CUP_API int64_t cup_loop_skipped(const cup_loop *loop);

/* What losses are multiplied with behind the steps whose losses are known; 0 where nothing is. */
CUP_API double cup_loop_loss_scale(const cup_loop *loop);

/* The loop's own. */
CUP_API cup_optimizer *cup_loop_optimizer(cup_loop *loop);

#ifdef __cplusplus
}
#endif
#endif
