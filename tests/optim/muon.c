/* Muon against its parts: the orthogonal matrices, and steps of a parameter. */
#include <math.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "optim/orthogonal.h"

/* x x^T, or x^T x for a tall x, must be near the unit matrix: singular values from 0.6 to 1.3. */
static void expect_orthogonal(const float *x, int rows, int columns)
{
    int n = rows < columns ? rows : columns, k = rows < columns ? columns : rows;
    for (int i = 0; i < n; i++) {
        double diagonal = 0, off = 0;
        for (int j = 0; j < n; j++) {
            double dot = 0;
            for (int l = 0; l < k; l++)
                dot += rows < columns ? (double)x[i * columns + l] * (double)x[j * columns + l]
                                      : (double)x[l * columns + i] * (double)x[l * columns + j];
            if (i == j)
                diagonal = dot;
            else
                off += dot * dot;
        }
        EXPECT(diagonal > 0.36 && diagonal < 1.7);
        EXPECT(sqrt(off) < 0.7);
    }
}

static void check_shape(int rows, int columns)
{
    enum { MATRICES = 3, MOST = 3 * 40 * 40 };
    float values[MOST];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < MATRICES * rows * columns; i++)
        values[i] = (float)test_uniform(-3, 3);
    int64_t shape[] = {MATRICES, rows, columns};
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 3, shape, values);
    cup_tensor *y = cup__orthogonal(c, x);
    size_t bytes = (size_t)(MATRICES * rows * columns) * sizeof *values;
    EXPECT_INT(cup_tensor_read(y, values, bytes), CUP_OK);
    for (int i = 0; i < MATRICES; i++)
        expect_orthogonal(values + i * rows * columns, rows, columns);
    cup_context_free(c);
}

TEST(muon_makes_matrices_orthogonal)
{
    check_shape(8, 40);
    check_shape(40, 8);
    check_shape(1, 5);
}

/* A parameter whose gradient is itself: each step takes the same size away from it. */
TEST(muon_steps_along_orthogonal_directions)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t shape[] = {4, 16}, wide[] = {16};
    cup_tensor *w = cup_keep(cup_normal(c, CUP_F32, 2, shape, 0, 1));
    cup_tensor *v = cup_keep(cup_full(c, CUP_F32, 1, wide, 1));
    cup_parameter list[] = {{.name = "w", .tensor = w, .hidden = true}, {.name = "v", .tensor = v}};
    cup_optimizer *o = cup_optimizer_new(
        c, list, 2, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_MUON));
    int64_t states;
    const cup_named *state = cup_optimizer_state(o, &states);
    EXPECT_INT(states, 4); /* steps; the momentum of w; both states of v */
    EXPECT_TEXT(state[1].name, "w.first");
    float before[64], after[64], one[16], step[64];
    EXPECT_INT(cup_tensor_read(w, before, sizeof before), CUP_OK);
    EXPECT_INT(cup_optimizer_set(o, 0.01, 1), CUP_OK);
    cup_tensor *loss = cup_add(c, cup_sum(c, cup_mul(c, w, w), NULL, 0, false),
                               cup_sum(c, v, NULL, 0, false));
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    EXPECT_INT(cup_tensor_read(w, after, sizeof after), CUP_OK);
    EXPECT_INT(cup_tensor_read(v, one, sizeof one), CUP_OK);
    for (int i = 0; i < 64; i++)
        step[i] = (before[i] - after[i]) / (0.01f * 0.2f * 4.0f);
    expect_orthogonal(step, 4, 16);
    EXPECT_NEAR(one[3], 1 - 0.01, 1e-5); /* AdamW's first step */
    EXPECT_INT(cup_optimizer_taken(o), 1);
    cup_optimizer_free(o);
    cup_tensor_free(w);
    cup_tensor_free(v);
    cup_context_free(c);
}

enum { ROWS = 24, COLUMNS = 40, MATRIX = ROWS * COLUMNS };

/* The first step of a matrix whose gradient is known, in units of its size. */
static void first_step(const char *device, bool single, const float *gradient, float *step)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    int64_t shape[] = {ROWS, COLUMNS};
    cup_tensor *w = cup_keep(cup_full(c, CUP_F32, 2, shape, 0));
    cup_tensor *g = cup_keep(cup_tensor_from(c, CUP_F32, 2, shape, gradient));
    cup_parameter one = {.name = "w", .tensor = w, .hidden = true};
    cup_optimizer *o = cup_optimizer_new(
        c, &one, 1,
        CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_MUON, .single = single));
    EXPECT_INT(cup_optimizer_set(o, 1, 1), CUP_OK);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, w, g), NULL, 0, false)), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    EXPECT_INT(cup_tensor_read(w, step, MATRIX * sizeof *step), CUP_OK);
    for (int i = 0; i < MATRIX; i++)
        step[i] /= -0.2f * sqrtf(COLUMNS);
    cup_optimizer_free(o);
    cup_tensor_free(w);
    cup_tensor_free(g);
    cup_context_free(c);
}

/* In bf16 a direction is orthogonal, in f32 it is the CPU's but for what five rounds, each of which
 * takes small singular values up 3.4-fold, make of a rounding: 3.4^5 units of 2^-24. */
static void check_single(const char *device)
{
    static float gradient[MATRIX], want[MATRIX], got[MATRIX];
    for (int i = 0; i < MATRIX; i++)
        gradient[i] = (float)test_uniform(-1, 1);
    first_step("cpu", false, gradient, want);
    expect_orthogonal(want, ROWS, COLUMNS);
    first_step(device, true, gradient, got);
    for (int i = 0; i < MATRIX; i++)
        EXPECT_NEAR(got[i], want[i], 485 * 0x1p-24);
    first_step(device, false, gradient, got);
    expect_orthogonal(got, ROWS, COLUMNS);
}

TEST(muon_single_is_f32)
{
    check_single("cpu");
}

TEST(gpu_muon_single_is_f32)
{
    check_single("cuda");
}
