/* What the command line of `cupola tokenize` says. */
#ifndef CLI_TOKENIZE_H
#define CLI_TOKENIZE_H

#include "cli/common/options.h"
#include "cupola/data.h"

#define TOKENIZE_WORDS 4000000 /* see --words */

typedef struct tokenize_given {
    cli_files data;
    const char *tokenizer, *learn, *out, *text_field, *format;
    int64_t shard_tokens, threads, vocabulary, words;
    double validation;
} tokenize_given;

/* Learns a tokenizer from the data, with progress. NULL: it failed, or a signal came. */
cup_tokenizer *tokenize_learn(cup_context *c, const tokenize_given *given,
                              cup_tokenizer_learned *learned);

/* Whether the folder for tokens can be made, as far as can be told before a tokenizer is learned,
 * which takes its time. Returns an exit code. */
int tokenize_check_out(const char *out);

/* Makes the files of tokens, with progress, and says what was made; *rate gets the bytes a
 * second. */
cup_status tokenize_encode(cup_context *c, const tokenize_given *given, const cup_tokenizer *t,
                           cup_tokenized *made, double *rate);

/* The whole of --learn. Returns an exit code. */
int tokenize_learn_only(const cli_call *call, cup_context *c);

#endif
