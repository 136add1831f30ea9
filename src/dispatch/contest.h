/* Which of several ways to do the same work is the fastest, as measured on the GPU. */
#ifndef CUP_DISPATCH_CONTEST_H
#define CUP_DISPATCH_CONTEST_H

#include "cupola/base.h"

#define CUP__CONTEST_MOST 40

/* Runs each of `count` ways up to 15 times, with the L2 cache flushed, and drops early what is far
 * behind. Returns the fastest way and its median in *us, or -1: none works, or there is an error in
 * the context. A way that fails is left out. */
int cup__contest(cup_context *c, int count, cup_status (*run)(void *user, int way), void *user,
                 double *us);

double cup__seconds_now(void);

#endif
