/* A training step captured and replayed, against the same step as calls: needs a GPU. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"
#include "test.h"
#include "train/trainer.h"

#define STEPS 24
#define MOST_POINTS (STEPS + 8)

/* Dropout, a rate that rises and falls, clipping, several batches a step. */
static cup_training training_of(cup_dtype dtype, cup_method method)
{
    return (cup_training){
        .size = sizeof(cup_training),
        .model = {.layers = 2, .heads = 4, .width = 128, .context = 64, .dropout = 0.2},
        .batch = 8,
        .accumulate = 2,
        .steps = STEPS,
        .warmup = 5,
        .rate = 3e-3,
        .rate_end = 3e-4,
        .dtype = dtype,
        .optimizer = {.method = method, .beta2 = 0.99, .weight_decay = 0.1, .clip = 1},
        .evaluate_every = 10,
        .seed = 11,
    };
}

typedef struct outcome {
    cup_training_point points[MOST_POINTS];
    int64_t count;
    uint64_t weights;
    double seconds; /* of the last steps */
} outcome;

static uint64_t hash_weights(const cup_gpt *model)
{
    uint64_t hash = 1;
    int64_t weights;
    const cup_named *weight = cup_parameters_named(model->parameters, &weights);
    for (int64_t i = 0; i < weights; i++) {
        cup_tensor *t = weight[i].tensor;
        size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
        unsigned char *values = cup__malloc(bytes);
        EXPECT(values && cup_tensor_read(t, values, bytes) == CUP_OK);
        for (size_t k = 0; k < bytes; k++)
            hash = (hash ^ values[k]) * 0x100000001b3u;
        cup__free(values);
    }
    return hash;
}

/* `parts`: the graphs of a step, 0 for calls. */
static void train(const cup_training *training, int64_t parts, outcome *out)
{
    char text[6000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)("abcdefgh ijklmnop\n"[i * i / 7 % 18]);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    cup_corpus *corpus = cup_corpus_new(c, text, sizeof text);
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, tokenizer, training->model.context);
    cup_trainer *t = cup_trainer_new(c, data, tokenizer, NULL, training);
    EXPECT_TEXT(cup_error_text(c), "");
    if (!parts)
        t->loop->replay = CUP__REPLAY_OFF;
    t->loop->part_seconds = parts > 1 ? 0 : 1e9;
    EXPECT_INT(cup_trainer_run(t, NULL), CUP_OK);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(t->loop->replay, parts ? CUP__REPLAY_ON : CUP__REPLAY_OFF);
    EXPECT_INT(t->loop->graph_count, parts);
    const cup_training_point *points = cup_trainer_points(t, &out->count);
    EXPECT(out->count <= MOST_POINTS);
    memcpy(out->points, points, (size_t)out->count * sizeof *points);
    out->weights = hash_weights(t->model);
    struct timespec a, b;
    cup_synchronize(c);
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < 50; i++)
        cup__loop_step(t->loop);
    cup_synchronize(c);
    clock_gettime(CLOCK_MONOTONIC, &b);
    out->seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    cup_trainer_free(t);
    cup_data_free(data);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
    cup_context_free(c);
}

static void expect_same(cup_training training, const char *precision, cup_recompute_policy policy)
{
    static outcome calls, replayed;
    training.precision = precision;
    training.recompute = policy;
    train(&training, 0, &calls);
    for (int64_t parts = 1; parts <= training.accumulate; parts++) {
        train(&training, parts, &replayed);
        printf("%s: a step as calls %.0f us, replayed in %d parts %.0f us\n",
               cup_dtype_name(training.dtype), calls.seconds / 50 * 1e6, (int)parts,
               replayed.seconds / 50 * 1e6);
        EXPECT_INT(replayed.count, calls.count);
        for (int64_t i = 0; i < calls.count; i++) {
            EXPECT(!memcmp(&calls.points[i].loss, &replayed.points[i].loss, sizeof(double)));
            EXPECT(!memcmp(&calls.points[i].norm, &replayed.points[i].norm, sizeof(double)));
            EXPECT(!memcmp(&calls.points[i].validation, &replayed.points[i].validation,
                           sizeof(double)));
        }
        EXPECT(calls.weights == replayed.weights);
    }
}

TEST_LIMITED(gpu_captured_step_gives_the_bits_of_calls, 180)
{
    cup_training f32 = training_of(CUP_F32, CUP_METHOD_ADAMW);
    cup_training bf16 = training_of(CUP_BF16, CUP_METHOD_ADAMW);
    expect_same(f32, NULL, CUP_RECOMPUTE_POLICY_NONE);
    expect_same(bf16, NULL, CUP_RECOMPUTE_POLICY_NONE);
    expect_same(training_of(CUP_BF16, CUP_METHOD_MUON), NULL, CUP_RECOMPUTE_POLICY_NORMS);
    expect_same(bf16, NULL, CUP_RECOMPUTE_POLICY_BLOCK);
    expect_same(bf16, "fp8", CUP_RECOMPUTE_POLICY_NORMS);
}

/* The first loss has the same bits, as forward is the same; later ones differ by what an activation
 * made of a rounded sum differs from one made before it was rounded. */
TEST_LIMITED(gpu_recomputed_norms_learn_the_same, 180)
{
    static outcome kept, again;
    for (int narrow = 0; narrow < 2; narrow++) {
        cup_training training = training_of(narrow ? CUP_BF16 : CUP_F32, CUP_METHOD_ADAMW);
        train(&training, 1, &kept);
        training.recompute = CUP_RECOMPUTE_POLICY_NORMS;
        train(&training, 1, &again);
        EXPECT_INT(again.count, kept.count);
        EXPECT(!memcmp(&kept.points[0].validation, &again.points[0].validation, sizeof(double)));
        for (int64_t i = 0; i < kept.count; i++)
            if (kept.points[i].loss == kept.points[i].loss)
                EXPECT_NEAR(again.points[i].loss, kept.points[i].loss, narrow ? 2e-2 : 1e-3);
        printf("%s: a step that keeps norms %.0f us, computes them again %.0f us\n",
               narrow ? "bf16" : "f32", kept.seconds / 50 * 1e6, again.seconds / 50 * 1e6);
    }
}

/* Where rows go is another in each step, and known to the device alone. */
TEST_LIMITED(gpu_captured_step_with_experts_gives_the_bits_of_calls, 180)
{
    static const cup_recompute_policy policies[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    for (int i = 0; i < 4; i++) {
        cup_training training = training_of(i ? CUP_BF16 : CUP_F32, CUP_METHOD_ADAMW);
        training.model.experts = 8;
        training.model.balance = 0.01;
        training.model.router_z = 0.001;
        training.model.mlp = i ? CUP_MLP_KIND_SWIGLU : CUP_MLP_KIND_GELU;
        training.model.capacity = i == 1 ? 1.25 : 0;
        expect_same(training, NULL, policies[i]);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Wants the run to end a while after its third step. */
typedef struct alarm {
    cup_trainer *trainer;
    double at;
} alarm_at;

static bool is_over(void *user)
{
    alarm_at *a = user;
    if (a->at == 0 && cup_trainer_steps(a->trainer) >= 3)
        a->at = now() + 0.7;
    return a->at > 0 && now() >= a->at;
}

/* A step of seconds, made of 400 batches, ends within a second of being asked to. */
TEST_LIMITED(gpu_trainer_stops_within_a_second, 180)
{
    static char text[60000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "abcdefgh ijklmnop\n"[i * i / 7 % 18];
    cup_training training = training_of(CUP_BF16, CUP_METHOD_ADAMW);
    training.model.layers = 12;
    training.model.heads = 12;
    training.model.width = 768;
    training.model.context = 1024;
    training.accumulate = 400;
    training.evaluate_texts = 1;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    cup_corpus *corpus = cup_corpus_new(c, text, sizeof text);
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, tokenizer, training.model.context);
    alarm_at a = {.trainer = cup_trainer_new(c, data, tokenizer, NULL, &training)};
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_trainer_run(a.trainer, CUP_OPTIONS(cup_training_hooks, .stop = is_over,
                                                      .user = &a)),
               CUP_INTERRUPTED);
    double took = now() - a.at;
    printf("%d graphs a step; the run ended %.2f s after it was asked to\n",
           (int)a.trainer->loop->graph_count, took);
    EXPECT(a.trainer->loop->graph_count > 2);
    EXPECT(took < 1);
    cup_trainer_free(a.trainer);
    cup_data_free(data);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
    cup_context_free(c);
}
