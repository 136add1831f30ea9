/* Convolutions of f32 against double, element by element, as cup_precision promises them: numbers
 * far from 1, and infinities, which tensor cores cannot take in parts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

typedef struct image_case {
    int64_t images, channels, side, results, kernel;
    int stride, groups;
} image_case;

static const image_case cases[] = {
    {2, 20, 9, 33, 3, 1, 1},   {1, 64, 14, 64, 3, 1, 1}, {3, 5, 20, 40, 5, 2, 1},
    {2, 128, 7, 200, 1, 1, 1}, {5, 17, 12, 9, 3, 1, 1},  {2, 36, 11, 24, 3, 2, 2},
    {1, 66, 8, 150, 3, 1, 3},  {4, 6, 16, 32, 7, 3, 1},  {1, 130, 5, 258, 3, 1, 2},
    {6, 1, 28, 16, 3, 1, 1},   {3, 1, 19, 21, 3, 2, 1},  {2, 12, 9, 40, 1, 2, 1}};

/* As large as those that a GPU rounds to f16 first. */
static const image_case large_cases[] = {
    {4, 64, 32, 128, 3, 1, 1}, {4, 128, 32, 128, 3, 1, 2}, {4, 64, 64, 128, 3, 2, 1}};

/* Windows of one place, which are products where channels are neighbours in memory. */
static const image_case one_place[] = {
    {16, 256, 28, 64, 1, 1, 1}, {3, 64, 9, 256, 1, 1, 1},  {2, 20, 11, 36, 1, 1, 1},
    {5, 512, 7, 132, 1, 1, 1},  {1, 2048, 7, 512, 1, 1, 1}, {130, 16, 1, 16, 1, 1, 1}};

enum { X, WEIGHT, DY, INPUTS };
enum { Y, DX, DWEIGHT, RESULTS };
static const int like[RESULTS] = {DY, X, WEIGHT}; /* what each has the shape of */

static void shape_of(const image_case *k, int which, int64_t *shape)
{
    int64_t out = (k->side - 1) / k->stride + 1;
    const int64_t all[INPUTS][4] = {{k->images, k->channels, k->side, k->side},
                                    {k->results, k->channels / k->groups, k->kernel, k->kernel},
                                    {k->images, k->results, out, out}};
    for (int d = 0; d < 4; d++)
        shape[d] = all[which][d];
}

static int64_t count_of(const image_case *k, int which)
{
    int64_t shape[4];
    shape_of(k, which, shape);
    return shape[0] * shape[1] * shape[2] * shape[3];
}

/* With channels last where `last`; as numbers of the dtype, or their sizes. */
static cup_tensor *tensor_of(cup_context *c, const image_case *k, int which, const double *from,
                             cup_dtype dtype, bool sizes, bool last)
{
    int64_t shape[4];
    shape_of(k, which, shape);
    cup_tensor *t = cup_tensor_from(c, CUP_F64, 4, shape, from);
    t = cup_cast(c, sizes ? cup_abs(c, t) : t, dtype);
    if (!last)
        return t;
    t = cup_copy(c, cup_permute(c, t, (int64_t[]){0, 2, 3, 1}, 4));
    return cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4);
}

/* conv2d with both its gradients, as doubles. */
static void run(cup_context *c, const image_case *k, double *const *in, cup_dtype dtype, bool sizes,
                bool last, double **out)
{
    cup_scope_open(c);
    cup_tensor *x = tensor_of(c, k, X, in[X], dtype, sizes, last), *grads[2];
    cup_tensor *weight = tensor_of(c, k, WEIGHT, in[WEIGHT], dtype, sizes, false);
    cup_tensor *dy = tensor_of(c, k, DY, in[DY], dtype, sizes, last);
    cup_require_grad(x);
    cup_require_grad(weight);
    cup_tensor *y = cup_conv2d(c, x, weight, NULL,
                               CUP_OPTIONS(cup_conv2d_options,
                                           .padding = CUP_INTS((int)k->kernel / 2),
                                           .stride = CUP_INTS(k->stride),
                                           .groups = k->groups));
    cup_tensor *loss = cup_sum(c, cup_mul(c, y, dy), NULL, 0, false);
    EXPECT_INT(cup_gradients(c, loss, (cup_tensor *[]){x, weight}, 2, grads), CUP_OK);
    cup_tensor *results[RESULTS] = {y, grads[0], grads[1]};
    for (int i = 0; i < RESULTS; i++) {
        size_t bytes = (size_t)count_of(k, like[i]) * sizeof(double);
        out[i] = malloc(bytes);
        EXPECT(out[i]);
        cup_tensor *all = cup_copy(c, cup_cast(c, results[i], CUP_F64));
        EXPECT_INT(cup_tensor_read(all, out[i], bytes), CUP_OK);
    }
    cup_scope_close(c);
}

/* The terms of an element of a result, at most. */
static double terms_of(const image_case *k, int result)
{
    int64_t taps = k->kernel * k->kernel, shape[4];
    shape_of(k, DY, shape);
    return (double)(result == Y    ? k->channels / k->groups * taps
                    : result == DX ? k->results / k->groups * taps
                                   : shape[0] * shape[2] * shape[3]);
}

static void expect_within(const image_case *k, const char *precision, double *const *got,
                          double *const *want, double *const *sizes)
{
    static const char *const names[RESULTS] = {"y", "dx", "dweight"};
    for (int r = 0; r < RESULTS; r++) {
        double units = strcmp(precision, "high") ? 8 + sqrt(terms_of(k, r)) : 0x1p14;
        for (int64_t i = 0; i < count_of(k, like[r]); i++) {
            double off = fabs(got[r][i] - want[r][i]) / (sizes[r][i] * 0x1p-24 + 0x1p-149);
            bool same = isnan(want[r][i]) ? isnan(got[r][i]) : got[r][i] == want[r][i];
            if (!same && !(off <= units))
                test_fail(__FILE__, __LINE__, "%s, %lld channels: %s at %lld is %g for %g",
                          precision, (long long)k->channels, names[r], (long long)i, got[r][i],
                          want[r][i]);
        }
    }
}

static void drop(double **numbers, int count)
{
    for (int i = 0; i < count; i++)
        free(numbers[i]);
}

/* What the numbers of a call are: of some size, those of images `fall` times those of the image
 * before; one of x is infinite where `infinite`. */
typedef struct numbers {
    double size, fall;
    bool infinite;
} numbers;

static void fill(const image_case *k, const numbers *n, double **in)
{
    for (int which = 0; which < INPUTS; which++) {
        int64_t count = count_of(k, which), image = count / k->images;
        in[which] = malloc((size_t)count * sizeof(double));
        EXPECT(in[which]);
        for (int64_t i = 0; i < count; i++)
            in[which][i] = (double)(float)(test_uniform(-1, 1) * n->size *
                                           pow(n->fall, (double)(which == WEIGHT ? 0 : i / image)));
        if (n->infinite && which == X)
            in[which][count / 2] = (double)-INFINITY;
    }
}

static void check_one(cup_context *c, cup_context *exact, const image_case *k,
                      const char *precision, const numbers *n)
{
    double *in[INPUTS], *got[RESULTS], *want[RESULTS], *sizes[RESULTS];
    EXPECT_INT(cup_precision(c, precision), CUP_OK);
    fill(k, n, in);
    run(exact, k, in, CUP_F64, false, false, want);
    run(exact, k, in, CUP_F64, true, false, sizes);
    for (int last = 0; last < 2; last++) {
        run(c, k, in, CUP_F32, false, last, got);
        expect_within(k, precision, got, want, sizes);
        drop(got, RESULTS);
    }
    drop(in, INPUTS);
    drop(want, RESULTS);
    drop(sizes, RESULTS);
}

static void check(cup_context *c, cup_context *exact, const char *precision, numbers n)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_one(c, exact, &cases[i], precision, &n);
}

static void check_all(const char *device, const char *impl)
{
    if (impl)
        setenv("CUP_IMPL", impl, 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    bool is_there = cup_error(c) == CUP_OK;
    if (is_there) {
        check(c, exact, "highest", (numbers){1, 1, false});
        check(c, exact, "highest", (numbers){1e-8, 1, false});
        check(c, exact, "highest", (numbers){1e8, 1, false});
        check(c, exact, "highest", (numbers){1, 0x1p-20, false});
        check(c, exact, "highest", (numbers){1, 1, true});
        check(c, exact, "high", (numbers){1, 1, true});
        check(c, exact, "high", (numbers){1, 1, false});
    }
    cup_context_free(c);
    cup_context_free(exact);
    unsetenv("CUP_IMPL");
    if (!is_there)
        test_skip("no GPU");
}

TEST(gpu_large_convolutions_of_f32_are_rounded_as_allowed)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    bool is_there = cup_error(c) == CUP_OK;
    for (size_t i = 0; is_there && i < sizeof large_cases / sizeof *large_cases; i++)
        check_one(c, exact, &large_cases[i], "high", &(numbers){i ? 1e-9 : 1e9, 1, i == 2});
    cup_context_free(c);
    cup_context_free(exact);
    if (!is_there)
        test_skip("no GPU");
}

/* The last of these numbers are lost beside the largest where an element is two numbers of f16. */
TEST(gpu_large_convolutions_of_f32_are_those_of_their_parts)
{
    static const numbers of[] = {{1, 1, false},          {1e12, 1, false},    {1e-12, 1, false},
                                 {1, 0x1p-9, false},     {1, 0x1p-13, false}, {1, 0x1p-30, false},
                                 {1e-8, 0x1p-20, false}, {1, 1, true},        {1, 0x1p-30, true}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    bool is_there = cup_error(c) == CUP_OK;
    for (size_t i = 0; is_there && i < sizeof of / sizeof *of; i++)
        check_one(c, exact, &large_cases[i % 3], "highest", &of[i]);
    cup_context_free(c);
    cup_context_free(exact);
    if (!is_there)
        test_skip("no GPU");
}

TEST(gpu_convolutions_of_one_place_are_products)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    bool is_there = cup_error(c) == CUP_OK;
    for (size_t i = 0; is_there && i < sizeof one_place / sizeof *one_place; i++) {
        check_one(c, exact, &one_place[i], "high", &(numbers){i % 2 ? 1e-9 : 1e9, 1, false});
        check_one(c, exact, &one_place[i], "high", &(numbers){1, 1, true});
        check_one(c, exact, &one_place[i], "highest", &(numbers){1, 1, false});
    }
    cup_context_free(c);
    cup_context_free(exact);
    if (!is_there)
        test_skip("no GPU");
}

TEST(convolutions_of_f32_are_f32)
{
    check_all("cpu", NULL);
}

TEST(gpu_convolutions_of_f32_are_f32)
{
    check_all("cuda", NULL);
}

TEST(gpu_convolutions_of_f32_are_those_of_their_parts)
{
    check_all("cuda", "conv2d=split,conv2d_input_grad=split,conv2d_weight_grad=split");
}

TEST(gpu_convolutions_of_f32_on_their_way_are_rounded_as_allowed)
{
    check_all("cuda", "conv2d=tf32,conv2d_input_grad=tf32,conv2d_weight_grad=cut");
}
