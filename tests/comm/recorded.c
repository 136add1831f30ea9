/* Gradients through operations between processes, against the sum of all losses, differentiated by
 * hand. */
#include <math.h>

#include "comm/together.h"
#include "test.h"

#define ROWS 3
#define COLUMNS 2

static double value(int rank, int64_t i)
{
    return sin((double)(rank * 13 + i * 5 + 1));
}

static cup_tensor *make(cup_context *c, int rank, int64_t rows, double salt)
{
    double values[64];
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        values[i] = value(rank, i) + salt;
    return cup_tensor_from(c, CUP_F64, 2, (int64_t[]){rows, COLUMNS}, values);
}

static void expect(cup_tensor *t, double (*want)(int rank, int count, int64_t i), cup_comm *m,
                   const char *what)
{
    double values[64];
    int64_t size = cup_tensor_count(t);
    if (!t || cup_tensor_read(t, values, (size_t)size * sizeof *values) != CUP_OK) {
        wrong("%s: there is none", what);
        return;
    }
    for (int64_t i = 0; i < size; i++) {
        double right = want(cup_comm_rank(m), cup_comm_count(m), i);
        if (!(fabs(values[i] - right) < 1e-12))
            wrong("%s, element %d: %.15g, not %.15g", what, (int)i, values[i], right);
    }
}

/* The loss of a process is the sum of w y^2, with weights w of its own and y its result. */
static cup_tensor *loss_of(cup_context *c, cup_comm *m, cup_tensor *y)
{
    cup_tensor *w = make(c, cup_comm_rank(m), cup_tensor_size(y, 0), 2);
    return cup_sum(c, cup_mul(c, w, cup_mul(c, y, y)), NULL, 0, false);
}

static double weight(int rank, int64_t i)
{
    return value(rank, i) + 2;
}

static double d_sum(int rank, int count, int64_t i)
{
    double y = 0, w = 0;
    (void)rank;
    for (int r = 0; r < count; r++) {
        y += value(r, i);
        w += weight(r, i);
    }
    return 2 * w * y;
}

static double d_gather(int rank, int count, int64_t i)
{
    double w = 0;
    for (int r = 0; r < count; r++)
        w += weight(r, rank * ROWS * COLUMNS + i);
    return 2 * w * value(rank, i);
}

/* Part p of the sum went to process p. */
static double d_scatter(int rank, int count, int64_t i)
{
    int64_t part = ROWS * COLUMNS;
    double y = 0;
    (void)rank;
    for (int r = 0; r < count; r++)
        y += value(r, i);
    return 2 * weight((int)(i / part), i % part) * y;
}

static double d_exchange(int rank, int count, int64_t i)
{
    int64_t part = ROWS * COLUMNS;
    (void)count;
    return 2 * weight((int)(i / part), rank * part + i % part) * value(rank, i);
}

static double d_mean(int rank, int count, int64_t i)
{
    return d_sum(rank, count, i) / count / count;
}

/* Which of the values is extreme, or the first of them. */
static int extreme(int count, int64_t i, double sign)
{
    int best = 0;
    for (int r = 1; r < count; r++)
        if (sign * value(r, i) > sign * value(best, i))
            best = r;
    return best;
}

static double weights(int count, int64_t i)
{
    double w = 0;
    for (int r = 0; r < count; r++)
        w += weight(r, i);
    return w;
}

static double d_max(int rank, int count, int64_t i)
{
    return rank == extreme(count, i, 1) ? 2 * weights(count, i) * value(rank, i) : 0;
}

static double d_min(int rank, int count, int64_t i)
{
    return rank == extreme(count, i, -1) ? 2 * weights(count, i) * value(rank, i) : 0;
}

static double d_spread(int rank, int count, int64_t i)
{
    return rank == count - 1 ? 2 * weights(count, i) * value(rank, i) : 0;
}

/* From the last process to the first one. */
static double d_pass(int rank, int count, int64_t i)
{
    return rank == count - 1 ? 2 * weight(0, i) * value(rank, i) : 0;
}

typedef cup_tensor *(*operation)(cup_comm *m, cup_tensor *x);

static cup_tensor *spread_last(cup_comm *m, cup_tensor *x)
{
    return cup_comm_spread(m, x, cup_comm_count(m) - 1);
}

static cup_tensor *pass_round(cup_comm *m, cup_tensor *x)
{
    return cup_comm_pass(m, x, cup_comm_count(m) - 1, 0);
}

static void differentiate(cup_context *c, cup_comm *m, operation call, int64_t rows,
                          double (*want)(int rank, int count, int64_t i), const char *what)
{
    cup_scope_open(c);
    cup_tensor *x = cup_require_grad(make(c, cup_comm_rank(m), rows, 0));
    cup_backward(c, loss_of(c, m, call(m, x)));
    expect(cup_grad(x), want, m, what);
    cup_scope_close(c);
}

static void once(cup_context *c, cup_comm *m, void *user)
{
    int64_t all = ROWS * cup_comm_count(m);
    (void)user;
    differentiate(c, m, cup_comm_sum, ROWS, d_sum, "sum");
    differentiate(c, m, cup_comm_gather, ROWS, d_gather, "gather");
    differentiate(c, m, cup_comm_sum_scatter, all, d_scatter, "sum_scatter");
    differentiate(c, m, cup_comm_exchange, all, d_exchange, "exchange");
    differentiate(c, m, cup_comm_mean, ROWS, d_mean, "mean");
    differentiate(c, m, cup_comm_max, ROWS, d_max, "max");
    differentiate(c, m, cup_comm_min, ROWS, d_min, "min");
    differentiate(c, m, spread_last, ROWS, d_spread, "spread");
    if (cup_comm_count(m) > 1)
        differentiate(c, m, pass_round, ROWS, d_pass, "pass");
}

TEST(comm_gradients)
{
    together(1, once, NULL);
    together(3, once, NULL);
}

/* Half the square of the gradient, differentiated: the second derivative times the gradient. */
static double d_twice(int rank, int count, int64_t i)
{
    double w = 0;
    for (int r = 0; r < count; r++)
        w += weight(r, i);
    /* Each process has the same gradient, and the sum of their losses reaches x by all of them. */
    return count * 2 * w * d_sum(rank, count, i);
}

static void twice(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    cup_tensor *x = cup_require_grad(make(c, cup_comm_rank(m), ROWS, 0)), *d = NULL;
    cup_gradients_recorded(c, loss_of(c, m, cup_comm_sum(m, x)), &x, 1, &d);
    cup_tensor *half = cup_full(c, CUP_F64, 0, NULL, 0.5);
    cup_backward(c, cup_sum(c, cup_mul(c, half, cup_mul(c, d, d)), NULL, 0, false));
    expect(cup_grad(x), d_twice, m, "second derivative");
}

TEST(comm_second_derivatives)
{
    together(2, twice, NULL);
}

/* A process's loss, of its x and of what the others give it; or half the square of its gradient. */
static cup_tensor *mixed_loss(cup_context *c, cup_comm *m, operation call, cup_tensor *x, int order)
{
    cup_tensor *loss = loss_of(c, m, cup_mul(c, call(m, x), x)), *d = NULL;
    if (order == 1)
        return loss;
    cup_gradients_recorded(c, loss, &x, 1, &d);
    cup_tensor *half = cup_full(c, CUP_F64, 0, NULL, 0.5);
    return cup_sum(c, cup_mul(c, half, cup_mul(c, d, d)), NULL, 0, false);
}

/* The sum of them all, where one element of one process is another. */
static double total_of(cup_context *c, cup_comm *m, operation call, int order, int rank,
                       int64_t element, double more)
{
    double values[ROWS * COLUMNS], total = NAN;
    cup_scope_open(c);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        values[i] = value(cup_comm_rank(m), i) + (rank == cup_comm_rank(m) && i == element) * more;
    cup_tensor *x = cup_tensor_from(c, CUP_F64, 2, (int64_t[]){ROWS, COLUMNS}, values);
    cup_tensor_read(mixed_loss(c, m, call, cup_require_grad(x), order), &total, sizeof total);
    cup_tensor *all = cup_full(c, CUP_F64, 0, NULL, total);
    cup_comm_all_reduce(m, &all, 1, CUP_COMBINE_SUM);
    cup_tensor_read(all, &total, sizeof total);
    cup_scope_close(c);
    return total;
}

static void expect_differences(cup_context *c, cup_comm *m, operation call, int order,
                               const char *what)
{
    const double step = 1e-5;
    double d[ROWS * COLUMNS] = {0};
    cup_scope_open(c);
    cup_tensor *x = cup_require_grad(make(c, cup_comm_rank(m), ROWS, 0));
    cup_backward(c, mixed_loss(c, m, call, x, order));
    cup_tensor_read(cup_grad(x), d, sizeof d);
    cup_scope_close(c);
    for (int r = 0; r < cup_comm_count(m); r++)
        for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
            double right = (total_of(c, m, call, order, r, i, step) -
                            total_of(c, m, call, order, r, i, -step)) /
                           (2 * step);
            if (r == cup_comm_rank(m) && !(fabs(d[i] - right) < 1e-6 * (1 + fabs(right))))
                wrong("%s, order %d, element %d: %.12g, not %.12g", what, order, (int)i, d[i],
                      right);
        }
}

static void by_differences(cup_context *c, cup_comm *m, void *user)
{
    static const operation calls[] = {cup_comm_mean, cup_comm_max, cup_comm_min, spread_last,
                                      pass_round};
    static const char *const names[] = {"mean", "max", "min", "spread", "pass"};
    (void)user;
    for (int k = 0; k < 5; k++)
        for (int order = 1; order <= 2; order++)
            expect_differences(c, m, calls[k], order, names[k]);
}

TEST(comm_gradients_are_those_of_differences)
{
    together(2, by_differences, NULL);
    together(3, by_differences, NULL);
}

/* Of what all have alike each gets its share of the gradient. */
static void share_ties(cup_context *c, cup_comm *m, void *user)
{
    double d[ROWS * COLUMNS];
    (void)user;
    cup_tensor *x = cup_require_grad(make(c, 0, ROWS, 0));
    cup_backward(c, cup_sum(c, cup_comm_max(m, x), NULL, 0, false));
    cup_tensor_read(cup_grad(x), d, sizeof d);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (d[i] != 1)
            wrong("element %d: %g of a gradient of %d that %d share", i, d[i], cup_comm_count(m),
                  cup_comm_count(m));
}

TEST(comm_extremes_share_their_gradient)
{
    together(4, share_ties, NULL);
}

static void refuse(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    if (cup_comm_pass(m, make(c, 0, 3, 0), 1, 1) || cup_error(c) != CUP_ARGUMENT)
        wrong("a tensor goes from a process to itself");
    cup_error_clear(c);
    if (cup_comm_spread(m, make(c, 0, 3, 0), 2) || cup_error(c) != CUP_ARGUMENT)
        wrong("a third process of two has a tensor");
    cup_error_clear(c);
    if (cup_comm_mean(m, cup_full(c, CUP_I32, 0, NULL, 1)) || cup_error(c) != CUP_DTYPE)
        wrong("whole numbers have a mean");
    cup_error_clear(c);
    if (cup_comm_sum_scatter(m, make(c, 0, 3, 0)) || cup_error(c) != CUP_SHAPE)
        wrong("3 rows are scattered over 2");
    cup_error_clear(c);
    if (cup_comm_gather(m, cup_full(c, CUP_F32, 0, NULL, 1)) || cup_error(c) != CUP_SHAPE)
        wrong("a scalar is gathered");
    cup_error_clear(c);
}

TEST(comm_gradients_refuse)
{
    together(2, refuse, NULL);
}

/* Batchnorm of parts of a batch, of unlike sizes, beside that of the whole. */

enum { CHANNELS = 3, PLACES = 4 };

static cup_tensor *normed(cup_comm *m, cup_parameters *list,
                          cup_batchnorm_layer *layer, cup_tensor *x)
{
    cup_parameters_together(list, m);
    cup_batchnorm_layer_new(layer, list, m ? "parts" : "whole", CHANNELS, NULL);
    cup_tensor_write(layer->weight, (double[]){0.5, 1.5, -1}, CHANNELS * sizeof(double));
    cup_require_grad(x);
    return cup_batchnorm_layer_call(layer, x);
}

static void expect_equal(cup_tensor *a, cup_tensor *b, const char *what)
{
    double x[64], y[64];
    int64_t size = cup_tensor_count(a);
    if (!a || size != cup_tensor_count(b) ||
        cup_tensor_read(a, x, (size_t)size * sizeof *x) != CUP_OK ||
        cup_tensor_read(b, y, (size_t)size * sizeof *y) != CUP_OK) {
        wrong("%s: there is none", what);
        return;
    }
    for (int64_t i = 0; i < size; i++)
        if (!(fabs(x[i] - y[i]) < 1e-10))
            wrong("%s, element %d: %.15g, not %.15g", what, (int)i, x[i], y[i]);
}

static cup_tensor *part_of(cup_context *c, cup_tensor *all, int rank)
{
    return cup_copy(c, cup_slice(c, all, (int64_t[]){rank * 2, 0, 0}, 3,
                                 (int64_t[]){rank ? 3 : 2, -1, -1}, 3));
}

static void norm_parts(cup_context *c, cup_comm *m, void *user)
{
    enum { ROWS_ALL = 5 };
    int rank = cup_comm_rank(m);
    double values[ROWS_ALL * CHANNELS * PLACES];
    (void)user;
    for (int i = 0; i < ROWS_ALL * CHANNELS * PLACES; i++)
        values[i] = 3 + sin(i * 1.7) * (1 + i % 3);
    const int64_t shape[] = {ROWS_ALL, CHANNELS, PLACES};
    cup_tensor *x = cup_tensor_from(c, CUP_F64, 3, shape, values), *part = part_of(c, x, rank);
    cup_tensor *dx[2][2], *outputs[2];
    cup_batchnorm_layer layer[2];
    cup_parameters *list = cup_parameters_new(c, CUP_F64);
    for (int i = 0; i < 2; i++) {
        cup_tensor *own = i ? part : x, *y = normed(i ? m : NULL, list, &layer[i], own);
        cup_tensor *loss = cup_sum(c, cup_mul(c, cup_mul(c, y, y), y), NULL, 0, false);
        outputs[i] = cup_detach(y);
        cup_gradients(c, loss, (cup_tensor *[]){own, layer[i].weight}, 2, dx[i]);
    }
    cup_comm_all_reduce(m, &dx[1][1], 1, CUP_COMBINE_SUM);
    expect_equal(outputs[1], part_of(c, outputs[0], rank), "y");
    expect_equal(dx[1][0], part_of(c, dx[0][0], rank), "dx");
    expect_equal(dx[1][1], dx[0][1], "dweight");
    expect_equal(layer[1].running_mean, layer[0].running_mean, "the running mean");
    expect_equal(layer[1].running_var, layer[0].running_var, "the running variance");
    cup_parameters_free(list);
}

TEST(batchnorm_of_parts_is_that_of_the_whole)
{
    together(2, norm_parts, NULL);
}
