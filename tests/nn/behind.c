/* Batchnorm right behind a convolution: the same as one after the other, and on a GPU by moments
 * that the convolution leaves, which are held to the result itself in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cuda/cuda.h"
#include "cupola/cupola.h"
#include "tensor/moments.h"
#include "tensor/tensor.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

/* Its elements as they lie by its shape; to be freed. */
static double *numbers(cup_tensor *t)
{
    cup_context *c = cup_tensor_context(t);
    size_t bytes = (size_t)cup_tensor_count(t) * sizeof(double);
    double *to = malloc(bytes);
    EXPECT(to);
    EXPECT_INT(cup_tensor_read(cup_copy(c, cup_cast(c, t, CUP_F64)), to, bytes), CUP_OK);
    return to;
}

static void expect_near(cup_tensor *got, cup_tensor *want, double part)
{
    double *a = numbers(got), *b = numbers(want), most = 0;
    EXPECT_INT(cup_tensor_count(got), cup_tensor_count(want));
    for (int64_t i = 0; i < cup_tensor_count(want); i++)
        most = fmax(most, fabs(b[i]));
    for (int64_t i = 0; i < cup_tensor_count(want); i++)
        EXPECT_NEAR(a[i], b[i], part * most);
    free(a);
    free(b);
}

enum { IN = 16, OUT = 24, SIDE = 8, IMAGES = 4, LEAVES = 4, RESULTS = LEAVES + 3 };

typedef struct pair {
    cup_context *c;
    cup_conv2d_layer conv;
    cup_batchnorm_layer norm;
    cup_tensor *x, *residual, *dy;
    bool last, relu;
} pair;

static cup_tensor *turned(cup_context *c, cup_tensor *t, bool back)
{
    const int64_t last[] = {0, 2, 3, 1}, first[] = {0, 3, 1, 2};
    return cup_permute(c, t, back ? first : last, 4);
}

/* y, the running statistics and the gradients of all leaves; what a call moves begins anew. */
static void run(const pair *p, bool behind, cup_tensor **out)
{
    cup_context *c = p->c;
    cup_tensor *leaves[LEAVES] = {p->x, p->conv.weight, p->norm.weight, p->norm.bias}, *y;
    cup_copy_into(c, p->norm.running_mean, cup_full(c, CUP_F32, 1, (int64_t[]){OUT}, 0.5));
    cup_copy_into(c, p->norm.running_var, cup_full(c, CUP_F32, 1, (int64_t[]){OUT}, 2));
    if (behind) {
        y = cup_batchnorm_layer_behind(&p->norm, &p->conv, p->x, p->residual, p->relu);
    } else {
        y = p->last ? turned(c, cup_conv2d_layer_call(&p->conv, turned(c, p->x, true)), false)
                    : cup_conv2d_layer_call(&p->conv, p->x);
        y = cup_batchnorm_layer_join(&p->norm, y, p->residual, p->relu);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(!c->moments.lines && !c->moments.wanted);
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, p->dy), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, leaves, LEAVES, out + 3), CUP_OK);
    out[0] = y;
    out[1] = cup_copy(c, p->norm.running_mean);
    out[2] = cup_copy(c, p->norm.running_var);
}

/* `kind`: bits for channels last, a window of one place, training, and what stands behind. */
static void check(const char *name, cup_dtype dtype, int kind, double part)
{
    pair p = {.c = device(name), .last = kind & 1, .relu = kind & 8};
    cup_context *c = p.c;
    cup_parameters *list = cup_parameters_new(c, dtype);
    int64_t kernel = kind & 2 ? 1 : 3;
    const int64_t first[] = {IMAGES, IN, SIDE, SIDE}, last[] = {IMAGES, SIDE, SIDE, IN},
                  first_out[] = {IMAGES, OUT, SIDE, SIDE}, last_out[] = {IMAGES, SIDE, SIDE, OUT};
    cup_conv2d_layer_new(&p.conv, list, "conv", IN, OUT, &kernel, 1,
                         CUP_OPTIONS(cup_conv2d_layer_options, .no_bias = true,
                                     .padding = CUP_INTS(kernel / 2)));
    cup_batchnorm_layer_new(&p.norm, list, "norm", OUT,
                            CUP_OPTIONS(cup_norm_layer_options, .channels_last = p.last));
    cup_parameters_training(list, kind & 4);
    p.x = cup_normal(c, dtype, 4, p.last ? last : first, 0.5, 1);
    p.dy = cup_normal(c, dtype, 4, p.last ? last_out : first_out, 0, 1);
    if (kind & 8)
        p.residual = cup_normal(c, dtype, 4, p.last ? last_out : first_out, 0, 1);
    cup_require_grad(p.x);
    cup_tensor *got[RESULTS], *want[RESULTS];
    run(&p, false, want);
    run(&p, true, got);
    for (int i = 0; i < RESULTS; i++)
        expect_near(got[i], want[i], part);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(batchnorm_behind_is_one_after_the_other)
{
    for (int kind = 0; kind < 16; kind++) {
        check("cpu", CUP_F32, kind, 2e-6);
        check("cpu", CUP_BF16, kind, 0.02);
    }
}

TEST(gpu_batchnorm_behind_is_one_after_the_other)
{
    for (int kind = 0; kind < 16; kind++) {
        check("cuda", CUP_F32, kind, 1e-5);
        check("cuda", CUP_BF16, kind, 0.02);
    }
}

TEST(batchnorm_behind_refuses)
{
    cup_context *c = device("cpu");
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_batchnorm_layer norm;
    cup_conv2d_layer conv;
    cup_batchnorm_layer_new(&norm, list, "norm", 5, NULL);
    cup_conv2d_layer_new(&conv, list, "conv", 3, 4, &(int64_t){1}, 1, NULL);
    cup_tensor *x = cup_normal(c, CUP_F32, 4, (int64_t[]){2, 3, 4, 4}, 0, 1);
    EXPECT(!cup_batchnorm_layer_behind(&norm, &conv, x, NULL, false));
    EXPECT_CONTAINS(cup_error_text(c), "channel");
    EXPECT(!c->moments.lines && !c->moments.wanted);
    cup_error_clear(c);
    EXPECT(!cup_batchnorm_layer_behind(&norm, NULL, x, NULL, false));
    EXPECT(cup_error(c) != CUP_OK);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Images [N,S,S,C] to O channels; whether Hopper leaves moments of them. */
typedef struct image_case {
    int64_t images, side, channels, results, kernel;
    int stride;
    bool leaves;
} image_case;

static const image_case cases[] = {
    {4, 16, 64, 256, 1, 1, true},   {2, 56, 256, 64, 1, 1, true},  {8, 16, 512, 1024, 1, 1, true},
    {32, 14, 1024, 256, 1, 1, true}, {32, 14, 256, 1024, 1, 1, true},
    {128, 7, 512, 2048, 1, 1, true}, {4, 56, 136, 64, 3, 1, true}, {8, 28, 128, 128, 3, 1, true},
    {64, 14, 256, 256, 3, 1, true}, {128, 7, 512, 512, 3, 1, true}, {16, 28, 256, 512, 1, 2, false},
    {32, 28, 256, 520, 3, 2, false}, {8, 64, 3, 64, 7, 2, false},  {3, 9, 64, 128, 3, 1, false},
    {5, 15, 64, 96, 1, 1, false},   {8, 32, 96, 160, 1, 1, true},  {16, 32, 192, 96, 1, 1, true},
    {8, 64, 64, 192, 1, 1, true},   {8, 32, 64, 224, 3, 1, false}, {8, 32, 64, 72, 3, 1, false},
    {16, 64, 64, 64, 3, 1, false},  {4, 96, 128, 64, 3, 1, false}, {16, 60, 64, 64, 3, 1, false},
    {4, 56, 64, 64, 3, 1, false}};

typedef struct tensors {
    cup_tensor *x, *weight, *bias, *y;
} tensors;

static cup_tensor *drawn(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                         double mean, double deviation)
{
    return cup_cast(c, cup_normal(c, CUP_F32, ndim, shape, mean, deviation), dtype);
}

/* The convolution by itself, whose moments are asked for. */
static tensors convolve(cup_context *c, const image_case *k, cup_dtype dtype, bool biased,
                        double mean)
{
    const int64_t x[] = {k->images, k->side, k->side, k->channels},
                  w[] = {k->results, k->channels, k->kernel, k->kernel};
    double deviation = 1 / sqrt((double)(k->channels * k->kernel * k->kernel));
    tensors t = {.x = drawn(c, dtype, 4, x, mean, 1),
                 .weight = drawn(c, dtype, 4, w, mean * deviation, deviation),
                 .bias = biased ? drawn(c, dtype, 1, w, mean, 3) : NULL};
    cup__moments_begin(c);
    if (k->kernel == 1 && k->stride == 1)
        t.y = cup_linear(c, t.x, cup_reshape(c, t.weight, 2, w), t.bias);
    else
        t.y = turned(c, cup_conv2d(c, turned(c, t.x, true), t.weight, t.bias,
                                   CUP_OPTIONS(cup_conv2d_options,
                                               .padding = CUP_INTS((int)k->kernel / 2),
                                               .stride = CUP_INTS(k->stride))), false);
    c->moments.wanted = false;
    EXPECT_TEXT(cup_error_text(c), "");
    return t;
}

/* Means of the columns of some rows, and behind them squared distances from these, in double. */
static double *measured(const double *y, int64_t rows, int64_t columns)
{
    double *means = calloc((size_t)(2 * columns), sizeof *means), *squares = means + columns;
    EXPECT(means);
    for (int64_t i = 0; i < rows * columns; i++)
        means[i % columns] += y[i];
    for (int64_t j = 0; j < columns; j++)
        means[j] /= (double)rows;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double apart = y[i * columns + j] - means[j];
            squares[j] += apart * apart;
        }
    return means;
}

static void expect_lines(const cup__moments *m, const double *y, const image_case *k)
{
    double *lines = numbers(m->lines), count = (double)m->line;
    int64_t columns = m->lines->shape[1];
    for (int64_t i = 0; i < m->lines->shape[0]; i++) {
        double *want = measured(y + i * m->line * columns, m->line, columns);
        for (int64_t j = 0; j < columns; j++) {
            double *got = lines + 2 * (i * columns + j), squares = want[columns + j];
            double most = fabs(want[j]) + sqrt(squares / count), least = 3e-7 * most;
            if (fabs(got[0] - want[j]) > 1e-6 * most ||
                fabs(got[1] - squares) > 1e-5 * squares + count * least * least)
                test_fail(__FILE__, __LINE__,
                          "%lld channels to %lld: line %lld, column %lld is %g %g for %g %g",
                          (long long)k->channels, (long long)k->results, (long long)i,
                          (long long)j, got[0], got[1], want[j], squares);
        }
        free(want);
    }
    free(lines);
}

/* Batchnorm with a momentum of 1, of which the running statistics are those of the batch. */
static cup_tensor *expect_statistics(cup_context *c, cup_tensor *y, const double *want)
{
    int64_t columns = y->shape[3];
    double rows = (double)(y->count / columns);
    cup_tensor *mean = cup_full(c, CUP_F32, 1, &columns, 0), *var = cup_copy(c, mean);
    cup_tensor *out = cup_batchnorm(c, y, NULL, NULL, mean, var, -1,
                                    CUP_OPTIONS(cup_batchnorm_options, .train = true,
                                                .eps = 1e-12, .momentum = 1));
    double *means = numbers(mean), *vars = numbers(var);
    for (int64_t j = 0; j < columns; j++) {
        double variance = want[columns + j] / (rows - 1), most = fabs(want[j]) + sqrt(variance);
        EXPECT_NEAR(means[j], want[j], 3e-6 * most);
        EXPECT_NEAR(vars[j], variance, 5e-5 * variance + 1e-11 * most * most);
    }
    free(means);
    free(vars);
    return out;
}

static void check_case(cup_context *c, const image_case *k, cup_dtype dtype, bool biased,
                       double mean)
{
    cup_scope_open(c);
    tensors t = convolve(c, k, dtype, biased, mean);
    const cup__moments *m = cup__moments_of(t.y, k->results);
    double *y = numbers(t.y), *want = measured(y, t.y->count / t.y->shape[3], t.y->shape[3]);
    if (k->leaves && !m)
        test_fail(__FILE__, __LINE__, "%lld channels to %lld leave no moments",
                  (long long)k->channels, (long long)k->results);
    if (m)
        expect_lines(m, y, k);
    cup_tensor *by_moments = expect_statistics(c, t.y, want);
    cup__moments_end(c);
    cup_tensor *by_reading = expect_statistics(c, t.y, want);
    expect_near(by_moments, by_reading, dtype == CUP_BF16 ? 0x1p-7 : 0x1p-10);
    free(y);
    free(want);
    cup_scope_close(c);
}

/* Twice, as what is remembered of a call must not be of another; and by the kernel that leaves them
 * where a library would be faster, too. */
TEST_LIMITED(gpu_moments_are_those_of_the_result, 120)
{
    setenv("CUP_IMPL", "linear=wgmma", 1);
    cup_context *c = device("cuda");
    unsetenv("CUP_IMPL");
    if (cup__cuda_facts(cup__cuda_of(c->device))->major != 9)
        test_skip("only Hopper leaves moments");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int which = 0; which < 3; which++)
            check_case(c, &cases[i], which == 1 ? CUP_F16 : CUP_BF16, which == 1,
                       which == 2 ? 2 : 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(c, &cases[i], CUP_BF16, false, 0);
    cup_context_free(c);
}
