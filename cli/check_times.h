/* Where the time of a random check goes. */
#ifndef CLI_CHECK_TIMES_H
#define CLI_CHECK_TIMES_H

#include <stdint.h>

#define CHECK_TIMES_MOST 1024 /* implementations that are told apart */

/* The names are those of the tables, which live as long as the process. */
typedef struct check_time {
    const char *op, *impl;
    int64_t results;
    double seconds;
} check_time;

typedef struct check_times {
    double begin, last;
    double planned, waited; /* planned: until the first call; below 0 before it */
    check_time all[CHECK_TIMES_MOST];
} check_times;

void check_times_begin(check_times *t);

/* A call begins, whose specification is there. */
void check_times_call(check_times *t);

/* An implementation's result of that call has been compared. */
void check_times_result(check_times *t, const char *op, const char *impl);

/* One line; the order of the times is lost. */
void check_times_print(check_times *t);

#endif
