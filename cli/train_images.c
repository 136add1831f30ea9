/* cupola train --task classify: from images to a network that tells them apart. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/common/exit.h"
#include "cli/common/json.h"
#include "cli/common/plot.h"
#include "cli/common/progress.h"
#include "cli/common/signals.h"
#include "cli/launcher.h"
#include "cli/train.h"
#include "cupola/cupola.h"

#define DRAW_SECONDS 5

typedef struct images_run {
    const cli_call *call;
    const train_given *given;
    train_place place;
    cup_context *c;
    cup_comm *comm; /* NULL: this process alone */
    cup_images *train, *kept;
    cup_classification how;
    cup_classifier *m;
    cli_progress progress;
    int64_t first;
    double rate; /* images a second */
    time_t drawn;
    bool saved;
} images_run;

/* One of several processes speaks for all. */
static bool speaks(const images_run *r)
{
    return cup_comm_rank(r->comm) == 0;
}

bool train_is_images(const train_given *given)
{
    return !strcmp(given->task, "classify");
}

/* What the checkpoint says has no say on the command line, but for how long and how often. */
static int check_options(const cli_call *call)
{
    static const char *const resumed[] = {
        "task",   "data",   "out",          "resume",       "device",     "threads",
        "steps",  "epochs", "memory-limit", "memory-share", "save-every", "evaluate-every",
        "warmup", "lr",     "lr-end",       "deterministic", "gpus",      "processes",
        "restarts", NULL};
    static const char *const all[] = {
        "task",        "data",   "out",     "resume",    "overwrite",    "preset",
        "device",      "dtype",  "threads", "precision", "deterministic", "memory-limit",
        "memory-share", "seed",  "epochs",  "network",   "image-size",   "grey",
        "skip-broken", "as-needed", "flip",   "crop",    "rotate",    "scale",        "color",
        "erase",       "mixup",  "label-smoothing",      "steps",        "batch",
        "lr",          "lr-end", "warmup",  "decline",   "optimizer",    "beta1",
        "beta2",       "momentum", "weight-decay",       "clip",         "evaluate-every",
        "save-every",  "gpus",   "processes", "restarts", NULL};
    const train_given *given = call->given;
    if (given->overwrite && given->resume)
        return cli_usage("--resume goes on with a checkpoint and --overwrite replaces one; give "
                         "one of them");
    if (given->data.count > 1 || (!given->data.count && !given->resume))
        return cli_usage("--data names one folder with images, or a .csv file");
    if (given->resume)
        return call_allow(call, "--task classify --resume", resumed);
    return call_allow(call, "--task classify", all);
}

static void on_broken(const char *sentence, void *user)
{
    (void)user;
    fprintf(stderr, "note: left out: %s\n", sentence);
}

static int load_images(images_run *r, const char *path)
{
    const cup_images_options *options = CUP_OPTIONS(
        cup_images_options, .height = r->how.height, .width = r->how.width,
        .channels = r->how.channels, .skip_broken = r->how.skip_broken,
        .as_needed = r->how.as_needed, .broken = speaks(r) ? on_broken : NULL);
    cup_images_options kept = *options;
    r->train = cup_images_load(r->c, path, CUP_SPLIT_TRAIN, options);
    kept.height = cup_images_height(r->train);
    kept.width = cup_images_width(r->train);
    kept.channels = cup_images_channels(r->train);
    if (r->train)
        r->kept = cup_images_load(r->c, path, CUP_SPLIT_VALIDATION, &kept);
    return cli_report(r->c);
}

static int read_network(images_run *r)
{
    const char *path = r->given->network;
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!path)
        return CLI_OK;
    if (!file)
        return cli_fail(CLI_FILE, "%s cannot be opened: %s", cli_shown(path), strerror(errno));
    size_t room = sizeof r->how.network, length = fread(r->how.network, 1, room, file);
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed || length == room || memchr(r->how.network, 0, length))
        return cli_fail(CLI_FILE, "%s is no description of a network: a text below %zu bytes",
                        cli_shown(path), room);
    r->how.network[length] = 0;
    return CLI_OK;
}

#define TAKE(option, field, value)                                                                 \
    do {                                                                                           \
        if (call_has(r->call, option))                                                             \
            r->how.field = given->value;                                                           \
    } while (0)

static void apply_times(images_run *r)
{
    const train_given *given = r->given;
    TAKE("steps", steps, steps);
    TAKE("lr", rate, lr);
    if (call_has(r->call, "lr"))
        r->how.rate_end = given->lr / 1000;
    TAKE("lr-end", rate_end, lr_end);
    if (r->how.warmup > r->how.steps / 5)
        r->how.warmup = r->how.steps / 5;
    TAKE("warmup", warmup, warmup);
    TAKE("evaluate-every", evaluate_every, evaluate_every);
    TAKE("save-every", save_every, save_every);
}

static void apply(images_run *r)
{
    const train_given *given = r->given;
    int64_t batch = r->how.batch;
    TAKE("batch", batch, batch);
    if (batch != r->how.batch) {
        r->how.steps = (r->how.steps * batch + r->how.batch - 1) / r->how.batch;
        r->how.warmup = r->how.steps / 10;
        r->how.evaluate_every = r->how.save_every =
            (r->how.evaluate_every * batch + r->how.batch - 1) / r->how.batch;
    }
    apply_times(r);
    TAKE("crop", augmentation.crop, crop);
    TAKE("rotate", augmentation.rotate, rotate);
    TAKE("scale", augmentation.scale, scale);
    TAKE("color", augmentation.color, color);
    TAKE("erase", augmentation.erase, erase);
    TAKE("mixup", mixup, mixup);
    TAKE("label-smoothing", label_smoothing, label_smoothing);
    TAKE("beta1", optimizer.beta1, beta1);
    TAKE("beta2", optimizer.beta2, beta2);
    TAKE("momentum", optimizer.momentum, momentum);
    TAKE("weight-decay", optimizer.weight_decay, weight_decay);
    TAKE("clip", optimizer.clip, clip);
    if (given->flip)
        r->how.augmentation.flip = !strcmp(given->flip, "yes");
    if (given->decline)
        cup_decline_find(given->decline, &r->how.decline);
    if (given->optimizer)
        cup_method_find(given->optimizer, &r->how.optimizer.method);
    if (given->dtype)
        cup_dtype_find(given->dtype, &r->how.dtype);
    r->how.precision = given->precision ? given->precision : "high";
    r->how.seed = (uint64_t)given->seed;
}

static int begin_new(images_run *r)
{
    const train_given *given = r->given;
    const char *path = given->data.name[0], *name = given->preset ? given->preset : "cnn";
    if (!given->overwrite && speaks(r) && cup_classification_vacant(r->c, given->out) != CUP_OK)
        return cli_report(r->c);
    r->how.height = r->how.width = given->image_size;
    r->how.channels = given->grey;
    r->how.skip_broken = given->skip_broken;
    r->how.as_needed = given->as_needed;
    int code = load_images(r, path);
    if (code)
        return code;
    cup_classification start;
    if (cup_classification_start(r->c, name, r->train, given->epochs, &start) != CUP_OK)
        return cli_report(r->c);
    start.height = cup_images_height(r->train);
    start.width = cup_images_width(r->train);
    start.channels = cup_images_channels(r->train);
    start.skip_broken = given->skip_broken;
    start.as_needed = given->as_needed;
    start.dtype = cup_device_computes_in(r->c, CUP_BF16) ? CUP_BF16 : CUP_F32;
    snprintf(start.data, sizeof start.data, "%s", path);
    r->how = start;
    apply(r);
    return read_network(r);
}

static int begin_again(images_run *r)
{
    const train_given *given = r->given;
    if (cup_classification_load(r->c, given->out, &r->how, &r->first) != CUP_OK)
        return cli_report(r->c);
    int code = load_images(r, given->data.count ? given->data.name[0] : r->how.data);
    if (!code && call_has(r->call, "epochs"))
        r->how.steps = (int64_t)ceil(given->epochs * (double)cup_images_count(r->train) /
                                     (double)r->how.batch);
    if (!code)
        apply_times(r);
    return code;
}

static int make(images_run *r)
{
    const train_given *given = r->given;
    int code = given->resume ? begin_again(r) : begin_new(r);
    if (code)
        return code;
    r->how.comm = r->comm;
    r->m = cup_classifier_new(r->c, r->train, r->kept, given->out, &r->how);
    if (r->m && given->resume)
        cup_loop_resume(cup_classifier_loop(r->m));
    if (r->m && given->overwrite)
        cup_loop_overwrite(cup_classifier_loop(r->m));
    return cli_report(r->c);
}

static void announce(const images_run *r)
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
    double more = (double)((r->how.steps - steps) * r->how.batch);
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

static void on_point(const cup_training_point *p, void *user)
{
    images_run *r = user;
    if (!speaks(r)) {
        signals_stake(SIGNALS_WORK);
        return;
    }
    if (isfinite(p->validation)) {
        progress_note(&r->progress, "step %lld: validation loss %.4f, accuracy %.2f %%",
                      (long long)p->step, p->validation, 100 * cup_classifier_accuracy(r->m));
        return;
    }
    signals_stake(SIGNALS_WORK);
    progress_step(&r->progress, p->step + 1, (p->step + 1 - r->first) * r->how.batch, p->loss);
    draw_again(r);
}

static void on_saved(int64_t steps, void *user)
{
    (void)steps;
    ((images_run *)user)->saved = true;
}

static bool on_stop(void *user)
{
    (void)user;
    return signals_caught() != 0;
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
    json_add_boolean(&w, "finished", steps == r->how.steps);
    json_add_number(&w, "images_per_second", r->rate);
    json_add_number(&w, "loss", loss);
    json_add_number(&w, "validation_loss", validation);
    json_add_number(&w, "accuracy", cup_classifier_accuracy(r->m));
    return json_end(&w);
}

static int finish(images_run *r)
{
    char time[32], rate[32];
    if (!speaks(r))
        return CLI_OK;
    if (draw(r) != CUP_OK)
        return cli_report(r->c);
    fprintf(stderr, "%s at step %lld of %lld after %s, %s images/s\n",
            signals_caught() ? "stopped" : "done",
            (long long)cup_loop_steps(cup_classifier_loop(r->m)), (long long)r->how.steps,
            progress_time(r->rate > 0 ? (double)r->progress.units / r->rate : 0, time),
            progress_number(r->rate, rate));
    if (isfinite(cup_classifier_accuracy(r->m)))
        fprintf(stderr, "accuracy %.2f %% of the images kept apart\n",
                100 * cup_classifier_accuracy(r->m));
    fprintf(stderr, "%s: checkpoint, losses.csv, loss.svg and loss.html\n",
            cli_shown(r->given->out));
    return r->call->json ? write_document(r) : CLI_OK;
}

static int train(images_run *r)
{
    const cup_training_hooks hooks = {
        sizeof hooks, .point = on_point, .saved = on_saved, .stop = on_stop, .user = r};
    r->saved = r->given->resume;
    if (speaks(r))
        progress_begin(&r->progress, stderr, "images", r->how.steps, r->first);
    cup_status status = cup_loop_run(cup_classifier_loop(r->m), &hooks);
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

static int run_with(images_run *r)
{
    int code = cli_report(r->c);
    if (!code && r->place.run.count > 1) {
        const char *record = getenv("CUP_COMM_RECORD");
        r->comm = cup_comm_new(
            r->c, CUP_OPTIONS(cup_comm_options, .record = record ? record : r->given->out));
        code = cli_report(r->c);
    }
    if (!code && train_goes_on(r->c, r->comm, &r->place, r->given)) {
        train_given *given = r->call->given;
        given->resume = given->again = true;
    }
    if (!code)
        code = make(r);
    if (code)
        return code;
    if (speaks(r))
        announce(r);
    return train(r);
}

/* The work of one process. */
static int run_one(void *user)
{
    cli_call *call = user;
    images_run r = {.call = call, .given = call->given};
    int code = train_find_place(r.given, &r.place);
    if (code)
        return code;
    signals_stake(SIGNALS_NOTHING);
    signals_catch();
    r.c = cup_context_new(CUP_OPTIONS(
        cup_options, .device = *r.place.device ? r.place.device : r.given->device,
        .threads = r.place.threads, .deterministic = r.given->deterministic,
        .memory_limit = r.given->memory_limit, .memory_share = r.given->memory_share));
    code = run_with(&r);
    cup_classifier_free(r.m);
    cup_images_free(r.train);
    cup_images_free(r.kept);
    cup_comm_free(r.comm);
    cup_context_free(r.c);
    return code;
}

int train_images(cli_call *call)
{
    const train_given *given = call->given;
    int processes, code = check_options(call);
    if (!code)
        code = train_plan(given, &processes);
    if (code || processes == 1)
        return code ? code : run_one(call);
    const launcher l = {.processes = processes,
                        .restarts = (int)given->restarts,
                        .first_plain = true,
                        .work = run_one,
                        .user = call};
    return launcher_run(&l);
}
