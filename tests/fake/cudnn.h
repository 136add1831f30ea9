/* A stand-in for cuDNN, so that what talks to it can be tested on a machine without a GPU. It holds
 * what it is told against what cuDNN asks for, and computes f32 convolutions by the descriptors
 * alone, in memory of the stand-in for the driver. Of seven algorithms that it proposes, numbers 1,
 * 3 and 6 can be had and may be taken. FAKE_CUDNN_VERSION is its version (91900). */
#ifndef FAKE_CUDNN_H
#define FAKE_CUDNN_H

#include "cuda/cudnn.h"

#define FAKE_CUDNN_WORKSPACE 4096 /* bytes that algorithm 1 asks for */

/* The n-th call from now on fails; n = 0 turns it off. Calls that only free, or give words, are
 * neither counted nor failed. */
typedef void fake_cudnn_fail_function(long n);

/* Calls made of `name`, or of all when it is NULL. */
typedef long fake_cudnn_calls_function(const char *name);

/* Handles and descriptors that were made and not freed. */
typedef long fake_cudnn_live_function(void);

/* The number of the algorithm that ran last; -1: none did. */
typedef int fake_cudnn_last_function(void);

#endif
