/* Times plans of the Hopper product of 8-bit codes on this card, interleaved, on random data with
 * the L2 cache flushed, and holds their results against each other: `scaled_sweep [blocks [c128x192
 * [8192]]]`, where the words pick jobs and plans by their names, and jobs by their rows.
 * `scaled_sweep warm I N [blocks]` only compiles every N-th kernel, so that several processes fill
 * the kernel cache. */
#include "matmul_rig.h"
#include "ops/matmul/wgmma.h"
#include "ops/lowbit/scaled.h"

typedef struct named_plan {
    const char *name;
    cup__wgmma_plan plan;
} named_plan;

#define PLAN(letter, m, n, consumers, turns, s, cm, cn)                                            \
    {                                                                                              \
        letter #m "x" #n "s" #s "m" #cm "n" #cn,                                                   \
        {                                                                                          \
            m, n, consumers, turns, s, cm, cn, 1, 0, 0, 0                                          \
        }                                                                                          \
    }
#define C(m, n, s, cm, cn) PLAN("c", m, n, 2, false, s, cm, cn)
#define P(m, n, s, cm, cn) PLAN("p", m, n, 2, true, s, cm, cn)
#define S(m, n, s, cm, cn) PLAN("s", m, n, 1, false, s, cm, cn)
#define T(m, n, s, cm, cn) PLAN("t", m, n, 3, false, s, cm, cn)
#define LIBRARY 0 /* cuBLASLt stands in the first place */
static const named_plan plans[] = {
    {"cuBLASLt", {0}},    C(128, 256, 4, 1, 1), C(128, 256, 4, 2, 1), C(128, 256, 4, 1, 2),
    C(256, 128, 4, 1, 1), C(256, 128, 4, 2, 1), C(256, 128, 4, 1, 2), P(128, 192, 4, 1, 1),
    P(128, 192, 4, 2, 1), P(128, 192, 4, 1, 2), P(128, 128, 6, 1, 1), P(128, 128, 6, 2, 1),
    P(128, 128, 5, 1, 2), C(128, 128, 6, 1, 1), C(128, 128, 6, 2, 1), C(128, 128, 6, 1, 2),
    P(64, 256, 4, 1, 1),  P(64, 128, 8, 1, 1),  S(64, 64, 12, 1, 1),  C(128, 192, 5, 1, 1),
    C(128, 192, 5, 2, 1), C(128, 192, 5, 1, 2), T(192, 128, 5, 1, 1), T(192, 128, 5, 2, 1),
    T(192, 128, 5, 1, 2), C(128, 192, 4, 1, 1), C(128, 192, 4, 2, 1), T(192, 128, 4, 1, 1),

};

typedef struct job {
    const char *name;
    int64_t m, n, k;
    int dtype, kind;
    bool fast;
} job;
static const job jobs[] = {
    {"e4m3 tensor", 4096, 4096, 4096, CUP_F8E4M3, PRODUCT_SCALE_ONE, true},
    {"e4m3 tensor", 8192, 8192, 8192, CUP_F8E4M3, PRODUCT_SCALE_ONE, true},
    {"e4m3 tensor", 8192, 14336, 4096, CUP_F8E4M3, PRODUCT_SCALE_ONE, true},
    {"e4m3 rows", 8192, 8192, 8192, CUP_F8E4M3, PRODUCT_SCALE_LINES, true},
    {"e4m3 exact", 8192, 8192, 8192, CUP_F8E4M3, PRODUCT_SCALE_ONE, false},
    {"e4m3 blocks odd", 1000, 1416, 1040, CUP_F8E4M3, PRODUCT_SCALE_BLOCKS, true},
    {"e4m3 blocks", 4096, 4096, 4096, CUP_F8E4M3, PRODUCT_SCALE_BLOCKS, true},
    {"e4m3 blocks", 8192, 8192, 8192, CUP_F8E4M3, PRODUCT_SCALE_BLOCKS, true},
    {"i8 rows", 8192, 8192, 8192, CUP_I8, PRODUCT_SCALE_LINES, true},
    {"i8 tensor", 4096, 4096, 4096, CUP_I8, PRODUCT_SCALE_ONE, true},
};

static cup__scaling scaling_of(rig *r, const job *j)
{
    cup__scaling s = {
        .b_dtype = (cup_dtype)j->dtype, .y_dtype = CUP_BF16, .kind = j->kind, .fast = j->fast};
    int64_t blocks = (j->k + 127) / 128;
    s.a.data = (const float *)(void *)r->pre[0];
    s.b.data = (const float *)(void *)r->pre[1];
    if (j->kind == PRODUCT_SCALE_LINES)
        s.a.line = s.b.line = 1;
    if (j->kind == PRODUCT_SCALE_BLOCKS) {
        s.a.line = 1;
        s.a.k = j->m;
        s.b.line = blocks;
        s.b.k = 1;
        s.b.shift = 7;
    }
    return s;
}

static cup__product product(rig *r, const job *j, const cup__scaling *s, int which)
{
    cup__product p = {.dtype = (cup_dtype)j->dtype, .factor = 1,
                      .m = j->m,
                      .n = j->n,
                      .k = j->k,
                      .batch_count = 1,
                      .scaling = s};
    p.a = (cup__matrix){.data = r->a, .row = j->k, .column = 1};
    p.b = (cup__matrix){.data = r->b, .row = 1, .column = j->k};
    p.y = (cup__matrix){.data = r->y[which], .row = j->n, .column = 1};
    return p;
}

static void write_random(rig *r, char *to, int64_t count, int dtype, double scale, uint64_t seed)
{
    int64_t chunk = 1 << 22;
    float *values = malloc((size_t)chunk * sizeof *values);
    char *host = malloc((size_t)chunk * 4);
    int64_t size = cup_dtype_size((cup_dtype)dtype);
    for (int64_t i = 0; i < chunk; i++)
        values[i] = (float)(scale * normal(&seed));
    if (dtype == CUP_F32)
        for (int64_t i = 0; i < chunk; i++)
            values[i] = 0.5f + fabsf(values[i]);
    cup__store_f32(host, values, (cup_dtype)dtype, chunk);
    for (int64_t i = 0; i < count; i += chunk)
        r->c->device->calls->write(r->c->device, to + i * size, host,
                                   (size_t)((count - i < chunk ? count - i : chunk) * size));
    free(values);
    free(host);
}

static bool run(rig *r, const job *j, const cup__wgmma_plan *plan, int which, double *us)
{
    cup__scaling s = scaling_of(r, j);
    cup__product p = product(r, j, &s, which);
    double milliseconds = 0;
    if (plan && cup__wgmma_plan_refuses(&p, plan))
        return false;
    if (!plan && (s.kind != PRODUCT_SCALE_ONE || j->dtype == CUP_I8))
        return false;
    cup__call call = fake_call(r);
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    if ((plan ? cup__product_wgmma_by(r->c, &p, plan) : cup__product_cublaslt(&call, &p)) ||
        cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, "timing");
    *us = milliseconds * 1000;
    return true;
}

static void time_job(rig *r, const job *j, const char *word)
{
    double us[COUNT(plans)][ROUNDS], unused;
    bool can[COUNT(plans)];
    int first = -1;
    shape whole = {.m = j->m, .n = j->n, .batch = 1, .dtype = CUP_BF16};
    double factor = j->dtype == CUP_I8 ? 40 : 1;
    write_random(r, r->a, j->m * j->k, j->dtype, factor, 1);
    write_random(r, r->b, j->n * j->k, j->dtype, factor, 77);
    for (int i = 0; i < 2; i++)
        write_random(r, r->pre[i], j->m * 130, CUP_F32, 1, 5);
    for (int i = 0; i < COUNT(plans); i++) {
        r->c->device->calls->fill(r->c->device, r->y[first >= 0], 0xff,
                                  (size_t)(j->m * j->n) * 2 + 512);
        can[i] = strstr(plans[i].name, word) &&
                 run(r, j, i == LIBRARY ? NULL : &plans[i].plan, first >= 0, &unused);
        if (can[i] && first >= 0) {
            double error = compare(r, &whole, r->y[0], r->y[1]);
            if (!(error <= 2))
                printf("DIFFERS %s %s: %.3g\n", j->name, plans[i].name, error);
        }
        if (can[i] && first < 0)
            first = i;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < COUNT(plans); i++)
            if (can[i])
                run(r, j, i == LIBRARY ? NULL : &plans[i].plan, 1, &us[i][round]);
    for (int i = 0; i < COUNT(plans); i++) {
        if (!can[i])
            continue;
        double middle = median(us[i], ROUNDS);
        printf("%s %lldx%lldx%lld %-16s %8.1f us %7.0f T\n", j->name, (long long)j->m,
               (long long)j->n, (long long)j->k, plans[i].name, middle,
               2e-6 * (double)j->m * (double)j->n * (double)j->k / middle);
    }
    fflush(stdout);
}

static void warm(rig *r, int offset, int step, const char *word)
{
    double unused;
    for (int i = 0; i < COUNT(jobs); i++)
        for (int k = 0; k < COUNT(plans); k++)
            if ((i * COUNT(plans) + k) % step == offset && strstr(jobs[i].name, word)) {
                job small = jobs[i];
                small.m = small.n = small.k = 512;
                run(r, &small, k == LIBRARY ? NULL : &plans[k].plan, 0, &unused);
            }
}

int main(int count, char **arguments)
{
    rig r;
    bool warming = count > 3 && !strcmp(arguments[1], "warm");
    open_rig(&r, (size_t)(warming ? 4 : 256) << 20);
    if (warming)
        warm(&r, atoi(arguments[2]), atoi(arguments[3]), count > 4 ? arguments[4] : "");
    int64_t rows = !warming && count > 3 ? atoi(arguments[3]) : 0;
    for (int i = 0; i < COUNT(jobs) && !warming; i++)
        if ((count < 2 || strstr(jobs[i].name, arguments[1])) && (!rows || rows == jobs[i].m))
            time_job(&r, &jobs[i], count > 2 ? arguments[2] : "");
    return close_rig(&r);
}
