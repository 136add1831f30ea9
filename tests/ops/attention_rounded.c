/* Attention of f32 that is rounded to f16 on a GPU: of whatever size numbers are, and whatever else
 * is in a tensor. How exact it is attention_rule.c says. */
#include <math.h>

#include "../ahead.h"
#include "../custom/formula.h"
#include "base/memory.h"

#define RESULTS 4 /* o, dq, dk, dv */
#define HEADS 10
#define GROUPS 5
#define POSITIONS 2048
#define SIZE 64
#define QUERY 700 /* the one that is not finite, where one is to be */

/* q, k, v or the gradient of the result, which lie position by position. */
static cup_tensor *numbers(cup_context *c, int which, double by, bool finite)
{
    const int64_t heads = which == 1 || which == 2 ? GROUPS : HEADS;
    const int64_t shape[] = {1, POSITIONS, heads, SIZE}, count = POSITIONS * heads * SIZE;
    float *values = cup__calloc((size_t)count, sizeof *values);
    uint64_t z = (uint64_t)which;
    EXPECT(values != NULL);
    for (int64_t i = 0; i < count; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(((double)(z >> 33) * 0x1p-30 - 1) * by);
    }
    if (!finite)
        values[QUERY * heads * SIZE] = INFINITY;
    cup_tensor *t = cup_tensor_from(c, CUP_F32, 4, shape, values);
    cup__free(values);
    return cup_keep(t);
}

/* The results of numbers that are multiplied by so much; infinite: one of q is. */
static void compute(cup_context *c, const double *by, bool infinite, cup_tensor *out[RESULTS])
{
    const cup_attention_options options = {.size = sizeof options, .causal = true};
    cup_tensor *in[4], *heads[4];
    cup_precision(c, "high");
    for (int i = 0; i < 4; i++) {
        in[i] = numbers(c, i, by[i], i > 0 || !infinite);
        if (i < 3)
            cup_require_grad(in[i]);
        heads[i] = cup_permute(c, in[i], (int64_t[]){0, 2, 1, 3}, 4);
    }
    out[0] = cup_attention(c, heads[0], heads[1], heads[2], &options);
    cup_backward(c, cup_sum(c, cup_mul(c, out[0], heads[3]), NULL, 0, false));
    CHECK(c);
    out[0] = cup_permute(c, out[0], (int64_t[]){0, 2, 1, 3}, 4);
    for (int i = 0; i < 3; i++)
        out[1 + i] = cup_grad(in[i]);
}

static void compute_both(cup_context *c, cup_context *cpu, const double *by, bool infinite,
                         cup_tensor *got[2][RESULTS])
{
    static const double ones[] = {1, 1, 1, 1};
    for (int i = 0; i < 2; i++) {
        compute(c, i ? by : ones, i && infinite, got[i]);
        for (int k = 0; k < RESULTS && !test_noted; k++)
            got[i][k] = cup_tensor_to(cpu, got[i][k]);
        CHECK(cpu);
    }
}

/* Scales are powers of two times what they were, so all bits but the exponents are the same. */
static void expect_scaled(cup_context *c, cup_context *cpu)
{
    static const double by[] = {0x1p40, 0x1p-40, 0x1p60, 0x1p-70};
    static const double want[RESULTS] = {0x1p60, 0x1p-50, 0x1p30, 0x1p-70};
    cup_tensor *got[2][RESULTS];
    compute_both(c, cpu, by, false, got);
    for (int k = 0; k < RESULTS && !test_noted; k++)
        for (int64_t i = 0; i < got[0][k]->count; i++)
            EXPECT(at(got[1][k], i) == at(got[0][k], i) * want[k]);
}

/* A query that is not finite has no result; those of the others stay as they were. */
static void expect_apart(cup_context *c, cup_context *cpu)
{
    static const double by[] = {1, 1, 1, 1};
    cup_tensor *got[2][RESULTS];
    compute_both(c, cpu, by, true, got);
    for (int k = 0; k < 2 && !test_noted; k++) /* o and dq */
        for (int64_t i = 0; i < got[0][k]->count; i++) {
            bool own = i / SIZE == QUERY * HEADS;
            EXPECT(own ? isnan(at(got[1][k], i)) : at(got[1][k], i) == at(got[0][k], i));
        }
}

static void run(void (*expect)(cup_context *c, cup_context *cpu))
{
    TEST_AHEAD {
        cup_context *cpu = open_cpu(), *c = NULL;
        if (!test_noted)
            c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        expect(test_noted ? test_noted : c, cpu);
        cup_context_free(c);
        cup_context_free(cpu);
    }
}

TEST_LIMITED(gpu_rounded_attention_is_of_any_size, 300)
{
    run(expect_scaled);
}

TEST_LIMITED(gpu_rounded_attention_of_infinite_queries, 300)
{
    run(expect_apart);
}
