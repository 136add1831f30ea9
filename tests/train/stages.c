/* States, gradients and parameters that are split over processes: the losses of one process, and
 * less memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "test.h"
#include "train/layered.h"

typedef struct outcome {
    double loss[LAYERED_STEPS], norm[LAYERED_STEPS];
    int64_t most; /* bytes in use */
} outcome;

static void run_stage(cup_context *c, cup_comm *comm, layered_how how, outcome *out)
{
    layered m;
    int64_t count = 0;
    *out = (outcome){{0}, {0}, 0};
    cup_loop *loop = layered_make(&m, c, comm, &how);
    cup_loop_run(loop, NULL);
    const cup_training_point *points = cup_loop_points(loop, &count);
    if (count != LAYERED_STEPS)
        wrong("%d points: %s", (int)count, cup_error_text(c));
    for (int64_t i = 0; i < count && i < LAYERED_STEPS; i++) {
        out->loss[i] = points[i].loss;
        out->norm[i] = points[i].norm;
    }
    out->most = m.most;
    layered_end(&m, loop);
}

static void expect_same(int stage, const outcome *a, const outcome *b, double most)
{
    for (int i = 0; i < LAYERED_STEPS; i++)
        if (!(fabs(a->loss[i] - b->loss[i]) <= most) ||
            !(fabs(a->norm[i] - b->norm[i]) <= (most > 0 ? most : 1e-6)))
            wrong("stage %d, step %d: loss %.9g and %.9g, norm %.9g and %.9g", stage, i, a->loss[i],
                  b->loss[i], a->norm[i], b->norm[i]);
}

/* Of one batch each process has, the sums of gradients are those without splitting, bit for bit; of
 * several they are made in another order. */
static void run_stages(cup_context *c, cup_comm *comm, void *user)
{
    static const char *const buckets[] = {"0", "1", "32"};
    const layered_how *how = user;
    bool single = cup_comm_count(comm) == LAYERED_BATCHES && how->clip == 0;
    outcome one, none, split;
    layered_how changed = *how;
    run_stage(c, NULL, changed, &one);
    run_stage(c, comm, changed, &none);
    expect_same(0, &one, &none, 2e-6);
    for (int i = 0; i < 3; i++) {
        setenv("CUP_COMM_BUCKET", buckets[i], 1);
        for (changed.stage = 1; changed.stage <= 3; changed.stage++) {
            run_stage(c, comm, changed, &split);
            expect_same(changed.stage, &one, &split, 2e-6);
            expect_same(changed.stage, &none, &split,
                        single || (changed.stage == 1 && i == 2) ? 0 : 2e-6);
        }
    }
}

/* By our own products, whose sums have one order on every processor: a library's differ with it. */
TEST(stages_are_the_run_of_one)
{
    setenv("CUP_BLAS", "off", 1);
    together(2, run_stages, &(layered_how){0});
    together(4, run_stages, &(layered_how){0});
    together(4, run_stages, &(layered_how){.clip = 0.5});
    together(1, run_stages, &(layered_how){.clip = 0.5});
}

/* Weights, gradients, states: P bytes of weights are on each of two processes 4 P, 3 P, 2.5 P and
 * at stage 3 2 P and what is brought. */
static void count_memory(cup_context *c, cup_comm *comm, void *user)
{
    const int64_t width = 512, weights = 4 * (LAYERED_LAYERS * (width + 1) + 26) * width;
    int64_t most[4];
    outcome out;
    (void)user;
    setenv("CUP_COMM_BUCKET", "1", 1);
    for (int stage = 0; stage < 4; stage++) {
        run_stage(c, comm, (layered_how){.width = width, .stage = stage}, &out);
        most[stage] = out.most;
    }
    if (most[0] < 4 * weights || most[1] > most[0] - 9 * weights / 10 ||
        most[2] > most[1] - 4 * weights / 10 || most[3] > most[2] - 2 * weights / 10)
        wrong("%lld bytes of weights, and in use %lld, %lld, %lld, %lld", (long long)weights,
              (long long)most[0], (long long)most[1], (long long)most[2], (long long)most[3]);
}

TEST(stages_take_less_memory)
{
    together(2, count_memory, NULL);
}

/* Who needs values that another process keeps is told so. */
static void read_elsewhere(cup_context *c, cup_comm *comm, void *user)
{
    layered m;
    float weight[16 * 16];
    int refused = 0;
    (void)user;
    cup_loop *loop = layered_make(&m, c, comm, &(layered_how){.stage = 3});
    cup_loop_run(loop, NULL);
    for (int i = 0; i < LAYERED_LAYERS; i++)
        if (cup_tensor_read(m.layers[i].weight, weight, sizeof weight) != CUP_OK) {
            if (!strstr(cup_error_text(c), "another process keeps the values"))
                wrong("%s", cup_error_text(c));
            cup_error_clear(c);
            refused++;
        }
    if (refused == 0 || refused == LAYERED_LAYERS)
        wrong("%d of %d are refused", refused, LAYERED_LAYERS);
    if (layered_make(&(layered){0}, c, comm, &(layered_how){.stage = 3}) ||
        !strstr(cup_error_text(c), "another one of this context"))
        wrong("a second one: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_loop_free(loop);
    /* Behind the loop nobody brings them. */
    refused = 0;
    for (int i = 0; i < LAYERED_LAYERS; i++) {
        refused += !cup_copy(c, m.layers[i].weight);
        cup_error_clear(c);
    }
    if (refused == 0 || refused == LAYERED_LAYERS)
        wrong("%d of %d copies are refused", refused, LAYERED_LAYERS);
    layered_end(&m, NULL);
}

TEST(stages_3_tells_who_has_values)
{
    together(2, read_elsewhere, NULL);
}

#define ROWS 36

/* A program's own steps, without a loop: each process brings the gradients of its loss. */
static cup_status own_steps(cup_context *c, cup_comm *comm, int stage, float losses[4])
{
    cup_linear_layer layers[4];
    static const char *const names[] = {"a", "b", "c", "d"};
    int count = cup_comm_count(comm), rank = cup_comm_rank(comm);
    float x[ROWS * 8];
    for (int i = 0; i < ROWS * 8; i++)
        x[i] = (float)sin((double)i);
    cup_seed(c, 3);
    cup_scope_open(c);
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    for (int i = 0; i < 4; i++)
        cup_linear_layer_new(&layers[i], list, names[i], 8, 8, NULL);
    cup_optimizer *o = cup_optimizer_of(
        list, CUP_OPTIONS(cup_optimizer_options, .split = comm, .stage = stage, .clip = 0.1));
    cup_optimizer_set(o, 0.05, 1.0 / ROWS);
    for (int step = 0; step < 4 && o; step++) {
        cup_tensor *sum = cup_keep(cup_full(c, CUP_F32, 0, NULL, 0));
        for (int row = rank; row < ROWS; row += count) {
            cup_scope_open(c);
            cup_tensor *h = cup_tensor_from(c, CUP_F32, 2, (int64_t[]){1, 8}, x + 8 * row);
            for (int i = 0; i < 4; i++)
                h = cup_tanh(c, cup_linear_layer_call(&layers[i], h));
            h = cup_sum(c, cup_mul(c, h, h), NULL, 0, false);
            float one, all;
            cup_tensor_read(h, &one, sizeof one);
            cup_tensor_read(sum, &all, sizeof all);
            all += one;
            cup_tensor_write(sum, &all, sizeof all);
            cup_backward(c, h);
            cup_scope_return(c, NULL);
        }
        if (comm)
            cup_comm_all_reduce(comm, &sum, 1, CUP_COMBINE_SUM);
        cup_tensor_read(sum, &losses[step], sizeof(float));
        cup_optimizer_step(o);
        cup_optimizer_clear(o);
        cup_tensor_free(sum);
    }
    cup_optimizer_free(o);
    cup_parameters_free(list);
    cup_scope_return(c, NULL);
    return cup_error(c);
}

static void step_by_step(cup_context *c, cup_comm *comm, void *user)
{
    float one[4], many[4];
    (void)user;
    setenv("CUP_COMM_BUCKET", "0", 1);
    own_steps(c, NULL, 0, one);
    for (int stage = 2; stage < 4; stage++) {
        own_steps(c, comm, stage, many);
        for (int i = 0; i < 4; i++)
            if (!(fabsf(one[i] - many[i]) < 1e-4f))
                wrong("stage %d, step %d: %.8g and %.8g", stage, i, (double)one[i],
                      (double)many[i]);
    }
    if (!(one[3] < one[0]))
        wrong("nothing is learned: %g to %g", (double)one[0], (double)one[3]);
    if (own_steps(c, comm, 4, many) != CUP_ARGUMENT ||
        !strstr(cup_error_text(c), "there is no stage 4"))
        wrong("stage 4: %s", cup_error_text(c));
    cup_error_clear(c);
}

TEST(stages_of_a_programs_own_steps)
{
    together(2, step_by_step, NULL);
    /* More processes than parameters: the last ones have none. */
    together(4, step_by_step, NULL);
    together(9, step_by_step, NULL);
}

/* Convolutions, attention and norms: parameters of any layer come and go, views of them, too. */
typedef struct mixed {
    cup_parameters *list;
    cup_conv2d_layer conv;
    cup_attention_layer attention;
    cup_rmsnorm_layer norm;
    cup_linear_layer last;
    cup_tensor *x, *turned;
} mixed;

static cup_tensor *mixed_loss(cup_context *c, int64_t batch, void *user)
{
    mixed *m = user;
    cup_tensor *h = cup_slice(c, m->x, (int64_t[]){batch * 2, 0, 0, 0}, 4,
                              (int64_t[]){2, -1, -1, -1}, 4);
    h = cup_relu(c, cup_conv2d_layer_call(&m->conv, h));
    h = cup_reshape(c, h, 3, (int64_t[]){2, 8, 16});
    h = cup_attention_layer_call(&m->attention, cup_rmsnorm_layer_call(&m->norm, h));
    h = cup_matmul(c, cup_linear_layer_call(&m->last, h), m->turned, false, false);
    return cup_mean(c, cup_mul(c, h, h), NULL, 0, false);
}

static void run_mixed(cup_context *c, cup_comm *comm, int stage, double losses[6])
{
    mixed m = {0};
    float x[8 * 16];
    int64_t count = 0;
    for (int i = 0; i < 8 * 16; i++)
        x[i] = (float)cos((double)i);
    cup_seed(c, 7);
    m.list = cup_parameters_new(c, CUP_F32);
    cup_conv2d_layer_new(&m.conv, m.list, "conv", 1, 8, (int64_t[]){3, 3}, 2,
                         CUP_OPTIONS(cup_conv2d_layer_options, .same = true));
    cup_attention_layer_new(&m.attention, m.list, "attention", 16, 2, NULL);
    cup_rmsnorm_layer_new(&m.norm, m.list, "norm", 16, NULL);
    cup_linear_layer_new(&m.last, m.list, "last", 16, 16, NULL);
    /* A view that is made once, before its memory goes. */
    cup_grad_recording(c, false);
    m.turned = cup_keep(cup_permute(c, m.last.weight, (int64_t[]){1, 0}, 2));
    cup_grad_recording(c, true);
    m.x = cup_keep(cup_tensor_from(c, CUP_F32, 4, (int64_t[]){8, 1, 4, 4}, x));
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.loss = mixed_loss;
    calls.user = &m;
    cup_loop *loop = cup_loop_new(
        m.list, &calls,
        CUP_OPTIONS(cup_loop_options, .accumulate = 4, .comm = comm,
                    .optimizer = {.split = stage ? comm : NULL, .stage = stage},
                    .schedule = {.high = 0.01, .steps = 6}));
    cup_loop_run(loop, NULL);
    const cup_training_point *points = cup_loop_points(loop, &count);
    for (int64_t i = 0; i < 6; i++)
        losses[i] = i < count ? points[i].loss : NAN;
    if (cup_error(c))
        wrong("stage %d: %s", stage, cup_error_text(c));
    cup_loop_free(loop);
    cup_tensor_free(m.turned);
    cup_parameters_free(m.list);
}

static void mix_layers(cup_context *c, cup_comm *comm, void *user)
{
    double one[6], split[6];
    (void)user;
    setenv("CUP_COMM_BUCKET", "0", 1);
    run_mixed(c, NULL, 0, one);
    for (int stage = 1; stage < 4; stage++) {
        run_mixed(c, comm, stage, split);
        for (int i = 0; i < 6; i++)
            if (!(fabs(one[i] - split[i]) < 1e-6))
                wrong("stage %d, step %d: %.9g and %.9g", stage, i, one[i], split[i]);
    }
}

TEST(stages_of_any_layers)
{
    together(2, mix_layers, NULL);
    together(4, mix_layers, NULL);
}
