/* A run of `cupola train --task classify`, and what it says while it goes on. */
#ifndef CLI_TRAIN_IMAGES_H
#define CLI_TRAIN_IMAGES_H

#include <time.h>

#include "cli/common/options.h"
#include "cli/common/progress.h"
#include "cli/metrics.h"
#include "cli/train.h"
#include "cupola/cupola.h"

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
    cli_metrics metrics;
    int64_t first, done; /* steps before this run, and now */
    double rate; /* images a second */
    time_t drawn; /* when the curves were written last */
    bool saved;   /* a checkpoint is in the folder */
    bool stopped; /* before its last step, by a signal to any of the processes */
} images_run;

/* One of several processes speaks for all. */
bool images_speaks(const images_run *r);

/* What is trained, on what, before the first step. */
void images_announce(const images_run *r);

void images_begin_report(images_run *r);
/* Behind each step and evaluation. */
void images_report(images_run *r, const cup_training_point *p);
void images_end_report(images_run *r);

/* Draws the curves as they are in the end and says how it went, or says it in a document. Returns
 * an exit code. */
int images_finish(images_run *r);

#endif
