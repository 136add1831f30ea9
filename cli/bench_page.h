/* A benchmark as one HTML page that needs nothing else: plots and the table of all rows. */
#ifndef CLI_BENCH_PAGE_H
#define CLI_BENCH_PAGE_H

#include "cli/bench_records.h"

/* `device` names what it ran on. */
void bench_page(cup__text *out, const cli_records *records, const char *device);

/* The plots, as SVG. Each adds nothing when no row has what it shows. */
void bench_plot_bandwidth(cup__text *out, const cli_records *records);
void bench_plot_roofline(cup__text *out, const cli_records *records);
void bench_plot_peers(cup__text *out, const cli_records *records);

#endif
