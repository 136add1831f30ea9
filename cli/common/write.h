/* Text from a model, shown as it goes. */
#ifndef CLI_WRITE_H
#define CLI_WRITE_H

#include <stdio.h>

#include "cli/common/text.h"
#include "cupola/data.h"
#include "cupola/nn.h"

typedef struct cli_writing {
    cup_gpt *model;
    const cup_tokenizer *tokenizer;
    const char *prompt;
    size_t prompt_bytes;
    int64_t tokens; /* at most; stops before at a token that ends a text and at a signal */
    cup_sampling sampling;
    bool echo;       /* the prompt goes out first */
    FILE *to;        /* where it goes; NULL: to stdout, token by token */
    int64_t written; /* tokens, set */
    double seconds;  /* set */
} cli_writing;

/* Writes what follows the prompt. Returns an exit code. */
int write_text(cup_context *c, cli_writing *writing);

/* The same of several texts at once, to `texts`, which are closed and go back by text_free; how far
 * they are goes to stderr. What a signal left is there. */
int write_texts(cup_context *c, cli_writing *writing, int64_t count, cli_text *texts);

#endif
