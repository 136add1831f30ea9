/* Optimizers over several steps against plain arithmetic, and schedules. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "optim/method.h"
#include "test.h"

#define PARAMETERS 3
#define MOST 64

static const int64_t counts[PARAMETERS] = {1, 37, 64};
static const bool decays[PARAMETERS] = {false, true, true};
static const double rates[PARAMETERS] = {0, 2, 1};

typedef struct run {
    cup_context *c;
    cup_tensor *p[PARAMETERS];
    cup_parameter list[PARAMETERS];
    double want[PARAMETERS][MOST], first[PARAMETERS][MOST], second[PARAMETERS][MOST];
    float gradient[PARAMETERS][MOST];
} run;

static cup_context *cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static void begin(run *r, cup_dtype dtype)
{
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    memset(r, 0, sizeof *r);
    r->c = cpu();
    for (int i = 0; i < PARAMETERS; i++) {
        float values[MOST];
        for (int64_t k = 0; k < counts[i]; k++)
            r->want[i][k] = values[k] = (float)test_uniform(-1, 1);
        cup_tensor *p = cup_tensor_from(r->c, CUP_F32, 1, &counts[i], values);
        r->p[i] = cup_keep(cup_cast(r->c, p, dtype));
        cup_require_grad(r->p[i]);
        r->list[i] = (cup_parameter){names[i], r->p[i], decays[i], rates[i], false};
    }
}

/* Makes gradients by the loss that is linear in the parameters with them as factors. */
static void make_gradients(run *r, double size)
{
    cup_context *c = r->c;
    cup_tensor *loss = NULL;
    for (int i = 0; i < PARAMETERS; i++) {
        for (int64_t k = 0; k < counts[i]; k++)
            r->gradient[i][k] = (float)test_uniform(-size, size);
        cup_tensor *g = cup_tensor_from(c, CUP_F32, 1, &counts[i], r->gradient[i]);
        g = cup_cast(c, g, cup_tensor_dtype(r->p[i]));
        cup_tensor *part = cup_sum(c, cup_mul(c, r->p[i], g), NULL, 0, false);
        loss = loss ? cup_add(c, loss, part) : part;
    }
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
}

static double norm_of(const run *r)
{
    double squares = 0;
    for (int i = 0; i < PARAMETERS; i++)
        for (int64_t k = 0; k < counts[i]; k++)
            squares += (double)r->gradient[i][k] * (double)r->gradient[i][k];
    return sqrt(squares);
}

static double clip_factor(const run *r, const cup_optimizer_options *o, double scale)
{
    double length = norm_of(r) * scale;
    return scale * (o->clip > 0 && length > o->clip ? o->clip / (length + 1e-6) : 1);
}

/* What one element should become, as the papers have it. */
static void expect_element(run *r, const cup_optimizer_options *o, int i, int64_t k, double rate,
                           double factor, int step)
{
    double g = (double)r->gradient[i][k] * factor, decay = decays[i] ? o->weight_decay : 0;
    double *p = &r->want[i][k], *m = &r->first[i][k], *v = &r->second[i][k];
    rate *= rates[i] > 0 ? rates[i] : 1;
    if (o->method == CUP_METHOD_ADAMW) {
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.95 * *v + 0.05 * g * g;
        double corrected = *m / (1 - pow(0.9, step));
        *p -= rate * decay * *p;
        *p -= rate * corrected / (sqrt(*v / (1 - pow(0.95, step))) + 1e-8);
    } else if (o->method == CUP_METHOD_SGD) {
        g += decay * *p;
        *m = o->momentum * *m + g;
        *p -= rate * (o->nesterov ? g + o->momentum * *m : *m);
    } else if (o->method == CUP_METHOD_ADAM) {
        g += decay * *p;
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.999 * *v + 0.001 * g * g;
        double corrected = *m / (1 - pow(0.9, step));
        *p -= rate * corrected / (sqrt(*v / (1 - pow(0.999, step))) + 1e-8);
    } else if (o->method == CUP_METHOD_RMSPROP) {
        g += decay * *p;
        *m = 0.99 * *m + 0.01 * g * g;
        *v = o->momentum * *v + g / (sqrt(*m) + 1e-8);
        *p -= rate * *v;
    } else if (o->method == CUP_METHOD_ADAGRAD) {
        g += decay * *p;
        *m += g * g;
        *p -= rate * g / (sqrt(*m) + 1e-10);
    } else {
        double mix = 0.9 * *m + 0.1 * g;
        *p -= rate * ((mix > 0) - (mix < 0) + decay * *p);
        *m = 0.95 * *m + 0.05 * g;
    }
}

static void expect_near(run *r, double tolerance)
{
    for (int i = 0; i < PARAMETERS; i++) {
        float got[MOST];
        cup_tensor *p = cup_cast(r->c, r->p[i], CUP_F32);
        EXPECT_INT(cup_tensor_read(p, got, (size_t)counts[i] * sizeof *got), CUP_OK);
        for (int64_t k = 0; k < counts[i]; k++)
            EXPECT_NEAR(got[k], r->want[i][k], tolerance);
    }
}

static void follow(const cup_optimizer_options *options, cup_dtype dtype, double tolerance)
{
    run r;
    begin(&r, dtype);
    cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, options);
    EXPECT(o != NULL);
    for (int step = 1; step <= 20; step++) {
        double rate = 0.01 / step, scale = step % 2 ? 1 : 0.25;
        cup_scope_open(r.c);
        make_gradients(&r, step == 3 ? 100 : 1);
        double factor = clip_factor(&r, options, scale);
        for (int i = 0; i < PARAMETERS; i++)
            for (int64_t k = 0; k < counts[i]; k++)
                expect_element(&r, options, i, k, rate, factor, step);
        EXPECT_INT(cup_optimizer_set(o, rate, scale), CUP_OK);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        EXPECT_NEAR(cup_tensor_item(cup_optimizer_norm(o)) / norm_of(&r), 1,
                    dtype == CUP_F32 ? 1e-6 : 1e-2);
        cup_optimizer_clear(o);
        EXPECT(cup_grad(r.p[0]) == NULL);
        cup_scope_close(r.c);
    }
    expect_near(&r, tolerance);
    EXPECT_INT(cup_optimizer_taken(o), 20);
    EXPECT_INT(cup_optimizer_skipped(o), 0);
    cup_optimizer_free(o);
    cup_context_free(r.c);
}

static const cup_optimizer_options adamw = {
    .size = sizeof adamw, .beta2 = 0.95, .weight_decay = 0.1, .clip = 2};
static const cup_optimizer_options heavy = {.size = sizeof heavy,
                                            .method = CUP_METHOD_SGD,
                                            .momentum = 0.8,
                                            .weight_decay = 0.1,
                                            .clip = 2};
static const cup_optimizer_options nesterov = {.size = sizeof nesterov,
                                               .method = CUP_METHOD_SGD,
                                               .momentum = 0.8,
                                               .nesterov = true,
                                               .weight_decay = 0.01};
static const cup_optimizer_options lion = {
    .size = sizeof lion, .method = CUP_METHOD_LION, .beta2 = 0.95, .weight_decay = 0.1, .clip = 2};

TEST(optimizer_adamw_follows_the_paper)
{
    follow(&adamw, CUP_F32, 2e-6);
}

TEST(optimizer_sgd_follows_its_definition)
{
    follow(&heavy, CUP_F32, 2e-6);
    follow(&nesterov, CUP_F32, 2e-6);
    follow(CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD), CUP_F32, 2e-6);
}

TEST(optimizer_lion_follows_the_paper)
{
    follow(&lion, CUP_F32, 2e-6);
}

TEST(optimizer_others_follow_the_formulas_of_pytorch)
{
    static const cup_optimizer_options others[] = {
        {.size = sizeof *others, .method = CUP_METHOD_ADAM, .weight_decay = 0.1, .clip = 2},
        {.size = sizeof *others, .method = CUP_METHOD_RMSPROP, .weight_decay = 0.1},
        {.size = sizeof *others, .method = CUP_METHOD_RMSPROP, .momentum = 0.8, .clip = 2},
        {.size = sizeof *others, .method = CUP_METHOD_ADAGRAD, .weight_decay = 0.1, .clip = 2}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        follow(&others[i], CUP_F32, 3e-6);
}

TEST(optimizer_methods_have_names)
{
    int count = 0;
    for (; strcmp(cup_method_name((cup_method)count), "?"); count++) {
        cup_method found = (cup_method)-1;
        EXPECT_INT(cup_method_find(cup_method_name((cup_method)count), &found), CUP_OK);
        EXPECT_INT(found, count);
        EXPECT(strstr("|" CUP_METHOD_NAMES "|", cup_method_name(found)) != NULL);
    }
    EXPECT_INT(count, CUP_METHOD_ADAMW8 + 1);
    cup_method found = CUP_METHOD_LION;
    EXPECT_INT(cup_method_find("adamwx", &found), CUP_ARGUMENT);
    EXPECT_INT(cup_method_find(NULL, &found), CUP_ARGUMENT);
    EXPECT_INT(cup_method_find("adamw", NULL), CUP_ARGUMENT);
    EXPECT_INT(found, CUP_METHOD_LION);
    EXPECT_TEXT(cup_method_name((cup_method)-1), "?");
}

/* What a method keeps is what a run is told to have room for. */
TEST(optimizer_states_are_those_of_the_table)
{
    for (int method = 0; strcmp(cup_method_name((cup_method)method), "?"); method++)
        for (int with = 0; with < 2; with++) {
            run r;
            begin(&r, CUP_F32);
            cup_optimizer_options options = {.size = sizeof options,
                                             .method = (cup_method)method,
                                             .momentum = with ? 0.5 : 0};
            int64_t count, states = 0;
            cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, &options);
            const cup_named *state = cup_optimizer_state(o, &count);
            for (int64_t i = 0; i < count; i++)
                states += strstr(state[i].name, ".first") || strstr(state[i].name, ".second");
            /* None of the parameters is a hidden matrix, so that Muon leaves all to AdamW. */
            if (method != CUP_METHOD_MUON)
                EXPECT_INT(states, PARAMETERS * cup__method_states(&options));
            else
                EXPECT_INT(states, PARAMETERS * 2);
            cup_optimizer_free(o);
            cup_context_free(r.c);
        }
}

TEST(optimizer_bf16_parameters_follow_their_master_copy)
{
    follow(&adamw, CUP_BF16, 0.03);
    /* Steps far below the resolution of bf16 still add up. */
    run r;
    begin(&r, CUP_BF16);
    cup_optimizer *o = cup_optimizer_new(
        r.c, r.list, PARAMETERS, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_LION));
    double before = cup_tensor_item(cup_cast(r.c, r.p[0], CUP_F32)), sign = 0;
    for (int step = 0; step < 500; step++) {
        make_gradients(&r, 1);
        cup_scope_open(r.c);
        sign = sign != 0 ? sign : (double)r.gradient[0][0];
        cup_tensor *one = cup_sum(r.c, r.p[0], NULL, 0, false);
        cup_optimizer_clear(o);
        EXPECT_INT(cup_backward(r.c, one), CUP_OK);
        cup_optimizer_set(o, 1e-4, 1);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        cup_optimizer_clear(o);
        cup_scope_close(r.c);
    }
    EXPECT_NEAR(cup_tensor_item(cup_cast(r.c, r.p[0], CUP_F32)), before - 0.05, 0.005);
    cup_optimizer_free(o);
    cup_context_free(r.c);
}

TEST(optimizer_skips_a_step_whose_norm_is_not_finite)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int which = 0; which < 3; which++) {
        run r;
        begin(&r, CUP_F32);
        cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, &adamw);
        cup_optimizer_set(o, 0.1, 1);
        make_gradients(&r, 1);
        cup_tensor *g = cup_grad(r.p[1]);
        ((float *)cup_tensor_data(g))[5] = bad[which];
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        expect_near(&r, 0);
        EXPECT_INT(cup_optimizer_skipped(o), 1);
        EXPECT_INT(cup_optimizer_taken(o), 0);
        cup_optimizer_clear(o);
        make_gradients(&r, 1);
        for (int i = 0; i < PARAMETERS; i++)
            for (int64_t k = 0; k < counts[i]; k++)
                expect_element(&r, &adamw, i, k, 0.1, clip_factor(&r, &adamw, 1), 1);
        EXPECT_INT(cup_optimizer_step(o), CUP_OK);
        expect_near(&r, 1e-5);
        EXPECT_INT(cup_optimizer_taken(o), 1);
        cup_optimizer_free(o);
        cup_context_free(r.c);
    }
}

TEST(optimizer_leaves_parameters_without_gradient_alone)
{
    run r;
    begin(&r, CUP_F32);
    cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, &adamw);
    cup_optimizer_set(o, 0.1, 1);
    EXPECT_INT(cup_optimizer_step(o), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(r.c), "call cup_backward first");
    cup_error_clear(r.c);
    cup_tensor *loss = cup_sum(r.c, r.p[2], NULL, 0, false);
    EXPECT_INT(cup_backward(r.c, loss), CUP_OK);
    EXPECT_INT(cup_optimizer_step(o), CUP_OK);
    float b[37];
    cup_tensor_read(r.p[1], b, sizeof b);
    for (int k = 0; k < 37; k++)
        EXPECT_NEAR(b[k], r.want[1][k], 0);
    float c[64];
    cup_tensor_read(r.p[2], c, sizeof c);
    EXPECT(fabs(c[0] - r.want[2][0]) > 0.05);
    cup_optimizer_free(o);
    cup_context_free(r.c);
}

TEST(optimizer_of_memory_that_may_not_be_changed)
{
    float memory[] = {1, 2, 3};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup_parameter w = {
        .name = "w",
        .tensor = cup_tensor_wrap(c, CUP_F32, 1, (int64_t[]){3}, memory,
                                  CUP_OPTIONS(cup_wrap_options, .read_only = true))};
    EXPECT(!cup_optimizer_new(c, &w, 1, NULL));
    EXPECT_INT(cup_error(c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "parameter w, [3] f32, was wrapped as read-only");
    cup_context_free(c);
}

TEST(optimizer_of_a_tensor_that_ended)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .debug = true));
    cup_scope_open(c);
    const cup_parameter w = {.name = "w", .tensor = cup_ones(c, CUP_F32, 0, NULL)};
    cup_scope_close(c);
    EXPECT(!cup_optimizer_new(c, &w, 1, NULL));
    EXPECT_INT(cup_error(c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), "of ones");
    cup_context_free(c);
}

TEST(optimizer_state_has_names)
{
    run r;
    begin(&r, CUP_BF16);
    cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, &adamw);
    int64_t count;
    const cup_named *state = cup_optimizer_state(o, &count);
    EXPECT_INT(count, 1 + 3 * PARAMETERS);
    static const char *const names[] = {"steps", "a.master", "a.first", "a.second", "b.master"};
    for (int i = 0; i < 5; i++)
        EXPECT_TEXT(state[i].name, names[i]);
    EXPECT_INT(cup_tensor_dtype(state[4].tensor), CUP_F32);
    cup_optimizer_free(o);
    cup_context_free(r.c);
}

TEST(optimizer_refuses_what_cannot_be)
{
    static const struct {
        cup_optimizer_options options;
        const char *words;
    } bad[] = {
        {{.beta1 = 1}, "beta1 must be at least 0 and below 1, not 1"},
        {{.beta2 = -0.5}, "beta2"},
        {{.epsilon = NAN}, "epsilon"},
        {{.momentum = 1.5}, "momentum"},
        {{.weight_decay = -1}, "weight_decay"},
        {{.clip = INFINITY}, "clip"},
        {{.method = 70}, "method 70 is none"},
    };
    run r;
    begin(&r, CUP_F32);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cup_optimizer_options options = bad[i].options;
        options.size = sizeof options;
        EXPECT(cup_optimizer_new(r.c, r.list, PARAMETERS, &options) == NULL);
        EXPECT_INT(cup_error(r.c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(r.c), bad[i].words);
        cup_error_clear(r.c);
    }
    EXPECT(cup_optimizer_new(r.c, r.list, 0, NULL) == NULL);
    cup_error_clear(r.c);
    r.list[1].rate = -1;
    EXPECT(cup_optimizer_new(r.c, r.list, PARAMETERS, NULL) == NULL);
    EXPECT_CONTAINS(cup_error_text(r.c), "the rate of b");
    cup_error_clear(r.c);
    r.list[1] = (cup_parameter){"ids", cup_full(r.c, CUP_I32, 1, counts, 0), false, 0, false};
    EXPECT(cup_optimizer_new(r.c, r.list, PARAMETERS, NULL) == NULL);
    EXPECT_INT(cup_error(r.c), CUP_DTYPE);
    cup_error_clear(r.c);
    r.list[1] = (cup_parameter){"b", r.p[1], false, 0, false};
    cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, NULL);
    EXPECT_INT(cup_optimizer_set(o, NAN, 1), CUP_ARGUMENT);
    cup_error_clear(r.c);
    EXPECT_INT(cup_optimizer_set(o, 1, 0), CUP_ARGUMENT);
    cup_error_clear(r.c);
    cup_optimizer_free(o);
    cup_context_free(r.c);
}

TEST(optimizer_survives_every_failed_allocation)
{
    for (long n = 1;; n++) {
        run r;
        begin(&r, CUP_BF16);
        make_gradients(&r, 1);
        cup__memory_fail_at(n, false);
        cup_optimizer *o = cup_optimizer_new(r.c, r.list, PARAMETERS, &adamw);
        cup_status status = cup_optimizer_set(o, 0.1, 1);
        if (status == CUP_OK)
            status = cup_optimizer_step(o);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || cup_error(r.c) == CUP_MEMORY);
        cup_optimizer_free(o);
        cup_context_free(r.c);
        if (status == CUP_OK)
            break;
        EXPECT(n < 1000);
    }
}

TEST(schedule_declines_have_names)
{
    static const char *const names[] = {"cosine", "linear", "constant", "root"};
    cup_decline found = CUP_DECLINE_COSINE;
    for (int i = 0; i < 4; i++) {
        EXPECT_INT(cup_decline_find(names[i], &found), CUP_OK);
        EXPECT_INT(found, i);
        EXPECT_TEXT(cup_decline_name(found), names[i]);
    }
    EXPECT_INT(cup_decline_find("step", &found), CUP_ARGUMENT);
    EXPECT_TEXT(cup_decline_name((cup_decline)4), "?");
    EXPECT_TEXT(cup_decline_name((cup_decline)-1), "?");
}

/* Whatever the numbers are, none overflows on the way. */
TEST(schedule_of_any_numbers)
{
    static const int64_t numbers[] = {INT64_MIN, -5, 0, 1, 7, 10, INT64_MAX - 1, INT64_MAX};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    for (int i = 0; i < COUNT * COUNT * COUNT * COUNT; i++) {
        const cup_schedule s = {.high = 1,
                                .low = 0.1,
                                .warmup = numbers[i % COUNT],
                                .steps = numbers[i / COUNT % COUNT],
                                .decline = (cup_decline)(i % 5),
                                .decline_steps = numbers[i / COUNT / COUNT % COUNT]};
        double rate = cup_schedule_rate(&s, numbers[i / COUNT / COUNT / COUNT]);
        EXPECT(rate > 0 && rate <= 1);
    }
}

TEST(schedule_rises_and_falls)
{
    cup_schedule s = {.high = 1, .low = 0.1, .warmup = 10, .steps = 110};
    EXPECT_NEAR(cup_schedule_rate(&s, 0), 1.0 / 11, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 9), 10.0 / 11, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 10), 1, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 60), 0.55, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 35), 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)), 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 110), 0.1, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&s, 1000), 0.1, 1e-12);
    s.decline = CUP_DECLINE_LINEAR;
    EXPECT_NEAR(cup_schedule_rate(&s, 35), 0.1 + 0.9 * 0.75, 1e-12);
    s.decline = CUP_DECLINE_CONSTANT;
    EXPECT_NEAR(cup_schedule_rate(&s, 1000), 1, 1e-12);
    /* Nothing but a rise, and neither rise nor fall. */
    cup_schedule rise = {.high = 1, .low = 0.5, .warmup = 10, .steps = 10};
    EXPECT_NEAR(cup_schedule_rate(&rise, 9), 10.0 / 11, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&rise, 10), 0.5, 1e-12);
    cup_schedule late = {.high = 1, .low = 0.1, .warmup = 10, .steps = 110, .decline_steps = 20};
    late.decline = CUP_DECLINE_LINEAR;
    EXPECT_NEAR(cup_schedule_rate(&late, 9), 10.0 / 11, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&late, 10), 1, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&late, 90), 1, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&late, 95), 0.1 + 0.9 * 0.75, 1e-12);
    EXPECT_NEAR(cup_schedule_rate(&late, 110), 0.1, 1e-12);
    late.decline = CUP_DECLINE_ROOT;
    EXPECT_NEAR(cup_schedule_rate(&late, 95), 0.1 + 0.9 * 0.5, 1e-12);
    late.decline_steps = 1000;
    EXPECT_NEAR(cup_schedule_rate(&late, 35), 0.1 + 0.9 * 0.5, 1e-12);
    cup_schedule flat = {.high = 1, .low = 1};
    EXPECT_NEAR(cup_schedule_rate(&flat, 0), 1, 1e-12);
}
