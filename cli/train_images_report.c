/* What a run on images says while it goes on: progress, curves, metrics; and in the end. */
#include <math.h>
#include <stdio.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/plot.h"
#include "cli/train_images.h"

#define DRAW_SECONDS 5

bool images_speaks(const images_run *r)
{
    return cup_comm_rank(r->comm) == 0;
}

static int64_t images_of(const images_run *r, int64_t steps)
{
    return steps * r->how.batch * r->how.accumulate;
}

void images_announce(const images_run *r)
{
    char text[32];
    if (r->comm)
        fprintf(stderr, "run      %d processes, joined by %s\n", cup_comm_count(r->comm),
                cup_comm_backend(r->comm));
    fprintf(stderr, "device   %s, %s\n", cup_device_text(r->c), cup_dtype_name(r->how.dtype));
    fprintf(stderr, "images   %lld and %lld kept apart, %lld x %lld x %lld, of %lld classes\n",
            (long long)cup_images_count(r->train), (long long)cup_images_count(r->kept),
            (long long)cup_images_height(r->train), (long long)cup_images_width(r->train),
            (long long)cup_images_channels(r->train), (long long)cup_images_classes(r->train));
    fprintf(stderr, "network  %s parameters\n",
            progress_number((double)cup_classifier_count(r->m), text));
    if (cup_classifier_from_text(r->m))
        fprintf(stderr, "begins   %s\n", cup_classifier_from_text(r->m));
    if (r->first)
        fprintf(stderr, "resumed  behind step %lld of %s\n", (long long)r->first,
                cli_shown(r->given->out));
}

static cup_status draw(images_run *r)
{
    char words[200], rate[32], left[32];
    double each = progress_rate(&r->progress);
    int64_t count, steps = cup_loop_steps(cup_classifier_loop(r->m));
    const cup_training_point *points = cup_loop_points(cup_classifier_loop(r->m), &count);
    double more = (double)images_of(r, r->how.steps - steps);
    snprintf(words, sizeof words, "Step %lld of %lld, %s images/s, %s left, accuracy %.2f %%",
             (long long)steps, (long long)r->how.steps, progress_number(each, rate),
             progress_time(each > 0 ? more / each : 0, left),
             100 * cup_classifier_accuracy(r->m));
    return plot_points(r->c, points, count, r->given->out, words);
}

/* Now and then, behind a checkpoint, without which the next run would take the picture for
 * somebody else's. */
static void draw_again(images_run *r)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (!r->saved || t.tv_sec < r->drawn + DRAW_SECONDS)
        return;
    r->drawn = t.tv_sec;
    if (cup_error(r->c) == CUP_OK && draw(r) != CUP_OK)
        cup_error_clear(r->c);
}

static const cup_training_point *points_of(const void *run, int64_t *count)
{
    return cup_loop_points(run, count);
}

static void write_metrics(images_run *r)
{
    const metrics_pace pace = {r->progress.rate, progress_left(&r->progress),
                               cup_classifier_accuracy(r->m),
                               cup_loop_loss_scale(cup_classifier_loop(r->m))};
    metrics_write(&r->metrics, &pace);
}

void images_begin_report(images_run *r)
{
    const metrics_facts facts = {.c = r->c,
                                 .points = points_of,
                                 .run = cup_classifier_loop(r->m),
                                 .unit = "image",
                                 .folder = r->given->out,
                                 .device = cup_device_text(r->c),
                                 .first = r->first,
                                 .step_units = images_of(r, 1),
                                 .epoch_units = cup_images_count(r->train),
                                 .events = r->given->tensorboard};
    metrics_begin(&r->metrics, &facts);
    progress_begin(&r->progress, stderr, "images", r->how.steps, r->first);
    if (r->first)
        write_metrics(r);
}

static void describe_device(images_run *r)
{
    char memory[32];
    int64_t skipped = cup_loop_skipped(cup_classifier_loop(r->m));
    cup_text_size((double)metrics_memory(&r->metrics)->peak_allocated, memory, sizeof memory);
    int used = snprintf(r->progress.more, sizeof r->progress.more, "%s", memory);
    if (skipped > 0)
        snprintf(r->progress.more + used, sizeof r->progress.more - (size_t)used, "  %lld skipped",
                 (long long)skipped);
}

/* Metrics of a new run are not begun before a step is done: a run that ends until then leaves its
 * folder as it was. */
void images_report(images_run *r, const cup_training_point *p)
{
    if (isfinite(p->validation)) {
        progress_note(&r->progress, "step %lld: validation loss %.4f, accuracy %.2f %%",
                      (long long)p->step, p->validation, 100 * cup_classifier_accuracy(r->m));
        if (r->done || r->first)
            write_metrics(r);
        return;
    }
    r->done = p->step + 1;
    describe_device(r);
    progress_step(&r->progress, r->done, images_of(r, r->done - r->first), p->loss);
    write_metrics(r);
    draw_again(r);
}

void images_end_report(images_run *r)
{
    if (r->saved)
        write_metrics(r);
    metrics_end(&r->metrics);
    progress_end(&r->progress);
    r->rate = progress_rate(&r->progress);
}

static int write_document(images_run *r)
{
    cli_json w;
    int64_t count, steps = cup_loop_steps(cup_classifier_loop(r->m));
    const cup_training_point *points = cup_loop_points(cup_classifier_loop(r->m), &count);
    double loss = NAN, validation = NAN;
    for (int64_t i = 0; i < count; i++) {
        loss = isfinite(points[i].loss) ? points[i].loss : loss;
        validation = isfinite(points[i].validation) ? points[i].validation : validation;
    }
    json_begin(&w, "train");
    json_add_string(&w, "device", cup_device_text(r->c));
    json_add_string(&w, "out", r->given->out);
    json_add_integer(&w, "parameters", cup_classifier_count(r->m));
    json_add_integer(&w, "first_step", r->first);
    json_add_integer(&w, "steps", steps);
    json_add_integer(&w, "skipped", cup_loop_skipped(cup_classifier_loop(r->m)));
    json_add_boolean(&w, "finished", steps == r->how.steps);
    json_add_number(&w, "images_per_second", r->rate);
    json_add_integer(&w, "memory_peak", metrics_memory(&r->metrics)->peak_allocated);
    json_add_number(&w, "loss", loss);
    json_add_number(&w, "validation_loss", validation);
    json_add_number(&w, "accuracy", cup_classifier_accuracy(r->m));
    return json_end(&w);
}

int images_finish(images_run *r)
{
    char time[32], rate[32];
    if (!images_speaks(r))
        return CLI_OK;
    if (draw(r) != CUP_OK)
        return cli_report(r->c);
    fprintf(stderr, "%s at step %lld of %lld after %s, %s images/s\n",
            r->stopped ? "stopped" : "done",
            (long long)cup_loop_steps(cup_classifier_loop(r->m)), (long long)r->how.steps,
            progress_time(r->rate > 0 ? (double)r->progress.units / r->rate : 0, time),
            progress_number(r->rate, rate));
    if (isfinite(cup_classifier_accuracy(r->m)))
        fprintf(stderr, "accuracy %.2f %% of the images kept apart\n",
                100 * cup_classifier_accuracy(r->m));
    train_tell_skipped(cup_loop_skipped(cup_classifier_loop(r->m)));
    fprintf(stderr, "%s: checkpoint, losses.csv, metrics.jsonl, loss.svg and loss.html\n",
            cli_shown(r->given->out));
    return r->call->json ? write_document(r) : CLI_OK;
}
