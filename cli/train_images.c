/* cupola train --task classify: from images to a network that tells them apart. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/common/signals.h"
#include "cli/launcher.h"
#include "cli/train_images.h"

bool train_is_images(const train_given *given)
{
    return !strcmp(given->task, "classify");
}

int train_deny_images(const cli_call *call)
{
    static const char *const own[] = {"network", "image-size", "grey",   "skip-broken", "as-needed",
                                      "flip",    "crop",       "rotate", "scale",       "recolor",
                                      "erase",   "mixup",      "label-smoothing", NULL};
    return call_deny(call, "without --task classify", own);
}

/* What the checkpoint says has no say on the command line, but for how long and how often. */
static int check_options(const cli_call *call)
{
    static const char *const resumed[] = {
        "task",        "data",          "out",           "resume",      "device",
        "threads",     "steps",         "epochs",        "memory-limit", "memory-share",
        "save-every",  "evaluate-every", "warmup",       "lr",          "lr-end",
        "decline",     "decline-steps", "deterministic", "gpus",        "processes",
        "restarts",    "zero",          "check-every",   "save-background", "tune",
        "tensorboard", "memory-page",   "recompute",     "optimizer-offload",
        "non-finite",  NULL};
    static const char *const all[] = {
        "task",        "data",   "out",     "resume",    "overwrite",    "preset",
        "device",      "dtype",  "threads", "precision", "deterministic", "memory-limit",
        "memory-share", "seed",  "epochs",  "network",   "image-size",   "grey",
        "skip-broken", "as-needed", "flip",   "crop",    "rotate",    "scale",        "recolor",
        "erase",       "mixup",  "label-smoothing",      "steps",        "batch",
        "lr",          "lr-end", "warmup",  "decline",   "optimizer",    "beta1",
        "beta2",       "momentum", "weight-decay",       "clip",         "evaluate-every",
        "decay-groups",
        "save-every",  "gpus",   "processes", "restarts", "from",        "accumulate",
        "decline-steps", "ema",  "stochastic", "recompute", "zero",      "check-every",
        "save-background", "tensorboard", "tune", "memory-page", "optimizer-offload",
        "non-finite",  "loss-scale", NULL};
    const train_given *given = call->given;
    if (given->overwrite && given->resume)
        return cli_usage("--resume goes on with a checkpoint and --overwrite replaces one; give "
                         "one of them");
    if (given->data.count > 1 || (!given->data.count && !given->resume))
        return cli_usage("--data names one folder with images, or a .csv file");
    if (given->from && (given->preset || given->network))
        return cli_usage("--from has a network: leave out --%s",
                         given->preset ? "preset" : "network");
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
        .as_needed = r->how.as_needed, .broken = images_speaks(r) ? on_broken : NULL);
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
    TAKE("decline-steps", decline_steps, decline_steps);
    if (given->decline)
        cup_decline_find(given->decline, &r->how.decline);
    if (r->how.warmup > r->how.steps / 5)
        r->how.warmup = r->how.steps / 5;
    TAKE("warmup", warmup, warmup);
    TAKE("evaluate-every", evaluate_every, evaluate_every);
    TAKE("save-every", save_every, save_every);
    if (call_has(r->call, "check-every"))
        r->how.check_every = given->check_every ? given->check_every : -1;
    if (given->recompute)
        cup_recompute_policy_find(given->recompute, &r->how.recompute);
    if (given->non_finite)
        r->how.non_finite = train_non_finite(given);
    r->how.background = given->save_background;
    r->how.optimizer.offload = given->offload;
    r->how.optimizer.split = given->zero ? r->comm : NULL;
    r->how.optimizer.stage = (int)given->zero;
}

static int64_t steps_of(const images_run *r, double epochs)
{
    return (int64_t)ceil(epochs * (double)cup_images_count(r->train) /
                         ((double)r->how.batch * (double)r->how.accumulate));
}

/* What follows from how many images a step has, where nothing else is said. */
static void set_times(images_run *r)
{
    r->how.steps = steps_of(r, r->given->epochs);
    r->how.warmup = r->how.steps / 10;
    r->how.evaluate_every = r->how.save_every = steps_of(r, 1);
}

static void apply(images_run *r)
{
    const train_given *given = r->given;
    TAKE("batch", batch, batch);
    TAKE("accumulate", accumulate, accumulate);
    set_times(r);
    apply_times(r);
    TAKE("crop", augmentation.crop, crop);
    TAKE("rotate", augmentation.rotate, rotate);
    TAKE("scale", augmentation.scale, scale);
    TAKE("recolor", augmentation.color, recolor);
    TAKE("erase", augmentation.erase, erase);
    TAKE("mixup", mixup, mixup);
    TAKE("label-smoothing", label_smoothing, label_smoothing);
    TAKE("weight-decay", optimizer.weight_decay, weight_decay);
    TAKE("clip", optimizer.clip, clip);
    TAKE("loss-scale", loss_scale, loss_scale);
    if (given->flip)
        r->how.augmentation.flip = !strcmp(given->flip, "yes");
    TAKE("ema", optimizer.average, ema);
    TAKE("stochastic", optimizer.stochastic, stochastic);
    if (given->optimizer)
        cup_method_find(given->optimizer, &r->how.optimizer.method);
    train_memories(r->call, &r->how.optimizer);
    if (given->dtype)
        cup_dtype_find(given->dtype, &r->how.dtype);
    r->how.precision = given->precision ? given->precision : "high";
    r->how.seed = (uint64_t)given->seed;
}

/* The run itself looks again, when the folder is its own. */
static int check_out(images_run *r)
{
    const char *out = r->given->out;
    if (r->given->overwrite || !images_speaks(r))
        return CLI_OK;
    if (cup_classification_vacant(r->c, out) == CUP_OK && !metrics_vacant(out))
        cup_fail(r->c, CUP_ARGUMENT,
                 "%s/metrics.jsonl is not of a run; move it away, or name another --out", out);
    return cli_report(r->c);
}

/* How the images are read: as those that the run in --from has seen. */
static int choose_images(images_run *r, cup_classification *start)
{
    const train_given *given = r->given;
    if (given->from && cup_classification_load(r->c, given->from, start, NULL) != CUP_OK)
        return cli_report(r->c);
    r->how.height = given->image_size ? given->image_size : start->height;
    r->how.width = given->image_size ? given->image_size : start->width;
    r->how.channels = given->grey ? 1 : start->channels;
    r->how.skip_broken = given->skip_broken;
    r->how.as_needed = given->as_needed;
    return load_images(r, given->data.name[0]);
}

/* What another run was trained with, but for what is of its images and of its processes. */
static void go_on_from(images_run *r, cup_classification *start)
{
    start->from = r->given->from;
    start->batch =
        start->batch < cup_images_count(r->train) ? start->batch : cup_images_count(r->train);
    start->accumulate += start->accumulate == 0;
    start->decline_steps = 0;
}

static int begin_new(images_run *r)
{
    const train_given *given = r->given;
    const char *path = given->data.name[0], *name = given->preset ? given->preset : "cnn";
    cup_classification start = {0};
    int code = check_out(r);
    if (!code)
        code = choose_images(r, &start);
    if (code)
        return code;
    if (given->from)
        go_on_from(r, &start);
    else if (cup_classification_start(r->c, name, r->train, given->epochs, &start) != CUP_OK)
        return cli_report(r->c);
    start.accumulate = start.accumulate ? start.accumulate : 1;
    start.height = cup_images_height(r->train);
    start.width = cup_images_width(r->train);
    start.channels = cup_images_channels(r->train);
    start.skip_broken = given->skip_broken;
    start.as_needed = given->as_needed;
    start.dtype = cup_device_computes_in(r->c, CUP_BF16) ? CUP_BF16 : CUP_F32;
    snprintf(start.data, sizeof start.data, "%s", path);
    r->how = start;
    apply(r);
    return train_groups(given, r->how.optimizer.groups) ? CLI_USAGE : read_network(r);
}

static int begin_again(images_run *r)
{
    const train_given *given = r->given;
    if (cup_classification_load(r->c, given->out, &r->how, &r->first) != CUP_OK)
        return cli_report(r->c);
    int code = load_images(r, given->data.count ? given->data.name[0] : r->how.data);
    if (!code && call_has(r->call, "epochs"))
        r->how.steps = steps_of(r, given->epochs);
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
    if (r->m && given->resume) {
        cup_loop_resume(cup_classifier_loop(r->m));
        r->first = cup_loop_steps(cup_classifier_loop(r->m));
    }
    if (r->m && given->overwrite)
        cup_loop_overwrite(cup_classifier_loop(r->m));
    return cli_report(r->c);
}

static void on_point(const cup_training_point *p, void *user)
{
    images_run *r = user;
    if (!isfinite(p->validation) || !images_speaks(r))
        signals_stake(SIGNALS_WORK);
    if (images_speaks(r))
        images_report(r, p);
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

static int train(images_run *r)
{
    const cup_training_hooks hooks = {
        sizeof hooks, .point = on_point, .saved = on_saved, .stop = on_stop, .user = r};
    r->saved = r->given->resume;
    if (images_speaks(r))
        images_begin_report(r);
    cup_status status = cup_loop_run(cup_classifier_loop(r->m), &hooks);
    signals_stake(SIGNALS_OUTPUT);
    if (images_speaks(r))
        images_end_report(r);
    if (status != CUP_OK && status != CUP_INTERRUPTED)
        return cli_report(r->c);
    r->stopped = status == CUP_INTERRUPTED;
    return train_leave(r->comm, status, images_finish(r));
}

static int run_with(images_run *r)
{
    int code = train_check_device(r->c, r->given);
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
    if (images_speaks(r))
        images_announce(r);
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
    int drawn = train_draw_memory(r.c, r.given);
    code = code ? code : drawn;
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
