/* Tries many plans of the Hopper matrix product on this card: `matmul_sweep check` holds them
 * against the plain kernel on shapes chosen to break them, `matmul_sweep time` times them against
 * cuBLASLt, interleaved, on random data with the L2 cache flushed. `matmul_sweep warm I N` only
 * compiles every N-th kernel, so that several processes can fill the kernel cache together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cuda/gpu.h"
#include "ops/attributes.h"
#include "ops/product_wgmma.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define WATCHDOG 2000000000
#define FLUSH ((size_t)256 << 20)
#define ROUNDS 9
#define COMPARED ((size_t)1 << 25) /* elements at the end of large results */

typedef struct named_plan {
    const char *name;
    cup__wgmma_plan plan;
} named_plan;

#define PLAN(letter, m, n, consumers, turns, s, cm, cn)                                            \
    {                                                                                              \
        letter #m "x" #n "s" #s "m" #cm "n" #cn, { m, n, consumers, turns, s, cm, cn, 1, 0, 0 }    \
    }
#define C(m, n, s, cm, cn) PLAN("c", m, n, 2, false, s, cm, cn)
#define P(m, n, s, cm, cn) PLAN("p", m, n, 2, true, s, cm, cn)
#define S(m, n, s, cm, cn) PLAN("s", m, n, 1, false, s, cm, cn)
static const named_plan plans[] = {
    C(128, 256, 4, 1, 1), C(128, 256, 4, 2, 1), C(128, 256, 4, 1, 2), C(256, 128, 4, 1, 1),
    C(256, 128, 4, 2, 1), C(256, 128, 4, 1, 2), C(128, 192, 4, 2, 1), C(256, 192, 3, 2, 1),
    C(128, 128, 6, 2, 1), C(128, 64, 8, 1, 1),  P(128, 192, 4, 1, 1), P(128, 192, 4, 2, 1),
    P(128, 128, 6, 1, 1), P(128, 128, 6, 2, 1), P(128, 128, 6, 1, 2), P(64, 256, 4, 1, 1),
    P(64, 256, 4, 2, 1),  P(192, 128, 4, 1, 2), P(64, 128, 8, 1, 1),  P(128, 64, 8, 1, 1),
    S(64, 256, 4, 1, 1),  S(64, 128, 8, 1, 1),  S(64, 64, 12, 1, 1),
};

typedef struct shape {
    int64_t m, n, k, batch;
    bool ta, tb;
    bool bias, gelu, pre;
    int parts;
    int dtype;
} shape;

typedef struct rig {
    cup_context *c;
    cup__cuda *gpu;
    void *noise; /* of random bf16 or f16 */
    int64_t noise_count;
    int noise_dtype;
    char *a, *b, *y[2], *pre[2], *bias, *flush;
    size_t capacity;
    cup__timer *timer;
    int failures;
} rig;

static void fail(rig *r, const char *what)
{
    printf("FAILED %s: %s\n", what, cup_error_text(r->c));
    fflush(stdout);
    exit(1);
}

static char *memory(rig *r, size_t bytes)
{
    void *at;
    if (r->c->device->calls->allocate(r->c->device, bytes, "sweep", &at) != CUP_OK)
        fail(r, "allocating");
    return at;
}

static double normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 40) * 0x1p-24 - 0.5;
    }
    return sum * 1.7320508;
}

static void make_noise(rig *r, int dtype)
{
    if (r->noise && r->noise_dtype == dtype)
        return;
    r->noise_count = 1 << 22;
    r->noise_dtype = dtype;
    uint16_t *host = malloc((size_t)r->noise_count * 2);
    uint64_t state = 42;
    for (int64_t i = 0; i < r->noise_count; i++) {
        float v = (float)normal(&state);
        host[i] = dtype == CUP_F16 ? cup__to_f16(v) : cup__to_bf16(v);
    }
    if (!r->noise)
        r->noise = memory(r, (size_t)r->noise_count * 2);
    if (r->c->device->calls->write(r->c->device, r->noise, host, (size_t)r->noise_count * 2))
        fail(r, "writing");
    free(host);
}

/* Random elements everywhere, each piece of memory starting elsewhere in the noise. */
static void fill(rig *r, char *to, int64_t count, int64_t offset)
{
    const cup__device_calls *calls = r->c->device->calls;
    for (int64_t done = 0; done < count;) {
        int64_t at = (offset + done * 7) % (r->noise_count / 2) & ~(int64_t)7;
        int64_t now = r->noise_count - at < count - done ? r->noise_count - at : count - done;
        calls->copy(r->c->device, to + done * 2, (char *)r->noise + at * 2, (size_t)now * 2);
        done += now;
    }
}

static int64_t padded(int64_t count)
{
    return (count + 7) / 8 * 8;
}

/* The product of a shape in the rig's memory; lines are padded to multiples of 8 elements. */
static cup__product product_of(rig *r, const shape *s, int which)
{
    cup__product p = {.dtype = (cup_dtype)s->dtype, .m = s->m, .n = s->n, .k = s->k,
                      .batch_count = s->batch};
    int64_t a_line = padded(s->ta ? s->m : s->k), b_line = padded(s->tb ? s->k : s->n);
    p.a = (cup__matrix){.data = r->a, .row = s->ta ? 1 : a_line, .column = s->ta ? a_line : 1};
    p.b = (cup__matrix){.data = r->b, .row = s->tb ? 1 : b_line, .column = s->tb ? b_line : 1};
    p.y = (cup__matrix){.data = r->y[which], .row = s->n, .column = 1};
    if (s->batch > 1) {
        p.batch_ndim = 1;
        p.batch_size[0] = s->batch;
        p.a.batch[0] = a_line * (s->ta ? s->k : s->m);
        p.b.batch[0] = s->batch % 3 == 0 ? 0 : b_line * (s->tb ? s->n : s->k);
        p.y.batch[0] = s->m * s->n;
    }
    p.bias = s->bias ? r->bias : NULL;
    p.activation = s->gelu ? CUP__GELU : CUP__NO_ACTIVATION;
    p.saving = s->pre;
    p.pre = s->pre ? r->pre[which] : NULL;
    return p;
}

static void prepare(rig *r, const shape *s)
{
    make_noise(r, s->dtype);
    int64_t a = padded(s->ta ? s->m : s->k) * (s->ta ? s->k : s->m) * s->batch;
    int64_t b = padded(s->tb ? s->k : s->n) * (s->tb ? s->n : s->k) * s->batch;
    if ((size_t)a * 2 > r->capacity || (size_t)b * 2 > r->capacity ||
        (size_t)(s->m * s->n * s->batch) * 2 > r->capacity) {
        printf("shape too large for the rig\n");
        exit(1);
    }
    fill(r, r->a, a, 1000);
    fill(r, r->b, b, 700000);
    fill(r, r->bias, s->n, 90000);
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)(s->m * s->n * s->batch) * 2 + 512;
        r->c->device->calls->fill(r->c->device, r->y[i], 0xff, bytes);
        if (s->pre)
            r->c->device->calls->fill(r->c->device, r->pre[i], 0xff, bytes);
    }
}

static float value_of(uint16_t bits, int dtype)
{
    return dtype == CUP_F16 ? cup__from_f16(bits) : cup__from_bf16(bits);
}

/* The largest difference in units of the dtype's epsilon; infinite when the bytes behind the
 * result were touched. */
static double compare(rig *r, const shape *s, const char *want, const char *got)
{
    size_t count = (size_t)(s->m * s->n * s->batch);
    if (count > COMPARED) {
        want += (count - COMPARED) * 2;
        got += (count - COMPARED) * 2;
        count = COMPARED;
    }
    uint16_t *w = malloc(count * 2), *g = malloc(count * 2 + 512);
    cup__device *d = r->c->device;
    if (d->calls->read(d, w, want, count * 2) || d->calls->read(d, g, got, count * 2 + 512))
        fail(r, "reading");
    double squares = 0, worst = 0;
    for (size_t i = 0; i < count; i++) {
        double v = (double)value_of(w[i], s->dtype);
        squares += v * v;
    }
    double rms = sqrt(squares / (double)count), epsilon = s->dtype == CUP_F16 ? 0x1p-10 : 0x1p-7;
    for (size_t i = 0; i < count; i++) {
        double v = (double)value_of(w[i], s->dtype), x = (double)value_of(g[i], s->dtype);
        double error = fabs(x - v) / (epsilon * (fabs(v) + rms) + 1e-30);
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    for (size_t i = count; i < count + 256; i++)
        if (g[i] != 0xffff)
            worst = INFINITY;
    free(w);
    free(g);
    return worst;
}

static cup__call fake_call(rig *r)
{
    return (cup__call){.c = r->c, .row = cup__row_find("matmul")};
}

static void check_one(rig *r, const shape *s, const named_plan *n)
{
    cup__product p = product_of(r, s, 1);
    cup__wgmma_plan plan = n->plan;
    plan.parts = s->parts;
    plan.watchdog = WATCHDOG;
    const char *why = cup__product_wgmma_refuses(r->c, &p);
    if (!why)
        why = cup__wgmma_plan_refuses(&p, &plan);
    char what[200];
    snprintf(what, sizeof what, "%s %lldx%lldx%lld batch %lld %c%c%s%s%s parts %d %s", n->name,
             (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->batch,
             s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', s->bias ? " bias" : "", s->gelu ? " gelu" : "",
             s->pre ? " pre" : "", s->parts, cup_dtype_name((cup_dtype)s->dtype));
    if (why) {
        printf("refused %s: %s\n", what, why);
        return;
    }
    if (cup__product_wgmma_by(r->c, &p, &plan) != CUP_OK ||
        r->c->device->calls->synchronize(r->c->device) != CUP_OK)
        fail(r, what);
    double error = compare(r, s, r->y[0], r->y[1]);
    double error_pre = s->pre ? compare(r, s, r->pre[0], r->pre[1]) : 0;
    if (!(error <= 1.01) || !(error_pre <= 1.01)) {
        printf("WRONG %s: error %.3g, of pre %.3g\n", what, error, error_pre);
        r->failures++;
    }
    fflush(stdout);
}

static void check_shape(rig *r, const shape *s, int *count)
{
    prepare(r, s);
    cup__call call = fake_call(r);
    cup__product p = product_of(r, s, 0);
    if (cup__product_plain(&call, &p) != CUP_OK)
        fail(r, "plain");
    for (int i = 0; i < COUNT(plans); i++, (*count)++) {
        size_t bytes = (size_t)(s->m * s->n * s->batch) * 2 + 512;
        r->c->device->calls->fill(r->c->device, r->y[1], 0xff, bytes);
        if (s->pre)
            r->c->device->calls->fill(r->c->device, r->pre[1], 0xff, bytes);
        check_one(r, s, &plans[i]);
    }
}

static const int64_t sizes[][3] = {{128, 256, 64},   {1, 8, 8},       {64, 64, 16},
                                   {130, 264, 72},   {257, 520, 200}, {1000, 776, 1032},
                                   {2048, 3000, 512}, {4097, 2056, 96}};

static void check(rig *r)
{
    int count = 0;
    for (int layout = 0; layout < 4; layout++)
        for (int i = 0; i < COUNT(sizes); i++) {
            shape s = {sizes[i][0], sizes[i][1], sizes[i][2], 1, layout & 1, layout & 2,
                       false, false, false, 1, CUP_BF16};
            check_shape(r, &s, &count);
        }
    printf("layouts: %d runs, %d wrong\n", count, r->failures);
    for (int i = 3; i < COUNT(sizes); i++) {
        shape s = {sizes[i][0], sizes[i][1], sizes[i][2], 1, false, true,
                   true, true, true, 1, CUP_BF16};
        check_shape(r, &s, &count);
    }
    printf("epilogues: %d runs, %d wrong\n", count, r->failures);
    static const shape more[] = {
        {300, 1001, 136, 1, false, true, true, false, false, 1, CUP_BF16},
        {300, 1001, 136, 1, false, true, true, true, true, 1, CUP_BF16},
        {200, 136, 264, 5, false, true, false, false, false, 1, CUP_BF16},
        {200, 136, 264, 3, false, true, false, false, false, 1, CUP_BF16},
        {1000, 776, 1032, 1, false, true, false, false, false, 1, CUP_F16},
        {520, 776, 2056, 1, false, true, false, false, false, 3, CUP_BF16},
        {520, 776, 2056, 1, true, false, false, false, false, 8, CUP_BF16},
    };
    for (int i = 0; i < COUNT(more); i++)
        check_shape(r, &more[i], &count);
    printf("check: %d runs, %d wrong\n", count, r->failures);
}

static double time_once(rig *r, const shape *s, const cup__wgmma_plan *plan)
{
    double milliseconds = 0;
    cup__product p = product_of(r, s, plan != NULL);
    cup__call call = fake_call(r);
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    cup_status status =
        plan ? cup__product_wgmma_by(r->c, &p, plan) : cup__product_cublaslt(&call, &p);
    if (status != CUP_OK || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, "timing");
    return milliseconds * 1000;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

typedef struct entry {
    char name[48];
    cup__wgmma_plan plan;
    double us[ROUNDS], middle;
} entry;

static int by_middle(const void *a, const void *b)
{
    double x = ((const entry *)a)->middle, y = ((const entry *)b)->middle;
    return (x > y) - (x < y);
}

static int add_entries(const cup__product *p, entry *to)
{
    static const int parts[] = {1, 2, 3, 4, 6, 8};
    int count = 0;
    for (int i = 0; i < COUNT(plans); i++)
        for (int j = 0; j < COUNT(parts); j++) {
            entry e = {.plan = plans[i].plan};
            e.plan.parts = parts[j];
            e.plan.watchdog = WATCHDOG;
            int64_t tiles = (p->m + e.plan.tile_m - 1) / e.plan.tile_m *
                            ((p->n + e.plan.tile_n - 1) / e.plan.tile_n);
            bool fills = tiles * parts[j] <= 132 * 2 && p->k / 64 >= 4 * parts[j];
            if ((j > 0 && (!fills || i == 9)) || cup__wgmma_plan_refuses(p, &e.plan))
                continue;
            snprintf(e.name, sizeof e.name, j ? "%s/%d" : "%s", plans[i].name, parts[j]);
            to[count++] = e;
        }
    return count;
}

static void time_shape(rig *r, const shape *s)
{
    static entry entries[COUNT(plans) * 6];
    double vendor[ROUNDS];
    prepare(r, s);
    cup__product p = product_of(r, s, 0);
    int count = add_entries(&p, entries);
    bool vendor_can = !cup__product_cublaslt_refuses(r->c, &p);
    if (vendor_can)
        time_once(r, s, NULL);
    for (int i = 0; i < count; i++)
        time_once(r, s, &entries[i].plan);
    double error = vendor_can ? compare(r, s, r->y[0], r->y[1]) : NAN;
    for (int round = 0; round < ROUNDS; round++) {
        vendor[round] = vendor_can ? time_once(r, s, NULL) : NAN;
        for (int i = 0; i < count; i++)
            entries[i].us[round] = time_once(r, s, &entries[i].plan);
    }
    for (int i = 0; i < count; i++)
        entries[i].middle = median(entries[i].us, ROUNDS);
    double base = median(vendor, ROUNDS);
    cup__wgmma_plan chosen;
    cup__wgmma_choose(&p, cup__cuda_facts(r->gpu)->multiprocessors, &chosen);
    printf("\n%lldx%lldx%lld %c%c%s%s%s cublaslt %.1f us %.0f TF/s, error %.2f, chooser "
           "%s%dx%d/%d\n",
           (long long)s->m, (long long)s->n, (long long)s->k, s->ta ? 'T' : 'N', s->tb ? 'T' : 'N',
           s->bias ? " bias" : "", s->gelu ? " gelu" : "", s->pre ? " pre" : "", base,
           2e-6 * (double)s->m * (double)s->n * (double)s->k / base, error,
           chosen.pingpong ? "p" : "c", chosen.tile_m, chosen.tile_n, chosen.parts);
    qsort(entries, (size_t)count, sizeof *entries, by_middle);
    for (int i = 0; i < count; i++)
        printf("%s%s %.1f %.3f", i == 0 ? "" : i % 4 ? " | " : "\n", entries[i].name,
               entries[i].middle, base / entries[i].middle);
    printf("\n");
    fflush(stdout);
}

#define NT false, true
#define NN false, false
#define TN true, false
static const shape timed[] = {
    {8192, 8192, 8192, 1, NT, false, false, false, 1, CUP_BF16},
    {4096, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {2048, 2048, 2048, 1, NT, false, false, false, 1, CUP_BF16},
    {1024, 1024, 1024, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 3072, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 768, 3072, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 2304, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 768, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 50304, 768, 1, NT, false, false, false, 1, CUP_BF16},
    {8192, 14336, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {32768, 3072, 768, 1, NT, true, true, true, 1, CUP_BF16},
    {32768, 3072, 768, 1, NT, true, true, false, 1, CUP_BF16},
    {32768, 768, 2304, 1, NN, false, false, false, 1, CUP_BF16},
    {32768, 768, 3072, 1, NN, false, false, false, 1, CUP_BF16},
    {2304, 768, 32768, 1, TN, false, false, false, 1, CUP_BF16},
    {768, 768, 32768, 1, TN, false, false, false, 1, CUP_BF16},
    {3072, 768, 32768, 1, TN, false, false, false, 1, CUP_BF16},
    {50304, 768, 32768, 1, TN, false, false, false, 1, CUP_BF16},
    {4096, 4096, 4096, 1, NN, false, false, false, 1, CUP_BF16},
    {4096, 4096, 4096, 1, TN, false, false, false, 1, CUP_BF16},
    {512, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {64, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
};

/* Compiles every `of`-th kernel that check and time would ask for. */
static void warm(rig *r, int part, int of)
{
    int number = 0;
    for (int i = 0; i < COUNT(plans); i++)
        for (int variant = 0; variant < 10; variant++) {
            static const shape kinds[] = {
                {64, 64, 64, 1, NT, false, false, false, 1, CUP_BF16},
                {64, 64, 64, 1, NN, false, false, false, 1, CUP_BF16},
                {64, 64, 64, 1, TN, false, false, false, 1, CUP_BF16},
                {64, 64, 64, 1, true, true, false, false, false, 1, CUP_BF16},
                {64, 64, 64, 1, NT, true, true, true, 1, CUP_BF16},
                {64, 64, 64, 1, NT, true, true, false, 1, CUP_BF16},
                {64, 64, 512, 1, NT, false, false, false, 2, CUP_BF16},
                {64, 64, 512, 1, TN, false, false, false, 2, CUP_BF16},
                {64, 64, 64, 5, NT, false, false, false, 1, CUP_BF16},
                {64, 64, 64, 1, NT, false, false, false, 1, CUP_F16},
            };
            if (number++ % of != part)
                continue;
            cup__product p = product_of(r, &kinds[variant], 1);
            cup__wgmma_plan plan = plans[i].plan;
            plan.parts = kinds[variant].parts;
            plan.watchdog = WATCHDOG;
            if (!cup__wgmma_plan_refuses(&p, &plan) &&
                cup__product_wgmma_by(r->c, &p, &plan) != CUP_OK)
                fail(r, plans[i].name);
        }
}

int main(int argc, char **argv)
{
    rig r = {.c = cup_context_new(&(cup_options){.device = "cuda"})};
    if (cup_error(r.c) != CUP_OK)
        fail(&r, "opening the GPU");
    const char *mode = argc > 1 ? argv[1] : "check";
    r.gpu = cup__cuda_of(r.c->device);
    r.capacity = !strcmp(mode, "time") ? (size_t)3400 << 20 : (size_t)64 << 20;
    r.a = memory(&r, r.capacity);
    r.b = memory(&r, r.capacity);
    for (int i = 0; i < 2; i++) {
        r.y[i] = memory(&r, r.capacity + 512);
        r.pre[i] = memory(&r, r.capacity + 512);
    }
    r.bias = memory(&r, 1 << 20);
    r.flush = memory(&r, FLUSH);
    if (cup__timer_new(r.gpu, &r.timer) != CUP_OK)
        fail(&r, "a timer");
    if (!strcmp(mode, "warm") && argc > 3)
        warm(&r, atoi(argv[2]), atoi(argv[3]));
    else if (!strcmp(mode, "time"))
        for (int i = argc > 2 ? atoi(argv[2]) : 0; i < COUNT(timed); i++)
            time_shape(&r, &timed[i]);
    else
        check(&r);
    if (cup_error(r.c) != CUP_OK)
        fail(&r, mode);
    cup__timer_free(r.timer);
    cup_context_free(r.c);
    return r.failures != 0;
}
