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

TEST(stages_are_the_run_of_one)
{
    together(2, run_stages, &(layered_how){0});
    together(4, run_stages, &(layered_how){0});
    together(4, run_stages, &(layered_how){.clip = 0.5});
    /* More processes than some have parameters for. */
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
