/* Documents that lie one behind the other in a text: each is computed as if it were one of its
 * own. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

#define LENGTH 15
#define WORDS 19
#define END 7

/* Of two tokens, of one, of all but these; the last one goes on behind the text. */
static const int32_t text[LENGTH] = {3, END, END, 4, 9, 1, 3, 5, END, 2, 3, 9, 18, 0, 4};
static const int64_t bounds[] = {0, 2, 3, 9, LENGTH};
#define DOCUMENTS 4

static const cup_gpt_config several = {.size = sizeof(cup_gpt_config),
                                       .layers = 2,
                                       .heads = 2,
                                       .width = 16,
                                       .context = LENGTH,
                                       .vocabulary = WORDS,
                                       .documents = true,
                                       .document_end = END};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
}

/* Far enough from 0 that what attention sees matters. */
static cup_status enlarge(cup_parameters *list)
{
    int64_t count;
    const cup_named *all = cup_parameters_named(list, &count);
    cup_context *c = cup_tensor_context(all[0].tensor);
    bool was = cup_grad_recording(c, false);
    for (int64_t i = 0; i < count; i++)
        if (cup_tensor_ndim(all[i].tensor) == 2)
            cup_copy_into(c, all[i].tensor, cup_scale(c, all[i].tensor, 12));
    cup_grad_recording(c, was);
    return cup_error(c);
}

static cup_tensor *tokens(cup_context *c, int64_t from, int64_t to)
{
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, to - from}, text + from);
}

/* What comes behind each token, of a document by itself. */
static cup_tensor *targets(cup_context *c, int64_t from, int64_t to)
{
    int32_t next[LENGTH];
    for (int64_t i = from; i < to; i++)
        next[i] = text[(i + 1) % LENGTH];
    return cup_tensor_from(c, CUP_I32, 2, (int64_t[]){1, to - from}, next + from);
}

static double largest(cup_context *c, cup_tensor *t)
{
    return cup_tensor_item(cup_max(c, cup_abs(c, t), NULL, 0, false));
}

/* Logits, and the gradients of all parameters, of the text and of each document alone. */
static void expect_apart(const cup_gpt_config *config)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, config), *other = cup_gpt_new(c, CUP_F32, config);
    EXPECT(m && other && enlarge(m->parameters) == CUP_OK && enlarge(other->parameters) == CUP_OK);
    cup_tensor *all = cup_gpt_logits(m, tokens(c, 0, LENGTH));
    for (int i = 0; i < DOCUMENTS; i++) {
        int64_t from = bounds[i], to = bounds[i + 1];
        cup_tensor *own = cup_slice(c, all, (int64_t[]){0, from, 0}, 3,
                                    (int64_t[]){1, to - from, WORDS}, 3);
        cup_tensor *alone = cup_gpt_logits(m, tokens(c, from, to));
        EXPECT(largest(c, alone) > 0.5);
        EXPECT(largest(c, cup_sub(c, own, alone)) < 1e-4);
        cup_tensor *loss = cup_gpt_loss(other, tokens(c, from, to), targets(c, from, to), true);
        loss = cup_scale(c, loss, (double)(to - from) / LENGTH);
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
    }
    int64_t count;
    const cup_named *a = cup_parameters_named(m->parameters, &count);
    const cup_named *b = cup_parameters_named(other->parameters, NULL);
    for (int policy = 0; policy < 2; policy++) {
        m->recompute = policy ? CUP_RECOMPUTE_POLICY_BLOCK : CUP_RECOMPUTE_POLICY_NONE;
        cup_tensor *loss = cup_gpt_loss(m, tokens(c, 0, LENGTH), targets(c, 0, LENGTH), true);
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
        for (int64_t i = 0; i < count; i++) {
            /* The name of the embedding is that of the rows which count. */
            cup_tensor *of = i ? a[i].tensor : m->embedding;
            cup_tensor *got = cup_grad(of), *want = cup_grad(i ? b[i].tensor : other->embedding);
            EXPECT(largest(c, cup_sub(c, got, want)) < 1e-4 * (1 + largest(c, want)));
            cup_grad_clear(of);
        }
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_gpt_free(m);
    cup_gpt_free(other);
    cup_context_free(c);
}

TEST(documents_are_computed_as_if_alone)
{
    cup_gpt_config config = several;
    expect_apart(&config);
    config.positions = CUP_POSITIONS_ROTARY;
    config.window = 3;
    expect_apart(&config);
    config.positions = CUP_POSITIONS_ALIBI;
    config.soft_cap = 2;
    config.sinks = true;
    expect_apart(&config);
}

/* A later stage is told the tokens, too. */
TEST(documents_go_through_stages)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &several);
    cup_gpt *first = cup_gpt_stage_new(c, CUP_F32, 0, 1, &several, NULL);
    cup_gpt *last = cup_gpt_stage_new(c, CUP_F32, 1, 2, &several, NULL);
    cup_tensor *x = tokens(c, 0, LENGTH), *t = targets(c, 0, LENGTH);
    double want = cup_tensor_item(cup_gpt_loss(m, x, t, false));
    cup_tensor *between = cup_gpt_stage_call(first, x, NULL, NULL, false);
    EXPECT_NEAR(cup_tensor_item(cup_gpt_stage_call(last, x, between, t, false)), want, 1e-6);
    EXPECT(!cup_gpt_stage_call(last, NULL, between, t, false));
    EXPECT_CONTAINS(cup_error_text(c), "the tokens are NULL");
    cup_error_clear(c);
    cup_gpt_free(m);
    cup_gpt_free(first);
    cup_gpt_free(last);
    cup_context_free(c);
}

static int32_t likeliest(cup_gpt *m, int64_t from, int64_t to)
{
    float logits[LENGTH][WORDS];
    cup_tensor *all = cup_gpt_logits(m, tokens(m->context, from, to));
    EXPECT_INT(cup_tensor_read(all, logits, (size_t)(to - from) * sizeof *logits), CUP_OK);
    int32_t best = 0;
    for (int32_t i = 1; i < WORDS; i++)
        if (logits[to - from - 1][i] > logits[to - from - 1][best])
            best = i;
    return best;
}

/* What is written behind an end sees nothing before it, the end itself all of its document; also
 * where that was fed behind other documents. */
TEST(documents_are_written_one_behind_the_other)
{
    cup_context *c = cpu();
    cup_gpt *m = cup_gpt_new(c, CUP_F32, &several);
    EXPECT_INT(enlarge(m->parameters), CUP_OK);
    cup_generator *g = cup_generator_texts_new(m, 2, CUP_OPTIONS(cup_sampling, .temperature = -1));
    int32_t next[2];
    for (int64_t at = 0; at < LENGTH; at++) {
        int64_t from = at < 2 ? 0 : at < 3 ? 2 : at < 9 ? 3 : 9;
        EXPECT_INT(cup_generator_feed(g, text + at, 1), CUP_OK);
        if (at != 4 && at != 8 && at != LENGTH - 1)
            continue;
        EXPECT_INT(cup_generator_next_texts(g, next), CUP_OK);
        EXPECT_INT(next[0], likeliest(m, from, at + 1));
        EXPECT_INT(next[1], next[0]);
        cup_generator_free(g);
        g = cup_generator_texts_new(m, 2, CUP_OPTIONS(cup_sampling, .temperature = -1));
        EXPECT_INT(cup_generator_feed(g, text, at + 1), CUP_OK);
    }
    cup_generator_free(g);
    cup_gpt_free(m);
    cup_context_free(c);
}

TEST(documents_that_cannot_be_are_refused)
{
    cup_context *c = cpu();
    cup_gpt_config config = several;
    config.document_end = WORDS;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "from 0 to 18 of a model with documents, not 19");
    cup_error_clear(c);
    config.document_end = 3;
    config.documents = false;
    EXPECT_INT(cup_gpt_config_check(c, &config), CUP_ARGUMENT);
    cup_error_clear(c);
    cup_context_free(c);
}
