#include "base/env.h"

#include <errno.h>
#include <stdlib.h>

static const struct {
    const char *name, *value, *words;
} rows[] = {
#define ENV(name, value, words) {"CUP_" #name, value, words},
#include "base/env.def"
#undef ENV
};

const char *cup__env_get(cup__env variable)
{
    const char *value = getenv(rows[variable].name);
    return value && *value ? value : rows[variable].value;
}

cup_status cup__env_integer(cup__error *error, cup__env variable, int64_t low, int64_t high,
                            int64_t *out)
{
    const char *text = cup__env_get(variable);
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return cup__fail(error, CUP_ARGUMENT, "%s=%s: give a whole number from %lld to %lld",
                         rows[variable].name, text, (long long)low, (long long)high);
    *out = value;
    return CUP_OK;
}

const char *cup__env_name(cup__env variable)
{
    return rows[variable].name;
}

const char *cup__env_default(cup__env variable)
{
    return rows[variable].value;
}

const char *cup__env_words(cup__env variable)
{
    return rows[variable].words;
}
