/* The CUP_ environment variables, one row each in env.def. */
#ifndef CUP_BASE_ENV_H
#define CUP_BASE_ENV_H

#include "base/error.h"

typedef enum cup__env {
#define ENV(name, value, takes, words) CUP__ENV_##name,
#include "base/env.def"
#undef ENV
    CUP__ENV_COUNT
} cup__env;

/* The variable's value, or its default when it is unset or empty. Never NULL. */
const char *cup__env_get(cup__env variable);

/* A variable's value as a whole number of the row's range; anything else fails with the cure. */
cup_status cup__env_integer(cup__error *error, cup__env variable, int64_t *out);

/* Whether the value is one that the row takes; fails with the cure. */
cup_status cup__env_check(cup__error *error, cup__env variable);

/* The row's texts: the full name ("CUP_LOG"), the default and the words. */
const char *cup__env_name(cup__env variable);
const char *cup__env_default(cup__env variable);
const char *cup__env_words(cup__env variable);

#endif
