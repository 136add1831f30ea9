/* What the tests of formulas share. */
#ifndef TEST_FORMULA_H
#define TEST_FORMULA_H

#include "cupola/expr.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "tensor/tensor.h"
#include "test.h"

static inline cup_context *open_cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(cup_error(c) == CUP_OK);
    return c;
}

static inline cup_tensor *filled(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                          double low, double high)
{
    cup_tensor *t = cup_tensor_new(c, dtype, ndim, shape);
    for (int64_t i = 0; i < cup_tensor_count(t); i++)
        cup__store(t, i, test_uniform(low, high));
    return t;
}

static inline double at(cup_tensor *t, int64_t i)
{
    return cup__load(t, cup__offset_of(t, i));
}

#define CHECK(c)                                                                                   \
    do {                                                                                           \
        if (cup_error(c) != CUP_OK)                                                                \
            test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));                                \
    } while (0)

#endif
