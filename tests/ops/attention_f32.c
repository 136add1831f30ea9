/* Attention in f32 at the highest precision against double: gradients under causality, where
 * thousands of terms are summed, and a query that sees one key, whose gradient is 0. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"

#define SIZE 64
#define LIMIT 300 /* seconds, on a machine that does other things too */

enum { Q, K, V, D_O, INPUTS };

typedef struct problem {
    int positions;
    float *in[INPUTS];
    double *want[INPUTS]; /* gradients of q, k and v, and o */
    double *weight, *slope;
} problem;

static double dot(const float *x, const float *y)
{
    double sum = 0;
    for (int d = 0; d < SIZE; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

static void add(double *to, double factor, const float *x)
{
    for (int d = 0; d < SIZE; d++)
        to[d] += factor * (double)x[d];
}

/* One query: its probabilities, their gradients, and what both add to the results. */
static void take_query(problem *p, int query)
{
    const float *q = p->in[Q] + query * SIZE, *d_o = p->in[D_O] + query * SIZE;
    double most = -INFINITY, sum = 0, delta = 0, scale = 1 / sqrt(SIZE);
    for (int key = 0; key <= query; key++) {
        p->weight[key] = scale * dot(q, p->in[K] + key * SIZE);
        p->slope[key] = dot(d_o, p->in[V] + key * SIZE);
        most = fmax(most, p->weight[key]);
    }
    for (int key = 0; key <= query; key++) {
        p->weight[key] = exp(p->weight[key] - most);
        sum += p->weight[key];
        delta += p->weight[key] * p->slope[key];
    }
    for (int key = 0; key <= query; key++) {
        double weight = p->weight[key] / sum, back = scale * weight * (p->slope[key] - delta / sum);
        add(p->want[Q] + query * SIZE, back, p->in[K] + key * SIZE);
        add(p->want[K] + key * SIZE, back, q);
        add(p->want[V] + key * SIZE, weight, d_o);
        add(p->want[D_O] + query * SIZE, weight, p->in[V] + key * SIZE);
    }
}

static void make(problem *p, int positions)
{
    size_t count = (size_t)positions * SIZE;
    p->positions = positions;
    for (int i = 0; i < INPUTS; i++) {
        p->in[i] = malloc(count * sizeof(float));
        p->want[i] = calloc(count, sizeof(double));
        EXPECT(p->in[i] && p->want[i]);
        for (size_t k = 0; k < count; k++)
            p->in[i][k] = (float)(test_uniform(-1, 1) + test_uniform(-1, 1) + test_uniform(-1, 1));
    }
    p->weight = malloc((size_t)positions * sizeof(double));
    p->slope = malloc((size_t)positions * sizeof(double));
    EXPECT(p->weight && p->slope);
    for (int query = 0; query < positions; query++)
        take_query(p, query);
}

static void release(problem *p)
{
    for (int i = 0; i < INPUTS; i++) {
        free(p->in[i]);
        free(p->want[i]);
    }
    free(p->weight);
    free(p->slope);
}

/* Errors in epsilons (2^-23) of an element and the root mean square of all. Sums of plain f32 are
 * 17 to 66 off here; cut off towards zero, as tensor cores leave them, 100 to 600. */
static void expect_close(const problem *p, int which, const float *got)
{
    static const char *const names[] = {"dq", "dk", "dv", "o"};
    int count = p->positions * SIZE;
    double squares = 0, worst = 0;
    for (int i = 0; i < count; i++)
        squares += p->want[which][i] * p->want[which][i];
    for (int i = 0; i < count; i++) {
        double want = p->want[which][i], allowed = fabs(want) + sqrt(squares / count);
        EXPECT(isfinite(got[i]));
        if ((double)got[i] != want)
            worst = fmax(worst, fabs((double)got[i] - want) / allowed * 0x1p23);
    }
    if (worst > 40)
        test_fail(__FILE__, __LINE__, "%s of %d positions is %.1f epsilons off", names[which],
                  p->positions, worst);
}

static void check(const char *device, int positions)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    EXPECT_INT(cup_precision(c, "highest"), CUP_OK);
    problem p;
    make(&p, positions);
    int64_t shape[] = {1, 1, positions, SIZE};
    cup_tensor *in[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        in[i] = cup_tensor_from(c, CUP_F32, 4, shape, p.in[i]);
    for (int i = Q; i <= V; i++)
        cup_require_grad(in[i]);
    cup_tensor *o =
        cup_attention(c, in[Q], in[K], in[V], CUP_OPTIONS(cup_attention_options, .causal = true));
    cup_backward(c, cup_sum(c, cup_mul(c, o, in[D_O]), NULL, 0, false));
    size_t bytes = (size_t)positions * SIZE * sizeof(float);
    float *got = malloc(bytes);
    for (int i = 0; i < INPUTS && got; i++) {
        EXPECT_INT(cup_tensor_read(i == D_O ? cup_copy(c, o) : cup_grad(in[i]), got, bytes),
                   CUP_OK);
        expect_close(&p, i, got);
        for (int d = 0; d < SIZE && i == Q; d++)
            if (got[d] != 0)
                test_fail(__FILE__, __LINE__, "dq of a query of one key is %g, not 0",
                          (double)got[d]);
    }
    free(got);
    release(&p);
    cup_context_free(c);
}

TEST_LIMITED(attention_f32_is_f32, LIMIT)
{
    check("cpu", 600);
    check("cpu", 1);
}

TEST_LIMITED(gpu_attention_f32_is_f32, LIMIT)
{
    const int positions[] = {1, 2, 17, 600, 1531, 3000};
    for (int i = 0; i < 6; i++)
        check("cuda", positions[i]);
}
