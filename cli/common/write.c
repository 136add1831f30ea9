#include "cli/common/write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/progress.h"
#include "cli/common/signals.h"

static void put(cli_writing *w, const char *text, size_t bytes)
{
    if (w->to)
        fwrite(text, 1, bytes, w->to);
    else if (bytes)
        cli_write(text, bytes);
}

/* The text is not a file's here, but words of the command line. */
static void blame_prompt(cup_context *c)
{
    char why[2048];
    if (cup_error(c) != CUP_FORMAT)
        return;
    snprintf(why, sizeof why, "%s", cup_error_text(c));
    cup_error_clear(c);
    cup_fail(c, CUP_ARGUMENT, "%s", why);
}

/* Feeds the prompt; a model must read something before it can write. */
static cup_status feed(cup_context *c, cli_writing *w, cup_generator *g, cup_decoder *d)
{
    int32_t *tokens = malloc((w->prompt_bytes + 1) * sizeof *tokens);
    if (!tokens)
        return cup_fail(c, CUP_MEMORY, "out of host memory for the prompt");
    int64_t count = cup_tokenizer_encode(c, w->tokenizer, w->prompt, w->prompt_bytes, tokens);
    /* What follows begins a text no more. */
    for (int64_t i = 0; i < count; i++)
        cup_decoder_add(d, tokens[i], NULL);
    if (count >= 0 && w->echo)
        put(w, w->prompt, w->prompt_bytes);
    if (count < 0)
        blame_prompt(c);
    cup_status status = count < 0 ? cup_error(c) : cup_generator_feed(g, tokens, count);
    free(tokens);
    return status;
}

static bool wants_stop(void *user)
{
    (void)user;
    return signals_caught() != 0;
}

static cup_status write_tokens(cup_context *c, cli_writing *w, cup_generator *g, cup_decoder *d)
{
    int32_t end = cup_tokenizer_special(w->tokenizer, "<|endoftext|>");
    size_t bytes;
    const char *text;
    double begin = progress_clock();
    for (w->written = 0; w->written < w->tokens && !signals_caught() && !ferror(stdout);) {
        int32_t token = cup_generator_next(g);
        if (token < 0)
            return cup_error(c);
        if (token == end)
            break;
        w->written++;
        /* A model may know more tokens than its tokenizer has; those say nothing. */
        text = cup_decoder_add(d, token, &bytes);
        if (text)
            put(w, text, bytes);
    }
    w->seconds = progress_clock() - begin;
    text = cup_decoder_end(d, &bytes);
    put(w, text, text ? bytes : 0);
    return CUP_OK;
}

int write_text(cup_context *c, cli_writing *w)
{
    signals_stake(SIGNALS_OUTPUT);
    cup_stop_when(c, wants_stop, NULL);
    cup_generator *g = cup_generator_new(w->model, &w->sampling);
    cup_decoder *d = cup_decoder_new(c, w->tokenizer);
    cup_status status = g && d ? feed(c, w, g, d) : cup_error(c);
    if (status == CUP_OK) {
        status = write_tokens(c, w, g, d);
        put(w, "\n", w->to ? 0 : 1);
    }
    cup_stop_when(c, NULL, NULL);
    if (status == CUP_INTERRUPTED) {
        cup_error_clear(c);
        status = CUP_OK;
    }
    cup_generator_free(g);
    cup_decoder_free(d);
    if (status != CUP_OK)
        return cli_report(c);
    return signals_caught() ? CLI_SIGNAL + signals_caught() : CLI_OK;
}
