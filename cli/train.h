/* What the command line of `cupola train` says, and how it changes a preset. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "cli/common/options.h"
#include "cupola/comm.h"
#include "cupola/train.h"

#define TRAIN_MOST INT64_C(1000000000000000) /* steps */

typedef struct train_given {
    cli_files data, weights, cards, decay_groups;
    const char *out, *preset, *device, *dtype, *tokenizer, *precision;
    const char *parallel, *stages; /* "dp=2,tp=2", "3,4" */
    const char *positions, *norm, *mlp, *bias, *optimizer;
    const char *memory_page, *decline, *from, *text_field, *recompute, *non_finite, *order;
    bool again; /* no option: a run that was started again goes on from its checkpoint */
    bool tune, tensorboard, ops, resume, overwrite, stochastic, untied, deterministic;
    bool save_background, qk_norm, sinks, documents, offload, sequence;
    int64_t lora, experts, experts_per_token;
    double capacity, balance, router_z, soft_cap, logits_cap;
    double lora_scale;
    int64_t layers, heads, kv_heads, head_size, width, hidden, context, window, vocabulary;
    int64_t batch, accumulate, steps, warmup, decline_steps;
    int64_t evaluate_every, evaluate_texts, save_every, check_every;
    int64_t gpus, processes, restarts, zero, interleave;
    int64_t nodes, texts; /* and the next line: of a plan */
    double nic, link;
    int64_t seed, sample, threads, logits_memory, recompute_blocks;
    int64_t memory_limit, text_limit;
    const char *task, *network, *flip; /* and the next two lines: of images */
    int64_t image_size, crop;
    bool grey, skip_broken, as_needed;
    double epochs, rotate, scale, recolor, erase, mixup, label_smoothing;
    double memory_share, dropout, lr, lr_end, beta1, beta2, momentum, weight_decay, clip, ema;
    double loss_scale;
} train_given;

extern const cli_option train_options[];

/* This process among those of a run. */
typedef struct train_place {
    cup_launched run;
    char device[32]; /* "": what the options say */
    int threads;
} train_place;

/* Whether images are to be told apart; and that whole run. Returns an exit code. */
bool train_is_images(const train_given *given);
/* Refuses what a run on text would take and do nothing with. */
int train_deny_images(const cli_call *call);
int train_images(cli_call *call);
/* Names as --preset takes them, of networks for images. */
#define TRAIN_NETWORKS "mlp|cnn|resnet18|resnet50|vit-s|convnext-t"

/* Refuses what cannot be started so; says how many processes are to be started from here, 1 where
 * this one does the work. Returns an exit code. */
int train_plan(const train_given *given, int *processes);
/* How so many processes share out a model: in stages of chunks of so many blocks, each among
 * several; into how many parts a text; and how many share out its experts. Returns an exit code. */
#define TRAIN_STAGES 64
#define TRAIN_CHUNKS 32
typedef struct train_parts {
    int64_t tensor, stages, chunks, ring, expert;
    int64_t blocks[TRAIN_STAGES * TRAIN_CHUNKS]; /* all 0: as many each */
} train_parts;
int train_parallel(const train_given *given, int processes, train_parts *out);
/* Its GPU, or its share of the cores. Returns an exit code. */
int train_find_place(const train_given *given, train_place *out);
/* Sets up the device for what is measured of it, or says what is not there. An exit code. */
int train_check_device(cup_context *c, const train_given *given);
/* The page of --memory-page, of the moment before anything is freed. Returns an exit code. */
int train_draw_memory(cup_context *c, const train_given *given);
/* The exit code of this process, whose run ended so and which then came to `code`; all call it. */
int train_leave(cup_comm *m, cup_status status, int code);
/* Whether a run that was started again has a checkpoint to go on from, as rank 0 sees it. */
bool train_goes_on(cup_context *c, cup_comm *m, const train_place *place, const train_given *given);

/* Puts what was on the command line into a training. Returns an exit code. */
int train_apply(const cli_call *call, cup_training *training);
/* A rise that nobody asked for takes a fifth of a run's steps at most. */
void train_limit_warmup(const cli_call *call, cup_training *training);
/* The text of --decay-groups, where it is given. */
int train_groups(const train_given *given, char out[CUP_PARAMETER_GROUPS]);

/* Says at the end of a run how many of its steps changed nothing; of none nothing. */
void train_tell_skipped(int64_t steps);

/* --beta1, --beta2 and --momentum, where they are given, for the method that `out` has. */
void train_memories(const cli_call *call, cup_optimizer_options *out);

/* What --non-finite says, which was given. */
cup_non_finite train_non_finite(const train_given *given);

/* Says so where a folder's checkpoint has no checksum of what it says itself. */
void train_note_unchecked(cup_context *c, const char *folder);

#endif
