/* The parts of cupola bench. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/bench_records.h"
#include "cli/common/json.h"
#include "cli/common/options.h"

/* A row for people, and what its columns are. */
void bench_print_head(void);
void bench_print_row(const cli_record *row);

/* A row as an object of JSON. */
void bench_write_row(cli_json *writer, const cli_record *row);

/* A row as values with such a separator between them, the names of the columns for NULL. Returns an
 * exit code. */
int bench_write_line(const cli_record *row, char separator);

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
