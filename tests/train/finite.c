/* Steps whose loss or gradients are not finite: skipped without a trace, or named. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "tensor/debug.h"
#include "test.h"
#include "train/loop.h"

#define ROWS 16
#define BATCHES 2
#define STEPS 12
#define BAD 6 /* the step that is not finite */

/* What is wrong with it: an input, so that the loss is NaN; or the slope of a root, so that the
 * gradients alone are. */
typedef enum flaw { NONE, INPUT, SLOPE } flaw;

typedef struct model {
    cup_context *c;
    cup_parameters *list;
    cup_linear_layer first, last;
    cup_batchnorm_layer norm;
    cup_tensor *x, *y, *edge;
    cup_expr *square, *root;
    cup_loop *loop;
    flaw flaw;
    int64_t stop_at;
} model;

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    model *m = user;
    float x[BATCHES * ROWS * 4], y[BATCHES * ROWS], edge = 1;
    (void)c;
    for (int i = 0; i < BATCHES * ROWS; i++) {
        y[i] = 0;
        for (int k = 0; k < 4; k++) {
            x[i * 4 + k] = (float)sin((double)(i * 31 + k * 7 + step * 17));
            y[i] += x[i * 4 + k] * (float)(k - 1);
        }
    }
    if (step == BAD && m->flaw == INPUT)
        x[ROWS * 4 + 5] = NAN;
    if (step == BAD && m->flaw == SLOPE)
        edge = 0;
    CUP_TRY(cup_tensor_write(m->edge, &edge, sizeof edge));
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
    cup_tensor *h = cup_linear_layer_call(&m->first, rows_of(c, m->x, batch));
    h = cup_linear_layer_call(&m->last, cup_batchnorm_layer_call(&m->norm, h));
    h = cup_sub(c, h, rows_of(c, m->y, batch));
    h = cup_mean(c, cup_expr_call(m->square, &h, NULL, NULL), NULL, 0, false);
    cup_tensor *bias = cup_sum(c, cup_mul(c, m->last.bias, m->edge), NULL, 0, false);
    return cup_add(c, h, cup_mul(c, cup_expr_call(m->root, &bias, NULL, NULL), m->edge));
}

static cup_status evaluate(cup_context *c, double *out, void *user)
{
    CUP_TRY(write_batch(c, 1000, user));
    cup_tensor *mean = loss(c, 0, user);
    *out = mean ? cup_tensor_item(mean) : NAN;
    return cup_error(c);
}

static void begin_in(model *m, cup_context *c, cup_comm *comm, cup_non_finite how, flaw of,
                     const char *folder)
{
    *m = (model){.c = c, .flaw = of, .stop_at = -1};
    cup_seed(c, 5);
    m->list = cup_parameters_new(c, CUP_F32);
    cup_linear_layer_new(&m->first, m->list, "first", 4, 8, NULL);
    cup_batchnorm_layer_new(&m->norm, m->list, "norm", 8, NULL);
    cup_linear_layer_new(&m->last, m->list, "last", 8, 1, NULL);
    m->square = cup_expr_new(c, "x", NULL, "x*x");
    m->root = cup_expr_new(c, "x", NULL, "sqrt(abs(x))");
    m->edge = cup_keep(cup_tensor_new(c, CUP_F32, 0, NULL));
    m->x = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 4}));
    m->y = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 1}));
    cup_tensor_write(m->last.bias, &(float){1}, sizeof(float));
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.batch = write_batch;
    calls.loss = loss;
    calls.evaluate = comm ? NULL : evaluate;
    calls.user = m;
    m->loop = cup_loop_new(m->list, &calls,
                           CUP_OPTIONS(cup_loop_options, .accumulate = BATCHES, .folder = folder,
                                       .comm = comm, .optimizer = {.clip = 1, .weight_decay = 0.1},
                                       .evaluate_every = 4, .save_every = 3, .non_finite = how,
                                       .schedule = {.high = 0.02, .steps = STEPS}));
}

static void begin(model *m, cup_non_finite how, flaw of, const char *folder)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    begin_in(m, c, NULL, how, of, folder);
    EXPECT_TEXT(cup_error_text(c), "");
}

static void end_in(model *m)
{
    cup_loop_free(m->loop);
    cup_expr_free(m->square);
    cup_expr_free(m->root);
    cup_tensor_free(m->edge);
    cup_tensor_free(m->x);
    cup_tensor_free(m->y);
    cup_parameters_free(m->list);
}

static void end(model *m)
{
    end_in(m);
    cup_context_free(m->c);
}

static bool stops(void *user)
{
    const model *m = user;
    return cup_loop_steps(m->loop) == m->stop_at;
}

static cup_status go(model *m, int64_t stop_at)
{
    m->stop_at = stop_at;
    return cup_loop_run(m->loop, CUP_OPTIONS(cup_training_hooks, .stop = stops, .user = m));
}

static size_t add_bytes(const cup_named *named, int64_t count, const char *but, char *out,
                        size_t room)
{
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = (size_t)cup_tensor_count(named[i].tensor) *
                       (size_t)cup_dtype_size(cup_tensor_dtype(named[i].tensor));
        if (!strcmp(named[i].name, "steps") || (but && strstr(named[i].name, but)))
            continue;
        EXPECT(used + bytes <= room);
        EXPECT_INT(cup_tensor_read(named[i].tensor, out + used, bytes), CUP_OK);
        used += bytes;
    }
    return used;
}

/* All that the model and the optimizer remember, but for the numbers of steps, and for tensors with
 * `but` in their names. */
static size_t bytes_but(const model *m, const char *but, char out[8192])
{
    int64_t count;
    const cup_named *named = cup_parameters_named(m->list, &count);
    size_t used = add_bytes(named, count, but, out, 8192);
    named = cup_optimizer_state(cup_loop_optimizer(m->loop), &count);
    return used + add_bytes(named, count, but, out + used, 8192 - used);
}

static size_t bytes_of(const model *m, char out[8192])
{
    return bytes_but(m, NULL, out);
}

static void expect_no_trace(cup_non_finite how, flaw of)
{
    char before[8192], behind[8192];
    model m;
    begin(&m, how, of, NULL);
    EXPECT_INT(go(&m, BAD), CUP_INTERRUPTED);
    size_t bytes = bytes_of(&m, before);
    EXPECT_INT(cup_loop_skipped(m.loop), 0);
    EXPECT_INT(go(&m, BAD + 1), CUP_INTERRUPTED);
    EXPECT_INT(cup_loop_skipped(m.loop), 1);
    EXPECT_INT(cup_optimizer_skipped(cup_loop_optimizer(m.loop)), 1);
    EXPECT(bytes_of(&m, behind) == bytes && !memcmp(before, behind, bytes));
    EXPECT_INT(go(&m, -1), CUP_OK);
    EXPECT_INT(cup_loop_skipped(m.loop), 1);
    EXPECT_INT(cup_optimizer_taken(cup_loop_optimizer(m.loop)), STEPS - 1);
    end(&m);
}

TEST(finite_skips_without_a_trace)
{
    expect_no_trace(CUP_NON_FINITE_SKIP, INPUT);
    expect_no_trace(CUP_NON_FINITE_SKIP, SLOPE);
}

/* A run that meets nothing of the kind is the same, bit for bit, whatever it would do. */
TEST(finite_changes_nothing_where_all_is)
{
    static const cup_non_finite all[] = {CUP_NON_FINITE_USUAL, CUP_NON_FINITE_STOP,
                                         CUP_NON_FINITE_SKIP};
    char first[8192], other[8192];
    for (int i = 0; i < 3; i++) {
        model m;
        begin(&m, all[i], NONE, NULL);
        EXPECT_INT(go(&m, -1), CUP_OK);
        size_t bytes = bytes_of(&m, i ? other : first);
        EXPECT(i == 0 || !memcmp(first, other, bytes));
        EXPECT_INT(cup_loop_skipped(m.loop), 0);
        end(&m);
    }
}

/* The losses of a checkpoint tell of a step without a loss. */
TEST(finite_resumes_behind_a_skipped_step)
{
    const char *folder = test_folder();
    char whole[8192], parts[8192];
    int64_t count, same;
    model m;
    begin(&m, CUP_NON_FINITE_SKIP, INPUT, NULL);
    EXPECT_INT(go(&m, -1), CUP_OK);
    const cup_training_point *points = cup_loop_points(m.loop, &count);
    for (int64_t i = 0; i < count; i++)
        EXPECT(isfinite(points[i].validation) ||
               isnan(points[i].loss) == (points[i].step == BAD));
    size_t bytes = bytes_of(&m, whole);
    end(&m);
    begin(&m, CUP_NON_FINITE_SKIP, INPUT, folder);
    EXPECT_INT(go(&m, BAD + 2), CUP_INTERRUPTED);
    end(&m);
    begin(&m, CUP_NON_FINITE_SKIP, INPUT, folder);
    EXPECT_INT(cup_loop_resume(m.loop), CUP_OK);
    EXPECT_INT(cup_loop_skipped(m.loop), 1);
    EXPECT_INT(go(&m, -1), CUP_OK);
    cup_loop_points(m.loop, &same);
    EXPECT_INT(same, count);
    EXPECT(bytes_of(&m, parts) == bytes && !memcmp(whole, parts, bytes));
    end(&m);
}

static void expect_stop(cup_non_finite how, flaw of, int64_t ahead, const char *const *words)
{
    char before[8192], behind[8192];
    model m;
    begin(&m, how, of, NULL);
    EXPECT_INT(go(&m, BAD), CUP_INTERRUPTED);
    size_t bytes = bytes_but(&m, "running", before); /* forward moves these */
    m.loop->ahead = ahead; /* as a GPU is of what is read */
    EXPECT_INT(go(&m, -1), CUP_STATE);
    for (; *words; words++)
        EXPECT_CONTAINS(cup_error_text(m.c), *words);
    EXPECT_INT(cup_loop_steps(m.loop), ahead ? 8 : BAD + 1); /* before an evaluation it reads */
    cup_error_clear(m.c);
    EXPECT_INT(bytes_but(&m, "running", behind), bytes);
    EXPECT(!memcmp(before, behind, bytes));
    end(&m);
}

TEST(finite_stops_and_names_the_op)
{
    static const char *const input[] = {"the loss of step 6 is not a number",
                                        "computed again, the first value that is not finite is a "
                                        "NaN in result 1 of linear",
                                        "in forward of batch 1", "had a NaN before",
                                        "lower the learning rate", NULL};
    static const char *const slope[] = {"the gradients of step 6 are not finite",
                                        "in backward of batch 0; all inputs were finite",
                                        "let such steps be skipped", NULL};
    expect_stop(CUP_NON_FINITE_STOP, INPUT, 0, input);
    expect_stop(CUP_NON_FINITE_STOP, SLOPE, 0, slope);
    expect_stop(CUP_NON_FINITE_USUAL, INPUT, 0, input);
    /* Steps that were given meanwhile have changed nothing. */
    expect_stop(CUP_NON_FINITE_STOP, INPUT, 4, input);
    expect_stop(CUP_NON_FINITE_STOP, SLOPE, 4, slope);
}

TEST(finite_names_the_parameter)
{
    model m;
    begin(&m, CUP_NON_FINITE_STOP, NONE, NULL);
    EXPECT_INT(go(&m, 3), CUP_INTERRUPTED);
    ((float *)cup_tensor_data(m.last.weight))[2] = NAN;
    EXPECT_INT(go(&m, -1), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "step 3");
    EXPECT_CONTAINS(cup_error_text(m.c), ", last.weight, had a NaN before");
    end(&m);
}

/* Others made steps behind it, with which it would not be the same step. */
TEST(finite_names_nothing_that_it_does_not_know)
{
    model m;
    begin(&m, CUP_NON_FINITE_USUAL, INPUT, NULL);
    EXPECT_INT(go(&m, BAD), CUP_INTERRUPTED);
    m.loop->ahead = 4;
    EXPECT_INT(go(&m, -1), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "the run has come apart; lower");
    end(&m);
}

/* The one that has the batch names it, and nobody waits for another. */
static void stop_together(cup_context *c, cup_comm *comm, void *user)
{
    model m;
    (void)user;
    begin_in(&m, c, comm, CUP_NON_FINITE_STOP, INPUT, NULL);
    if (cup_loop_run(m.loop, NULL) != CUP_STATE)
        wrong("status %d: %s", (int)cup_error(c), cup_error_text(c));
    const char *want = cup_comm_rank(comm) ? "in forward of batch 1; input 1 had a NaN before"
                                           : "another one says what is not";
    if (!strstr(cup_error_text(c), "the loss of step 6") || !strstr(cup_error_text(c), want))
        wrong("rank %d: %s", cup_comm_rank(comm), cup_error_text(c));
    cup_error_clear(c);
    end_in(&m);
}

TEST(finite_is_named_by_who_has_it)
{
    together(2, stop_together, NULL);
}

static void fake_on(void)
{
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
}

TEST(finite_is_watched_in_a_captured_step)
{
    static const cup_non_finite all[] = {CUP_NON_FINITE_SKIP, CUP_NON_FINITE_STOP};
    fake_on();
    for (int i = 0; i < 2; i++) {
        model m;
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        begin_in(&m, c, NULL, all[i], NONE, NULL);
        EXPECT_INT(go(&m, -1), CUP_OK);
        EXPECT_TEXT(cup_error_text(m.c), "");
        EXPECT_INT(m.loop->replay, CUP__REPLAY_ON);
        end(&m);
    }
    fake_expect_nothing_left();
}

/* A context that is watched looks at results, so that its step is no graph. Of a GPU that computes
 * nothing they are NaN, and not looked at here. */
TEST(finite_captures_nothing_that_is_looked_at)
{
    fake_on();
    model m;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .debug = true));
    cup__debug_search(c, true);
    begin_in(&m, c, NULL, CUP_NON_FINITE_SKIP, NONE, NULL);
    m.loop->calls.evaluate = NULL;
    EXPECT_INT(go(&m, -1), CUP_OK);
    EXPECT_TEXT(cup_error_text(m.c), "");
    EXPECT_INT(cup_loop_steps(m.loop), STEPS);
    EXPECT_INT(m.loop->replay, CUP__REPLAY_OFF);
    end(&m);
    fake_expect_nothing_left();
}
