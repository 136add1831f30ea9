/* Layers of experts, against a plain computation of each row, and their gradients. */
#include "nn/experts_trials.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "test.h"

const trial trials[TRIALS] = {{1, false, false, 0}, {2, false, false, 0}, {2, true, true, 0},
                              {4, true, false, 0},  {1, true, false, 1},  {2, false, false, 0.6},
                              {3, false, true, 1.1}};

double trial_wave(int i, double step)
{
    return sin(1 + step * i);
}

cup_tensor *trial_rows(cup_context *c, double step)
{
    double x[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = trial_wave(i, step);
    return cup_tensor_from(c, CUP_F64, 3, (int64_t[]){2, ROWS / 2, WIDTH}, x);
}

void trial_layer(cup_experts_layer *l, cup_parameters *list, const trial *t)
{
    cup_experts_layer_new(l, list, "moe", WIDTH, HIDDEN, EXPERTS, t->each,
                          CUP_OPTIONS(cup_experts_layer_options, .unscaled = t->unscaled,
                                      .activation = t->gated ? CUP_ACTIVATION_SWIGLU
                                                             : CUP_ACTIVATION_NONE,
                                      .capacity = t->capacity, .balance = 0.3, .router_z = 0.2,
                                      .deviation = 0.7));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void expert_of(const trial *t, const double *up, const double *down, const double *x,
                      double weight, double *y)
{
    double h[2 * HIDDEN] = {0};
    for (int j = 0; j < HIDDEN * (t->gated ? 2 : 1); j++)
        for (int k = 0; k < WIDTH; k++)
            h[j] += up[j * WIDTH + k] * x[k];
    for (int j = 0; j < HIDDEN; j++) {
        double a = t->gated ? h[j] / (1 + exp(-h[j])) * h[HIDDEN + j] : gelu(h[j]);
        for (int k = 0; k < WIDTH; k++)
            y[k] += weight * down[k * HIDDEN + j] * a;
    }
}

/* The softmax of the router, and the square of its logsumexp. */
static double route(const double *router, const double *x, double p[EXPERTS])
{
    double sum = 0;
    for (int e = 0; e < EXPERTS; e++) {
        p[e] = 0;
        for (int k = 0; k < WIDTH; k++)
            p[e] += router[e * WIDTH + k] * x[k];
        p[e] = exp(p[e]);
        sum += p[e];
    }
    for (int e = 0; e < EXPERTS; e++)
        p[e] /= sum;
    return log(sum) * log(sum);
}

static void best(const double p[EXPERTS], int64_t each, int found[EXPERTS])
{
    bool taken[EXPERTS] = {false};
    for (int64_t k = 0; k < each; k++) {
        found[k] = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!taken[e] && (found[k] < 0 || p[e] > p[found[k]]))
                found[k] = e;
        taken[found[k]] = true;
    }
}

/* The rows [from, to), one after the other. */
static double plain(const cup_experts_layer *l, const trial *t, const double *x, int from, int to,
                    double *y)
{
    const double *router = cup_tensor_data(l->router);
    const double *up = cup_tensor_data(l->up), *down = cup_tensor_data(l->down);
    int rows = to - from, count[EXPERTS] = {0}, used[EXPERTS] = {0};
    double mean[EXPERTS] = {0}, z = 0, balance = 0;
    double most = t->capacity > 0 ? ceil(t->capacity * rows * (double)t->each / EXPERTS) : rows;
    memset(y, 0, (size_t)rows * WIDTH * sizeof *y);
    for (int i = from; i < to; i++) {
        double p[EXPERTS], sum = 0;
        int found[EXPERTS];
        z += route(router, x + i * WIDTH, p) / rows;
        best(p, t->each, found);
        for (int e = 0; e < EXPERTS; e++)
            mean[e] += p[e] / rows;
        for (int64_t k = 0; k < t->each; k++)
            sum += p[found[k]];
        for (int64_t k = 0; k < t->each; k++) {
            int e = found[k];
            double weight = t->unscaled || t->each == 1 ? p[e] : p[e] / sum;
            count[e]++;
            if (used[e]++ < most)
                expert_of(t, up + e * HIDDEN * (t->gated ? 2 : 1) * WIDTH,
                          down + e * WIDTH * HIDDEN, x + i * WIDTH, weight,
                          y + (i - from) * WIDTH);
        }
    }
    for (int e = 0; e < EXPERTS; e++)
        balance += EXPERTS * mean[e] * count[e] / (rows * (double)t->each);
    return 0.3 * balance + 0.2 * z;
}

TEST(experts_are_what_each_row_makes)
{
    for (int i = 0; i < TRIALS; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
        cup_parameters *list = cup_parameters_new(c, CUP_F64);
        cup_experts_layer l;
        trial_layer(&l, list, &trials[i]);
        cup_tensor *x = trial_rows(c, 0.7), *cost, *y = cup_experts_layer_pass(&l, x, &cost);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT(y && cost);
        double want[ROWS * WIDTH];
        double owed = plain(&l, &trials[i], cup_tensor_data(x), 0, ROWS, want);
        for (int k = 0; k < ROWS * WIDTH; k++)
            EXPECT_NEAR(((const double *)cup_tensor_data(y))[k], want[k], 1e-12);
        EXPECT_NEAR(cup_tensor_item(cost), owed, 1e-12);
        /* Nothing is dropped where nothing is learned. */
        cup_parameters_training(list, false);
        trial all = trials[i];
        all.capacity = 0;
        y = cup_layer_call(&l.layer, x);
        plain(&l, &all, cup_tensor_data(x), 0, ROWS, want);
        for (int k = 0; k < ROWS * WIDTH; k++)
            EXPECT_NEAR(((const double *)cup_tensor_data(y))[k], want[k], 1e-12);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

/* A number of what the layer gives, and of what it costs. */
static cup_tensor *loss_of(const cup_experts_layer *l, cup_tensor *x)
{
    cup_context *c = cup_tensor_context(x);
    cup_tensor *cost, *y = cup_experts_layer_pass(l, x, &cost);
    y = cup_mul(c, cup_mul(c, y, y), trial_rows(c, 0.9));
    return cup_add(c, cup_sum(c, y, NULL, 0, false), cost);
}

static void expect_slopes(const cup_experts_layer *l, cup_tensor *x, cup_tensor *t)
{
    const double step = 1e-5;
    cup_context *c = cup_tensor_context(x);
    const double *slope = cup_tensor_data(cup_grad(t));
    double *at = cup_tensor_data(t);
    for (int64_t i = 0; i < cup_tensor_count(t); i += 1 + cup_tensor_count(t) / 40) {
        double was = at[i], ends[2];
        for (int k = 0; k < 2; k++) {
            at[i] = was + (k ? step : -step);
            cup_scope_open_without_grad(c);
            ends[k] = cup_tensor_item(loss_of(l, x));
            cup_scope_close(c);
        }
        at[i] = was;
        EXPECT_NEAR(slope[i], (ends[1] - ends[0]) / (2 * step), 1e-7 * (1 + fabs(slope[i])));
    }
}

TEST(experts_have_the_slopes_of_differences)
{
    for (int i = 0; i < TRIALS; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
        cup_parameters *list = cup_parameters_new(c, CUP_F64);
        cup_experts_layer l;
        trial_layer(&l, list, &trials[i]);
        cup_tensor *x = cup_require_grad(trial_rows(c, 0.7));
        EXPECT_INT(cup_backward(c, loss_of(&l, x)), CUP_OK);
        expect_slopes(&l, x, x);
        expect_slopes(&l, x, l.router);
        expect_slopes(&l, x, l.up);
        expect_slopes(&l, x, l.down);
        cup_parameters_free(list);
        cup_context_free(c);
    }
}

/* Of the gradient's square, which goes through backward itself. */
TEST(experts_have_second_derivatives)
{
    const double step = 1e-5;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    cup_parameters *list = cup_parameters_new(c, CUP_F64);
    cup_experts_layer l;
    trial_layer(&l, list, &trials[1]);
    cup_tensor *x = cup_require_grad(trial_rows(c, 0.7)), *slope;
    double *at = cup_tensor_data(l.down), ends[2];
    EXPECT_INT(cup_gradients_recorded(c, loss_of(&l, x), &x, 1, &slope), CUP_OK);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, slope, slope), NULL, 0, false)), CUP_OK);
    double want = ((const double *)cup_tensor_data(cup_grad(l.down)))[3], was = at[3];
    for (int k = 0; k < 2; k++) {
        at[3] = was + (k ? step : -step);
        EXPECT_INT(cup_gradients(c, loss_of(&l, x), &x, 1, &slope), CUP_OK);
        ends[k] = cup_tensor_item(cup_sum(c, cup_mul(c, slope, slope), NULL, 0, false));
    }
    EXPECT_NEAR(want, (ends[1] - ends[0]) / (2 * step), 1e-6 * (1 + fabs(want)));
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(experts_say_what_is_wrong)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_experts_layer l, other;
    cup_experts_layer_new(&l, list, "a", 4, 4, 3, 4, NULL);
    EXPECT_CONTAINS(cup_error_text(c), "goes through 4 of 3 experts");
    cup_error_clear(c);
    cup_experts_layer_new(&l, list, "b", 4, 4, 3, 1,
                          CUP_OPTIONS(cup_experts_layer_options, .balance = -1));
    EXPECT_CONTAINS(cup_error_text(c), "balance -1");
    cup_error_clear(c);
    EXPECT_INT(cup_experts_layer_new(&l, list, "c", 4, 6, 3, 2, NULL), CUP_OK);
    EXPECT(!cup_experts_layer_call(&l, cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 5})));
    EXPECT_CONTAINS(cup_error_text(c), "must be [..,4]");
    cup_error_clear(c);
    EXPECT_INT(cup_experts_layer_of(&other, list, l.router, l.up, l.down, 2, NULL), CUP_OK);
    EXPECT(cup_experts_layer_call(&other, cup_zeros(c, CUP_F32, 2, (int64_t[]){2, 4})));
    cup_experts_layer_of(&other, list, l.router, l.down, l.up, 2, NULL);
    EXPECT_CONTAINS(cup_error_text(c), "are no router [experts,width]");
    cup_error_clear(c);
    cup_experts_layer_of(&other, list, l.router, NULL, l.up, 2, NULL);
    EXPECT_CONTAINS(cup_error_text(c), "a tensor is NULL");
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Losses and slopes of a GPU beside those of the CPU, whose routes are the same for rows that are
 * no near matches. */
static void compare_places(cup_dtype dtype, const trial *t, double most)
{
    cup_context *c[] = {cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5)),
                        cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .seed = 5))};
    double found[2][5];
    if (cup_error(c[1]) != CUP_OK)
        test_skip("no GPU");
    for (int i = 0; i < 2; i++) {
        cup_parameters *list = cup_parameters_new(c[i], dtype);
        cup_experts_layer l;
        trial_layer(&l, list, t);
        cup_tensor *x = cup_require_grad(cup_cast(c[i], trial_rows(c[i], 0.7), dtype)), *cost;
        cup_tensor *y = cup_experts_layer_pass(&l, x, &cost);
        cup_tensor *sum = cup_sum(c[i], cup_cast(c[i], cup_mul(c[i], y, y), CUP_F32), NULL, 0,
                                  false);
        cup_tensor *loss = cup_add(c[i], sum, cost);
        EXPECT_INT(cup_backward(c[i], loss), CUP_OK);
        cup_tensor *slopes[] = {cup_grad(x), cup_grad(l.router), cup_grad(l.up), cup_grad(l.down)};
        found[i][4] = cup_tensor_item(loss);
        for (int k = 0; k < 4; k++)
            found[i][k] = cup_tensor_item(cup_norm(c[i], cup_cast(c[i], slopes[k], CUP_F32), NULL,
                                                   0, false));
        cup_parameters_free(list);
    }
    for (int k = 0; k < 5; k++)
        EXPECT_NEAR(found[1][k], found[0][k], most * fabs(found[0][k]));
    cup_context_free(c[0]);
    cup_context_free(c[1]);
}

TEST(gpu_experts_are_those_of_a_cpu)
{
    for (int i = 0; i < TRIALS; i++) {
        compare_places(CUP_F32, &trials[i], 2e-3);
        compare_places(CUP_BF16, &trials[i], 5e-2);
    }
}

/* Each allocation fails once, while a layer is made, called and goes backward. */
TEST(experts_without_memory)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
    bool done = false;
    for (long n = 1; !done; n += n < 40 ? 1 : 17) {
        cup_tensor *x = trial_rows(c, 0.7), *cost = NULL, *y = NULL;
        cup_experts_layer l;
        cup__memory_fail_at(n, false);
        cup_parameters *list = cup_parameters_new(c, CUP_F64);
        trial_layer(&l, list, &trials[5]);
        if (list)
            y = cup_experts_layer_pass(&l, x, &cost);
        if (y)
            cup_backward(c, cup_add(c, cup_sum(c, y, NULL, 0, false), cost));
        done = cup_error(c) == CUP_OK && y;
        cup__memory_fail_at(0, false);
        EXPECT(done || cup_error(c) == CUP_MEMORY);
        cup_error_clear(c);
        cup_parameters_free(list);
        cup_tape_clear(c);
    }
    cup_context_free(c);
}
