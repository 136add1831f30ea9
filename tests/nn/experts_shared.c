/* Layers of experts that processes share out, against the same whole: what they give, and their
 * gradients. */
#include <math.h>
#include <string.h>

#include "comm/together.h"
#include "cupola/cupola.h"
#include "nn/experts_trials.h"
#include "test.h"

/* Each process has a part of the experts and its own rows, with one of each dropped or none. */
static void share(cup_context *c, cup_comm *m, void *user)
{
    const trial *t = user;
    int count = cup_comm_count(m), rank = cup_comm_rank(m), rows = ROWS / 2;
    cup_parameters *list = cup_parameters_new(c, CUP_F64), *all = cup_parameters_new(c, CUP_F64);
    cup_experts_layer part, whole;
    cup_parameters_experts(list, m);
    trial_layer(&part, list, t);
    trial_layer(&whole, all, t);
    cup_tensor *x = trial_rows(c, 0.7 + 0.1 * (rank / 2));
    x = cup_slice(c, x, (int64_t[]){rank % 2, 0, 0}, 3, (int64_t[]){1, -1, -1}, 3);
    cup_tensor *own = cup_require_grad(cup_copy(c, x)), *same = cup_require_grad(cup_copy(c, x));
    cup_tensor *cost, *owed, *y = cup_experts_layer_pass(&part, own, &cost);
    cup_tensor *z = cup_experts_layer_pass(&whole, same, &owed);
    cup_tensor *pairs[][2] = {{y, z}, {cost, owed}, {NULL}, {NULL}, {NULL}, {NULL}};
    cup_tensor *loss = cup_sum(c, cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z)), NULL, 0, false);
    cup_backward(c, cup_add(c, loss, cup_add(c, cost, owed)));
    cup_grad_recording(c, false);
    int64_t here = EXPERTS / count, starts[] = {rank * here, 0, 0}, sizes[] = {here, -1, -1};
    pairs[2][0] = cup_grad(own), pairs[2][1] = cup_grad(same);
    pairs[3][0] = cup_grad(part.router), pairs[3][1] = cup_grad(whole.router);
    pairs[4][0] = cup_grad(part.up), pairs[5][0] = cup_grad(part.down);
    pairs[4][1] = cup_slice(c, cup_comm_sum(m, cup_grad(whole.up)), starts, 3, sizes, 3);
    pairs[5][1] = cup_slice(c, cup_comm_sum(m, cup_grad(whole.down)), starts, 3, sizes, 3);
    for (int i = 0; i < 6; i++) {
        cup_tensor *d = cup_sub(c, pairs[i][0], pairs[i][1]);
        double far = d ? cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) : NAN;
        if (!(far < 1e-11))
            wrong("%d rows on %d, number %d: %g away; %s", rows, count, i, far,
                  cup_error_text(c));
    }
    cup_parameters_free(list);
    cup_parameters_free(all);
}

TEST(experts_shared_out_are_those_of_one)
{
    for (int i = 0; i < TRIALS; i++)
        together(2, share, (void *)(uintptr_t)&trials[i]);
    together(4, share, (void *)(uintptr_t)&trials[2]);
    together(4, share, (void *)(uintptr_t)&trials[5]);
}

static double distance(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *d = cup_sub(c, a, b);
    return d ? cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) : NAN;
}

/* The places [from, from + size) along an axis of the halves of a tensor, side by side. */
static cup_tensor *stretches(cup_context *c, cup_tensor *t, int axis, int halves, int rank,
                             int count)
{
    cup_tensor *own[2];
    int64_t size = HIDDEN / count;
    for (int i = 0; i < halves; i++) {
        int64_t starts[3] = {0}, sizes[] = {-1, -1, -1};
        starts[axis] = i * HIDDEN + rank * size;
        sizes[axis] = size;
        own[i] = cup_slice(c, t, starts, 3, sizes, 3);
    }
    return cup_concat(c, own, halves, axis);
}

/* All have the same rows and a part of each expert. The gradients are those of the sum of all
 * losses: of what all have they are that in sum. */
static void split(cup_context *c, cup_comm *m, void *user)
{
    const trial *t = user;
    int count = cup_comm_count(m), rank = cup_comm_rank(m), halves = t->gated ? 2 : 1;
    cup_parameters *list = cup_parameters_new(c, CUP_F64), *all = cup_parameters_new(c, CUP_F64);
    cup_experts_layer part, whole;
    cup_parameters_among(list, m);
    trial_layer(&part, list, t);
    trial_layer(&whole, all, t);
    cup_tensor *own = cup_require_grad(cup_copy(c, trial_rows(c, 0.7)));
    cup_tensor *same = cup_require_grad(cup_copy(c, trial_rows(c, 0.7)));
    cup_tensor *cost, *owed, *y = cup_experts_layer_pass(&part, own, &cost);
    cup_tensor *z = cup_experts_layer_pass(&whole, same, &owed);
    cup_tensor *loss = cup_sum(c, cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z)), NULL, 0, false);
    cup_backward(c, cup_add(c, loss, cup_add(c, cost, owed)));
    cup_grad_recording(c, false);
    cup_tensor *pairs[][2] = {
        {y, z},
        {cost, owed},
        {cup_comm_mean(m, cup_grad(own)), cup_grad(same)},
        {cup_comm_mean(m, cup_grad(part.router)), cup_grad(whole.router)},
        {cup_scale(c, cup_grad(part.up), 1.0 / count),
         stretches(c, cup_grad(whole.up), 1, halves, rank, count)},
        {cup_scale(c, cup_grad(part.down), 1.0 / count),
         stretches(c, cup_grad(whole.down), 2, 1, rank, count)},
        {part.up, stretches(c, whole.up, 1, halves, rank, count)},
        {part.down, stretches(c, whole.down, 2, 1, rank, count)}};
    for (int i = 0; i < 8; i++)
        if (!(distance(c, pairs[i][0], pairs[i][1]) < 1e-11))
            wrong("parts of %d, number %d: %g away; %s", count, i,
                  distance(c, pairs[i][0], pairs[i][1]), cup_error_text(c));
    cup_parameters_free(list);
    cup_parameters_free(all);
}

TEST(experts_in_parts_are_those_of_one)
{
    for (int i = 0; i < TRIALS; i++)
        together(2, split, (void *)(uintptr_t)&trials[i]);
    together(4, split, (void *)(uintptr_t)&trials[2]);
}

/* Two and two have the same rows, of which each sends a half to the experts that all share out. */
static void send_halves(cup_context *c, cup_comm *m, void *user)
{
    const trial *t = user;
    int count = cup_comm_count(m), rank = cup_comm_rank(m);
    cup_comm *among = cup_comm_split_new(m, rank / 2);
    cup_parameters *list = cup_parameters_new(c, CUP_F64), *all = cup_parameters_new(c, CUP_F64);
    cup_experts_layer part, whole;
    cup_parameters_among(list, among);
    cup_parameters_experts(list, m);
    trial_layer(&part, list, t);
    trial_layer(&whole, all, t);
    cup_tensor *x = trial_rows(c, 0.7 + 0.1 * (rank / 2));
    cup_tensor *own = cup_require_grad(cup_copy(c, x)), *same = cup_require_grad(cup_copy(c, x));
    cup_tensor *cost, *owed, *y = cup_experts_layer_pass(&part, own, &cost);
    cup_tensor *z = cup_experts_layer_pass(&whole, same, &owed);
    cup_tensor *loss = cup_sum(c, cup_add(c, cup_mul(c, y, y), cup_mul(c, z, z)), NULL, 0, false);
    cup_backward(c, cup_add(c, loss, cup_add(c, cost, owed)));
    cup_grad_recording(c, false);
    int64_t here = EXPERTS / count, starts[] = {rank * here, 0, 0}, sizes[] = {here, -1, -1};
    cup_tensor *up = cup_comm_sum(m, cup_grad(whole.up));
    cup_tensor *down = cup_comm_sum(m, cup_grad(whole.down));
    cup_tensor *pairs[][2] = {
        {y, z},
        {cost, owed},
        {cup_comm_mean(among, cup_grad(own)), cup_grad(same)},
        {cup_comm_sum(m, cup_grad(part.router)), cup_comm_sum(m, cup_grad(whole.router))},
        {cup_grad(part.up), cup_slice(c, up, starts, 3, sizes, 3)},
        {cup_grad(part.down), cup_slice(c, down, starts, 3, sizes, 3)}};
    for (int i = 0; i < 6; i++)
        if (!(distance(c, pairs[i][0], pairs[i][1]) < 1e-11))
            wrong("halves by %d, number %d: %g away; %s", count, i,
                  distance(c, pairs[i][0], pairs[i][1]), cup_error_text(c));
    cup_parameters_free(list);
    cup_parameters_free(all);
    cup_comm_free(among);
}

static void refuse_odd(cup_context *c, cup_comm *m, void *user)
{
    const trial t = {.each = 1};
    cup_parameters *list = cup_parameters_new(c, CUP_F64);
    cup_experts_layer part;
    (void)user;
    cup_parameters_among(list, m);
    cup_parameters_experts(list, m);
    trial_layer(&part, list, &t);
    cup_tensor *x = trial_rows(c, 0.7);
    x = cup_slice(c, x, (int64_t[]){0, 0, 0}, 3, (int64_t[]){1, 7, -1}, 3);
    if (cup_experts_layer_call(&part, x) || cup_error(c) != CUP_SHAPE ||
        !strstr(cup_error_text(c), "7 rows, which 2 processes have, are no equal parts"))
        wrong("odd rows: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_parameters_free(list);
}

TEST(experts_beside_parts_are_those_of_one)
{
    for (int i = 0; i < TRIALS; i++)
        together(4, send_halves, (void *)(uintptr_t)&trials[i]);
    together(2, send_halves, (void *)(uintptr_t)&trials[5]);
    together(2, refuse_odd, NULL);
}

/* Experts of which two and two are nearly as probable, and a process that rounds otherwise: all go
 * by the first. */
static void choose_nearly(cup_context *c, cup_comm *m, void *user)
{
    const trial t = {.each = 2};
    double router[EXPERTS * WIDTH];
    bool other = cup_comm_rank(m) > 0;
    cup_parameters *list = cup_parameters_new(c, CUP_F64), *all = cup_parameters_new(c, CUP_F64);
    cup_experts_layer part, whole;
    (void)user;
    cup_parameters_among(list, m);
    trial_layer(&part, list, &t);
    trial_layer(&whole, all, &t);
    for (int i = 0; i < EXPERTS * WIDTH; i++)
        router[i] = trial_wave(i % WIDTH, 0.3) + 1e-13 * trial_wave(i, other ? 2.1 : 0.7);
    cup_tensor_write(part.router, router, sizeof router);
    for (int i = 0; i < EXPERTS * WIDTH; i++)
        router[i] = trial_wave(i % WIDTH, 0.3) + 1e-13 * trial_wave(i, 0.7);
    cup_tensor_write(whole.router, router, sizeof router);
    cup_tensor *x = trial_rows(c, 0.7), *y = cup_experts_layer_call(&part, x);
    double far = distance(c, y, cup_experts_layer_call(&whole, x));
    if (!(far < 1e-11))
        wrong("parts of other experts: %g away; %s", far, cup_error_text(c));
    cup_parameters_free(list);
    cup_parameters_free(all);
}

TEST(experts_in_parts_are_chosen_by_one)
{
    together(2, choose_nearly, NULL);
}

static void refuse_shared(cup_context *c, cup_comm *m, void *user)
{
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_experts_layer l;
    (void)user;
    cup_parameters_experts(list, m);
    if (cup_parameters_experts_comm(list) != m || cup_parameters_comm(list))
        wrong("the list has other communicators");
    cup_experts_layer_new(&l, list, "moe", 4, 4, 3, 1, NULL);
    if (!strstr(cup_error_text(c), "3 experts cannot be shared out equally to 2 processes"))
        wrong("not refused: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_parameter_new(list, "own", 1, (int64_t[]){3},
                      CUP_OPTIONS(cup_parameter_options, .part = CUP_PART_EXPERTS));
    if (!strstr(cup_error_text(c), "own: 3 rows cannot be shared out equally to 2 processes"))
        wrong("not refused: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_experts_layer_new(&l, list, "other", 4, 4, 2, 1, NULL);
    if (cup_parameters_experts(list, NULL) != CUP_STATE)
        wrong("shared out behind what was made");
    cup_error_clear(c);
    if (cup_parameters_save(list, "nowhere") != CUP_UNSUPPORTED)
        wrong("a part was saved");
    cup_error_clear(c);
    cup_parameters_free(list);
    list = cup_parameters_new(c, CUP_F32);
    cup_parameters_among(list, m);
    cup_experts_layer_new(&l, list, "moe", 4, 5, 3, 1, NULL);
    if (!strstr(cup_error_text(c), "moe.up: 5 rows cannot be shared out equally to 2 processes"))
        wrong("not refused: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_parameters_free(list);
}

/* Of three, two share out a model. */
static void refuse_groups(cup_context *c, cup_comm *m, void *user)
{
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_comm *among = cup_comm_split_new(m, cup_comm_rank(m) / 2);
    bool two = cup_comm_count(among) == 2;
    (void)user;
    cup_parameters_experts(list, m);
    if (cup_parameters_among(list, among) != (two ? CUP_UNSUPPORTED : CUP_OK) ||
        (two && !strstr(cup_error_text(c), "3 processes share out a list's experts and 2 all")))
        wrong("groups that are not whole: %s", cup_error_text(c));
    cup_error_clear(c);
    cup_parameters_free(list);
    cup_comm_free(among);
}

TEST(experts_that_cannot_be_shared_are_refused)
{
    together(2, refuse_shared, NULL);
    together(3, refuse_groups, NULL);
}
