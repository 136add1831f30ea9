/* Tensors of six numbers, for tests of the tape. */
#ifndef CUP_TESTS_GRAD_SIX_H
#define CUP_TESTS_GRAD_SIX_H

#include "../test.h"
#include "cupola/cupola.h"

enum { COUNT = 6 };

static inline cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static inline cup_tensor *numbers(cup_context *c, double first)
{
    double values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = first + 0.25 * i;
    return cup_tensor_from(c, CUP_F64, 1, (int64_t[]){COUNT}, values);
}

static inline cup_tensor *total(cup_context *c, cup_tensor *x)
{
    return cup_sum(c, x, NULL, 0, false);
}

static inline double at(cup_tensor *t, int i)
{
    double values[COUNT];
    EXPECT_INT(cup_tensor_read(t, values, sizeof values), CUP_OK);
    return values[i];
}

static inline void expect_error(cup_context *c, cup_status status, const char *part)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

#endif
