/* How far a long piece of work is: a bar on a terminal, otherwise a line every few seconds. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct progress_mark {
    double time;
    int64_t units;
} progress_mark;

typedef struct cli_progress {
    FILE *to;
    const char *noun, *unit; /* literals; `noun` is "step" unless it is set after the beginning */
    int64_t total, first, done, units;
    double loss;            /* NaN: not known yet */
    double began, shown;    /* seconds */
    progress_mark marks[2]; /* the rate is that since the older one */
    double rate;            /* units a second in the last few seconds; 0: not known yet */
    char more[64];          /* what the caller adds behind the rate, "" or "41 % MFU" */
    double last, steady_time; /* of the last step; in steps that came straight after another */
    int64_t steady_units;
    double line_seconds; /* between lines, where no bar is drawn; 5 unless it is set */
    bool paused;
    bool redraws, is_drawn;
} cli_progress;

/* Begins `total` steps of which `done` were done before, by an earlier run. `unit` is what the
 * rate counts, "tokens", or NULL for no rate; a literal. Shown on `to`, usually stderr. */
void progress_begin(cli_progress *p, FILE *to, const char *unit, int64_t total, int64_t done);

/* After every step: the steps done in all, the units of this run so far, and the loss, NaN when
 * there is no new one. Cheap; draws at most ten times a second. */
void progress_step(cli_progress *p, int64_t done, int64_t units, double loss);

/* Writes a line that stays, above the bar. */
void progress_note(cli_progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Shows the last state and ends its line. */
void progress_end(cli_progress *p);

/* The units a second of the whole run so far; 0 when no time has passed. */
double progress_rate(const cli_progress *p);

/* Something else than a step is done now, whose time is none of the steps'. A note says so too. */
void progress_pause(cli_progress *p);

/* The units a second of steps that came straight after another one: without the first one, in which
 * kernels are compiled, and without pauses. 0 when there are none. */
double progress_steady_rate(const cli_progress *p);

/* "4.56k", "12.3M": a number for people. "0:42", "1:02:03": seconds. Both return `out`. */
const char *progress_number(double value, char out[32]);
const char *progress_time(double seconds, char out[32]);

/* The seconds that the steps left take at the pace so far; NaN when there is none. */
double progress_left(const cli_progress *p);

/* Seconds since some moment of the past. */
double progress_clock(void);

#endif
