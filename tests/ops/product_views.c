/* Linear layers of views: matrices of a batch that do not follow each other, lines that begin
 * anywhere, transposed weights; forward, and backward through two layers, against f64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/cupola.h"

enum { PLAIN, APART, SKEWED, TURNED, PADDED }; /* how a tensor lies in its memory */

#define MOST 65536

typedef struct shape {
    int64_t batch, rows, k, n;
} shape;

typedef cup_tensor *(*layer)(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias);

/* What a run has found: y, then the gradients of the memory of x, both weights and the bias. */
typedef struct found {
    double *value[5];
    int64_t count[5];
} found;

/* Numbers that look random, as they are in a dtype, computed with in another. */
static cup_tensor *numbers(cup_context *c, cup_dtype dtype, cup_dtype as, int ndim,
                           const int64_t *sizes, int seed)
{
    static double values[MOST];
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= sizes[i];
    EXPECT(count <= MOST);
    for (int64_t i = 0; i < count; i++)
        values[i] = remainder(43758.5453 * sin(12.9898 * (double)(i + 1) + seed), 2);
    cup_tensor *t = cup_cast(c, cup_tensor_from(c, CUP_F64, ndim, sizes, values), dtype);
    return cup_require_grad(cup_keep(cup_cast(c, t, as)));
}

/* x [batch, rows, k] out of memory that is returned in *base. */
static cup_tensor *input(cup_context *c, cup_dtype dtype, cup_dtype as, const shape *s, int how,
                         cup_tensor **base)
{
    int64_t sizes[] = {s->batch, s->rows + (how == APART ? 4 : 0), s->k + (how == SKEWED ? 9 : 0)};
    int64_t turned[] = {s->rows, s->batch, s->k}, starts[] = {0, how == APART, how == SKEWED};
    int64_t part[] = {s->batch, s->rows, s->k}, order[] = {1, 0, 2};
    *base = numbers(c, dtype, as, 3, how == TURNED ? turned : sizes, 1);
    if (how == TURNED)
        return cup_permute(c, *base, order, 3);
    return how == PLAIN ? *base : cup_slice(c, *base, starts, 3, part, 3);
}

/* weight [n, k]. */
static cup_tensor *weights(cup_context *c, cup_dtype dtype, cup_dtype as, int64_t n, int64_t k,
                           int how, cup_tensor **base)
{
    int64_t order[] = {1, 0}, sizes[] = {n, k};
    if (how == SKEWED) {
        *base = numbers(c, dtype, as, 1, (int64_t[]){n * k + 1}, 2);
        cup_tensor *rest = cup_slice(c, *base, (int64_t[]){1}, 1, (int64_t[]){n * k}, 1);
        return cup_reshape(c, rest, 2, sizes);
    }
    *base = numbers(c, dtype, as, 2,
                    how == TURNED   ? (int64_t[]){k, n}
                    : how == PADDED ? (int64_t[]){n, k + 8}
                                    : sizes,
                    2);
    return how == TURNED   ? cup_permute(c, *base, order, 2)
           : how == PADDED ? cup_slice(c, *base, (int64_t[]){0, 8}, 2, sizes, 2)
                           : *base;
}

static void take(cup_context *c, cup_tensor *t, found *to, int i)
{
    cup_tensor *wide = cup_cast(c, t, CUP_F64);
    EXPECT_TEXT(cup_error_text(c), "");
    to->count[i] = cup_tensor_count(wide);
    to->value[i] = malloc((size_t)to->count[i] * 8 + 8);
    EXPECT_INT(cup_tensor_read(wide, to->value[i], (size_t)to->count[i] * 8), CUP_OK);
}

/* Biases of +-24, larger than any sum here: which side of a kink a value lies on must not hang on
 * its last bit, which a library may round before it adds the bias. */
static cup_tensor *far_biases(cup_context *c, cup_dtype as, int64_t n)
{
    double values[256];
    EXPECT(n <= 256);
    for (int64_t i = 0; i < n; i++)
        values[i] = i % 3 ? 24 : -24;
    cup_tensor *t = cup_tensor_from(c, CUP_F64, 1, &n, values);
    return cup_require_grad(cup_keep(cup_cast(c, t, as)));
}

/* Two layers, the second one plain, so that the gradient goes past the activation of the first. */
static found train(cup_context *c, cup_dtype dtype, cup_dtype as, const shape *s, int x_how,
                   int w_how, layer first, bool gated)
{
    found out;
    cup_tensor *base[4];
    cup_tensor *x = input(c, dtype, as, s, x_how, &base[0]);
    cup_tensor *up = weights(c, dtype, as, s->n, s->k, w_how, &base[1]);
    int64_t hidden = gated ? s->n / 2 : s->n;
    cup_tensor *down = weights(c, dtype, as, s->k, hidden, w_how, &base[2]);
    base[3] = first == cup_linear_relu ? far_biases(c, as, s->n)
                                       : numbers(c, dtype, as, 1, (int64_t[]){s->n}, 3);
    cup_tensor *y = cup_linear(c, first(c, x, up, base[3]), down, NULL);
    take(c, y, &out, 0);
    cup_tensor *weigh = numbers(c, dtype, as, 3, (int64_t[]){s->batch, s->rows, s->k}, 4);
    cup_backward(c, cup_sum(c, cup_mul(c, y, weigh), NULL, 0, false));
    for (int i = 0; i < 4; i++) {
        EXPECT_TEXT(cup_error_text(c), "");
        take(c, cup_grad(base[i]), &out, i + 1);
        cup_tensor_free(base[i]);
    }
    cup_tensor_free(weigh);
    return out;
}

static void expect_alike(const found *got, const found *want, double tolerance, const char *what)
{
    static const char *const names[] = {"y", "dx", "dup", "ddown", "dbias"};
    for (int i = 0; i < 5; i++) {
        double most = 0;
        EXPECT_INT(got->count[i], want->count[i]);
        for (int64_t j = 0; j < want->count[i]; j++)
            most = fmax(most, fabs(want->value[i][j]));
        for (int64_t j = 0; j < want->count[i]; j++)
            if (!(fabs(got->value[i][j] - want->value[i][j]) <= tolerance * most))
                test_fail(__FILE__, __LINE__, "%s, %s[%lld] is %g, expected %g", what, names[i],
                          (long long)j, got->value[i][j], want->value[i][j]);
        free(got->value[i]);
        free(want->value[i]);
    }
}

static const struct {
    const char *name;
    layer run;
    bool gated;
} layers[] = {{"linear_gelu", cup_linear_gelu, false},
              {"linear_swiglu", cup_linear_swiglu, true},
              {"linear_relu", cup_linear_relu, false},
              {"linear", cup_linear, false}};

static const shape shapes[] = {{3, 20, 64, 130}, {2, 5, 8, 16}, {3, 17, 16, 8}, {3, 1, 40, 24}};

/* How x and the weights lie. */
static const int hows[][2] = {{APART, SKEWED}, {APART, PLAIN},  {PLAIN, SKEWED}, {SKEWED, PLAIN},
                              {TURNED, TURNED}, {APART, PADDED}, {TURNED, SKEWED}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void expect_views_hold(const char *device, cup_dtype dtype, double tolerance, size_t ways)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t l = 0; l < COUNT(layers); l++)
        for (size_t s = 0; s < COUNT(shapes); s++)
            for (size_t h = 0; h < ways; h++) {
                char what[200];
                snprintf(what, sizeof what, "%s of [%d,%d,%d], %d rows of weight, lying as %d, %d",
                         layers[l].name, (int)shapes[s].batch, (int)shapes[s].rows,
                         (int)shapes[s].k, (int)shapes[s].n, hows[h][0], hows[h][1]);
                cup_scope_open(c);
                cup_scope_open(exact);
                found got = train(c, dtype, dtype, &shapes[s], hows[h][0], hows[h][1],
                                  layers[l].run, layers[l].gated);
                found want = train(exact, dtype, CUP_F64, &shapes[s], hows[h][0], hows[h][1],
                                   layers[l].run, layers[l].gated);
                expect_alike(&got, &want, tolerance, what);
                cup_scope_close(exact);
                cup_scope_close(c);
            }
    cup_context_free(exact);
    cup_context_free(c);
}

/* One row that is used again for every matrix of a batch is no matrix of rows. */
static void expect_repeated_rows_hold(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    static const cup_dtype dtypes[] = {CUP_BF16, CUP_F32};
    for (int i = 0; i < 2; i++) {
        cup_tensor *row = numbers(c, dtypes[i], dtypes[i], 3, (int64_t[]){1, 1, 72}, 1);
        cup_tensor *weight = numbers(c, dtypes[i], dtypes[i], 2, (int64_t[]){40, 72}, 2);
        cup_tensor *many = cup_broadcast(c, row, 3, (int64_t[]){70, 1, 72});
        cup_tensor *want = cup_linear(c, row, weight, NULL);
        cup_tensor *got = cup_linear(c, many, weight, NULL);
        cup_tensor *off = cup_cast(c, cup_max(c, cup_abs(c, cup_sub(c, got, want)), NULL, 0, false),
                                   CUP_F64);
        double most = -1;
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_tensor_read(off, &most, sizeof most), CUP_OK);
        EXPECT_NEAR(most, 0, i ? 1e-4 : 0.1);
        cup_tensor_free(row);
        cup_tensor_free(weight);
    }
    cup_context_free(c);
}

/* Rows of one matrix each: any distance may lie between them and between their elements, so that
 * together they are no matrix that a library can be told of. */
static void expect_skewed_rows_hold(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    static const cup_dtype dtypes[] = {CUP_F64, CUP_F32, CUP_BF16, CUP_F16};
    for (int i = 0; i < 4; i++) {
        cup_tensor *base = numbers(c, dtypes[i], dtypes[i], 3, (int64_t[]){24, 5, 4}, 1);
        cup_tensor *weight = numbers(c, dtypes[i], dtypes[i], 2, (int64_t[]){16, 24}, 2);
        cup_tensor *turned = cup_permute(c, base, (int64_t[]){1, 2, 0}, 3);
        cup_tensor *rows = cup_slice(c, turned, (int64_t[]){0, 2, 0}, 3, (int64_t[]){5, 1, 24}, 3);
        cup_tensor *want = cup_linear(c, cup_copy(c, rows), weight, NULL);
        cup_tensor *off = cup_sub(c, cup_linear(c, rows, weight, NULL), want);
        off = cup_cast(c, cup_max(c, cup_abs(c, off), NULL, 0, false), CUP_F64);
        double most = -1;
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_tensor_read(off, &most, sizeof most), CUP_OK);
        EXPECT_NEAR(most, 0, i == 0 ? 1e-13 : i == 1 ? 1e-4 : 0.1);
        cup_tensor_free(base);
        cup_tensor_free(weight);
    }
    cup_context_free(c);
}

TEST(product_skewed_rows)
{
    expect_skewed_rows_hold("cpu");
}

TEST(gpu_product_skewed_rows)
{
    expect_skewed_rows_hold("cuda");
}

TEST(product_repeated_rows)
{
    expect_repeated_rows_hold("cpu");
}

TEST(gpu_product_repeated_rows)
{
    expect_repeated_rows_hold("cuda");
}

TEST(product_views)
{
    expect_views_hold("cpu", CUP_F32, 1e-5, COUNT(hows));
    expect_views_hold("cpu", CUP_BF16, 0.02, COUNT(hows));
}

TEST_LIMITED(gpu_product_views_bf16, 200)
{
    expect_views_hold("cuda", CUP_BF16, 0.02, COUNT(hows));
}

TEST_LIMITED(gpu_product_views_f16, 200)
{
    expect_views_hold("cuda", CUP_F16, 0.003, 2);
}

TEST_LIMITED(gpu_product_views_f32, 200)
{
    expect_views_hold("cuda", CUP_F32, 1e-4, COUNT(hows));
}
