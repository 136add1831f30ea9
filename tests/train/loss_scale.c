/* Training in f16, with a scale of the loss that is halved behind what was too large for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/together.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"
#include "train/loop.h"
#include "train/session.h"

#define ROWS 16
#define BATCHES 2

typedef struct model {
    cup_context *c;
    cup_parameters *list;
    cup_linear_layer first, last;
    cup_tensor *x, *y, *edge;
    cup_expr *square, *root;
    cup_loop *loop;
    int64_t bad_from; /* the first of the steps whose gradients are NaN, whatever the scale */
} model;

static cup_status write_batch(cup_context *c, int64_t step, void *user)
{
    const model *m = user;
    float x[BATCHES * ROWS * 4], y[BATCHES * ROWS], edge = step >= m->bad_from ? 0 : 1;
    (void)c;
    for (int i = 0; i < BATCHES * ROWS; i++) {
        y[i] = 0;
        for (int k = 0; k < 4; k++) {
            x[i * 4 + k] = (float)sin((double)(i * 31 + k * 7 + step * 17));
            y[i] += x[i * 4 + k] * (float)(k - 1);
        }
    }
    CUP_TRY(cup_tensor_write(m->edge, &edge, sizeof edge));
    CUP_TRY(cup_tensor_write(m->x, x, sizeof x));
    return cup_tensor_write(m->y, y, sizeof y);
}

static cup_tensor *rows_of(cup_context *c, const model *m, cup_tensor *all, int64_t batch)
{
    cup_tensor *rows = cup_slice(c, all, (int64_t[]){batch * ROWS, 0}, 2, (int64_t[]){ROWS, -1}, 2);
    return cup_cast(c, rows, cup_tensor_dtype(m->first.weight));
}

static cup_tensor *loss(cup_context *c, int64_t batch, void *user)
{
    model *m = user;
    cup_tensor *h = cup_relu(c, cup_linear_layer_call(&m->first, rows_of(c, m, m->x, batch)));
    h = cup_linear_layer_call(&m->last, h);
    h = cup_cast(c, cup_sub(c, h, rows_of(c, m, m->y, batch)), CUP_F32);
    h = cup_mean(c, cup_expr_call(m->square, &h, NULL, NULL), NULL, 0, false);
    cup_tensor *bias = cup_cast(c, cup_sum(c, m->last.bias, NULL, 0, false), CUP_F32);
    bias = cup_mul(c, bias, m->edge);
    return cup_add(c, h, cup_mul(c, cup_expr_call(m->root, &bias, NULL, NULL), m->edge));
}

static const cup_loop_options usual = {.size = sizeof usual,
                                       .schedule = {.high = 0.01, .steps = 24},
                                       .optimizer = {.clip = 0.5, .weight_decay = 0.1},
                                       .accumulate = BATCHES};

static void begin_in(model *m, cup_context *c, const cup_loop_options *options, cup_dtype dtype)
{
    *m = (model){.c = c, .bad_from = 1000};
    cup_seed(c, 5);
    m->list = cup_parameters_new(c, dtype);
    cup_linear_layer_new(&m->first, m->list, "first", 4, 8, NULL);
    cup_linear_layer_new(&m->last, m->list, "last", 8, 1, NULL);
    m->square = cup_expr_new(c, "x", NULL, "x*x");
    m->root = cup_expr_new(c, "x", NULL, "sqrt(abs(x))");
    m->edge = cup_keep(cup_tensor_new(c, CUP_F32, 0, NULL));
    m->x = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 4}));
    m->y = cup_keep(cup_tensor_new(c, CUP_F32, 2, (int64_t[]){BATCHES * ROWS, 1}));
    cup_tensor *one = cup_full(c, dtype, 1, (int64_t[]){1}, 1);
    bool was = cup_grad_recording(c, false);
    cup_copy_into(c, m->last.bias, one);
    cup_grad_recording(c, was);
    cup_tensor_free(one);
    cup_loop_calls calls = CUP_DEFAULTS(cup_loop_calls);
    calls.batch = write_batch;
    calls.loss = loss;
    calls.user = m;
    m->loop = cup_loop_new(m->list, &calls, options);
}

static void begin_model(model *m, const cup_loop_options *options, cup_dtype dtype)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    begin_in(m, c, options, dtype);
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

static void end_model(model *m)
{
    end_in(m);
    cup_context_free(m->c);
}

/* All parameters, and of the optimizer's states all but those of no parameter. */
static size_t bytes_of(const model *m, char out[8192])
{
    size_t used = 0;
    for (int states = 0; states < 2; states++) {
        int64_t count;
        const cup_named *named = states
                                     ? cup_optimizer_state(cup_loop_optimizer(m->loop), &count)
                                     : cup_parameters_named(m->list, &count);
        for (int64_t i = 0; i < count; i++) {
            const cup_tensor *t = named[i].tensor;
            size_t bytes =
                (size_t)cup_tensor_count(t) * (size_t)cup_dtype_size(cup_tensor_dtype(t));
            if (!strchr(named[i].name, '.'))
                continue;
            EXPECT(used + bytes <= 8192);
            EXPECT_INT(cup_tensor_read(named[i].tensor, out + used, bytes), CUP_OK);
            used += bytes;
        }
    }
    return used;
}

/* Nothing is rounded by a power of two, in f32 within its range. */
TEST(loss_scale_changes_nothing_in_f32)
{
    char plain[8192], scaled[8192];
    for (int i = 0; strcmp(cup_method_name((cup_method)i), "?"); i++) {
        cup_loop_options options = usual;
        int64_t count;
        double norms[24];
        options.optimizer.method = (cup_method)i;
        model m;
        begin_model(&m, &options, CUP_F32);
        EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_OK);
        size_t bytes = bytes_of(&m, plain);
        const cup_training_point *points = cup_loop_points(m.loop, &count);
        EXPECT_INT(count, 24);
        for (int64_t k = 0; k < count; k++)
            norms[k] = points[k].norm;
        EXPECT(cup_loop_loss_scale(m.loop) == 0);
        end_model(&m);
        options.loss_scale = 1024;
        options.loss_scale_steps = 7;
        begin_model(&m, &options, CUP_F32);
        EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_OK);
        EXPECT(bytes_of(&m, scaled) == bytes && !memcmp(plain, scaled, bytes));
        points = cup_loop_points(m.loop, &count);
        for (int64_t k = 0; k < count; k++)
            EXPECT(points[k].norm == norms[k]);
        EXPECT(cup_loop_loss_scale(m.loop) == 8192);
        end_model(&m);
    }
}

TEST(loss_scale_is_halved_until_gradients_fit)
{
    char before[8192], behind[8192];
    cup_loop_options options = usual;
    options.loss_scale = 0x1p30;
    model m;
    begin_model(&m, &options, CUP_F16);
    size_t bytes = bytes_of(&m, before);
    double scale = options.loss_scale;
    int64_t steps = 0, skipped = 0;
    for (; steps < 24 && !cup_optimizer_taken(cup_loop_optimizer(m.loop)); steps++) {
        EXPECT_INT(cup__loop_step(m.loop), CUP_OK);
        EXPECT_INT(cup__loop_read(m.loop, &(cup_training_hooks){.size = 0}), CUP_OK);
        if (cup_loop_skipped(m.loop) == skipped)
            continue;
        skipped++;
        scale /= 2;
        EXPECT(bytes_of(&m, behind) == bytes && !memcmp(before, behind, bytes));
        EXPECT(cup_loop_loss_scale(m.loop) == scale);
    }
    /* The largest gradient is about 1. */
    EXPECT(skipped > 10 && skipped < 20 && steps == skipped + 1);
    EXPECT(bytes_of(&m, behind) == bytes && memcmp(before, behind, bytes) != 0);
    EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_OK);
    EXPECT(cup_loop_loss_scale(m.loop) <= scale && cup_loop_skipped(m.loop) < 23);
    end_model(&m);
}

TEST(loss_scale_stops_when_there_is_none_left)
{
    cup_loop_options options = usual;
    options.loss_scale = 4;
    options.non_finite = CUP_NON_FINITE_STOP;
    model m;
    begin_model(&m, &options, CUP_F32);
    m.bad_from = 3;
    EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(m.c), "the gradients of step 4 are not finite");
    EXPECT_CONTAINS(cup_error_text(m.c), "in backward of batch 0");
    EXPECT_INT(cup_loop_skipped(m.loop), 1);
    cup_error_clear(m.c);
    end_model(&m);
}

TEST(loss_scale_refuses_what_rounds)
{
    static const double wrong_ones[] = {3, 0.5, 0x1p31};
    for (int i = 0; i < 3; i++) {
        cup_loop_options options = usual;
        options.loss_scale = wrong_ones[i];
        model m;
        begin_in(&m, cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")), &options, CUP_F16);
        EXPECT(!m.loop);
        EXPECT_INT(cup_error(m.c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(m.c), i < 2 ? "a power of two from 1" : "loss_scale");
        end_model(&m);
    }
}

/* Batches are shared; the scale is the same on both, also where states are split. */
static void scale_together(cup_context *c, cup_comm *comm, void *user)
{
    cup_loop_options options = usual;
    options.loss_scale = 0x1p24;
    options.loss_scale_steps = 3;
    options.comm = comm;
    if (*(int *)user) {
        options.optimizer.split = comm;
        options.optimizer.stage = *(int *)user;
    }
    model alone, shared;
    cup_loop_options own = options;
    own.comm = own.optimizer.split = NULL;
    begin_in(&alone, c, &own, CUP_F16);
    cup_loop_run(alone.loop, NULL);
    begin_in(&shared, c, &options, CUP_F16);
    cup_loop_run(shared.loop, NULL);
    if (cup_error(c))
        wrong("%s", cup_error_text(c));
    if (cup_loop_skipped(shared.loop) != cup_loop_skipped(alone.loop) ||
        cup_loop_loss_scale(shared.loop) != cup_loop_loss_scale(alone.loop) ||
        cup_loop_skipped(shared.loop) < 3)
        wrong("%d and %d skipped, scales %g and %g", (int)cup_loop_skipped(alone.loop),
              (int)cup_loop_skipped(shared.loop), cup_loop_loss_scale(alone.loop),
              cup_loop_loss_scale(shared.loop));
    end_in(&shared);
    end_in(&alone);
}

TEST(loss_scale_is_that_of_all_processes)
{
    together(2, scale_together, &(int){0});
    together(2, scale_together, &(int){2});
}

static cup_training small_of(cup_dtype dtype)
{
    cup_training training = tiny;
    training.dtype = dtype;
    training.model.dropout = 0;
    training.steps = 60;
    training.evaluate_every = 0;
    return training;
}

static double learn(cup_dtype dtype)
{
    const cup_training training = small_of(dtype);
    int64_t count;
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    const cup_training_point *points = cup_trainer_points(s.trainer, &count);
    double first = points[0].validation, last = points[count - 1].validation;
    EXPECT(last < 0.8 * first);
    EXPECT((cup_trainer_loss_scale(s.trainer) > 0) == (dtype == CUP_F16));
    EXPECT(cup_trainer_skipped(s.trainer) < 6);
    end(&s);
    return last;
}

TEST(loss_scale_lets_f16_learn_as_bf16)
{
    EXPECT_NEAR(learn(CUP_F16), learn(CUP_BF16), 0.02);
}

/* Behind a stop at which good steps are counted, and one at which steps are skipped. */
TEST(loss_scale_resumes_bit_for_bit)
{
    static const int64_t stops[] = {2, 8};
    cup_training_point whole[MOST_POINTS], parts[MOST_POINTS];
    const char *folder = test_folder();
    cup_training training = tiny, read;
    training.dtype = CUP_F16;
    training.loss_scale = 0x1p22;
    training.loss_scale_steps = 3;
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, whole), skipped = cup_trainer_skipped(s.trainer);
    double scale = cup_trainer_loss_scale(s.trainer);
    EXPECT(skipped > 2 && skipped < 10);
    end(&s);
    for (int i = 0; i < 2; i++) {
        begin(&s, &training, sample_text(), folder);
        EXPECT_INT(cup_trainer_overwrite(s.trainer), CUP_OK);
        s.stop_at = stops[i];
        EXPECT_INT(go(&s), CUP_INTERRUPTED);
        int64_t before = cup_trainer_skipped(s.trainer);
        double then = cup_trainer_loss_scale(s.trainer);
        end(&s);
        begin(&s, &training, sample_text(), folder);
        EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
        EXPECT_INT(cup_trainer_skipped(s.trainer), before);
        EXPECT(cup_trainer_loss_scale(s.trainer) == then);
        EXPECT_INT(go(&s), CUP_OK);
        EXPECT_INT(points_of(&s, parts), count);
        for (int64_t k = 0; k < count; k++)
            if (!isfinite(whole[k].norm)) /* an infinity is nothing in losses.csv */
                whole[k].norm = parts[k].norm = NAN;
        expect_same_points(whole, parts, count);
        EXPECT_INT(cup_trainer_skipped(s.trainer), skipped);
        EXPECT(cup_trainer_loss_scale(s.trainer) == scale);
        end(&s);
    }
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int64_t steps;
    EXPECT_INT(cup_training_load(c, folder, &read, &steps), CUP_OK);
    EXPECT_INT(read.dtype, CUP_F16);
    EXPECT(read.loss_scale == 0x1p22 && read.loss_scale_steps == 3);
    cup_context_free(c);
}

TEST(loss_scale_on_the_fake_gpu)
{
    cup_loop_options options = usual;
    options.loss_scale = 65536;
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
    model m;
    begin_in(&m, cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda")), &options, CUP_F16);
    EXPECT_INT(cup_loop_run(m.loop, NULL), CUP_OK);
    EXPECT_TEXT(cup_error_text(m.c), "");
    EXPECT_INT(m.loop->replay, CUP__REPLAY_ON);
    EXPECT_INT(cup_loop_steps(m.loop), 24);
    end_model(&m);
    fake_expect_nothing_left();
}
