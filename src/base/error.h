/* A status with its sentence. The lower layers report into one of these; a context holds one and
 * keeps the first failure until it is cleared. */
#ifndef CUP_BASE_ERROR_H
#define CUP_BASE_ERROR_H

#include "cupola/base.h"

#define CUP__ERROR_TEXT 2048

typedef struct cup__error {
    cup_status status;
    char text[CUP__ERROR_TEXT];
} cup__error;

/* Records the failure, unless an earlier one is still there, and returns `status`. A NULL error
 * only passes the status on. */
cup_status cup__fail(cup__error *error, cup_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fails for want of host memory; `where`, a path or what was done, begins the sentence. */
cup_status cup__no_memory(cup__error *error, const char *where);

/* Puts words in front of a recorded failure: "reading x.safetensors: " + text. */
void cup__error_prefix(cup__error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void cup__error_clear(cup__error *error);

/* Passes a failed status up to the caller. */
#define CUP_TRY(call)                                                                              \
    do {                                                                                           \
        cup_status cup_try_status = (call);                                                        \
        if (cup_try_status != CUP_OK)                                                              \
            return cup_try_status;                                                                 \
    } while (0)

#endif
