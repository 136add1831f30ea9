/* Blocks of tensors that are there already, in a stack, and reading on; and the small public calls
 * that a model of one's own needs. */
#include <math.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

enum { WIDTH = 8, HEADS = 2, SIZE = 6, LENGTH = 6, BATCH = 2, DEPTH = 3 };

typedef struct stack {
    cup_context *c;
    cup_parameters *list;
    cup_transformer_layer own[DEPTH], taken[DEPTH]; /* of the same tensors */
} stack;

static cup_transformer_tensors tensors_of(const cup_transformer_layer *l)
{
    return (cup_transformer_tensors){
        .size = sizeof(cup_transformer_tensors),
        .norm1 = l->rms ? l->rmsnorm1.weight : l->norm1.weight,
        .norm1_bias = l->norm1.bias,
        .qkv = l->attention.qkv.weight,
        .qkv_bias = l->attention.qkv.bias,
        .out = l->attention.out.weight,
        .out_bias = l->attention.out.bias,
        .norm2 = l->rms ? l->rmsnorm2.weight : l->norm2.weight,
        .norm2_bias = l->norm2.bias,
        .up = l->mlp.up.weight,
        .up_bias = l->mlp.up.bias,
        .down = l->mlp.down.weight,
        .down_bias = l->mlp.down.bias,
        .q_norm = l->attention.q_norm,
        .k_norm = l->attention.k_norm,
    };
}

static void begin(stack *s, bool rms)
{
    const cup_transformer_layer_options options = {
        .size = sizeof options,
        .causal = true,
        .rope = rms,
        .kv_heads = rms ? 1 : 0,
        .rmsnorm = rms,
        .activation = rms ? CUP_ACTIVATION_SWIGLU : CUP_ACTIVATION_GELU,
        .dropout = 0.2,
        .deviation = 0.4,
        .head_size = rms ? SIZE : 0,
        .qk_norm = rms,
        .rope_scaling = {.factor = rms ? 3 : 0, .original = rms ? 8 : 0}};
    s->c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .seed = 3));
    s->list = cup_parameters_new(s->c, CUP_F32);
    for (int i = 0; i < DEPTH; i++) {
        char name[8] = "h.0";
        name[2] = (char)('0' + i);
        cup_transformer_layer_new(&s->own[i], s->list, name, WIDTH, HEADS, &options);
        cup_transformer_tensors t = tensors_of(&s->own[i]);
        cup_transformer_layer_of(&s->taken[i], s->list, &t, HEADS, &options);
    }
    EXPECT_TEXT(cup_error_text(s->c), "");
}

static void end(stack *s)
{
    cup_parameters_free(s->list);
    cup_context_free(s->c);
}

static cup_tensor *input(cup_context *c, int64_t from, int64_t to)
{
    float x[BATCH][LENGTH][WIDTH];
    for (int i = 0; i < BATCH * LENGTH * WIDTH; i++)
        (&x[0][0][0])[i] = (float)sin(1 + 0.7 * i);
    cup_tensor *all = cup_tensor_from(c, CUP_F32, 3, (int64_t[]){BATCH, LENGTH, WIDTH}, x);
    const int64_t starts[] = {0, from, 0}, sizes[] = {-1, to - from, -1};
    return cup_slice(c, all, starts, 3, sizes, 3);
}

/* Within rounding: of numbers of up to 8 that are summed from dozens, in f32. */
static void expect_same(cup_tensor *got, cup_tensor *want)
{
    float a[BATCH * LENGTH * WIDTH], b[BATCH * LENGTH * WIDTH];
    EXPECT(got && want);
    int64_t count = cup_tensor_count(want);
    EXPECT_INT(cup_tensor_read(got, a, (size_t)count * sizeof *a), CUP_OK);
    EXPECT_INT(cup_tensor_read(want, b, (size_t)count * sizeof *b), CUP_OK);
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR(a[i], b[i], 1e-5 * (1 + fabs((double)b[i])));
}

/* A stack in passes is the blocks one after the other, dropout included; but for rounding, since
 * one op adds and norms. */
TEST(layers_stack_passes_as_its_blocks_do)
{
    for (int rms = 0; rms < 2; rms++) {
        stack s;
        begin(&s, rms);
        cup_tensor *x = input(s.c, 0, LENGTH), *y = x, *delta = NULL;
        cup_random_step(s.c, 7);
        for (int i = 0; i < DEPTH; i++)
            x = cup_transformer_layer_call(&s.own[i], x);
        cup_random_step(s.c, 7);
        for (int i = 0; i < DEPTH; i++)
            y = cup_transformer_layer_pass(&s.taken[i], y, &delta);
        y = cup_add(s.c, y, cup_dropout(s.c, delta, 0.2));
        expect_same(y, x);
        EXPECT(cup_layer_call(&s.taken[0].layer, x) && cup_layer_call(&s.taken[0].mlp.layer, x));
        end(&s);
    }
}

TEST(layers_stack_reads_on)
{
    static const int64_t ends[] = {2, 3, 6};
    for (int rms = 0; rms < 2; rms++) {
        stack s;
        begin(&s, rms);
        cup_parameters_training(s.list, false);
        cup_tensor *keys[DEPTH], *values[DEPTH], *whole = input(s.c, 0, LENGTH);
        const int64_t room[] = {BATCH, rms ? 1 : HEADS, LENGTH, rms ? SIZE : WIDTH / HEADS};
        for (int i = 0; i < DEPTH; i++) {
            keys[i] = cup_tensor_new(s.c, CUP_F32, 4, room);
            values[i] = cup_tensor_new(s.c, CUP_F32, 4, room);
            whole = cup_transformer_layer_call(&s.own[i], whole);
        }
        int64_t used = 0;
        for (int k = 0; k < 3; k++) {
            cup_tensor *x = input(s.c, used, ends[k]), *delta = NULL;
            for (int i = 0; i < DEPTH; i++)
                x = cup_transformer_layer_read(&s.own[i], x, &delta, keys[i], values[i], used);
            const int64_t starts[] = {0, used, 0}, sizes[] = {-1, ends[k] - used, -1};
            expect_same(cup_add(s.c, x, delta), cup_slice(s.c, whole, starts, 3, sizes, 3));
            used = ends[k];
        }
        EXPECT(!cup_transformer_layer_read(&s.own[0], input(s.c, 0, 1), NULL, keys[0], values[0],
                                           LENGTH));
        EXPECT_CONTAINS(cup_error_text(s.c), "no room for 1 more in keys of 6");
        cup_error_clear(s.c);
        EXPECT(!cup_transformer_layer_read(&s.own[0], input(s.c, 0, 1), NULL, whole, whole, 0));
        EXPECT_CONTAINS(cup_error_text(s.c), "both must be [2,");
        end(&s);
    }
}

TEST(layers_of_tensors_refuse_what_is_not_there)
{
    stack s;
    cup_transformer_layer layer;
    cup_linear_layer linear;
    begin(&s, false);
    cup_transformer_tensors t = tensors_of(&s.own[0]);
    t.up = NULL;
    EXPECT_INT(cup_transformer_layer_of(&layer, s.list, &t, HEADS, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "weight is NULL");
    t.up = t.down;
    t.q_norm = t.norm1;
    cup_error_clear(s.c);
    EXPECT_INT(cup_transformer_layer_of(&layer, s.list, &t, HEADS, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(s.c), "only with it");
    EXPECT(!layer.layer.parameters);
    cup_error_clear(s.c);
    EXPECT_INT(cup_transformer_layer_of(&layer, s.list, NULL, HEADS, NULL), CUP_ARGUMENT);
    cup_error_clear(s.c);
    EXPECT_INT(cup_linear_layer_of(&linear, s.list, NULL, NULL, CUP_ACTIVATION_NONE),
               CUP_ARGUMENT);
    cup_error_clear(s.c);
    /* Output weights that are the embedding's. */
    cup_embedding_layer words;
    cup_embedding_layer_new(&words, s.list, "words", 5, WIDTH, NULL);
    cup_linear_layer_of(&linear, s.list, words.weight, NULL, CUP_ACTIVATION_NONE);
    EXPECT_INT(cup_tensor_size(cup_linear_layer_call(&linear, input(s.c, 0, 1)), -1), 5);
    end(&s);
}

TEST(parameters_count_rows_that_are_asked_for)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_parameter_options options = {.size = sizeof options, .rows = 3};
    cup_tensor *t = cup_parameter_new(list, "words", 2, (int64_t[]){4, 2}, &options);
    const float *w = cup_tensor_data(t);
    EXPECT(w[5] != 0 && w[6] == 0 && w[7] == 0);
    EXPECT_INT(cup_parameters_count(list, true), 6);
    int64_t count;
    EXPECT_INT(cup_tensor_size(cup_parameters_named(list, &count)[0].tensor, 0), 3);
    EXPECT(cup_parameters_find(list, "words") == t);
    options.rows = 5;
    EXPECT(!cup_parameter_new(list, "more", 2, (int64_t[]){4, 2}, &options));
    EXPECT_CONTAINS(cup_error_text(c), "5 rows of 4 cannot count");
    cup_error_clear(c);
    EXPECT_INT(cup_parameters_count(list, true), 6);
    /* In order: what was drawn before matters, and the name does not. */
    options = (cup_parameter_options){.size = sizeof options,
                                      .initializer = CUP_INITIALIZER_NORMAL_IN_ORDER};
    const char *const names[] = {"a", "b", "c"};
    float first[3];
    for (int i = 0; i < 3; i++) {
        if (i != 1)
            cup_random_step(c, 4);
        t = cup_parameter_new(list, names[i], 1, (int64_t[]){1}, &options);
        first[i] = *(const float *)cup_tensor_data(t);
    }
    EXPECT(first[0] != first[1]);
    EXPECT_NEAR(first[2], first[0], 0);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(context_takes_errors_of_the_program)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    char text[40];
    EXPECT_INT(cup_fail(c, CUP_OK, "nothing"), CUP_OK);
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT_INT(cup_memory_check(c, 1e6, "numbers"), CUP_OK);
    EXPECT_INT(cup_memory_check(c, 1e18, "numbers of no use"), CUP_MEMORY);
    EXPECT_CONTAINS(cup_error_text(c), "numbers of no use need ");
    cup_error_clear(c);
    cup_tensor *t = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){3, 0});
    EXPECT_TEXT(cup_tensor_text(t, text, sizeof text), "[3,0] bf16");
    EXPECT_TEXT(cup_tensor_text(t, text, 5), "[3,0");
    EXPECT_INT(cup_fail(c, CUP_SHAPE, "mine: %d are %s", 2, cup_tensor_text(t, text, 40)),
               CUP_SHAPE);
    EXPECT_TEXT(cup_error_text(c), "mine: 2 are [3,0] bf16");
    EXPECT_INT(cup_fail(c, CUP_STATE, "another"), CUP_STATE); /* the first one stays */
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    cup_context_free(c);
}
