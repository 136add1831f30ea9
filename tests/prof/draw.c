/* Random calls are a function of their seed, can be written and read, and are drawn of every op. */
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "dispatch/attributes.h"
#include "prof/draw.h"

#define CALLS 20 /* of each op */

static void expect_repeats(const char *text)
{
    cup__drawn *again = malloc(sizeof *again);
    cup__text written = {0};
    cup__error error = {0};
    if (cup__drawn_parse(&error, text, again) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", text, error.text);
    cup__drawn_text(again, &written);
    EXPECT_TEXT(cup__text_string(&written), text);
    cup__text_free(&written);
    free(again);
}

TEST(draw_takes_every_op_and_is_read_back)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__drawn *d = malloc(sizeof *d);
    for (const cup__row *row = cup__rows; row->name; row++) {
        int drawn = 0, tries;
        for (int i = 0; i < CALLS; i++) {
            if (!cup__draw(c, row, NULL, 3, i, d, &tries))
                continue;
            cup__text text = {0};
            cup__drawn_text(d, &text);
            expect_repeats(cup__text_string(&text));
            cup__text_free(&text);
            drawn++;
        }
        if (drawn < CALLS * 3 / 4)
            test_fail(__FILE__, __LINE__, "%s: only %d of %d calls were drawn", row->name, drawn,
                      CALLS);
    }
    free(d);
    cup_context_free(c);
}

/* Inference of what changes in place asks whether inputs share memory. */
TEST(draw_of_calls_in_place_has_elements)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const char *const names[] = {"matmul_into", "copy_into"};
    cup__drawn *d = malloc(sizeof *d);
    for (int k = 0; k < 2; k++) {
        int full = 0, tries;
        double elements, work;
        for (int i = 0; i < CALLS; i++)
            full += cup__draw(c, cup__row_find(names[k]), NULL, 3, i, d, &tries) &&
                    cup__drawn_cost(d, c, &elements, &work) && elements > 0;
        EXPECT(full > CALLS / 2);
    }
    free(d);
    cup_context_free(c);
}

TEST(draw_is_a_function_of_its_seed)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__drawn *d = malloc(sizeof *d);
    const cup__row *row = cup__row_find("linear");
    cup__text text[3] = {{0}};
    for (int i = 0; i < 3; i++)
        for (int number = 0; number < 20; number++) {
            int tries;
            if (cup__draw(c, row, NULL, i == 2 ? 8 : 7, number, d, &tries))
                cup__drawn_text(d, &text[i]);
        }
    EXPECT_TEXT(cup__text_string(&text[0]), cup__text_string(&text[1]));
    EXPECT(strcmp(cup__text_string(&text[0]), cup__text_string(&text[2])) != 0);
    for (int i = 0; i < 3; i++)
        cup__text_free(&text[i]);
    free(d);
    cup_context_free(c);
}

TEST(drawn_inputs_are_equal_in_every_layout)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__drawn *d = malloc(sizeof *d);
    cup_tensor *wide[CUP__DRAWN_INPUTS], *own[CUP__DRAWN_INPUTS];
    for (int number = 0; number < 200; number++) {
        int tries;
        if (!cup__draw(c, cup__row_find("where"), NULL, 11, number, d, &tries))
            continue;
        cup_scope_open(c);
        int count = cup__drawn_inputs(d, c, CUP_F64, wide, CUP__DRAWN_INPUTS);
        EXPECT_INT(cup__drawn_inputs(d, c, d->dtype, own, CUP__DRAWN_INPUTS), count);
        for (int i = 0; i < count; i++)
            for (int64_t k = 0; k < own[i]->count; k++) {
                double a = cup__load(own[i], cup__offset_of(own[i], k));
                double b = cup__load(wide[i], cup__offset_of(wide[i], k));
                EXPECT(!memcmp(&a, &b, sizeof a) || (a != a && b != b));
            }
        cup_scope_close(c);
    }
    free(d);
    cup_context_free(c);
}

TEST(drawn_calls_that_make_no_sense_are_refused)
{
    static const char *const wrong[] = {
        "",           "linear",          "nothing bf16 3",         "linear bf17 3x4 5x4",
        "exp f32 3y", "exp f32 3 /x=1",  "exp f32 3 factor=2",     "exp f32 3@",
        "exp f32 3+", "exp f32 3:f33",   "exp f32 1x1x1x1x1x1x1x1x1", "exp f32 3x@1"};
    cup__drawn *d = malloc(sizeof *d);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cup__error error = {0};
        if (cup__drawn_parse(&error, wrong[i], d) != CUP_ARGUMENT)
            test_fail(__FILE__, __LINE__, "\"%s\" was read", wrong[i]);
        EXPECT(error.text[0] != 0);
    }
    free(d);
}

/* A kernel that goes over its elements several times does so at large sizes only. */
TEST(draw_of_large_calls_fills_a_card)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup__draw_limits limits = {.large = true};
    cup__drawn *d = malloc(sizeof *d);
    int large = 0, tries;
    double elements, work, most = 0;
    for (int i = 0; i < 2000; i++)
        if (cup__draw(c, cup__row_find("layernorm"), &limits, 3, i, d, &tries) &&
            cup__drawn_cost(d, c, &elements, &work)) {
            large += elements > 2e6;
            most = elements > most ? elements : most;
        }
    EXPECT(large > 10 && large < 100);
    EXPECT(most > 4e6 && most < 1e7);
    free(d);
    cup_context_free(c);
}

/* A transform takes n log n operations, and its specification n for each number. */
TEST(draw_counts_what_a_specification_does)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const cup__draw_limits limits = {.elements = 1 << 21, .work = 1 << 25};
    const cup__row *row = cup__row_find("fft");
    cup__drawn *d = malloc(sizeof *d);
    int long_ones = 0, tries;
    for (int i = 0; i < 2000; i++) {
        if (!cup__draw(c, row, &limits, 1129002, i, d, &tries))
            continue;
        const cup__fft_attributes *a = (const void *)d->attributes;
        const cup__shape *x = &d->in[0].shape;
        double length = (double)x->size[a->axis < 0 ? a->axis + x->ndim : a->axis], numbers = 1;
        for (int k = 0; k < x->ndim; k++)
            numbers *= (double)x->size[k];
        if (numbers * length > limits.work)
            test_fail(__FILE__, __LINE__, "call %d: %g numbers in lines of %g", i, numbers, length);
        long_ones += length > 1000;
    }
    EXPECT(long_ones > 20);
    free(d);
    cup_context_free(c);
}
