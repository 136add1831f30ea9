/* A stand-in for cuSOLVER: it computes in memory of the host, column by column as the library does,
 * so that what talks to it can be held against the specification on a CPU. On the stand-in for the
 * driver it computes as well, once its stream has come to rest. */
#ifndef FAKE_CUSOLVER_H
#define FAKE_CUSOLVER_H

#include "cuda/cusolver.h"

/* As in cufft.h. */
typedef void fake_cusolver_fail_function(long n);
typedef long fake_cusolver_calls_function(const char *name);
typedef long fake_cusolver_live_function(void);

#endif
