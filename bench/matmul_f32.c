/* Holds products of f32 on tensor cores against sums in double, also where elements differ so much
 * that they need another way, and with infinities. Then times every way to multiply f32 on random
 * data with the L2 cache flushed, interleaved, and measures the error of each against sums in
 * double: the root mean square and the largest, in units of 2^-24 of the root mean square of the
 * results. */
#include "matmul_rig.h"
#include "ops/matmul/wgmma.h"

#define SAMPLED 32 /* rows and columns of y whose errors are measured */
#define WAYS COUNT(ways)

typedef struct way {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
    const char *precision;
} way;

static const way ways[] = {
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt, "highest"},
    {"split", cup__product_split_refuses, cup__product_split, "highest"},
    {"tf32", cup__product_tf32_refuses, cup__product_tf32, "highest"},
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt, "high"},
    {"tf32", cup__product_tf32_refuses, cup__product_tf32, "high"},
    {"split", cup__product_split_refuses, cup__product_split, "high"},
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt, "medium"},
    {"split", cup__product_split_refuses, cup__product_split, "medium"},
};

static double run_once(rig *r, const shape *s, const way *w)
{
    double milliseconds = 0;
    cup__product p = product_of(r, s, 1);
    cup__call call = fake_call(r);
    cup_precision(r->c, w->precision);
    if (w->refuses(r->c, &p))
        return NAN;
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    if (w->run(&call, &p) != CUP_OK || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, w->name);
    return milliseconds * 1000;
}

static void read_to(rig *r, float *to, const char *from, int64_t count)
{
    if (r->c->device->calls->read(r->c->device, to, from, (size_t)count * sizeof *to))
        fail(r, "reading");
}

/* The sampled results in double. */
static void reference(rig *r, const shape *s, double *want)
{
    cup__product p = product_of(r, s, 0);
    int64_t a_count = padded(s->ta ? s->m : s->k) * (s->ta ? s->k : s->m);
    int64_t b_count = padded(s->tb ? s->k : s->n) * (s->tb ? s->n : s->k);
    float *a = malloc((size_t)a_count * sizeof *a), *b = malloc((size_t)b_count * sizeof *b);
    read_to(r, a, r->a, a_count);
    read_to(r, b, r->b, b_count);
    for (int i = 0; i < SAMPLED; i++)
        for (int j = 0; j < SAMPLED; j++) {
            const float *x = a + s->m * i / SAMPLED * p.a.row;
            const float *w = b + s->n * j / SAMPLED * p.b.column;
            double sum = 0;
            for (int64_t k = 0; k < s->k; k++)
                sum += (double)x[k * p.a.column] * (double)w[k * p.b.row];
            want[i * SAMPLED + j] = sum;
        }
    free(a);
    free(b);
}

static void print_error(rig *r, const shape *s, const double *want)
{
    float *row = malloc((size_t)s->n * sizeof *row);
    double squares = 0, wrong = 0, worst = 0;
    for (int i = 0; i < SAMPLED; i++) {
        read_to(r, row, r->y[1] + s->m * i / SAMPLED * s->n * 4, s->n);
        for (int j = 0; j < SAMPLED; j++) {
            double v = want[i * SAMPLED + j], e = fabs((double)row[s->n * j / SAMPLED] - v);
            squares += v * v;
            wrong += e * e;
            worst = e <= worst ? worst : e;
        }
    }
    double rms = sqrt(squares / (SAMPLED * SAMPLED)) * 0x1p-24;
    printf("error %.2f at most %.2f", sqrt(wrong / (SAMPLED * SAMPLED)) / rms, worst / rms);
    free(row);
}

static void compare_ways(rig *r, const shape *s)
{
    double us[WAYS][ROUNDS], want[SAMPLED * SAMPLED];
    prepare(r, s);
    reference(r, s, want);
    for (int round = -1; round < ROUNDS; round++)
        for (int i = 0; i < WAYS; i++)
            us[i][round < 0 ? 0 : round] = run_once(r, s, &ways[i]);
    printf("\n%lldx%lldx%lld %c%c\n", (long long)s->m, (long long)s->n, (long long)s->k,
           s->ta ? 'T' : 'N', s->tb ? 'T' : 'N');
    for (int i = 0; i < WAYS; i++) {
        if (isnan(us[i][0]))
            continue;
        run_once(r, s, &ways[i]);
        double middle = median(us[i], ROUNDS);
        printf("  %-9s %-8s %8.1f us %6.1f TF/s  ", ways[i].name, ways[i].precision, middle,
               2e-6 * (double)s->m * (double)s->n * (double)s->k / middle);
        print_error(r, s, want);
        printf("\n");
    }
    fflush(stdout);
}

#define SHAPE(m, n, k, layout)                                                                     \
    {                                                                                              \
        m, n, k, 1, layout, false, false, false, 1, CUP_F32                                        \
    }
static const shape shapes[] = {
    SHAPE(1024, 1024, 1024, NN), SHAPE(4096, 4096, 4096, NN),  SHAPE(1024, 1024, 1024, NT),
    SHAPE(2048, 2048, 2048, NT), SHAPE(512, 2048, 512, NT),    SHAPE(4096, 4096, 4096, TN),
    SHAPE(4096, 4096, 4096, NT), SHAPE(1024, 768, 512, NT),    SHAPE(16384, 1152, 384, NT),
    SHAPE(100, 1000, 500, NT),   SHAPE(384, 1536, 16384, TN),  SHAPE(8192, 8192, 8192, NN),
};

/* Elements of all magnitudes, or (special) some that are not finite. */
static void fill_wide(rig *r, char *to, int64_t count, int range, bool special, uint64_t seed)
{
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int exponent = range ? (int)(seed >> 33) % range - range / 2 : 0;
        values[i] = (float)ldexp(normal(&seed), exponent);
        if (special && (seed >> 40) % 20000 == 0)
            values[i] = (seed >> 20) % 3 ? INFINITY : NAN;
    }
    r->c->device->calls->write(r->c->device, to, values, (size_t)count * sizeof *values);
    free(values);
}

static int kind_of(double v)
{
    return isnan(v) ? 2 : isinf(v) ? (v > 0 ? 1 : -1) : 0;
}

/* Prints the largest error in units of 2^-24 of the sum of the products without their signs. */
static void check_wide(rig *r, const shape *s, int range, bool special)
{
    cup__product p = product_of(r, s, 1);
    cup__call call = fake_call(r);
    fill_wide(r, r->a, padded(s->ta ? s->m : s->k) * (s->ta ? s->k : s->m), range, special, 1);
    fill_wide(r, r->b, padded(s->tb ? s->k : s->n) * (s->tb ? s->n : s->k), range, special, 2);
    const char *why = cup__product_split_refuses(r->c, &p);
    if (why || cup__product_split(&call, &p) != CUP_OK)
        fail(r, why ? why : "split");
    int64_t a_count = padded(s->ta ? s->m : s->k) * (s->ta ? s->k : s->m);
    int64_t b_count = padded(s->tb ? s->k : s->n) * (s->tb ? s->n : s->k);
    float *a = malloc((size_t)a_count * 4), *b = malloc((size_t)b_count * 4);
    float *y = malloc((size_t)(s->m * s->n) * 4);
    read_to(r, a, r->a, a_count);
    read_to(r, b, r->b, b_count);
    read_to(r, y, r->y[1], s->m * s->n);
    double worst = 0;
    int64_t wrong = 0, finite = 0;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = 0, size = 0, got = (double)y[i * s->n + j];
            for (int64_t k = 0; k < s->k; k++) {
                double v = (double)a[i * p.a.row + k * p.a.column] *
                           (double)b[k * p.b.row + j * p.b.column];
                sum += v;
                size += fabs(v);
            }
            double error = fabs(got - sum) / (size * 0x1p-24 + 1e-300);
            wrong += kind_of(got) != kind_of((double)(float)sum);
            finite += kind_of(sum) == 0;
            worst = kind_of(sum) == 0 && !(error <= worst) ? error : worst;
        }
    printf(
        "%lldx%lldx%lld %c%c range 2^%d%s: error at most %.2f, %lld finite, %lld of another kind\n",
        (long long)s->m, (long long)s->n, (long long)s->k, s->ta ? 'T' : 'N', s->tb ? 'T' : 'N',
        range, special ? " special" : "", worst, (long long)finite, (long long)wrong);
    fflush(stdout);
    free(a);
    free(b);
    free(y);
}

static void check_all(rig *r)
{
    for (int layout = 0; layout < 4; layout++) {
        shape s = {300, 200, 264, 1, layout & 1, layout & 2, false, false, false, 1, CUP_F32};
        static const int ranges[] = {0, 20, 60, 100};
        for (int i = 0; i < COUNT(ranges); i++)
            check_wide(r, &s, ranges[i], false);
        check_wide(r, &s, 0, true);
        check_wide(r, &s, 0, false);
    }
}

/* With a number only that many shapes are timed. */
int main(int argc, char **argv)
{
    rig r;
    open_rig(&r, (size_t)256 << 20);
    check_all(&r);
    for (int i = 0; i < COUNT(shapes) && (argc < 2 || i < atoi(argv[1])); i++)
        compare_ways(&r, &shapes[i]);
    cup_precision(r.c, "highest");
    return close_rig(&r);
}
