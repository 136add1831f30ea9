/* Padding with what x itself has: values by hand, and what cannot be, in words. */
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

static void expect(cup_tensor *y, const float *wanted, int count)
{
    float got[16];
    EXPECT_INT(cup_tensor_read(y, got, sizeof *got * (size_t)count), CUP_OK);
    for (int i = 0; i < count; i++)
        EXPECT(got[i] == wanted[i]);
}

TEST(pad_edges_by_hand)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, (float[]){1, 2, 3});
    int64_t two[] = {2}, three[] = {3};
    expect(cup_pad_reflect(c, x, two, 1, two, 1), (float[]){3, 2, 1, 2, 3, 2, 1}, 7);
    expect(cup_pad_replicate(c, x, two, 1, three, 1), (float[]){1, 1, 1, 2, 3, 3, 3, 3}, 8);
    expect(cup_pad_circular(c, x, three, 1, two, 1), (float[]){1, 2, 3, 1, 2, 3, 1, 2}, 8);
    cup_context_free(c);
}

static void expect_refused(cup_context *c, cup_tensor *y, const char *words)
{
    EXPECT(!y);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(pad_edges_refused)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){3}, (float[]){1, 2, 3});
    cup_tensor *none = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){0});
    int64_t zero[] = {0}, one[] = {1}, three[] = {3}, four[] = {4}, minus[] = {-1};
    expect_refused(c, cup_pad_reflect(c, x, three, 1, zero, 1), "pad by fewer");
    expect_refused(c, cup_pad_circular(c, x, zero, 1, four, 1), "pad by fewer");
    expect_refused(c, cup_pad_replicate(c, none, one, 1, zero, 1), "its 0 elements");
    expect_refused(c, cup_pad_replicate(c, x, minus, 1, zero, 1), "cannot be negative");
    expect_refused(c, cup_pad_replicate(c, x, (int64_t[]){INT64_MAX}, 1, zero, 1), "too large");
    expect_refused(c, cup_pad_reflect(c, x, one, 1, NULL, 0), "1 numbers before and 0 after");
    EXPECT_INT(cup_tensor_count(cup_pad_reflect(c, none, zero, 1, zero, 1)), 0);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}
