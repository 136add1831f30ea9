/* Text from a model, shown as it goes. */
#ifndef CLI_WRITE_H
#define CLI_WRITE_H

#include <stdio.h>

#include "cupola/data.h"
#include "cupola/nn.h"

typedef struct cli_writing {
    cup_gpt *model;
    const cup_tokenizer *tokenizer;
    const char *prompt;
    size_t prompt_bytes;
    int64_t tokens; /* at most; stops before at <|endoftext|> and at a signal */
    cup_sampling sampling;
    bool echo;       /* the prompt goes out first */
    FILE *to;        /* where it goes; NULL: to stdout, token by token */
    int64_t written; /* tokens, set */
    double seconds;  /* set */
} cli_writing;

/* Writes what follows the prompt. Returns an exit code. */
int write_text(cup_context *c, cli_writing *writing);

#endif
