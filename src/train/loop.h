/* The inside of a training loop. */
#ifndef CUP_TRAIN_LOOP_H
#define CUP_TRAIN_LOOP_H

#include "base/fields.h"
#include "base/lock.h"
#include "cupola/graph.h"
#include "cupola/loop.h"
#include "io/checkpoint.h"
#include "tensor/context.h"

#define CUP__PENDING_MOST 64 /* steps whose loss may still be on the device */

#define CUP__MODEL_FILE "model.safetensors"
#define CUP__OPTIMIZER_FILE "optimizer.safetensors"
#define CUP__LOSSES_FILE "losses.csv"

#define CUP__LOOP_SCHEMA 1 /* of the state of a checkpoint */

/* How the step is run on a GPU: as calls at first, which compiles the kernels; where it is made of
 * several batches, once more, to see how long it takes; then captured once and replayed. */
typedef enum cup__replay {
    CUP__REPLAY_NOT_YET,
    CUP__REPLAY_TIMED,
    CUP__REPLAY_NEXT,
    CUP__REPLAY_ON,
    CUP__REPLAY_OFF
} cup__replay;

/* What is particular about the checkpoints of those who use a loop. */
typedef struct cup__loop_checkpoints {
    /* The files of a run, ending with NULL: those of its checkpoint, then those written from it. */
    const char *const *files;
    /* Adds to state.json what follows schema, kind and step; and fails where a loop cannot go on
     * from what is there. */
    void (*write)(const cup_loop *loop, cup__json_writer *writer);
    cup_status (*check)(cup_loop *loop, const cup__checkpoint *checkpoint);
    /* A file of the user's own and its text, or NULL. */
    const char *own_file;
    cup_status (*own_text)(const cup_loop *loop, cup__text *out);
} cup__loop_checkpoints;

struct cup_loop {
    cup_context *c;
    cup_loop_calls calls;
    cup_loop_options options; /* checked, defaults filled in */
    const cup__loop_checkpoints *checkpoints;
    char *kind;
    char *path;         /* of the folder, or NULL */
    const char *folder; /* the same on rank 0, which holds its lock; else NULL */
    bool shared;        /* all of several processes see it and have a part of its checkpoints */
    cup__lock lock; /* of the folder, for as long as the loop is there */
    bool owns;      /* what is in the folder is this run's, or may be replaced */

    bool whole_steps; /* none is given up halfway */

    cup_comm *comm;       /* or NULL: this process alone */
    /* Of those, the processes that have the parts of one model with this one, or NULL: it has the
     * whole; and those that have the same part, of which each has its share of the batches. */
    cup_comm *among, *copies;
    /* Of those who have the same stage, the processes that have the parts of the experts with this
     * one, or NULL; and those that have the same experts. */
    cup_comm *experts, *alike;
    /* Where processes have stages of one model: those of this one's, those that have the same
     * stage, and the fewest that have all of the model together; else NULL, `comm` and `among`. */
    cup_comm *pipe, *peers, *model;
    bool owns_copies, owns_alike;
    struct cup__pipeline *pipeline; /* or NULL */
    cup_tensor *owed; /* to the loss of a batch, beside what a call makes of it; or NULL */
    int64_t first, share; /* the batches of a step that are this process's */
    int64_t ring;         /* so many in a row have parts of the same texts, and random numbers */
    bool spread;          /* all have what rank 0 has */
    struct cup__buckets *buckets; /* of gradients on their way, or NULL */
    bool resumed;         /* this process has read a checkpoint */
    bool has_checkpoint;  /* in rank 0's folder */
    bool (*asked)(void *user); /* to stop, where others must agree to it; or NULL */
    void *asked_user;

    struct cup__saving *saving; /* a save that has begun, or NULL */
    const cup_training_hooks *hooks; /* of the run that goes on, or NULL */
    bool running;

    cup_parameters *list;
    cup_optimizer *optimizer; /* the loop's */

    struct cup__whole *weights, *states; /* while a checkpoint is written or read */

    int64_t steps;       /* done, or at least given to the device */
    cup_tensor *losses;  /* of the batches of one step, [accumulate] */
    cup_tensor *own_losses; /* those of them that this process computes */
    cup_tensor *pending; /* [CUP__PENDING_MOST, a row]: losses, the norm, the loss's scale */
    float *host_pending;
    int64_t read;   /* steps whose loss is known */
    int64_t skipped; /* of those */
    double loss_scale; /* behind them; 0: none */
    struct cup__buffers *buffers; /* what a skipped step must not have changed, or NULL */
    double read_at; /* the time of the last reading */
    int64_t ahead;  /* steps the device may be given before the next */

    cup_training_point *points;
    size_t point_count, point_capacity;
    size_t saved; /* points when a checkpoint was saved last */

    cup__replay replay;
    double part_seconds; /* about the most that one graph may take */
    cup_graph **graphs;  /* of the step, one after the other */
    int64_t graph_count;
    int64_t parts; /* that the step is to be captured in */
};

/* The names of cup_recompute_policy, ending with NULL. */
extern const char *const cup__recompute_words[];
/* Numbers of a step that the host reads. */
static inline int64_t cup__loop_row(const cup_loop *loop)
{
    return loop->options.accumulate + 2;
}

#define CUP__LOSS_SCALE_FIELDS(type)                                                               \
    {"loss_scale", CUP__LATER(REAL), offsetof(type, loss_scale), 0, 0x1p30, true, NULL},           \
    {                                                                                              \
        "loss_scale_steps", CUP__LATER(WHOLE), offsetof(type, loss_scale_steps), 0, 1e15, false,   \
            NULL                                                                                   \
    }

extern const char *const cup__non_finite_words[]; /* of cup_non_finite, the same */

/* The fields of an optimizer's options that stand at `at` in a struct. */
#define CUP__OPTIMIZER_FIELD(type, at, name, kind, most, fixed)                                    \
    {                                                                                              \
        #name, CUP__FIELD_##kind, offsetof(type, at.name), 0, most, fixed, NULL                    \
    }
#define CUP__OPTIMIZER_FIELDS(type, at)                                                            \
    CUP__OPTIMIZER_FIELD(type, at, beta1, REAL, 1, true),                                          \
        CUP__OPTIMIZER_FIELD(type, at, beta2, REAL, 1, true),                                      \
        CUP__OPTIMIZER_FIELD(type, at, epsilon, REAL, 1, true),                                    \
        CUP__OPTIMIZER_FIELD(type, at, momentum, REAL, 1, true),                                   \
        CUP__OPTIMIZER_FIELD(type, at, nesterov, FLAG, 1, true),                                   \
        CUP__OPTIMIZER_FIELD(type, at, weight_decay, REAL, 1e6, false),                            \
        CUP__OPTIMIZER_FIELD(type, at, clip, REAL, 1e30, false),                                   \
        CUP__OPTIMIZER_FIELD(type, at, stochastic, FLAG, 1, true),                                 \
        {"average", CUP__LATER(REAL), offsetof(type, at.average), 0, 1, true, NULL},               \
    {                                                                                              \
        "groups", CUP__LATER(TEXT), offsetof(type, at.groups), 0, CUP_PARAMETER_GROUPS, false,     \
            NULL                                                                                   \
    }

/* The processes that have the parts of the model, of its experts, or of texts, with this one; or
 * NULL. */
typedef struct cup__loop_sharers {
    cup_comm *among, *experts, *ring;
} cup__loop_sharers;

/* Makes a loop in two steps, so that a folder that cannot be had is told before a model is made:
 * with options that were checked, and then with what it trains. */
cup_loop *cup__loop_begin(cup_context *c, const cup_loop_calls *calls,
                          const cup_loop_options *options,
                          const cup__loop_checkpoints *checkpoints,
                          const cup__loop_sharers *sharers);
cup_status cup__loop_train(cup_loop *loop, cup_parameters *list);

/* Makes one step and one evaluation in the loop's context as it is, for the kernels they ask for;
 * what fails stays in the context's error. */
void cup__loop_rehearse(cup_loop *loop);
/* The evaluation alone. */
void cup__loop_rehearse_step(cup_loop *loop);
void cup__loop_rehearse_evaluation(cup_loop *loop);
/* Gets the kernels of a step on a GPU. Fails where the calls do what a replayed step cannot. */
cup_status cup__loop_prepare(cup_loop *loop);

/* Gives the device one more step. CUP_INTERRUPTED where the context's stop says so; then the step
 * is given up as if it had never begun. */
cup_status cup__loop_step(cup_loop *loop);
/* What varies from step to step, into device memory. */
cup_status cup__loop_set_step(cup_loop *loop);
/* The batches [from, to) of this process's share of a step, behind the last of which gradients and
 * losses are those of all processes. */
cup_status cup__loop_gradients(cup_loop *loop, int64_t from, int64_t to);
/* The same, and behind the last what the optimizer
 * does. */
cup_status cup__loop_compute(cup_loop *loop, int64_t from, int64_t to);
/* The loss of batch i goes to its place among the step's. */
cup_status cup__loop_note(cup_loop *loop, cup_tensor *loss, int64_t i);
/* What cup_loop_cost was given since the last call, or NULL. */
cup_tensor *cup__loop_owed(cup_loop *loop);
/* Ends one of the program's calls, which must have closed the scopes it opened. */
cup_status cup__loop_called(cup_loop *loop, const cup__callback *callback);
/* Random numbers from here on are those of batch i. */
void cup__loop_draw(cup_loop *loop, int64_t i);
/* Says whether forward or backward of batch i is computed, to who looks for what is not finite. */
void cup__loop_pass(cup_loop *loop, const char *pass, int64_t i);
/* Forgets the gradients, behind a step or where it was given up. */
void cup__loop_clear(cup_loop *loop);
void cup__loop_free_graphs(cup_loop *loop);

/* Makes the loop heed `non_finite` of its options. */
cup_status cup__loop_guard(cup_loop *loop);
void cup__loop_guard_free(cup_loop *loop);
/* Before a step's first batch and behind its last: what forward changes by itself is as it was
 * where the step was skipped and the options say so. */
cup_status cup__loop_buffers_keep(cup_loop *loop);
cup_status cup__loop_buffers_settle(cup_loop *loop);
/* Of the step that is read next: CUP_STATE where it ends the run, with the op that first gave what
 * is not finite where that can be found; else it counts. */
cup_status cup__loop_judge(cup_loop *loop, double loss, double norm);

/* Waits for the losses of all steps given, adds their points and reports them. CUP_STATE where
 * one ends the run. */
cup_status cup__loop_read(cup_loop *loop, const cup_training_hooks *hooks);
/* Whether it is time for that. */
bool cup__loop_should_read(const cup_loop *loop);

/* A new point at the end, everything but the step not known; NULL with an error. */
cup_training_point *cup__loop_point(cup_loop *loop, int64_t step);

/* The points as the text of losses.csv, and back, where they must tell of so many steps. */
void cup__points_write(const cup_loop *loop, cup__text *text);
cup_status cup__points_read(cup_loop *loop, const char *text, int64_t steps);

/* Makes sure that a checkpoint of the run replaces nothing but its own. */
cup_status cup__loop_own(cup_loop *loop);

/* See cup_loop_vacant, of a run with these files. */
cup_status cup__loop_vacant(cup_context *c, const char *folder, const char *const *files);

/* Puts a checkpoint's moving averages, of this decay, in the place of what the list has to be
 * trained. CUP_STATE where it has none, which a decay of 0 says. */
cup_status cup__take_averages(cup_context *c, const cup__checkpoint *checkpoint,
                              cup_parameters *list, double decay);

/* Reads schema, kind and step of a checkpoint. */
cup_status cup__loop_state_read(cup__error *error, const cup__checkpoint *checkpoint,
                                const char *kind, int64_t *step);

#endif
