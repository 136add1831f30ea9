/* Products of bf16 as models make them, GPT-2 and Llama 3 of 8 and 70 billion weights, forward and
 * both gradients, from one token to 32 thousand: what the dispatcher chooses and our own kernel
 * against cuBLASLt, run in turn on random data with the L2 cache flushed. Prints each ratio of
 * cuBLASLt's time by ours with the difference of the results, and the geometric mean.
 * `matmul_models warm I N` compiles every N-th kernel first, so that several processes can fill the
 * kernel cache together. */
#define COMPARED ((size_t)1 << 21)
#include "matmul_rig.h"
#include "matmul_rows.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/wgmma.h"

/* The implementations in the dispatcher's order. */
typedef struct way {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
} way;

static const way ways[] = {
    {"rows", cup__product_rows_refuses, cup__product_rows},
    {"wgmma_best", cup__product_wgmma_best_refuses, cup__product_wgmma},
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

static void warm(rig *r, int part, int of)
{
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
    if (compiling)
        warm(&r, atoi(argv[2]), atoi(argv[3]));
    else
        time_rows(&r);
    return close_rig(&r);
}
