/* Products into memory that is there, linear layers with more in one pass, and backward through
 * them. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* Numbers between -1 and 1 that look random. */
static cup_tensor *numbers(cup_context *c, cup_dtype dtype, int rows, int columns, int seed)
{
    double values[4096];
    for (int i = 0; i < rows * columns; i++)
        values[i] = sin(12.9898 * (i + 1) + seed);
    cup_tensor *t = cup_tensor_from(c, CUP_F64, 2, (int64_t[]){rows, columns}, values);
    return dtype == CUP_F64 ? t : cup_cast(c, t, dtype);
}

static double at(cup_context *c, cup_tensor *t, int i)
{
    double values[4096];
    cup_tensor *wide = cup_cast(c, t, CUP_F64);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensor_read(wide, values, (size_t)cup_tensor_count(t) * 8), CUP_OK);
    return values[i];
}

static void expect_error(cup_context *c, const char *text)
{
    EXPECT_CONTAINS(cup_error_text(c), text);
    cup_error_clear(c);
}

static void expect_same(cup_context *c, cup_tensor *a, cup_tensor *b, double tolerance)
{
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_INT(cup_tensor_count(a), cup_tensor_count(b));
    for (int i = 0; i < cup_tensor_count(a); i += 7)
        EXPECT_NEAR(at(c, a, i), at(c, b, i), tolerance);
}

TEST(matmul_into_does_not_read_what_is_there)
{
    cup_context *c = cpu();
    cup_tensor *a = numbers(c, CUP_BF16, 9, 33, 1), *b = numbers(c, CUP_BF16, 33, 17, 2);
    cup_tensor *exact = cup_matmul(c, cup_cast(c, a, CUP_F32), cup_cast(c, b, CUP_F32), false,
                                   false);
    cup_dtype dtypes[] = {CUP_F32, CUP_BF16};
    for (int i = 0; i < 2; i++) {
        cup_tensor *y = cup_full(c, dtypes[i], 2, (int64_t[]){9, 17}, NAN);
        EXPECT_INT(cup_matmul_into(c, y, a, b, false, false), CUP_OK);
        expect_same(c, y, exact, i ? 0.02 : 1e-5);
        cup_matmul_add(c, y, a, b, false, false);
        expect_same(c, cup_scale(c, y, 0.5f), exact, i ? 0.02 : 1e-5);
    }
    cup_context_free(c);
}

TEST(matmul_into_of_nothing)
{
    cup_context *c = cpu();
    cup_tensor *y = cup_full(c, CUP_F32, 2, (int64_t[]){3, 4}, 5);
    cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){3, 0}, 0);
    cup_tensor *b = cup_full(c, CUP_F32, 2, (int64_t[]){0, 4}, 0);
    cup_matmul_add(c, y, a, b, false, false);
    EXPECT_NEAR(at(c, y, 11), 5, 0);
    cup_matmul_into(c, y, a, b, false, false);
    EXPECT_NEAR(at(c, y, 11), 0, 0);
    cup_tensor *none = cup_full(c, CUP_F32, 2, (int64_t[]){0, 4}, 0);
    cup_tensor *no_rows = cup_full(c, CUP_F32, 2, (int64_t[]){0, 3}, 0);
    EXPECT_INT(cup_matmul_add(c, none, no_rows, y, false, false), CUP_OK);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(matmul_into_refuses_what_it_would_spoil)
{
    cup_context *c = cpu();
    cup_tensor *a = numbers(c, CUP_F32, 6, 6, 1), *b = numbers(c, CUP_F32, 6, 6, 2);
    EXPECT_INT(cup_matmul_into(c, a, a, b, false, false), CUP_ARGUMENT);
    expect_error(c, "memory");
    cup_tensor *top = cup_slice(c, a, (int64_t[]){0, 0}, 2, (int64_t[]){3, 6}, 2);
    cup_tensor *low = cup_slice(c, a, (int64_t[]){3, 0}, 2, (int64_t[]){3, 6}, 2);
    EXPECT_INT(cup_matmul_into(c, top, low, b, false, false), CUP_OK);
    EXPECT_INT(cup_matmul_add(c, top, top, b, false, false), CUP_ARGUMENT);
    expect_error(c, "memory");
    cup_tensor *turned = cup_permute(c, b, (int64_t[]){1, 0}, 2);
    EXPECT_INT(cup_matmul_add(c, turned, a, a, false, false), CUP_SHAPE);
    expect_error(c, "row-major");
    EXPECT_INT(cup_matmul_add(c, numbers(c, CUP_F32, 5, 6, 3), a, b, false, false), CUP_SHAPE);
    expect_error(c, "shape of the product");
    EXPECT_INT(cup_matmul_add(c, numbers(c, CUP_F64, 6, 6, 3), a, b, false, false), CUP_DTYPE);
    expect_error(c, "f32");
    cup_context_free(c);
}

TEST(matmul_into_passes_on_what_is_not_finite)
{
    cup_context *c = cpu();
    cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){2, 3}, 1);
    cup_tensor *b = cup_full(c, CUP_F32, 2, (int64_t[]){3, 2}, INFINITY);
    cup_tensor *y = cup_full(c, CUP_F32, 2, (int64_t[]){2, 2}, 1);
    cup_matmul_add(c, y, a, b, false, false);
    EXPECT(isinf(at(c, y, 3)));
    cup_matmul_add(c, y, a, cup_scale(c, b, -1), false, false);
    EXPECT(isnan(at(c, y, 3)));
    cup_context_free(c);
}

/* A matrix in the middle of memory that is NaN all around it. */
static cup_tensor *framed(cup_context *c, cup_tensor *inside)
{
    int64_t rows = cup_tensor_size(inside, 0), columns = cup_tensor_size(inside, 1);
    cup_tensor *side = cup_full(c, CUP_BF16, 2, (int64_t[]){rows, 16}, NAN);
    cup_tensor *row = cup_concat(c, (cup_tensor *[]){side, inside, side}, 3, 1);
    cup_tensor *lid = cup_full(c, CUP_BF16, 2, (int64_t[]){8, columns + 32}, NAN);
    cup_tensor *all = cup_concat(c, (cup_tensor *[]){lid, row, lid}, 3, 0);
    return cup_slice(c, all, (int64_t[]){8, 16}, 2, (int64_t[]){rows, columns}, 2);
}

/* Every layout, sizes that end within tiles, and everything that products can go into. */
static void expect_edges_hold(cup_context *c)
{
    for (int layout = 0; layout < 4; layout++) {
        bool ta = layout & 1, tb = layout & 2;
        cup_tensor *a = ta ? numbers(c, CUP_BF16, 72, 40, 1) : numbers(c, CUP_BF16, 40, 72, 1);
        cup_tensor *b = tb ? numbers(c, CUP_BF16, 24, 72, 2) : numbers(c, CUP_BF16, 72, 24, 2);
        cup_tensor *want = cup_matmul(c, cup_cast(c, a, CUP_F32), cup_cast(c, b, CUP_F32), ta, tb);
        a = framed(c, a);
        b = framed(c, b);
        expect_same(c, cup_matmul(c, a, b, ta, tb), want, 0.3);
        cup_tensor *y = cup_full(c, CUP_F32, 2, (int64_t[]){40, 24}, NAN);
        EXPECT_INT(cup_matmul_into(c, y, a, b, ta, tb), CUP_OK);
        expect_same(c, y, want, 1e-3);
        EXPECT_INT(cup_matmul_add(c, y, a, b, ta, tb), CUP_OK);
        expect_same(c, cup_scale(c, y, 0.5f), want, 1e-3);
        cup_tensor *low = cup_full(c, CUP_BF16, 2, (int64_t[]){40, 24}, 0);
        EXPECT_INT(cup_matmul_add(c, low, a, b, ta, tb), CUP_OK);
        expect_same(c, low, want, 0.3);
    }
}

TEST(products_do_not_read_beyond_edges)
{
    cup_context *c = cpu();
    expect_edges_hold(c);
    cup_context_free(c);
}

TEST_LIMITED(gpu_products_do_not_read_beyond_edges, 120)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    expect_edges_hold(c);
    cup_context_free(c);
}

TEST(linear_swiglu_needs_two_halves)
{
    cup_context *c = cpu();
    cup_tensor *x = numbers(c, CUP_F32, 4, 8, 1), *w = numbers(c, CUP_F32, 7, 8, 2);
    EXPECT(cup_linear_swiglu(c, x, w, NULL) == NULL);
    expect_error(c, "as many each");
    w = numbers(c, CUP_F32, 6, 8, 2);
    EXPECT(cup_linear_add(c, x, w, numbers(c, CUP_F32, 4, 5, 3), NULL) == NULL);
    expect_error(c, "residual");
    cup_context_free(c);
}

typedef cup_tensor *(*layers)(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down);

static cup_tensor *apart(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    return cup_linear(c, cup_gelu(c, cup_linear(c, x, up, NULL)), down, NULL);
}

static cup_tensor *fused(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    return cup_linear(c, cup_linear_gelu(c, x, up, NULL), down, NULL);
}

/* The hidden values are used a second time, so that their gradient comes both ways. */
static cup_tensor *apart_twice(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    cup_tensor *h = cup_gelu(c, cup_linear(c, x, up, NULL));
    return cup_add(c, cup_linear(c, h, down, NULL), cup_sum(c, h, (int64_t[]){1}, 1, true));
}

static cup_tensor *fused_twice(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    cup_tensor *h = cup_linear_gelu(c, x, up, NULL);
    return cup_add(c, cup_linear(c, h, down, NULL), cup_sum(c, h, (int64_t[]){1}, 1, true));
}

static cup_tensor *apart_gated(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    cup_tensor *both = cup_linear(c, x, up, NULL);
    cup_tensor *gate = cup_slice(c, both, (int64_t[]){0, 0}, 2, (int64_t[]){-1, 6}, 2);
    cup_tensor *value = cup_slice(c, both, (int64_t[]){0, 6}, 2, (int64_t[]){-1, 6}, 2);
    down = cup_slice(c, down, (int64_t[]){0, 0}, 2, (int64_t[]){-1, 6}, 2);
    return cup_linear(c, cup_swiglu(c, gate, value), down, NULL);
}

static cup_tensor *fused_gated(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    down = cup_slice(c, down, (int64_t[]){0, 0}, 2, (int64_t[]){-1, 6}, 2);
    return cup_linear(c, cup_linear_swiglu(c, x, up, NULL), down, NULL);
}

static cup_tensor *apart_silu(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    cup_tensor *h = cup_silu(c, cup_linear(c, x, up, NULL));
    h = cup_add(c, cup_relu(c, cup_linear(c, x, up, NULL)), h);
    return cup_add(c, cup_linear(c, h, down, NULL), x);
}

static cup_tensor *fused_silu(cup_context *c, cup_tensor *x, cup_tensor *up, cup_tensor *down)
{
    cup_tensor *h = cup_linear_silu(c, x, up, NULL);
    h = cup_add(c, cup_linear_relu(c, x, up, NULL), h);
    return cup_linear_add(c, h, down, x, NULL);
}

/* The gradients of three parameters after two passes. */
static void train(cup_context *c, layers model, cup_tensor **d)
{
    cup_tensor *p[] = {numbers(c, CUP_F64, 5, 8, 1), numbers(c, CUP_F64, 12, 8, 2),
                       numbers(c, CUP_F64, 8, 12, 3)};
    cup_tensor *weigh = numbers(c, CUP_F64, 5, 8, 4);
    for (int i = 0; i < 3; i++)
        cup_require_grad(p[i]);
    for (int pass = 0; pass < 2; pass++) {
        const void *before = pass ? cup_tensor_data(cup_grad(p[2])) : NULL;
        cup_tensor *y = cup_mul(c, model(c, p[0], p[1], p[2]), weigh);
        EXPECT_INT(cup_backward(c, cup_sum(c, y, NULL, 0, false)), CUP_OK);
        if (pass)
            EXPECT(cup_tensor_data(cup_grad(p[2])) == before);
    }
    for (int i = 0; i < 3; i++)
        d[i] = cup_grad(p[i]);
}

TEST(fused_layers_have_the_gradients_of_plain_ones)
{
    static const layers pairs[][2] = {{apart, fused},
                                      {apart_twice, fused_twice},
                                      {apart_gated, fused_gated},
                                      {apart_silu, fused_silu}};
    for (int i = 0; i < 4; i++) {
        cup_context *c = cpu();
        cup_tensor *want[3], *got[3];
        train(c, pairs[i][0], want);
        train(c, pairs[i][1], got);
        for (int j = 0; j < 3; j++)
            expect_same(c, want[j], got[j], 1e-10);
        cup_context_free(c);
    }
}

static void expect_near(cup_tensor *a, cup_tensor *b)
{
    const double *x = cup_tensor_data(a), *y = cup_tensor_data(b);
    for (int64_t i = 0; i < cup_tensor_count(a); i++)
        EXPECT_NEAR(x[i], y[i], 1e-12);
}

/* The same elements are dropped as by a pass of its own, forward and backward. */
TEST(linear_dropout_is_linear_and_dropout)
{
    cup_tensor *y[2], *d[2][3];
    cup_context *contexts[2];
    for (int i = 0; i < 2; i++) {
        cup_context *c = contexts[i] = cpu();
        cup_tensor *p[] = {numbers(c, CUP_F64, 5, 8, 1), numbers(c, CUP_F64, 12, 8, 2),
                           numbers(c, CUP_F64, 5, 12, 3)};
        for (int j = 0; j < 3; j++)
            cup_require_grad(p[j]);
        y[i] = i ? cup_linear_dropout(c, p[0], p[1], NULL, p[2], 0.4)
                 : cup_dropout_add(c, p[2], cup_linear(c, p[0], p[1], NULL), 0.4);
        EXPECT_INT(cup_backward(c, cup_sum(c, y[i], NULL, 0, false)), CUP_OK);
        for (int j = 0; j < 3; j++)
            d[i][j] = cup_grad(p[j]);
    }
    expect_near(y[0], y[1]);
    for (int j = 0; j < 3; j++)
        expect_near(d[0][j], d[1][j]);
    for (int i = 0; i < 2; i++)
        cup_context_free(contexts[i]);
}
