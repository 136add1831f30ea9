/* A stand-in for cuFFT, so that what talks to it can be tested on a machine without a GPU. It holds
 * what it is told against what cuFFT asks for, and computes transforms by their sums, in memory of
 * the stand-in for the driver. */
#ifndef FAKE_CUFFT_H
#define FAKE_CUFFT_H

#include "cuda/cufft.h"

/* The n-th call from now on fails; n = 0 turns it off. Calls that only free, and that of the
 * version, are neither counted nor failed. */
typedef void fake_cufft_fail_function(long n);

/* Calls made of `name`, or of all when it is NULL. */
typedef long fake_cufft_calls_function(const char *name);

/* Plans that were made and not freed. */
typedef long fake_cufft_live_function(void);

#endif
