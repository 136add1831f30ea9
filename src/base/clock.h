/* Time that passes, and what is made of measured times. */
#ifndef CUP_BASE_CLOCK_H
#define CUP_BASE_CLOCK_H

/* Seconds since some moment of the past; no change of the clock on the wall moves them. */
double cup__clock(void);

/* Waits so long, or until a signal comes. */
void cup__sleep(double seconds);

/* The value in the middle of `count` of them, at least 1, which it sorts. */
double cup__median(double *values, int count);

#endif
