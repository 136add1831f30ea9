/* The parts of cupola bench. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/bench_records.h"
#include "cli/options.h"

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

#endif
