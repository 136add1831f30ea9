/* The inside of a training run. */
#ifndef CUP_TRAIN_TRAINER_H
#define CUP_TRAIN_TRAINER_H

#include "base/json.h"
#include "base/lock.h"
#include "cupola/graph.h"
#include "cupola/train.h"

#define CUP__PENDING_MOST 64 /* steps whose loss may still be on the device */

/* How the step is run on a GPU: as calls at first, which compiles the kernels; where it is made of
 * several batches, once more, to see how long it takes; then captured once and replayed. */
typedef enum cup__replay {
    CUP__REPLAY_NOT_YET,
    CUP__REPLAY_TIMED,
    CUP__REPLAY_NEXT,
    CUP__REPLAY_ON,
    CUP__REPLAY_OFF
} cup__replay;

struct cup_trainer {
    cup_context *c;
    cup_training training; /* checked, defaults filled in */
    cup_schedule schedule;
    const cup_data *data;
    const cup_tokenizer *tokenizer;
    char *folder;
    cup__lock lock; /* of the folder, for as long as the run is there */
    bool owns;      /* what is in the folder is this run's, or may be replaced */
    cup_gpt *model;
    cup_optimizer *optimizer;
    int64_t steps; /* done, or at least given to the device */

    int32_t *host_tokens, *host_targets; /* of one step: [accumulate, batch, context] */
    cup_tensor *tokens, *targets;        /* the same on the device */
    cup_tensor *losses;                  /* of the batches of one step, [accumulate] */

    cup_tensor *pending; /* [CUP__PENDING_MOST, accumulate + 1]: losses, then the norm */
    float *host_pending;
    int64_t read;   /* steps whose loss is known */
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

/* The files of a run, ending with NULL: those of its checkpoint, then those written from it. */
extern const char *const cup__training_files[];

/* Refuses a checked training that there is no memory for. */
cup_status cup__training_fits(cup_context *c, const cup_training *training);

/* Makes sure that a checkpoint of the run replaces nothing but its own. */
cup_status cup__trainer_own(cup_trainer *t);

/* The training as a JSON object, and back. */
void cup__training_write(cup__json_writer *writer, const char *key, const cup_training *training);
cup_status cup__training_read(cup_context *c, const cup__json *json, const cup__json_node *object,
                              cup_training *training);
/* Fills in defaults and refuses what cannot be. */
cup_status cup__training_check(cup_context *c, cup_training *training);

/* Where the text lay, one path behind the other, as a list of the object that is open. */
void cup__sources_write(cup__json_writer *writer, const cup__text *sources);

/* What differs between two checked trainings that must be alike for one to go on from the other's
 * checkpoint; NULL: nothing. */
const char *cup__training_differs(const cup_training *a, const cup_training *b);

/* Makes one step and one evaluation of so many texts (0: of whole batches) of a checked training on
 * a dry GPU, for the kernels they ask for; what fails stays in the context's error. */
void cup__training_kernels(cup_context *c, const cup_training *training, int64_t texts);

/* How many of a part's texts an evaluation takes that is asked for `texts` of them, 0 being all. */
int64_t cup__evaluated_texts(const cup_data *data, cup_split split, int64_t context, int64_t texts);

/* Gets the kernels of a step on a GPU. */
void cup__trainer_prepare(cup_trainer *t);
/* Gives the device one more step. CUP_INTERRUPTED where the context's stop says so; then the step
 * is given up as if it had never begun. */
cup_status cup__trainer_step(cup_trainer *t);
void cup__trainer_free_graphs(cup_trainer *t);
/* Waits for the losses of all steps given, adds their points and reports them. CUP_STATE where a
 * loss is not finite. */
cup_status cup__trainer_read(cup_trainer *t, const cup_training_hooks *hooks);
/* Whether it is time for that. */
bool cup__trainer_should_read(const cup_trainer *t);

/* A new point at the end, everything but the step not known; NULL with an error. */
cup_training_point *cup__trainer_point(cup_trainer *t, int64_t step);

#endif
