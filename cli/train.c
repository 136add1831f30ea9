/* cupola train: from text to a model. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/launcher.h"
#include "cli/common/plot.h"
#include "cli/common/progress.h"
#include "cli/common/signals.h"
#include "cli/common/text.h"
#include "cli/train.h"
#include "cli/common/write.h"
#include "cupola/cupola.h"

#define DRAW_SECONDS 5
#define SMALL_VOCABULARY 1024
#define GPT2_VOCABULARY 50257

typedef struct train_run {
    const cli_call *call;
    const train_given *given;
    train_place place;
    cup_context *c;
    cup_comm *comm;  /* NULL: this process alone */
    cup_training training;
    cup_corpus *corpus;
    cup_tokenizer *tokenizer;
    cup_data *data;
    cup_trainer *trainer;
    cli_progress progress;
    int64_t first, done; /* steps before this run, and now */
    double rate;         /* tokens a second */
    time_t drawn;        /* when the curves were written last */
    bool saved;          /* a checkpoint is in the folder */
} train_run;

static int64_t tokens_of(const cup_training *t, int64_t steps)
{
    return t->batch * t->accumulate * t->model.context * steps;
}

/* One of several processes speaks for all. */
static bool speaks(const train_run *r)
{
    return cup_comm_rank(r->comm) == 0;
}

static bool is_large(const train_given *given)
{
    return given->preset && !strncmp(given->preset, "gpt2", 4);
}

/* The run itself looks again, when the folder is its own; this is to say so before hours of reading
 * text. */
static int check_out(train_run *r)
{
    const char *out = r->given->out;
    if (r->given->overwrite || !speaks(r))
        return CLI_OK;
    cup_status status = cup_training_vacant(r->c, out);
    if (status == CUP_OK)
        return CLI_OK;
    return cli_fail(cli_exit_of(status),
                    "%s (--resume goes on with the checkpoint in --out, "
                    "--overwrite lets a new run replace what is there)",
                    cup_error_text(r->c));
}

/* The preset, or the checkpoint's training, changed by the options. */
static int choose_training(train_run *r)
{
    const train_given *given = r->given;
    if (given->resume) {
        if (cup_training_load(r->c, given->out, &r->training, &r->first) != CUP_OK)
            return cli_report(r->c);
        if (speaks(r))
            train_note_unchecked(r->c, given->out);
        return train_apply(r->call, &r->training);
    }
    int code = check_out(r);
    if (code)
        return code;
    const char *usual = cup_device_is_cuda(r->c) ? "char" : "demo";
    const char *name = given->preset ? given->preset : usual;
    r->training = cup_preset_find(name)->training;
    r->training.dtype = cup_device_computes_in(r->c, CUP_BF16) ? CUP_BF16 : CUP_F32;
    r->training.from = given->from;
    if (given->from && cup_gpt_config_load(r->c, given->from, &r->training.model) != CUP_OK)
        return cli_report(r->c);
    return train_apply(r->call, &r->training);
}

static int load_tokenizer(train_run *r)
{
    const train_given *given = r->given;
    const char *wanted = given->tokenizer ? given->tokenizer : is_large(given) ? "bpe" : "char";
    int64_t size = given->vocabulary ? given->vocabulary
                   : is_large(given) ? GPT2_VOCABULARY
                                     : SMALL_VOCABULARY;
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

/* Whether the data is in tokens already. The two kinds cannot be mixed. */
static int check_data(const train_given *given, bool *has_tokens)
{
    int tokens = 0;
    for (int i = 0; i < given->data.count; i++)
        tokens += cup_data_has_tokens(given->data.name[i]);
    *has_tokens = tokens > 0;
    if (tokens && tokens < given->data.count)
        return cli_usage("--data names text and .bin files of tokens; give the one or the other");
    return CLI_OK;
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
    if (r->tokenizer)
        r->data = cup_data_open(r->c, given->data.name, given->data.count, r->tokenizer,
                                r->training.model.context);
    return cli_report(r->c);
}

/* What the checkpoint's run learned from. */
static int load_known(train_run *r)
{
    const char *out = r->given->out;
    r->tokenizer = cup_gpt_tokenizer_load(r->c, out);
    if (r->tokenizer)
        r->data = cup_gpt_data_load(r->c, out, r->tokenizer, r->training.model.context);
    return cli_report(r->c);
}

static int load_data(train_run *r)
{
    const train_given *given = r->given;
    bool has_tokens;
    int code = check_data(given, &has_tokens);
    if (code)
        return code;
    if (!given->data.count || has_tokens)
        return has_tokens ? load_tokens(r) : load_known(r);
    r->corpus =
        cup_corpus_load(r->c, given->data.name, given->data.count,
                        CUP_OPTIONS(cup_corpus_options, .text_field = given->text_field));
    code = r->corpus ? load_tokenizer(r) : cli_report(r->c);
    if (code)
        return code;
    r->data = cup_data_new(r->c, r->corpus, r->tokenizer, r->training.model.context);
    return cli_report(r->c);
}

static int make_trainer(train_run *r)
{
    r->training.comm = r->comm;
    r->training.optimizer.split = r->given->zero ? r->comm : NULL;
    r->trainer = cup_trainer_new(r->c, r->data, r->tokenizer, r->given->out, &r->training);
    if (r->trainer && r->given->resume) {
        cup_trainer_resume(r->trainer);
        r->first = cup_trainer_steps(r->trainer);
    }
    if (r->trainer && r->given->overwrite)
        cup_trainer_overwrite(r->trainer);
    return cli_report(r->c);
}

static void announce(const train_run *r)
{
    char count[32], text[32];
    const cup_gpt *m = cup_trainer_model(r->trainer);
    if (!speaks(r))
        return;
    if (r->comm)
        fprintf(stderr, "run      %d processes, joined by %s\n", cup_comm_count(r->comm),
                cup_comm_backend(r->comm));
    fprintf(stderr, "device   %s, %s\n", cup_device_text(r->c), cup_dtype_name(m->dtype));
    fprintf(stderr, "text     %lld files, %s tokens of %lld kinds (%s)\n",
            (long long)cup_data_files(r->data),
            progress_number((double)(cup_data_count(r->data, CUP_SPLIT_TRAIN) +
                                     cup_data_count(r->data, CUP_SPLIT_VALIDATION)),
                            count),
            (long long)cup_tokenizer_size(r->tokenizer), cup_tokenizer_kind(r->tokenizer));
    fprintf(stderr, "model    %lld layers, %lld heads, %lld wide, context %lld: %s parameters\n",
            (long long)m->config.layers, (long long)m->config.heads, (long long)m->config.width,
            (long long)m->config.context,
            progress_number((double)cup_gpt_parameter_count(&m->config, true), text));
    if (r->first)
        fprintf(stderr, "resumed  behind step %lld of %s\n", (long long)r->first,
                cli_shown(r->given->out));
}

/* How far the run is, in words, and its curves, so far. */
static cup_status draw(train_run *r)
{
    char words[200], rate[32], flops[32], left[32];
    double each = progress_rate(&r->progress);
    int64_t steps = cup_trainer_steps(r->trainer);
    const cup_gpt_config *config = &cup_trainer_model(r->trainer)->config;
    double more = (double)tokens_of(&r->training, r->training.steps - steps);
    snprintf(words, sizeof words, "Step %lld of %lld, %s tokens/s, %sFLOP/s, %s left",
             (long long)steps, (long long)r->training.steps, progress_number(each, rate),
             progress_number(each * plot_flops_of_token(config), flops),
             progress_time(each > 0 ? more / each : 0, left));
    return plot_run(r->c, r->trainer, r->given->out, words);
}

/* Now and then while the run goes on, which does not end for want of a picture. Not before there is
 * a checkpoint, without which the next run would take it for somebody else's. */
static void draw_again(train_run *r)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (!r->saved || t.tv_sec < r->drawn + DRAW_SECONDS)
        return;
    r->drawn = t.tv_sec;
    if (cup_error(r->c) == CUP_OK && draw(r) != CUP_OK)
        cup_error_clear(r->c);
}

static void on_point(const cup_training_point *p, void *user)
{
    train_run *r = user;
    if (!speaks(r)) {
        signals_stake(SIGNALS_WORK);
        return;
    }
    if (isfinite(p->validation)) {
        progress_note(&r->progress, "step %lld: validation loss %.4f", (long long)p->step,
                      p->validation);
        return;
    }
    signals_stake(SIGNALS_WORK);
    r->done = p->step + 1;
    progress_step(&r->progress, r->done, tokens_of(&r->training, r->done - r->first), p->loss);
    draw_again(r);
}

static void on_saved(int64_t steps, void *user)
{
    (void)steps;
    ((train_run *)user)->saved = true;
}

static bool on_stop(void *user)
{
    (void)user;
    return signals_caught() != 0;
}

static void summarize(train_run *r)
{
    char time[32], rate[32];
    double seconds = r->rate > 0 ? (double)r->progress.units / r->rate : 0;
    fprintf(stderr, "%s at step %lld of %lld after %s, %s tokens/s\n",
            signals_caught() ? "stopped" : "done", (long long)cup_trainer_steps(r->trainer),
            (long long)r->training.steps, progress_time(seconds, time),
            progress_number(r->rate, rate));
    double first = plot_validation(r->trainer, false), last = plot_validation(r->trainer, true);
    if (last != first && isfinite(last))
        fprintf(stderr, "validation loss %.4f, before training %.4f\n", last, first);
    fprintf(stderr, "%s: checkpoint, losses.csv, loss.svg and loss.html\n",
            cli_shown(r->given->out));
}

static int write_document(train_run *r, const cli_text *sample)
{
    cli_json w;
    int64_t count, steps = cup_trainer_steps(r->trainer);
    const cup_training_point *points = cup_trainer_points(r->trainer, &count);
    double loss = NAN;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(points[i].loss))
            loss = points[i].loss;
    json_begin(&w, "train");
    json_add_string(&w, "device", cup_device_text(r->c));
    json_add_string(&w, "out", r->given->out);
    json_add_integer(&w, "parameters",
                     cup_gpt_parameter_count(&cup_trainer_model(r->trainer)->config, true));
    json_add_integer(&w, "first_step", r->first);
    json_add_integer(&w, "steps", steps);
    json_add_boolean(&w, "finished", steps == r->training.steps);
    json_add_number(&w, "tokens_per_second", r->rate);
    json_add_number(&w, "loss", loss);
    json_add_number(&w, "first_validation_loss", plot_validation(r->trainer, false));
    json_add_number(&w, "validation_loss", plot_validation(r->trainer, true));
    if (sample)
        json_add_bytes(&w, "sample", sample->bytes, sample->length);
    return json_end(&w);
}

/* Writes with the trained model; to `to`, or as it goes to stdout when it is NULL. */
static int write_sample(train_run *r, FILE *to)
{
    cli_writing writing = {
        .model = cup_trainer_model(r->trainer),
        .tokenizer = r->tokenizer,
        .prompt = "\n",
        .prompt_bytes = 1,
        .tokens = r->given->sample,
        .sampling = {.size = sizeof(cup_sampling), .temperature = 0.8, .seed = r->training.seed},
        .to = to};
    return write_text(r->c, &writing);
}

static int finish(train_run *r)
{
    cli_text sample = {0};
    if (!speaks(r))
        return CLI_OK;
    bool wants = r->given->sample > 0 && !signals_caught(), kept = wants && r->call->json;
    if (draw(r) != CUP_OK)
        return cli_report(r->c);
    summarize(r);
    bool fits = !kept || text_open(&sample);
    int code = wants && fits ? write_sample(r, sample.to) : CLI_OK;
    if (kept && !text_close(&sample) && !code)
        code = cli_fail(CLI_MEMORY, "no host memory for the sample");
    if (!code && r->call->json)
        code = write_document(r, wants ? &sample : NULL);
    text_free(&sample);
    return code;
}

static int train(train_run *r)
{
    const cup_training_hooks hooks = {
        sizeof hooks, .point = on_point, .saved = on_saved, .stop = on_stop, .user = r};
    r->saved = r->given->resume;
    if (speaks(r))
        progress_begin(&r->progress, stderr, "tokens", r->training.steps, r->first);
    cup_status status = cup_trainer_run(r->trainer, &hooks);
    signals_stake(SIGNALS_OUTPUT);
    if (speaks(r)) {
        progress_end(&r->progress);
        r->rate = progress_rate(&r->progress);
    }
    if (status != CUP_OK && status != CUP_INTERRUPTED)
        return cli_report(r->c);
    int code = finish(r);
    return code ? code : cli_exit_of(status);
}

static int run_with(train_run *r)
{
    int code = cli_report(r->c);
    if (!code && r->given->memory_page && !cup_device_is_cuda(r->c))
        code = cli_usage("--memory-page draws the memory of a GPU; this run is on the CPU");
    if (!code && r->given->tune && !cup_device_is_cuda(r->c))
        fprintf(stderr, "note: --tune measures on a GPU only; this run is on the CPU\n");
    if (!code && cup_tuning(r->c, r->given->tune) != CUP_OK)
        code = cli_report(r->c);
    if (!code && r->place.run.count > 1) {
        r->comm = cup_comm_new(r->c, NULL);
        code = cli_report(r->c);
    }
    if (!code && train_goes_on(r->c, r->comm, &r->place, r->given)) {
        train_given *given = r->call->given;
        given->resume = given->again = true;
    }
    if (!code)
        code = choose_training(r);
    if (!code)
        code = load_data(r);
    if (!code)
        code = make_trainer(r);
    if (code)
        return code;
    announce(r);
    return train(r);
}

/* The page is of the moment before anything is freed. */
static int draw_memory(train_run *r)
{
    if (!r->given->memory_page || !cup_device_is_cuda(r->c))
        return CLI_OK;
    if (cup_memory_page(r->c, r->given->memory_page) == CUP_OK)
        return CLI_OK;
    return cli_fail(CLI_FILE, "%s: the page of the memory was not written", r->given->memory_page);
}

/* The work of one process. */
static int run_one(void *user)
{
    cli_call *call = user;
    train_run r = {.call = call, .given = call->given};
    int code = train_find_place(r.given, &r.place);
    if (code)
        return code;
    /* Until the first step is done there is nothing that a checkpoint could save. */
    signals_stake(SIGNALS_NOTHING);
    signals_catch();
    r.c = cup_context_new(
        CUP_OPTIONS(cup_options, .device = *r.place.device ? r.place.device : r.given->device,
                    .threads = r.place.threads,
                    .deterministic = r.given->deterministic, .memory_limit = r.given->memory_limit,
                    .memory_share = r.given->memory_share));
    code = run_with(&r);
    int drawn = draw_memory(&r);
    code = code ? code : drawn;
    cup_trainer_free(r.trainer);
    cup_data_free(r.data);
    cup_tokenizer_free(r.tokenizer);
    cup_corpus_free(r.corpus);
    cup_comm_free(r.comm);
    cup_context_free(r.c);
    return code;
}

static int run(cli_call *call)
{
    const train_given *given = call->given;
    int processes;
    if (!given->data.count && !given->resume)
        return cli_usage("--data is missing: name files or folders with text to learn from");
    if (given->overwrite && given->resume)
        return cli_usage(
            "--resume goes on with a checkpoint and --overwrite replaces one; give one "
            "of them");
    int code = train_plan(given, &processes);
    if (code || processes == 1)
        return code ? code : run_one(call);
    const launcher l = {.processes = processes,
                        .restarts = (int)given->restarts,
                        .first_plain = true,
                        .work = run_one,
                        .user = call};
    return launcher_run(&l);
}

const cli_verb verb_train = {
    .name = "train",
    .synopsis = "--data FILE|DIR... [OPTION]...",
    .words = "train a GPT on text",
    .text =
        "Learns a language model from the text of files and folders: the first nine tenths of it, "
        "the rest is for validation. Files whose names end in .bin, and folders of such, are "
        "tokens already, as llm.c and nanoGPT write them: they are read in pieces and may be of "
        "any size, those with \"train\" in their names are for training and those with \"val\" for "
        "validation, and they need --tokenizer, or a tokenizer.json beside them. What the model "
        "looks like and how it is trained comes from a preset; every option changes one thing of "
        "it.\n\n"
        "The folder --out gets a checkpoint, replaced as a whole every --save-every steps and at "
        "the end; losses.csv with every step; and loss.svg with the curves, which is drawn again "
        "every few seconds, and loss.html, a page with it that says how far the run is, with "
        "tokens and operations a second: 6 a token for each weight that multiplies, and 12 layers "
        "x width x context. SIGINT and SIGTERM "
        "end a run within a second, with a checkpoint and exit code 130 or 143, and --resume goes "
        "on from it as if nothing had happened: the same losses, bit for bit. Until the first step "
        "is done there is nothing to save, and they end the run at once; a second one does not "
        "keep the checkpoint from being saved, a third one, half a second after it, does. "
        "--resume finds text or tokens where they were.\n\n"
        "Several processes train one model with --gpus or --processes, or when `cupola launch`, "
        "torchrun, mpirun or Slurm starts them: each computes its share of a step's batches, "
        "--batch times --accumulate texts in all, so that the run is that of one process but for "
        "rounding. Rank 0 writes the checkpoint, from which a run that is started again goes on by "
        "itself, but with --overwrite; another number of processes may go on from it, too.\n\n"
        "Progress goes to stderr; the sample that --sample asks for, and the document of --json, "
        "go to stdout.",
    .examples = "A small model of a book, as large as the device suggests:\n"
                "cupola train --data book.txt --out book\n"
                "The same after an interruption:\ncupola train --out book --resume\n"
                "nanoGPT's character model, on the first GPU:\n"
                "cupola train --preset char --data shakespeare.txt --device cuda\n",
    .options = train_options,
    .size = sizeof(train_given),
    .run = run,
};
