/* Text that is not held in memory: tokens are made of it first, in the run's folder. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/signals.h"
#include "cli/tokenize.h"
#include "cli/train_run.h"
#include "cupola/cupola.h"

#define VALIDATION 0.1 /* of the text, as of the tokens of a small one */

static int choose_tokenizer(train_run *r, tokenize_given *how)
{
    const train_given *given = r->given;
    const char *wanted = train_tokenizer(given, &how->vocabulary);
    cup_tokenizer_learned learned;
    if (given->from && !given->tokenizer)
        r->tokenizer = cup_gpt_tokenizer_load(r->c, given->from);
    else if (!strcmp(wanted, "char"))
        return cli_usage("the text has over %lld MiB, and a tokenizer of characters is made of "
                         "text in memory; give --tokenizer bpe or a saved one, or a larger "
                         "--text-limit",
                         (long long)given->text_limit);
    else if (!strcmp(wanted, "bpe"))
        r->tokenizer = tokenize_learn(r->c, how, &learned);
    else
        r->tokenizer = cup_tokenizer_load(r->c, wanted);
    if (cup_error(r->c) == CUP_INTERRUPTED)
        return cli_exit_of(CUP_INTERRUPTED);
    return cli_report(r->c);
}

/* How much of a path is there already. */
static size_t there_of(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    while (*part && access(part, F_OK) != 0) {
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = 0;
    }
    return strlen(part);
}

/* Removes what was made of it since, where nothing is in it. */
static void leave_nothing(const char *path, size_t there)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    while (strlen(part) > there && rmdir(part) == 0) {
        char *slash = strrchr(part, '/');
        *(slash ? slash : part) = 0;
    }
}

static int make_tokens(train_run *r, const char *folder)
{
    const train_given *given = r->given;
    tokenize_given how = {.data = given->data,
                          .out = folder,
                          .text_field = given->text_field,
                          .format = "llmc",
                          .words = TOKENIZE_WORDS,
                          .validation = VALIDATION};
    cup_tokenized made;
    double rate;
    if (cup_data_has_tokens(folder))
        return cli_usage("%s has tokens that an earlier run made; learn from them with --data %s, "
                         "or remove that folder",
                         cli_shown(folder), cli_shown(folder));
    int code = tokenize_check_out(folder);
    if (!code)
        code = choose_tokenizer(r, &how);
    if (code)
        return code;
    size_t there = there_of(given->out);
    cup_status status = tokenize_encode(r->c, &how, r->tokenizer, &made, &rate);
    if (status != CUP_OK)
        leave_nothing(given->out, there);
    return status == CUP_INTERRUPTED ? cli_exit_of(status) : cli_report(r->c);
}

/* Nothing is left of what a signal ends. */
static int make_by_one(train_run *r, const char *folder)
{
    int64_t code = 0;
    if (train_speaks(r)) {
        if (r->comm)
            cup_comm_busy(r->comm, true);
        signals_stake(SIGNALS_OUTPUT);
        code = make_tokens(r, folder);
        signals_stake(SIGNALS_NOTHING);
        if (r->comm)
            cup_comm_busy(r->comm, false);
    }
    if (r->comm && cup_comm_agree(r->comm, &code, 1) != CUP_OK)
        return cli_report(r->c);
    return (int)code;
}

int train_load_large(train_run *r)
{
    const train_given *given = r->given;
    char folder[PATH_MAX];
    const char *name = folder;
    int length = snprintf(folder, sizeof folder, "%s/tokens", given->out);
    if (length < 0 || (size_t)length >= sizeof folder)
        return cli_usage("--out names a path of over %d bytes", PATH_MAX);
    if (given->weights.count)
        return cli_usage("--weights of text that has over %lld MiB: make tokens of each name of "
                         "--data with cupola tokenize, with one tokenizer, or give a larger "
                         "--text-limit",
                         (long long)given->text_limit);
    /* Making them may take hours, behind which a wrong option would be told. */
    if (!given->resume && cup_training_check(r->c, &r->training) != CUP_OK)
        return cli_report(r->c);
    int code = given->resume ? CLI_OK : make_by_one(r, folder);
    if (code)
        return code;
    if (!r->tokenizer)
        r->tokenizer = given->resume ? cup_gpt_tokenizer_load(r->c, given->out)
                                     : cup_tokenizer_load(r->c, folder);
    if (r->tokenizer)
        r->data = cup_data_open(r->c, &name, 1, r->tokenizer, r->training.model.context);
    return cli_report(r->c);
}
