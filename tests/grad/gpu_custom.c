/* An op of the user's own made of the user's own kernels, at once and as part of a graph. */
#include "../test.h"
#include "cupola/cupola.h"

enum { COUNT = 1000 };

typedef struct cube {
    cup_kernel *forward, *backward;
} cube;

static const char text[] =
    "extern \"C\" __global__ void cube(float *y, const float *x, long long n)\n"
    "{\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        y[i] = x[i] * x[i] * x[i];\n"
    "}\n"
    "extern \"C\" __global__ void back(float *dx, const float *x, const float *dy, long long n)\n"
    "{\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n)\n"
    "        dx[i] = 3 * x[i] * x[i] * dy[i];\n"
    "}\n";

static const cup_kernel_grid grid = {
    .size = sizeof grid, .blocks = {(COUNT + 255) / 256}, .threads = {256}};

static cup_status cube_forward(cup_context *c, cup_tensor *const *in, int count,
                               const void *attributes, cup_tensor **out)
{
    (void)count;
    out[0] = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){COUNT});
    return cup_kernel_launch(((const cube *)attributes)->forward, &grid,
                             (cup_kernel_argument[]){CUP_TENSOR_ARGUMENT(out[0]),
                                                     CUP_TENSOR_ARGUMENT(in[0]),
                                                     CUP_INTEGER_ARGUMENT(COUNT)},
                             3);
}

static cup_status cube_backward(cup_context *c, const cup_custom_grad *g)
{
    g->d_inputs[0] = cup_tensor_new(c, CUP_F32, 1, (int64_t[]){COUNT});
    return cup_kernel_launch(((const cube *)g->attributes)->backward, &grid,
                             (cup_kernel_argument[]){CUP_TENSOR_ARGUMENT(g->d_inputs[0]),
                                                     CUP_TENSOR_ARGUMENT(g->inputs[0]),
                                                     CUP_TENSOR_ARGUMENT(g->d_outputs[0]),
                                                     CUP_INTEGER_ARGUMENT(COUNT)},
                             4);
}

static const cup_custom_op op = {
    .size = sizeof op,
    .name = "cube",
    .output_count = 1,
    .saves_inputs = 1,
    .attributes_size = sizeof(cube),
    .forward = cube_forward,
    .backward = cube_backward,
};

/* The loss is the sum of x^6. */
static void step(cup_context *c, const cube *kernels, cup_tensor *x)
{
    cup_tensor *y;
    cup_scope_open(c);
    EXPECT_INT(cup_custom(c, &op, &x, 1, kernels, &y), CUP_OK);
    EXPECT_INT(cup_backward(c, cup_sum(c, cup_mul(c, y, y), NULL, 0, false)), CUP_OK);
    cup_scope_close(c);
}

static void expect_slopes(cup_tensor *x)
{
    static float at[COUNT], slope[COUNT];
    EXPECT_INT(cup_tensor_read(x, at, sizeof at), CUP_OK);
    EXPECT_INT(cup_tensor_read(cup_grad(x), slope, sizeof slope), CUP_OK);
    for (int i = 0; i < COUNT; i++) {
        double a = at[i], want = 6 * a * a * a * a * a;
        EXPECT_NEAR(slope[i], want, 1e-5 * (1 + (want < 0 ? -want : want)));
    }
}

static void fill(float *values, float first)
{
    for (int i = 0; i < COUNT; i++)
        values[i] = first + 0.001f * (float)i;
}

static cup_kernel *compile(cup_context *c, const char *entry, const char *arguments)
{
    cup_kernel *kernel = cup_kernel_new(c, CUP_OPTIONS(cup_kernel_source,
                                                        .name = "custom-cube",
                                                        .text = text,
                                                        .entry = entry,
                                                        .arguments = arguments));
    EXPECT_TEXT(cup_error_text(c), "");
    return kernel;
}

TEST(gpu_custom_of_kernels)
{
    static float values[COUNT];
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU: %s", cup_error_text(c));
    const cube kernels = {compile(c, "cube", "f32 *y, const f32 *x, i64 n"),
                          compile(c, "back", "f32 *dx, const f32 *x, const f32 *dy, i64 n")};
    fill(values, -0.5f);
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){COUNT}, values);
    cup_require_grad(x);
    step(c, &kernels, x);
    expect_slopes(x);
    cup_grad_clear(x);
    EXPECT_INT(cup_capture_begin(c), CUP_OK);
    step(c, &kernels, x);
    cup_graph *graph = cup_capture_end(c);
    EXPECT_TEXT(cup_error_text(c), "");
    for (int round = 0; round < 2; round++) {
        fill(values, 0.25f * (float)round);
        EXPECT_INT(cup_tensor_write(x, values, sizeof values), CUP_OK);
        EXPECT_INT(cup_graph_launch(graph), CUP_OK);
        expect_slopes(x);
    }
    cup_grad_clear(x);
    cup_graph_free(graph);
    cup_kernel_free(kernels.forward);
    cup_kernel_free(kernels.backward);
    cup_context_free(c);
}
