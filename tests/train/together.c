/* Loops of several processes: the run of one, whatever the model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/together.h"
#include "test.h"

#define ROWS 8
#define BATCHES 4
#define STEPS 20

typedef struct model {
    cup_parameters *list;
    cup_linear_layer first, last;
    cup_dropout_layer dropout;
    cup_tensor *x, *y;
    cup_expr *square;
    int64_t check_every;
    bool changes; /* a weight behind step 8 */
} model;

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    model *m = user;
    float x[BATCHES * ROWS * 4], y[BATCHES * ROWS];
    (void)c;
    if (m->changes && step == 9)
        CUP_TRY(cup_tensor_write(m->last.bias, &(float){7}, sizeof(float)));
    for (int i = 0; i < BATCHES * ROWS; i++) {
        y[i] = 0;
        for (int k = 0; k < 4; k++) {
            x[i * 4 + k] = (float)sin((double)(i * 31 + k * 7 + step * 17));
            y[i] += x[i * 4 + k] * (float)(k - 1);
        }
    }
    CUP_TRY(cup_tensor_write(m->x, x, sizeof x));
    return cup_tensor_write(m->y, y, sizeof y);
}

static cup_tensor *rows_of(cup_context *c, cup_tensor *all, int64_t batch)
{
    return cup_slice(c, all, (int64_t[]){batch * ROWS, 0}, 2, (int64_t[]){ROWS, -1}, 2);
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    model *m = user;
    cup_tensor *h = cup_relu(c, cup_linear_layer_call(&m->first, rows_of(c, m->x, batch)));
    h = cup_linear_layer_call(&m->last, cup_dropout_layer_call(&m->dropout, h));
    h = cup_sub(c, h, rows_of(c, m->y, batch));
    h = cup_expr_call(m->square, &h, NULL, NULL);
    return cup_mean(c, h, NULL, 0, false);
}

static cup_loop *make(model *m, cup_context *c, cup_comm *comm, int64_t accumulate,
                      const char *folder)
{
    cup_seed(c, 5);
    m->list = cup_parameters_new(c, CUP_F32);
    cup_linear_layer_new(&m->first, m->list, "first", 4, 8, NULL);
    cup_dropout_layer_new(&m->dropout, m->list, 0.1);
    cup_linear_layer_new(&m->last, m->list, "last", 8, 1, NULL);
    m->square = cup_expr_new(c, "x", NULL, "x*x");
    m->x = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 4}));
    m->y = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 1}));
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.batch = write_batch;
    calls.loss = loss;
    calls.user = m;
    return cup_loop_new(m->list, &calls,
                        CUP_OPTIONS(cup_loop_options, .accumulate = accumulate, .comm = comm,
                                    .folder = folder, .optimizer = {.clip = 0.5},
                                    .check_every = m->check_every,
                                    .schedule = {.high = 0.02, .steps = STEPS}));
}

static void end(model *m, cup_loop *loop)
{
    cup_loop_free(loop);
    cup_expr_free(m->square);
    cup_parameters_free(m->list);
}

static void run_beside_one(cup_context *c, cup_comm *comm, void *user)
{
    model one = {0}, many = {0};
    int64_t count, same;
    (void)user;
    cup_loop *alone = make(&one, c, NULL, BATCHES, NULL);
    cup_loop_run(alone, NULL);
    cup_loop *shared = make(&many, c, comm, BATCHES, NULL);
    /* What rank 0 begins with, all have. */
    if (cup_comm_rank(comm) > 0)
        cup_tensor_write(many.last.bias, &(float){7}, sizeof(float));
    cup_loop_run(shared, NULL);
    const cup_training_point *a = cup_loop_points(alone, &count);
    const cup_training_point *b = cup_loop_points(shared, &same);
    if (count != STEPS || same != count)
        wrong("%d and %d points", (int)count, (int)same);
    for (int64_t i = 0; i < count && i < same; i++)
        if (!(fabs(a[i].loss - b[i].loss) < 1e-5 && fabs(a[i].norm - b[i].norm) < 1e-4))
            wrong("step %d: loss %.8g and %.8g, norm %.8g and %.8g", (int)i, a[i].loss, b[i].loss,
                  a[i].norm, b[i].norm);
    end(&one, alone);
    end(&many, shared);
}

TEST(together_a_model_is_that_of_one)
{
    together(1, run_beside_one, NULL);
    together(2, run_beside_one, NULL);
    together(4, run_beside_one, NULL);
}

static void share_unequally(cup_context *c, cup_comm *comm, void *user)
{
    model m = {0};
    (void)user;
    if (make(&m, c, comm, 3, NULL) || cup_error(c) != CUP_ARGUMENT)
        wrong("3 batches are shared by 2 processes");
    else if (!strstr(cup_error_text(c), "3 batches a step cannot be shared equally by 2"))
        wrong("%s", cup_error_text(c));
    cup_error_clear(c);
    cup_parameters_free(m.list);
}

TEST(together_shares_are_equal)
{
    together(2, share_unequally, NULL);
}

/* One process whose weights are others is noticed before they are saved. */
static void differ(cup_context *c, cup_comm *comm, void *user)
{
    model m = {0};
    cup_loop *loop = make(&m, c, comm, BATCHES, user);
    cup_loop_run(loop, NULL);
    if (cup_error(c))
        wrong("the run: %s", cup_error_text(c));
    cup_loop_save(loop);
    if (cup_error(c))
        wrong("the first save: %s", cup_error_text(c));
    if (cup_comm_rank(comm) == 1)
        cup_tensor_write(m.last.bias, &(float){7}, sizeof(float));
    if (cup_loop_save(loop) != CUP_STATE ||
        !strstr(cup_error_text(c), "weights are not the same on all processes: rank 1 (process "))
        wrong("the second save: %s", cup_error_text(c));
    if (!strstr(cup_error_text(c), cup_comm_count(comm) > 2
                                       ? "has others than rank 0 and 1 more; go back"
                                       : "has others than rank 0 and 0 more; go back"))
        wrong("the second save: %s", cup_error_text(c));
    cup_error_clear(c);
    end(&m, loop);
}

TEST(together_weights_that_differ_are_found)
{
    char folder[400];

    snprintf(folder, sizeof folder, "%.*s/run", (int)(strrchr(together_address(), '/') -
                                                       together_address() - 5),
             together_address() + 5);
    together(2, differ, folder);
}

/* In the midst of a run, too, and within so many steps. */
static void differ_midway(cup_context *c, cup_comm *comm, void *user)
{
    model m = {.check_every = 4, .changes = cup_comm_rank(comm) == 2};
    cup_loop *loop = make(&m, c, comm, BATCHES, user);
    if (cup_loop_run(loop, NULL) != CUP_STATE || cup_loop_steps(loop) != 12 ||
        !strstr(cup_error_text(c), "behind step 12 the weights are not the same") ||
        !strstr(cup_error_text(c), ": rank 2 (process ") ||
        !strstr(cup_error_text(c), "has others than rank 0 and 2 more"))
        wrong("behind step %d: %s", (int)cup_loop_steps(loop), cup_error_text(c));
    cup_error_clear(c);
    end(&m, loop);
}

TEST(together_weights_that_differ_midway_are_named)
{
    together(4, differ_midway, NULL);
}

typedef struct stopping {
    cup_loop *loop;
    int rank;
} stopping;

static bool stop_one(void *user)
{
    const stopping *s = user;
    return s->rank == 1 && cup_loop_steps(s->loop) >= 7;
}

/* Who is asked to stop stops all, behind the same step. */
static void stop(cup_context *c, cup_comm *comm, void *user)
{
    model m = {0};
    (void)user;
    stopping s = {make(&m, c, comm, BATCHES, NULL), cup_comm_rank(comm)};
    cup_training_hooks hooks = CUP_DEFAULTS(cup_training_hooks);
    hooks.stop = stop_one;
    hooks.user = &s;
    if (cup_loop_run(s.loop, &hooks) != CUP_INTERRUPTED || cup_loop_steps(s.loop) != 7)
        wrong("stopped behind %d steps", (int)cup_loop_steps(s.loop));
    end(&m, s.loop);
}

TEST(together_all_stop_where_one_is_asked)
{
    together(4, stop, NULL);
}

/* Gradients that are added up some at a time, while backward goes on. */
#define WIDE 512

typedef struct wide {
    cup_parameters *list;
    cup_linear_layer layers[3];
    cup_tensor *pair[2];
    cup_tensor *x;
    uint64_t losses[2]; /* their bits, in a run each */
} wide;

static cup_tensor *wide_block(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    wide *m = user;
    (void)count;
    return cup_tanh(c, cup_linear_layer_call(&m->layers[1], inputs[0]));
}

/* A sum whose backward gives both inputs one tensor: what it is of the first one may be added up
 * only when the second one's has gone on. */
static cup_status add_forward(cup_context *c, cup_tensor *const *in, int count, const void *no,
                              cup_tensor **out)
{
    (void)count;
    (void)no;
    out[0] = cup_add(c, in[0], in[1]);
    return cup_error(c);
}

static cup_status add_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = g->d_inputs[1] = cup_copy(c, g->d_outputs[0]);
    return cup_error(c);
}

static const cup_custom_op add_both = {.size = sizeof add_both,
                                       .name = "add_both",
                                       .output_count = 1,
                                       .forward = add_forward,
                                       .backward = add_backward};

/* The second layer is used twice, once in a block. */
static cup_tensor *wide_loss(cup_context *c, int64_t batch, void *user)
{
    wide *m = user;
    cup_tensor *h = cup_slice(c, m->x, (int64_t[]){2 * batch, 0}, 2, (int64_t[]){2, -1}, 2);
    h = cup_tanh(c, cup_linear_layer_call(&m->layers[0], h));
    h = cup_recompute(c, wide_block, &h, 1, m);
    cup_tensor *both[] = {m->pair[0], cup_tanh(c, m->pair[1])}, *weight;
    cup_custom(c, &add_both, both, 2, NULL, &weight);
    h = cup_matmul(c, h, weight, false, false);
    h = cup_linear_layer_call(&m->layers[2], cup_tanh(c, cup_linear_layer_call(&m->layers[1], h)));
    return cup_mean(c, cup_mul(c, h, h), NULL, 0, false);
}

static void run_wide(cup_context *c, cup_comm *comm, wide *m, int run, int64_t accumulate)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    float x[16 * WIDE];
    int64_t count;
    cup_seed(c, 3);
    m->list = cup_parameters_new(c, CUP_F32);
    for (int i = 0; i < 3; i++)
        cup_linear_layer_new(&m->layers[i], m->list, names[i], WIDE, WIDE, NULL);
    cup_parameter_new(m->list, "unused", 1, (int64_t[]){5}, NULL);
    for (int i = 0; i < 2; i++)
        m->pair[i] = cup_parameter_new(m->list, names[i + 3], 2, (int64_t[]){WIDE, WIDE}, NULL);
    for (int i = 0; i < 16 * WIDE; i++)
        x[i] = (float)sin((double)i);
    m->x = cup_keep(cup_tensor_from(c, CUP_F32, 2, (int64_t[]){16, WIDE}, x));
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.loss = wide_loss;
    calls.user = m;
    cup_loop *loop = cup_loop_new(
        m->list, &calls,
        CUP_OPTIONS(cup_loop_options, .accumulate = accumulate, .comm = comm,
                    .optimizer = {.clip = 0.5}, .schedule = {.high = 0.02, .steps = 3}));
    cup_loop_run(loop, NULL);
    const cup_training_point *points = cup_loop_points(loop, &count);
    for (int64_t i = 0; i < count; i++)
        m->losses[run] = m->losses[run] * 31 + (uint64_t)(1e12 * points[i].loss) +
                         (uint64_t)(1e12 * points[i].norm);
    if (count != 3)
        wrong("%d points", (int)count);
    cup_loop_free(loop);
    cup_parameters_free(m->list);
}

/* Of one batch each process has, and of several. */
static void run_in_buckets(cup_context *c, cup_comm *comm, void *user)
{
    (void)user;
    for (int64_t accumulate = cup_comm_count(comm); accumulate <= 8; accumulate = 2 * accumulate) {
        wide m = {0};
        setenv("CUP_COMM_BUCKET", "0", 1);
        run_wide(c, comm, &m, 0, accumulate);
        setenv("CUP_COMM_BUCKET", "1", 1);
        run_wide(c, comm, &m, 1, accumulate);
        if (m.losses[0] != m.losses[1])
            wrong("%d batches: the losses of gradients in buckets are others", (int)accumulate);
    }
}

TEST(together_gradients_in_buckets_are_the_same_bits)
{
    together(2, run_in_buckets, NULL);
    together(4, run_in_buckets, NULL);
}
