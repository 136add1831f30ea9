/* Times the plans of linear_stream.cu beside rows and cuBLASLt, interleaved call by call, and a
 * copy that moves as many bytes. */
#include "matmul_rig.h"
#include "cuda/dry.h"
#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/linear_codes.h"
#include "ops/product_wgmma.h"
#include "ops/rows_packed.h"

#define WAYS 64

typedef struct way {
    char name[64];
    int kind; /* 0: a plan, 1: rows, 2: cuBLASLt, 3: a copy, 4: nothing, 5: a plan, its code warm */
    cup__stream_plan plan;
} way;

typedef struct problem {
    int64_t m, n, k;
    int bits, count;
    way ways[WAYS];
} problem;

static cup_status run_plan(rig *r, cup_context *c, const problem *q, const cup__stream_plan *plan,
                           int64_t n)
{
    product_call product = {.a = r->a, .b = r->b, .y = r->y[1], .m = q->m, .n = n, .k = q->k};
    product.a_mn = q->k;
    product.b_mn = q->k * q->bits / 8;
    product.y_row = q->n;
    product.batch_count = 1;
    packed_call w = {.weight = r->b, .scale = r->pre[0], .n = n, .k = q->k};
    w.zero = q->bits == 4 ? (void *)r->pre[1] : NULL;
    w.groups = q->k / 128;
    w.group = 128;
    return cup__rows_stream(c, CUP_BF16, q->bits, CUP_BF16, 0, &product, &w, plan);
}

static void add(problem *q, int kind, const char *name, int cluster, int warps, int tiles,
                int blocks)
{
    way *w = &q->ways[q->count++];
    w->kind = kind;
    int64_t line = q->k * q->bits / 8, part = (line + cluster - 1) / cluster;
    int pieces = (int)((part + 64 * warps - 1) / (64 * warps));
    int clusters = 132 * blocks / cluster;
    if (cluster > 2)
        clusters -= clusters % (8 / cluster);
    w->plan = (cup__stream_plan){cluster, clusters, warps, pieces, tiles, blocks, false};
    w->plan.x_shared = q->m > 32 || (q->m > 16 && q->bits < 16);
    if (name)
        snprintf(w->name, sizeof w->name, "%s", name);
    else
        snprintf(w->name, sizeof w->name, "%sc%d w%d p%d t%d b%d", kind == 5 ? "warm " : "",
                 cluster, warps, pieces, tiles, blocks);
}

static double time_once(rig *r, const problem *q, const way *w)
{
    double milliseconds = 0;
    const cup__device_calls *calls = r->c->device->calls;
    calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup_status status = CUP_OK;
    if (w->kind == 5)
        status = run_plan(r, r->c, q, &w->plan, 16 * 132);
    shape s = {q->m, q->n, q->k, 1, NT, false, false, false, 1, CUP_BF16};
    cup__product p = product_of(r, &s, 0);
    cup__call call = fake_call(r);
    cup__timer_start(r->timer);
    size_t bytes = (size_t)(q->n * q->k * q->bits / 8);
    if (w->kind == 0 || w->kind == 5)
        status = run_plan(r, r->c, q, &w->plan, q->n);
    else if (w->kind == 1)
        status = cup__product_rows(&call, &p);
    else if (w->kind == 2)
        status = cup__product_cublaslt(&call, &p);
    else if (w->kind == 3)
        calls->copy(r->c->device, r->flush, r->b, bytes / 2);
    if (cup__timer_stop(r->timer, &milliseconds) != CUP_OK || status != CUP_OK)
        fail(r, w->name);
    return milliseconds * 1000;
}

static void fill_problem(problem *q)
{
    add(q, 4, "nothing", 1, 8, 1, 1);
    add(q, 3, "copy", 1, 8, 1, 1);
    if (q->bits == 16) {
        if (q->m <= 8)
            add(q, 1, "rows", 1, 8, 1, 1);
        add(q, 2, "cublaslt", 1, 8, 1, 1);
    }
    int wide = q->bits == 16 ? 1 : q->bits == 8 ? 2 : q->m <= 8 ? 4 : 2;
    if (q->m > 32 || (q->m > 16 && q->bits < 16)) {
        add(q, 0, NULL, 8, 8, 1, 1);
        if (q->bits < 16) {
            add(q, 0, NULL, 8, 4, 1, 1);
            add(q, 0, NULL, 8, 4, 2, 1);
            add(q, 0, NULL, 4, 8, 1, 1);
        }
        return;
    }
    bool few = q->m <= 16, deep = q->k > 8192;
    for (int cluster = deep || !few ? 4 : 1; cluster <= 8; cluster *= 2)
        if (q->bits == 16 || !deep) {
            add(q, 0, NULL, cluster, 8, wide, 1);
            if (cluster > 1 && few)
                add(q, 0, NULL, cluster, 8, wide, 2);
        }
    add(q, 0, NULL, 4, 8, 2 * wide > 4 ? 4 : 2 * wide, 1);
    add(q, 5, NULL, 4, 8, wide, 1);
    if (few && !deep) {
        add(q, 0, NULL, 4, 4, wide, 1);
        add(q, 0, NULL, 4, 4, wide, 2);
        add(q, 0, NULL, 4, q->bits == 4 ? 8 : 16, wide, 1);
        add(q, 0, NULL, 2, 16, wide, 1);
        if (wide > 1)
            add(q, 0, NULL, 4, 8, wide / 2, 1);
    }
}

static problem problems[] = {
    {1, 4096, 4096, 16, 0, {{{0}, 0, {0}}}},   {16, 4096, 4096, 16, 0, {{{0}, 0, {0}}}},
    {1, 4096, 4096, 8, 0, {{{0}, 0, {0}}}},    {16, 4096, 4096, 8, 0, {{{0}, 0, {0}}}},
    {1, 4096, 4096, 4, 0, {{{0}, 0, {0}}}},    {16, 4096, 4096, 4, 0, {{{0}, 0, {0}}}},
    {32, 4096, 4096, 16, 0, {{{0}, 0, {0}}}},  {16, 14336, 4096, 16, 0, {{{0}, 0, {0}}}},
    {8, 4096, 14336, 16, 0, {{{0}, 0, {0}}}},  {1, 1024, 1024, 16, 0, {{{0}, 0, {0}}}},
    {1, 14336, 4096, 4, 0, {{{0}, 0, {0}}}},   {64, 4096, 4096, 16, 0, {{{0}, 0, {0}}}},
    {64, 4096, 4096, 8, 0, {{{0}, 0, {0}}}},   {64, 4096, 4096, 4, 0, {{{0}, 0, {0}}}},
    {32, 4096, 4096, 4, 0, {{{0}, 0, {0}}}},
};

/* Compiles all on all cores. */
static void prepare_all(void)
{
    cup_context *c = cup__context_dry("sm_90a");
    rig dry = {.c = c, .a = (char *)4096, .b = (char *)4096, .y = {(char *)4096, (char *)4096},
               .pre = {(char *)4096, (char *)4096}};
    for (int i = 0; i < COUNT(problems); i++)
        for (int j = 0; j < problems[i].count; j++) {
            way *w = &problems[i].ways[j];
            if (w->kind == 0 || w->kind == 5)
                run_plan(&dry, c, &problems[i], &w->plan, problems[i].n);
            if (w->kind == 5)
                run_plan(&dry, c, &problems[i], &w->plan, 16 * 132);
        }
    int count = 0;
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    cup__error error = {0};
    cup__kernels_prepare(&error, "sm_90a", requests, count, 0, NULL, NULL);
    printf("%d kernels %s %s\n", count, error.text, cup_error_text(c));
    fflush(stdout);
    cup_context_free(c);
}

/* linear_int8 and linear_int4 of many rows: the cuts of linear_codes_sm90.cu, and the other
 * implementations. */
typedef struct codes_way {
    char name[32];
    int tokens, parts;
    const cup__impl *impl;
} codes_way;

static cup_tensor *tensor_of(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns)
{
    cup__shape sizes = {.dtype = dtype, .ndim = 2, .size = {rows, columns}};
    return cup__tensor_make(c, &sizes, "operand");
}

static int codes_ways(const cup__call *call, codes_way *ways)
{
    int count = 0;
    for (int parts = 1; parts <= 4; parts *= 2)
        for (int tokens = 64; tokens <= (parts > 1 ? 128 : 256); tokens += 64)
            if (parts == 1 || tokens != 192) {
                codes_way *w = &ways[count++];
                *w = (codes_way){.tokens = tokens, .parts = parts};
                snprintf(w->name, sizeof w->name, "tokens %d parts %d", tokens, parts);
            }
    for (const cup__impl *i = call->op->impls; i->name; i++)
        if (i->place == CUP__CUDA && !(i->refuses && i->refuses(call))) {
            codes_way *w = &ways[count++];
            *w = (codes_way){.impl = i};
            snprintf(w->name, sizeof w->name, "%s", i->name);
        }
    return count;
}

static cup_status run_codes(cup__call *call, const codes_way *w)
{
    return w->impl ? cup__call_run(call, w->impl) : cup__linear_codes_by(call, w->tokens, w->parts);
}

static void begin_codes(cup_context *c, cup__call *call, cup_tensor **in, int bits, int64_t m,
                        int64_t n, int64_t k)
{
    in[0] = tensor_of(c, CUP_BF16, m, k);
    in[1] = tensor_of(c, bits == 8 ? CUP_I8 : CUP_U8, n, k * bits / 8);
    in[2] = tensor_of(c, CUP_BF16, n, k / 128);
    in[3] = bits == 8 ? NULL : tensor_of(c, CUP_U8, n, k / 128);
    in[4] = NULL;
    const cup__row *row = cup__row_find(bits == 8 ? "linear_int8" : "linear_int4");
    cup__call_begin(call, c, row, in, bits == 8 ? 4 : 5, NULL);
    cup__call_allocate(call);
}

static void codes_shape(rig *r, int bits, int64_t m, int64_t n, int64_t k)
{
    static double us[32][32];
    codes_way ways[32];
    cup__call call;
    cup_tensor *in[5];
    cup_scope_open(r->c);
    begin_codes(r->c, &call, in, bits, m, n, k);
    make_noise(r, CUP_BF16);
    for (int i = 0; i < 4; i++)
        if (in[i])
            fill(r, in[i]->data, in[i]->count * cup_dtype_size(in[i]->dtype) / 2, 777 * i);
    int count = codes_ways(&call, ways);
    printf("%lldx%lldx%lld %d bits\n", (long long)m, (long long)n, (long long)k, bits);
    double error[32] = {0};
    shape s = {m, n, k, 1, NT, false, false, false, 1, CUP_BF16};
    for (int j = count - 1; j >= 0; j--) {
        if (run_codes(&call, &ways[j]) != CUP_OK)
            fail(r, ways[j].name);
        r->c->device->calls->fill(r->c->device, r->y[j != count - 1] + m * n * 2, 0xff, 512);
        r->c->device->calls->copy(r->c->device, r->y[j != count - 1], call.out[0]->data,
                                  (size_t)(m * n * 2));
        error[j] = compare(r, &s, r->y[0], r->y[1]);
    }
    for (int round = -2; round < 11; round++)
        for (int j = 0; j < count; j++) {
            double ms = 0;
            r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
            cup__timer_start(r->timer);
            cup_status status = run_codes(&call, &ways[j]);
            if (cup__timer_stop(r->timer, &ms) != CUP_OK || status != CUP_OK)
                fail(r, ways[j].name);
            us[j][round < 0 ? 0 : round] = ms * 1000;
        }
    for (int j = 0; j < count; j++)
        printf("  %-28s %7.2f  error %.2f\n", ways[j].name, median(us[j], 11), error[j]);
    fflush(stdout);
    cup_scope_close(r->c);
}

static const int64_t codes_rows[] = {64, 128, 256, 512, 1024, 4096};

static void prepare_codes(void)
{
    cup_context *c = cup__context_dry("sm_90a");
    for (int bits = 8; bits >= 4; bits -= 4)
        for (int i = 0; i < COUNT(codes_rows); i++) {
            codes_way ways[32];
            cup__call call;
            cup_tensor *in[5];
            begin_codes(c, &call, in, bits, codes_rows[i], 4096, 4096);
            int count = codes_ways(&call, ways);
            for (int j = 0; j < count; j++)
                run_codes(&call, &ways[j]);
        }
    int count = 0;
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    cup__error error = {0};
    cup__kernels_prepare(&error, "sm_90a", requests, count, 0, NULL, NULL);
    printf("%d kernels %s %s\n", count, error.text, cup_error_text(c));
    fflush(stdout);
    cup_context_free(c);
}

static int sweep_codes(void)
{
    rig r;
    prepare_codes();
    open_rig(&r, (size_t)256 << 20);
    for (int bits = 8; bits >= 4; bits -= 4)
        for (int i = 0; i < COUNT(codes_rows); i++)
            codes_shape(&r, bits, codes_rows[i], 4096, 4096);
    return close_rig(&r);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "codes"))
        return sweep_codes();
    if (argc > 1 && !strcmp(argv[1], "prepare_codes")) {
        prepare_codes();
        return 0;
    }
    rig r;
    int rounds = 15;
    int only = argc > 1 ? atoi(argv[1]) : -1;
    for (int i = 0; i < COUNT(problems); i++)
        fill_problem(&problems[i]);
    prepare_all();
    if (only == -2)
        return 0;
    open_rig(&r, (size_t)256 << 20);
    for (int i = 0; i < COUNT(problems); i++) {
        problem *q = &problems[i];
        static double us[WAYS][32];
        double error[WAYS] = {0};
        shape s = {q->m, q->n, q->k, 1, NT, false, false, false, 1, CUP_BF16};
        prepare(&r, &s);
        cup__product p = product_of(&r, &s, 0);
        cup__call call = fake_call(&r);
        if (cup__product_cublaslt_refuses(r.c, &p))
            fail(&r, "cublaslt");
        fill(&r, r.pre[0], 1 << 22, 5);
        fill(&r, r.pre[1], 1 << 22, 5);
        if (q->bits == 16) {
            if (cup__product_plain(&call, &p) != CUP_OK)
                fail(&r, "plain");
            for (int j = 0; j < q->count; j++)
                if (q->ways[j].kind == 0) {
                    if (run_plan(&r, r.c, q, &q->ways[j].plan, q->n) != CUP_OK)
                        fail(&r, q->ways[j].name);
                    error[j] = compare(&r, &s, r.y[0], r.y[1]);
                }
        }
        for (int round = -2; round < rounds; round++)
            for (int j = 0; j < q->count; j++)
                us[j][round < 0 ? 0 : round] = time_once(&r, q, &q->ways[j]);
        printf("%lldx%lldx%lld %d bits\n", (long long)q->m, (long long)q->n, (long long)q->k,
               q->bits);
        for (int j = 0; j < q->count; j++)
            printf("  %-28s %6.2f  error %.2f\n", q->ways[j].name, median(us[j], rounds), error[j]);
        fflush(stdout);
    }
    return close_rig(&r);
}
