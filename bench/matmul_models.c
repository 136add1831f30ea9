/* Products of bf16 as models make them, GPT-2 and Llama 3 of 8 and 70 billion weights, forward and
 * both gradients, from one token to 32 thousand: what the dispatcher chooses and our own kernel
 * against cuBLASLt, run in turn on random data with the L2 cache flushed. Prints each ratio of
 * cuBLASLt's time by ours with the difference of the results, and the geometric mean.
 * `matmul_models warm I N` compiles every N-th kernel first, so that several processes can fill the
 * kernel cache together; `matmul_models plans [FIRST]` times every plan that may be good. */
#define COMPARED ((size_t)1 << 21)
#include "matmul_rig.h"
#include "ops/product_wgmma.h"

typedef struct layer {
    const char *name;
    int64_t n, k; /* weight is n by k */
} layer;

enum { QKV2, OUT2, UP2, DOWN2, HEAD2, QKV8, OUT8, UP8, DOWN8, HEAD8, QKV70, OUT70, UP70, DOWN70,
       GATE8, CUBE1, CUBE2, CUBE4, CUBE8 };

static const layer layers[] = {
    [QKV2] = {"gpt2 qkv", 2304, 768},       [OUT2] = {"gpt2 out", 768, 768},
    [UP2] = {"gpt2 up", 3072, 768},         [DOWN2] = {"gpt2 down", 768, 3072},
    [HEAD2] = {"gpt2 head", 50304, 768},    [QKV8] = {"llama8 qkv", 6144, 4096},
    [OUT8] = {"llama8 out", 4096, 4096},    [UP8] = {"llama8 up", 28672, 4096},
    [DOWN8] = {"llama8 down", 4096, 14336}, [HEAD8] = {"llama8 head", 128256, 4096},
    [QKV70] = {"llama70 qkv", 10240, 8192}, [OUT70] = {"llama70 out", 8192, 8192},
    [UP70] = {"llama70 up", 57344, 8192},   [DOWN70] = {"llama70 down", 8192, 28672},
    [GATE8] = {"llama8 gate", 14336, 4096}, [CUBE1] = {"cube", 1024, 1024},
    [CUBE2] = {"cube", 2048, 2048},         [CUBE4] = {"cube", 4096, 4096},
    [CUBE8] = {"cube", 8192, 8192},
};

typedef enum pass { FORWARD, BY_X, BY_WEIGHT } pass;

static const char *const pass_names[] = {"NT", "NN dx", "TN dw"};

typedef struct row {
    int layer, tokens;
    pass pass;
} row;

#define ALL(layer, tokens)                                                                         \
    {layer, tokens, FORWARD}, {layer, tokens, BY_X}, {layer, tokens, BY_WEIGHT}
static const row rows[] = {
    ALL(QKV2, 32768),      ALL(OUT2, 32768),       ALL(UP2, 32768),        ALL(DOWN2, 32768),
    ALL(HEAD2, 32768),     ALL(QKV2, 4096),        ALL(DOWN2, 4096),       ALL(QKV8, 8192),
    ALL(OUT8, 8192),       ALL(UP8, 8192),         ALL(DOWN8, 8192),       ALL(OUT8, 2048),
    {QKV8, 1, FORWARD},    {DOWN8, 16, FORWARD},   {QKV8, 32, FORWARD},    {OUT8, 64, FORWARD},
    {UP8, 64, FORWARD},    {DOWN8, 64, FORWARD},   {QKV8, 128, FORWARD},   {OUT8, 128, FORWARD},
    {UP8, 128, FORWARD},   {DOWN8, 128, FORWARD},  {HEAD8, 128, FORWARD},  {QKV8, 512, FORWARD},
    {OUT8, 512, FORWARD},  {UP8, 512, FORWARD},    {DOWN8, 512, FORWARD},  {HEAD8, 4096, FORWARD},
    {QKV70, 64, FORWARD},  {DOWN70, 64, FORWARD},  {QKV70, 256, FORWARD},  {OUT70, 256, FORWARD},
    {UP70, 256, FORWARD},  {DOWN70, 1024, FORWARD}, {QKV70, 2048, FORWARD}, {OUT70, 2048, FORWARD},
    {OUT70, 4096, BY_X},   {OUT70, 4096, BY_WEIGHT}, {QKV70, 32768, FORWARD},
    {DOWN70, 4096, FORWARD}, {GATE8, 8192, FORWARD},  {CUBE1, 1024, FORWARD},
    {CUBE2, 2048, FORWARD},  {CUBE4, 4096, FORWARD},  {CUBE8, 8192, FORWARD},
};

static shape shape_of_row(const row *w)
{
    int64_t n = layers[w->layer].n, k = layers[w->layer].k, t = w->tokens;
    shape s = {t, n, k, 1, false, true, false, false, false, 1, CUP_BF16};
    if (w->pass == BY_X)
        s = (shape){t, k, n, 1, false, false, false, false, false, 1, CUP_BF16};
    else if (w->pass == BY_WEIGHT)
        s = (shape){n, k, t, 1, true, false, false, false, false, 1, CUP_BF16};
    return s;
}

/* The implementations in the dispatcher's order. */
typedef struct way {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
} way;

static const way ways[] = {
    {"rows", cup__product_rows_refuses, cup__product_rows},
    {"wgmma_best", cup__product_wgmma_best_refuses, cup__product_wgmma_best},
    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt},
    {"wgmma", cup__product_wgmma_refuses, cup__product_wgmma},
};
enum { VENDOR = 2, OURS = 3 };

static double time_way(rig *r, const shape *s, const way *w)
{
    double milliseconds = 0;
    cup__product p = product_of(r, s, w != &ways[VENDOR]);
    cup__call call = fake_call(r);
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    if (w->run(&call, &p) != CUP_OK || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, w->name);
    return milliseconds * 1000;
}

static void print_plan(rig *r, const cup__product *p)
{
    cup__wgmma_plan plan;
    int count = cup__cuda_facts(r->gpu)->multiprocessors;
    double guess = cup__wgmma_choose(p, count, &plan), vendor = cup__cublaslt_time(p, count);
    printf(" %s%dx%d m%dn%d/%d guess %.1f vendor %.1f\n", plan.pingpong ? "p" : "c", plan.tile_m,
           plan.tile_n, plan.cluster_m, plan.cluster_n, plan.parts, guess, vendor);
}

/* The ratio of what the dispatcher chooses. */
static double time_row(rig *r, const row *w)
{
    shape s = shape_of_row(w);
    prepare(r, &s);
    cup__product p = product_of(r, &s, 1);
    int chosen = 0;
    if (cup__product_cublaslt_refuses(r->c, &p))
        fail(r, "cuBLASLt");
    while (ways[chosen].refuses(r->c, &p))
        chosen++;
    const way *ours = chosen == VENDOR ? &ways[OURS] : &ways[chosen];
    double vendor[ROUNDS], own[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        double a = time_way(r, &s, &ways[VENDOR]), b = time_way(r, &s, ours);
        if (round >= 0) {
            vendor[round] = a;
            own[round] = b;
        }
    }
    double error = compare(r, &s, r->y[0], r->y[1]);
    double base = median(vendor, ROUNDS), us = median(own, ROUNDS);
    printf("%-12s %6d %-5s %6lldx%6lldx%6lld %-10s cublaslt %8.1f us %4.0f TF/s, %-10s %8.1f us "
           "ratio %.3f error %.2f",
           layers[w->layer].name, w->tokens, pass_names[w->pass], (long long)s.m, (long long)s.n,
           (long long)s.k, ways[chosen].name, base,
           2e-6 * (double)s.m * (double)s.n * (double)s.k / base, ours->name, us, base / us,
           error);
    print_plan(r, &p);
    fflush(stdout);
    r->failures += !(error <= 1.01);
    return chosen == VENDOR ? 1 : base / us;
}

static void time_rows(rig *r)
{
    double sum = 0, worst = 100;
    for (int i = 0; i < COUNT(rows); i++) {
        double ratio = time_row(r, &rows[i]);
        sum += log(ratio);
        worst = ratio < worst ? ratio : worst;
    }
    printf("%d shapes: geometric mean %.3f, least %.3f, %d wrong\n", COUNT(rows),
           exp(sum / COUNT(rows)), worst, r->failures);
}

/* Plans that may be good somewhere. */
#define C(m, n, s, cm, cn) {m, n, 2, false, s, cm, cn, 1, 0, 0}
#define P(m, n, s, cm, cn) {m, n, 2, true, s, cm, cn, 1, 0, 0}
#define S(m, n, s, cm, cn) {m, n, 1, false, s, cm, cn, 1, 0, 0}
static const cup__wgmma_plan plans[] = {
    C(128, 256, 4, 1, 1), C(128, 256, 4, 2, 1), C(256, 128, 4, 1, 1), C(256, 160, 4, 1, 1),
    P(128, 192, 4, 4, 1), P(128, 160, 4, 4, 1), P(128, 128, 6, 4, 1), S(64, 128, 8, 4, 1),
    S(64, 64, 12, 2, 1),
    C(128, 224, 4, 1, 1), C(128, 224, 4, 2, 1), P(128, 192, 4, 1, 1), P(128, 192, 4, 2, 1),
    P(128, 160, 4, 1, 1), P(128, 160, 4, 2, 1), P(128, 128, 6, 1, 1), P(128, 128, 6, 2, 1),
    P(128, 96, 6, 1, 1),  C(128, 128, 6, 1, 1), P(64, 256, 4, 1, 1),  S(64, 256, 5, 1, 1),
    S(64, 224, 5, 1, 1),  S(64, 160, 6, 1, 1),  P(64, 128, 8, 1, 1),  S(64, 128, 8, 1, 1),
    S(64, 128, 8, 2, 1),  S(64, 96, 8, 1, 1),   C(128, 64, 8, 1, 1),  S(64, 64, 12, 1, 1),
};

typedef struct entry {
    cup__wgmma_plan plan;
    double us[ROUNDS];
    double middle;
} entry;

static double time_plan(rig *r, const shape *s, const cup__wgmma_plan *plan)
{
    double milliseconds = 0;
    cup__product p = product_of(r, s, 1);
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    if (cup__product_wgmma_by(r->c, &p, plan) != CUP_OK ||
        cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, "a plan");
    return milliseconds * 1000;
}

static int by_middle(const void *a, const void *b)
{
    double x = ((const entry *)a)->middle, y = ((const entry *)b)->middle;
    return (x > y) - (x < y);
}

static int add_entries(rig *r, const cup__product *p, entry *to)
{
    int count = 0, most = cup__cuda_facts(r->gpu)->multiprocessors;
    for (int i = 0; i < COUNT(plans); i++) {
        entry e = {.plan = plans[i]};
        int64_t tiles = (p->m + e.plan.tile_m - 1) / e.plan.tile_m *
                        ((p->n + e.plan.tile_n - 1) / e.plan.tile_n);
        for (int parts = 1; tiles * parts <= most || parts == 1; parts++) {
            e.plan.parts = parts;
            bool few = parts == 1 || tiles * (parts + 1) > most || tiles * parts * 2 > most;
            if (few && p->k >= 256 * parts && !cup__wgmma_plan_refuses(p, &e.plan))
                to[count++] = e;
        }
    }
    return count;
}

#define FINAL 6 /* plans that are timed again */

static void time_plans(rig *r, const row *w)
{
    static entry entries[140 * COUNT(plans)];
    shape s = shape_of_row(w);
    prepare(r, &s);
    cup__product p = product_of(r, &s, 0);
    if (cup__product_cublaslt_refuses(r->c, &p))
        fail(r, "cuBLASLt");
    double vendor[ROUNDS];
    int count = add_entries(r, &p, entries);
    time_way(r, &s, &ways[VENDOR]);
    for (int i = 0; i < count; i++) {
        time_plan(r, &s, &entries[i].plan);
        entries[i].middle = time_plan(r, &s, &entries[i].plan);
    }
    qsort(entries, (size_t)count, sizeof *entries, by_middle);
    int final = count < FINAL ? count : FINAL;
    for (int round = 0; round < ROUNDS; round++) {
        vendor[round] = time_way(r, &s, &ways[VENDOR]);
        for (int i = 0; i < final; i++)
            entries[i].us[round] = time_plan(r, &s, &entries[i].plan);
    }
    for (int i = 0; i < final; i++)
        entries[i].middle = median(entries[i].us, ROUNDS);
    qsort(entries, (size_t)final, sizeof *entries, by_middle);
    double base = median(vendor, ROUNDS);
    printf("%s %d %s %lldx%lldx%lld cublaslt %.1f best %.3f error %.2f:", layers[w->layer].name,
           w->tokens, pass_names[w->pass], (long long)s.m, (long long)s.n, (long long)s.k, base,
           base / entries[0].middle, compare(r, &s, r->y[0], r->y[1]));
    for (int i = 0; i < count && i < 20; i++) {
        const cup__wgmma_plan *n = &entries[i].plan;
        printf(" %s%dx%dm%dn%d/%d %.1f%s", n->pingpong ? "p" : n->consumers > 1 ? "c" : "s",
               n->tile_m, n->tile_n, n->cluster_m, n->cluster_n, n->parts,
               entries[i].middle, i == final - 1 ? " |" : "");
    }
    printf("\n");
    fflush(stdout);
}

/* Compiles what time_plans needs. */
static void warm_plans(rig *r, int part, int of)
{
    for (int i = part; i < COUNT(plans) * 6; i += of) {
        shape s = {64, 64, 512, 1, i % 3 == 2, i % 3 == 0, false, false, false, 1, CUP_BF16};
        cup__product p = product_of(r, &s, 1);
        cup__wgmma_plan plan = plans[i / 6];
        plan.parts = 1 + i / 3 % 2;
        if (!cup__wgmma_plan_refuses(&p, &plan) &&
            cup__product_wgmma_by(r->c, &p, &plan) != CUP_OK)
            fail(r, "compiling");
    }
}

static void warm(rig *r, int part, int of)
{
    warm_plans(r, part, of);
    for (int i = part; i < COUNT(rows); i += of) {
        shape s = shape_of_row(&rows[i]);
        cup__product p = product_of(r, &s, 1);
        cup__wgmma_plan plan;
        cup__wgmma_choose(&p, cup__cuda_facts(r->gpu)->multiprocessors, &plan);
        s.m = s.n = 64;
        s.k = 512;
        plan.parts = plan.parts > 1 ? 2 : 1;
        p = product_of(r, &s, 1);
        if (cup__product_wgmma_by(r->c, &p, &plan) != CUP_OK)
            fail(r, "compiling");
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "time";
    bool compiling = !strcmp(mode, "warm") && argc > 3;
    rig r;
    open_rig(&r, (size_t)(compiling ? 64 : 4000) << 20);
    if (!strcmp(mode, "plans"))
        for (int i = argc > 2 ? atoi(argv[2]) : 0; i < COUNT(rows); i++)
            time_plans(&r, &rows[i]);
    else if (compiling)
        warm(&r, atoi(argv[2]), atoi(argv[3]));
    else
        time_rows(&r);
    return close_rig(&r);
}
