/* Factors of small matrices of all kinds: multiplied they give the matrix, their vectors stand at
 * right angles, and signs and order follow the rules. */
#include <math.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

#define MOST 12

typedef double matrix[MOST][MOST];

static void read(cup_tensor *t, int rows, int columns, matrix to)
{
    double all[MOST * MOST];
    EXPECT(t && cup_tensor_count(t) == rows * columns);
    cup_tensor *wide = cup_cast(cup_tensor_context(t), t, CUP_F64);
    EXPECT_INT(cup_tensor_read(wide, all, (size_t)(rows * columns) * sizeof *all), CUP_OK);
    for (int i = 0; i < rows * columns; i++)
        to[i / columns][i % columns] = all[i];
}

/* Columns of unit length at right angles. */
static void expect_upright(matrix q, int rows, int columns, double room)
{
    for (int i = 0; i < columns; i++)
        for (int j = 0; j < columns; j++) {
            double sum = 0;
            for (int k = 0; k < rows; k++)
                sum += q[k][i] * q[k][j];
            EXPECT_NEAR(sum, i == j, room);
        }
}

static void expect_product(matrix x, const double *by, matrix y, matrix want, const int size[3],
                           double room)
{
    for (int i = 0; i < size[0]; i++)
        for (int j = 0; j < size[1]; j++) {
            double sum = 0;
            for (int k = 0; k < size[2]; k++)
                sum += x[i][k] * (by ? by[k] : 1) * y[k][j];
            EXPECT_NEAR(sum, want[i][j], room);
        }
}

static void hold_qr(cup_context *c, cup_tensor *a, const int size[3], double largest, double room)
{
    cup_tensor *tensors[2];
    matrix all, q, r;
    EXPECT_INT(cup_qr(c, a, &tensors[0], &tensors[1]), CUP_OK);
    read(a, size[0], size[1], all);
    read(tensors[0], size[0], size[2], q);
    read(tensors[1], size[2], size[1], r);
    expect_product(q, NULL, r, all, size, room * largest);
    expect_upright(q, size[0], size[2], room);
    for (int i = 0; i < size[2]; i++)
        for (int j = 0; j <= i && j < size[1]; j++)
            EXPECT(j < i ? r[i][j] == 0 : r[i][i] >= 0);
}

static void hold_svd(cup_context *c, cup_tensor *a, const int size[3], double largest, double room)
{
    cup_tensor *tensors[3];
    matrix all, u, s, vt, v;
    EXPECT_INT(cup_svd(c, a, &tensors[0], &tensors[1], &tensors[2]), CUP_OK);
    read(a, size[0], size[1], all);
    read(tensors[0], size[0], size[2], u);
    read(tensors[1], 1, size[2], s);
    read(tensors[2], size[2], size[1], vt);
    for (int i = 0; i < size[2]; i++) {
        double most = 0, least = 0;
        for (int j = 0; j < size[1]; j++) {
            v[j][i] = vt[i][j];
            most = fmax(most, vt[i][j]);
            least = fmin(least, vt[i][j]);
        }
        EXPECT(most >= -least);
        EXPECT(s[0][i] >= 0 && (i == 0 || s[0][i] <= s[0][i - 1]));
    }
    expect_product(u, s[0], vt, all, size, room * largest);
    expect_upright(u, size[0], size[2], room);
    expect_upright(v, size[1], size[2], room);
}

/* Kinds of matrices: 0, of one number, of rank 2, the identity, graded, with equal columns. */
static double element(int kind, int i, int j)
{
    switch (kind) {
    case 0: return 0;
    case 1: return -3;
    case 2: return (i + 1) * 0.25 + (j % 2) * (i % 3 - 1);
    case 3: return i == j;
    case 4: return sin(1 + i * 3 + j * j) * pow(10, -j);
    case 5: return sin(1 + i * 3 + j / 2);
    default: return sin(1 + i * 5 + j * j * 2.3);
    }
}

#define KINDS 7

static void hold_kinds(const char *name, cup_dtype dtype, double scale)
{
    static const int sizes[][3] = {{1, 1, 1}, {5, 1, 1}, {1, 4, 1},
                                   {7, 7, 7}, {9, 4, 4}, {4, 11, 4}};
    cup_context *c = device(name);
    double room = dtype == CUP_F64 ? 4e-15 : 2e-6;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int kind = 0; kind < KINDS; kind++) {
            const int *size = sizes[k];
            double all[MOST * MOST], largest = 0;
            for (int i = 0; i < size[0] * size[1]; i++) {
                all[i] = scale * element(kind, i / size[1], i % size[1]);
                largest = fmax(largest, fabs(all[i]));
            }
            cup_scope_open(c);
            int64_t shape[] = {size[0], size[1]};
            cup_tensor *a = cup_cast(c, cup_tensor_from(c, CUP_F64, 2, shape, all), dtype);
            hold_qr(c, a, size, size[0] * largest, room);
            hold_svd(c, a, size, size[0] * largest, room);
            cup_scope_close(c);
        }
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

/* At the ends of a dtype squares would be 0 or infinite. */
static void hold_all(const char *name)
{
    hold_kinds(name, CUP_F32, 1);
    hold_kinds(name, CUP_F64, 1);
    hold_kinds(name, CUP_F32, 1e37);
    hold_kinds(name, CUP_F32, 1e-30);
    hold_kinds(name, CUP_F64, 1e300);
    hold_kinds(name, CUP_F64, 1e-250);
}

TEST(linalg_factors)
{
    hold_all("cpu");
}

TEST(gpu_linalg_factors)
{
    hold_all("cuda");
}

/* NaN spoils its own matrix, and of q and r no column before its own. */
static void hold_nan(const char *name)
{
    cup_context *c = device(name);
    float rows[] = {1, 2, 3, NAN, 0, 1, 1, 2, 3, 4, 0, 1};
    cup_tensor *a = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){2, 3, 2}, rows), *q, *r, *u, *s, *vt;
    float got[12], values[4];
    EXPECT_INT(cup_qr(c, a, &q, &r), CUP_OK);
    EXPECT_INT(cup_tensor_read(q, got, sizeof got), CUP_OK);
    for (int i = 0; i < 12; i++)
        EXPECT(!isnan(got[i]) == (i >= 6 || i % 2 == 0));
    EXPECT_INT(cup_svd(c, a, &u, &s, &vt), CUP_OK);
    EXPECT_INT(cup_tensor_read(u, got, sizeof got), CUP_OK);
    EXPECT_INT(cup_tensor_read(s, values, sizeof values), CUP_OK);
    for (int i = 0; i < 12; i++)
        EXPECT(!isnan(got[i]) == (i >= 6));
    for (int i = 0; i < 4; i++)
        EXPECT(!isnan(values[i]) == (i >= 2));
    a = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){1, 2}, (float[]){1, INFINITY});
    EXPECT_INT(cup_svd(c, a, &u, &s, &vt), CUP_OK);
    EXPECT(isnan(cup_tensor_item(s)));
    cup_context_free(c);
}

TEST(linalg_nan)
{
    hold_nan("cpu");
}

TEST(gpu_linalg_nan)
{
    hold_nan("cuda");
}

/* The product of all three has the gradient of the matrix itself, values alone have one where they
 * are equal, and of vectors NaN says there that they have none. */
static void hold_gradient(const char *name)
{
    static const float kinds[][6] = {
        {1, 0, 0, 2, 0, 0}, {0, 0, 2, 0, 0.5, 0}, {1, 0, 0, 1, 0, 0}, {0, 0, 2, 0, 2, 0}};
    cup_context *c = device(name);
    float weights[] = {1, -2, 3, 0.5f, 4, -1}, slopes[6];
    for (int k = 0; k < 6; k++) { /* the last two: values that are equal, alone */
        const float *kind = kinds[k < 4 ? k : k - 2];
        int64_t shape[] = {k % 2 ? 2 : 3, k % 2 ? 3 : 2};
        cup_tensor *a = cup_tensor_from(c, CUP_F32, 2, shape, kind), *u, *s, *vt;
        cup_tensor *w = cup_tensor_from(c, CUP_F32, 2, shape, weights), *grad;
        EXPECT_INT(cup_svd(c, cup_require_grad(a), &u, &s, &vt), CUP_OK);
        cup_tensor *product = cup_matmul(c, cup_mul(c, u, s), vt, false, false);
        cup_tensor *loss = k < 4 ? cup_sum(c, cup_mul(c, product, w), NULL, 0, false)
                                 : cup_sum(c, cup_square(c, s), NULL, 0, false);
        EXPECT_INT(cup_gradients(c, loss, &a, 1, &grad), CUP_OK);
        EXPECT_INT(cup_tensor_read(grad, slopes, sizeof slopes), CUP_OK);
        for (int i = 0; i < 6; i++)
            if (k == 2 || k == 3)
                EXPECT(!isfinite(slopes[0] + slopes[1] + slopes[2]));
            else
                EXPECT_NEAR(slopes[i], k < 2 ? weights[i] : 2 * kind[i], 1e-5);
    }
    cup_context_free(c);
}

TEST(linalg_gradients_of_svd)
{
    hold_gradient("cpu");
}

TEST(gpu_linalg_gradients_of_svd)
{
    hold_gradient("cuda");
}

static void hold_eigh(const char *name)
{
    cup_context *c = device(name);
    double rows[] = {2, 1, 0, -3, 4, 0, 0, 0, 0, 0, 0, -5, 0, 0, 0, 0, 0, 0};
    cup_tensor *a = cup_tensor_from(c, CUP_F64, 3, (int64_t[]){2, 3, 3}, rows), *values, *vectors;
    cup_tensor *grad, *half;
    EXPECT_INT(cup_eigh(c, cup_require_grad(a), &values, &vectors), CUP_OK);
    matrix all, v;
    read(values, 2, 3, all);
    double root = sqrt(2), want[] = {0, 3 - root, 3 + root, -2.5, 0, 2.5};
    for (int i = 0; i < 6; i++)
        EXPECT_NEAR(all[i / 3][i % 3], want[i], 1e-14);
    half = cup_slice(c, vectors, (int64_t[]){1, 0, 0}, 3, (int64_t[]){1, 3, 3}, 3);
    read(half, 3, 3, v);
    expect_upright(v, 3, 3, 1e-14);
    EXPECT_NEAR(v[0][0], v[2][0], 1e-14);
    EXPECT_NEAR(v[1][1], 1, 1e-14);
    EXPECT_NEAR(v[0][2], -v[2][2], 1e-14);
    /* The sum of their cubes is the trace of the cube, whose slope is three times the square. */
    cup_tensor *cubes = cup_mul(c, values, cup_square(c, values));
    EXPECT_INT(cup_gradients(c, cup_sum(c, cubes, NULL, 0, false), &a, 1, &grad), CUP_OK);
    double slopes[18], square[] = {15, -18, 0, -18, 51, 0, 0, 0, 0};
    EXPECT_INT(cup_tensor_read(grad, slopes, sizeof slopes), CUP_OK);
    for (int i = 0; i < 9; i++)
        EXPECT_NEAR(slopes[i], square[i], 1e-12);
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
}

TEST(linalg_eigh)
{
    hold_eigh("cpu");
}

TEST(gpu_linalg_eigh)
{
    hold_eigh("cuda");
}

TEST(linalg_empty_and_refused)
{
    cup_context *c = device("cpu");
    cup_tensor *q, *r, *u, *s, *vt;
    cup_tensor *none = cup_zeros(c, CUP_F32, 3, (int64_t[]){2, 0, 3});
    EXPECT_INT(cup_qr(c, none, &q, &r), CUP_OK);
    EXPECT(cup_tensor_size(q, 1) == 0 && cup_tensor_size(q, 2) == 0 && cup_tensor_size(r, 2) == 3);
    EXPECT_INT(cup_svd(c, none, &u, &s, &vt), CUP_OK);
    EXPECT(cup_tensor_ndim(s) == 2 && cup_tensor_size(s, 1) == 0 && cup_tensor_size(vt, 2) == 3);
    EXPECT(cup_qr(c, cup_zeros(c, CUP_F16, 2, (int64_t[]){2, 2}), &q, &r) == CUP_DTYPE);
    EXPECT_CONTAINS(cup_error_text(c), "cup_cast");
    cup_error_clear(c);
    EXPECT(cup_svd(c, cup_zeros(c, CUP_F32, 1, (int64_t[]){2}), &u, &s, &vt) == CUP_SHAPE);
    cup_error_clear(c);
    EXPECT(cup_svd(c, cup_zeros(c, CUP_F32, 2, (int64_t[]){1025, 1026}), &u, &s, &vt) == CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "1024");
    cup_error_clear(c);
    EXPECT(cup_eigh(c, none, &q, &r) == CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "[..,N,N]");
    cup_error_clear(c);
    EXPECT(cup_eigh(c, cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 2}), NULL, &r) == CUP_ARGUMENT);
    cup_context_free(c);
}
