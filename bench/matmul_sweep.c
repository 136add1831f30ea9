/* Tries many plans of the Hopper matrix product on this card: `matmul_sweep check` holds them
 * against the plain kernel on shapes chosen to break them, `matmul_sweep time` times them against
 * cuBLASLt, interleaved, on random data with the L2 cache flushed. `matmul_sweep warm I N` only
 * compiles every N-th kernel, so that several processes can fill the kernel cache together. Checks
 * run with the watchdog; timing does without, as its registers are too many for the larger tiles.
 */
#include "matmul_rig.h"
#include "ops/matmul/wgmma.h"

#define WATCHDOG 2000000000

typedef struct named_plan {
    const char *name;
    cup__wgmma_plan plan;
} named_plan;

#define PLAN(letter, m, n, consumers, turns, s, cm, cn)                                            \
    {                                                                                              \
        letter #m "x" #n "s" #s "m" #cm "n" #cn, { m, n, consumers, turns, s, cm, cn, 1, 0, 0, 0 } \
    }
#define C(m, n, s, cm, cn) PLAN("c", m, n, 2, false, s, cm, cn)
#define P(m, n, s, cm, cn) PLAN("p", m, n, 2, true, s, cm, cn)
#define S(m, n, s, cm, cn) PLAN("s", m, n, 1, false, s, cm, cn)
static const named_plan plans[] = {
    C(128, 256, 4, 1, 1), C(128, 256, 4, 2, 1), C(128, 256, 4, 1, 2), C(256, 128, 4, 1, 1),
    C(256, 128, 4, 2, 1), C(256, 128, 4, 1, 2), C(256, 192, 3, 2, 1), C(128, 64, 8, 1, 1),
    P(128, 192, 4, 1, 1), P(128, 192, 4, 2, 1), P(128, 192, 4, 1, 2), P(128, 128, 6, 1, 1),
    P(128, 128, 6, 2, 1), P(128, 128, 6, 1, 2), P(64, 256, 4, 1, 1),  P(64, 256, 4, 2, 1),
    P(192, 128, 4, 1, 2), P(128, 160, 4, 1, 1), P(128, 160, 4, 2, 1), C(256, 160, 4, 1, 1),
    P(128, 96, 6, 1, 1),  C(128, 224, 4, 1, 1), S(64, 224, 5, 1, 1),  P(64, 128, 8, 1, 1),
    S(64, 128, 8, 1, 1),  S(64, 64, 12, 1, 1),
};

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
        for (int i = 0; i < (layout == 2 ? COUNT(sizes) : 6); i++) {
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
        {100, 264, 8200, 1, false, true, true, true, true, 2, CUP_BF16},
        {4097, 2056, 456, 1, false, true, false, false, false, 2, CUP_BF16},
        {2050, 3080, 1032, 1, false, false, true, true, true, 2, CUP_BF16},
        {600, 520, 1032, 5, false, true, false, false, false, 2, CUP_BF16},
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
            int64_t tiles = (p->m + e.plan.tile_m - 1) / e.plan.tile_m *
                            ((p->n + e.plan.tile_n - 1) / e.plan.tile_n);
            bool fills = tiles * parts[j] <= 132 * 2 && p->k / 64 >= 4 * parts[j];
            if ((j > 0 && !fills) || cup__wgmma_plan_refuses(p, &e.plan))
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
        for (int variant = 0; variant < 20; variant++) {
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
            cup__product p = product_of(r, &kinds[variant % 10], 1);
            cup__wgmma_plan plan = plans[i].plan;
            plan.parts = kinds[variant % 10].parts;
            plan.watchdog = variant < 10 ? WATCHDOG : 0;
            if (!cup__wgmma_plan_refuses(&p, &plan) &&
                cup__product_wgmma_by(r->c, &p, &plan) != CUP_OK)
                fail(r, plans[i].name);
        }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "check";
    rig r;
    open_rig(&r, (size_t)(!strcmp(mode, "time") ? 3400 : 64) << 20);
    if (!strcmp(mode, "warm") && argc > 3)
        warm(&r, atoi(argv[2]), atoi(argv[3]));
    else if (!strcmp(mode, "time"))
        for (int i = argc > 2 ? atoi(argv[2]) : 0; i < COUNT(timed); i++)
            time_shape(&r, &timed[i]);
    else
        check(&r);
    return close_rig(&r);
}
