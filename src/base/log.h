/* What CUP_LOG asks to hear. The levels are one ladder: each includes those before it. */
#ifndef CUP_BASE_LOG_H
#define CUP_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

typedef enum cup__level {
    CUP__QUIET,
    CUP__INFO,     /* libraries found, devices, caches */
    CUP__DISPATCH, /* which implementation ran and why the others refused */
    CUP__LAUNCH,   /* every kernel launch */
    CUP__TIME,     /* the same with its time, synchronising after each */
    CUP__SOURCE,   /* where the text of each compiled kernel was written */
    CUP__SASS      /* the compiler's report on each kernel */
} cup__level;

/* The level that is asked for; below 0: the environment is still to be looked at. */
extern _Atomic int cup__log_level;
bool cup__log_first(cup__level level);

static inline bool cup__log_wants(cup__level level)
{
    int now = atomic_load_explicit(&cup__log_level, memory_order_relaxed);
    return now < 0 ? cup__log_first(level) : (int)level <= now;
}

void cup__log(cup__level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
