/* What a run of `cupola train` learns from: text or tokens, a tokenizer, sets with weights. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/train_run.h"
#include "cupola/cupola.h"

#define SMALL_VOCABULARY 1024
#define GPT2_VOCABULARY 50257

static bool is_large(const train_given *given)
{
    return given->preset && !strncmp(given->preset, "gpt2", 4);
}

const char *train_tokenizer(const train_given *given, int64_t *size)
{
    *size = given->vocabulary ? given->vocabulary
            : is_large(given) ? GPT2_VOCABULARY
                              : SMALL_VOCABULARY;
    return given->tokenizer ? given->tokenizer : is_large(given) ? "bpe" : "char";
}

static int load_tokenizer(train_run *r)
{
    const train_given *given = r->given;
    int64_t size;
    const char *wanted = train_tokenizer(given, &size);
    if (given->resume || (given->from && !given->tokenizer))
        r->tokenizer = cup_gpt_tokenizer_load(r->c, given->resume ? given->out : given->from);
    else if (!strcmp(wanted, "char"))
        r->tokenizer = cup_tokenizer_char_new(r->c, r->corpus);
    else if (!strcmp(wanted, "bpe"))
        r->tokenizer = cup_tokenizer_bpe_new(r->c, r->corpus, size);
    else
        r->tokenizer = cup_tokenizer_load(r->c, wanted);
    return cli_report(r->c);
}

/* Tokens were made with a tokenizer that is there, and only those of byte pairs are learned to a
 * size. */
static int check_tokenizer(const train_run *r, bool has_tokens)
{
    const train_given *given = r->given;
    int64_t size;
    const char *wanted = train_tokenizer(given, &size);
    bool named = given->tokenizer && (!strcmp(wanted, "char") || !strcmp(wanted, "bpe"));
    if (has_tokens && named)
        return cli_usage("--tokenizer %s learns from text, and the data is in tokens: name the one "
                         "that made them, or leave it out where that lies beside them",
                         wanted);
    bool there = has_tokens || (given->from && !given->tokenizer);
    if (given->vocabulary && (there || strcmp(wanted, "bpe")))
        return cli_usage("--vocabulary is of byte pairs that are learned: give --tokenizer bpe, "
                         "too, or leave it out");
    return CLI_OK;
}

/* Whether the data is in tokens already. The two kinds cannot be mixed. */
static int check_data(const train_given *given, bool *has_tokens)
{
    int tokens = 0;
    for (int i = 0; i < given->data.count; i++)
        tokens += cup_data_has_tokens(given->data.name[i]);
    *has_tokens = tokens > 0;
    if (given->weights.count && !given->data.count)
        return cli_usage("--weights is of the names of --data: give both, or resume without");
    if (tokens && tokens < given->data.count)
        return cli_usage("--data names text and .bin files of tokens; give the one or the other");
    if (given->weights.count && given->weights.count != given->data.count)
        return cli_usage("--weights has %d numbers and --data %d names; give one for each",
                         given->weights.count, given->data.count);
    return CLI_OK;
}

static int read_weights(const train_given *given, double *weights)
{
    for (int i = 0; i < given->weights.count; i++) {
        const char *word = given->weights.name[i];
        char *end;
        weights[i] = strtod(word, &end);
        if (end == word || *end || !(weights[i] > 0) || !isfinite(weights[i]))
            return cli_usage("--weights %s is no number above 0", cli_shown(word));
    }
    return CLI_OK;
}

/* The tokens of one name of --data, or its text, encoded. */
static cup_data *load_set(train_run *r, const char *const *name, bool has_tokens)
{
    const train_given *given = r->given;
    int64_t context = r->training.model.context;
    if (has_tokens)
        return cup_data_open(r->c, name, 1, r->tokenizer, context);
    cup_corpus *corpus = cup_corpus_load(
        r->c, name, 1, CUP_OPTIONS(cup_corpus_options, .text_field = given->text_field));
    cup_data *set = corpus ? cup_data_new(r->c, corpus, r->tokenizer, context) : NULL;
    cup_corpus_free(corpus);
    return set;
}

/* Each name of --data as a set of its own. */
static int load_mix(train_run *r, bool has_tokens)
{
    const train_given *given = r->given;
    int count = given->data.count, made = 0;
    cup_data **sets = calloc((size_t)count, sizeof(cup_data *));
    double *weights = calloc((size_t)count, sizeof *weights);
    int code = sets && weights ? read_weights(given, weights)
                               : cli_fail(CLI_MEMORY, "no host memory for the sets of --data");
    while (!code && made < count && (sets[made] = load_set(r, given->data.name + made, has_tokens)))
        made++;
    if (!code && made == count)
        r->data = cup_data_mix(r->c, sets, weights, count);
    for (int i = 0; !r->data && i < made; i++)
        cup_data_free(sets[i]);
    free(sets);
    free(weights);
    return code ? code : cli_report(r->c);
}

static bool has_tokenizer(const char *folder)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    return length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0;
}

/* The tokenizer that stands beside the tokens, or the one that was named. */
static int load_tokens(train_run *r)
{
    const train_given *given = r->given;
    const char *path = given->tokenizer ? given->tokenizer : given->data.name[0];
    if (given->resume || (given->from && !given->tokenizer))
        r->tokenizer = cup_gpt_tokenizer_load(r->c, given->resume ? given->out : given->from);
    else if (given->tokenizer || has_tokenizer(path))
        r->tokenizer = cup_tokenizer_load(r->c, path);
    else
        return cli_usage("the data is in tokens: give with --tokenizer the one that made them, a "
                         "saved one or a folder with GPT-2's vocab.json and merges.txt");
    if (r->tokenizer && given->weights.count)
        return load_mix(r, true);
    if (r->tokenizer)
        r->data = cup_data_open(r->c, given->data.name, given->data.count, r->tokenizer,
                                r->training.model.context);
    return cli_report(r->c);
}

/* What it learned from lies elsewhere now; tokens that the run made may be in its folder. */
static int say_where(const train_run *r)
{
    char tokens[PATH_MAX];
    const char *out = r->given->out;
    int length = snprintf(tokens, sizeof tokens, "%s/tokens", out);
    if (length > 0 && (size_t)length < sizeof tokens && cup_data_has_tokens(tokens))
        return cli_fail(CLI_FILE, "%s; the run's own tokens lie in %s: name them with --data %s",
                        cup_error_text(r->c), cli_shown(tokens), cli_shown(tokens));
    return cli_fail(CLI_FILE, "%s; where it lies elsewhere now, name it with --data",
                    cup_error_text(r->c));
}

/* What the checkpoint's run learned from. */
static int load_known(train_run *r)
{
    const char *out = r->given->out;
    r->tokenizer = cup_gpt_tokenizer_load(r->c, out);
    if (!r->tokenizer)
        return cli_report(r->c);
    r->data = cup_gpt_data_load(r->c, out, r->tokenizer, r->training.model.context);
    return !r->data && cup_error(r->c) == CUP_IO ? say_where(r) : cli_report(r->c);
}

int train_take_epochs(train_run *r)
{
    const train_given *given = r->given;
    cup_training *t = &r->training;
    if (!call_has(r->call, "epochs"))
        return CLI_OK;
    if (call_has(r->call, "steps"))
        return cli_usage("--epochs and --steps both say how long the run is; give one of them");
    if (t->order != CUP_DATA_ORDER_PERMUTED)
        return cli_usage("--epochs of text are those of --order permuted, which reads each part "
                         "once in each; add that, or give --steps");
    if (cup_data_sets(r->data))
        return cli_usage("--epochs of sets with --weights: each has epochs of its own; give "
                         "--steps");
    double texts = given->epochs *
                   (double)cup_data_windows(r->data, CUP_SPLIT_TRAIN, t->model.context);
    double steps = ceil(texts / ((double)t->batch * (double)t->accumulate));
    if (!(steps >= 1 && steps <= (double)TRAIN_MOST))
        return cli_usage("--epochs %g are %g steps; from 1 to %g can be made", given->epochs, steps,
                         (double)TRAIN_MOST);
    t->steps = (int64_t)steps;
    train_limit_warmup(r->call, t);
    return CLI_OK;
}

int train_load_data(train_run *r)
{
    const train_given *given = r->given;
    bool has_tokens, more = false;
    int code = check_data(given, &has_tokens);
    if (!code)
        code = check_tokenizer(r, has_tokens);
    if (code)
        return code;
    if (!given->data.count || has_tokens)
        return has_tokens ? load_tokens(r) : load_known(r);
    r->corpus =
        cup_corpus_load(r->c, given->data.name, given->data.count,
                        CUP_OPTIONS(cup_corpus_options, .most_bytes = given->text_limit << 20,
                                    .text_field = given->text_field, .more = &more));
    if (more) {
        cup_error_clear(r->c);
        return train_load_large(r);
    }
    code = r->corpus ? load_tokenizer(r) : cli_report(r->c);
    if (code)
        return code;
    if (given->weights.count)
        return load_mix(r, false);
    r->data = cup_data_new(r->c, r->corpus, r->tokenizer, r->training.model.context);
    return cli_report(r->c);
}

