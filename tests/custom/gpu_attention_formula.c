/* Attention by a formula on a GPU: what is asked of the compiler, and on a card that results and
 * gradients are those of the specification. */
#include "attention_formula.h"

#include "../ahead.h"
#include "base/memory.h"
#include "cuda/dry.h"
#include "cuda/unit.h"

static void run_dry(const char *arch, cup_dtype dtype, const variant *v, const sizes *s)
{
    cup_tensor *out[GRADIENTS];
    cup_context *c = cup__context_dry(arch);
    EXPECT(c && cup_error(c) == CUP_OK);
    run_variant(c, v, s, dtype, dtype, true, out);
    int count, with = 0;
    const cup__kernel_request *all = cup__dry_requests(cup__cuda_of(c->device), &count);
    for (int i = 0; i < count; i++)
        if (!strcmp(all[i].file, "score_formula.cu"))
            with += strstr(all[i].text, "#define SCORE_FORMULA") != NULL;
    bool is_plain = !v->is_own && (strstr(v->text, "score,") || strstr(v->text, ", -inf"));
    EXPECT((with >= 1) == !is_plain);
    cup_context_free(c);
}

TEST(attention_formula_host_paths)
{
    static const sizes all[] = {{1, 2, 1, 200, 300, 64}, {2, 4, 2, 70, 130, 24},
                                {1, 2, 2, 130, 140, 192}, {1, 4, 1, 2, 300, 128}};
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F64};
    for (int i = 0; i < VARIANTS; i++)
        for (int k = 0; k < 4; k++) {
            run_dry("sm_90a", dtypes[(i + k) % 3], &variants[i], &all[k]);
            run_dry(k % 2 ? "sm_75" : "sm_80", CUP_F16, &variants[i], &all[k]);
        }
}

/* Everything but the kernels themselves, each allocation failing in turn. */
TEST(attention_formula_gpu_out_of_memory)
{
    static const int64_t shape[] = {1, 1, 80, 64};
    for (long n = 1; n < 200; n++) {
        cup_context *c = cup__context_dry("sm_90a");
        cup_tensor *x = cup_require_grad(cup_keep(cup_tensor_new(c, CUP_BF16, 4, shape)));
        cup_tensor *t = cup_require_grad(cup_keep(cup_tensor_new(c, CUP_F32, 1, shape)));
        EXPECT(cup_error(c) == CUP_OK);
        cup__memory_fail_at(n, false);
        cup_expr *e = cup_expr_new(c, "score key t", "k", "score * t + k * sin(key), t > -0.5");
        cup_tensor *o = cup_expr_attention(e, x, x, x, &t, (double[]){2}, NULL);
        cup_status status = o ? cup_backward(c, cup_sum(c, o, NULL, 0, false)) : cup_error(c);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || status == CUP_MEMORY);
        cup_expr_free(e);
        cup_context_free(c);
    }
}

static cup_context *open_gpu(void)
{
    cup_context *gpu = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(gpu) != CUP_OK)
        test_skip("no GPU: %s", cup_error_text(gpu));
    return gpu;
}

/* Largest of a tensor on the host, by which differences are measured. */
static double size_of(cup_tensor *t)
{
    double most = 1e-3;
    for (int64_t i = 0; i < t->count; i++)
        most = fmax(most, fabs(at(t, i)));
    return most;
}

/* The largest difference of two tensors on the host. */
static double apart(cup_tensor *x, cup_tensor *y)
{
    double most = 0;
    for (int64_t i = 0; i < x->count; i++)
        most = fmax(most, fabs(at(x, i) - at(y, i)));
    return most;
}

/* Results may be off by a part of their size and by twice what a plain computation in the same
 * dtype is: scores of thousands, and gradients whose terms cancel, keep few digits in any. */
static void compare(const variant *v, const sizes *s, cup_dtype dtype, double most)
{
    cup_tensor *got[GRADIENTS], *want[GRADIENTS], *plain[GRADIENTS];
    if (test_noted) {
        run_variant(test_noted, v, s, dtype, dtype, true, got);
        return;
    }
    cup_context *gpu = open_gpu(), *cpu = open_cpu();
    run_variant(gpu, v, s, dtype, dtype, true, got);
    run_variant(cpu, v, s, dtype, CUP_F64, true, want);
    run_variant(cpu, v, s, dtype, dtype, true, plain);
    for (int n = 0; n < GRADIENTS; n++) {
        EXPECT((got[n] == NULL) == (want[n] == NULL));
        cup_tensor *t = got[n] ? cup_tensor_to(cpu, got[n]) : NULL;
        CHECK(gpu);
        double allowed =
            want[n] ? most * size_of(want[n]) + 2 * apart(plain[n], want[n]) : 0;
        for (int64_t i = 0; t && i < t->count; i++)
            if (!(fabs(at(t, i) - at(want[n], i)) <= allowed))
                test_fail(__FILE__, __LINE__,
                          "%s, %s [%lld,%lld,%lld,%lld] to %lld keys: result %d, element %lld: "
                          "%.9g, not %.9g, which may differ by %.2g",
                          v->text, cup_dtype_name(dtype), (long long)s->batch,
                          (long long)s->heads, (long long)s->queries, (long long)s->size,
                          (long long)s->keys, n, (long long)i, at(t, i), at(want[n], i), allowed);
    }
    cup_context_free(gpu);
    cup_context_free(cpu);
}

/* Tiles that are not full, more keys than queries and fewer, heads of all kernels' sizes, few
 * queries over many keys, odd sizes that only the plain kernels take. Each formula is compiled for
 * every size, so a dtype takes one in three of them; together the dtypes take all. */
static void compare_all(cup_dtype dtype, double most, size_t turn)
{
    static const sizes all[] = {{2, 4, 2, 129, 200, 64}, {1, 2, 1, 300, 140, 128},
                                {1, 2, 2, 40, 72, 192},  {1, 1, 1, 19, 35, 256},
                                {2, 4, 2, 17, 33, 24},   {2, 3, 3, 7, 40, 5},
                                {2, 8, 2, 3, 300, 64},   {1, 4, 1, 1, 900, 128},
                                {1, 3, 3, 400, 392, 64}};
    for (int i = 0; i < VARIANTS; i++)
        for (size_t k = (turn + (size_t)i) % 3; k < sizeof all / sizeof *all; k += 3)
            compare(&variants[i], &all[k], dtype, most);
}

TEST_LIMITED(gpu_attention_formula_bf16, 600)
{
    TEST_AHEAD
        compare_all(CUP_BF16, 2e-2, 0);
}

TEST_LIMITED(gpu_attention_formula_f16, 600)
{
    TEST_AHEAD
        compare_all(CUP_F16, 4e-3, 1);
}

TEST_LIMITED(gpu_attention_formula_f32, 600)
{
    TEST_AHEAD
        compare_all(CUP_F32, 5e-5, 2);
}

TEST_LIMITED(gpu_attention_formula_f64, 600)
{
    TEST_AHEAD
        compare_all(CUP_F64, 1e-11, 0);
}

/* Tiles that a condition hides are skipped: all keys but a few for most queries, and in each of the
 * heads others; none for a query; documents, which are all looked at; tiles that are seen as a
 * whole, with a cap and without, and segments of a length whose inverse is rounded up and down. */
static const variant sparse[] = {
    {"score query key", "left", "score, key <= query && (query - key < left || key < 4)", {70}, "",
     .is_own = true},
    {"score query key head", "a", "score - 0.01 * abs(query - key), floor(key / a) == "
     "floor(query / a) || (head == 1 && key < 100)", {90}, "", .is_own = true, .sinks = true},
    {"score query key bias", "a b", "score + bias, key > query + b && query > a || query < 9",
     {200, 300}, "b", .is_own = true},
    {"score query key", "a", "score, key < a || query - key > 3 * a", {50}, "", .is_own = true,
     .offsets = true},
    {"score query key", "cap a", "cap * tanh(score / cap), key <= query || key < a", {1.5, 130}, "",
     .is_own = true},
    {"score query key", NULL, "score, floor(query / 49) == floor(key / 49) || key >= query + 300",
     {0}, "", .is_own = true},
};

TEST_LIMITED(gpu_attention_formula_skips, 600)
{
    static const sizes all[] = {{1, 2, 1, 700, 1000, 64}, {1, 2, 2, 1100, 600, 128}};
    TEST_AHEAD
        for (size_t i = 0; i < sizeof sparse / sizeof *sparse; i++)
            for (int k = 0; k < 2; k++)
                compare(&sparse[i], &all[k], k == (int)i % 2 ? CUP_BF16 : CUP_F16, 2e-2);
}

/* More tiles of either side than a card has multiprocessors: blocks take several, and the next call
 * begins with the first again. */
TEST_LIMITED(gpu_attention_formula_takes_turns, 600)
{
    static const sizes all[] = {{1, 60, 20, 300, 260, 64}, {3, 32, 32, 140, 300, 128}};
    TEST_AHEAD
        for (int k = 0; k < 2; k++) {
            compare(&sparse[0], &all[k], CUP_BF16, 2e-2);
            compare(&sparse[4], &all[k], CUP_F16, 2e-2);
        }
}

/* The value of a knob in the first kernel with a formula that is asked for; 0 without it. */
static int64_t knob_of(const char *inputs, const char *text, cup_dtype dtype, double parameter,
                       const char *name)
{
    cup_context *c = cup__context_dry("sm_90a");
    const int64_t shape[] = {1, 2, 200, 64}, pairs[] = {2, 200, 200};
    cup_tensor *x = cup_tensor_new(c, CUP_BF16, 4, shape), *t[2];
    t[0] = t[1] = cup_tensor_new(c, dtype, 3, pairs);
    cup_expr *e = cup_expr_new(c, inputs, "a", text);
    EXPECT(cup_expr_attention(e, x, x, x, t, &parameter, NULL) != NULL);
    int count;
    int64_t value = 0;
    const cup__kernel_request *all = cup__dry_requests(cup__cuda_of(c->device), &count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < all[i].knob_count && !strcmp(all[i].file, "score_formula.cu"); k++)
            if (!strcmp(all[i].knobs[k].name, name))
                value = all[i].knobs[k].value;
    cup_expr_free(e);
    cup_context_free(c);
    return value;
}

/* The first tensor of 16 bits that differs from key to key is loaded as a bias; parameters by which
 * derivatives may be no numbers are told. */
TEST(attention_formula_knobs)
{
    EXPECT(knob_of("score t u", "score + t * u * a", CUP_BF16, 2, "AHEAD") == 1);
    EXPECT(knob_of("score t u", "score + t * u * a", CUP_BF16, 2, "BIAS_PAIRS") == 1);
    EXPECT(knob_of("score t", "score + t * a", CUP_F32, 2, "AHEAD") == 0);
    EXPECT(knob_of("score t", "a * tanh(score / a)", CUP_F32, 2, "UNUSUAL") == 0);
    EXPECT(knob_of("score t", "a * tanh(score / a)", CUP_F32, 0, "UNUSUAL") == 1);
    EXPECT(knob_of("score t", "a * tanh(score / a)", CUP_F32, NAN, "UNUSUAL") == 1);
    EXPECT(knob_of("score t", "30 * tanh(score / 30)", CUP_F32, 0, "UNUSUAL") == 0);
}

TEST(attention_formula_skips_host_paths)
{
    static const sizes s = {1, 2, 1, 300, 500, 64};
    for (size_t i = 0; i < sizeof sparse / sizeof *sparse; i++)
        run_dry("sm_90a", CUP_BF16, &sparse[i], &s);
}

static void compare_bits(const variant *v, const sizes *s)
{
    cup_tensor *first[GRADIENTS], *again[GRADIENTS];
    if (test_noted) {
        run_variant(test_noted, v, s, CUP_BF16, CUP_BF16, true, first);
        return;
    }
    cup_context *gpu[2] = {open_gpu(), open_gpu()}, *cpu = open_cpu();
    run_variant(gpu[0], v, s, CUP_BF16, CUP_BF16, true, first);
    for (int i = 0; i < 3; i++)
        run_variant(gpu[1], v, s, CUP_BF16, CUP_BF16, true, again);
    for (int n = 0; n < GRADIENTS; n++) {
        EXPECT((first[n] == NULL) == (again[n] == NULL));
        if (!first[n])
            continue;
        cup_tensor *a = cup_tensor_to(cpu, first[n]), *b = cup_tensor_to(cpu, again[n]);
        for (int64_t i = 0; i < a->count; i++)
            EXPECT_NEAR(at(a, i), at(b, i), 0);
    }
    cup_context_free(gpu[0]);
    cup_context_free(gpu[1]);
    cup_context_free(cpu);
}

/* Results have the same bits each time. */
TEST_LIMITED(gpu_attention_formula_repeats, 120)
{
    static const sizes all[] = {{2, 4, 2, 200, 330, 64}, {4, 60, 60, 300, 280, 64}};
    const variant *const by[] = {&variants[VARIANTS - 2], &sparse[0]};
    TEST_AHEAD
        for (int k = 0; k < 2; k++)
            compare_bits(by[k], &all[k]);
}
