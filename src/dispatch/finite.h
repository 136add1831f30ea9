/* Values that are not finite: whether a tensor has some, and which op of many calls is the first to
 * give one. */
#ifndef CUP_DISPATCH_FINITE_H
#define CUP_DISPATCH_FINITE_H

#include "dispatch/op.h"

enum { CUP__HAS_NAN = 1, CUP__HAS_INFINITY = 2 };

/* Which of the wanted kinds a tensor has, others perhaps; 0 while a graph is captured. It waits for
 * the device. The context is as it was before. */
int cup__kinds_of(cup_context *c, cup_tensor *t, int wanted);

/* What is found while a context has it as its `finite`: the first result that is not finite, and
 * the first with a NaN, in words; "" where there was none. Calls go on behind it. */
#define CUP__FINITE_TEXT 320
typedef struct cup__finite {
    const char *(*name)(const cup_tensor *parameter, void *user); /* of one, or NULL */
    void *user;
    const char *pass; /* what the calls are of: "forward" */
    int64_t batch;
    const char *outer; /* the op that the call is a part of, or NULL */
    char first[CUP__FINITE_TEXT], nan[CUP__FINITE_TEXT];
} cup__finite;

#endif
