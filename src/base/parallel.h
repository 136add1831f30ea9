/* Loops over all cores. */
#ifndef CUP_BASE_PARALLEL_H
#define CUP_BASE_PARALLEL_H

#include <stdint.h>

/* A piece of a loop: the indices from begin up to, not including, end. */
typedef void (*cup__body)(int64_t begin, int64_t end, void *user);

/* Runs `body` over [0, count) in pieces of at least `grain` indices. The pieces depend on count,
 * grain and the number of threads only; a sum over pieces must not depend on them. A loop inside a
 * loop, or begun while another thread of the program has one going, runs in its own thread. */
void cup__parallel_for(int64_t count, int64_t grain, cup__body body, void *user);

/* From now on a loop of this thread runs in it alone, and leaves the others to the program. */
void cup__parallel_alone(void);

/* The threads such a loop uses; set with 0 for all that the process may use. */
int cup__threads(void);
int cup__threads_usable(void); /* that the process may use */
void cup__threads_set(int threads);

#endif
