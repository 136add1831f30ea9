/* What takes its time: tokenizers that are learned, and tokens that are made. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/progress.h"
#include "cli/common/signals.h"
#include "cli/tokenize.h"
#include "cupola/cupola.h"

#define LINE_SECONDS 2.0

typedef struct telling {
    cli_progress progress;
    int64_t wanted; /* merges */
    bool merges;    /* the text is read */
} telling;

static void begin(cli_progress *p, const char *noun, const char *unit, int64_t total)
{
    progress_begin(p, stderr, unit, total, 0);
    p->noun = noun;
    p->line_seconds = LINE_SECONDS;
}

static bool on_learned(int64_t bytes, int64_t all, int64_t merges, void *user)
{
    telling *t = user;
    if (merges && !t->merges) {
        progress_end(&t->progress);
        begin(&t->progress, "merge", "merges", t->wanted);
        t->merges = true;
    }
    if (!t->merges)
        t->progress.total = all;
    progress_step(&t->progress, t->merges ? merges : bytes, t->merges ? merges : bytes, NAN);
    return signals_caught() != 0;
}

static void say(const cup_tokenizer *t, const cup_tokenizer_learned *l)
{
    char words[32], different[32], dropped[32];
    fprintf(stderr, "tokenizer of %lld tokens, from %s words, %s of them different\n",
            (long long)cup_tokenizer_size(t), progress_number((double)l->words, words),
            progress_number((double)l->different, different));
    if (l->dropped)
        fprintf(stderr,
                "note: %s of the words (%.2g %%) were left out as the rarest, since there are more "
                "different ones than --words\n",
                progress_number((double)l->dropped, dropped),
                100 * (double)l->dropped / (double)l->words);
}

/* Tokens are written beside it and renamed, so the folder that it stands in is what counts. */
int tokenize_check_out(const char *out)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s.part", out);
    if (length < 0 || (size_t)length >= sizeof path)
        return cli_usage("--out names a path of over %d bytes", PATH_MAX);
    if (access(path, F_OK) == 0)
        return cli_fail(CLI_FILE,
                        "%s is there: another process makes these tokens, or was killed while it "
                        "did; then remove it",
                        cli_shown(path));
    path[strlen(out)] = 0;
    do {
        char *slash = strrchr(path, '/');
        if (slash)
            slash[slash == path] = 0;
        else
            strcpy(path, ".");
    } while (access(path, F_OK) != 0 && errno == ENOENT && strcmp(path, ".") && strcmp(path, "/"));
    if (access(path, W_OK | X_OK) == 0)
        return CLI_OK;
    return cli_fail(CLI_FILE,
                    "%s cannot be made, as %s is no folder that may be written to; change its "
                    "owner or mode, or name another one",
                    cli_shown(out), cli_shown(path));
}

cup_tokenizer *tokenize_learn(cup_context *c, const tokenize_given *given,
                              cup_tokenizer_learned *learned)
{
    telling t = {.wanted = given->vocabulary - 257};
    begin(&t.progress, "byte", "B", 1);
    cup_tokenizer *made = cup_tokenizer_learn(
        c, given->data.name, given->data.count, given->vocabulary,
        CUP_OPTIONS(cup_tokenizer_learn_options, .words = given->words,
                    .text_field = given->text_field, .progress = on_learned, .user = &t),
        learned);
    if (made && t.merges)
        progress_step(&t.progress, learned->merges, learned->merges, NAN);
    progress_end(&t.progress);
    if (made)
        say(made, learned);
    return made;
}

static bool on_encoded(int64_t bytes, int64_t all, int64_t tokens, void *user)
{
    cli_progress *p = user;
    (void)tokens;
    p->total = all;
    progress_step(p, bytes, bytes, NAN);
    return signals_caught() != 0;
}

cup_status tokenize_encode(cup_context *c, const tokenize_given *given, const cup_tokenizer *t,
                           cup_tokenized *made, double *rate)
{
    cli_progress progress;
    char train[32], validation[32];
    begin(&progress, "byte", "B", 1);
    cup_status status =
        cup_tokenize(c, given->data.name, given->data.count, t, given->out, given->validation,
                     CUP_OPTIONS(cup_tokenize_options, .shard_tokens = given->shard_tokens,
                                 .text_field = given->text_field, .progress = on_encoded,
                                 .user = &progress,
                                 .format = strcmp(given->format, "nanogpt")
                                               ? CUP_TOKEN_FORMAT_LLMC
                                               : CUP_TOKEN_FORMAT_NANOGPT),
                     made);
    progress_end(&progress);
    *rate = progress_rate(&progress);
    if (status == CUP_OK)
        fprintf(stderr,
                "%s: %lld files, %s tokens for training and %s for validation of %lld texts\n",
                cli_shown(given->out), (long long)made->files,
                progress_number((double)made->train, train),
                progress_number((double)made->validation, validation), (long long)made->texts);
    return status;
}

/* To be said before all the text was read. */
static int check_file(const char *path)
{
    char folder[PATH_MAX];
    const char *name = strrchr(path, '/');
    size_t length = name ? (size_t)(name - path) + 1 : 1;
    if (access(path, F_OK) == 0)
        return cli_usage("--learn %s is there already; name another file, or remove it",
                         cli_shown(path));
    if (length >= sizeof folder)
        return cli_usage("--learn names a path of over %d bytes", PATH_MAX);
    memcpy(folder, name ? path : ".", length);
    folder[length] = 0;
    if (access(folder, W_OK) == 0)
        return CLI_OK;
    return cli_fail(CLI_FILE, "%s cannot be written: %s", cli_shown(path), strerror(errno));
}

int tokenize_learn_only(const cli_call *call, cup_context *c)
{
    const tokenize_given *given = call->given;
    cup_tokenizer_learned l = {0};
    cli_json w;
    int code = check_file(given->learn);
    if (code)
        return code;
    cup_tokenizer *t = tokenize_learn(c, given, &l);
    bool whole = t && cup_tokenizer_save(c, t, given->learn) == CUP_OK;
    int64_t size = cup_tokenizer_size(t);
    cup_tokenizer_free(t);
    if (cup_error(c) == CUP_INTERRUPTED)
        return cli_exit_of(CUP_INTERRUPTED);
    if (!whole || !call->json)
        return cli_report(c);
    json_begin(&w, "tokenize");
    json_add_string(&w, "tokenizer", given->learn);
    json_add_integer(&w, "tokens", size);
    json_add_integer(&w, "bytes", l.bytes);
    json_add_integer(&w, "texts", l.texts);
    json_add_integer(&w, "skipped", l.skipped);
    json_add_integer(&w, "words", l.words);
    json_add_integer(&w, "different_words", l.different);
    json_add_integer(&w, "dropped_words", l.dropped);
    return json_end(&w);
}
