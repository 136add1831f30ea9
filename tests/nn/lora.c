/* What is learned beside linear layers: its formulas, its gradients, and what it does in a GPT. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

enum { ROWS = 5, IN = 6, RANK = 2, PARTS = 3, OUT = 9 };
static const int64_t part_rows[PARTS] = {4, 2, 3};

/* The layer in f64, its input and what is written into its factors. */
typedef struct beside {
    cup_context *c;
    cup_parameters *list;
    cup_lora_layer lora;
    cup_tensor *x;
    double in[ROWS][IN], a[PARTS][RANK][IN], b[PARTS][4][RANK];
    int parts;
    double scale;
} beside;

static void fill(beside *s)
{
    for (int i = 0; i < ROWS * IN; i++)
        (&s->in[0][0])[i] = sin(1 + 0.7 * i);
    for (int p = 0; p < s->parts; p++) {
        for (int i = 0; i < RANK * IN; i++)
            (&s->a[p][0][0])[i] = cos(2 + 0.9 * i + p);
        for (int i = 0; i < 4 * RANK; i++)
            (&s->b[p][0][0])[i] = sin(3 + 1.1 * i + p);
        EXPECT_INT(cup_tensor_write(s->lora.a[p], s->a[p], sizeof s->a[p]), CUP_OK);
        EXPECT_INT(cup_tensor_write(s->lora.b[p], s->b[p],
                                    (size_t)cup_tensor_count(s->lora.b[p]) * sizeof(double)),
                   CUP_OK);
    }
    s->x = cup_tensor_from(s->c, CUP_F64, 2, (int64_t[]){ROWS, IN}, s->in);
}

static void begin(beside *s, int parts, double alpha)
{
    memset(s, 0, sizeof *s);
    s->parts = parts;
    s->scale = (alpha == 0 ? RANK : alpha) / RANK;
    s->c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    s->list = cup_parameters_new(s->c, CUP_F64);
    EXPECT_INT(cup_lora_layer_new(&s->lora, s->list, "l", IN, parts > 1 ? OUT : 4, RANK,
                                  CUP_OPTIONS(cup_lora_layer_options, .alpha = alpha,
                                              .rows = {part_rows, parts > 1 ? parts : 0})),
               CUP_OK);
}

static void end(beside *s)
{
    EXPECT_TEXT(cup_error_text(s->c), "");
    cup_parameters_free(s->list);
    cup_context_free(s->c);
}

/* One output of the formula. */
static double output(const beside *s, int row, int p, int column)
{
    double sum = 0;
    for (int r = 0; r < RANK; r++)
        for (int i = 0; i < IN; i++)
            sum += s->in[row][i] * s->a[p][r][i] * s->b[p][column][r];
    return s->scale * sum;
}

static void expect_outputs(beside *s)
{
    double got[ROWS * OUT];
    int out = s->parts > 1 ? OUT : 4;
    fill(s);
    EXPECT_INT(cup_tensor_read(cup_lora_layer_call(&s->lora, s->x), got,
                               (size_t)(ROWS * out) * sizeof *got),
               CUP_OK);
    for (int row = 0; row < ROWS; row++)
        for (int p = 0, at = 0; p < s->parts; at += (int)part_rows[p++])
            for (int i = 0; i < part_rows[p]; i++)
                EXPECT_NEAR(got[row * out + at + i], output(s, row, p, i), 1e-12);
}

TEST(lora_layers_give_their_formula)
{
    beside s;
    begin(&s, 1, 0);
    EXPECT(cup_parameters_find(s.list, "l.lora_A.weight") == s.lora.a[0]);
    double first[ROWS * 4], a[RANK * IN];
    cup_tensor *x = cup_full(s.c, CUP_F64, 2, (int64_t[]){ROWS, IN}, 1);
    cup_tensor_read(cup_lora_layer_call(&s.lora, x), first, sizeof first);
    for (int i = 0; i < ROWS * 4; i++)
        EXPECT(first[i] == 0);
    cup_tensor_read(s.lora.a[0], a, sizeof a);
    for (int i = 0; i < RANK * IN; i++)
        EXPECT(a[i] != 0 && fabs(a[i]) <= 1 / sqrt(IN));
    expect_outputs(&s);
    end(&s);
    begin(&s, PARTS, 5);
    EXPECT(cup_parameters_find(s.list, "l.lora_B.2.weight") == s.lora.b[2]);
    expect_outputs(&s);
    end(&s);
}

/* Of a loss that weighs each output, by the formulas dB = scale dy^T (x A^T) and
 * dA = scale (dy B)^T x of each part, beside a layer that is frozen. */
TEST(lora_layers_have_the_gradients_of_their_formula)
{
    beside s;
    begin(&s, PARTS, 3);
    fill(&s);
    double weigh[ROWS * OUT], got[4 * IN];
    cup_linear_layer linear;
    cup_parameters *frozen = cup_parameters_under(s.list, "frozen");
    cup_linear_layer_new(&linear, frozen, "", IN, OUT, NULL);
    cup_parameters_freeze(frozen);
    linear.lora = &s.lora;
    for (int i = 0; i < ROWS * OUT; i++)
        weigh[i] = sin(5 + 0.3 * i);
    cup_tensor *w = cup_tensor_from(s.c, CUP_F64, 2, (int64_t[]){ROWS, OUT}, weigh);
    cup_tensor *y = cup_linear_layer_call(&linear, s.x);
    EXPECT_INT(cup_backward(s.c, cup_sum(s.c, cup_mul(s.c, y, w), NULL, 0, false)), CUP_OK);
    EXPECT(!cup_grad(linear.weight) && !cup_grad(linear.bias));
    for (int p = 0, at = 0; p < PARTS; at += (int)part_rows[p++]) {
        EXPECT_INT(cup_tensor_read(cup_grad(s.lora.a[p]), got, sizeof(double) * RANK * IN), CUP_OK);
        for (int r = 0; r < RANK; r++)
            for (int i = 0; i < IN; i++) {
                double sum = 0;
                for (int row = 0; row < ROWS; row++)
                    for (int o = 0; o < part_rows[p]; o++)
                        sum += weigh[row * OUT + at + o] * s.b[p][o][r] * s.in[row][i];
                EXPECT_NEAR(got[r * IN + i], s.scale * sum, 1e-11);
            }
        EXPECT_INT(cup_tensor_read(cup_grad(s.lora.b[p]), got,
                                   sizeof(double) * (size_t)part_rows[p] * RANK),
                   CUP_OK);
        for (int o = 0; o < part_rows[p]; o++)
            for (int r = 0; r < RANK; r++) {
                double sum = 0;
                for (int row = 0; row < ROWS; row++)
                    for (int i = 0; i < IN; i++)
                        sum += weigh[row * OUT + at + o] * s.a[p][r][i] * s.in[row][i];
                EXPECT_NEAR(got[o * RANK + r], s.scale * sum, 1e-11);
            }
    }
    end(&s);
}

/* Each activation stands behind the sum. */
TEST(lora_layers_are_merged_into_the_layer_beside)
{
    for (int i = CUP_ACTIVATION_NONE; i <= CUP_ACTIVATION_SIGMOID; i++) {
        beside s;
        double apart[ROWS * 4], merged[ROWS * 4], alone[ROWS * 4];
        int out = i == CUP_ACTIVATION_SWIGLU ? 2 : 4;
        size_t bytes = (size_t)(ROWS * out) * sizeof(double);
        cup_linear_layer linear;
        begin(&s, 1, 6);
        fill(&s);
        cup_linear_layer_new(&linear, s.list, "linear", IN, out,
                             CUP_OPTIONS(cup_linear_layer_options,
                                         .activation = (cup_activation)i));
        EXPECT_INT(cup_tensor_read(cup_linear_layer_call(&linear, s.x), alone, bytes), CUP_OK);
        linear.lora = &s.lora;
        EXPECT_INT(cup_tensor_read(cup_linear_layer_call(&linear, s.x), apart, bytes), CUP_OK);
        EXPECT_INT(cup_lora_layer_merge(&s.lora, linear.weight), CUP_OK);
        linear.lora = NULL;
        EXPECT_INT(cup_tensor_read(cup_linear_layer_call(&linear, s.x), merged, bytes), CUP_OK);
        EXPECT(memcmp(alone, apart, bytes) != 0);
        for (int k = 0; k < ROWS * out; k++)
            EXPECT_NEAR(apart[k], merged[k], 1e-12);
        end(&s);
    }
}

TEST(lora_layers_refuse_what_cannot_be)
{
    static const struct {
        int64_t rank;
        double alpha;
        int64_t rows;
        int parts;
        const char *words;
    } cases[] = {{0, 0, 0, 0, "the rank must be at least 1"},
                 {2, -1, 0, 0, "alpha must be"},
                 {2, NAN, 0, 0, "alpha must be"},
                 {2, 0, 4, 9, "9 parts"},
                 {2, 0, 4, 2, "have 8 rows together"},
                 {2, 0, 0, 1, "rows of a part must be at least 1"}};
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cup_lora_layer lora;
        const int64_t rows[] = {cases[i].rows, cases[i].rows};
        EXPECT(cup_lora_layer_new(&lora, list, "l", 4, 4, cases[i].rank,
                                  CUP_OPTIONS(cup_lora_layer_options, .alpha = cases[i].alpha,
                                              .rows = {rows, cases[i].parts})) != CUP_OK);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].words);
        EXPECT(!lora.layer.parameters);
        cup_error_clear(c);
    }
    cup_parameters_free(list);
    cup_context_free(c);
}

static const cup_gpt_config configs[] = {{.size = sizeof(cup_gpt_config),
                                          .layers = 2,
                                          .heads = 2,
                                          .width = 16,
                                          .context = 12,
                                          .vocabulary = 29,
                                          .bias = true},
                                         {.size = sizeof(cup_gpt_config),
                                          .layers = 2,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .width = 16,
                                          .context = 12,
                                          .vocabulary = 29,
                                          .positions = CUP_POSITIONS_ROTARY,
                                          .norm = CUP_NORM_KIND_RMSNORM,
                                          .mlp = CUP_MLP_KIND_SWIGLU,
                                          .untied = true}};
enum { TOKENS = 12, LOGITS = TOKENS * 29 };

static cup_tensor *tokens_of(cup_gpt *m, int by)
{
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * by % 29;
    return cup_tensor_from(m->context, CUP_I32, 2, (int64_t[]){1, TOKENS}, ids);
}

static void logits_of(cup_gpt *m, float *out)
{
    EXPECT_INT(cup_tensor_read(cup_gpt_logits(m, tokens_of(m, 5)), out, LOGITS * sizeof *out),
               CUP_OK);
}

/* As if they had been trained. */
static void change(cup_gpt *m)
{
    int64_t count;
    const cup_named *named = cup_parameters_named(m->adapters, &count);
    bool was = cup_grad_recording(m->context, false);
    for (int64_t i = 0; i < count; i++)
        cup_copy_into(m->context, named[i].tensor,
                      cup_normal(m->context, CUP_F32, 2,
                                 (int64_t[]){cup_tensor_size(named[i].tensor, 0),
                                             cup_tensor_size(named[i].tensor, 1)},
                                 0, 0.2));
    cup_grad_recording(m->context, was);
}

static double worst(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < LOGITS; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

TEST(adapters_beside_a_gpt_are_read_and_merged)
{
    for (int i = 0; i < 4; i++) {
        static float before[LOGITS], begun[LOGITS], apart[LOGITS], merged[LOGITS], last[29];
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[i % 2]);
        logits_of(m, before);
        EXPECT_INT(cup_gpt_merge(m), CUP_STATE);
        cup_error_clear(c);
        EXPECT_INT(cup_gpt_adapt(m, 3, 6, i > 1), CUP_OK);
        EXPECT_INT(cup_parameters_count(m->parameters, true), 0);
        logits_of(m, begun);
        EXPECT(worst(before, begun) < 1e-6);
        change(m);
        logits_of(m, apart);
        EXPECT(worst(before, apart) > 0.01);
        cup_gpt_cache *cache = cup_gpt_cache_new(m, 1, 0);
        EXPECT_INT(cup_tensor_read(cup_gpt_read(cache, tokens_of(m, 5)), last, sizeof last),
                   CUP_OK);
        for (int k = 0; k < 29; k++)
            EXPECT_NEAR(last[k], apart[LOGITS - 29 + k], 1e-5);
        cup_gpt_cache_free(cache);
        EXPECT_INT(cup_gpt_adapt(m, 3, 6, true), CUP_STATE);
        cup_error_clear(c);
        EXPECT_INT(cup_gpt_merge(m), CUP_OK);
        EXPECT(!m->adapters && cup_parameters_count(m->parameters, true) > 0);
        logits_of(m, merged);
        EXPECT(worst(apart, merged) < 1e-5);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}

/* Also where the first block is computed again, whose input has no gradient. */
TEST(adapters_alone_have_gradients)
{
    for (int i = 0; i < 2; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 5));
        cup_gpt *m = cup_gpt_new(c, CUP_F32, &configs[i]);
        EXPECT_INT(cup_gpt_adapt(m, 3, 6, i > 0), CUP_OK);
        change(m);
        static float kept[3][20000];
        int64_t count, others, used = 0;
        for (int again = 0; again < 3; again++) {
            m->recompute = (cup_recompute_policy)again;
            EXPECT_INT(cup_backward(c, cup_gpt_loss(m, tokens_of(m, 5), tokens_of(m, 3), true)),
                       CUP_OK);
            const cup_named *named = cup_parameters_named(m->adapters, &count);
            EXPECT_INT(count, i > 0 ? 28 : 16);
            used = 0;
            for (int64_t k = 0; k < count; k++) {
                cup_tensor *d = cup_grad(named[k].tensor);
                EXPECT(d);
                int64_t n = cup_tensor_count(d);
                EXPECT_INT(cup_tensor_read(d, kept[again] + used, (size_t)n * sizeof(float)),
                           CUP_OK);
                double sum = 0;
                for (int64_t j = 0; j < n; j++)
                    sum += fabs((double)kept[again][used + j]);
                EXPECT(sum > 0);
                used += n;
                cup_grad_clear(named[k].tensor);
            }
            named = cup_parameters_named(m->parameters, &others);
            for (int64_t k = 0; k < others; k++)
                EXPECT(!cup_grad(named[k].tensor));
            cup_tape_clear(c);
        }
        for (int64_t k = 0; k < used; k++)
            EXPECT(fabs((double)kept[0][k] - (double)kept[1][k]) <= 1e-6 &&
                   kept[0][k] == kept[2][k]);
        cup_gpt_free(m);
        cup_context_free(c);
    }
}
