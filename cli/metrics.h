/* What a training run measures: a line of JSON a step in metrics.jsonl, and TensorBoard's files. */
#ifndef CLI_METRICS_H
#define CLI_METRICS_H

#include <stdio.h>

#include "cli/events.h"
#include "cupola/prof.h"
#include "cupola/train.h"

/* What is the same for all steps. */
typedef struct metrics_facts {
    cup_context *c;
    const cup_training_point *(*points)(const void *run, int64_t *count);
    const void *run;
    const char *folder, *device;
    const char *unit;          /* what is counted, "token" */
    int64_t first;             /* steps that an earlier run has done */
    int64_t step_units;        /* in a step of all processes */
    int64_t epoch_units;       /* in an epoch; 0: there are none */
    double flops, peak_flops;  /* of one, see plot_flops_of_token; of all devices a second; 0: not
                                  known */
    bool events;               /* TensorBoard's too */
} metrics_facts;

/* How fast it goes, as progress knows. */
typedef struct metrics_pace {
    double rate;         /* tokens, or what is counted, a second; 0: not known yet */
    double seconds_left; /* NaN: not known yet */
    double accuracy;     /* of the last evaluation; NaN: nothing is told apart */
    double loss_scale;   /* 0: none */
} metrics_pace;

typedef struct cli_metrics {
    metrics_facts facts;
    FILE *lines;
    cli_events events;
    int64_t written, skipped; /* of the run's points, and steps among these */
    cup_memory memory;
    double memory_at; /* when that was asked */
    bool failed;      /* the disk does not take them; said once */
} cli_metrics;

/* Whether a new run may have metrics.jsonl: none stands there, or one that begins as ours do. */
bool metrics_vacant(const char *folder);

void metrics_begin(cli_metrics *m, const metrics_facts *facts);

/* Writes a line for each point of the run that has none yet, and flushes it. The first call
 * opens the files: what an earlier run wrote stays, up to the checkpoint it is gone on from. */
void metrics_write(cli_metrics *m, const metrics_pace *pace);
void metrics_end(cli_metrics *m);

/* The share of the devices' peak that the products take at a rate; 0: not known. */
double metrics_mfu(const cli_metrics *m, double rate);

/* How many epochs so many steps are; NaN where there are none. */
double metrics_epoch(const cli_metrics *m, int64_t steps);

/* What the run holds of the device's memory, not older than a moment. */
const cup_memory *metrics_memory(cli_metrics *m);

/* The operations a second of a context's device at most, of products as a run in this dtype and
 * precision makes them; 0: not known. */
double metrics_peak(const cup_context *c, cup_dtype dtype, const char *precision);

#endif
