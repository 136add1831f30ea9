/* Products of f32 at the highest precision against double, element by element: numbers far from 1,
 * rows and columns of different sizes, and sums that live of the smallest elements. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"

enum { PLAIN, TINY, HUGE_ONES, BY_ROWS, AGAINST_EACH_OTHER, WHERE_SMALL, KINDS };

static const char *const names[KINDS] = {
    "plain", "1e-8 by 1e-8", "1e8 by 1e8", "rows and columns", "along k", "small beside large"};

/* By what element (line, k) of a, or of b when `of_b`, is multiplied. */
static double size_of(int kind, bool of_b, int line, int k)
{
    switch (kind) {
    case TINY:
        return 1e-8;
    case HUGE_ONES:
        return 1e8;
    case BY_ROWS:
        return pow(10, line % 17 - 8);
    case AGAINST_EACH_OTHER: /* elements that count alike, 2^30 below the largest of their line */
        return k % 2 == of_b ? 1 : 0x1p-30;
    case WHERE_SMALL: /* the large ones of a meet zeros */
        return of_b ? k % 2 : k % 2 ? 0x1p-33 : 1;
    default:
        return 1;
    }
}

typedef struct matrix {
    float *data; /* [lines, k] */
    int lines, k;
} matrix;

static matrix make(int kind, bool of_b, int lines, int k)
{
    matrix m = {malloc((size_t)(lines * k) * sizeof(float)), lines, k};
    EXPECT(m.data);
    for (int i = 0; i < lines * k; i++) {
        double x = test_uniform(-1, 1);
        if (kind >= AGAINST_EACH_OTHER)
            x = x < 0 ? x / 2 - 0.5 : x / 2 + 0.5;
        m.data[i] = (float)(x * size_of(kind, of_b, i / k, i % k));
    }
    return m;
}

/* Every element within 8 units of 2^-24 of the sizes of its products: plain sums of f32 are within
 * sqrt(k), 16 and 32 here, at worst k of them. */
static void expect_close(int kind, const matrix *a, const matrix *b, const float *y)
{
    for (int i = 0; i < a->lines; i++)
        for (int j = 0; j < b->lines; j++) {
            double want = 0, sizes = 0;
            for (int k = 0; k < a->k; k++) {
                double product = (double)a->data[i * a->k + k] * (double)b->data[j * a->k + k];
                want += product;
                sizes += fabs(product);
            }
            double off = fabs((double)y[i * b->lines + j] - want) / (sizes * 0x1p-24 + 0x1p-149);
            if (!(off <= 8))
                test_fail(__FILE__, __LINE__, "%s, %d x %d x %d: element %d, %d is %.1f units off",
                          names[kind], a->lines, b->lines, a->k, i, j, off);
        }
}

static void check(cup_context *c, int kind, int m, int n, int k)
{
    const int64_t turned[] = {1, 0};
    matrix a = make(kind, false, m, k), b = make(kind, true, n, k);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){m, k}, a.data);
    cup_tensor *w = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){n, k}, b.data);
    /* As they lie, and with k across. */
    cup_tensor *y[] = {cup_matmul(c, x, w, false, true),
                       cup_matmul(c, cup_copy(c, cup_permute(c, x, turned, 2)),
                                  cup_copy(c, cup_permute(c, w, turned, 2)), true, false)};
    float *got = malloc((size_t)(m * n) * sizeof(float));
    EXPECT(got);
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(cup_tensor_read(y[i], got, (size_t)(m * n) * sizeof(float)), CUP_OK);
        expect_close(kind, &a, &b, got);
    }
    free(got);
    free(a.data);
    free(b.data);
}

static void check_all(const char *device, const char *impl)
{
    if (impl)
        setenv("CUP_IMPL", impl, 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    bool is_there = cup_error(c) == CUP_OK;
    const int sizes[][3] = {{1, 5, 40}, {33, 17, 70}, {130, 70, 256}, {257, 264, 1000}};
    for (int kind = 0; kind < KINDS && is_there; kind++)
        for (int i = 0; i < 4; i++) {
            cup_scope_open(c);
            check(c, kind, sizes[i][0], sizes[i][1], sizes[i][2]);
            cup_scope_close(c);
        }
    cup_context_free(c);
    unsetenv("CUP_IMPL");
    if (!is_there)
        test_skip("no GPU");
}

TEST(products_of_f32_are_f32)
{
    check_all("cpu", NULL);
}

TEST(gpu_products_of_f32_are_f32)
{
    check_all("cuda", NULL);
}

/* What the dispatcher takes for large matrices, and for those without a library. */
TEST(gpu_split_products_of_f32_are_f32)
{
    check_all("cuda", "matmul=split");
}

TEST(gpu_tf32_products_of_f32_are_f32)
{
    check_all("cuda", "matmul=tf32");
}
