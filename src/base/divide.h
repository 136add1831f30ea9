#ifndef CUP_BASE_DIVIDE_H
#define CUP_BASE_DIVIDE_H

#include <stdint.h>

/* How many pieces of size `by` hold `value` things: a quotient rounded up. */
static inline int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

/* The first multiple of `step` from `value` on. */
static inline int64_t round_up(int64_t value, int64_t step)
{
    return divide_up(value, step) * step;
}

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest power of two that divides a number; 0 of 0. */
static inline int64_t lowest_bit(int64_t value)
{
    return value & -value;
}

/* The first power of two from `least` on. */
static inline int64_t power_from(int64_t least)
{
    int64_t power = 1;
    while (power < least)
        power *= 2;
    return power;
}

#endif
