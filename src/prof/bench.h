/* Times ops: every implementation that takes a shape, on random data, with the caches flushed
 * before each run and the error against the specification or a sibling beside the time. */
#ifndef CUP_PROF_BENCH_H
#define CUP_PROF_BENCH_H

#include "ops/op.h"

/* What the device can do at best, measured or known. */
typedef struct cup__ceiling {
    double copy_bytes;  /* bytes a second of a large copy, read plus written, measured */
    double flops[11];   /* operations a second by dtype; 0 where not known */
} cup__ceiling;

typedef struct cup__bench_result {
    const cup__row *row;
    const char *impl;
    const char *shapes;
    cup_dtype dtype;
    int runs;
    double median_us, low_us, high_us; /* the middle and the quartiles */
    double bytes, flops;
    double floor_us; /* what the ceilings allow at best */
    double error;    /* in epsilons; NAN where there was nothing to compare with */
} cup__bench_result;

typedef void (*cup__bench_report)(const cup__bench_result *result, void *user);

/* The bytes a call must move and the operations it must do. */
void cup__call_cost(const cup__call *call, double *bytes, double *flops);

/* Measures the device's ceilings; takes well under a second. */
cup_status cup__bench_ceiling(cup_context *c, cup__ceiling *ceiling);

/* Times one op at its own bench samples, or at `only` when that is not NULL, with this dtype, for
 * about `seconds` for each implementation. */
cup_status cup__bench_op(cup_context *c, const cup__row *row, const cup__sample *only,
                         cup_dtype dtype, double seconds, const cup__ceiling *ceiling,
                         cup__bench_report report, void *user);

#endif
