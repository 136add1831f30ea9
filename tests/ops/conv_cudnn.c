/* Convolutions by cuDNN, on the stand-ins for it and for the driver. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"
#include "dispatch/op.h"
#include "dispatch/tuned.h"
#include "fake/cudnn.h"
#include "ops/conv/conv_cudnn.h"
#include "test.h"

static fake_cudnn_fail_function *fake_cudnn_fail;
static fake_cudnn_calls_function *fake_cudnn_calls;
static fake_cudnn_live_function *fake_cudnn_live;
static fake_cudnn_last_function *fake_cudnn_last;

static cup_context *open_gpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
}

static const char *begin(void)
{
    char path[4400];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("CUP_PRECISION", "high", 1);
    snprintf(path, sizeof path, "%s/fake/libcudnn.so", test_build());
    setenv("CUP_LIBCUDNN", path, 1);
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        test_fail(__FILE__, __LINE__, "%s", dlerror());
    *(void **)&fake_cudnn_fail = dlsym(library, "fake_cudnn_fail");
    *(void **)&fake_cudnn_calls = dlsym(library, "fake_cudnn_calls");
    *(void **)&fake_cudnn_live = dlsym(library, "fake_cudnn_live");
    *(void **)&fake_cudnn_last = dlsym(library, "fake_cudnn_last");
    return folder;
}

/* The same, with cuDNN wherever it takes a call. */
static void begin_preferring(void)
{
    begin();
    setenv("CUP_IMPL", "conv2d=cudnn,conv2d_input_grad=cudnn,conv2d_weight_grad=cudnn", 1);
}

/* A convolution: x is images x groups each x high x wide. */
typedef struct example {
    int64_t images, channels, high, wide, results, kernel[2];
    int64_t stride[2], padding[4], dilation[2];
    int groups;
    bool last;
} example;

/* A tensor of these sizes, whose channels lie last where they should. */
static cup_tensor *filled(cup_context *c, const int64_t size[4], bool last, float scale)
{
    int64_t count = size[0] * size[1] * size[2] * size[3];
    float *values = calloc((size_t)count, sizeof *values);
    int64_t lying[4] = {size[0], size[last ? 2 : 1], size[last ? 3 : 2], size[last ? 1 : 3]};
    for (int64_t i = 0; i < count; i++) {
        int64_t n = i / (size[1] * size[2] * size[3]), k = i / (size[2] * size[3]) % size[1];
        int64_t p = i % (size[2] * size[3]);
        int64_t to = last ? (n * size[2] * size[3] + p) * size[1] + k : i;
        values[to] = scale * (float)((i * 7 + 3) % 11 - 5);
    }
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 4, lying, values);
    free(values);
    return last ? cup_permute(c, t, (int64_t[]){0, 3, 1, 2}, 4) : t;
}

static void sizes_of(const example *e, int64_t size[3][4])
{
    int64_t out[2];
    for (int d = 0; d < 2; d++)
        out[d] = ((d ? e->wide : e->high) + e->padding[2 * d] + e->padding[2 * d + 1] -
                  (e->kernel[d] - 1) * e->dilation[d] - 1) /
                     e->stride[d] +
                 1;
    const int64_t all[3][4] = {
        {e->images, e->channels, e->high, e->wide},
        {e->results, e->channels / e->groups, e->kernel[0], e->kernel[1]},
        {e->images, e->results, out[0], out[1]}};
    memcpy(size, all, sizeof all);
}

/* Part 0: forward, 1: the gradient of x, 2: of the weight, whose own lies row by row. */
static cup_tensor *compute(cup_context *c, const example *e, int part)
{
    int64_t size[3][4];
    sizes_of(e, size);
    cup_tensor *x = filled(c, size[0], e->last, 0.25f), *w = filled(c, size[1], e->last, 0.5f);
    cup_tensor *dy = filled(c, size[2], e->last, 1);
    if (part == 1)
        return cup__conv2d_input_grad(c, dy, w, e->stride, 2, e->padding, 4, false, e->dilation, 2,
                                      e->groups, e->high, e->wide);
    if (part == 2)
        return cup__conv2d_weight_grad(c, dy, x, NULL, e->stride, 2, e->padding, 4, false,
                                       e->dilation, 2, e->groups, e->kernel, 2);
    cup_conv2d_options o = {.size = sizeof o, .stride = {e->stride, 2}, .padding = {e->padding, 4},
                            .dilation = {e->dilation, 2}, .groups = e->groups};
    return cup_conv2d(c, x, w, NULL, &o);
}

/* In the order of memory: the stand-in for the driver carries out no kernel that would turn it. */
static float *read_all(cup_context *c, cup_tensor *t, bool last)
{
    float *raw = calloc((size_t)cup_tensor_count(t) + 1, sizeof *raw);
    if (t && last)
        t = cup_permute(c, t, (int64_t[]){0, 2, 3, 1}, 4);
    if (!t || cup_tensor_read(t, raw, (size_t)cup_tensor_count(t) * sizeof *raw) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    return raw;
}

#define PLAIN {1, 1}, {0, 0, 0, 0}, {1, 1}, 1
static const example examples[] = {{2, 3, 5, 4, 4, {1, 1}, PLAIN, true},
                                   {2, 3, 5, 4, 4, {1, 1}, PLAIN, false},
                                   {2, 4, 7, 6, 6, {3, 2}, {2, 1}, {2, 0, 1, 3}, {1, 2}, 2, false},
                                   {1, 6, 5, 5, 6, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 6, false},
                                   {3, 1, 9, 1, 2, {4, 1}, {3, 2}, {0, 1, 0, 0}, {2, 1}, 1, false},
                                   {2, 4, 6, 5, 8, {1, 1}, {2, 3}, {0, 0, 1, 1}, {1, 1}, 4, true}};

/* The last example's padding is wider than a kernel of 1 x 1 reaches, and that of others is uneven,
 * so that their gradients by the image and by the weight are another implementation's, which the
 * stand-in for the driver does not carry out. */
static bool is_left_to_others(size_t which, int part)
{
    const int64_t *p = examples[which].padding;
    if (part == 2)
        return p[0] != p[1] || p[2] != p[3];
    return which == sizeof examples / sizeof *examples - 1 && part == 1;
}

TEST(conv_cudnn_computes)
{
    begin_preferring();
    cup_context *gpu = open_gpu();
    cup_context *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        for (int part = 0; part < 3; part++) {
            long ran = fake_cudnn_calls("cudnnBackendExecute");
            cup_tensor *got = compute(gpu, &examples[i], part);
            cup_tensor *want = compute(cpu, &examples[i], part);
            bool left = is_left_to_others(i, part);
            EXPECT_INT(fake_cudnn_calls("cudnnBackendExecute"), ran + !left);
            if (left)
                continue;
            bool last = examples[i].last && part != 2;
            float *a = read_all(gpu, got, last), *b = read_all(cpu, want, last);
            for (int64_t k = 0; k < cup_tensor_count(want); k++)
                if (a[k] != b[k])
                    test_fail(__FILE__, __LINE__, "example %zu, part %d: %g in place of %g", i,
                              part, (double)a[k], (double)b[k]);
            free(a);
            free(b);
        }
    cup_context_free(gpu);
    cup_context_free(cpu);
    EXPECT_INT(fake_cudnn_live(), 0);
    fake_expect_nothing_left();
}

static const example one_by_one = {2, 3, 5, 4, 4, {1, 1}, PLAIN, true};
static const example three_by_three = {2,      4,            6,      6, 4,    {3, 3},
                                       {1, 1}, {1, 1, 1, 1}, {1, 1}, 1, false};

/* A gradient that is added to another is made in memory of its own, each time, which a kernel adds:
 * the stand-in for the driver counts that launch. */
TEST(conv_cudnn_adds_to_a_gradient)
{
    begin_preferring();
    cup_context *c = open_gpu();
    const example *e = &three_by_three;
    int64_t size[3][4];
    sizes_of(e, size);
    cup_tensor *x = filled(c, size[0], false, 1), *sum = filled(c, size[1], false, 1);
    cup_tensor *in[] = {filled(c, size[2], false, 1), x, sum}, *out[] = {sum};
    const cup__conv2d_weight_grad_attributes a = {.padding = {1}, .padding_count = 1, .groups = 1,
                                                  .kernel = {3}, .kernel_count = 1};
    for (int i = 1; i < 4; i++) {
        long launches = fake_calls("cuLaunchKernel") + fake_calls("cuLaunchKernelEx");
        cup__op_call(c, cup__row_find("conv2d_weight_grad"), in, 3, &a, out);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(fake_cudnn_calls("cudnnBackendExecute"), i);
        EXPECT_INT(fake_calls("cuLaunchKernel") + fake_calls("cuLaunchKernelEx"), launches + 1);
    }
    cup_context_free(c);
    EXPECT_INT(fake_cudnn_live(), 0);
}

/* An equal call makes no descriptor but that of its tensors, and a stream's change is told. */
TEST(conv_cudnn_remembers)
{
    begin_preferring();
    cup_context *c = open_gpu();
    compute(c, &one_by_one, 0);
    long made = fake_cudnn_calls("cudnnBackendCreateDescriptor");
    for (int i = 0; i < 3; i++)
        compute(c, &one_by_one, 0);
    EXPECT_INT(fake_cudnn_calls("cudnnBackendCreateDescriptor"), made + 3);
    EXPECT_INT(fake_cudnn_calls("cudnnBackendExecute"), 4);
    EXPECT_INT(fake_cudnn_calls("cudnnSetStream"), 1);
    EXPECT_INT(fake_cudnn_last(), 1);
    compute(c, &three_by_three, 0);
    EXPECT(fake_cudnn_calls("cudnnBackendCreateDescriptor") > made + 4);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
    EXPECT_INT(fake_cudnn_live(), 0);
}

/* Where any one call of the library fails, another implementation, or another algorithm, does the
 * call, and the next one as well. */
TEST(conv_cudnn_fails_softly)
{
    begin_preferring();
    for (int part = 0; part < 3; part++) {
        long all = 0, before = fake_cudnn_calls(NULL);
        for (long n = 0; n <= all; n++) {
            cup_context *c = open_gpu();
            fake_cudnn_fail(n);
            compute(c, &three_by_three, part);
            fake_cudnn_fail(0);
            if (n == 0)
                all = fake_cudnn_calls(NULL) - before;
            EXPECT_TEXT(cup_error_text(c), "");
            long ran = fake_cudnn_calls("cudnnBackendExecute");
            compute(c, &three_by_three, part);
            EXPECT_TEXT(cup_error_text(c), "");
            EXPECT(n > 0 || fake_cudnn_calls("cudnnBackendExecute") == ran + 1);
            EXPECT(n < all || fake_cudnn_calls("cudnnBackendExecute") == ran);
            cup_context_free(c);
            EXPECT_INT(fake_cudnn_live(), 0);
        }
        EXPECT(all > 30);
    }
    fake_expect_nothing_left();
}

static cup__call call_of(cup_context *c, cup_tensor *const *in, int count,
                         const cup__conv2d_attributes *a)
{
    cup__call call;
    cup__call_begin(&call, c, cup__row_find("conv2d"), in, count, a);
    cup__call_allocate(&call);
    EXPECT_TEXT(cup_error_text(c), "");
    return call;
}

static const cup__conv2d_attributes plain = {.groups = 1};

/* Who asks for it by name is told of its failure. */
TEST(conv_cudnn_says_that_it_failed)
{
    begin();
    cup_context *c = open_gpu();
    cup_tensor *in[] = {filled(c, (int64_t[]){1, 2, 3, 3}, true, 1),
                        filled(c, (int64_t[]){2, 2, 1, 1}, true, 1)};
    cup__way way;
    EXPECT(cup__way_parse(&cup__op_conv2d, "cudnn rank=2 version=91900", &way));
    cup__call call = call_of(c, in, 2, &plain);
    EXPECT(!way.impl->planning->refuses(&call, &way.plan));
    fake_cudnn_fail(7); /* behind the stream, and the pack with its attributes: the run itself */
    EXPECT_INT(way.impl->planning->run(&call, &way.plan), CUP_DRIVER);
    EXPECT_CONTAINS(cup_error_text(c), "cuDNN failed with CUDNN_STATUS_INTERNAL_ERROR when it ran");
    EXPECT_CONTAINS(cup_error_text(c), "CUP_LIBCUDNN=off");
    cup_error_clear(c);
    EXPECT_CONTAINS(cup__conv_cudnn_refuses(&call), "when it ran");
    cup_context_free(c);
}

/* Of what it proposes those are taken whose sums are plain and always the same, in its order. */
TEST(conv_cudnn_offers_its_algorithms)
{
    static const int taken[] = {1, 3, 6};
    begin();
    cup_context *c = open_gpu();
    cup_tensor *in[] = {filled(c, (int64_t[]){1, 2, 3, 3}, true, 1),
                        filled(c, (int64_t[]){2, 2, 1, 1}, true, 1)};
    cup__call call = call_of(c, in, 2, &plain);
    const cup__planning *planning = &cup__conv_cudnn_planning;
    cup__plan plans[40];
    EXPECT_INT(planning->list(&call, plans, 2), 2);
    EXPECT_INT(planning->list(&call, plans, 40), CUP__CUDNN_RANKS);
    for (int i = 0; i < 3; i++) {
        EXPECT(!planning->refuses(&call, &plans[i]));
        EXPECT_INT(planning->run(&call, &plans[i]), CUP_OK);
        EXPECT_INT(fake_cudnn_last(), taken[i]);
    }
    EXPECT_CONTAINS(planning->refuses(&call, &plans[3]), "no more algorithms");
    EXPECT_CONTAINS(planning->refuses(&call, &(cup__plan){{CUP__CUDNN_RANKS}}), "not asked for");
    EXPECT(strcmp(cup__call_choose(&call)->name, "cudnn") != 0);
    cup_context_free(c);
}

static void expect_refusal(cup_context *c, cup_tensor *x, cup_tensor *w, cup_tensor *bias,
                           const char *words)
{
    cup_tensor *in[] = {x, w, bias};
    cup__call call = call_of(c, in, bias ? 3 : 2, &plain);
    const char *why = cup__conv_cudnn_refuses(&call);
    EXPECT_CONTAINS(why ? why : "nothing", words);
    cup_error_clear(c);
}

TEST(conv_cudnn_refuses)
{
    begin();
    cup_context *c = open_gpu();
    const int64_t images[] = {2, 4, 6, 6}, weights[] = {4, 4, 1, 1}, none[] = {0, 4, 6, 6};
    cup_tensor *x = filled(c, images, true, 1), *w = filled(c, weights, true, 1);
    cup_tensor *turned = cup_permute(c, x, (int64_t[]){0, 1, 3, 2}, 4);
    expect_refusal(c, x, w, NULL, "nothing");
    expect_refusal(c, x, w, cup_tensor_new(c, CUP_F32, 1, (int64_t[]){4}), "it adds no bias");
    expect_refusal(c, turned, w, NULL, "neither as [N,H,W,C] nor as [N,C,H,W]");
    expect_refusal(c, cup_tensor_new(c, CUP_F32, 4, none), w, NULL, "nothing to sum");
    expect_refusal(c, cup_tensor_new(c, CUP_F64, 4, images), cup_tensor_new(c, CUP_F64, 4, weights),
                   NULL, "it takes f32, f16 and bf16");
    cup_precision(c, "highest");
    expect_refusal(c, x, w, NULL, "CUP_PRECISION=high");
    expect_refusal(c, cup_tensor_new(c, CUP_BF16, 4, images),
                   cup_tensor_new(c, CUP_BF16, 4, weights), NULL, "nothing");
    cup_context_free(c);
    EXPECT_INT(fake_cudnn_live(), 0);
}

/* Without host memory a call fails with that, and leaves nothing behind. */
TEST(conv_cudnn_out_of_memory)
{
    begin_preferring();
    bool failed = true;
    for (long n = 1; failed; n++) {
        cup_context *c = open_gpu();
        cup_tensor *x = filled(c, (int64_t[]){2, 4, 6, 6}, true, 1);
        cup_tensor *w = filled(c, (int64_t[]){4, 4, 1, 1}, true, 1);
        cup__memory_fail_at(n, false);
        cup_tensor *y = cup_conv2d(c, x, w, NULL, NULL);
        cup__memory_fail_at(0, false);
        failed = !y;
        EXPECT_INT(cup_error(c), failed ? CUP_MEMORY : CUP_OK);
        cup_context_free(c);
        EXPECT_INT(fake_cudnn_live(), 0);
        EXPECT(n < 100);
    }
    fake_expect_nothing_left();
}

/* A handle that cannot be had is asked for once. */
TEST(conv_cudnn_that_does_not_start)
{
    begin();
    cup_context *c = open_gpu();
    cup_tensor *x = filled(c, (int64_t[]){2, 4, 6, 6}, true, 1);
    cup_tensor *w = filled(c, (int64_t[]){4, 4, 1, 1}, true, 1);
    fake_cudnn_fail(1);
    for (int i = 0; i < 2; i++)
        expect_refusal(c, x, w, NULL, "CUDNN_STATUS_INTERNAL_ERROR when it was started");
    EXPECT_INT(fake_cudnn_calls("cudnnCreate"), 1);
    cup_context_free(c);
}

TEST(conv_cudnn_that_is_not_there)
{
    begin();
    setenv("CUP_LIBCUDNN", "off", 1);
    cup_context *c = open_gpu();
    expect_refusal(c, filled(c, (int64_t[]){2, 4, 6, 6}, true, 1),
                   filled(c, (int64_t[]){4, 4, 1, 1}, true, 1), NULL, "cuDNN was not found");
    cup_context_free(c);
}

static void hear(void *user, const char *line)
{
    if (strstr(line, "tuned: ") || strstr(line, "not cudnn"))
        snprintf(user, 200, "%s", line);
}

static void write_record(const char *folder, const char *way)
{
    char path[4400], text[700];
    snprintf(path, sizeof path, "%s/tuning.tsv", folder);
    setenv("CUP_TUNING", path, 1);
    snprintf(text, sizeof text,
             "Fake GPU\t%d\t%s\tconv2d f32:2x3x5x4:steps=60,1,12,3 f32:4x3x1x1 - "
             "height=5:kernel=1:stride=1:dilation=1:padding=0,0 "
             "width=4:kernel=1:stride=1:dilation=1:padding=0,0 groups=1 precision=high\t%s\t5\n",
             cup__library_report_of(CUP__LIBCUDA)->version, cup_version(), way);
    cup__error error = {0};
    EXPECT_OK(&error, cup__file_write(&error, path, text, strlen(text)));
}

/* A record chooses it; one that cannot be followed says why not. */
TEST(conv_cudnn_by_a_record)
{
    static const struct {
        const char *way, *heard;
        int ran;
    } cases[] = {{"cudnn rank=1 version=91900", "  tuned: cudnn rank=1 version=91900", 3},
                 {"cudnn version=91900", "  tuned: cudnn version=91900", 1},
                 {"cudnn rank=1 version=91400",
                  "not cudnn rank=1 version=91400, which was the fastest when measured: anoth",
                  1},
                 {"cudnn rank=9 version=91900",
                  "not cudnn rank=9 version=91900, which was the fastest when measured: cuDNN",
                  1}};
    char heard[200];
    const char *folder = begin();
    setenv("CUP_LOG", "dispatch", 1);
    cup_log_to(hear, heard);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_record(folder, cases[i].way);
        cup_context *c = open_gpu();
        for (int again = 0; again < 2; again++) {
            *heard = 0;
            compute(c, &one_by_one, 0);
            EXPECT_TEXT(cup_error_text(c), "");
            if (!again || i < 2)
                EXPECT_CONTAINS(heard, cases[i].heard);
            EXPECT_INT(fake_cudnn_last(), cases[i].ran);
        }
        cup_context_free(c);
    }
    fake_expect_nothing_left();
}

/* A record is of what a call means, not of how its options are written. */
TEST(conv_cudnn_by_a_record_with_defaults_left_out)
{
    char heard[200] = "";
    const char *folder = begin();
    setenv("CUP_LOG", "dispatch", 1);
    cup_log_to(hear, heard);
    write_record(folder, "cudnn rank=1 version=91900");
    cup_context *c = open_gpu();
    cup_conv2d(c, filled(c, (int64_t[]){2, 3, 5, 4}, true, 1),
               filled(c, (int64_t[]){4, 3, 1, 1}, true, 1), NULL, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_TEXT(heard, "  tuned: cudnn rank=1 version=91900");
    cup_context_free(c);
    fake_expect_nothing_left();
}

static void take_result(const cup_tune_result *r, void *user)
{
    *(int *)user = r->ways;
}

TEST(conv_cudnn_is_measured)
{
    int with = 0, without = 0;
    begin();
    cup_context *c = open_gpu();
    cup_bench_options how = {.size = sizeof how, .dtype = CUP_BF16, .channels_last = true,
                             .shapes = "2x16x6x6 32x16x1x1 -", .attributes = "groups=1"};
    EXPECT_INT(cup_tune(c, "conv2d", &how, take_result, &with), CUP_OK);
    how.shapes = "2x16x6x6 32x16x1x1 32"; /* with a bias, which it does not add */
    EXPECT_INT(cup_tune(c, "conv2d", &how, take_result, &without), CUP_OK);
    EXPECT(without > 1);
    EXPECT_INT(with, without + CUP__CUDNN_RANKS);
    cup_context_free(c);
    EXPECT_INT(fake_cudnn_live(), 0);
}

TEST(conv_cudnn_is_captured)
{
    begin_preferring();
    cup_context *c = open_gpu();
    cup_tensor *x = filled(c, (int64_t[]){2, 4, 6, 6}, true, 1);
    cup_tensor *w = filled(c, (int64_t[]){4, 4, 1, 1}, true, 1);
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(cup_capture_begin(c), CUP_OK);
        cup_conv2d(c, x, w, NULL, NULL);
        cup_graph *graph = cup_capture_end(c);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_graph_launch(graph), CUP_OK);
        EXPECT_INT(cup_synchronize(c), CUP_OK);
        cup_graph_free(graph);
        EXPECT_INT(fake_cudnn_calls("cudnnBackendExecute"), i + 1);
    }
    cup_context_free(c);
    fake_expect_nothing_left();
}
