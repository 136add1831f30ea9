/* What the command line of `cupola tokenize` says. */
#ifndef CLI_TOKENIZE_H
#define CLI_TOKENIZE_H

#include "cli/common/options.h"
#include "cupola/data.h"

#define TOKENIZE_LINE_SECONDS 2.0

typedef struct tokenize_given {
    cli_files data;
    const char *tokenizer, *learn, *out, *text_field, *format;
    int64_t shard_tokens, threads, vocabulary, words;
    double validation;
} tokenize_given;

/* Learns a tokenizer from the data, with progress. NULL: it failed, or a signal came. */
cup_tokenizer *tokenize_learn(cup_context *c, const tokenize_given *given,
                              cup_tokenizer_learned *learned);

/* The whole of --learn. Returns an exit code. */
int tokenize_learn_only(const cli_call *call, cup_context *c);

#endif
