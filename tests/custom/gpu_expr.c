/* The kernels of formulas: that they compile for every architecture, and on a card that they agree
 * with the specification. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/dry.h"
#include "cuda/unit.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "custom/expr.h"
#include "test.h"

static const char *const texts[] = {
    "a*b + c, a - c > b, gelu(a) + k",
    "sin(a) + cos(b) + tanh(c) + sigmoid(a) + erf(b) + normal_cdf(c)",
    "softplus(a) + mish(b) + expm1(c) + log1p(abs(a)) + exp(b), bf16(a) + f16(b) + f32(c)",
    "max(a, b), min(b, c), floor(a) + sign(c) + pow(abs(b), 1.5), f64(a && !b || c != 2)",
    "where(a >= b, sqrt(abs(c)), rsqrt(1 + b*b)) + log(abs(a) + 1e-3) / (abs(b) + inf * 0.0 + 1)",
    "sum[-1](a*b*c), mean[-1](a + c), max[-1](a - b), min[-1](c)",
    "sum[0](a*b*c), mean[0](a + c), max[0](a - b), min[0](c)",
    "sum[](a*b + c), max[](a + k)",
    "sum[0,-1](a*b + c)",
    "bf16(sum[1,keep](a*b + c)), f32(max[1,keep](a*b))",
    "2 * k",
};
#define TEXTS (sizeof texts / sizeof *texts)

typedef struct layout {
    int ndim[3];
    int64_t shape[3][3];
} layout;
static const layout layouts[] = {
    {{3, 3, 3}, {{2, 3, 1100}, {2, 3, 1100}, {2, 3, 1100}}},
    {{3, 2, 1}, {{3, 5, 7}, {5, 1}, {7}}},
    {{3, 0, 2}, {{4, 1, 40}, {0}, {3, 1}}},
    {{3, 1, 1}, {{1, 1, 1}, {1}, {1}}},
    {{3, 3, 1}, {{1, 1, 300000}, {1, 2, 1}, {1}}},
    {{3, 1, 1}, {{3000, 2, 32}, {32}, {1}}},
    {{3, 2, 2}, {{2, 700, 768}, {700, 768}, {700, 1}}},
    {{3, 1, 1}, {{33, 4, 1000}, {1000}, {1000}}},
    {{3, 3, 1}, {{2, 3, 5001}, {2, 3, 5001}, {1}}},
    {{3, 3, 1}, {{1, 3, 300007}, {1, 3, 300007}, {1}}},
    {{3, 3, 1}, {{1, 300, 1003}, {1, 300, 1003}, {1}}},
    {{3, 1, 2}, {{1, 300, 1003}, {1003}, {300, 1}}},
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)
static const cup_dtype dtypes[][3] = {{CUP_F32, CUP_F32, CUP_F32},
                                      {CUP_BF16, CUP_F32, CUP_F16},
                                      {CUP_BF16, CUP_BF16, CUP_BF16},
                                      {CUP_F64, CUP_F32, CUP_I32}};

static cup_tensor *filled(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape)
{
    cup_tensor *t = cup_tensor_new(c, dtype, ndim, shape);
    for (int64_t i = 0; i < cup_tensor_count(t); i++)
        cup__store(t, i, test_uniform(-2, 2));
    return t;
}

/* The specification on the CPU, in double. */
static void specify(cup_context *c, cup_expr *e, cup_tensor *const *in, double k, cup_tensor **out)
{
    cup__expr_attributes attributes = {.parameters = {k}};
    attributes.program = cup__program_get(c, &e->formula);
    cup__call call;
    EXPECT(cup__call_begin(&call, c, &attributes.program->row, in, 3, &attributes) == CUP_OK);
    for (int j = 0; j < e->formula.results; j++)
        call.result[j].dtype = CUP_F64;
    EXPECT(cup__call_allocate(&call) == CUP_OK && cup__call_run(&call, NULL) == CUP_OK);
    for (int j = 0; j < e->formula.results; j++)
        out[j] = call.out[j];
}

static double tolerance_of(cup_dtype dtype)
{
    return dtype == CUP_BF16 || dtype == CUP_F16 ? 8e-3 : dtype == CUP_F64 ? 1e-10 : 3e-5;
}

static void compare(cup_context *cpu, cup_context *gpu, const char *text, cup_tensor *const *host,
                    cup_tensor *const *device)
{
    double k = 0.375;
    cup_tensor *got[CUP_EXPR_RESULTS] = {NULL}, *want[CUP_EXPR_RESULTS];
    cup_expr *e = cup_expr_new(gpu, "a b c", "k", text), *f = cup_expr_new(cpu, "a b c", "k", text);
    if (!cup_expr_call(e, device, &k, got))
        test_fail(__FILE__, __LINE__, "%s: %s", text, cup_error_text(gpu));
    specify(cpu, f, host, k, want);
    for (int j = 0; j < e->formula.results; j++) {
        cup_tensor *t = cup_tensor_to(cpu, got[j]);
        if (!t)
            test_fail(__FILE__, __LINE__, "%s: %s", text, cup_error_text(cpu));
        double most = tolerance_of(cup_tensor_dtype(t));
        for (int64_t i = 0; i < cup_tensor_count(t); i++) {
            double a = cup__load(t, i), b = cup__load(want[j], i);
            if (cup_tensor_dtype(t) == CUP_BOOL)
                b = b != 0;
            if (!(fabs(a - b) <= most * (1 + fabs(b))) && !(a != a && b != b) && a != b)
                test_fail(__FILE__, __LINE__, "%s: %lld dimensions of %lld, result %d, element "
                                              "%lld: %.9g, not %.9g",
                          text, (long long)host[0]->ndim, (long long)host[0]->shape[0], j,
                          (long long)i, a, b);
        }
    }
    cup_expr_free(e);
    cup_expr_free(f);
}

static void run_layout(cup_context *cpu, cup_context *gpu, const layout *l, const cup_dtype *dtype,
                       bool with_f64)
{
    cup_tensor *host[3], *device[3];
    for (int i = 0; i < 3; i++) {
        host[i] = filled(cpu, dtype[i], l->ndim[i], l->shape[i]);
        device[i] = cup_tensor_to(gpu, host[i]);
    }
    for (size_t t = 0; t < TEXTS; t++)
        if (with_f64 || !strstr(texts[t], "f64"))
            compare(cpu, gpu, texts[t], host, device);
    host[1] = host[2] = cup_permute(cpu, host[0], (int64_t[]){2, 1, 0}, 3);
    device[1] = device[2] = cup_permute(gpu, device[0], (int64_t[]){2, 1, 0}, 3);
    host[0] = host[1];
    device[0] = device[1];
    for (size_t t = 0; t < TEXTS && l->shape[0][2] < 10000; t += 2)
        compare(cpu, gpu, texts[t], host, device);
}

static cup_context *open_gpu(void)
{
    cup_context *gpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(gpu) != CUP_OK)
        test_skip("no GPU: %s", cup_error_text(gpu));
    return gpu;
}

static void run_dtypes(int d)
{
    cup_context *gpu = open_gpu(),
                *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (size_t l = 0; l < LAYOUTS; l++) {
        cup_scope_open(cpu);
        cup_scope_open(gpu);
        run_layout(cpu, gpu, &layouts[l], dtypes[d], d == 3);
        cup_scope_close(gpu);
        cup_scope_close(cpu);
    }
    cup_context_free(gpu);
    cup_context_free(cpu);
}

TEST_LIMITED(gpu_expr_agrees_f32, 300)
{
    run_dtypes(0);
}

TEST_LIMITED(gpu_expr_agrees_mixed, 300)
{
    run_dtypes(1);
}

TEST_LIMITED(gpu_expr_agrees_bf16, 300)
{
    run_dtypes(2);
}

TEST_LIMITED(gpu_expr_agrees_f64, 300)
{
    run_dtypes(3);
}

static double last_of(cup_context *c, cup_tensor *t)
{
    int64_t starts[2], sizes[] = {1, 1};
    for (int d = 0; d < t->ndim; d++)
        starts[d] = t->shape[d] - 1;
    return cup_tensor_item(cup_slice(c, t, starts, t->ndim, sizes, t->ndim));
}

TEST_LIMITED(gpu_expr_beyond_32_bits, 120)
{
    cup_context *c = open_gpu();
    int64_t rows = 1100000, shape[] = {rows, 2048};
    cup_tensor *x = cup_full(c, CUP_BF16, 2, shape, 1), *out[CUP_EXPR_RESULTS] = {NULL};
    if (cup_error(c) == CUP_MEMORY)
        test_skip("4.2 GiB of memory are needed");
    cup_expr *e = cup_expr_new(c, "x", NULL, "f32(sum[0](x)), f32(mean[0](3*x)), max[0](x)");
    cup_expr_call(e, &x, NULL, out);
    EXPECT_NEAR(last_of(c, out[0]), (double)rows, 0);
    EXPECT_NEAR(last_of(c, out[1]), 3, 1e-5);
    EXPECT_NEAR(last_of(c, out[2]), 1, 0);
    cup_expr_free(e);
    e = cup_expr_new(c, "x", NULL, "f32(sum[](x))");
    EXPECT_NEAR(cup_tensor_item(cup_expr_call(e, &x, NULL, NULL)), 2048.0 * (double)rows, 1e4);
    cup_expr_free(e);
    e = cup_expr_new(c, "x", NULL, "f32(sum[1](x))");
    EXPECT_NEAR(last_of(c, cup_expr_call(e, &x, NULL, NULL)), 2048, 0);
    cup_expr_free(e);
    e = cup_expr_new(c, "x", "k", "x + k");
    EXPECT_NEAR(last_of(c, cup_expr_call(e, &x, (double[]){2}, NULL)), 3, 0);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_expr_free(e);
    cup_context_free(c);
}

/* The gradients of all inputs, on both devices. */
static void gradients(cup_context *c, const char *text, cup_tensor *const *host, cup_tensor **out)
{
    cup_tensor *in[3], *y[CUP_EXPR_RESULTS] = {NULL}, *loss = NULL;
    cup_expr *e = cup_expr_new(c, "a b c", "k", text);
    for (int i = 0; i < 3; i++)
        in[i] = cup_require_grad(cup_keep(cup_tensor_to(c, host[i])));
    cup_expr_call(e, in, (double[]){0.75}, y);
    for (int j = 0; j < CUP_EXPR_RESULTS && y[j]; j++) {
        cup_tensor *part = cup_sum(c, cup_mul(c, y[j], y[j]), NULL, 0, false);
        loss = loss ? cup_add(c, loss, part) : part;
    }
    if (cup_backward(c, loss) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", text, cup_error_text(c));
    for (int i = 0; i < 3; i++)
        out[i] = cup_grad(in[i]);
    cup_expr_free(e);
}

TEST_LIMITED(gpu_expr_gradients, 300)
{
    static const char *const formulas[] = {"gelu(a)*b, silu(c) + k*a",
                                           "sum[-1](a*b*c), mean[-1](a)",
                                           "max[0](a*b + c)", "mean[](a*b + exp(c))"};
    cup_context *gpu = open_gpu(),
                *cpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    static const int which[] = {0, 1, 5, 6};
    for (size_t f = 0; f < sizeof formulas / sizeof *formulas; f++)
        for (size_t l = 0; l < 4; l++) {
            cup_tensor *host[3], *got[3], *want[3];
            for (int i = 0; i < 3; i++)
                host[i] = filled(cpu, CUP_F32, layouts[which[l]].ndim[i],
                                 layouts[which[l]].shape[i]);
            gradients(gpu, formulas[f], host, got);
            gradients(cpu, formulas[f], host, want);
            for (int i = 0; i < 3; i++) {
                EXPECT(!got[i] == !want[i]);
                cup_tensor *t = got[i] ? cup_tensor_to(cpu, got[i]) : NULL;
                for (int64_t n = 0; t && n < t->count; n++) {
                    double a = cup__load(t, n), b = cup__load(want[i], n);
                    if (!(fabs(a - b) <= 1e-3 * (1 + fabs(b))))
                        test_fail(__FILE__, __LINE__, "%s: input %d, element %lld: %.9g, not %.9g",
                                  formulas[f], i, (long long)n, a, b);
                }
            }
        }
    cup_context_free(gpu);
    cup_context_free(cpu);
}

static void compile_all(const char *arch)
{
    cup_context *c = cup__context_dry(arch);
    EXPECT(c && cup_error(c) == CUP_OK);
    static const int64_t shapes[][3] = {{64, 40, 1000}, {64, 40, 1003}, {1000}, {1003}};
    for (size_t t = 0; t < 2 * TEXTS; t++) {
        cup_tensor *in[3];
        in[0] = cup_tensor_new(c, CUP_F32, 3, shapes[t % 2]);
        in[1] = cup_tensor_new(c, CUP_BF16, 3, shapes[1]);
        if (t % 2 == 0) /* rows that begin at odd places */
            in[1] = cup_slice(c, in[1], (int64_t[]){0, 0, 1}, 3, shapes[0], 3);
        in[2] = cup_tensor_new(c, CUP_F32, 1, shapes[2 + t % 2]);
        cup_expr *e = cup_expr_new(c, "a b c", "k", texts[t / 2]);
        EXPECT(cup_expr_call(e, in, (double[]){1}, (cup_tensor *[CUP_EXPR_RESULTS]){NULL}));
        cup_expr_free(e);
    }
    int count;
    cup__error error = {0};
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    EXPECT(count >= (int)TEXTS);
    if (cup__kernels_prepare(&error, arch, requests, count, 0, NULL, NULL) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    cup_context_free(c);
}

TEST_LIMITED(expr_kernels_compile, 240)
{
    if (!cup__compiler_version())
        test_skip("no NVRTC");
    compile_all("sm_90a");
    compile_all("sm_75");
}

/* Everything but the kernels themselves, each allocation failing in turn. */
TEST(expr_gpu_out_of_memory)
{
    static const int64_t shape[] = {8, 3, 900};
    for (long n = 1; n < 300; n++) {
        cup_context *c = cup__context_dry("sm_90a");
        cup_tensor *x = cup_require_grad(cup_keep(cup_tensor_new(c, CUP_F32, 3, shape)));
        cup_tensor *turned = cup_permute(c, cup_tensor_new(c, CUP_BF16, 3, shape),
                                         (int64_t[]){0, 1, 2}, 3);
        EXPECT(cup_error(c) == CUP_OK);
        cup__memory_fail_at(n, false);
        cup_expr *e = cup_expr_new(c, "x y", "k", "h = gelu(x)*y; sum[](h*k + sin(h))");
        cup_tensor *y = cup_expr_call(e, (cup_tensor *[]){x, turned}, (double[]){2}, NULL);
        cup_status status = y ? cup_backward(c, y) : cup_error(c);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || status == CUP_MEMORY);
        cup_expr_free(e);
        cup_context_free(c);
    }
}
