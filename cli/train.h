/* What the command line of `cupola train` says, and how it changes a preset. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "cli/options.h"
#include "cupola/train.h"

typedef struct train_given {
    cli_files data;
    const char *out, *preset, *device, *dtype, *tokenizer, *precision;
    const char *positions, *norm, *mlp, *bias, *optimizer;
    const char *memory_page, *decline;
    bool tune, resume, overwrite, recompute, stochastic, untied, deterministic;
    int64_t layers, heads, kv_heads, width, hidden, context, vocabulary;
    int64_t batch, accumulate, steps, warmup, decline_steps;
    int64_t evaluate_every, evaluate_texts, save_every;
    int64_t seed, sample, threads, logits_memory;
    int64_t memory_limit;
    double memory_share, dropout, lr, lr_end, beta1, beta2, momentum, weight_decay, clip;
} train_given;

extern const cli_option train_options[];

/* Puts what was on the command line into a training. Returns an exit code. */
int train_apply(const cli_call *call, cup_training *training);

/* Says so where a folder's checkpoint has no checksum of what it says itself. */
void train_note_unchecked(cup_context *c, const char *folder);

#endif
