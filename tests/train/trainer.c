/* Training runs: they learn, they go on exactly where they stopped, they refuse what cannot be. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"
#include "train/session.h"
#include "train/trainer.h"

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Runs the training in one go, and with a stop and a resume; expects the same bits. */
static void expect_exact_resume(const cup_training *training, int64_t stop_at, const char *folder)
{
    cup_training_point whole[MOST_POINTS], parts[MOST_POINTS];
    session s;
    begin(&s, training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, whole);
    end(&s);
    begin(&s, training, sample_text(), folder);
    cup_trainer_overwrite(s.trainer);
    s.stop_at = stop_at;
    EXPECT_INT(go(&s), CUP_INTERRUPTED);
    EXPECT_INT(cup_trainer_steps(s.trainer), stop_at);
    end(&s);
    begin(&s, training, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(cup_trainer_steps(s.trainer), stop_at);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT_INT(points_of(&s, parts), count);
    expect_same_points(whole, parts, count);
    end(&s);
}

TEST(trainer_resumes_bit_for_bit)
{
    const char *folder = test_folder();
    expect_exact_resume(&tiny, 1, folder);
    expect_exact_resume(&tiny, 5, folder);
    expect_exact_resume(&tiny, 7, folder);
    expect_exact_resume(&tiny, 11, folder);
}

TEST(trainer_resumes_bit_for_bit_with_other_kinds)
{
    const char *folder = test_folder();
    cup_training other = tiny;
    other.dtype = CUP_BF16;
    other.model.positions = CUP_POSITIONS_ROTARY;
    other.model.norm = CUP_NORM_KIND_RMSNORM;
    other.model.mlp = CUP_MLP_KIND_SWIGLU;
    other.model.kv_heads = 1;
    other.model.untied = true;
    expect_exact_resume(&other, 6, folder);
    other.optimizer.method = CUP_METHOD_LION;
    other.recompute = CUP_RECOMPUTE_POLICY_BLOCK;
    expect_exact_resume(&other, 3, folder);
    other.recompute = CUP_RECOMPUTE_POLICY_NORMS;
    expect_exact_resume(&other, 3, folder);
    other.recompute = CUP_RECOMPUTE_POLICY_AUTO;
    expect_exact_resume(&other, 3, folder);
    other.optimizer = (cup_optimizer_options){.method = CUP_METHOD_SGD, .momentum = 0.9};
    other.dtype = CUP_F32;
    expect_exact_resume(&other, 4, folder);
    other.optimizer = (cup_optimizer_options){.method = CUP_METHOD_MUON, .weight_decay = 0.1};
    other.dtype = CUP_BF16;
    expect_exact_resume(&other, 5, folder);
    other.optimizer.stochastic = true;
    expect_exact_resume(&other, 3, folder);
    other.order = CUP_DATA_ORDER_PERMUTED;
    other.model.positions = CUP_POSITIONS_ALIBI;
    other.model.soft_cap = 2;
    other.model.logits_cap = 3;
    other.model.sinks = true;
    expect_exact_resume(&other, 5, folder);
}

TEST(trainer_resumes_bit_for_bit_in_fp8)
{
    const char *folder = test_folder();
    cup_training fp8 = tiny, read;
    int64_t steps;
    fp8.dtype = CUP_BF16;
    fp8.precision = "fp8";
    expect_exact_resume(&fp8, 6, folder);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_training_load(c, folder, &read, &steps), CUP_OK);
    EXPECT_TEXT(read.precision, "fp8");
    cup_context_free(c);
    cup_training other = tiny;
    other.dtype = CUP_BF16;
    session s;
    begin(&s, &other, sample_text(), folder);
    EXPECT(cup_trainer_resume(s.trainer) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(s.c), "precision");
    end(&s);
    fp8.precision = "fp9";
    begin(&s, &fp8, sample_text(), NULL);
    EXPECT(!s.trainer);
    end(&s);
}

/* Norms and activations are the same numbers the second time, for several batches a step too. */
TEST(trainer_gives_the_same_losses_with_norms_computed_again)
{
    cup_training_point kept[MOST_POINTS], again[MOST_POINTS];
    cup_training training = tiny;
    session s;
    for (int accumulate = 1; accumulate < 4; accumulate += 2) {
        training.accumulate = accumulate;
        training.recompute = CUP_RECOMPUTE_POLICY_NONE;
        begin(&s, &training, sample_text(), NULL);
        EXPECT_INT(go(&s), CUP_OK);
        int64_t count = points_of(&s, kept);
        end(&s);
        training.recompute = CUP_RECOMPUTE_POLICY_NORMS;
        begin(&s, &training, sample_text(), NULL);
        EXPECT_INT(go(&s), CUP_OK);
        EXPECT_INT(points_of(&s, again), count);
        expect_same_points(kept, again, count);
        end(&s);
    }
}

/* A flag was all that 0.1.0 knew. */
TEST(trainer_reads_what_was_a_flag)
{
    static const char *const flags[] = {"false", "true"};
    const char *folder = test_folder();
    char out[1000];
    for (int i = 0; i < 2; i++) {
        cup_training training = tiny, read;
        int64_t steps;
        session s;
        training.recompute = (cup_recompute_policy)i;
        begin(&s, &training, sample_text(), folder);
        cup_trainer_overwrite(s.trainer);
        s.stop_at = 2;
        EXPECT_INT(go(&s), CUP_INTERRUPTED);
        end(&s);
        EXPECT_INT(test_command(out, sizeof out,
                                "cd '%s' && sed -i -z -e 's/\"schema\": 2/\"schema\": 1/' "
                                "-e 's/\"recompute\": \"[a-z]*\"/\"recompute\": %s/' "
                                "-e 's/,\\n  \"hash\": \"[0-9a-f]*\"\\n}\\n$/\\n}\\n/' state.json "
                                "&& grep -c '\"recompute\": %s' state.json",
                                folder, flags[i], flags[i]),
                   0);
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        EXPECT_INT(cup_training_load(c, folder, &read, &steps), CUP_OK);
        EXPECT_INT(read.recompute, i);
        EXPECT_INT(steps, 2);
        cup_context_free(c);
    }
}

/* The first policy that stays below the limit, or else the one that needs least. */
TEST(trainer_chooses_what_is_computed_again_by_memory)
{
    cup_training training = tiny;
    training.batch = 32;
    training.model.layers = 8;
    double needs[4];
    static const cup_recompute_policy order[] = {
        CUP_RECOMPUTE_POLICY_NONE, CUP_RECOMPUTE_POLICY_NORMS, CUP_RECOMPUTE_POLICY_POINTWISE,
        CUP_RECOMPUTE_POLICY_BLOCK};
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT(!cup_trainer_policy_text(s.trainer));
    cup_training checked = s.trainer->training;
    for (int i = 0; i < 4; i++) {
        checked.recompute = order[i];
        needs[i] = cup__training_needs(&checked);
        EXPECT(i == 0 || needs[i] < needs[i - 1]);
    }
    training.recompute = CUP_RECOMPUTE_POLICY_AUTO;
    for (int i = 0; i < 4; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(
            cup_options, .device = "cpu", .memory_limit = (int64_t)needs[i] + (i < 3)));
        cup_trainer *t = cup_trainer_new(c, s.data, s.tokenizer, NULL, &training);
        EXPECT(t != NULL);
        EXPECT_INT(cup_trainer_model(t)->recompute, order[i]);
        EXPECT_INT(cup_trainer_model(t)->recompute_blocks, 0);
        EXPECT_CONTAINS(cup_trainer_policy_text(t), cup_recompute_policy_name(order[i]));
        EXPECT_CONTAINS(cup_trainer_policy_text(t), "none needs");
        cup_trainer_free(t);
        cup_context_free(c);
    }
    for (int i = 1; i < 4; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(
            cup_options, .device = "cpu",
            .memory_limit = (int64_t)(0.6 * needs[i] + 0.4 * needs[i - 1])));
        cup_trainer *t = cup_trainer_new(c, s.data, s.tokenizer, NULL, &training);
        int64_t blocks = cup_trainer_model(t)->recompute_blocks;
        EXPECT_INT(cup_trainer_model(t)->recompute, order[i]);
        EXPECT(blocks > 0 && blocks < 8);
        EXPECT_CONTAINS(cup_trainer_policy_text(t), "of 8 blocks: none needs ");
        checked.recompute = order[i];
        for (int64_t more = 0; more < 2; more++) {
            checked.recompute_blocks = blocks - more;
            bool fits = cup__training_needs(&checked) <= 0.6 * needs[i] + 0.4 * needs[i - 1];
            EXPECT(blocks == more || fits == !more);
        }
        cup_trainer_free(t);
        cup_context_free(c);
    }
    end(&s);
}

TEST(trainer_gives_the_same_losses_with_any_number_of_threads)
{
    cup_training_point one[MOST_POINTS], many[MOST_POINTS];
    session s;
    int64_t count = 0;
    for (int threads = 1; threads <= 4; threads += 3) {
        begin(&s, &tiny, sample_text(), NULL);
        cup_context *other =
            cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = threads));
        EXPECT_INT(go(&s), CUP_OK);
        count = points_of(&s, threads == 1 ? one : many);
        cup_context_free(other);
        end(&s);
    }
    expect_same_points(one, many, count);
}

static double last_validation(session *s)
{
    cup_training_point points[MOST_POINTS];
    int64_t count = points_of(s, points);
    return points[count - 1].validation;
}

TEST(trainer_learns)
{
    cup_training training = tiny;
    training.model.dropout = 0;
    training.steps = 50;
    training.rate = 1e-2;
    training.evaluate_every = 0;
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    cup_training_point points[MOST_POINTS];
    points_of(&s, points);
    EXPECT_NEAR(points[0].validation, log((double)cup_tokenizer_size(s.tokenizer)), 0.2);
    EXPECT(last_validation(&s) < 0.6 * points[0].validation);
    end(&s);
}

TEST(trainer_accumulates_what_a_large_batch_has)
{
    cup_training training = tiny;
    training.model.dropout = 0;
    training.batch = 6;
    training.accumulate = 1;
    cup_training_point large[MOST_POINTS], small[MOST_POINTS];
    session s;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, large);
    end(&s);
    training.batch = 2;
    training.accumulate = 3;
    begin(&s, &training, sample_text(), NULL);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT_INT(points_of(&s, small), count);
    end(&s);
    for (int64_t i = 0; i < count; i++) {
        EXPECT_INT(large[i].step, small[i].step);
        EXPECT(same(large[i].loss, small[i].loss) || fabs(large[i].loss - small[i].loss) < 1e-5);
        EXPECT(same(large[i].norm, small[i].norm) ||
               fabs(large[i].norm - small[i].norm) < 1e-4 * large[i].norm);
    }
}

TEST(trainer_stops_when_the_loss_is_no_number)
{
    const char *folder = test_folder();
    session s;
    begin(&s, &tiny, sample_text(), folder);
    s.stop_at = 3;
    EXPECT_INT(go(&s), CUP_INTERRUPTED);
    s.stop_at = -1;
    ((float *)cup_tensor_data(cup_trainer_model(s.trainer)->norm))[0] = NAN;
    EXPECT_INT(go(&s), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(s.c), "the loss of step 3 is not a number");
    end(&s);
    /* The checkpoint is that of the healthy model. */
    begin(&s, &tiny, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(cup_trainer_steps(s.trainer), 3);
    EXPECT_INT(go(&s), CUP_OK);
    end(&s);
}

TEST(trainer_checkpoint_can_be_used_alone)
{
    const char *folder = test_folder();
    session s;
    begin(&s, &tiny, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_OK);
    double want = last_validation(&s);
    cup_training training;
    int64_t steps;
    EXPECT_INT(cup_training_load(s.c, folder, &training, &steps), CUP_OK);
    EXPECT_INT(steps, 12);
    EXPECT_INT(training.model.vocabulary, cup_tokenizer_size(s.tokenizer));
    EXPECT_NEAR(training.rate, tiny.rate, 0);
    cup_gpt *m = cup_gpt_load(s.c, folder);
    EXPECT(m != NULL);
    double loss;
    EXPECT_INT(cup_gpt_evaluate(m, s.data, CUP_SPLIT_VALIDATION, 3, 0, &loss), CUP_OK);
    EXPECT_NEAR(loss, want, 0);
    /* Batches of another size only change the rounding; fewer texts change the loss a little. */
    EXPECT_INT(cup_gpt_evaluate(m, s.data, CUP_SPLIT_VALIDATION, 1000, 0, &loss), CUP_OK);
    EXPECT_NEAR(loss, want, 1e-5);
    EXPECT_INT(cup_gpt_evaluate(m, s.data, CUP_SPLIT_VALIDATION, 2, 5, &loss), CUP_OK);
    EXPECT_NEAR(loss, want, 0.5);
    EXPECT_INT(cup_gpt_evaluate(m, s.data, CUP_SPLIT_VALIDATION, 0, 0, &loss), CUP_ARGUMENT);
    cup_gpt_free(m);
    end(&s);
}

/* Resumes with something changed; gives the sentence. */
static void expect_refused(const char *folder, const cup_training *training, const char *text,
                           const char *words)
{
    session s;
    begin(&s, training, text, folder);
    EXPECT_INT(cup_error(s.c), CUP_OK);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), words);
    end(&s);
}

TEST(trainer_resume_refuses_what_differs)
{
    const char *folder = test_folder();
    session s;
    begin(&s, &tiny, sample_text(), folder);
    s.stop_at = 4;
    EXPECT_INT(go(&s), CUP_INTERRUPTED);
    end(&s);
    static const struct {
        size_t offset;
        const char *words;
    } fields[] = {{offsetof(cup_training, batch), "batch is not what"},
                  {offsetof(cup_training, accumulate), "accumulate is not what"},
                  {offsetof(cup_training, seed), "seed is not what"},
                  {offsetof(cup_training, model.layers), "layers is not what"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        cup_training other = tiny;
        int64_t *field = (int64_t *)(void *)((char *)&other + fields[i].offset);
        *field += 1;
        expect_refused(folder, &other, sample_text(), fields[i].words);
    }
    cup_training other = tiny;
    other.model.dropout = 0.2;
    expect_refused(folder, &other, sample_text(), "dropout is not what");
    other = tiny;
    other.dtype = CUP_BF16;
    expect_refused(folder, &other, sample_text(), "dtype is not what");
    other = tiny;
    other.steps = 3;
    expect_refused(folder, &other, sample_text(), "has done 4 steps already");
    expect_refused(folder, &tiny, sample_text() + 4, "the data are not those");
    /* The length of the run and its rates may change. */
    other = tiny;
    other.steps = 20;
    other.rate = 1e-4;
    begin(&s, &other, sample_text(), folder);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_OK);
    EXPECT_INT(go(&s), CUP_OK);
    EXPECT_INT(cup_trainer_steps(s.trainer), 20);
    end(&s);
    char empty[512];
    snprintf(empty, sizeof empty, "%s/empty", folder);
    begin(&s, &tiny, sample_text(), empty);
    EXPECT_INT(cup_trainer_resume(s.trainer), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(s.c), "holds no finished checkpoint");
    end(&s);
}

TEST(trainer_refuses_what_cannot_be)
{
    static const struct {
        size_t offset;
        int64_t value;
        const char *words;
    } whole[] = {{offsetof(cup_training, batch), 0, "batch must be from 1"},
                 {offsetof(cup_training, batch), 1 << 25, "batch must be from 1"},
                 {offsetof(cup_training, accumulate), -1, "accumulate must be"},
                 {offsetof(cup_training, steps), 0, "steps must be from 1"},
                 {offsetof(cup_training, warmup), -1, "warmup must be"},
                 {offsetof(cup_training, model.heads), 3, "not a multiple"},
                 {offsetof(cup_training, model.vocabulary), 2, "the tokenizer has"}};
    session s;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        cup_training bad = tiny;
        *(int64_t *)(void *)((char *)&bad + whole[i].offset) = whole[i].value;
        begin(&s, &bad, sample_text(), NULL);
        EXPECT(s.trainer == NULL);
        EXPECT_INT(cup_error(s.c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(s.c), whole[i].words);
        end(&s);
    }
    cup_training bad = tiny;
    bad.rate = NAN;
    begin(&s, &bad, sample_text(), NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "rate must be");
    end(&s);
    bad = tiny;
    bad.dtype = CUP_F64;
    begin(&s, &bad, sample_text(), NULL);
    EXPECT_CONTAINS(cup_error_text(s.c), "f32, bf16 or f16, not f64");
    end(&s);
}

TEST(presets_can_be)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    int count = 0;
    for (const cup_preset *p = cup_presets(); p->name; p++, count++) {
        EXPECT(cup_preset_find(p->name) == p);
        cup_gpt_config config = p->training.model;
        config.vocabulary = 50257;
        EXPECT_INT(cup_gpt_config_check(c, &config), CUP_OK);
        EXPECT(p->training.steps > p->training.warmup);
    }
    EXPECT(count >= 3);
    EXPECT(cup_preset_find("nothing") == NULL);
    EXPECT(cup_preset_find(NULL) == NULL);
    cup_context_free(c);
}

TEST(trainer_survives_failed_allocations)
{
    const char *folder = test_folder();
    cup_training training = tiny;
    training.steps = 1;
    training.accumulate = 1;
    for (long n = 1;; n += 1 + n / 12) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        const char *text = sample_text();
        cup_corpus *corpus = cup_corpus_new(c, text, strlen(text));
        cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
        cup_data *data = cup_data_new(c, corpus, tokenizer, 16);
        cup__memory_fail_at(n, false);
        cup_trainer *t = cup_trainer_new(c, data, tokenizer, folder, &training);
        cup_trainer_overwrite(t);
        cup_status status = cup_trainer_run(t, NULL);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || cup_error(c) == CUP_MEMORY);
        cup_trainer_free(t);
        cup_data_free(data);
        cup_tokenizer_free(tokenizer);
        cup_corpus_free(corpus);
        cup_context_free(c);
        if (status == CUP_OK)
            break;
        EXPECT(n < 100000);
    }
}

/* The rate stays at its peak before the last steps, and a run that goes on from there has the rates
 * of its own settings. */
TEST(trainer_declines_in_the_last_steps)
{
    const char *folder = test_folder();
    cup_training training = tiny;
    training.decline = CUP_DECLINE_LINEAR;
    training.decline_steps = 4;
    session s;
    cup_training_point points[MOST_POINTS];
    begin(&s, &training, sample_text(), folder);
    EXPECT_INT(go(&s), CUP_OK);
    int64_t count = points_of(&s, points);
    for (int64_t i = 0; i < count; i++) {
        int64_t step = points[i].step;
        if (step >= training.warmup && step <= 8)
            EXPECT_NEAR(points[i].rate, training.rate, 1e-15);
        if (step == 10)
            EXPECT_NEAR(points[i].rate, 0.5 * (training.rate + training.rate_end), 1e-9);
    }
    end(&s);
    cup_training found;
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_training_load(c, folder, &found, NULL), CUP_OK);
    EXPECT_INT(found.decline, CUP_DECLINE_LINEAR);
    EXPECT_INT(found.decline_steps, 4);
    cup_context_free(c);
}
