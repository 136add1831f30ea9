#include "cli/write.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "cli/exit.h"
#include "cli/signals.h"
#include "tensor/context.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(cli_writing *w, const char *text, size_t bytes)
{
    if (w->text) {
        cup__text_append(w->text, text, bytes);
    } else if (bytes) {
        cli_write(text, bytes);
    }
}

/* Feeds the prompt; a model must read something before it can write. */
static cup_status feed(cup_context *c, cli_writing *w, cup_generator *g)
{
    int32_t *tokens = cup__malloc((w->prompt_bytes + 1) * sizeof *tokens);
    if (!tokens)
        return cup__fail(&c->error, CUP_MEMORY, "out of host memory for the prompt");
    int64_t count = cup_tokenizer_encode(c, w->tokenizer, w->prompt, w->prompt_bytes, tokens);
    if (count >= 0 && w->echo)
        put(w, w->prompt, w->prompt_bytes);
    /* The text is not a file's here, but words of the command line. */
    if (count < 0 && c->error.status == CUP_FORMAT)
        c->error.status = CUP_ARGUMENT;
    cup_status status = count < 0 ? c->error.status : cup_generator_feed(g, tokens, count);
    cup__free(tokens);
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
    double begin = now();
    for (w->written = 0; w->written < w->tokens && !signals_caught() && !ferror(stdout);) {
        int32_t token = cup_generator_next(g);
        if (token < 0)
            return c->error.status;
        if (token == end)
            break;
        w->written++;
        /* A model may know more tokens than its tokenizer has; those say nothing. */
        text = cup_decoder_add(d, token, &bytes);
        if (text)
            put(w, text, bytes);
    }
    w->seconds = now() - begin;
    text = cup_decoder_end(d, &bytes);
    put(w, text, text ? bytes : 0);
    return CUP_OK;
}

int write_text(cup_context *c, cli_writing *w)
{
    signals_stake(SIGNALS_OUTPUT);
    c->stop = wants_stop;
    cup_generator *g = cup_generator_new(w->model, &w->sampling);
    cup_decoder *d = cup_decoder_new(c, w->tokenizer);
    cup_status status = g && d ? feed(c, w, g) : c->error.status;
    if (status == CUP_OK) {
        status = write_tokens(c, w, g, d);
        put(w, "\n", w->text ? 0 : 1);
    }
    c->stop = NULL;
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
