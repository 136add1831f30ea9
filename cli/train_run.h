/* A run of `cupola train`, and what it says while it goes on. */
#ifndef CLI_TRAIN_RUN_H
#define CLI_TRAIN_RUN_H

#include <time.h>

#include "cli/common/options.h"
#include "cli/common/progress.h"
#include "cli/common/text.h"
#include "cli/metrics.h"
#include "cli/train.h"

typedef struct train_run {
    const cli_call *call;
    const train_given *given;
    train_place place;
    cup_context *c;
    cup_comm *comm;  /* NULL: this process alone */
    cup_training training;
    train_parts parts;
    cup_corpus *corpus;
    cup_tokenizer *tokenizer;
    cup_data *data;
    cup_trainer *trainer;
    cli_progress progress;
    cli_metrics metrics;
    int64_t first, done; /* steps before this run, and now */
    double rate;         /* tokens a second */
    time_t drawn;        /* when the curves were written last */
    bool saved;          /* a checkpoint is in the folder */
    bool stopped;        /* before its last step, by a signal to any of the processes */
} train_run;

/* One of several processes speaks for all. */
bool train_speaks(const train_run *r);

/* Reads text or tokens, and reads or makes the tokenizer. Returns an exit code. */
int train_load_data(train_run *r);

/* What --tokenizer says or means, and of how many tokens one that is learned is. */
const char *train_tokenizer(const train_given *given, int64_t *size);

/* The same as the first of text that is too large for --text-limit: rank 0 makes tokens of it in
 * the run's folder, which all read. */
int train_load_large(train_run *r);

/* Makes the steps those of --epochs, where it is given, of the data. */
int train_take_epochs(train_run *r);

/* What is trained, on what, before the first step. */
void train_announce(const train_run *r);

void train_begin_report(train_run *r);
/* Behind each step and evaluation. */
void train_report(train_run *r, const cup_training_point *p);
void train_end_report(train_run *r);

/* Draws the curves as they are in the end and says how it went; or says it in a document. */
cup_status train_draw(train_run *r);
void train_summarize(train_run *r);
int train_write_document(train_run *r, const cli_text *sample);

#endif
