/* Attention of codes on a GPU, held to double: each result to the worst that rounding of
 * probabilities to 4 bits can do, all together to what it does on average, and sums of values of
 * one sign to what it leaves of them, which is all. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "cupola/cupola.h"

#define ROUNDED 0x1p-4     /* the most that a probability is off, as a part of it */
#define ROUNDED_RMS 0.0265 /* its root mean square, 2^-5.24 */
#define SUMMED 0x1p-11     /* of the sizes of products, what tensor cores lose of their sum */
#define SMALLEST 0x1p-16   /* half of the least code over 2^6, which stands for one at least */

typedef struct setting {
    int64_t heads, groups, queries, keys, size;
    bool causal;
    int64_t window_left;
    double scale, low, high; /* of scores; values are drawn from [low, high) */
} setting;

/* The inputs as f32, and what was found. */
typedef struct numbers {
    const setting *s;
    float *q, *k, *v, *got, q_scale[4], k_scale[4], v_scale[4];
    double squares, expected, error, sum;
} numbers;

static cup_context *device(const char *name)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = name, .seed = 5));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    return c;
}

/* Codes on the GPU; the numbers that they are to *values. */
static cup_tensor *draw(cup_context *host, cup_context *c, const int64_t *shape, double low,
                        double high, float **values)
{
    cup_tensor *t = cup_uniform(host, CUP_F32, 4, shape, low, high);
    t = cup_cast(host, cup_cast(host, t, CUP_F8E4M3), CUP_F32);
    size_t bytes = (size_t)cup_tensor_count(t) * sizeof **values;
    *values = malloc(bytes);
    EXPECT(*values && cup_tensor_read(t, *values, bytes) == CUP_OK);
    return cup_cast(c, cup_tensor_from(c, CUP_F32, 4, shape, *values), CUP_F8E4M3);
}

static cup_tensor *draw_scale(cup_context *c, int64_t heads, float *values)
{
    for (int64_t i = 0; i < heads; i++)
        values[i] = (float)test_uniform(0.5, 1);
    return cup_tensor_from(c, CUP_F32, 2, (int64_t[]){1, heads}, values);
}

static void expect_element(numbers *n, int64_t at, double want, double mass, double spread,
                           double forgiven)
{
    double error = (double)n->got[at] - want;
    if (!(fabs(error) <= forgiven + mass * 0x1p-20))
        test_fail(__FILE__, __LINE__, "%lld queries, %lld keys, size %lld: element %lld is %.9g, "
                                      "expected %.9g and no more than %.3g beside",
                  (long long)n->s->queries, (long long)n->s->keys, (long long)n->s->size,
                  (long long)at, (double)n->got[at], want, forgiven);
    n->squares += error * error;
    n->expected += pow(ROUNDED_RMS * spread, 2);
    n->error += error;
    n->sum += fabs(want);
}

/* One query, with room for `keys` numbers. */
static void expect_query(numbers *n, int64_t head, int64_t query, double *p)
{
    const setting *s = n->s;
    int64_t kv = head / (s->heads / s->groups), own = query + s->keys - s->queries;
    int64_t end = s->causal ? own + 1 : s->keys, at = (head * s->queries + query) * s->size;
    int64_t first = s->window_left && own >= s->window_left ? own + 1 - s->window_left : 0;
    double by = (double)n->q_scale[head] * (double)n->k_scale[kv] * s->scale, most = -INFINITY;
    double largest = 0, sum = 0;
    for (int64_t i = first; i < end; i++) {
        double size = p[i] = 0;
        for (int64_t d = 0; d < s->size; d++) {
            double x = (double)n->q[at + d] * (double)n->k[(kv * s->keys + i) * s->size + d];
            p[i] += by * x;
            size += by * fabs(x);
        }
        most = fmax(most, p[i]);
        largest = fmax(largest, size);
    }
    for (int64_t i = first; i < end; i++)
        sum += p[i] = exp(p[i] - most);
    for (int64_t d = 0; d < s->size; d++) {
        double want = 0, mass = 0, square = 0, all = 0, scale = (double)n->v_scale[kv];
        for (int64_t i = first; i < end; i++) {
            double v = scale * (double)n->v[(kv * s->keys + i) * s->size + d];
            want += p[i] * v;
            mass += p[i] * fabs(v);
            square += p[i] * p[i] * v * v;
            all += fabs(v);
        }
        sum = sum > 0 ? sum : 1;
        double rounding = (ROUNDED + 2 * SUMMED * largest + 0x1p-10) * mass + SMALLEST * all;
        expect_element(n, at + d, want / sum, mass / sum, sqrt(square) / sum, rounding / sum);
    }
}

static void expect_setting(const setting *s)
{
    cup_context *host = device("cpu"), *c = device("cuda");
    const int64_t of_q[] = {1, s->heads, s->queries, s->size},
                  of_k[] = {1, s->groups, s->keys, s->size};
    numbers n = {.s = s};
    cup_tensor *q = draw(host, c, of_q, -2, 2, &n.q), *k = draw(host, c, of_k, -2, 2, &n.k);
    cup_tensor *v = draw(host, c, of_k, s->low, s->high, &n.v);
    cup_tensor *q_scale = draw_scale(c, s->heads, n.q_scale);
    cup_tensor *k_scale = draw_scale(c, s->groups, n.k_scale);
    cup_tensor *v_scale = draw_scale(c, s->groups, n.v_scale);
    cup_tensor *o = cup_copy(
        c, cup_scaled_attention(c, q, k, v, q_scale, k_scale, v_scale, CUP_F32,
                                CUP_OPTIONS(cup_scaled_attention_options, .causal = s->causal,
                                            .scale = s->scale, .window_left = s->window_left)));
    size_t bytes = (size_t)(s->heads * s->queries * s->size) * sizeof *n.got;
    double *p = malloc((size_t)s->keys * sizeof *p);
    n.got = malloc(bytes);
    EXPECT(p && n.got && o && cup_tensor_read(o, n.got, bytes) == CUP_OK);
    for (int64_t i = 0; i < s->heads * s->queries; i++)
        expect_query(&n, i / s->queries, i % s->queries, p);
    /* What sums of large scores lose is more than roundings do on average. */
    if (s->low < 0 && s->scale < 0.2)
        EXPECT(sqrt(n.squares) <= 1.3 * sqrt(n.expected));
    if (s->low >= 0)
        EXPECT(fabs(n.error) <= 0x1p-8 * n.sum);
    float *const all[] = {n.q, n.k, n.v, n.got};
    for (int i = 0; i < 4; i++)
        free(all[i]);
    free(p);
    cup_context_free(c);
    cup_context_free(host);
}

TEST_LIMITED(gpu_scaled_attention_error, 60)
{
    static const setting settings[] = {
        {4, 2, 129, 300, 128, false, 0, 0.088, -2, 2},
        {2, 1, 300, 300, 64, true, 0, 0.125, -2, 2},
        {2, 2, 70, 641, 80, false, 0, 0.1, 0, 2},
        {1, 1, 200, 130, 112, true, 0, 0.1, -2, 2},
        {2, 1, 260, 400, 128, true, 100, 0.088, -2, 2},
        {1, 1, 64, 1000, 128, false, 0, 1, -2, 2},
        {1, 1, 66, 500, 16, true, 0, 3, -2, 2},
        {1, 1, 24, 16384, 128, false, 0, 0.088, 0, 2},
        {1, 1, 24, 16384, 64, false, 0, 0.125, -2, 2},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        expect_setting(&settings[i]);
}

/* What attention of these codes is on a device, without scales. */
static void attend(const char *name, const float *q, const float *k, const float *v, int64_t keys,
                   float *o)
{
    const int64_t of_q[] = {1, 1, 1, 64}, of_k[] = {1, 1, keys, 64};
    cup_context *c = device(name);
    cup_tensor *codes[] = {cup_cast(c, cup_tensor_from(c, CUP_F32, 4, of_q, q), CUP_F8E4M3),
                           cup_cast(c, cup_tensor_from(c, CUP_F32, 4, of_k, k), CUP_F8E4M3),
                           cup_cast(c, cup_tensor_from(c, CUP_F32, 4, of_k, v), CUP_F8E4M3)};
    cup_tensor *got =
        cup_scaled_attention(c, codes[0], codes[1], codes[2], NULL, NULL, NULL, CUP_F32,
                             CUP_OPTIONS(cup_scaled_attention_options, .scale = 1));
    EXPECT(got && cup_tensor_read(got, o, 64 * sizeof *o) == CUP_OK);
    cup_context_free(c);
}

/* Scores that rise or fall by thousands from each tile of keys to the next, or by little at first
 * and then at once, and a key that is no number. */
TEST_LIMITED(gpu_scaled_attention_rises, 30)
{
    enum { KEYS = 640 };
    static float q[64], k[KEYS * 64], v[KEYS * 64], got[64], want[64];
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < KEYS * 64; i++) {
            int key = i / 64, tile = key / 128;
            float level = way == 0 ? (float)(4 - tile) : way == 1 ? (float)tile : tile == 1;
            q[i % 64] = 1;
            k[i] = way == 2 ? 0.0625f * level + (float)(key % 3) / 64 : 40 * level - 60;
            v[i] = (float)test_uniform(-2, 2);
        }
        if (way == 3)
            k[64 * 300 + 5] = NAN;
        attend("cpu", q, k, v, KEYS, want);
        attend("cuda", q, k, v, KEYS, got);
        for (int d = 0; d < 64; d++)
            if (way == 3 ? !isnan(got[d]) : !(fabs(got[d] - want[d]) <= 0.1))
                test_fail(__FILE__, __LINE__, "way %d: feature %d is %.9g, expected %.9g", way, d,
                          (double)got[d], (double)want[d]);
    }
}
