#include "cli/check_times.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

#define MOST_PRINTED 12
#define LEAST_PRINTED 0.5 /* seconds */

void check_times_begin(check_times *t)
{
    t->begin = t->last = cup__clock();
    t->planned = -1;
}

/* Seconds since the one before. */
static double lap(check_times *t)
{
    double now = cup__clock(), since = now - t->last;
    t->last = now;
    return since;
}

void check_times_call(check_times *t)
{
    double since = lap(t);
    if (t->planned < 0)
        t->planned = since;
    else
        t->waited += since;
}

void check_times_result(check_times *t, const char *op, const char *impl)
{
    double since = lap(t);
    for (int i = 0; i < CHECK_TIMES_MOST; i++) {
        check_time *one = &t->all[i];
        if (one->op && (one->op != op || one->impl != impl))
            continue;
        *one = (check_time){op, impl, one->results + 1, one->seconds + since};
        return;
    }
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const check_time *)a)->seconds, y = ((const check_time *)b)->seconds;
    return (x < y) - (x > y);
}

void check_times_print(check_times *t)
{
    printf("%.1f s: %.1f until the first call, %.1f waiting for specifications and kernels",
           cup__clock() - t->begin, t->planned < 0 ? 0 : t->planned, t->waited);
    qsort(t->all, CHECK_TIMES_MOST, sizeof *t->all, by_seconds);
    for (int i = 0; i < MOST_PRINTED && t->all[i].seconds >= LEAST_PRINTED; i++)
        printf("%s%s %s %.1f (%lld)", i ? ", " : "; longest ", t->all[i].op, t->all[i].impl,
               t->all[i].seconds, (long long)t->all[i].results);
    printf("\n");
}
