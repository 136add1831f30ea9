/* Contexts are independent: two of them, each in a thread of its own, do all that touches what a
 * process has once. What ThreadSanitizer hears in it is hidden state. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"

#define ROUNDS 4
#define ROWS 48
#define WIDTH 32

typedef struct worker {
    const char *device;
    float found[ROUNDS]; /* an element of the weights after each step */
    char failed[512];
} worker;

static _Atomic int heard;

static void hear(void *user, const char *line)
{
    (void)line;
    atomic_fetch_add((_Atomic int *)user, 1);
}

static cup_tensor *loss_of(cup_context *c, cup_tensor *weight, cup_expr *formula)
{
    cup_tensor *x = cup_normal(c, CUP_F32, 2, (int64_t[]){ROWS, WIDTH}, 0, 1);
    cup_tensor *y = cup_gelu(c, cup_linear(c, x, weight, NULL));
    cup_tensor *z = cup_expr_call(formula, &y, NULL, NULL);
    return cup_mean(c, cup_layernorm(c, z, NULL, NULL, 1e-5), NULL, 0, false);
}

static void train(cup_context *c, worker *w)
{
    cup_tensor *weight = cup_keep(cup_normal(c, CUP_F32, 2, (int64_t[]){WIDTH, WIDTH}, 0, 0.1));
    cup_require_grad(weight);
    cup_parameter parameter = {.name = "weight", .tensor = weight};
    cup_optimizer_options options = {.size = sizeof options};
    cup_expr *formula = cup_expr_new(c, "x", NULL, "x * x + 0.25 * tanh(x)");
    cup_optimizer *o = cup_optimizer_new(c, &parameter, 1, &options);
    for (int i = 0; i < ROUNDS && cup_error(c) == CUP_OK; i++) {
        cup_scope_open(c);
        cup_random_step(c, (uint64_t)i);
        cup_backward(c, loss_of(c, weight, formula));
        cup_optimizer_set(o, 1e-3, 1);
        cup_optimizer_step(o);
        cup_optimizer_clear(o);
        float all[WIDTH * WIDTH];
        cup_tensor_read(weight, all, sizeof all);
        w->found[i] = all[0];
        cup_scope_close(c);
    }
    cup_optimizer_free(o);
    cup_expr_free(formula);
    cup_tensor_free(weight);
}

static void *work(void *user)
{
    worker *w = user;
    for (int i = 0; i < 2; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = w->device, .seed = 5));
        train(c, w);
        cup_tuning(c, false);
        cup_synchronize(c);
        snprintf(w->failed, sizeof w->failed, "%s", cup_error_text(c));
        cup_context_free(c);
    }
    return NULL;
}

/* Before the first context, which reads the level for the whole process. */
static void listen(void)
{
    setenv("CUP_LOG", "dispatch", 1);
    cup_log_to(hear, &heard);
}

static void two_contexts(const char *device, worker workers[2])
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        workers[i].device = device;
        EXPECT_INT(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        EXPECT_INT(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++)
        EXPECT_TEXT(workers[i].failed, "");
    EXPECT(atomic_load(&heard) > 0);
}

TEST(threads_two_contexts_on_the_cpu)
{
    worker workers[2] = {0};
    listen();
    two_contexts("cpu", workers);
    for (int i = 0; i < ROUNDS; i++)
        EXPECT_NEAR(workers[0].found[i], workers[1].found[i], 0);
    EXPECT(workers[0].found[0] != workers[0].found[ROUNDS - 1]);
}

/* Nothing is computed there, but compiled, cached, allocated, launched and tuned. */
TEST(threads_two_contexts_on_the_fake_gpu)
{
    worker workers[2] = {0};
    fake_begin();
    setenv("CUP_KERNELS", "", 1);
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_LIBCUBLASLT", "off", 1);
    listen();
    two_contexts("cuda", workers);
    fake_expect_nothing_left();
}

TEST(gpu_threads_two_contexts)
{
    worker workers[2] = {0};
    listen();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    bool is_there = cup_error(c) == CUP_OK;
    cup_context_free(c);
    if (!is_there)
        test_skip("no GPU");
    atomic_store(&heard, 0);
    two_contexts("cuda", workers);
    for (int i = 0; i < ROUNDS; i++)
        EXPECT_NEAR(workers[0].found[i], workers[1].found[i], 0);
}
