/* Training a GPT that processes share out: the run of one process, and its checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/together.h"
#include "test.h"
#include "train/parted.h"

static const parts whole;

static void compare(cup_context *c, cup_comm *comm, cup_training training, const parts *p)
{
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    const parts alone = {.method = p->method};
    int64_t count = cup_comm_rank(comm) ? 0 : parted_run(c, NULL, training, alone, NULL, false, a);
    int64_t same = parted_run(c, comm, training, *p, NULL, false, b);
    if (cup_comm_rank(comm) == 0)
        parted_expect(c, a, count, b, same, p->gated ? "gated" : "plain");
}

static void run_beside_one(cup_context *c, cup_comm *comm, void *user)
{
    const parts *p = user;
    cup_training training = parted_mixed(p);
    training.model.layers = p->layers ? p->layers : training.model.layers;
    training.model.dropout = p->dropout;
    if (p->ring && p->dropout > 0)
        training.model.context = 32 * p->ring;
    compare(c, comm, training, p);
}

/* With evaluations whose last text has an odd number of tokens. */
static void run_oddly(cup_context *c, cup_comm *comm, void *user)
{
    cup_training training = parted_mixed(user);
    training.model.context = 15;
    training.evaluate_texts = 3;
    compare(c, comm, training, user);
}

TEST(parallel_evaluations_that_have_no_equal_parts)
{
    together(2, run_oddly, &(parts){.tensor = 2, .gated = true, .sequence = true});
    together(4, run_oddly, &(parts){.stages = 2, .tensor = 2, .zero = 3, .sequence = true});
}

TEST(parallel_runs_are_those_of_one)
{
    together(2, run_beside_one, &(parts){.tensor = 2});
    together(4, run_beside_one, &(parts){.tensor = 2, .gated = true});
    together(4, run_beside_one, &(parts){.tensor = 4, .gated = true});
}

/* Whose steps are of whole matrices, with queries, keys and values in one; and where one of those
 * who have a part makes its step. */
TEST(parallel_runs_with_muon_are_those_of_one)
{
    together(2, run_beside_one, &(parts){.tensor = 2, .method = CUP_METHOD_MUON});
    together(4, run_beside_one,
             &(parts){.tensor = 2, .gated = true, .zero = 2, .method = CUP_METHOD_MUON});
    together(4, run_beside_one,
             &(parts){.tensor = 2, .stages = 2, .method = CUP_METHOD_MUON});
}

/* Stages alone, of uneven sizes, in groups, and shared out themselves. */
TEST(parallel_stages_are_the_run_of_one)
{
    together(3, run_beside_one, &(parts){.stages = 3});
    together(2, run_beside_one,
             &(parts){.stages = 2, .blocks = (int64_t[]){1, 3}, .gated = true});
}

/* Chunks of stages in turns, of uneven sizes, in groups, and shared out themselves. */
TEST(parallel_chunks_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.stages = 2, .chunks = 2});
    together(3, run_beside_one, &(parts){.stages = 3, .chunks = 2, .layers = 7});
    together(2, run_beside_one,
             &(parts){.stages = 2, .chunks = 3, .layers = 9, .gated = true,
                      .blocks = (int64_t[]){1, 3, 1, 1, 2, 1}});
}

TEST(parallel_chunks_are_copied_and_shared_out)
{
    together(4, run_beside_one, &(parts){.stages = 2, .chunks = 2});
    together(4, run_beside_one, &(parts){.stages = 2, .chunks = 2, .tensor = 2, .gated = true});
    together(4, run_beside_one, &(parts){.stages = 2, .chunks = 2, .ring = 2});
}

TEST(parallel_stages_are_copied_and_shared_out)
{
    together(4, run_beside_one, &(parts){.stages = 2});
    together(4, run_beside_one,
             &(parts){.stages = 2, .tensor = 2, .gated = true, .sequence = true});
}

/* Parts of texts, of two and of four; and beside copies, a split model and stages. */
TEST(parallel_texts_in_parts_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.ring = 2});
    together(4, run_beside_one, &(parts){.ring = 4, .gated = true});
}

TEST(parallel_texts_in_parts_beside_others)
{
    together(4, run_beside_one, &(parts){.ring = 2});
    together(2, run_beside_one, &(parts){.ring = 2, .zero = 3});
    together(4, run_beside_one,
             &(parts){.ring = 2, .tensor = 2, .gated = true, .sequence = true});
    together(4, run_beside_one, &(parts){.ring = 2, .stages = 2});
}

/* What all have is dropped alike, and of the heads each drops what one process would of its own. */
TEST(parallel_parts_drop_what_one_does)
{
    together(2, run_beside_one, &(parts){.tensor = 2, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.tensor = 2, .dropout = 0.3, .gated = true});
    together(4, run_beside_one, &(parts){.tensor = 4, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.stages = 2, .tensor = 2, .dropout = 0.2});
}

/* So is what each has a part of, probabilities too. */
TEST(parallel_texts_in_parts_drop_what_one_does)
{
    together(2, run_beside_one, &(parts){.ring = 2, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.ring = 4, .dropout = 0.3, .gated = true});
    together(8, run_beside_one,
             &(parts){.ring = 2, .tensor = 2, .stages = 2, .layers = 2, .dropout = 0.2});
}

/* What is dropped is what one process drops. */
TEST(parallel_stages_drop_what_one_does)
{
    together(2, run_beside_one, &(parts){.stages = 2, .dropout = 0.2});
    together(2, run_beside_one, &(parts){.stages = 2, .dropout = 0.3, .gated = true});
    together(3, run_beside_one, &(parts){.stages = 3, .chunks = 2, .layers = 7, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.stages = 2, .chunks = 2, .dropout = 0.1});
}

/* Experts alone, all or with a capacity, and with copies of all of them; and beside other ways that
 * processes train. */
TEST(parallel_experts_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .expert = 2, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 4, .gated = true});
    together(4, run_beside_one, &(parts){.experts = 2, .expert = 2, .capacity = 1.25});
}

TEST(parallel_experts_that_all_have_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .zero = 3});
    together(2, run_beside_one, &(parts){.experts = 4, .ring = 2, .gated = true});
}

/* Of which each process has a part, and makes the choices of all. */
TEST(parallel_experts_in_parts_of_a_model_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .tensor = 2, .dropout = 0.2});
    together(4, run_beside_one,
             &(parts){.experts = 4, .tensor = 2, .gated = true, .capacity = 1.25, .zero = 3});
    together(4, run_beside_one,
             &(parts){.experts = 2, .tensor = 4, .gated = true, .sequence = true});
    together(4, run_beside_one, &(parts){.experts = 4, .tensor = 2, .stages = 2, .zero = 1});
    together(4, run_beside_one, &(parts){.experts = 4, .tensor = 2, .ring = 2, .zero = 2});
}

/* Whose states, and gradients, are shared out once more among those who have the same ones. */
TEST(parallel_experts_with_split_states_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .expert = 2, .zero = 1});
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 2, .zero = 1, .gated = true});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .zero = 2, .gated = true, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 4, .zero = 2, .ring = 2});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .zero = 2, .gated = true, .batches = 16});
}

/* Of a model that is shared out and of its stages, too: among those who have the same. */
TEST(parallel_parts_with_split_states_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.tensor = 2, .zero = 1});
    together(4, run_beside_one, &(parts){.tensor = 2, .zero = 1, .gated = true});
    together(4, run_beside_one, &(parts){.tensor = 2, .zero = 2, .gated = true, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.tensor = 2, .zero = 2, .ring = 2});
}

TEST(parallel_stages_with_split_states_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.stages = 2, .zero = 2});
    together(4, run_beside_one, &(parts){.stages = 2, .zero = 1, .gated = true});
    together(4, run_beside_one, &(parts){.stages = 2, .zero = 2, .dropout = 0.2});
    together(4, run_beside_one, &(parts){.stages = 2, .chunks = 2, .zero = 2, .ring = 2});
    together(8, run_beside_one, &(parts){.stages = 2, .tensor = 2, .zero = 1, .gated = true});
    together(8, run_beside_one, &(parts){.stages = 2, .tensor = 2, .zero = 2});
}

/* Whole parameters come from their owners, and parts from those that have the same. */
TEST(parallel_parts_that_are_elsewhere_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .expert = 2, .zero = 3});
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 2, .zero = 3, .gated = true});
    together(4, run_beside_one, &(parts){.tensor = 2, .zero = 3});
    together(4, run_beside_one,
             &(parts){.tensor = 2, .zero = 3, .gated = true, .dropout = 0.2,
                      .method = CUP_METHOD_MUON});
}

/* Of a stage, too, for each of its batches; its evaluations have one batch more on some. */
TEST(parallel_stages_that_are_elsewhere_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.stages = 2, .zero = 3});
    together(4, run_beside_one, &(parts){.stages = 2, .zero = 3, .dropout = 0.2});
    together(4, run_beside_one,
             &(parts){.stages = 2, .chunks = 2, .zero = 3, .gated = true,
                      .method = CUP_METHOD_MUON});
    together(6, run_beside_one, &(parts){.stages = 2, .zero = 3, .batches = 6});
    together(8, run_beside_one, &(parts){.stages = 2, .tensor = 2, .zero = 3});
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 2, .stages = 2, .zero = 3});
}

/* What experts of each stage cost is in the loss, and in what all learn. */
TEST(parallel_stages_of_experts_are_the_run_of_one)
{
    together(2, run_beside_one, &(parts){.experts = 4, .stages = 2, .dropout = 0.2});
    together(4, run_beside_one,
             &(parts){.experts = 4, .stages = 2, .chunks = 2, .gated = true, .zero = 1});
    together(3, run_beside_one, &(parts){.experts = 2, .stages = 3, .capacity = 1.25});
}

/* Those who share out a model have some experts each, and send a part of their tokens to all. */
TEST(parallel_experts_beside_parts_of_a_model)
{
    together(2, run_beside_one, &(parts){.experts = 4, .expert = 2, .tensor = 2, .dropout = 0.2});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .tensor = 2, .gated = true, .capacity = 1.25});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .tensor = 2, .gated = true, .sequence = true});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .tensor = 2, .stages = 2, .gated = true});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .tensor = 2, .ring = 2, .dropout = 0.2});
}

/* A model that is shared out in either way, or in both, without a run. */
static void evaluate_shared(cup_context *c, cup_comm *comm, void *user)
{
    const char *text = sample_text();
    cup_gpt_config config = parted_mixed(&(parts){.experts = 4}).model;
    cup_corpus *corpus = cup_corpus_new(c, text, strlen(text));
    cup_tokenizer *tokenizer = cup_tokenizer_char_new(c, corpus);
    cup_data *data = cup_data_new(c, corpus, tokenizer, config.context);
    cup_comm *among = cup_comm_split_new(comm, cup_comm_rank(comm) / 2);
    double one = NAN;
    (void)user;
    config.vocabulary = cup_tokenizer_size(tokenizer);
    for (int i = 0; i < 4; i++) {
        double loss = NAN;
        cup_seed(c, 5);
        cup_gpt *m = cup_gpt_shared_new(c, CUP_F32,
                                        CUP_OPTIONS(cup_gpt_sharing, .among = i & 1 ? among : NULL,
                                                    .experts = i & 2 ? comm : NULL),
                                        &config);
        cup_gpt_evaluate(m, data, CUP_SPLIT_VALIDATION, 3, 7, &loss);
        one = i ? one : loss;
        if (!(fabs(loss - one) <= 1e-5 * one))
            wrong("evaluated in way %d: %g and %g; %s", i, loss, one, cup_error_text(c));
        cup_gpt_free(m);
    }
    cup_comm_free(among);
    cup_data_free(data);
    cup_tokenizer_free(tokenizer);
    cup_corpus_free(corpus);
}

TEST(parallel_experts_are_evaluated_as_by_one)
{
    together(4, evaluate_shared, NULL);
}

/* Who has a part owns some of it, and who has an expert some of these. */
TEST(parallel_experts_beside_parts_with_split_states)
{
    together(4, run_beside_one, &(parts){.experts = 4, .expert = 2, .tensor = 2, .zero = 1});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .tensor = 2, .zero = 2, .gated = true});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .tensor = 2, .zero = 3, .gated = true});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .tensor = 2, .stages = 2, .zero = 2});
}

/* Each stage has groups of its own that share out its experts, of copies of it. */
TEST(parallel_experts_of_stages_are_the_run_of_one)
{
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .stages = 2, .dropout = 0.2, .batches = 16});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .stages = 2, .chunks = 2, .gated = true});
    together(6, run_beside_one,
             &(parts){.experts = 2, .expert = 2, .stages = 3, .capacity = 1.25, .zero = 1});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .stages = 2, .gated = true, .zero = 2});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 2, .stages = 2, .dropout = 0.2, .zero = 3});
    together(8, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .stages = 2, .ring = 2, .zero = 1});
}

/* Of parts of texts, in groups of as many, and of more with dropout. */
TEST(parallel_experts_beside_parts_of_texts)
{
    together(2, run_beside_one, &(parts){.experts = 4, .expert = 2, .ring = 2});
    together(4, run_beside_one,
             &(parts){.experts = 4, .expert = 4, .ring = 2, .gated = true, .dropout = 0.2});
}

/* Half of a run is shared out and saved, and goes on with the model whole, or shared out to others;
 * the other way round, too. */
static void change_experts(cup_context *c, cup_comm *comm, void *user)
{
    static const int64_t first[] = {4, 2, 1, 2, 1}, second[] = {1, 4, 2, 2, 4};
    static const int before[] = {0, 0, 1, 3, 3}, behind[] = {0, 1, 2, 1, 3};
    static const int stages[] = {1, 1, 2, 1, 1};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    cup_training training = parted_mixed(&(parts){.experts = 4});
    char folder[500];
    training.rate_end = training.rate;
    int64_t count = parted_run(c, NULL, training, whole, NULL, false, a);
    for (int i = 0; i < 5; i++) {
        cup_training half = training;
        half.steps = 5;
        snprintf(folder, sizeof folder, "%s/experts%d", (const char *)user, i);
        const parts then = {.expert = first[i], .zero = before[i], .stages = stages[i]};
        const parts now = {.expert = second[i], .zero = behind[i]};
        parted_run(c, comm, half, then, folder, false, b);
        int64_t same = parted_run(c, comm, training, now, folder, true, b);
        parted_expect(c, a, count, b, same, folder + strlen(folder) - 8);
    }
    if (cup_comm_rank(comm) == 0) {
        cup_gpt *m = cup_gpt_load(c, folder);
        if (!m || m->config.experts != 4 || m->config.experts_each != 2)
            wrong("the model of a checkpoint is another one: %s", cup_error_text(c));
        if (cup_gpt_export(m, folder) != CUP_UNSUPPORTED ||
            !strstr(cup_error_text(c), "with experts as a Mixtral"))
            wrong("a model with experts was published");
        cup_error_clear(c);
        cup_gpt_free(m);
    }
}

static void change(cup_context *c, cup_comm *comm, void *user)
{
    static const parts first[] = {{.tensor = 2},
                                  {0},
                                  {.tensor = 4},
                                  {.tensor = 2, .stages = 2},
                                  {.ring = 4},
                                  {.stages = 2, .chunks = 2},
                                  {.stages = 4},
                                  {.tensor = 2, .zero = 3},
                                  {.stages = 2, .zero = 1},
                                  {.stages = 2, .chunks = 2, .zero = 2},
                                  {.stages = 2, .zero = 3}};
    static const parts second[] = {{0},
                                   {.stages = 4},
                                   {.tensor = 2},
                                   {0},
                                   {.ring = 2},
                                   {.tensor = 4},
                                   {.tensor = 2, .stages = 2, .chunks = 2},
                                   {.stages = 2, .zero = 2},
                                   {.tensor = 2, .zero = 1},
                                   {.tensor = 2, .zero = 3},
                                   {.tensor = 2, .stages = 2, .zero = 3}};
    cup_training_point a[MOST_POINTS], b[MOST_POINTS];
    cup_training training = parted_training(false);
    char folder[500];
    /* Of four that share out the model two have the same head of keys. */
    training.model.kv_heads = 2;
    /* So that the rates do not depend on the number of steps. */
    training.rate_end = training.rate;
    int64_t count = parted_run(c, NULL, training, whole, NULL, false, a);
    for (int i = 0; i < 11; i++) {
        cup_training half = training;
        half.steps = 5;
        snprintf(folder, sizeof folder, "%s/run%d", (const char *)user, i);
        parted_run(c, comm, half, first[i], folder, false, b);
        int64_t same = parted_run(c, comm, training, second[i], folder, true, b);
        parted_expect(c, a, count, b, same, folder + strlen(folder) - 4);
    }
}

static char *meeting_folder(char out[400])
{
    snprintf(out, 400, "%.*s", (int)(strrchr(together_address(), '/') - together_address() - 5),
             together_address() + 5);
    return out;
}

TEST(parallel_checkpoints_are_of_any_number)
{
    char folder[400];
    together(4, change, meeting_folder(folder));
}

TEST(parallel_checkpoints_of_experts_are_of_any_number)
{
    char folder[400];
    together(4, change_experts, meeting_folder(folder));
}

static void expect_words(cup_context *c, const char *words)
{
    if (!strstr(cup_error_text(c), words))
        wrong("not \"%s\" but \"%s\"", words, cup_error_text(c));
    cup_error_clear(c);
}

static void refuse(cup_context *c, cup_comm *comm, void *user)
{
    static const int64_t few[] = {1, 1}, none[] = {0, 4};
    static const struct {
        parts parts;
        int64_t heads;
        double dropout;
        const char *words;
    } cases[] = {
        {{.tensor = 3}, 4, 0, "no groups of 0 stages of 3 processes each"},
        {{.tensor = -1}, 4, 0, "of -1 processes each"},
        {{.stages = 3}, 4, 0, "no groups of 3 stages"},
        {{.ring = 4}, 4, 0, "2 groups of 1 processes are no rings of 4"},
        {{.ring = -2}, 4, 0, "no rings of -2"},
        {{.ring = 2}, 4, 0.1, "make the context a multiple of 64, or set dropout to 0"},
        {{.tensor = 2}, 1, 0, "1 heads and 1 of keys and values cannot be shared out equally to 2"},
        {{.experts = 4, .expert = 3}, 4, 0, "no groups of 3 that share out experts"},
        {{.experts = 4, .expert = 2, .stages = 2}, 4, 0, "1 processes of each stage are no groups"},
        {{.experts = 3, .expert = 2}, 4, 0, "3 experts in a block cannot be shared out equally"},
        {{.expert = 2}, 4, 0, "0 experts in a block cannot be shared out equally to 2"},
        {{.tensor = 2, .sequence = true}, 4, 0.1, "share out tokens between blocks do not know of"},
        {{.stages = 2, .blocks = few}, 4, 0, "have 2 blocks together"},
        {{.stages = 2, .blocks = none}, 4, 0, "stage 0 of 2 has 0 of the"},
        {{.stages = 2, .chunks = 3}, 4, 0, "chunk 2 of stage 0 of 2 has 0 of the 4 blocks"},
        {{.chunks = 2}, 4, 0, "2 chunks of each of 1 stages"},
        {{.stages = 2, .chunks = 33}, 4, 0, "33 chunks of each of 2 stages"}};
    cup_training_point b[MOST_POINTS];
    (void)user;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_training training = parted_mixed(&cases[i].parts);
        training.model.heads = cases[i].heads;
        training.model.dropout = cases[i].dropout;
        parted_run(c, comm, training, cases[i].parts, NULL, false, b);
        expect_words(c, cases[i].words);
    }
    cup_training odd = parted_training(false);
    odd.model.context = 18;
    parted_run(c, comm, odd, (parts){.ring = 2}, NULL, false, b);
    expect_words(c, "a context of 18 tokens has no 4 parts alike");
}

TEST(parallel_runs_that_cannot_be_are_refused)
{
    together(2, refuse, NULL);
}
