/* Lists of parameters: names, first values, parts, freezing, sharing, files. */
#include "cupola/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

static cup_context *device(const char *name, uint64_t seed)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = seed));
    if (!strcmp(name, "cuda") && cup_error(c) != CUP_OK)
        test_skip("no GPU");
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static cup_context *cpu(void)
{
    return device("cpu", 5);
}

static void expect_error(cup_context *c, cup_status status, const char *words)
{
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

static cup_tensor *matrix(cup_parameters *list, const char *name, int64_t rows, int64_t columns,
                          cup_initializer initializer)
{
    cup_tensor *t = cup_parameter_new(
        list, name, 2, (int64_t[]){rows, columns},
        CUP_OPTIONS(cup_parameter_options, .initializer = initializer, .decay = true));
    EXPECT_TEXT(cup_error_text(cup_tensor_context(t)), "");
    return t;
}

#define MOST (400 * 300)
static float values[MOST];

static int64_t read(cup_tensor *t)
{
    int64_t count = cup_tensor_count(t);
    EXPECT(count <= MOST);
    EXPECT_INT(cup_tensor_read(t, values, (size_t)count * sizeof *values), CUP_OK);
    return count;
}

/* Mean 0, the deviation, and nothing beyond `most` deviations, as a uniform one has sqrt(3). */
static void expect_spread(cup_tensor *t, double deviation, double most)
{
    int64_t count = read(t);
    double sum = 0, squares = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        largest = fmax(largest, fabs((double)values[i]));
    }
    EXPECT_NEAR(sum / (double)count, 0, 5 * deviation / sqrt((double)count));
    EXPECT_NEAR(sqrt(squares / (double)count), deviation, 0.015 * deviation);
    EXPECT(largest <= most * deviation * 1.000001);
    EXPECT(largest >= (most < 2 ? 0.99 * most : 3.5) * deviation);
}

TEST(parameters_begin_with_the_deviation_of_their_initializer)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    double normal = 6, uniform = sqrt(3);
    expect_spread(cup_parameter_new(list, "none", 2, (int64_t[]){400, 300}, NULL), 0.02, normal);
    expect_spread(matrix(list, "xn", 400, 300, CUP_INITIALIZER_XAVIER_NORMAL), sqrt(2.0 / 700),
                  normal);
    expect_spread(matrix(list, "xu", 400, 300, CUP_INITIALIZER_XAVIER_UNIFORM), sqrt(2.0 / 700),
                  uniform);
    expect_spread(matrix(list, "kn", 400, 300, CUP_INITIALIZER_KAIMING_NORMAL), sqrt(2.0 / 300),
                  normal);
    expect_spread(matrix(list, "ku", 400, 300, CUP_INITIALIZER_KAIMING_UNIFORM), sqrt(2.0 / 300),
                  uniform);
    expect_spread(cup_parameter_new(list, "window", 4, (int64_t[]){40, 100, 5, 6},
                                    CUP_OPTIONS(cup_parameter_options, .gain = 3,
                                                .initializer = CUP_INITIALIZER_XAVIER_UNIFORM)),
                  3 * sqrt(2.0 / (140 * 30)), uniform);
    expect_spread(cup_parameter_new(list, "u", 1, (int64_t[]){100000},
                                    CUP_OPTIONS(cup_parameter_options, .deviation = 0.5,
                                                .initializer = CUP_INITIALIZER_UNIFORM)),
                  0.5, uniform);
    EXPECT_NEAR(cup_tensor_item(cup_sum(
                    c, matrix(list, "ones", 40, 30, CUP_INITIALIZER_ONES), NULL, 0, false)),
                1200, 0);
    EXPECT_NEAR(cup_tensor_item(cup_norm(
                    c, matrix(list, "zeros", 40, 30, CUP_INITIALIZER_ZEROS), NULL, 0, false)),
                0, 0);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* The products of the rows with each other, or of the columns where those are fewer. */
static void expect_orthogonal(int64_t rows, int64_t columns, double gain)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *t = cup_parameter_new(list, "w", 2, (int64_t[]){rows, columns},
                                      CUP_OPTIONS(cup_parameter_options, .gain = gain,
                                                  .initializer = CUP_INITIALIZER_ORTHOGONAL));
    bool tall = rows > columns;
    int64_t few = tall ? columns : rows;
    EXPECT_INT(cup_tensor_size(t, 0), rows);
    EXPECT_INT(cup_tensor_size(t, 1), columns);
    read(cup_matmul(c, t, t, tall, !tall));
    for (int64_t i = 0; i < few * few; i++)
        EXPECT_NEAR(values[i], i % (few + 1) ? 0 : gain * gain, 2e-6 * gain * gain);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(parameters_orthogonal)
{
    expect_orthogonal(1, 1, 1);
    expect_orthogonal(37, 37, 1);
    expect_orthogonal(20, 90, 2);
    expect_orthogonal(90, 20, 0.5);
}

/* The values of one parameter, made behind others, in a list that begins at some step. */
static void values_of(cup_context *c, cup_initializer initializer, bool others, float *out)
{
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    if (others) {
        cup_random_step(c, 77);
        matrix(list, "before", 3, 3, initializer);
        cup_normal(c, CUP_F32, 1, (int64_t[]){3}, 0, 1);
    }
    read(matrix(cup_parameters_under(list, "a"), "w", 24, 20, initializer));
    memcpy(out, values, 480 * sizeof *out);
    cup_parameters_free(list);
}

TEST(parameters_depend_on_seed_and_name_alone)
{
    static float first[480], second[480];
    for (int i = CUP_INITIALIZER_NORMAL; i <= CUP_INITIALIZER_ORTHOGONAL; i++) {
        cup_context *c = cpu(), *other = device("cpu", 6);
        values_of(c, (cup_initializer)i, false, first);
        values_of(c, (cup_initializer)i, true, second);
        EXPECT(!memcmp(first, second, sizeof first));
        values_of(other, (cup_initializer)i, false, second);
        bool constant = i == CUP_INITIALIZER_ZEROS || i == CUP_INITIALIZER_ONES;
        EXPECT_INT(!memcmp(first, second, sizeof first), constant);
        cup_context_free(c);
        cup_context_free(other);
    }
}

TEST(parameters_leave_the_random_sequence_alone)
{
    static float first[8], second[8];
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    for (int with = 0; with < 2; with++) {
        cup_random_step(c, 9);
        cup_normal(c, CUP_F32, 1, (int64_t[]){8}, 0, 1);
        if (with)
            matrix(list, "w", 4, 4, CUP_INITIALIZER_XAVIER_NORMAL);
        cup_tensor_read(cup_normal(c, CUP_F32, 1, (int64_t[]){8}, 0, 1), with ? second : first,
                        sizeof first);
    }
    EXPECT(!memcmp(first, second, sizeof first));
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(gpu_parameters_are_those_of_a_cpu)
{
    static float first[480], second[480];
    for (int i = CUP_INITIALIZER_NORMAL; i <= CUP_INITIALIZER_ORTHOGONAL; i++) {
        cup_context *c = cpu(), *g = device("cuda", 5);
        values_of(c, (cup_initializer)i, true, first);
        values_of(g, (cup_initializer)i, false, second);
        for (int k = 0; k < 480; k++)
            EXPECT_NEAR(second[k], first[k], 2e-6);
        cup_context_free(c);
        cup_context_free(g);
    }
}

TEST(parameters_parts_and_counts)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_BF16);
    cup_parameters *h = cup_parameters_under(list, "h"), *h0 = cup_parameters_under(h, "0");
    EXPECT(cup_parameters_under(list, "h.0") == h0);
    EXPECT(cup_parameters_under(list, "") == list && cup_parameters_under(h, NULL) == h);
    cup_tensor *w = matrix(h0, "w", 2, 3, CUP_INITIALIZER_ONES);
    matrix(list, "h0.w", 5, 5, CUP_INITIALIZER_ONES);
    cup_tensor *buffer = cup_parameter_new(
        h, "steps", 1, (int64_t[]){7},
        CUP_OPTIONS(cup_parameter_options, .buffer = true, .dtype = "i64",
                    .initializer = CUP_INITIALIZER_ZEROS));
    EXPECT_INT(cup_tensor_dtype(w), CUP_BF16);
    EXPECT_INT(cup_tensor_dtype(buffer), CUP_I64);
    EXPECT(cup_parameters_find(list, "h.0.w") == w && cup_parameters_find(h, "0.w") == w);
    EXPECT(cup_parameters_find(h, "w") == NULL && cup_parameters_find(h, NULL) == NULL);
    EXPECT_INT(cup_parameters_count(list, false), 6 + 25 + 7);
    EXPECT_INT(cup_parameters_count(list, true), 6 + 25);
    EXPECT_INT(cup_parameters_count(h, false), 6 + 7);
    EXPECT_INT(cup_parameters_count(h0, true), 6);
    int64_t count;
    const cup_named *named = cup_parameters_named(h, &count);
    EXPECT_INT(count, 2);
    EXPECT_TEXT(named[0].name, "h.0.w");
    EXPECT_TEXT(named[1].name, "h.steps");
    cup_parameters_free(h0);
    EXPECT_INT(cup_parameters_count(h0, true), 6);
    EXPECT(cup_parameters_training(h0, false) && !cup_parameters_training(list, true));
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(parameters_refuse_what_cannot_be)
{
    cup_context *c = cpu();
    EXPECT(!cup_parameters_new(NULL, CUP_F32) && !cup_parameters_new(c, CUP_I32));
    expect_error(c, CUP_DTYPE, "i32 cannot be learned");
    EXPECT(!cup_parameters_new(c, CUP_F8E4M3));
    expect_error(c, CUP_DTYPE, "cup_parameters_fp8");
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    const int64_t shape[] = {2, 2}, negative[] = {2, -2};
    EXPECT(cup_parameter_new(list, "w", 2, shape, NULL) != NULL);
    EXPECT(!cup_parameter_new(list, "w", 2, shape, NULL));
    expect_error(c, CUP_ARGUMENT, "a \"w\" already");
    static const char *const names[] = {"", ".w", "w.", "a..b", "a b", "a\n", NULL};
    for (int i = 0; i < 7; i++) {
        EXPECT(!cup_parameter_new(list, names[i], 2, shape, NULL));
        expect_error(c, CUP_ARGUMENT, "is no name");
    }
    EXPECT(!cup_parameters_under(list, "a."));
    expect_error(c, CUP_ARGUMENT, "is no name");
    EXPECT(!cup_parameter_new(list, "v", 2, negative, NULL));
    expect_error(c, CUP_SHAPE, "parameter v: ");
    EXPECT(!cup_parameter_new(list, "v", 2, NULL, NULL));
    expect_error(c, CUP_ARGUMENT, "its shape is NULL");
    EXPECT(!cup_parameter_new(list, "v", 9, shape, NULL));
    expect_error(c, CUP_SHAPE, "parameter v: ");
    static const struct {
        cup_parameter_options options;
        const char *words;
    } wrong[] = {{{.initializer = CUP_INITIALIZER_XAVIER_NORMAL}, "at least 2 dimensions"},
                 {{.initializer = (cup_initializer)77}, "initializer 77 is none"},
                 {{.part = (cup_part)6}, "part 6 is none"},
                 {{.deviation = -1}, "must be finite"},
                 {{.rate = NAN}, "must be finite"},
                 {{.buffer = true}, "begins with zeros or ones"},
                 {{.dtype = "i64"}, "make it a buffer"},
                 {{.dtype = "f8e5m2"}, "make it a buffer"},
                 {{.dtype = "i63"}, "\"i63\" is no dtype"},
                 {{.size = 1 << 20}, "the size of its options is 1048576"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cup_parameter_options given = wrong[i].options;
        given.size = given.size ? given.size : sizeof given;
        EXPECT(!cup_parameter_new(list, "v", 1, shape, &given));
        EXPECT_CONTAINS(cup_error_text(c), wrong[i].words);
        cup_error_clear(c);
    }
    EXPECT(!cup_parameter_share(list, "v", NULL));
    expect_error(c, CUP_ARGUMENT, "is NULL");
    EXPECT(!cup_parameter_share(list, "v", cup_full(c, CUP_F32, 2, shape, 1)));
    expect_error(c, CUP_ARGUMENT, "no tensor of this list");
    EXPECT(cup_parameters_freeze(cup_parameters_under(list, "nothing")) != CUP_OK);
    expect_error(c, CUP_ARGUMENT, "nothing under \"nothing.\"");
    EXPECT_INT(cup_parameters_count(list, false), 4);
    cup_parameters_free(list);
    cup_context_free(c);
}

/* A newer program's options: known fields count, unknown ones must be 0. */
TEST(parameters_options_of_another_size)
{
    struct {
        cup_parameter_options known;
        double later;
    } newer = {.known = {.size = sizeof newer, .initializer = CUP_INITIALIZER_ONES}};
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *t = cup_parameter_new(list, "a", 0, NULL, &newer.known);
    EXPECT_NEAR(cup_tensor_item(t), 1, 0);
    newer.later = 3;
    EXPECT(!cup_parameter_new(list, "b", 0, NULL, &newer.known));
    expect_error(c, CUP_UNSUPPORTED, "use a newer library");
    cup_parameter_options older = {.size = offsetof(cup_parameter_options, deviation),
                                   .initializer = CUP_INITIALIZER_ONES,
                                   .deviation = -1};
    EXPECT(cup_parameter_new(list, "c", 0, NULL, &older) != NULL);
    EXPECT(!cup_parameter_new(list, "d", 0, NULL, &(cup_parameter_options){.deviation = 1}));
    expect_error(c, CUP_ARGUMENT, "parameter: the size of its options is 0; make them with");
    cup_parameters_free(list);
    cup_context_free(c);
}

/* loss = sum of a b: the gradient of each is the other. */
static void step(cup_context *c, cup_optimizer *o, cup_tensor *a, cup_tensor *b)
{
    cup_scope_open(c);
    cup_backward(c, cup_sum(c, cup_mul(c, a, b), NULL, 0, false));
    cup_optimizer_set(o, 0.1, 1);
    cup_optimizer_step(o);
    cup_optimizer_clear(o);
    cup_scope_close(c);
    EXPECT_TEXT(cup_error_text(c), "");
}

TEST(parameters_frozen_stay_as_they_are)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_parameter_options ones = {.size = sizeof ones, .initializer = CUP_INITIALIZER_ONES};
    cup_tensor *a = cup_parameter_new(list, "a", 0, NULL, &ones);
    cup_tensor *b = cup_parameter_new(list, "part.b", 0, NULL, &ones);
    cup_optimizer *o =
        cup_optimizer_of(list, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD));
    EXPECT_INT(cup_parameters_freeze(cup_parameters_under(list, "part")), CUP_OK);
    EXPECT_INT(cup_parameters_count(list, true), 1);
    step(c, o, a, b);
    EXPECT_NEAR(cup_tensor_item(a), 0.9, 1e-6);
    EXPECT_NEAR(cup_tensor_item(b), 1, 0);
    EXPECT(cup_grad(b) == NULL);
    cup_optimizer *few =
        cup_optimizer_of(list, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD));
    EXPECT_INT(cup_parameters_count(list, true), 1);
    EXPECT_INT(cup_parameters_unfreeze(list), CUP_OK);
    step(c, few, a, b);
    EXPECT_NEAR(cup_tensor_item(b), 1, 0);
    cup_grad_clear(b);
    step(c, o, a, b);
    EXPECT_NEAR(cup_tensor_item(b), 0.92, 1e-6);
    EXPECT_INT(cup_parameters_freeze(list), CUP_OK);
    EXPECT(!cup_optimizer_of(list, NULL));
    expect_error(c, CUP_ARGUMENT, "at least one parameter");
    cup_optimizer_free(o);
    cup_optimizer_free(few);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(parameters_carry_rate_and_decay_to_the_optimizer)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_tensor *a = cup_parameter_new(
        list, "a", 0, NULL,
        CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ONES, .rate = 2));
    cup_tensor *b = cup_parameter_new(
        list, "b", 0, NULL,
        CUP_OPTIONS(cup_parameter_options, .initializer = CUP_INITIALIZER_ONES, .decay = true));
    cup_optimizer *o = cup_optimizer_of(
        list, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD, .weight_decay = 0.5));
    step(c, o, a, b);
    EXPECT_NEAR(cup_tensor_item(a), 1 - 0.2, 1e-6);
    EXPECT_NEAR(cup_tensor_item(b), 1 - 0.1 - 0.1 * 0.5, 1e-6);
    cup_optimizer_free(o);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(parameters_shared_count_once)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32);
    cup_parameters *head = cup_parameters_under(list, "head");
    cup_parameter_options ones = {.size = sizeof ones, .initializer = CUP_INITIALIZER_ONES};
    cup_tensor *a = cup_parameter_new(list, "table", 0, NULL, &ones);
    EXPECT(cup_parameter_share(head, "weight", a) == a);
    EXPECT(cup_parameters_find(list, "head.weight") == a);
    EXPECT(!cup_parameter_new(head, "weight", 0, NULL, &ones));
    expect_error(c, CUP_ARGUMENT, "already");
    int64_t count;
    const cup_named *named = cup_parameters_named(list, &count);
    EXPECT_INT(count, 1);
    EXPECT_TEXT(named[0].name, "table");
    EXPECT_INT(cup_parameters_count(list, true), 1);
    EXPECT_INT(cup_parameters_count(head, true), 1);
    named = cup_parameters_named(head, &count);
    EXPECT_TEXT(named[0].name, "head.weight");
    cup_optimizer *o =
        cup_optimizer_of(list, CUP_OPTIONS(cup_optimizer_options, .method = CUP_METHOD_SGD));
    step(c, o, a, a);
    EXPECT_NEAR(cup_tensor_item(a), 1 - 0.2, 1e-6);
    cup_parameters_freeze(head);
    EXPECT_INT(cup_parameters_count(list, true), 0);
    cup_optimizer_free(o);
    cup_parameters_free(list);
    cup_context_free(c);
}

TEST(parameters_in_files)
{
    static char path[400], other[400];
    const char *folder = test_folder();
    snprintf(path, sizeof path, "%s/p.safetensors", folder);
    snprintf(other, sizeof other, "%s/o.safetensors", folder);
    cup_context *c = cpu();
    cup_parameters *a = cup_parameters_new(c, CUP_F32), *b = cup_parameters_new(c, CUP_F32);
    cup_tensor *w = matrix(a, "x.w", 3, 4, CUP_INITIALIZER_NORMAL);
    matrix(a, "y.w", 2, 2, CUP_INITIALIZER_NORMAL);
    EXPECT_INT(cup_parameters_save(a, path), CUP_OK);
    cup_tensor *v = matrix(b, "x.w", 3, 4, CUP_INITIALIZER_ZEROS);
    EXPECT(cup_parameters_load(b, path) != CUP_OK);
    expect_error(c, CUP_FORMAT, "1 are superfluous: \"y.w\" is superfluous");
    EXPECT_NEAR(cup_tensor_item(cup_norm(c, v, NULL, 0, false)), 0, 0);
    EXPECT_INT(cup_parameters_load(cup_parameters_under(b, "x"), path), CUP_OK);
    static float first[12], second[12];
    cup_tensor_read(w, first, sizeof first);
    cup_tensor_read(v, second, sizeof second);
    EXPECT(!memcmp(first, second, sizeof first));
    matrix(b, "y.w", 2, 3, CUP_INITIALIZER_ZEROS);
    matrix(b, "z.w", 1, 1, CUP_INITIALIZER_ZEROS);
    EXPECT(cup_parameters_load(b, path) != CUP_OK);
    EXPECT_CONTAINS(cup_error_text(c), "1 of its 3 tensors are missing");
    EXPECT_CONTAINS(cup_error_text(c), "\"y.w\" is [2,2] f32 and not [2,3] f32");
    expect_error(c, CUP_SHAPE, "\"z.w\" is missing");
    EXPECT_INT(cup_parameters_save(cup_parameters_under(b, "y"), other), CUP_OK);
    EXPECT(cup_parameters_load(b, other) != CUP_OK);
    expect_error(c, CUP_FORMAT, "2 of its 3 tensors are missing");
    EXPECT(cup_parameters_load(b, "nowhere") != CUP_OK);
    expect_error(c, CUP_IO, "nowhere");
    cup_parameters_free(a);
    cup_parameters_free(b);
    cup_context_free(c);
}

/* A list outlives its context harmlessly, and a tensor that was freed by hand its list. */
TEST(parameters_freed_in_another_order)
{
    cup_context *c = cpu();
    cup_parameters *list = cup_parameters_new(c, CUP_F32), *second = cup_parameters_new(c, CUP_F32);
    cup_parameters *part = cup_parameters_under(list, "part");
    cup_tensor *t = matrix(part, "w", 2, 2, CUP_INITIALIZER_ONES);
    cup_parameter_share(list, "v", t);
    cup_tensor_free(matrix(second, "w", 2, 2, CUP_INITIALIZER_ONES));
    cup_parameters_free(second);
    cup_context_free(c);
    EXPECT(!cup_parameter_new(list, "x", 0, NULL, NULL));
    EXPECT(cup_parameters_save(list, "x") != CUP_OK);
    EXPECT(cup_parameters_freeze(list) != CUP_OK);
    cup_parameters_free(list);
}
