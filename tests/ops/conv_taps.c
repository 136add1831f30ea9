/* Convolutions with a few results of many channels, whose products are made once a place: which go
 * so, on a dry GPU, and what must not reach results on a real one. */
#include <math.h>
#include <string.h>

#include "../ahead.h"
#include "cuda/dry.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "test.h"

typedef struct example {
    int64_t images, channels, high, wide, results, kernel[2];
    int stride, dilation, groups;
    cup_dtype dtype;
    bool forward, input; /* whether each goes so; of the gradient `channels` are those of dy */
} example;

static const char *taken(cup_context *c, const char *op, cup_tensor *const *in, int count,
                         const void *attributes)
{
    cup__call call;
    cup__call_begin(&call, c, cup__row_find(op), in, count, attributes);
    cup__call_allocate(&call);
    EXPECT_TEXT(cup_error_text(c), "");
    const cup__impl *impl = cup__call_choose(&call);
    EXPECT(impl);
    for (int i = 0; i < call.out_count; i++)
        cup_tensor_free(call.out[i]);
    return impl->name;
}

/* Channels last in memory. */
static cup_tensor *image(cup_context *c, cup_dtype dtype, int64_t images, int64_t channels,
                         int64_t high, int64_t wide)
{
    cup_tensor *t = cup_zeros(c, dtype, 4, (int64_t[]){images, high, wide, channels});
    return cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4);
}

static int64_t out_of(const example *e, int d)
{
    int64_t in = d ? e->wide : e->high, pad = e->kernel[d] / 2 * e->dilation;
    return (in + 2 * pad - (e->kernel[d] - 1) * e->dilation - 1) / e->stride + 1;
}

static void check_choice(cup_context *c, const example *e)
{
    int high = (int)e->kernel[0] / 2 * e->dilation, wide = (int)e->kernel[1] / 2 * e->dilation;
    cup__conv2d_attributes f = {{e->stride}, 1, {high, wide}, 2, false, {e->dilation}, 1,
                                e->groups};
    cup__conv2d_input_grad_attributes b = {{e->stride}, 1, {high, wide}, 2, false, {e->dilation}, 1,
                                           e->groups, e->high, e->wide};
    const int64_t *k = e->kernel;
    cup_scope_open(c);
    cup_tensor *x = image(c, e->dtype, e->images, e->channels, e->high, e->wide);
    cup_tensor *dy = image(c, e->dtype, e->images, e->channels, out_of(e, 0), out_of(e, 1));
    cup_tensor *w = cup_zeros(c, e->dtype, 4,
                              (int64_t[]){e->results, e->channels / e->groups, k[0], k[1]});
    cup_tensor *v = cup_zeros(c, e->dtype, 4,
                              (int64_t[]){e->channels, e->results / e->groups, k[0], k[1]});
    const char *forward = taken(c, "conv2d", (cup_tensor *[]){x, w, NULL}, 3, &f);
    EXPECT_INT(!strcmp(forward, "taps"), e->forward);
    const char *input = taken(c, "conv2d_input_grad", (cup_tensor *[]){dy, v}, 2, &b);
    EXPECT_INT(!strcmp(input, "taps"), e->input);
    cup_scope_close(c);
}

TEST(conv_taps_takes_a_few_results_of_many_channels)
{
    static const example list[] = {
        {2, 64, 128, 128, 3, {3, 3}, 1, 1, 1, CUP_BF16, true, true},
        {1, 320, 64, 64, 4, {3, 3}, 1, 1, 1, CUP_F16, true, true},
        {1, 512, 64, 64, 8, {3, 3}, 1, 1, 1, CUP_BF16, true, true},
        {1, 128, 512, 1024, 3, {3, 3}, 1, 1, 1, CUP_BF16, true, true},
        {2, 24, 30, 30, 1, {7, 7}, 1, 1, 1, CUP_BF16, true, true},
        {2, 24, 30, 30, 3, {3, 3}, 1, 5, 1, CUP_BF16, true, true},
        {2, 64, 30, 30, 3, {3, 3}, 2, 1, 1, CUP_BF16, false, false},
        {2, 64, 30, 30, 3, {3, 3}, 1, 1, 1, CUP_F32, false, false},
        {2, 64, 30, 30, 9, {3, 3}, 1, 1, 1, CUP_BF16, false, false},
        {2, 64, 30, 30, 2, {7, 7}, 1, 1, 1, CUP_BF16, false, false},
        {2, 64, 30, 30, 2, {3, 3}, 1, 1, 2, CUP_BF16, false, false},
        {2, 8, 30, 30, 3, {3, 3}, 1, 1, 1, CUP_BF16, false, false},
        {2, 36, 30, 30, 3, {3, 3}, 1, 1, 1, CUP_BF16, false, false},
        {2, 64, 30, 30, 3, {1, 1}, 1, 1, 1, CUP_BF16, false, false},
        {1, 16, 2000, 30, 2, {3, 3}, 1, 900, 1, CUP_BF16, false, false},
    };
    cup_context *c = cup__context_dry("sm_90a");
    EXPECT_TEXT(cup_error_text(c), "");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        check_choice(c, &list[i]);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}

/* Small whole numbers, so that sums are exact whatever their order; NaN in the first column of
 * every row, which the places of rows before lie beside, in the last row of an image, and in what
 * lies between rows in memory and belongs to nothing. */
enum { IMAGES = 3, HIGH = 21, WIDE = 37, ROOM = 40, CHANNELS = 40 };

static float number_at(int64_t i)
{
    int64_t place = i / CHANNELS, column = place % ROOM, row = place / ROOM;
    bool wild = column == 0 || column >= WIDE || row % HIGH == HIGH - 1;
    return wild && i % CHANNELS == 5 ? NAN : (float)(i * 7919 % 1009 % 5) - 2;
}

static cup_tensor *numbered(cup_context *c, cup_dtype dtype, int64_t wide)
{
    static float data[IMAGES * HIGH * ROOM * CHANNELS];
    for (int64_t i = 0; i < (int64_t)(sizeof data / sizeof *data); i++)
        data[i] = number_at(i);
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){IMAGES, HIGH, ROOM, CHANNELS}, data);
    t = cup_slice(c, cup_cast(c, t, dtype), (int64_t[]){0, 0, 0, 0}, 4,
                  (int64_t[]){-1, -1, wide, -1}, 4);
    return cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4);
}

static cup_tensor *weight_of(cup_context *c, cup_dtype dtype, int64_t results, int64_t channels)
{
    static float data[8 * CHANNELS * 9];
    for (int64_t i = 0; i < results * channels * 9; i++)
        data[i] = (float)(i * 104729 % 997 % 5) - 2;
    return cup_cast(c, cup_tensor_from(c, CUP_F32, 4, (int64_t[]){results, channels, 3, 3}, data),
                    dtype);
}

static cup_tensor *made(cup_context *c, cup_dtype dtype, int64_t results, int64_t wide, bool back)
{
    static const int64_t both[] = {2, 1}; /* padding and dilation */
    cup_tensor *x = numbered(c, dtype, wide);
    if (!back)
        return cup_conv2d(c, x, weight_of(c, dtype, results, CHANNELS), NULL,
                          CUP_OPTIONS(cup_conv2d_options, .padding = {both, 2},
                                      .dilation = {both, 2}));
    return cup__conv2d_input_grad(c, x, weight_of(c, dtype, CHANNELS, results), NULL, 0,
                                  both, 2, false, both, 2, 1, HIGH, wide);
}

/* As f32, in the order of its shape. */
static void read_all(cup_context *c, cup_tensor *t, float *to)
{
    t = cup_copy(c, cup_cast(c, t, CUP_F32));
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_tensor_read(t, to, (size_t)cup_tensor_count(t) * sizeof *to), CUP_OK);
}

static void expect_equal(cup_context *c, cup_context *exact, int64_t results, int64_t wide,
                         bool back, cup_dtype dtype)
{
    static float got[IMAGES * 8 * HIGH * ROOM], want[IMAGES * 8 * HIGH * ROOM];
    int64_t count = IMAGES * results * HIGH * wide, wild = 0, other = 0;
    cup_scope_open(c);
    cup_tensor *y = made(c, dtype, results, wide, back);
    EXPECT_TEXT(cup_error_text(c), "");
    if (c == test_noted) {
        cup_scope_close(c);
        return;
    }
    cup_scope_open(exact);
    read_all(c, y, got);
    read_all(exact, made(exact, dtype, results, wide, back), want);
    for (int64_t k = 0; k < count; k++) {
        wild += isnan(want[k]) != 0;
        other += isnan(got[k]) ? !isnan(want[k]) : got[k] != want[k];
    }
    EXPECT_INT(other, 0);
    EXPECT(wild > 0 && wild < count / 2);
    cup_scope_close(exact);
    cup_scope_close(c);
}

static void check_numbers(cup_context *c)
{
    static const int64_t results[] = {1, 3, 4, 8};
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int i = 0; i < 4; i++)
        for (int back = 0; back < 2; back++)
            for (int half = 0; half < 2; half++) {
                cup_dtype dtype = half ? CUP_F16 : CUP_BF16;
                expect_equal(c, exact, results[i], ROOM, back, dtype); /* places lie evenly, */
                expect_equal(c, exact, results[i], WIDE, back, dtype); /* and do not */
            }
    cup_context_free(exact);
}

TEST(conv_taps_leave_out_what_is_outside)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    check_numbers(c);
    cup_context_free(c);
}

TEST(gpu_conv_taps_leave_out_what_is_outside)
{
    TEST_AHEAD {
        cup_context *c = test_noted ? test_noted
                                    : cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        check_numbers(c);
        if (!test_noted)
            cup_context_free(c);
    }
}
