/* Which gradients of weights go by tiles that have all nine taps, how these cut places, and as how
 * many kernels, on a dry GPU. */
#include <stdlib.h>
#include <string.h>

#include "../ahead.h"
#include "cuda/dry.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "test.h"

/* [images, channels, side, side] with the channels last in memory. */
static cup_tensor *image(cup_context *c, int64_t images, int64_t channels, int64_t side)
{
    cup_tensor *t = cup_zeros(c, CUP_BF16, 4, (int64_t[]){images, side, side, channels});
    return cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4);
}

/* How places are cut, as the kernel's knob says it; or that other kernels take the call. */
enum { OTHERS = -1, WHOLE, PARTS, SHARES };

typedef struct example {
    int images, channels, results, side, kernel, stride;
    bool sum;    /* whether it is added to a weight that is there */
    int kernels; /* that are asked for */
    int cut;
} example;

static const example examples[] = {
    {64, 512, 1024, 8, 3, 1, false, 1, WHOLE},    {64, 512, 1024, 8, 3, 1, true, 1, WHOLE},
    {64, 128, 256, 32, 3, 1, false, 1, PARTS},    {64, 512, 512, 16, 3, 1, false, 1, PARTS},
    {64, 512, 512, 16, 3, 1, true, 1, PARTS},     {64, 1024, 1024, 8, 3, 1, false, 1, WHOLE},
    {64, 256, 512, 16, 3, 1, false, 1, PARTS},    {64, 1024, 512, 16, 3, 1, false, 1, WHOLE},
    {64, 512, 512, 7, 3, 1, false, 1, PARTS},     {64, 256, 256, 14, 3, 1, false, 1, PARTS},
    {64, 256, 256, 16, 3, 1, false, 1, PARTS},    {16, 1280, 1280, 8, 3, 1, false, 1, SHARES},
    {16, 1280, 1280, 16, 3, 1, false, 1, SHARES}, {64, 512, 512, 14, 3, 2, false, 1, PARTS},
    {64, 256, 256, 56, 3, 2, false, 1, PARTS},    {2, 64, 64, 8, 3, 1, false, 1, WHOLE},
    {64, 192, 192, 32, 3, 1, false, 2, OTHERS},   {16, 320, 320, 64, 3, 1, false, 2, OTHERS},
    {64, 384, 384, 16, 3, 1, false, 2, OTHERS},   {64, 256, 256, 32, 3, 1, false, 2, OTHERS},
    {64, 768, 768, 16, 3, 1, false, 2, OTHERS},   {16, 640, 640, 32, 3, 1, false, 2, OTHERS},
    {64, 64, 64, 56, 3, 1, false, 2, OTHERS},     {64, 528, 1024, 8, 3, 1, false, 2, OTHERS},
    {64, 512, 512, 8, 2, 1, false, 2, OTHERS},
};

static int knob(const cup__kernel_request *r, const char *name)
{
    for (int i = 0; i < r->knob_count; i++)
        if (!strcmp(r->knobs[i].name, name))
            return (int)r->knobs[i].value;
    return -1;
}

static void expect(cup_context *c, const example *e, int before)
{
    int count;
    const cup__kernel_request *r = cup__dry_requests(cup__cuda_of(c->device), &count) + before;
    count -= before;
    bool taps = count > 0 && !strcmp(r->file, "conv_weight_taps.cu");
    if (count != e->kernels || taps != (e->cut != OTHERS) ||
        (taps && (knob(r, "PARTS") != e->cut || knob(r, "BASE") != e->sum)))
        test_fail(__FILE__, __LINE__, "%d to %d at %d: %d kernels, the first is %s, cut %d",
                  e->channels, e->results, e->side, count, count > 0 ? r->file : "none",
                  count > 0 ? knob(r, "PARTS") : 0);
}

static void check(cup_context *c, const example *e)
{
    int before;
    const int around = e->kernel / 2, side = (e->side + 2 * around - e->kernel) / e->stride + 1;
    const cup__conv2d_weight_grad_attributes a = {
        {e->stride}, 1, {around}, 1, false, {0}, 0, 1, {e->kernel}, 1};
    cup_tensor *in[3] = {image(c, e->images, e->results, side),
                         image(c, e->images, e->channels, e->side)};
    if (e->sum)
        in[2] = cup_zeros(c, CUP_BF16, 4,
                          (int64_t[]){e->results, e->channels, e->kernel, e->kernel});
    cup__dry_forget(cup__cuda_of(c->device), 0);
    cup__dry_requests(cup__cuda_of(c->device), &before);
    cup_tensor_free(cup__op_call(c, cup__row_find("conv2d_weight_grad"), in, 3, &a, NULL));
    EXPECT_TEXT(cup_error_text(c), "");
    expect(c, e, before);
    for (int i = 0; i < 3; i++)
        cup_tensor_free(in[i]);
}

TEST(conv_weight_of_nine_taps_is_written_as_it_lies)
{
    cup_context *c = cup__context_dry("sm_90a");
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        check(c, &examples[i]);
    cup_context_free(c);
}

/* 136 tiles are more than a card's blocks and less than two rounds, so that shares are cut. */
enum { IMAGES = 4, SIDE = 16, RESULTS = 16, CHANNELS = 4352 };

static cup_tensor *numbered(cup_context *c, int64_t channels, int64_t step)
{
    const int64_t count = IMAGES * SIDE * SIDE * channels;
    float *data = calloc((size_t)count, sizeof *data);
    for (int64_t i = 0; i < count; i++)
        data[i] = (float)(i * step % 1009 % 5) - 2;
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 4, (int64_t[]){IMAGES, SIDE, SIDE, channels}, data);
    free(data);
    return cup_permute(c, cup_cast(c, t, CUP_F16), (int64_t[]){0, 3, 1, 2}, 4);
}

/* The gradient, of numbers that are whole and of which all sums are in f16, added to `base` or not;
 * to be freed. */
static float *gradient(cup_context *c, bool sum)
{
    static const cup__conv2d_weight_grad_attributes a = {{1}, 1, {1}, 1, false, {0}, 0, 1, {3}, 1};
    const int64_t size[] = {RESULTS, CHANNELS, 3, 3};
    cup_scope_open(c);
    cup_tensor *in[3] = {numbered(c, RESULTS, 7919), numbered(c, CHANNELS, 104729),
                         sum ? cup_full(c, CUP_F16, 4, size, 3) : NULL};
    cup_tensor *y = cup__op_call(c, cup__row_find("conv2d_weight_grad"), in, 3, &a, NULL);
    float *to = c == test_noted ? NULL : calloc(RESULTS * CHANNELS * 9, sizeof *to);
    cup_tensor *wide = cup_cast(c, y, CUP_F32);
    EXPECT_TEXT(cup_error_text(c), "");
    if (to)
        EXPECT_INT(cup_tensor_read(wide, to, RESULTS * CHANNELS * 9 * sizeof *to), CUP_OK);
    cup_tensor_free(y);
    cup_scope_close(c);
    return to;
}

static void compare(cup_context *c, cup_context *exact)
{
    for (int sum = 0; sum < 2; sum++) {
        float *got = gradient(c, sum), *want = got ? gradient(exact, sum) : NULL;
        int64_t other = 0;
        for (int64_t i = 0; got && i < RESULTS * CHANNELS * 9; i++)
            other += got[i] != want[i];
        EXPECT_INT(other, 0);
        free(got);
        free(want);
    }
}

TEST_LIMITED(gpu_conv_weight_of_nine_taps_by_shares, 60)
{
    cup_context *exact = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    setenv("CUP_IMPL", "conv2d_weight_grad=taps", 1);
    TEST_AHEAD {
        cup_context *c = test_noted;
        if (!c)
            c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        compare(c, exact);
        if (!test_noted)
            cup_context_free(c);
    }
    cup_context_free(exact);
}
