/* The parts of cupola bench. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/bench_records.h"
#include "cli/common/options.h"

/* Compares two files of records and fails where the second is slower by more than `noise` percent
 * and by more than both spread. Returns an exit code. */
int bench_compare(cli_call *call, const char *const *files, double noise);

/* Writes what the rows reached of the goals in a file, as text, json or markdown. Returns an exit
 * code. */
int bench_goals(const char *path, const cli_records *records, const char *format);

/* Adds the calls of a file of goals, whose numbers are not set. Returns an exit code. */
int bench_goal_calls(const char *path, cli_records *calls);

/* The rows as Markdown, newest of each call. */
void bench_markdown(cup__text *out, const cli_records *records);

/* One HTML page that needs nothing else: plots and the table of all rows. `device` is what it ran
 * on. */
void bench_page(cup__text *out, const cli_records *records, const char *device);

/* Its plots, as SVG. Each adds nothing when no row has what it shows. */
void bench_plot_bandwidth(cup__text *out, const cli_records *records);
void bench_plot_roofline(cup__text *out, const cli_records *records);
void bench_plot_peers(cup__text *out, const cli_records *records);

#endif
