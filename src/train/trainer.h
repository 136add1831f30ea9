/* The inside of a training run of a GPT. */
#ifndef CUP_TRAIN_TRAINER_H
#define CUP_TRAIN_TRAINER_H

#include "base/json.h"
#include "cupola/train.h"
#include "train/loop.h"
#include "train/together.h"

struct cup_trainer {
    cup_loop *loop;
    cup_training training; /* checked, defaults filled in */
    const cup_data *data;
    const cup_tokenizer *tokenizer;
    cup_gpt *model;
    int32_t *host_tokens, *host_targets; /* of some texts of a step */
    cup_tensor *tokens, *targets;        /* the same on the device */
    int64_t texts;                       /* that an evaluation takes */
    /* The batches in which the loop computes a step, those that are this process's, and the texts
     * of each: of one process as the training says. */
    int64_t batches, share, rows;
    /* Those that share out the model with this process, or its stage of it; and its stages, or
     * NULL, of so many chunks each. From which block to which those of this one are. */
    cup_comm *among, *pipe;
    int64_t stages, chunks;
    int64_t bounds[CUP__CHUNKS_MOST][2];
    int64_t group, groups; /* this one's among all */
    cup_comm *ring;        /* those that have a part of each text with this one, or NULL */
    cup_comm *experts;     /* those that have parts of the experts with this one, or NULL */
    cup_recompute_policy recompute; /* never AUTO, of which `policy` then says why it is this */
    int64_t recompute_blocks;
    char policy[240];
    char *base; /* the model that adapters stand beside, or NULL */
    uint64_t base_hash;
    void (*forward_done)(void *user); /* behind forward of each batch, where it is set */
    void *forward_user;
};

extern const cup__loop_checkpoints cup__training_checkpoints;

/* Makes room for the texts of a step; and fills it with those of one, which follow from its number
 * alone: the loop's call. How much of a text is this process's. */
cup_status cup__trainer_batches(cup_context *c, cup_trainer *t);
cup_status cup__trainer_texts(cup_context *c, int64_t step, void *user);
int64_t cup__trainer_length(const cup_trainer *t);

/* Makes groups of processes that share out the model; and shares the batches of a step among them,
 * or where these are not enough, the texts of each batch. */
cup_status cup__trainer_group(cup_context *c, cup_trainer *t);
cup_status cup__trainer_share(cup_context *c, cup_trainer *t);

/* What an open checkpoint says of its training. */
cup_status cup__training_of(cup_context *c, const cup__checkpoint *checkpoint,
                            cup_training *training);

/* Refuses a checked training that there is no memory for; and about how many bytes one needs of a
 * host. */
cup_status cup__training_fits(cup_context *c, const cup_training *training);
double cup__training_needs(const cup_training *training);
/* Where processes share out experts: the numbers of a block's that others have; bytes that a block
 * keeps of a batch for rows of others beyond what it does of its own; and those that an evaluation
 * needs beyond that of one process alone. */
double cup__experts_away(const cup_training *training);
double cup__experts_more(const cup_training *training);
double cup__experts_evaluated(const cup_training *training);
/* Bytes that a block keeps less of a batch, on average, where tokens between blocks are shared
 * out. */
double cup__sequence_less(const cup_training *training);

/* The blocks of the stage that has most of them; and makes the training that of one process, as if
 * it were alone with what it has of the model: its heads, inner width and vocabulary, its part of
 * each text, and the blocks of that stage with both ends of the model. */
int64_t cup__training_blocks(const cup_training *training);
void cup__training_cut(cup_training *training);

/* Chooses what is computed again, where the training leaves that to memory, in `own`, which has
 * this process's share of the batches. */
cup_status cup__training_policy(cup_context *c, cup_trainer *t, cup_training *own);
/* Sets the training's policy to the first of all that fits, in as few blocks as do, or else to the
 * one that needs least; the last one that `fit` is asked about is the one that is chosen. */
typedef cup_status (*cup__policy_fits)(const cup_training *a, bool *fits, void *user);
cup_status cup__training_choose(cup_training *a, cup__policy_fits fit, void *user);

/* The most that a run takes from the driver, whose step and evaluation take so much together with
 * what there is at rest: the captured step keeps its memory, and evaluations have theirs. */
static inline int64_t cup__held_bytes(int64_t at_rest, int64_t step, int64_t evaluation)
{
    /* The pool takes its memory in pieces of up to 32 MiB; about so much of it is not in use. */
    return evaluation + step - at_rest + ((int64_t)20 << 20);
}
/* Whether what is chosen by memory may hold so much: a fortieth is left for what lies between
 * tensors, of which a rehearsal does not know. */
static inline bool cup__held_fits(double held, double room)
{
    return held + held / 40 <= room;
}
/* The same of a trainer on a dry GPU, of which so much is kept behind forward for backward; and
 * what a checked training with a policy is taken to need of the device, by which one is chosen: of
 * one of the processes that share out a model, with its share of the batches. */
int64_t cup__training_held(cup_context *dry, cup_trainer *t, int64_t *kept);
cup_status cup__training_policy_needs(cup_context *c, const cup_training *training, double *bytes);

/* The training as a JSON object, and back. */
void cup__training_write(cup__json_writer *writer, const char *key, const cup_training *training);
cup_status cup__training_read(cup_context *c, const cup__json *json, const cup__json_node *object,
                              cup_training *training);
/* Fills in defaults and refuses what cannot be. */
cup_status cup__training_check(cup_context *c, cup_training *training);
/* Whether it multiplies in 8 bits; and sets how the context multiplies in f32. */
bool cup__training_is_fp8(const cup_training *training);
cup_status cup__training_precision(cup_context *c, const cup_training *training);

/* Where the text lay, one path behind the other, as a list of the object that is open, the field of
 * JSON Lines that has it, where that was named, and the sets of a mix. */
void cup__sources_write(cup__json_writer *writer, const cup_data *data);

/* What differs between two checked trainings that must be alike for one to go on from the other's
 * checkpoint; NULL: nothing. */
const char *cup__training_differs(const cup_training *a, const cup_training *b);

/* Makes one step and one evaluation of a batch of a checked training on a dry GPU, for the kernels
 * they ask for; what fails stays in the context's error. */
void cup__training_kernels(cup_context *c, const cup_training *training);
/* Makes a trainer for that, without data: to be let go of by the other. */
cup_status cup__training_dry(cup_context *c, const cup_training *training, cup_trainer *t);
void cup__training_dry_free(cup_trainer *t);

/* How many processes whose ranks follow each other evaluate the same texts. */
int cup__evaluated_together(const cup_gpt *m);

/* Before an evaluation of so many texts: where these have no equal parts for those who share out
 * tokens between blocks, each goes through all of them. Returns whether they share them out else,
 * which cup_parameters_sequence is given behind it. */
bool cup__evaluated_whole(const cup_gpt *m, int64_t rows);

/* As cup_gpt_evaluate, by all processes, each of which gets the loss. `pipe` is of the stages. */
cup_status cup__gpt_evaluate(cup_gpt *m, const cup_data *data, cup_split split, cup_comm *comm,
                             cup_comm *pipe, int64_t batch, int64_t texts, double *loss);

/* Of texts of so many tokens those that are this process's, one text behind the other, see
 * cup_comm_part; all of them without a ring. */
void cup__text_parts(const cup_comm *ring, int64_t context, int64_t rows, int32_t *tokens);

/* How many of a part's texts an evaluation takes that is asked for `texts` of them, 0 being all. */
int64_t cup__evaluated_texts(const cup_data *data, cup_split split, int64_t context, int64_t texts);

#endif
