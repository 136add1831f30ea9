/* What a run's own calls do wrong: none closes scopes of others, and none runs the run again. */
#include "cupola/cupola.h"
#include "test.h"

typedef enum wrong { NOTHING, CLOSES, OPENS, STOPS_RECORDING, RUNS_AGAIN, WRONGS } wrong;

typedef struct model {
    cup_context *c;
    cup_tensor *w;
    cup_loop *loop;
    wrong how;
    int where; /* 0: in batch, 1: in loss, 2: in evaluate, 3: in a hook */
} model;

static void do_wrong(model *m, int where)
{
    if (m->where != where)
        return;
    if (m->how == CLOSES)
        cup_scope_close(m->c);
    if (m->how == OPENS)
        cup_scope_open(m->c);
    if (m->how == STOPS_RECORDING)
        cup_grad_recording(m->c, false);
    if (m->how == RUNS_AGAIN)
        cup_loop_run(m->loop, NULL);
}

static cup_status batch(cup_context *c, int64_t step, void *user)
{
    (void)step;
    do_wrong(user, 0);
    return cup_error(c);
}

static cup_tensor *loss(cup_context *c, int64_t number, void *user)
{
    const model *m = user;
    cup_tensor *y = cup_mean(c, cup_square(c, m->w), NULL, 0, false);
    (void)number;
    do_wrong(user, 1);
    return y;
}

static cup_status evaluate(cup_context *c, double *value, void *user)
{
    do_wrong(user, 2);
    *value = 1;
    return cup_error(c);
}

static void point(const cup_training_point *p, void *user)
{
    (void)p;
    do_wrong(user, 3);
}

/* Scopes of the program's own stay whatever the call does. */
static void expect_end(wrong how, int where)
{
    model m = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"))};
    cup_scope_open(m.c);
    cup_tensor *own = cup_ones(m.c, CUP_F32, 1, (int64_t[]){2});
    cup_parameters *list = cup_parameters_new(m.c, CUP_F32);
    m.w = cup_parameter_new(list, "w", 1, (int64_t[]){4}, NULL);
    const cup_loop_calls calls = {sizeof calls, .batch = batch, .loss = loss,
                                  .evaluate = evaluate, .user = &m};
    m.loop = cup_loop_new(list, &calls,
                          CUP_OPTIONS(cup_loop_options, .schedule = {.high = 0.1, .steps = 3}));
    m.how = how;
    m.where = where;
    const cup_training_hooks hooks = {sizeof hooks, .point = point, .user = &m};
    cup_status status = cup_loop_run(m.loop, &hooks);
    bool fine = how == STOPS_RECORDING;
    EXPECT_INT(status, fine ? CUP_OK : CUP_STATE);
    if (!fine)
        EXPECT_CONTAINS(cup_error_text(m.c),
                        how == RUNS_AGAIN ? "none of its calls" : "the scopes it opens, and no");
    cup_error_clear(m.c);
    m.how = NOTHING;
    EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_OK);
    EXPECT_INT(cup_loop_steps(m.loop), 3);
    EXPECT_NEAR(cup_tensor_item(cup_sum(m.c, own, NULL, 0, false)), 2, 0);
    EXPECT(cup_grad_recording(m.c, true));
    cup_loop_free(m.loop);
    cup_parameters_free(list);
    cup_context_free(m.c);
}

TEST(loop_whose_calls_are_wrong)
{
    for (int where = 0; where < 3; where++)
        for (int how = CLOSES; how < WRONGS; how++)
            expect_end((wrong)how, where);
    expect_end(RUNS_AGAIN, 3);
}
