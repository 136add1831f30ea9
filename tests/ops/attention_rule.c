/* FlashAttention's rule: against attention in double, the largest error of the result and of each
 * gradient is at most twice that of a plain computation in the same 16-bit dtype, which makes the
 * matrix of all scores and rounds whatever it makes. In f32, where products may be rounded, it is
 * held against a plain computation on the same GPU with the same precision. */
#include <math.h>

#include "../ahead.h"
#include "../custom/formula.h"
#include "base/memory.h"

#define RESULTS 4 /* o, dq, dk, dv */
#define MOST_DRAWN 24

/* The largest error of a few rows is luck, where a plain computation may be exact: of one key that
 * has all the weight it takes the difference of two equal numbers. */
#define ROWS 128

/* What f32 loses in sums of terms near 1 that cancel, where a plain way may lose nothing. */
#define SLACK 2e-6

typedef struct drawn {
    int64_t batch, heads, groups, queries, keys, size; /* heads of each of the groups */
    cup_attention_options o;
    double large; /* the deviation of scores, roughly */
    cup_dtype dtype;
    uint64_t seed;
    const char *precision; /* of f32; NULL: as the context has it */
} drawn;

static int64_t any_of(const int64_t *list, int64_t count)
{
    return list[test_random() % (uint64_t)count];
}
#define ANY_OF(...)                                                                                \
    any_of((const int64_t[]){__VA_ARGS__}, sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))

/* Lengths about the ends of tiles and anywhere, alike and not; of each third draw few queries. */
static drawn draw(int i, const int64_t *sizes, int64_t size_count, int64_t longest)
{
    drawn d = {.batch = ANY_OF(1, 2), .heads = ANY_OF(1, 2, 3), .groups = ANY_OF(1, 2)};
    d.size = any_of(sizes, size_count);
    d.dtype = i % 2 ? CUP_F16 : CUP_BF16;
    d.seed = test_random();
    d.keys = 1 + (int64_t)(test_random() % (uint64_t)longest);
    if (i % 4 == 0)
        d.keys = d.keys / 64 * 64 + ANY_OF(1, 63, 64, 65);
    d.queries = i % 3 == 0 ? ANY_OF(1, 2, 7) : d.keys + ANY_OF(-65, -9, -1, 0, 0, 0, 3, 70);
    d.queries = d.queries < 1 ? d.keys : d.queries;
    int64_t rows = d.batch * d.groups * d.heads * d.queries;
    d.batch *= rows < ROWS ? (ROWS + rows - 1) / rows : 1;
    d.large = ANY_OF(1, 1, 12);
    d.o = (cup_attention_options){.size = sizeof d.o, .causal = test_random() % 2};
    if (test_random() % 3 == 0)
        d.o.window_left = 1 + (int64_t)(test_random() % (uint64_t)d.keys);
    if (!d.o.causal && test_random() % 3 == 0)
        d.o.window_right = 1 + (int64_t)(test_random() % (uint64_t)d.keys);
    if (test_random() % 3 == 0)
        d.o.soft_cap = (double)ANY_OF(2, 30);
    return d;
}

/* Nearly normal numbers, rounded to the dtype; the same for a seed in every context. */
static cup_tensor *numbers(cup_context *c, const drawn *d, int which, cup_dtype dtype,
                           const int64_t *shape, double scale)
{
    int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    uint64_t z = d->seed + (uint64_t)which * 0x9e3779b97f4a7c15u;
    float *values = cup__calloc((size_t)count, sizeof *values);
    EXPECT(values != NULL);
    for (int64_t i = 0; i < count; i++) {
        double sum = -2;
        for (int k = 0; k < 4; k++) {
            z = z * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(z >> 33) * 0x1p-31;
        }
        values[i] = (float)(sum * 1.732 * scale);
    }
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 4, shape, values);
    cup__free(values);
    return cup_keep(cup_cast(c, cup_cast(c, t, d->dtype), dtype));
}

/* What is added to the scores [1,1,1,T,S]: 0, or -infinity for what a query does not see; and in
 * `some` [1,1,1,T,1] 0 for one that sees nothing, whose scores are left alone. */
static cup_tensor *mask_of(cup_context *c, const drawn *d, cup_tensor **some)
{
    float *mask = cup__calloc((size_t)(d->queries * d->keys), sizeof *mask);
    float *any = cup__calloc((size_t)d->queries, sizeof *any);
    EXPECT(mask && any);
    for (int64_t t = 0; t < d->queries; t++) {
        int64_t own = t + d->keys - d->queries, from = 0, to = d->keys;
        if (d->o.window_left)
            from = own - d->o.window_left + 1;
        if (d->o.causal || d->o.window_right)
            to = own + (d->o.causal ? 1 : d->o.window_right);
        for (int64_t s = 0; s < d->keys; s++)
            any[t] = s >= from && s < to ? 1 : any[t];
        for (int64_t s = 0; s < d->keys && any[t] > 0; s++)
            mask[t * d->keys + s] = s >= from && s < to ? 0 : -INFINITY;
    }
    const int64_t rows[] = {1, 1, 1, d->queries, 1}, all[] = {1, 1, 1, d->queries, d->keys};
    *some = cup_cast(c, cup_tensor_from(c, CUP_F32, 5, rows, any), d->dtype);
    cup_tensor *m = cup_cast(c, cup_tensor_from(c, CUP_F32, 5, all, mask), d->dtype);
    cup__free(mask);
    cup__free(any);
    return m;
}

static cup_tensor *plain(cup_context *c, const drawn *d, cup_tensor *const *in)
{
    const int64_t q[] = {d->batch, d->groups, d->heads, d->queries, d->size};
    const int64_t kv[] = {d->batch, d->groups, 1, d->keys, d->size};
    const int64_t o[] = {d->batch, d->groups * d->heads, d->queries, d->size};
    double scale = 1 / sqrt((double)d->size), cap = d->o.soft_cap;
    cup_tensor *some, *mask = mask_of(c, d, &some);
    cup_tensor *k = cup_reshape(c, in[1], 5, kv), *v = cup_reshape(c, in[2], 5, kv);
    cup_tensor *s = cup_matmul(c, cup_reshape(c, in[0], 5, q), k, false, true);
    s = cup_scale(c, s, cap > 0 ? scale / cap : scale);
    if (cap > 0)
        s = cup_scale(c, cup_tanh(c, s), cap);
    cup_tensor *p = cup_mul(c, cup_softmax(c, cup_add(c, s, mask), -1), some);
    return cup_reshape(c, cup_matmul(c, p, v, false, false), 4, o);
}

/* The result and the gradients, computed in a dtype. */
static void compute(cup_context *c, const drawn *d, cup_dtype dtype, bool plainly,
                    cup_tensor *out[RESULTS])
{
    int64_t all = d->groups * d->heads;
    if (d->precision && dtype == CUP_F32)
        cup_precision(c, d->precision);
    const int64_t q[] = {d->batch, all, d->queries, d->size};
    const int64_t kv[] = {d->batch, d->groups, d->keys, d->size};
    cup_tensor *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = cup_require_grad(numbers(c, d, i, dtype, i ? kv : q, i ? 1 : d->large));
    out[0] = plainly ? plain(c, d, in) : cup_attention(c, in[0], in[1], in[2], &d->o);
    CHECK(c);
    cup_tensor *weights = numbers(c, d, 3, dtype, q, 1);
    cup_backward(c, cup_sum(c, cup_mul(c, out[0], weights), NULL, 0, false));
    CHECK(c);
    for (int i = 0; i < 3; i++)
        out[1 + i] = cup_grad(in[i]);
}

/* The largest difference of two tensors on the host; no number is the largest of all. */
static double apart(cup_tensor *x, cup_tensor *y)
{
    double most = 0;
    for (int64_t i = 0; i < y->count; i++) {
        double difference = fabs(at(x, i) - at(y, i));
        most = difference <= most ? most : difference;
    }
    return most;
}

static void expect_rule(const char *device, const drawn *d)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    cup_tensor *got[RESULTS], *want[RESULTS], *by[RESULTS];
    if (test_noted) {
        compute(test_noted, d, d->dtype, false, got);
        return;
    }
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    cup_context *cpu = open_cpu();
    compute(c, d, d->dtype, false, got);
    compute(cpu, d, CUP_F64, false, want);
    compute(d->precision ? c : cpu, d, d->dtype, true, by);
    for (int i = 0; i < RESULTS; i++) {
        double error = apart(cup_tensor_to(cpu, got[i]), want[i]);
        double allowed = apart(cup_tensor_to(cpu, by[i]), want[i]);
        CHECK(c);
        CHECK(cpu);
        if (!(error <= 2 * allowed + SLACK))
            test_fail(__FILE__, __LINE__,
                      "%s [%lld,%lldx%lld,%lld,%lld] over %lld keys, causal %d, windows %lld and "
                      "%lld, cap %g, scores near %g: the error of %s is %.3g, and %.3g plainly",
                      cup_dtype_name(d->dtype), (long long)d->batch, (long long)d->groups,
                      (long long)d->heads, (long long)d->queries, (long long)d->size,
                      (long long)d->keys, d->o.causal, (long long)d->o.window_left,
                      (long long)d->o.window_right, d->o.soft_cap, d->large, names[i], error,
                      allowed);
    }
    cup_context_free(c);
    cup_context_free(cpu);
}

TEST(attention_keeps_the_rule)
{
    static const int64_t sizes[] = {16, 40, 64};
    for (int i = 0; i < 16; i++) {
        drawn d = draw(i, sizes, 3, 150);
        expect_rule("cpu", &d);
    }
}

/* Every kernel's heads and one of another size; and few queries over many keys, and many. */
TEST_LIMITED(gpu_attention_keeps_the_rule, 600)
{
    static const int64_t sizes[] = {32, 64, 72, 96, 128, 192, 256};
    drawn all[MOST_DRAWN + 2];
    for (int i = 0; i < MOST_DRAWN; i++)
        all[i] = draw(i, sizes + i % 7, 1, 500);
    all[MOST_DRAWN] = (drawn){2, 2, 1, 33, 16385, 128, {.size = sizeof all->o, .causal = true},
                              1, CUP_BF16, 5, NULL};
    all[MOST_DRAWN + 1] = (drawn){1, 1, 1, 2047, 2049, 64, {.size = sizeof all->o, .causal = true},
                                  1, CUP_F16, 6, NULL};
    TEST_AHEAD
        for (int i = 0; i < MOST_DRAWN + 2; i++)
            expect_rule("cuda", &all[i]);
}

/* So large that f32 is rounded to f16; others are below what that pays for. */
TEST_LIMITED(gpu_attention_keeps_the_rule_in_f32, 600)
{
    const cup_attention_options all = {.size = sizeof all};
    const cup_attention_options causal = {.size = sizeof all, .causal = true};
    const cup_attention_options window = {.size = sizeof all, .causal = true, .window_left = 700};
    const drawn drawn_all[] = {
        {1, 2, 2, 1500, 2100, 104, all, 1, CUP_F32, 7, "high"},
        {3, 2, 2, 2047, 2047, 64, causal, 1, CUP_F32, 8, "high"},
        {1, 3, 2, 2050, 1999, 128, all, 12, CUP_F32, 9, "high"},
        {3, 1, 4, 2048, 2048, 72, window, 1, CUP_F32, 10, "medium"},
    };
    TEST_AHEAD
        for (size_t i = 0; i < sizeof drawn_all / sizeof *drawn_all; i++)
            expect_rule("cuda", &drawn_all[i]);
}
