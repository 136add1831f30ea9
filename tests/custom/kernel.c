/* Kernels of the user, on the fake driver, which carries out fake_add(p, n, v): it adds v to n
 * numbers of 32 bits. */
#include "cupola/grad.h"
#include "cupola/kernel.h"
#include "cupola/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/support.h"
#include "base/memory.h"
#include "cuda/kernels.h"
#include "tensor/tensor.h"
#include "test.h"

static cup_context *open_fake(void)
{
    kernel_begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

static const cup_kernel_source add = {.size = sizeof add,
                                      .name = "add-to",
                                      .text = FAKE_ADD,
                                      .entry = "fake_add",
                                      .arguments = "i32 *p, i32 n, i32 v"};

#define LAUNCH(k, grid, ...)                                                                       \
    cup_kernel_launch(k, &(cup_kernel_grid)grid, (cup_kernel_argument[]){__VA_ARGS__},             \
                      sizeof((cup_kernel_argument[]){__VA_ARGS__}) / sizeof(cup_kernel_argument))
#define GRID .size = sizeof(cup_kernel_grid)
#define ONE {GRID, .blocks = {1}, .threads = {32}}

TEST(kernel_is_launched)
{
    cup_context *c = open_fake();
    int32_t data[] = {1, 2, 3, 4}, got[4];
    cup_tensor *t = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){4}, data);
    cup_kernel *k = cup_kernel_new(c, &add);
    EXPECT_TEXT(cup_error_text(c), "");
    uint32_t version = t->storage->version;
    EXPECT(LAUNCH(k, ONE, CUP_TENSOR_ARGUMENT(t), CUP_INTEGER_ARGUMENT(3),
                  CUP_INTEGER_ARGUMENT(10)) == CUP_OK);
    EXPECT(cup_tensor_read(t, got, sizeof got) == CUP_OK);
    EXPECT_INT(got[0], 11);
    EXPECT_INT(got[2], 13);
    EXPECT_INT(got[3], 4);
    EXPECT(t->storage->version != version);
    double us = -1;
    cup_kernel_argument arguments[] = {CUP_TENSOR_ARGUMENT(t), CUP_INTEGER_ARGUMENT(1),
                                       CUP_INTEGER_ARGUMENT(0)};
    EXPECT(cup_kernel_time(k, &(cup_kernel_grid)ONE, arguments, 3, &us) == CUP_OK && us >= 0);
    cup_kernel_facts facts;
    EXPECT(cup_kernel_ask(k, &facts) == CUP_OK);
    EXPECT_INT(facts.threads_most, 1024);
    /* Equal sources are compiled once, also by another context. */
    int compiled = kernels_compiled();
    cup_kernel *again = cup_kernel_new(c, &add);
    EXPECT(again != NULL);
    EXPECT_INT(kernels_compiled(), compiled);
    cup_kernel_source other = add;
    other.defines = "VEC=4 TILE=-1";
    cup_kernel *with_defines = cup_kernel_new(c, &other);
    EXPECT(with_defines != NULL);
    EXPECT_INT(kernels_compiled(), compiled + 1);
    cup_kernel_free(with_defines);
    cup_kernel_free(again);
    cup_kernel_free(k);
    cup_context_free(c);
    fake_expect_nothing_left();
}

TEST(kernel_launches_are_checked)
{
    cup_context *c = open_fake(),
                *host = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *t = cup_tensor_new(c, CUP_I32, 2, (int64_t[]){4, 4});
    cup_tensor *f = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){4});
    cup_tensor *far = cup_tensor_new(host, CUP_I32, 1, (int64_t[]){4});
    cup__shape shape = {.dtype = CUP_I32, .ndim = 1, .size = {4}};
    cup_tensor *view = cup__tensor_view(t, &shape, (int64_t[]){4}, 0);
    cup_kernel *k = cup_kernel_new(c, &add);
    EXPECT(k != NULL);
    const struct {
        cup_kernel_grid grid;
        cup_kernel_argument arguments[3];
        const char *words;
    } rows[] = {
#define GOOD {CUP_TENSOR_ARGUMENT(t), CUP_INTEGER_ARGUMENT(1), CUP_INTEGER_ARGUMENT(1)}
#define FIRST(x) {CUP_TENSOR_ARGUMENT(x), CUP_INTEGER_ARGUMENT(1), CUP_INTEGER_ARGUMENT(1)}
        {ONE, FIRST(NULL), "argument 1 (p) is NULL"},
        {ONE, FIRST(f), "argument 1 (p) is [4] f32, declared as i32"},
        {ONE, FIRST(far), "is of another context"},
        {ONE, FIRST(view), "is a view that is not in row-major order"},
        {ONE,
         {CUP_TENSOR_ARGUMENT(t), CUP_NUMBER_ARGUMENT(1), CUP_INTEGER_ARGUMENT(1)},
         "argument 2 (n) is a number, declared as an integer"},
        {ONE,
         {CUP_TENSOR_ARGUMENT(t), CUP_INTEGER_ARGUMENT((int64_t)1 << 31), CUP_INTEGER_ARGUMENT(1)},
         "argument 2 (n), 2147483648, does not fit i32"},
        {{GRID, .blocks = {-1}, .threads = {32}}, GOOD, "a grid of -1 blocks along x"},
        {{GRID, .blocks = {1, 65536}, .threads = {32}}, GOOD, "a grid of 65536 blocks along y"},
        {{GRID, .blocks = {1}, .threads = {2048}}, GOOD, "a block of 2048 threads along x"},
        {{GRID, .blocks = {1}, .threads = {1, 1, 65}}, GOOD, "a block of 65 threads along z"},
        {{GRID, .blocks = {1}, .threads = {64, 32}}, GOOD, "a block of 2048 threads; with its 32"},
        {{GRID, .blocks = {1}, .threads = {32}, .shared_bytes = 1 << 28}, GOOD,
         "bytes of shared memory"},
        {{GRID, .blocks = {1}, .threads = {32}, .shared_bytes = -1}, GOOD,
         "-1 bytes of shared memory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT_INT(cup_kernel_launch(k, &rows[i].grid, rows[i].arguments, 3), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), rows[i].words);
        cup_error_clear(c);
    }
    EXPECT_INT(cup_kernel_launch(k, &(cup_kernel_grid){.blocks = {1}}, rows[0].arguments, 3),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "add-to: the size of its options is 0");
    cup_error_clear(c);
    EXPECT_INT(cup_kernel_launch(k, &rows[0].grid, rows[0].arguments, 2), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "launched with 2 arguments, 3 are declared");
    cup_error_clear(c);
    EXPECT_INT(cup_kernel_launch(k, &rows[0].grid, NULL, 3), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "the list of its arguments is NULL");
    cup_kernel_free(k);
    cup_context_free(host);
    cup_context_free(c);
}

TEST(kernel_sources_are_checked)
{
    cup_context *c = open_fake();
    const struct {
        cup_kernel_source source;
        cup_status status;
        const char *words;
    } rows[] = {
#define SOURCE(name, text, entry, arguments, defines)                                              \
    {sizeof(cup_kernel_source), name, text, entry, arguments, defines}
        {SOURCE("../x", FAKE_ADD, "fake_add", "", NULL), CUP_ARGUMENT, "is no name"},
        {SOURCE("", FAKE_ADD, "fake_add", "", NULL), CUP_ARGUMENT, "a name has 1 to"},
        {SOURCE("x", NULL, "fake_add", "", NULL), CUP_ARGUMENT, "must be given"},
        {SOURCE("x", FAKE_ADD, "fake_add", "float *p", NULL), CUP_ARGUMENT,
         "argument 1, \"float *p\", is no declaration"},
        {SOURCE("x", FAKE_ADD, "fake_add", "i32 *p, bf16 n", NULL), CUP_ARGUMENT, "argument 2"},
        {SOURCE("x", FAKE_ADD, "fake_add", "i32 *p,", NULL), CUP_ARGUMENT, "behind the last comma"},
        {SOURCE("x", FAKE_ADD, "fake_add", "i32 *p, i32 n", NULL), CUP_ARGUMENT,
         "takes 3 arguments, 2 are declared"},
        {SOURCE("x", FAKE_ADD, "fake_add", "const i32 *p, i64 n, i32", NULL), CUP_ARGUMENT,
         "argument 2 (n) of its entry fake_add has 4 bytes, what is declared has 8"},
        {SOURCE("x", FAKE_ADD, "fake_add", "any *p, i32, i32", "A=b"), CUP_ARGUMENT,
         "the value of its define A"},
        {SOURCE("x", FAKE_ADD, "fake_add", "any *p, i32, i32", "A=9223372036854775808"),
         CUP_ARGUMENT, "the value of its define A"},
        {SOURCE("x", FAKE_ADD, "fake_add", "any *p, i32, i32", "1=2"), CUP_ARGUMENT,
         "NAME=number"},
        {SOURCE("x", FAKE_ADD, "other", "any *p, i32, i32", NULL), CUP_COMPILE,
         "x.cu has no entry other"},
        {SOURCE("x", "#error no\n", "fake_add", "any *p, i32, i32", NULL), CUP_COMPILE,
         "x.cu for sm_90a () does not compile"},
    };
    EXPECT(!cup_kernel_new(c, &(cup_kernel_source){.name = "x"}));
    EXPECT_CONTAINS(cup_error_text(c), "kernel: the size of its options is 0");
    cup_error_clear(c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT(!cup_kernel_new(c, &rows[i].source));
        EXPECT_CONTAINS(cup_error_text(c), rows[i].words);
        EXPECT_INT(cup_error(c), rows[i].status);
        cup_error_clear(c);
    }
    cup_context_free(c);
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(!cup_kernel_new(c, &add));
    EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
    cup_context_free(c);
}

TEST(kernel_out_of_memory)
{
    cup_context *c = open_fake();
    cup_kernel_source source = add;
    int made = 0;
    for (long n = 1; n < 60; n++) {
        char name[16];
        snprintf(name, sizeof name, "k%ld", n); /* so that it is not known from before */
        source.name = name;
        source.defines = "A=1 B=2";
        cup__memory_fail_at(n, false);
        cup_kernel *k = cup_kernel_new(c, &source);
        cup__memory_fail_at(0, false);
        EXPECT(k || cup_error(c) == CUP_MEMORY);
        made += k != NULL;
        cup_error_clear(c);
        cup_kernel_free(k);
    }
    EXPECT(made > 0);
    cup_context_free(c);
    fake_expect_nothing_left();
}

static cup_status double_forward(cup_context *c, cup_tensor *const *in, int count,
                                 const void *attributes, cup_tensor **out)
{
    (void)count, (void)attributes;
    out[0] = cup_scale(c, in[0], 2);
    return cup_error(c);
}

static cup_status double_backward(cup_context *c, const cup_custom_grad *g)
{
    cup_kernel *k = *(cup_kernel *const *)g->attributes;
    g->d_inputs[0] = cup_scale(c, g->d_outputs[0], 2);
    return LAUNCH(k, ONE, CUP_TENSOR_ARGUMENT(g->d_outputs[0]), CUP_INTEGER_ARGUMENT(0),
                  CUP_INTEGER_ARGUMENT(0));
}

/* A launch is not recorded: what came out of it would be taken for a number. */
TEST(kernel_is_refused_in_a_recorded_gradient)
{
    static const cup_custom_op op = {.size = sizeof op, .name = "double", .output_count = 1,
                                     .attributes_size = sizeof(cup_kernel *),
                                     .forward = double_forward, .backward = double_backward,
                                     .second_derivatives = true};
    setenv("FAKE_NVRTC_ANY", "1", 1); /* the ops' kernels do nothing */
    cup_context *c = open_fake();
    cup_kernel_source source = add;
    source.arguments = "const any *p, i32 n, i32 v";
    cup_kernel *k = cup_kernel_new(c, &source);
    cup_tensor *x = cup_require_grad(cup_full(c, CUP_F32, 1, (int64_t[]){4}, 3)), *y, *d;
    for (int recorded = 0; recorded < 2; recorded++) {
        EXPECT_INT(cup_custom(c, &op, &x, 1, &k, &y), CUP_OK);
        cup_tensor *loss = cup_sum(c, cup_mul(c, y, y), NULL, 0, false);
        if (!recorded)
            EXPECT_INT(cup_gradients(c, loss, &x, 1, &d), CUP_OK);
        else
            EXPECT_INT(cup_gradients_recorded(c, loss, &x, 1, &d), CUP_ARGUMENT);
    }
    EXPECT_CONTAINS(cup_error_text(c), "argument 1 leads to a parameter");
    EXPECT_CONTAINS(cup_error_text(c), "forward of a cup_custom_op");
    cup_kernel_free(k);
    cup_context_free(c);
}
