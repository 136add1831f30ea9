#ifndef CUP_BASE_DIVIDE_H
#define CUP_BASE_DIVIDE_H

#include <stdint.h>

/* How many pieces of size `by` hold `value` things: a quotient rounded up. */
static inline int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

#endif
