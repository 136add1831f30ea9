/* Rows of a benchmark: measured now, or read from a file that was written before. */
#ifndef CLI_BENCH_RECORDS_H
#define CLI_BENCH_RECORDS_H

#include "base/text.h"
#include "cupola/prof.h"

/* One row. A text longer than its field is cut; a number that is not known is NAN. */
typedef struct cli_record {
    char date[24], card[64], op[48], shapes[384], attributes[128], dtype[16], impl[48], peer[48];
    double ours_us, spread; /* spread: half the distance of the quartiles over the median */
    double peer_us, ratio;  /* ratio: the peer's time over ours */
    double share_of_floor;  /* what the ceiling allows over what was reached */
    double error, peer_error, bytes, flops;
    double copy_us; /* a plain copy that moves the same bytes */
    double timed;   /* how often; the time is the least */
} cli_record;

typedef struct cli_records {
    cli_record *row;
    size_t count, capacity;
} cli_records;

/* A row of a result; `card` is the device's name. */
cli_record record_of(const cup_bench_result *r, const char *card, const char *date);

/* Each returns an exit code. */
int records_add(cli_records *records, const cli_record *row);

/* Reads a file of comma or tab separated values, whose first line names the columns as
 * records_head does, in any order; unknown ones are passed over. */
int records_read(cli_records *records, const char *path);
void records_free(cli_records *records);

/* Keeps of each call, which is op, shapes, attributes and dtype, the row of the newest run. Of
 * several implementations in one run the first stays. */
void records_keep_latest(cli_records *records);

bool record_is_same_call(const cli_record *a, const cli_record *b);
const cli_record *records_find(const cli_records *records, const cli_record *like);

/* The names of the columns, and one row, without the end of the line. */
void records_head(cup__text *out, char separator);
void records_line(cup__text *out, const cli_record *row, char separator);

/* The least time in microseconds that the device allows, NAN when not known; and whether bytes,
 * not operations, set it. The copy rate is in bytes a second. */
double record_floor(const cli_record *row);
double records_copy_rate(const cli_records *records);
bool record_is_bound_by_memory(const cli_record *row, double copy_rate);

#endif
