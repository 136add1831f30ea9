/* What a watched context finds; each finding, and that none is made of what is right. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "tensor/context.h"
#include "test.h"

static cup_context *watched_on(const char *device)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device, .debug = true));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

static cup_tensor *vector(cup_context *c, float first)
{
    return cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){first, 1});
}

static void expect_state(cup_context *c, const char *a, const char *b)
{
    EXPECT_INT(cup_error(c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), a);
    EXPECT_CONTAINS(cup_error_text(c), b);
    cup_error_clear(c);
}

TEST(debug_names_a_tensor_after_its_scope)
{
    cup_context *c = watched_on("cpu");
    cup_debug_mark(c, "the mark");
    cup_tensor *x = cup_keep(vector(c, 3));
    cup_scope_open(c);
    cup_tensor *y = cup_mul(c, x, x);
    cup_scope_close(c);
    for (int i = 0; i < 10; i++) /* which would have its struct otherwise */
        vector(c, 1);
    EXPECT(!cup_add(c, x, y));
    expect_state(c, "add: input 2: [2] f32 of mul (call 1, at the mark) is used after",
                 "its scope was closed");
    float to[2];
    EXPECT_INT(cup_tensor_read(y, to, sizeof to), CUP_STATE);
    expect_state(c, "reading", "of mul");
    EXPECT(isnan(cup_tensor_item(y)));
    expect_state(c, "cup_tensor_item", "of mul");
    EXPECT_INT(cup_tensor_count(y), 0);
    expect_state(c, "cup_tensor_count", "of mul");
    EXPECT(!cup_keep(y));
    expect_state(c, "cup_keep", "of mul");
    EXPECT(!cup_tensor_data(y));
    expect_state(c, "cup_tensor_data", "of mul");
    cup_tensor_free(x);
    cup_context_free(c);
}

TEST(debug_names_a_tensor_after_its_free)
{
    cup_context *c = watched_on("cpu");
    cup_tensor *x = cup_keep(vector(c, 3));
    cup_tensor_free(x);
    cup_tensor_free(x);
    expect_state(c, "cup_tensor_free: [2] f32 of cup_tensor_from", "is used after cup_tensor_free");
    cup_require_grad(x);
    expect_state(c, "cup_require_grad", "is used after cup_tensor_free");
    cup_context_free(c);
}

TEST(debug_names_a_tensor_in_calls_that_are_no_op)
{
    cup_context *c = watched_on("cpu");
    char text[80], path[4400];
    cup_tensor *x = cup_keep(vector(c, 3)), *y = cup_keep(vector(c, 4)), *out = y;
    cup_expr *e = cup_expr_new(c, "x", NULL, "x*x");
    cup_tensor_free(y);
    EXPECT_TEXT(cup_tensor_text(y, text, sizeof text), "[2] f32");
    expect_state(c, "cup_tensor_text: [2] f32 of cup_tensor_from", "used after cup_tensor_free");
    EXPECT_INT(cup_backward(c, y), CUP_STATE);
    expect_state(c, "backward: [2] f32", "used after cup_tensor_free");
    EXPECT(!cup_expr_call(e, &x, NULL, &out));
    expect_state(c, "formula: a result: [2] f32", "used after cup_tensor_free");
    snprintf(path, sizeof path, "%s/x.safetensors", test_folder());
    EXPECT_INT(cup_safetensors_save(c, path, &(cup_named){"weight", y}, 1), CUP_STATE);
    expect_state(c, "weight: [2] f32", "used after cup_tensor_free");
    EXPECT_INT(cup_safetensors_save(c, path, &(cup_named){"weight", x}, 1), CUP_OK);
    EXPECT_INT(cup_safetensors_fill(c, path, &(cup_named){"weight", y}, 1), CUP_STATE);
    expect_state(c, "weight: [2] f32", "used after cup_tensor_free");
    cup_expr_free(e);
    cup_tensor_free(x);
    cup_context_free(c);
}

static void *open_and_close(void *user)
{
    for (int i = 0; i < 100000; i++) {
        cup_scope_open(user);
        cup_scope_close(user);
    }
    return NULL;
}

static void count_lines(void *user, const char *line)
{
    (void)line;
    ++*(int *)user;
}

/* However often it happens. */
TEST(debug_tells_once_of_two_threads)
{
    pthread_t threads[2];
    int lines = 0;
    cup_context *c = watched_on("cpu");
    cup_log_to(count_lines, &lines);
    for (int i = 0; i < 2; i++)
        EXPECT_INT(pthread_create(&threads[i], NULL, open_and_close, c), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    EXPECT(lines <= 1 && lines == (cup_error(c) != CUP_OK));
    cup_log_to(NULL, NULL);
    cup_context_free(c);
}

/* The tape holds it, so that its memory is still there. */
TEST(debug_names_a_tensor_that_only_the_tape_holds)
{
    cup_context *c = watched_on("cpu");
    cup_tensor *x = cup_keep(vector(c, 3));
    cup_require_grad(x);
    cup_scope_open(c);
    cup_scope_open(c);
    cup_tensor *y = cup_mul(c, x, x);
    cup_tensor *loss = cup_scope_return(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false));
    EXPECT(!cup_neg(c, y));
    expect_state(c, "neg: input 1: [2] f32 of mul", "its scope was closed");
    EXPECT_INT(cup_backward(c, loss), CUP_OK);
    float d[2];
    EXPECT_INT(cup_tensor_read(cup_grad(x), d, sizeof d), CUP_OK);
    EXPECT_NEAR(d[0], 4 * 27, 0);
    cup_scope_close(c);
    EXPECT_INT(cup_tensor_read(cup_grad(x), d, sizeof d), CUP_OK);
    cup_backward(c, loss);
    expect_state(c, "backward: [] f32 of sum", "its scope was closed");
    cup_tensor_free(x);
    cup_context_free(c);
}

TEST(debug_names_the_op_that_makes_a_nan)
{
    cup_context *c = watched_on("cpu");
    cup_tensor *x = vector(c, -1);
    cup_debug_mark(c, "line 7");
    EXPECT(!cup_mul(c, x, cup_log(c, x)));
    expect_state(c, "log: [2] f32: result 1, [2] f32, has a NaN (call 1, at line 7)",
                 "all inputs were finite");
    cup_tensor *big = vector(c, INFINITY);
    EXPECT(!cup_sub(c, big, big));
    expect_state(c, "sub: ", "input 1 had an infinity before, input 2 had an infinity before");
    cup_tensor *none = vector(c, NAN);
    EXPECT(cup_neg(c, none)); /* the first was named */
    EXPECT_INT(cup_error(c), CUP_OK);
    cup_context_free(c);
    c = watched_on("cpu");
    EXPECT(cup_reshape(c, vector(c, NAN), 2, (int64_t[]){2, 1})); /* which makes no numbers */
    EXPECT(!cup_neg(c, vector(c, NAN)));
    expect_state(c, "neg: ", "input 1 had a NaN before");
    cup_context_free(c);
}

TEST(debug_names_the_gradient_that_makes_a_nan)
{
    cup_context *c = watched_on("cpu");
    cup_tensor *x = cup_keep(vector(c, 0));
    cup_require_grad(x);
    /* 0 of sqrt's infinite slope */
    cup_tensor *y = cup_sum(c, cup_mul(c, cup_sqrt(c, x), x), NULL, 0, false);
    EXPECT_INT(cup_backward(c, y), CUP_STATE);
    expect_state(c, "has a NaN", "sqrt_grad");
    cup_tensor_free(x);
    cup_context_free(c);
}

static char said[4096];

static void hear(void *user, const char *line)
{
    (void)user;
    size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", line);
}

static void expect_leaks(const char *device)
{
    *said = 0;
    cup_log_to(hear, NULL);
    cup_context *c = watched_on(device);
    CUP_DEBUG_HERE(c);
    cup_tensor *freed = cup_keep(vector(c, 1));
    cup_keep(vector(c, 2));
    cup_tensor_free(freed);
    *said = 0;
    cup_context_free(c);
    cup_log_to(NULL, NULL);
    EXPECT_CONTAINS(said, "debug: 1 kept tensors, 8 bytes, were not freed");
    EXPECT_CONTAINS(said, "debug:   [2] f32 of cup_tensor_from (call 0, at ");
    EXPECT_CONTAINS(said, "debug.c:");
}

TEST(debug_tells_what_was_not_freed)
{
    expect_leaks("cpu");
}

/* Reads the memory of a tensor after its end, which only the device can tell. */
static void expect_poison(cup_context *c)
{
    uint32_t found[2];
    cup_tensor *x = cup_keep(vector(c, 1));
    void *data = cup_tensor_data(x);
    cup_tensor_free(x);
    EXPECT_INT(c->device->calls->read(c->device, found, data, sizeof found), CUP_OK);
    EXPECT(found[0] == UINT32_MAX && found[1] == UINT32_MAX);
}

TEST(debug_poisons_memory_on_the_fake_gpu)
{
    fake_begin();
    cup_context *c = watched_on("cuda");
    expect_poison(c);
    cup_tensor *x = cup_keep(vector(c, 1));
    cup_tensor_free(x);
    float to[2];
    EXPECT_INT(cup_tensor_read(x, to, sizeof to), CUP_STATE);
    cup_context_free(c);
    expect_leaks("cuda");
    fake_expect_nothing_left();
}

static int filled;

static cup_status hear_fill(cup__device *device, void *to, int byte, size_t bytes)
{
    (void)device;
    EXPECT_INT(byte, 0xff);
    memset(to, byte, bytes);
    filled += (int)bytes;
    return CUP_OK;
}

TEST(debug_poisons_when_the_last_view_ends)
{
    cup_context *c = watched_on("cpu");
    cup__device_calls calls = *c->device->calls;
    calls.fill = hear_fill;
    c->device->calls = &calls;
    float to[2];
    cup_tensor *x = cup_keep(vector(c, 5));
    cup_tensor *view = cup_keep(cup_reshape(c, x, 2, (int64_t[]){2, 1}));
    cup_tensor_free(x);
    EXPECT_INT(filled, 0);
    EXPECT_INT(cup_tensor_read(view, to, sizeof to), CUP_OK);
    EXPECT_NEAR(to[0], 5, 0);
    cup_tensor_free(view);
    EXPECT_INT(filled, 8);
    cup_context_free(c);
}

static _Atomic int inside, other_waits;

static bool wait_inside(void *user)
{
    (void)user;
    if (!atomic_exchange(&inside, 1))
        for (int i = 0; i < 5000 && !atomic_load(&other_waits); i++)
            usleep(1000);
    return false;
}

static void hear_other(void *user, const char *line)
{
    (void)user;
    if (strstr(line, " while thread "))
        atomic_store(&other_waits, 1);
}

static void *intrude(void *user)
{
    cup_context *c = user;
    while (!atomic_load(&inside))
        usleep(100);
    cup_scope_open(c);
    return NULL;
}

TEST(debug_names_two_threads_in_one_context)
{
    pthread_t thread;
    cup_context *c = watched_on("cpu");
    cup_tensor *x = vector(c, 1);
    cup_log_to(hear_other, NULL);
    c->stop = wait_inside;
    EXPECT_INT(pthread_create(&thread, NULL, intrude, c), 0);
    cup_add(c, x, x);
    pthread_join(thread, NULL);
    EXPECT_INT(atomic_load(&other_waits), 1);
    expect_state(c, "called cup_scope_open while thread ", " was in add");
    cup_log_to(NULL, NULL);
    EXPECT(cup_add(c, x, x)); /* one after the other may be */
    cup_context_free(c);
}

TEST(debug_is_asked_for_by_the_environment)
{
    setenv("CUP_DEBUG", "1", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(c->debug != NULL);
    cup_context_free(c);
    setenv("CUP_DEBUG", "yes", 1);
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "CUP_DEBUG");
    cup_error_clear(c); /* half a context computes nothing */
    EXPECT(!cup_uniform(c, CUP_F32, 0, NULL, 0, 1) && cup_error(c) == CUP_ARGUMENT);
    cup_context_free(c);
    setenv("CUP_DEBUG", "0", 1);
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(c->debug == NULL);
    cup_debug_mark(c, "nothing");
    cup_context_free(c);
}

TEST(gpu_debug_names_the_op_that_makes_a_nan)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .debug = true));
    if (cup_error(c)) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    EXPECT(cup_exp(c, vector(c, 1)));
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(!cup_log(c, vector(c, -1)));
    expect_state(c, "log: [2] f32: result 1, [2] f32, has a NaN", "all inputs were finite");
    cup_tensor *low = vector(c, -INFINITY);
    EXPECT(!cup_sub(c, low, low));
    expect_state(c, "sub: ", "input 2 had an infinity before");
    expect_poison(c);
    cup_context_free(c);
    expect_leaks("cuda");
}
