#include "cli/metrics.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/common/json.h"
#include "cli/common/progress.h"
#include "cupola/facts.h"
#include "cupola/prof.h"

#define FILE_NAME "metrics.jsonl"
#define HEAD "{\"schema\": 1, \"kind\": \"metrics\","
#define SCHEMA 1
#define MEMORY_SECONDS 0.1 /* a driver is asked how much of its memory is free, which takes time */

static bool path_of(const char *folder, char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%s/" FILE_NAME, folder);
    return length > 0 && length < PATH_MAX;
}

bool metrics_vacant(const char *folder)
{
    char path[PATH_MAX], head[sizeof HEAD] = "";
    if (!path_of(folder, path) || access(path, F_OK) != 0)
        return true;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(head, 1, sizeof HEAD - 1, file);
    fclose(file);
    return length == 0 || !strcmp(head, HEAD);
}

double metrics_peak(const cup_context *c, cup_dtype dtype, const char *precision)
{
    cup_gpu gpu;
    cup_card card;
    if (!cup_gpu_of(c, &gpu) || !cup_card_find(gpu.name, &card))
        return 0;
    if (dtype != CUP_F32 || !strcmp(precision, "medium"))
        return card.half;
    return card.tf32 && strcmp(precision, "highest") ? card.tf32 : card.f32;
}

void metrics_begin(cli_metrics *m, const metrics_facts *facts)
{
    *m = (cli_metrics){.facts = *facts, .memory_at = -1};
}

double metrics_mfu(const cli_metrics *m, double rate)
{
    const metrics_facts *f = &m->facts;
    return f->peak_flops > 0 ? rate * f->flops / f->peak_flops : 0;
}

/* A name with the unit, "tokens_per_second". */
static const char *named(const cli_metrics *m, const char *format, char name[40])
{
    snprintf(name, 40, format, m->facts.unit);
    return name;
}

double metrics_epoch(const cli_metrics *m, int64_t steps)
{
    const metrics_facts *f = &m->facts;
    return f->epoch_units ? (double)steps * (double)f->step_units / (double)f->epoch_units : NAN;
}

const cup_memory *metrics_memory(cli_metrics *m)
{
    double now = progress_clock();
    if (m->memory_at < 0 || now > m->memory_at + MEMORY_SECONDS) {
        m->memory_at = now;
        cup_memory_use(m->facts.c, &m->memory);
    }
    return &m->memory;
}

/* What the losses of a checkpoint know, too: whether a line is of this run is seen by it. */
static void begin_point(cli_json *w, const cup_training_point *p)
{
    json_begin_line(w);
    json_add_integer(w, "step", p->step);
    if (isfinite(p->validation)) {
        json_add_number(w, "validation", p->validation);
        return;
    }
    json_add_number(w, "loss", p->loss);
    json_add_number(w, "norm", p->norm);
    json_add_number(w, "rate", p->rate);
}

/* Steps that changed nothing count from a run's first one on. */
static void count_point(cli_metrics *m, const cup_training_point *p)
{
    m->written++;
    m->skipped += !isfinite(p->validation) && !isfinite(p->norm);
}

static bool tells_of(const char *line, const cup_training_point *p)
{
    cli_json w;
    begin_point(&w, p);
    bool same = text_close(&w.text) && !strncmp(line, w.text.bytes, w.text.length);
    text_free(&w.text);
    return same;
}

/* How long the lines of an earlier run are that tell of the points there are: what it did behind
 * its last checkpoint is done again. */
static long find_known(cli_metrics *m, FILE *file)
{
    int64_t count;
    const cup_training_point *points = m->facts.points(m->facts.run, &count);
    char *line = NULL;
    size_t room = 0;
    long known = 0;
    m->written = m->skipped = 0;
    for (ssize_t length; (length = getline(&line, &room, file)) > 0;) {
        if (!strncmp(line, HEAD, sizeof HEAD - 1))
            continue;
        if (m->written == count || line[length - 1] != '\n' ||
            !tells_of(line, &points[m->written]))
            break;
        count_point(m, &points[m->written]);
        known = ftell(file);
    }
    free(line);
    return known;
}

static bool write_head(const cli_metrics *m)
{
    const metrics_facts *f = &m->facts;
    char name[40];
    cli_json w;
    json_begin_line(&w);
    json_add_integer(&w, "schema", SCHEMA);
    json_add_string(&w, "kind", "metrics");
    json_add_integer(&w, "first_step", f->first);
    json_add_integer(&w, "time", (int64_t)time(NULL));
    json_add_string(&w, "device", f->device);
    json_add_integer(&w, named(m, "%ss_a_step", name), f->step_units);
    json_add_number(&w, named(m, "flops_a_%s", name), f->flops > 0 ? f->flops : NAN);
    json_add_number(&w, "peak_flops", f->peak_flops > 0 ? f->peak_flops : NAN);
    return json_end_line(&w, m->lines);
}

static bool open_lines(cli_metrics *m)
{
    char path[PATH_MAX];
    if (!path_of(m->facts.folder, path))
        return false;
    m->lines = fopen(path, m->facts.first ? "a+e" : "we");
    if (!m->lines)
        return false;
    if (m->facts.first) {
        rewind(m->lines);
        long known = find_known(m, m->lines);
        if (ftruncate(fileno(m->lines), known) != 0)
            return false;
        fseek(m->lines, 0, SEEK_END);
    }
    return write_head(m) &&
           (!m->facts.events || events_open(&m->events, m->facts.folder, m->facts.first));
}

/* A point of an earlier run whose line is lost has no pace. */
static bool write_line(cli_metrics *m, const cup_training_point *p, const metrics_pace *pace)
{
    /* An evaluation is seldom, and may take memory beside that of the step. */
    if (isfinite(p->validation))
        m->memory_at = -1;
    const cup_memory *memory = metrics_memory(m);
    double mfu = metrics_mfu(m, pace->rate), speed = pace->rate;
    int64_t done = p->step + !isfinite(p->validation);
    char name[40];
    cli_json w;
    begin_point(&w, p);
    if (isfinite(p->validation) && isfinite(pace->accuracy))
        json_add_number(&w, "accuracy", pace->accuracy);
    json_add_integer(&w, named(m, "%ss", name), done * m->facts.step_units);
    json_add_number(&w, named(m, "%ss_per_second", name), speed > 0 ? speed : NAN);
    json_add_number(&w, "epoch", metrics_epoch(m, done));
    json_add_number(&w, "mfu", mfu > 0 ? mfu : NAN);
    json_add_integer(&w, "memory", memory->allocated);
    json_add_integer(&w, "memory_peak", memory->peak_allocated);
    json_add_integer(&w, "memory_held", memory->peak_reserved);
    json_add_number(&w, "seconds_left", pace->seconds_left);
    json_add_integer(&w, "skipped", m->skipped);
    if (pace->loss_scale > 0)
        json_add_number(&w, "loss_scale", pace->loss_scale);
    return json_end_line(&w, m->lines);
}

static bool write_events(cli_metrics *m, const cup_training_point *p, const metrics_pace *pace)
{
    double mfu = metrics_mfu(m, pace->rate);
    char name[40];
    const events_value values[] = {
        {"loss/training", p->loss},
        {"loss/validation", p->validation},
        {"gradient_norm", p->norm},
        {"learning_rate", isfinite(p->validation) ? NAN : p->rate},
        {"accuracy/validation", isfinite(p->validation) ? pace->accuracy : NAN},
        {named(m, "%ss_per_second", name), pace->rate > 0 ? pace->rate : NAN},
        {"mfu", mfu > 0 ? mfu : NAN},
        {"memory_bytes", (double)metrics_memory(m)->allocated},
        {"skipped_steps", (double)m->skipped},
    };
    return events_add(&m->events, p->step, values, sizeof values / sizeof *values);
}

/* A run does not end because it cannot be told of. */
static void fail(cli_metrics *m)
{
    m->failed = true;
    metrics_end(m);
    fprintf(stderr, "note: %s/" FILE_NAME " cannot be written; the run goes on without it\n",
            m->facts.folder);
}

void metrics_write(cli_metrics *m, const metrics_pace *pace)
{
    int64_t count;
    const cup_training_point *points = m->facts.points(m->facts.run, &count);
    bool fine = !m->failed;
    if (fine && !m->lines && !(fine = open_lines(m)))
        fail(m);
    while (fine && m->written < count) {
        const cup_training_point *p = &points[m->written];
        count_point(m, p);
        bool known = p->step >= m->facts.first;
        fine = write_line(m, p, known ? pace : &(metrics_pace){0, NAN, NAN, 0}) &&
               (!known || write_events(m, p, pace));
        if (!fine)
            fail(m);
    }
}

void metrics_end(cli_metrics *m)
{
    if (m->lines)
        fclose(m->lines);
    m->lines = NULL;
    events_close(&m->events);
}
