/* What a run says while it goes on: progress, curves, metrics; and in the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/plot.h"
#include "cli/common/signals.h"
#include "cli/train_run.h"
#include "cupola/cupola.h"

#define DRAW_SECONDS 5

static int64_t tokens_of(const cup_training *t, int64_t steps)
{
    return t->batch * t->accumulate * t->model.context * steps;
}

/* The tokens of an epoch; 0 where a run has none, or each set of a mix its own. */
static int64_t epoch_of(const train_run *r)
{
    int64_t context = r->training.model.context;
    bool has = r->training.order == CUP_DATA_ORDER_PERMUTED && !cup_data_sets(r->data);
    return has ? cup_data_windows(r->data, CUP_SPLIT_TRAIN, context) * context : 0;
}

/* One of several processes speaks for all. */
bool train_speaks(const train_run *r)
{
    return cup_comm_rank(r->comm) == 0;
}

void train_announce(const train_run *r)
{
    char count[32], text[32];
    const cup_gpt *m = cup_trainer_model(r->trainer);
    if (!train_speaks(r))
        return;
    int64_t each = r->parts.tensor * r->parts.stages;
    if (r->comm)
        fprintf(stderr, "run      %d processes, joined by %s", cup_comm_count(r->comm),
                cup_comm_backend(r->comm));
    if (r->comm && each > 1)
        fprintf(stderr, "; %lld share out the model: %lld stages by %lld parts", (long long)each,
                (long long)r->parts.stages, (long long)r->parts.tensor);
    if (r->comm && r->parts.chunks > 1)
        fprintf(stderr, ", of %lld chunks each", (long long)r->parts.chunks);
    if (r->comm && r->parts.ring > 1)
        fprintf(stderr, "; texts in %lld parts", (long long)r->parts.ring);
    if (r->comm && r->parts.expert > 1)
        fprintf(stderr, "; experts in %lld parts", (long long)r->parts.expert);
    fputs(r->comm ? "\n" : "", stderr);
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
    if (m->config.experts)
        fprintf(stderr, "experts  %lld in each layer, %lld of them a token: %s parameters\n",
                (long long)m->config.experts, (long long)m->config.experts_each,
                progress_number((double)cup_gpt_active_count(&m->config, true), text));
    if (m->adapters)
        fprintf(stderr, "learned  adapters of rank %lld: %s parameters\n", (long long)m->lora_rank,
                progress_number((double)cup_parameters_count(m->adapters, true), text));
    if (cup_trainer_policy_text(r->trainer))
        fprintf(stderr, "policy   %s\n", cup_trainer_policy_text(r->trainer));
    if (r->first)
        fprintf(stderr, "resumed  behind step %lld of %s\n", (long long)r->first,
                cli_shown(r->given->out));
}

/* With how far the run is, in words. */
cup_status train_draw(train_run *r)
{
    char words[200], rate[32], flops[32], left[32];
    double each = progress_rate(&r->progress);
    int64_t steps = cup_trainer_steps(r->trainer);
    const cup_gpt *m = cup_trainer_model(r->trainer);
    const cup_gpt_config *config = &m->config;
    double more = (double)tokens_of(&r->training, r->training.steps - steps);
    snprintf(words, sizeof words, "Step %lld of %lld, %s tokens/s, %sFLOP/s, %s left",
             (long long)steps, (long long)r->training.steps, progress_number(each, rate),
             progress_number(each * plot_flops_of_token(config, m->adapters), flops),
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
    if (cup_error(r->c) == CUP_OK && train_draw(r) != CUP_OK)
        cup_error_clear(r->c);
}

static void write_metrics(train_run *r)
{
    const metrics_pace pace = {r->progress.rate, progress_left(&r->progress), NAN,
                               cup_trainer_loss_scale(r->trainer)};
    metrics_write(&r->metrics, &pace);
}

static const cup_training_point *points_of(const void *run, int64_t *count)
{
    return cup_trainer_points(run, count);
}

void train_begin_report(train_run *r)
{
    const cup_gpt *m = cup_trainer_model(r->trainer);
    double peak = metrics_peak(r->c, m->dtype, r->training.precision);
    const metrics_facts facts = {.c = r->c,
                                 .points = points_of,
                                 .run = r->trainer,
                                 .unit = "token",
                                 .folder = r->given->out,
                                 .device = cup_device_text(r->c),
                                 .first = r->first,
                                 .step_units = tokens_of(&r->training, 1),
                                 .epoch_units = epoch_of(r),
                                 .flops = plot_flops_of_token(&m->config, m->adapters),
                                 .peak_flops = peak * cup_comm_count(r->comm),
                                 .events = r->given->tensorboard};
    metrics_begin(&r->metrics, &facts);
    progress_begin(&r->progress, stderr, "tokens", r->training.steps, r->first);
    if (r->first)
        write_metrics(r);
}

/* In which epoch the run is, what the device does of what it could, and what it holds. */
static void describe(train_run *r)
{
    char *to = r->progress.more, memory[32];
    size_t room = sizeof r->progress.more;
    double mfu = metrics_mfu(&r->metrics, r->progress.rate);
    double epoch = metrics_epoch(&r->metrics, r->done);
    int used = epoch >= 0 ? snprintf(to, room, "epoch %.2f  ", epoch) : 0;
    if (mfu > 0)
        used += snprintf(to + used, room - (size_t)used, "%.1f %% MFU  ", 100 * mfu);
    cup_text_size((double)metrics_memory(&r->metrics)->peak_allocated, memory, sizeof memory);
    used += snprintf(to + used, room - (size_t)used, "%s", memory);
    int64_t skipped = cup_trainer_skipped(r->trainer);
    if (skipped > 0)
        snprintf(to + used, room - (size_t)used, "  %lld skipped", (long long)skipped);
}

/* Metrics of a new run are not begun before a step is done: until then there is nothing to tell of,
 * and a run that ends leaves its folder as it was. */
void train_report(train_run *r, const cup_training_point *p)
{
    if (isfinite(p->validation)) {
        progress_note(&r->progress, "step %lld: validation loss %.4f", (long long)p->step,
                      p->validation);
        if (r->done || r->first)
            write_metrics(r);
        return;
    }
    r->done = p->step + 1;
    describe(r);
    progress_step(&r->progress, r->done, tokens_of(&r->training, r->done - r->first), p->loss);
    write_metrics(r);
    draw_again(r);
}

void train_end_report(train_run *r)
{
    if (r->saved)
        write_metrics(r);
    metrics_end(&r->metrics);
    progress_end(&r->progress);
    r->rate = progress_rate(&r->progress);
}

/* How many texts of the first steps are of each set. */
static cup_status count_texts(const train_run *r, int64_t steps, int64_t *counts)
{
    const cup_training *a = &r->training;
    int64_t rows = a->batch * a->accumulate;
    if (a->order == CUP_DATA_ORDER_PERMUTED)
        return cup_data_sample_counts(r->c, r->data, steps * rows, counts);
    return cup_data_drawn(r->c, r->data, a->seed, (uint64_t)steps, rows, counts);
}

/* What a run from its first step on has read of each set. A signal does not wait for it. */
static void tell_sets(const train_run *r)
{
    int count = cup_data_sets(r->data);
    const cup_training *a = &r->training;
    int64_t steps = cup_trainer_steps(r->trainer), rows = a->batch * a->accumulate, all = 0;
    bool waits = count && !r->stopped && !signals_caught();
    int64_t *drawn = waits ? calloc((size_t)count, sizeof *drawn) : NULL;
    if (drawn && count_texts(r, steps, drawn) == CUP_OK)
        all = rows * steps;
    for (int i = 0; drawn && all && i < count; i++) {
        char tokens[32], size[32];
        double read = (double)drawn[i] * (double)a->model.context;
        double own = (double)cup_data_count(cup_data_set(r->data, i), CUP_SPLIT_TRAIN);
        fprintf(stderr, "set %d: %s tokens read, %.1f %% of all, %.2f times its %s\n", i + 1,
                progress_number(read, tokens), 100 * (double)drawn[i] / (double)all, read / own,
                progress_number(own, size));
    }
    free(drawn);
}

void train_tell_skipped(int64_t steps)
{
    if (steps > 0)
        fprintf(stderr,
                "%lld %s skipped, as gradients or loss were not finite\n", (long long)steps,
                steps == 1 ? "step was" : "steps were");
}

void train_summarize(train_run *r)
{
    char time[32], rate[32], steady[32];
    double seconds = r->rate > 0 ? (double)r->progress.units / r->rate : 0;
    fprintf(stderr,
            "%s at step %lld of %lld after %s, %s tokens/s, %s without start, evaluations and "
            "saves\n",
            r->stopped ? "stopped" : "done", (long long)cup_trainer_steps(r->trainer),
            (long long)r->training.steps, progress_time(seconds, time),
            progress_number(r->rate, rate),
            progress_number(progress_steady_rate(&r->progress), steady));
    double first = plot_validation(r->trainer, false), last = plot_validation(r->trainer, true);
    if (last != first && isfinite(last))
        fprintf(stderr, "validation loss %.4f, before training %.4f\n", last, first);
    train_tell_skipped(cup_trainer_skipped(r->trainer));
    tell_sets(r);
    if (epoch_of(r))
        fprintf(stderr, "%.2f epochs of %s tokens\n",
                metrics_epoch(&r->metrics, cup_trainer_steps(r->trainer)),
                progress_number((double)epoch_of(r), time));
    fprintf(stderr, "%s: checkpoint, losses.csv, metrics.jsonl, loss.svg and loss.html\n",
            cli_shown(r->given->out));
}

int train_write_document(train_run *r, const cli_text *sample)
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
    json_add_integer(&w, "skipped", cup_trainer_skipped(r->trainer));
    json_add_boolean(&w, "finished", steps == r->training.steps);
    json_add_number(&w, "epochs", metrics_epoch(&r->metrics, steps));
    json_add_number(&w, "tokens_per_second", r->rate);
    json_add_number(&w, "steady_tokens_per_second", progress_steady_rate(&r->progress));
    double mfu = metrics_mfu(&r->metrics, r->rate);
    json_add_number(&w, "mfu", mfu > 0 ? mfu : NAN);
    json_add_integer(&w, "memory_peak", metrics_memory(&r->metrics)->peak_allocated);
    json_add_number(&w, "loss", loss);
    json_add_number(&w, "first_validation_loss", plot_validation(r->trainer, false));
    json_add_number(&w, "validation_loss", plot_validation(r->trainer, true));
    if (sample)
        json_add_bytes(&w, "sample", sample->bytes, sample->length);
    return json_end(&w);
}

