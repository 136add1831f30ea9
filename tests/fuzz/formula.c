/* Any text is refused with a sentence, or is a formula whose derivative can be taken, which can be
 * written out and computed, and which says the same when what is written is read again. */
#include "fuzz.h"

#include <math.h>

#include "cupola/expr.h"
#include "tensor/tensor.h"

static double first_of(cup_context *c, cup_expr *e, cup_tensor *const *in)
{
    cup_tensor *out[CUP_EXPR_RESULTS] = {NULL};
    if (!cup_expr_call(e, in, (double[]){0.5}, out)) {
        MUST(cup_error(c) == CUP_SHAPE || cup_error(c) == CUP_UNSUPPORTED);
        cup_error_clear(c);
        return NAN;
    }
    return out[0]->count ? cup__load(out[0], 0) : NAN;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cup_context *c;
    static int runs;
    if (runs++ % 200 == 0) { /* a context keeps what it made of formulas */
        cup_context_free(c);
        c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = 1));
    }
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    cup_expr *e = cup_expr_new(c, "x y", "k", text);
    if (!e) {
        MUST(cup_error(c) != CUP_OK && cup_error_text(c)[0]);
        cup_error_clear(c);
        free(text);
        return 0;
    }
    float values[] = {0.25f, -1.5f, 3};
    cup_scope_open(c);
    cup_tensor *in[] = {cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, values),
                        cup_tensor_from(c, CUP_F32, 2, (int64_t[]){2, 1}, values)};
    double value = first_of(c, e, in);
    cup_expr *again = cup_expr_new(c, "x y", "k", cup_expr_words(e));
    if (again) {
        double same = first_of(c, again, in);
        MUST(value == same || (value != value && same != same) ||
             fabs(value - same) <= 1e-3 * fabs(value));
    } else {
        MUST(strstr(cup_error_text(c), "nested") || strstr(cup_error_text(c), "more than"));
        cup_error_clear(c);
    }
    cup_expr *slope = cup_expr_derivative(e, 0, 0);
    if (slope)
        first_of(c, slope, in);
    cup_error_clear(c);
    cup_expr_free(slope);
    cup_expr_free(again);
    cup_expr_free(e);
    cup_scope_close(c);
    free(text);
    return 0;
}
