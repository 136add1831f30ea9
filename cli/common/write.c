#include "cli/common/write.h"

#include <math.h>
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

/* The tokens in front of a text, then those of the prompt. */
static int64_t encode_prompt(cup_context *c, const cli_writing *w, int32_t *tokens, int *front)
{
    const int32_t *before = cup_tokenizer_front(w->tokenizer, front);
    memcpy(tokens, before, (size_t)*front * sizeof *tokens);
    return cup_tokenizer_encode(c, w->tokenizer, w->prompt, w->prompt_bytes, tokens + *front);
}

/* Feeds the prompt to what writes as many texts as there are decoders; a model must read something
 * before it can write. */
static cup_status feed(cup_context *c, cli_writing *w, cup_generator *g, cup_decoder **d,
                       int64_t texts)
{
    int front;
    cup_tokenizer_front(w->tokenizer, &front);
    int32_t *tokens = malloc((w->prompt_bytes + 1 + (size_t)front) * sizeof *tokens);
    if (!tokens)
        return cup_fail(c, CUP_MEMORY, "out of host memory for the prompt");
    int64_t count = encode_prompt(c, w, tokens, &front);
    /* What follows begins a text no more. */
    for (int64_t i = 0; i < count * texts; i++)
        cup_decoder_add(d[i % texts], tokens[front + i / texts], NULL);
    if (count < 0)
        blame_prompt(c);
    cup_status status = count < 0 ? cup_error(c) : cup_generator_feed(g, tokens, front + count);
    free(tokens);
    return status;
}

static bool ends_text(const cli_writing *w, int32_t token)
{
    int count, i = 0;
    const int32_t *ends = cup_tokenizer_ends(w->tokenizer, &count);
    while (i < count && ends[i] != token)
        i++;
    return i < count;
}

static bool wants_stop(void *user)
{
    (void)user;
    return signals_caught() != 0;
}

static cup_status write_tokens(cup_context *c, cli_writing *w, cup_generator *g, cup_decoder *d)
{
    size_t bytes;
    const char *text;
    double begin = progress_clock();
    for (w->written = 0; w->written < w->tokens && !signals_caught() && !ferror(stdout);) {
        int32_t token = cup_generator_next(g);
        if (token < 0)
            return cup_error(c);
        if (ends_text(w, token))
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

static int end_writing(cup_context *c, cup_status status)
{
    cup_stop_when(c, NULL, NULL);
    if (status == CUP_INTERRUPTED) {
        cup_error_clear(c);
        status = CUP_OK;
    }
    if (status != CUP_OK)
        return cli_report(c);
    return signals_caught() ? CLI_SIGNAL + signals_caught() : CLI_OK;
}

/* What took longer than it would of other models. */
static void note_calls(const cup_generator *g)
{
    const char *why = cup_generator_uncaptured(g);
    if (why)
        fprintf(stderr, "note: each token took calls of the host in place of one graph: %s\n",
                cli_shown(why));
}

int write_text(cup_context *c, cli_writing *w)
{
    signals_stake(SIGNALS_OUTPUT);
    cup_stop_when(c, wants_stop, NULL);
    cup_generator *g = cup_generator_new(w->model, &w->sampling);
    cup_decoder *d = cup_decoder_new(c, w->tokenizer);
    cup_status status = g && d ? feed(c, w, g, &d, 1) : cup_error(c);
    if (status == CUP_OK) {
        if (w->echo)
            put(w, w->prompt, w->prompt_bytes);
        status = write_tokens(c, w, g, d);
        put(w, "\n", w->to ? 0 : 1);
    }
    note_calls(g);
    cup_generator_free(g);
    cup_decoder_free(d);
    return end_writing(c, status);
}

/* Several texts on their way. */
typedef struct side_by_side {
    int64_t count, open; /* open: that have not ended */
    cli_text *texts;
    cup_decoder **decoders; /* NULL: that text has ended */
    int32_t *tokens;
} side_by_side;

static void end_text(side_by_side *s, int64_t i)
{
    size_t bytes;
    const char *text = s->decoders[i] ? cup_decoder_end(s->decoders[i], &bytes) : NULL;
    if (text)
        fwrite(text, 1, bytes, s->texts[i].to);
    cup_decoder_free(s->decoders[i]);
    s->open -= s->decoders[i] != NULL;
    s->decoders[i] = NULL;
}

/* What each text has got; a model may know more tokens than its tokenizer: they say nothing. */
static void add_tokens(cli_writing *w, side_by_side *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        size_t bytes;
        if (!s->decoders[i])
            continue;
        if (ends_text(w, s->tokens[i])) {
            end_text(s, i);
            continue;
        }
        w->written++;
        const char *text = cup_decoder_add(s->decoders[i], s->tokens[i], &bytes);
        if (text)
            fwrite(text, 1, bytes, s->texts[i].to);
    }
}

static cup_status write_side_by_side(cli_writing *w, cup_generator *g, side_by_side *s)
{
    cup_status status = CUP_OK;
    cli_progress progress;
    double begin = progress_clock();
    progress_begin(&progress, stderr, "tokens", w->tokens, 0);
    progress.noun = "token";
    for (int64_t i = 0; i < w->tokens && s->open && !signals_caught() && status == CUP_OK; i++) {
        status = cup_generator_next_texts(g, s->tokens);
        if (status == CUP_OK)
            add_tokens(w, s);
        progress_step(&progress, i + 1, w->written, NAN);
    }
    progress_end(&progress);
    w->seconds = progress_clock() - begin;
    return status;
}

static cup_status open_texts(cup_context *c, cli_writing *w, side_by_side *s)
{
    s->tokens = calloc((size_t)s->count, sizeof *s->tokens);
    s->decoders = calloc((size_t)s->count, sizeof *s->decoders);
    for (int64_t i = 0; s->tokens && s->decoders && i < s->count; i++) {
        s->decoders[i] = cup_decoder_new(c, w->tokenizer);
        s->open += s->decoders[i] != NULL;
        if (!s->decoders[i] || !text_open(&s->texts[i]))
            break;
    }
    if (s->tokens && s->decoders && s->open == s->count && s->texts[s->count - 1].to)
        return CUP_OK;
    return cup_error(c) != CUP_OK
               ? cup_error(c)
               : cup_fail(c, CUP_MEMORY, "out of host memory for %lld texts", (long long)s->count);
}

int write_texts(cup_context *c, cli_writing *w, int64_t count, cli_text *texts)
{
    side_by_side s = {.count = count, .texts = texts};
    bool closed = true;
    signals_stake(SIGNALS_OUTPUT);
    cup_stop_when(c, wants_stop, NULL);
    cup_status status = open_texts(c, w, &s);
    cup_generator *g =
        status == CUP_OK ? cup_generator_texts_new(w->model, count, &w->sampling) : NULL;
    w->written = 0;
    if (status == CUP_OK)
        status = g ? feed(c, w, g, s.decoders, count) : cup_error(c);
    if (status == CUP_OK)
        status = write_side_by_side(w, g, &s);
    for (int64_t i = 0; s.decoders && i < count; i++) {
        end_text(&s, i);
        closed &= texts[i].to && text_close(&texts[i]);
    }
    note_calls(g);
    cup_generator_free(g);
    free(s.decoders);
    free(s.tokens);
    if (status == CUP_OK && !closed)
        status = cup_fail(c, CUP_MEMORY, "out of host memory for %lld texts", (long long)count);
    return end_writing(c, status);
}
