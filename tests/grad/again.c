/* Ops whose first result can be computed again: it has the bits that it had. */
#include <string.h>

#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "tensor/tensor.h"
#include "test.h"

#define ROWS 3
#define WIDTH 8

/* Values inside of the op's domain; of a weight twice WIDTH rows, for a gate. */
static cup_tensor *values_of(cup_context *c, const cup__op *op, cup_dtype dtype, int i)
{
    double values[2 * WIDTH * WIDTH], low = op->domain[i].low, high = op->domain[i].high;
    bool weight = op->epilogue && i == 1;
    if (low >= high) {
        low = -2;
        high = 2;
    }
    for (int k = 0; k < 2 * WIDTH * WIDTH; k++)
        values[k] = low + (high - low) * ((k * 37 + i * 11) % 101 + 0.5) / 101;
    const int64_t shape[] = {weight ? 2 * WIDTH : ROWS, WIDTH};
    cup_tensor *wide = cup_tensor_from(c, CUP_F64, 2, shape, values);
    return cup_require_grad(cup_keep(cup_cast(c, wide, dtype)));
}

/* The gradients of all inputs through the square of the op's first result, behind each other. */
static size_t gradients_of(cup_context *c, const cup__row *row, cup_tensor **in, bool again,
                           char *to)
{
    size_t used = 0;
    static const cup__layernorm_attributes eps = {1e-5};
    cup_recompute_results(c, again ? CUP_RECOMPUTE_POLICY_POINTWISE : 0);
    cup_scope_open(c);
    const void *attributes = row->attributes_size ? &eps : NULL;
    cup_tensor *y = cup__op_call(c, row, in, row->in_most, attributes, NULL);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false)), CUP_OK);
    for (int i = 0; i < row->in_most; i++) {
        cup_tensor *d = in[i] ? cup_grad(in[i]) : NULL;
        size_t bytes = d ? (size_t)(d->count * cup_dtype_size(d->dtype)) : 0;
        if (!d)
            continue;
        EXPECT_INT(cup_tensor_read(d, to + used, bytes), CUP_OK);
        used += bytes;
        cup_grad_clear(in[i]);
    }
    cup_scope_close(c);
    return used;
}

/* In f32 and f64, where a sum is not rounded before it is activated. */
TEST(ops_computed_again_have_the_same_bits)
{
    int ops = 0;
    for (const cup__row *row = cup__rows; row->name; row++) {
        bool norm = row->attributes_size > 0;
        if (!row->op->again)
            continue;
        ops++;
        for (int wide = 0; wide < 2; wide++) {
            static char kept[8192], made[8192];
            cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
            cup_dtype dtype = wide ? CUP_F64 : CUP_F32;
            cup_tensor *in[CUP__AGAIN_MOST] = {NULL};
            for (int i = 0; i < row->in_most && i < (norm ? 1 : 2); i++)
                in[i] = values_of(c, row->op, dtype, i);
            if (norm && !strncmp(row->name, "add_", 4))
                in[1] = values_of(c, row->op, dtype, 1);
            size_t bytes = gradients_of(c, row, in, false, kept);
            EXPECT(bytes > 0 && bytes == gradients_of(c, row, in, true, made));
            if (memcmp(kept, made, bytes))
                test_fail(__FILE__, __LINE__, "%s in %s has other gradients when its result is "
                          "computed again", row->name, cup_dtype_name(dtype));
            cup_context_free(c);
        }
    }
    EXPECT(ops >= 30);
}
