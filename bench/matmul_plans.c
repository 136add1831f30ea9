/* Times every plan of Hopper's products that may be good, and the algorithms that cuBLASLt
 * proposes, over the products of matmul_rows.h and over layers of models from 16 rows up: random
 * data, L2 flushed. A line a product: what the library's first takes, then the ways, best first;
 * those before the bar were timed in turn. What the chooser is fitted to, and where tuning records
 * come from. Weight gradients are timed with the sums of a's lines as well, by our best plans.
 * `matmul_plans [time [FIRST [LAST]]]` does that, `matmul_plans gradients` for those alone;
 * `check` holds each plan against cuBLASLt; `profile` runs a few once, for a profiler; `pack FILE
 * [menu]` compiles all plans, or those ever chosen, to a pack, on a machine without a GPU. */
#define COMPARED ((size_t)1 << 19)
#include "cuda/dry.h"
#include "matmul_rig.h"
#include "matmul_rows.h"
#include "ops/matmul/wgmma.h"
#include "tensor/context.h"

#define C(m, n, s, cm, cn) {m, n, 2, false, s, cm, cn, 1, 0, 0, 0}
#define P(m, n, s, cm, cn) {m, n, 2, true, s, cm, cn, 1, 0, 0, 0}
#define S(m, n, s, cm, cn) {m, n, 1, false, s, cm, cn, 1, 0, 0, 0}
#define T(m, n, s, cm, cn) {m, n, 3, false, s, cm, cn, 1, 0, 0, 0}
/* The same, with parts of k that meet in a cluster. */
#define CK(m, n, s, k) {m, n, 2, false, s, 1, 1, k, 0, k, 0}
#define SK(m, n, s, k) {m, n, 1, false, s, 1, 1, k, 0, k, 0}
#define TK(m, n, s, k) {m, n, 3, false, s, 1, 1, k, 0, k, 0}
static const cup__wgmma_plan plans[] = {
    CK(128, 128, 6, 2), CK(128, 128, 6, 4), CK(128, 256, 4, 2), CK(128, 256, 4, 4),
    CK(128, 64, 8, 2),  CK(128, 96, 6, 2),  CK(128, 192, 4, 2), TK(192, 192, 4, 2),
    TK(192, 128, 5, 2), TK(192, 128, 5, 4), SK(64, 64, 12, 2),  SK(64, 64, 12, 4),
    SK(64, 128, 8, 2),  SK(64, 128, 8, 4),  SK(64, 32, 12, 2),  SK(64, 32, 12, 4),
    SK(64, 96, 8, 2),   SK(64, 96, 8, 4),
    C(128, 256, 4, 1, 1), C(128, 256, 4, 2, 1), C(256, 128, 4, 1, 1), C(256, 128, 4, 1, 2),
    C(256, 192, 3, 1, 1), C(256, 192, 3, 2, 1), C(256, 160, 3, 1, 1), C(128, 224, 4, 1, 1),
    C(128, 192, 4, 1, 1), C(128, 192, 4, 2, 1), C(128, 160, 4, 1, 1), C(128, 160, 4, 2, 1),
    C(128, 128, 6, 1, 1), C(128, 128, 6, 2, 1), C(128, 96, 6, 1, 1),  C(128, 64, 8, 1, 1),
    C(128, 64, 8, 2, 1),  T(192, 192, 4, 1, 1), T(192, 192, 4, 2, 1), T(192, 160, 4, 1, 1),
    T(192, 128, 5, 1, 1), T(192, 128, 5, 2, 1), T(192, 96, 5, 1, 1),  T(192, 96, 5, 2, 1),
    P(128, 192, 4, 1, 1), P(128, 192, 4, 2, 1), P(128, 160, 4, 1, 1), P(128, 160, 4, 2, 1),
    P(128, 128, 6, 1, 1), P(128, 128, 6, 2, 1), P(128, 96, 6, 1, 1),  P(64, 256, 4, 1, 1),
    P(64, 192, 6, 1, 1),  P(64, 128, 8, 1, 1),  S(64, 256, 5, 1, 1),  S(64, 224, 5, 1, 1),
    S(64, 192, 6, 1, 1),  S(64, 160, 6, 1, 1),  S(64, 128, 8, 1, 1),  S(64, 128, 8, 2, 1),
    S(64, 128, 8, 4, 1),  S(64, 96, 8, 1, 1),   S(64, 96, 8, 2, 1),   S(64, 64, 12, 1, 1),
    S(64, 64, 12, 1, 2),  S(64, 64, 12, 1, 4),  S(64, 32, 12, 1, 1),  S(64, 32, 12, 1, 4),
};

#define FINAL 6     /* ways that are timed again, */
#define ENTRIES 64  /* of so many */
#define LIKELY 1.28 /* as long as the best by the estimate: not timed at all */

typedef struct entry {
    cup__wgmma_plan plan;
    int rank; /* of cuBLASLt; -1: ours */
    double us[ROUNDS];
    double middle; /* at first an estimate */
} entry;

/* Microseconds that a plan may take, roughly. */
static double estimate(const cup__product *p, const cup__wgmma_plan *n, int most)
{
    int64_t tiles = (p->m + n->tile_m - 1) / n->tile_m * ((p->n + n->tile_n - 1) / n->tile_n);
    double area = n->tile_m * n->tile_n / 32768.0;
    double rounds = (double)(tiles * n->parts) / most;
    rounds = rounds < 1 ? 1 : 0.6 * ceil(rounds - 1e-9) + 0.4 * rounds;
    double k_tiles = ceil(ceil((double)p->k / 64) / n->parts);
    double each = k_tiles * (0.05 + 0.57 * area) + (n->pingpong ? 0.5 : 0.3 + 1.5 * area);
    double join = n->parts > 1 && !n->cluster_k ? 4 : 0;
    double work = 5 + rounds * (each + join);
    double m = (double)p->m, columns = (double)p->n, k = (double)p->k;
    double bytes = 6.8 + 2 * (m * k + columns * k + m * columns) / 3.7e6;
    double a = work * work, b = bytes * bytes;
    return sqrt(sqrt(a * a + b * b));
}

static int by_middle(const void *a, const void *b)
{
    double x = ((const entry *)a)->middle, y = ((const entry *)b)->middle;
    return (x > y) - (x < y);
}

/* Our plans with all numbers of parts that use more than half of the card, the likely ones. */
static int add_plans(rig *r, const cup__product *p, entry *to)
{
    static entry all[COUNT(plans) * 32];
    int count = 0, kept = 0, most = cup__cuda_facts(r->gpu)->multiprocessors;
    for (int i = 0; i < COUNT(plans); i++) {
        entry e = {.plan = plans[i], .rank = -1};
        int64_t tiles = (p->m + e.plan.tile_m - 1) / e.plan.tile_m *
                        ((p->n + e.plan.tile_n - 1) / e.plan.tile_n);
        int meeting = plans[i].cluster_k, from = meeting ? meeting : 1, last = meeting ? from : 16;
        for (int parts = from; (tiles * parts <= most || parts == from) && parts <= last;
             parts++) {
            e.plan.parts = parts;
            bool few = parts == 1 || tiles * parts * 2 > most || meeting;
            if (!few || p->k < 128 * parts || cup__wgmma_plan_refuses(p, &e.plan))
                continue;
            e.middle = estimate(p, &e.plan, most);
            if (count < COUNT(all))
                all[count++] = e;
        }
    }
    qsort(all, (size_t)count, sizeof *all, by_middle);
    while (kept < count && kept < ENTRIES &&
           (kept < 12 || all[kept].middle < LIKELY * all[0].middle)) {
        to[kept] = all[kept];
        kept++;
    }
    return kept;
}

static double time_entry(rig *r, const shape *s, const entry *e, bool summing)
{
    double milliseconds = 0;
    cup__product p = product_of(r, s, e->rank != 0);
    p.summing = summing;
    p.a_sums = summing ? r->bias : NULL;
    cup__call call = fake_call(r);
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    cup_status status = e->rank < 0 ? cup__product_wgmma_by(r->c, &p, &e->plan)
                                    : cup__product_cublaslt_by(&call, &p, e->rank);
    if (status != CUP_OK || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, "a plan");
    return milliseconds * 1000;
}

static void print_way(const entry *e)
{
    const cup__wgmma_plan *n = &e->plan;
    const char *kind = n->pingpong         ? "p"
                       : n->consumers == 3 ? "t"
                       : n->consumers == 2 ? "c"
                                           : "s";
    if (e->rank >= 0)
        printf(" lt%d %.2f", e->rank, e->middle);
    else
        printf(" %s%dx%dm%dn%d/%d%s %.2f", kind, n->tile_m, n->tile_n, n->cluster_m, n->cluster_n,
               n->parts, n->cluster_k ? "k" : "", e->middle);
}

static void print_sums(rig *r, const shape *s, const entry *entries, int count)
{
    cup__product p = product_of(r, s, 1);
    p.summing = true;
    printf(" sums:");
    for (int i = 0, done = 0; i < count && done < 4; i++) {
        entry e = entries[i];
        double us[5];
        if (e.rank >= 0 || cup__wgmma_plan_refuses(&p, &e.plan))
            continue;
        for (int round = -1; round < COUNT(us); round++)
            us[round < 0 ? 0 : round] = time_entry(r, s, &e, true);
        e.middle = median(us, COUNT(us));
        print_way(&e);
        done++;
    }
}

/* Errors are those of the best of our plans. */
static void time_plans(rig *r, const row *w)
{
    static entry entries[ENTRIES + CUP__RANKS_MOST];
    shape s = shape_of_row(w);
    prepare(r, &s);
    cup__product p = product_of(r, &s, 0);
    int count = add_plans(r, &p, entries), ours = count;
    for (int rank = 0; rank < CUP__RANKS_MOST; rank++)
        if (!cup__product_cublaslt_rank_refuses(r->c, &p, rank))
            entries[count++] = (entry){.rank = rank};
    if (count == ours)
        fail(r, "cuBLASLt");
    entry vendor = entries[ours];
    for (int i = 0; i < count; i++) {
        time_entry(r, &s, &entries[i], false);
        entries[i].middle = time_entry(r, &s, &entries[i], false);
    }
    qsort(entries, (size_t)count, sizeof *entries, by_middle);
    int final = count < FINAL ? count : FINAL, rounds = entries[0].middle > 1000 ? 3 : ROUNDS;
    for (int round = 0; round < rounds; round++) {
        vendor.us[round] = time_entry(r, &s, &vendor, false);
        for (int i = 0; i < final; i++)
            entries[i].us[round] = time_entry(r, &s, &entries[i], false);
    }
    for (int i = 0; i < final; i++)
        entries[i].middle = median(entries[i].us, rounds);
    qsort(entries, (size_t)final, sizeof *entries, by_middle);
    int best = 0;
    while (best < count - 1 && entries[best].rank >= 0)
        best++;
    time_entry(r, &s, &entries[best], false);
    double base = median(vendor.us, rounds);
    printf("%s %d %s %lldx%lldx%lld cublaslt %.2f best %.3f error %.2f:", layers[w->layer].name,
           w->tokens, pass_names[w->pass], (long long)s.m, (long long)s.n, (long long)s.k, base,
           base / entries[0].middle, compare(r, &s, r->y[0], r->y[1]));
    for (int i = 0; i < count; i++) {
        print_way(&entries[i]);
        if (i == final - 1)
            printf(" |");
    }
    if (w->pass == BY_WEIGHT)
        print_sums(r, &s, entries, count);
    printf("\n");
    fflush(stdout);
}

/* Layers at numbers of rows that no row of the table has. */
static int more_rows(row *to)
{
    static const int forward[] = {QKV2, OUT2, UP2, DOWN2, QKV8, OUT8, GATE8, DOWN8};
    int count = 0;
    for (int i = 0; i < COUNT(forward); i++)
        for (int tokens = 16; tokens <= 16384; tokens *= 2)
            to[count++] = (row){forward[i], tokens, FORWARD};
    for (int i = 0; i < 4; i++)
        for (int tokens = 1024; tokens <= 16384; tokens *= 4) {
            to[count++] = (row){forward[i], tokens, BY_X};
            to[count++] = (row){forward[i], tokens, BY_WEIGHT};
        }
    return count;
}

/* The largest error of a_sums, in units of the dtype's epsilon. */
static double compare_sums(rig *r, const shape *s)
{
    static uint16_t a[1032 * 520], got[520];
    static float line[520], sums[520];
    double want[520] = {0}, worst = 0;
    size_t count = (size_t)s->m;
    cup__device *d = r->c->device;
    if (d->calls->read(d, a, r->a, count * (size_t)s->k * 2) ||
        d->calls->read(d, got, r->bias, count * 2))
        fail(r, "reading");
    for (int64_t k = 0; k < s->k; k++) {
        cup__load_f32(line, a + k * s->m, CUP_BF16, s->m);
        for (size_t i = 0; i < count; i++)
            want[i] += (double)line[i];
    }
    cup__load_f32(sums, got, CUP_BF16, s->m);
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)sums[i] - want[i]) / (0x1p-7 * (fabs(want[i]) + 1));
        worst = error <= worst ? worst : error;
    }
    return worst;
}

static void check_plan(rig *r, const shape *s, const cup__wgmma_plan *plan, bool summing)
{
    cup__product p = product_of(r, s, 1);
    p.summing = summing;
    p.a_sums = summing ? r->bias : NULL;
    if (cup__wgmma_plan_refuses(&p, plan))
        return;
    for (int i = 0; i < 2; i++) /* the second finds the counters as the first left them */
        if (cup__product_wgmma_by(r->c, &p, plan) != CUP_OK)
            fail(r, "a plan");
    double error = compare(r, s, r->y[0], r->y[1]), sums = summing ? compare_sums(r, s) : 0;
    if (!(error <= 1.01) || !(sums <= 1.01)) {
        entry e = {.plan = *plan, .rank = -1};
        printf("WRONG %lldx%lldx%lld %c%c error %.2f sums %.2f:", (long long)s->m, (long long)s->n,
               (long long)s->k, s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', error, sums);
        print_way(&e);
        printf("\n");
        r->failures++;
    }
}

static void check_plans(rig *r)
{
    static const shape shapes[] = {
        {520, 1032, 1032, 1, NT, false, false, false, 1, CUP_BF16},
        {520, 1032, 1032, 1, NN, false, false, false, 1, CUP_BF16},
        {520, 1032, 1032, 1, TN, false, false, false, 1, CUP_BF16},
        {4104, 4104, 136, 1, NT, false, false, false, 1, CUP_BF16},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        prepare(r, &shapes[i]);
        cup__product p = product_of(r, &shapes[i], 0);
        cup__call call = fake_call(r);
        if (cup__product_cublaslt_refuses(r->c, &p) ||
            cup__product_cublaslt_by(&call, &p, 0) != CUP_OK)
            fail(r, "cuBLASLt");
        for (int j = 0; j < COUNT(plans); j++)
            for (int parts = 1; parts <= 4; parts += 3) {
                cup__wgmma_plan plan = plans[j];
                plan.parts = plan.cluster_k ? plan.cluster_k : parts;
                check_plan(r, &shapes[i], &plan, false);
                if (shapes[i].ta)
                    check_plan(r, &shapes[i], &plan, true);
            }
    }
    printf("%d wrong\n", r->failures);
}

/* What a profiler is to see. */
static void profile(rig *r)
{
    static const struct {
        shape s;
        cup__wgmma_plan plan[2];
    } jobs[] = {
        {{3072, 768, 32768, 1, TN, false, false, false, 1, CUP_BF16},
         {P(128, 160, 4, 2, 1), T(192, 192, 4, 1, 1)}},
        {{2048, 2048, 2048, 1, NT, false, false, false, 1, CUP_BF16},
         {C(128, 256, 4, 1, 1), P(128, 128, 6, 1, 1)}},
        {{1024, 1024, 1024, 1, NT, false, false, false, 1, CUP_BF16},
         {S(64, 128, 8, 1, 1), S(64, 128, 8, 2, 1)}},
        {{128, 6144, 4096, 1, NT, false, false, false, 1, CUP_BF16},
         {S(64, 96, 8, 1, 1), S(64, 96, 8, 2, 1)}},
    };
    for (int i = 0; i < COUNT(jobs); i++) {
        prepare(r, &jobs[i].s);
        entry e = {.rank = 0};
        cup__product p = product_of(r, &jobs[i].s, 0);
        if (!cup__product_cublaslt_refuses(r->c, &p))
            time_entry(r, &jobs[i].s, &e, false);
        for (int j = 0; j < 2; j++) {
            e = (entry){.plan = jobs[i].plan[j], .rank = -1};
            e.plan.parts = e.plan.consumers == 3 ? 2 : 1;
            time_entry(r, &jobs[i].s, &e, false);
        }
    }
}

/* Notes the kernels of all plans on a GPU that is not there, and compiles them to a pack. */
static int write_pack(const char *path, bool menu_only)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup__error error = {0};
    for (int i = 0; i < COUNT(plans) * 8; i++) { /* three layouts, and sums beside the third */
        cup__wgmma_plan plan = plans[i / 8];
        cup__product p = {.dtype = CUP_BF16, .y_dtype = CUP_BF16, .factor = 1, .m = 64, .n = 64,
                          .k = 512, .batch_count = 1};
        bool ta = i % 4 >= 2, tb = i % 4 == 0;
        p.a = (cup__matrix){.row = ta ? 1 : 512, .column = ta ? 64 : 1};
        p.b = (cup__matrix){.row = tb ? 1 : 64, .column = tb ? 512 : 1};
        p.y = (cup__matrix){.row = 64, .column = 1};
        p.summing = i % 4 == 3;
        plan.parts = plan.cluster_k ? plan.cluster_k : 1 + i / 4 % 2;
        if (menu_only && !cup__wgmma_is_on_menu(&plan))
            continue;
        if (cup_error(c) == CUP_OK && !cup__wgmma_plan_refuses(&p, &plan))
            cup__product_wgmma_by(c, &p, &plan);
    }
    int count, packed = 0;
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    if (cup_error(c) == CUP_OK &&
        cup__kernels_prepare(&error, "sm_90a", requests, count, 0, NULL, NULL) == CUP_OK)
        cup__kernels_pack(&error, path, &packed);
    printf("%d kernels: %s%s\n", packed, cup_error_text(c), error.text);
    int code = cup_error(c) != CUP_OK || error.status != CUP_OK;
    cup_context_free(c);
    return code;
}

int main(int argc, char **argv)
{
    static row more[256];
    const char *mode = argc > 1 ? argv[1] : "time";
    rig r;
    if (argc > 2 && !strcmp(mode, "pack"))
        return write_pack(argv[2], argc > 3);
    int own = COUNT(rows), count = own + more_rows(more);
    int first = argc > 2 ? atoi(argv[2]) : 0, last = argc > 3 ? atoi(argv[3]) : count;
    bool gradients = !strcmp(mode, "gradients"), timing = gradients || !strcmp(mode, "time");
    open_rig(&r, (size_t)(timing ? 4000 : 256) << 20);
    if (!strcmp(mode, "check"))
        check_plans(&r);
    else if (!strcmp(mode, "profile"))
        profile(&r);
    for (int i = first; timing && i < last && i < count; i++) {
        const row *w = i < own ? &rows[i] : &more[i - own];
        if (!gradients || w->pass == BY_WEIGHT)
            time_plans(&r, w);
    }
    return close_rig(&r);
}
