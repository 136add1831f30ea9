/* Plans of training runs, held against runs on the driver that stands in, whose memory is that of
 * the pool. */
#include "cupola/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/support.h"
#include "base/json.h"
#include "comm/comm.h"
#include "cupola/cupola.h"
#include "test.h"
#include "train/trainer.h"

/* Makes the run of a training on the GPU there is, below a limit, and gives its memory. */
static cup_memory run(const cup_training *training, int64_t limit, cup_recompute_policy policy)
{
    cup_memory use;
    static char text[250000]; /* 48 texts of 512 tokens are for validation */
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i / 7 % 20);
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .memory_limit = limit));
    EXPECT_TEXT(cup_error_text(c), "");
    cup_corpus *corpus = cup_corpus_new(c, text, sizeof text);
    cup_tokenizer *t = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, t, training->model.context);
    cup_trainer *trainer = cup_trainer_new(c, data, t, NULL, training);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_trainer_model(trainer)->recompute, policy);
    EXPECT_INT(cup_trainer_run(trainer, NULL), CUP_OK);
    EXPECT_INT(cup_memory_use(c, &use), CUP_OK);
    cup_trainer_free(trainer);
    cup_data_free(data);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    cup_context_free(c);
    return use;
}

static void expect_close(const char *what, int64_t planned, int64_t was, double most)
{
    if (fabs((double)(planned - was)) > most * (double)was)
        test_fail(__FILE__, __LINE__, "%s: %lld bytes were planned, and %lld taken", what,
                  (long long)planned, (long long)was);
}

/* The bytes of runs that keep all and compute blocks twice, in one batch and several, in bf16 and
 * f32, with another optimizer and moving averages. */
TEST(plan_has_the_bytes_of_the_run)
{
    static const struct {
        cup_dtype dtype;
        cup_recompute_policy recompute;
        int64_t accumulate;
        cup_optimizer_options optimizer;
    } runs[] = {
        {CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, 1, {.weight_decay = 0.1, .clip = 1}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_BLOCK, 1, {.weight_decay = 0.1, .clip = 1}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_NORMS, 1, {.weight_decay = 0.1, .clip = 1}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_POINTWISE, 1, {.weight_decay = 0.1, .clip = 1}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, 3, {.weight_decay = 0.1, .clip = 1}},
        {CUP_F32, CUP_RECOMPUTE_POLICY_NONE, 1, {.weight_decay = 0.1, .clip = 1}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, 1, {.method = CUP_METHOD_LION, .average = 0.99}},
        {CUP_BF16, CUP_RECOMPUTE_POLICY_NONE, 1, {.stochastic = true}},
    };
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("FAKE_CUDA_MEMORY", "3000000000", 1);
    cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cup_training a = cup_preset_find("gpt2-124m")->training;
        a.model.layers = 2;
        a.model.width = 384;
        a.model.heads = 6;
        a.model.context = 512;
        a.model.vocabulary = 20;
        a.batch = 40;
        a.steps = 4;
        a.warmup = 1;
        a.evaluate_texts = a.batch;
        a.dtype = runs[i].dtype;
        a.recompute = runs[i].recompute;
        a.accumulate = runs[i].accumulate;
        a.optimizer = runs[i].optimizer;
        cup_plan plan;
        EXPECT_INT(cup_training_plan(cpu, &a, "h200", &plan, NULL, NULL), CUP_OK);
        cup_memory use = run(&a, 0, a.recompute);
        expect_close("in use", plan.peak_bytes, use.peak_allocated, 0.05);
        expect_close("held", plan.held_bytes, use.peak_reserved, 0.05);
        EXPECT(plan.kept_bytes > 0 && plan.kept_bytes < plan.peak_bytes && plan.fits);
    }
    cup_context_free(cpu);
    fake_expect_nothing_left();
}

/* What "auto" chooses is the fastest that stays below the limit, and it does stay there. */
TEST(plan_and_run_choose_the_same_policy)
{
    static const cup_recompute_policy order[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("FAKE_CUDA_MEMORY", "3000000000", 1);
    cup_training a = cup_preset_find("char")->training;
    a.dtype = CUP_BF16;
    a.model.vocabulary = 20;
    a.batch = 48;
    a.steps = 4;
    a.warmup = 1;
    a.evaluate_texts = a.batch;
    for (int i = 0; i < 4; i++) {
        cup_plan plan;
        cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        a.recompute = order[i];
        EXPECT_INT(cup_training_plan(cpu, &a, "h200", &plan, NULL, NULL), CUP_OK);
        cup_context_free(cpu);
        a.recompute = CUP_RECOMPUTE_POLICY_AUTO;
        int64_t limit = plan.held_bytes + plan.held_bytes / 40 + 1;
        cup_memory use = run(&a, limit, order[i]);
        EXPECT(use.peak_reserved <= limit);
    }
    fake_expect_nothing_left();
}

/* What `cupola plan` says that a GPU needs of so many that share a step so. */
static double needed_by_plan(int gpus, cup_recompute_policy policy, const char *split)
{
    static char out[20000];
    cup__json json;
    EXPECT_INT(test_command(out, sizeof out,
                            "'%s/cupola' plan --preset char --vocabulary 20 --card h200 --dtype "
                            "bf16 --batch 12 --json --gpus %d --recompute %s --parallel %s",
                            test_build(), gpus, cup_recompute_policy_name(policy), split),
               0);
    EXPECT_INT(cup__json_parse(NULL, "plan", out, strlen(out), &json), CUP_OK);
    const cup__json_node *first = cup__json_find(json.root, "splits") + 1;
    double needed = cup__json_number(cup__json_find(first, "needed_bytes"));
    cup__json_free(&json);
    return needed;
}

/* How processes share a step; as `cupola plan` is told it, and as a process has it. */
typedef struct shared {
    const char *words;
    int64_t tensor, stages, accumulate;
    cup_recompute_policy recompute;
    int copies, zero;
    int64_t ring, expert;
    bool sequence;
} shared;

static const shared splits[] = {
    {"tp=2 --accumulate 2", 2, 1, 2, CUP_RECOMPUTE_POLICY_NONE, 1, 0, .ring = 0},
    {"tp=3 --accumulate 1", 3, 1, 1, CUP_RECOMPUTE_POLICY_NORMS, 1, 0, .ring = 0},
    {"pp=2 --interleave 1 --accumulate 4", 1, 2, 4, CUP_RECOMPUTE_POLICY_POINTWISE, 1, 0,
     .ring = 0},
    {"pp=3,tp=2 --interleave 1 --accumulate 3", 2, 3, 3, CUP_RECOMPUTE_POLICY_BLOCK, 1, 0,
     .ring = 0},
    {"dp=4 --accumulate 4 --zero 1", 1, 1, 1, CUP_RECOMPUTE_POLICY_NONE, 4, 1, .ring = 0},
    {"dp=2,tp=2 --accumulate 2 --zero 2", 2, 1, 1, CUP_RECOMPUTE_POLICY_NONE, 2, 2, .ring = 0},
    {"dp=4,pp=2 --interleave 1 --accumulate 8 --zero 3", 1, 2, 2, CUP_RECOMPUTE_POLICY_NORMS, 4, 3,
     .ring = 0},
    {"dp=2,tp=2 --accumulate 4 --zero 3 --lora 64", 2, 1, 2, CUP_RECOMPUTE_POLICY_NONE, 2, 3,
     .ring = 0},
    {"cp=2 --accumulate 2 --zero 0", 1, 1, 2, CUP_RECOMPUTE_POLICY_NONE, 1, 0, .ring = 2},
    {"cp=4,tp=2 --accumulate 1 --zero 0", 2, 1, 1, CUP_RECOMPUTE_POLICY_BLOCK, 1, 0, .ring = 4},
    {"cp=2,pp=2 --interleave 1 --accumulate 4 --zero 1", 1, 2, 4, CUP_RECOMPUTE_POLICY_NORMS, 1,
     1, .ring = 2},
    {"dp=2,cp=2 --accumulate 2 --zero 3", 1, 1, 1, CUP_RECOMPUTE_POLICY_NORMS, 2, 3, .ring = 2},
    {"dp=4,ep=2 --experts 4 --accumulate 4 --zero 0", 1, 1, 1, CUP_RECOMPUTE_POLICY_NONE, 4, 0,
     .expert = 2},
    {"dp=4,ep=4 --experts 4 --accumulate 8 --zero 0", 1, 1, 2, CUP_RECOMPUTE_POLICY_POINTWISE, 4,
     0, .expert = 4},
    {"dp=4,ep=2 --experts 4 --accumulate 4 --zero 1", 1, 1, 1, CUP_RECOMPUTE_POLICY_BLOCK, 4, 1,
     .expert = 2},
    {"dp=4,ep=2 --experts 4 --accumulate 4 --zero 3", 1, 1, 1, CUP_RECOMPUTE_POLICY_POINTWISE, 4,
     3, .expert = 2},
    {"dp=2,tp=2,ep=4 --experts 4 --accumulate 4 --zero 3", 2, 1, 2,
     CUP_RECOMPUTE_POLICY_POINTWISE, 2, 3, .expert = 4},
    {"dp=2,pp=2,ep=2 --interleave 1 --experts 4 --accumulate 4 --zero 2", 1, 2, 2,
     CUP_RECOMPUTE_POLICY_NONE, 2, 2, .expert = 2},
    {"tp=2 --sequence-parallel --dropout 0 --accumulate 1", 2, 1, 1, CUP_RECOMPUTE_POLICY_NONE, 1,
     0, .sequence = true},
    {"pp=2,tp=3 --sequence-parallel --dropout 0 --interleave 1 --accumulate 4", 3, 2, 4,
     CUP_RECOMPUTE_POLICY_NORMS, 1, 0, .sequence = true},
    {"dp=2,tp=2 --sequence-parallel --dropout 0 --accumulate 4 --zero 2", 2, 1, 2,
     CUP_RECOMPUTE_POLICY_BLOCK, 2, 2, .sequence = true},
};

static cup_training training_of(const shared *split, cup_comm *all)
{
    cup_training a = cup_preset_find("char")->training;
    int64_t ring = split->ring ? split->ring : 1;
    all->count = (int)(split->tensor * split->stages * split->copies * ring);
    a.dtype = CUP_BF16;
    a.model.vocabulary = 20;
    a.model.experts = split->expert ? 4 : 0;
    a.batch = 12;
    a.accumulate = split->accumulate;
    a.tensor = split->tensor;
    a.stages = split->stages;
    a.ring = split->ring;
    a.expert = split->expert;
    a.sequence = split->sequence;
    a.model.dropout = split->sequence ? 0 : a.model.dropout;
    a.lora_rank = strstr(split->words, "--lora 64") ? 64 : 0;
    a.optimizer.split = split->zero ? all : NULL;
    a.optimizer.stage = split->zero;
    a.recompute = split->recompute;
    return a;
}

/* Of a model that processes share out a policy is chosen by what one of them has, the bytes being
 * those that `cupola plan` says. */
TEST(plan_and_policy_are_of_a_share)
{
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("FAKE_CUDA_MEMORY", "3000000000", 1);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const shared *split = &splits[i];
        double needs;
        cup_comm all = {0};
        cup_training a = training_of(split, &all);
        double planned = needed_by_plan(all.count, split->recompute, split->words);
        cup_context *c = cup_context_new(CUP_OPTIONS(
            cup_options, .device = "cuda", .memory_limit = (int64_t)(1.04 * planned)));
        EXPECT_INT(cup__training_check(c, &a), CUP_OK);
        EXPECT_INT(cup__training_policy_needs(c, &a, &needs), CUP_OK);
        expect_close(split->words, (int64_t)planned, (int64_t)needs, 0.01);
        cup_trainer t = {.training = a};
        a.recompute = CUP_RECOMPUTE_POLICY_AUTO;
        EXPECT_INT(cup__training_policy(c, &t, &a), CUP_OK);
        if (a.recompute != split->recompute)
            test_fail(__FILE__, __LINE__, "%s: policy %d", split->words, (int)a.recompute);
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

/* Kernels of losses that overwrite the logits by their gradient, among those compiled so far. */
static int compiled_in_place(cup_context *c)
{
    int found = 0;
    cup_cached_kernels *list = cup_cached_kernels_new(c);
    EXPECT(cup_cached_kernels_count(list) > 0);
    for (int64_t i = 0; i < cup_cached_kernels_count(list); i++) {
        const cup_cached_kernel *k = cup_cached_kernels_at(list, i);
        found += !strncmp(k->source, "cross_entropy", 13) && strstr(k->knobs, "IN_PLACE=1");
    }
    cup_cached_kernels_free(list);
    return found;
}

/* With logits in chunks, too, which are four here. */
TEST(evaluation_computes_no_gradient)
{
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_gpt_config config = {.size = sizeof config,
                             .layers = 1,
                             .heads = 2,
                             .width = 64,
                             .context = 64,
                             .vocabulary = 8192};
    cup_gpt *m = cup_gpt_new(c, CUP_BF16, &config);
    EXPECT_TEXT(cup_error_text(c), "");
    m->logits_most = 64 * 8192 * 2 / 4;
    cup_tensor *ids = cup_tensor_new(c, CUP_I32, 2, (int64_t[]){1, 64});
    cup_scope_open_without_grad(c);
    EXPECT(cup_gpt_loss(m, ids, ids, false) != NULL);
    cup_scope_close(c);
    EXPECT_INT(compiled_in_place(c), 0);
    EXPECT(cup_gpt_loss(m, ids, ids, true) != NULL);
    EXPECT(compiled_in_place(c) > 0);
    cup_gpt_free(m);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* GPT-2 124M with 32 texts and a vocabulary of 8192 took 42.0 ms a step on an H200, and the
 * character model 3.75 ms. */
TEST(plan_has_the_speed_of_the_run)
{
    static const struct {
        const char *preset;
        double dropout, vocabulary, batch, seconds;
    } known[] = {{"gpt2-124m", 0, 8192, 32, 42.0e-3}, {"char", 0.2, 65, 64, 3.75e-3}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < 2; i++) {
        cup_training a = cup_preset_find(known[i].preset)->training;
        cup_plan plan;
        a.dtype = CUP_BF16;
        a.accumulate = 1;
        a.batch = (int64_t)known[i].batch;
        a.model.vocabulary = (int64_t)known[i].vocabulary;
        a.model.dropout = known[i].dropout;
        EXPECT_INT(cup_training_plan(c, &a, "h200", &plan, NULL, NULL), CUP_OK);
        if (!(fabs(plan.seconds / known[i].seconds - 1) < 0.1))
            test_fail(__FILE__, __LINE__, "%s: %.2f ms a step are planned, and it took %.2f",
                      known[i].preset, 1e3 * plan.seconds, 1e3 * known[i].seconds);
    }
    cup_context_free(c);
}

typedef struct seen {
    double seconds, last;
    int count;
} seen;

static void on_op(const cup_plan_op *op, void *user)
{
    seen *s = user;
    EXPECT(op->calls > 0 && op->seconds > 0 && (!s->count || op->seconds <= s->last));
    s->seconds += op->seconds;
    s->last = op->seconds;
    s->count++;
}

static void count_grouped(const cup_plan_op *op, void *user)
{
    *(double *)user += strncmp(op->name, "grouped", 7) ? 0 : op->flops;
}

/* What a token goes through is counted, and all of it is kept. */
TEST(plan_of_experts)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_training a = cup_preset_find("gpt2-124m")->training;
    cup_plan dense, mixed;
    double flops = 0;
    a.batch = 2;
    a.accumulate = 1;
    a.model.vocabulary = 50257;
    a.model.dropout = 0;
    EXPECT_INT(cup_training_plan(c, &a, "h200", &dense, NULL, NULL), CUP_OK);
    a.model.experts = 8;
    a.model.experts_each = 1;
    EXPECT_INT(cup_training_plan(c, &a, "h200", &mixed, count_grouped, &flops), CUP_OK);
    EXPECT_INT(mixed.parameters, cup_gpt_parameter_count(&a.model, true));
    EXPECT(mixed.weight_bytes > 3.5 * (double)dense.weight_bytes);
    EXPECT(fabs(mixed.flops / dense.flops - 1) < 0.05);
    double mlp = 8.0 * 768 * 768; /* weights, each used three times by each token of a batch */
    EXPECT_NEAR(flops, 12 * 6 * mlp * 2 * 1024, 1e-6 * flops);
    static const cup_recompute_policy policies[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    int64_t held = INT64_MAX;
    a.batch = 16;
    for (int i = 0; i < 4; i++) {
        a.recompute = policies[i];
        EXPECT_INT(cup_training_plan(c, &a, "h200", &mixed, NULL, NULL), CUP_OK);
        EXPECT((double)mixed.held_bytes < (i == 1 ? 0.99 : 0.97) * (double)held);
        held = mixed.held_bytes;
    }
    cup_context_free(c);
}

TEST(plan_tells_ops_and_refuses_what_cannot_be)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_training a = cup_preset_find("gpt2-1558m")->training;
    cup_plan plan, again;
    seen s = {0};
    a.batch = 1;
    a.accumulate = 1;
    a.model.vocabulary = 50257;
    EXPECT_INT(cup_training_plan(c, &a, "l4", &plan, on_op, &s), CUP_OK);
    EXPECT(s.count > 10 && fabs(s.seconds / plan.seconds - 1) < 1e-9);
    EXPECT(!plan.fits && plan.held_bytes > (int64_t)24e9);
    EXPECT_INT(plan.parameters, cup_gpt_parameter_count(&a.model, true));
    /* So many batches take so much longer, but for the optimizer. */
    a.accumulate = 4;
    EXPECT_INT(cup_training_plan(c, &a, "l4", &again, NULL, NULL), CUP_OK);
    EXPECT(again.seconds > 1.5 * plan.seconds && again.seconds < 4 * plan.seconds);
    EXPECT(again.tokens_per_second > plan.tokens_per_second);
    a.model.heads = 7;
    EXPECT_INT(cup_training_plan(c, &a, "h200", &plan, NULL, NULL), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_training_plan(c, NULL, "l4", &plan, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "plan: the training is NULL");
    cup_error_clear(c);
    EXPECT_INT(cup_training_plan(c, &a, "l400", &plan, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "the card \"l400\" is none");
    cup_context_free(c);
}
