/* The training loop of any model: what it asks for, bit for bit again behind a stop, refusals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"
#include "train/loop.h"

#define ROWS 16
#define MOST 64

/* A small network with all that could differ behind a resume: dropout, statistics of
 * batches, batches that follow from the step. */
typedef struct model {
    cup_context *c;
    cup_parameters *list;
    cup_linear_layer first, last;
    cup_batchnorm_layer norm;
    cup_dropout_layer dropout;
    cup_tensor *x, *y;
    cup_expr *square;
    cup_loop *loop;
    int64_t accumulate, stop_at, poison_at, asked; /* asked: batches written */
    double validation;
    cup_tensor *kept;
    bool keeps, long_loss;
} model;

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    model *m = user;
    float x[3 * ROWS * 4], y[3 * ROWS];
    (void)c;
    m->asked++;
    for (int64_t i = 0; i < m->accumulate * ROWS; i++) {
        y[i] = 0;
        for (int k = 0; k < 4; k++) {
            x[i * 4 + k] = (float)sin((double)(i * 31 + k * 7 + step * 17));
            y[i] += x[i * 4 + k] * (float)(k - 1);
        }
    }
    if (step == m->poison_at)
        x[0] = NAN;
    CUP_TRY(cup_tensor_write(m->x, x, (size_t)(m->accumulate * ROWS * 4) * sizeof *x));
    return cup_tensor_write(m->y, y, (size_t)(m->accumulate * ROWS) * sizeof *y);
}

static cup_tensor *rows_of(cup_context *c, cup_tensor *all, int64_t batch)
{
    return cup_slice(c, all, (int64_t[]){batch * ROWS, 0}, 2, (int64_t[]){ROWS, -1}, 2);
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    model *m = user;
    cup_tensor *h = cup_cast(c, rows_of(c, m->x, batch), cup_tensor_dtype(m->first.weight));
    h = cup_linear_layer_call(&m->first, h);
    h = cup_batchnorm_layer_call(&m->norm, h);
    h = cup_dropout_layer_call(&m->dropout, h);
    h = cup_linear_layer_call(&m->last, h);
    if (m->keeps)
        m->kept = cup_keep(cup_relu(c, h));
    h = cup_sub(c, h, cup_cast(c, rows_of(c, m->y, batch), cup_tensor_dtype(h)));
    h = cup_expr_call(m->square, &h, NULL, NULL);
    return m->long_loss ? h : cup_mean(c, h, NULL, 0, false);
}

static cup_status evaluate(cup_context *c, double *out, void *user)
{
    model *m = user;
    write_batch(c, 1000, m);
    bool was = m->long_loss;
    m->long_loss = false;
    cup_tensor *mean = loss(c, 0, m);
    m->long_loss = was;
    *out = mean ? cup_tensor_item(mean) : NAN;
    return cup_error(c);
}

static const cup_loop_options usual = {
    .size = sizeof usual,
    .schedule = {.high = 0.02, .low = 0.002, .warmup = 2, .steps = 12},
    .optimizer = {.weight_decay = 0.1, .clip = 1},
    .accumulate = 2,
    .evaluate_every = 5,
    .save_every = 4,
};

static void begin_on(model *m, const char *device, const cup_loop_options *from, cup_dtype dtype,
                     const char *folder)
{
    *m = (model){.stop_at = -1, .poison_at = -1, .accumulate = from->accumulate};
    m->c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .seed = 5));
    m->list = cup_parameters_new(m->c, dtype);
    cup_linear_layer_new(&m->first, m->list, "first", 4, 8, NULL);
    cup_batchnorm_layer_new(&m->norm, m->list, "norm", 8, NULL);
    cup_dropout_layer_new(&m->dropout, m->list, 0.1);
    cup_linear_layer_new(&m->last, m->list, "last", 8, 1, NULL);
    m->square = cup_expr_new(m->c, "x", NULL, "x*x");
    m->x = cup_tensor_new(m->c, CUP_F32, 2, (int64_t[]){m->accumulate * ROWS, 4});
    m->y = cup_tensor_new(m->c, CUP_F32, 2, (int64_t[]){m->accumulate * ROWS, 1});
    cup_loop_options options = *from;
    options.folder = folder;
    m->loop = cup_loop_new(m->list,
                           CUP_OPTIONS(cup_loop_calls, write_batch, loss, evaluate, NULL, m),
                           &options);
}

static void begin(model *m, const cup_loop_options *from, cup_dtype dtype, const char *folder)
{
    begin_on(m, "cpu", from, dtype, folder);
}

static void end(model *m)
{
    cup_loop_free(m->loop);
    cup_expr_free(m->square);
    cup_parameters_free(m->list);
    cup_context_free(m->c);
}

static bool stops(void *user)
{
    const model *m = user;
    return cup_loop_steps(m->loop) == m->stop_at;
}

static cup_status go(model *m)
{
    return cup_loop_run(m->loop, CUP_OPTIONS(cup_training_hooks, .stop = stops, .user = m));
}

static int64_t points_of(const model *m, cup_training_point *out)
{
    int64_t count;
    const cup_training_point *points = cup_loop_points(m->loop, &count);
    EXPECT(count <= MOST);
    memcpy(out, points, (size_t)count * sizeof *out);
    return count;
}

static uint64_t hash_of(model *m)
{
    uint64_t hash = 1;
    int64_t count;
    const cup_named *named = cup_parameters_named(m->list, &count);
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *at = cup_tensor_data(named[i].tensor);
        int64_t bytes = cup_tensor_count(named[i].tensor) *
                        cup_dtype_size(cup_tensor_dtype(named[i].tensor));
        for (int64_t k = 0; k < bytes; k++)
            hash = (hash ^ at[k]) * 0x100000001b3u;
    }
    return hash;
}

static void expect_exact_resume(const cup_loop_options *options, cup_dtype dtype, int64_t stop_at,
                                const char *folder)
{
    cup_training_point whole[MOST], parts[MOST];
    model m;
    begin(&m, options, dtype, NULL);
    EXPECT_INT(go(&m), CUP_OK);
    EXPECT_TEXT(cup_error_text(m.c), "");
    int64_t count = points_of(&m, whole);
    uint64_t weights = hash_of(&m);
    end(&m);
    begin(&m, options, dtype, folder);
    cup_loop_overwrite(m.loop);
    m.stop_at = stop_at;
    EXPECT_INT(go(&m), CUP_INTERRUPTED);
    EXPECT_INT(cup_loop_steps(m.loop), stop_at);
    end(&m);
    begin(&m, options, dtype, folder);
    EXPECT(cup_loop_has_checkpoint(m.loop));
    EXPECT_INT(cup_loop_resume(m.loop), CUP_OK);
    EXPECT_INT(cup_loop_steps(m.loop), stop_at);
    EXPECT_INT(go(&m), CUP_OK);
    EXPECT_INT(points_of(&m, parts), count);
    EXPECT(hash_of(&m) == weights);
    for (int64_t i = 0; i < count; i++) {
        EXPECT_INT(parts[i].step, whole[i].step);
        EXPECT(!memcmp(&parts[i].loss, &whole[i].loss, sizeof(double)) ||
               (isnan(parts[i].loss) && isnan(whole[i].loss)));
        EXPECT(!memcmp(&parts[i].validation, &whole[i].validation, sizeof(double)) ||
               (isnan(parts[i].validation) && isnan(whole[i].validation)));
    }
    end(&m);
}

TEST(loop_resumes_bit_for_bit)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F64};
    const char *folder = test_folder();
    for (int i = 0; strcmp(cup_method_name((cup_method)i), "?"); i++) {
        cup_loop_options options = usual;
        options.optimizer.method = (cup_method)i;
        options.accumulate = 1 + i % 3;
        expect_exact_resume(&options, dtypes[i % 3], 1 + 3 * (i % 4), folder);
    }
}

TEST(loop_learns)
{
    cup_loop_options options = usual;
    options.schedule.steps = 200;
    options.evaluate_every = 0;
    model m;
    begin(&m, &options, CUP_F32, NULL);
    m.dropout.p = 0;
    EXPECT_INT(go(&m), CUP_OK);
    int64_t count;
    const cup_training_point *points = cup_loop_points(m.loop, &count);
    EXPECT(points[count - 1].validation < 0.2 * points[0].validation);
    EXPECT_INT(cup_optimizer_taken(cup_loop_optimizer(m.loop)), 200);
    EXPECT(cup_parameters_training(m.list, true)); /* as it was */
    end(&m);
}

/* Where a stop is asked for inside a step of statistics, the step is done first. */
static bool stops_inside(void *user)
{
    const model *m = user;
    return m->asked >= 3;
}

TEST(loop_gives_up_no_step_that_moved_statistics)
{
    model m, whole;
    begin(&m, &usual, CUP_F32, test_folder());
    cup_status status =
        cup_loop_run(m.loop, CUP_OPTIONS(cup_training_hooks, .stop = stops_inside, .user = &m));
    EXPECT_INT(status, CUP_INTERRUPTED);
    int64_t steps = cup_loop_steps(m.loop);
    EXPECT(steps >= 1);
    begin(&whole, &usual, CUP_F32, NULL);
    whole.stop_at = steps;
    EXPECT_INT(go(&whole), CUP_INTERRUPTED);
    EXPECT(hash_of(&m) == hash_of(&whole));
    end(&m);
    end(&whole);
}

TEST(loop_names_what_is_no_number)
{
    model m;
    begin(&m, &usual, CUP_F32, test_folder());
    m.poison_at = 6;
    EXPECT_INT(go(&m), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "the loss of step 6 is not a number");
    end(&m);
    begin(&m, &usual, CUP_F32, NULL);
    m.poison_at = 1000;
    EXPECT_INT(go(&m), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "the evaluation behind 0 steps is not a number");
    end(&m);
    begin(&m, &usual, CUP_F32, NULL);
    m.long_loss = true;
    EXPECT_INT(go(&m), CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(m.c), "[16,1] f32; it must be one number");
    end(&m);
}

static void expect_refused(const cup_loop_options *options, cup_dtype dtype, const char *folder,
                           cup_status status, const char *words)
{
    model m;
    begin(&m, options, dtype, folder);
    EXPECT_TEXT(cup_error_text(m.c), "");
    EXPECT_INT(cup_loop_resume(m.loop), status);
    EXPECT_CONTAINS(cup_error_text(m.c), words);
    end(&m);
}

TEST(loop_folder_says_what_it_holds)
{
    char folder[4400], weights[4500];
    cup_checkpoint found;
    model m;
    snprintf(folder, sizeof folder, "%s/run", test_folder());
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_loop_vacant(c, folder), CUP_OK);
    EXPECT_INT(cup_checkpoint_look(c, folder, &found), CUP_IO);
    cup_error_clear(c);
    begin(&m, &usual, CUP_F32, folder);
    EXPECT_INT(cup_loop_vacant(c, folder), CUP_OK);
    EXPECT_INT(cup_checkpoint_look(c, folder, &found), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "no finished checkpoint");
    cup_error_clear(c);
    EXPECT_INT(go(&m), CUP_OK);
    end(&m);
    /* Neither call reads the tensors, so that they are as quick for large ones. */
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    EXPECT_INT(cup_file_write(c, weights, "", 0), CUP_OK);
    EXPECT_INT(cup_checkpoint_look(c, folder, &found), CUP_OK);
    EXPECT_TEXT(found.kind, "model");
    EXPECT_INT(found.steps, 12);
    EXPECT(found.saves >= 3 && found.bytes > 1000 && found.checked);
    EXPECT_INT(cup_loop_vacant(c, folder), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "holds the checkpoint of a run");
    cup_error_clear(c);
    EXPECT_INT(cup_training_vacant(c, folder), CUP_ARGUMENT);
    cup_context_free(c);
}

static bool asked_stop(void *user)
{
    return --*(int *)user < 0;
}

TEST(loop_can_be_stopped_from_its_context)
{
    model m;
    int calls = 40;
    begin(&m, &usual, CUP_F32, NULL);
    cup_stop_when(m.c, asked_stop, &calls);
    cup_tensor *x = cup_ones(m.c, CUP_F32, 1, (int64_t[]){2});
    EXPECT(x && calls == 39);
    calls = -1;
    EXPECT(!cup_neg(m.c, x));
    EXPECT_INT(cup_error(m.c), CUP_INTERRUPTED);
    cup_error_clear(m.c);
    /* Hooks with a stop of their own come before it, and it holds again behind the run. */
    EXPECT_INT(go(&m), CUP_OK);
    EXPECT(!cup_neg(m.c, x));
    cup_error_clear(m.c);
    cup_stop_when(m.c, NULL, NULL);
    EXPECT(cup_neg(m.c, x) != NULL);
    end(&m);
}

TEST(loop_refuses_a_checkpoint_of_another_run)
{
    const char *folder = test_folder();
    model m;
    begin(&m, &usual, CUP_F32, folder);
    EXPECT(!cup_loop_has_checkpoint(m.loop));
    m.stop_at = 4;
    EXPECT_INT(go(&m), CUP_INTERRUPTED);
    end(&m);
    cup_loop_options other = usual;
    other.accumulate = 3;
    expect_refused(&other, CUP_F32, folder, CUP_ARGUMENT, "accumulate is not what");
    other = usual;
    other.optimizer.method = CUP_METHOD_LION;
    expect_refused(&other, CUP_F32, folder, CUP_ARGUMENT, "method is not what");
    other = usual;
    other.schedule.steps = 3;
    expect_refused(&other, CUP_F32, folder, CUP_ARGUMENT, "has done 4 steps already");
    other = usual;
    other.kind = "autoencoder";
    expect_refused(&other, CUP_F32, folder, CUP_FORMAT, "is not of a autoencoder but of \"model\"");
    expect_refused(&usual, CUP_F64, folder, CUP_FORMAT, "first.weight");
    /* A new run does not replace it, unless it may. */
    begin(&m, &usual, CUP_F32, folder);
    EXPECT_INT(go(&m), CUP_ARGUMENT);
    cup_error_clear(m.c);
    cup_loop_overwrite(m.loop);
    EXPECT_INT(go(&m), CUP_OK);
    end(&m);
}

TEST(loop_refuses_what_cannot_be)
{
    static const struct {
        cup_loop_options options;
        const char *words;
    } bad[] = {{{.schedule = {.steps = 0}}, "steps must be from 1"},
               {{.schedule = {.steps = 5, .high = NAN}}, "rate must be from 0"},
               {{.schedule = {.steps = 5}, .accumulate = -1}, "accumulate must be from 1"},
               {{.schedule = {.steps = 5}, .save_every = -1}, "save_every must be"},
               {{.schedule = {.steps = 5}, .optimizer = {.method = 99}}, "method 99 is none"},
               {{.schedule = {.steps = 5, .decline = 7}}, "decline 7 is none"}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    const cup_loop_calls calls = {.size = sizeof calls, .loss = loss};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup_loop_options options = bad[i].options;
        options.size = sizeof options;
        EXPECT(!cup_loop_new(list, &calls, &options));
        EXPECT_CONTAINS(cup_error_text(c), bad[i].words);
        cup_error_clear(c);
    }
    EXPECT(!cup_loop_new(list, &calls, &usual)); /* nothing to train */
    EXPECT_CONTAINS(cup_error_text(c), "at least one parameter");
    cup_error_clear(c);
    EXPECT(!cup_loop_new(list, NULL, &usual));
    EXPECT_CONTAINS(cup_error_text(c), "the calls are NULL");
    cup_parameters_free(list);
    cup_context_free(c);
}

/* Nothing is computed there, but rehearsed, captured, replayed and saved. */
TEST(loop_on_the_fake_gpu)
{
    cup_loop_options options = usual;
    options.accumulate = 3;
    const char *folder = fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
    model m;
    begin_on(&m, "cuda", &options, CUP_BF16, folder);
    EXPECT_INT(go(&m), CUP_OK);
    EXPECT_TEXT(cup_error_text(m.c), "");
    EXPECT_INT(m.loop->replay, CUP__REPLAY_ON);
    EXPECT_INT(cup_loop_steps(m.loop), 12);
    end(&m);
    begin_on(&m, "cuda", &options, CUP_BF16, NULL);
    m.keeps = true;
    EXPECT_INT(go(&m), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "is kept, and would not be computed again");
    end(&m);
    fake_expect_nothing_left();
}
