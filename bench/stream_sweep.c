/* Times the plans of weight_only_stream.cu beside rows and cuBLASLt, interleaved call by call,
 * and a copy that moves as many bytes. */
#include "matmul_rig.h"
#include "cuda/dry.h"
#include "kernels/packed_call.cuh"
#include "kernels/product_call.cuh"
#include "ops/lowbit/weight_only_wgmma.h"
#include "ops/matmul/wgmma.h"
#include "ops/lowbit/weight_only_skinny.h"

#define WAYS 64

typedef struct way {
    char name[64];
    int kind; /* 0: a plan, 1: rows, 2: cuBLASLt, 3: a copy, 4: nothing, 5: a plan, its code warm */
    cup__stream_plan plan;
} way;

typedef struct problem {
    int64_t m, n, k;
    int bits, count, group;
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
    w.group = q->group ? q->group : 128;
    w.groups = q->k / w.group;
    return cup__rows_stream(c, CUP_BF16, q->bits, CUP_BF16, 0, &product, &w, plan);
}

static void add(problem *q, int kind, const char *name, int cluster, int warps, int pieces,
                bool x_shared, int blocks, int memory)
{
    way *w = &q->ways[q->count++];
    w->kind = kind;
    w->plan = (cup__stream_plan){cluster, 132 * blocks / cluster, warps, pieces, blocks, x_shared,
                                 memory << 10};
    if (name)
        snprintf(w->name, sizeof w->name, "%s", name);
    else
        snprintf(w->name, sizeof w->name, "%sc%d w%d p%d%s b%d %d", kind == 5 ? "warm " : "",
                 cluster, warps, pieces, x_shared ? " xs" : "", blocks, memory);
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
    add(q, 4, "nothing", 1, 8, 1, 0, 1, 0);
    add(q, 3, "copy", 1, 8, 1, 0, 1, 0);
    if (q->bits == 16) {
        if (q->m <= 8)
            add(q, 1, "rows", 1, 8, 1, 0, 1, 0);
        add(q, 2, "cublaslt", 1, 8, 1, 0, 1, 0);
    }
    add(q, 0, NULL, 1, 8, 2, false, 1, 0);
    add(q, 0, NULL, 1, 8, 4, false, 1, 0);
    add(q, 0, NULL, 2, 8, 2, false, 1, 0);
    add(q, 0, NULL, 2, 8, 2, true, 1, 0);
    add(q, 0, NULL, 1, 4, 2, true, 1, 0);
    if (q->k > 8192 || q->n > 8192 || q->m > 16)
        return;
    add(q, 0, NULL, 1, 8, 1, false, 1, 0);
    add(q, 0, NULL, 1, 8, 2, true, 1, 0);
    add(q, 0, NULL, 1, 8, 2, false, 1, 160);
    add(q, 0, NULL, 1, 8, 2, false, 1, 99);
    add(q, 0, NULL, 2, 8, 4, false, 1, 0);
    add(q, 0, NULL, 2, 8, 2, false, 2, 0);
    add(q, 0, NULL, 2, 8, 2, false, 1, 99);
    add(q, 0, NULL, 1, 4, 4, true, 2, 0);
    add(q, 5, NULL, 1, 8, 2, false, 1, 0);
    add(q, 5, NULL, 2, 8, 2, false, 1, 0);
}

static problem problems[] = {
    {1, 4096, 4096, 16, 0, 0, {{{0}, 0, {0}}}},   {16, 4096, 4096, 16, 0, 0, {{{0}, 0, {0}}}},
    {1, 4096, 4096, 8, 0, 0, {{{0}, 0, {0}}}},    {16, 4096, 4096, 8, 0, 0, {{{0}, 0, {0}}}},
    {1, 4096, 4096, 4, 0, 0, {{{0}, 0, {0}}}},    {16, 4096, 4096, 4, 0, 0, {{{0}, 0, {0}}}},
    {32, 4096, 4096, 16, 0, 0, {{{0}, 0, {0}}}},  {16, 14336, 4096, 16, 0, 0, {{{0}, 0, {0}}}},
    {8, 4096, 14336, 16, 0, 0, {{{0}, 0, {0}}}},  {1, 1024, 1024, 16, 0, 0, {{{0}, 0, {0}}}},
    {1, 14336, 4096, 4, 0, 0, {{{0}, 0, {0}}}},   {64, 4096, 4096, 16, 0, 0, {{{0}, 0, {0}}}},
    {64, 4096, 4096, 8, 0, 0, {{{0}, 0, {0}}}},   {64, 4096, 4096, 4, 0, 0, {{{0}, 0, {0}}}},
    {32, 4096, 4096, 4, 0, 0, {{{0}, 0, {0}}}},
};

/* Odd shapes, whose results are compared with those of other kernels. */
static const int64_t odd[][4] = {{1, 16, 64, 64},      {5, 70, 1024, 128},  {8, 130, 2048, 256},
                                 {9, 33, 4096, 128},   {16, 260, 1000, 8},  {17, 300, 1024, 64},
                                 {40, 100, 2048, 128}, {64, 520, 4096, 32}, {3, 2000, 512, 512},
                                 {2, 48, 14336, 128},  {12, 96, 14336, 128}};
static const int64_t odd_n[][4] = {{1, 72, 64, 1},    {9, 264, 1032, 1},   {16, 1304, 520, 1},
                                   {30, 136, 2048, 1}, {5, 4096, 1024, 1}, {7, 200, 264, 4},
                                   {3, 520, 14336, 1}, {32, 80, 4096, 2}};
#define ODD_PLANS 3

static bool odd_problem(int i, int bits, problem *q)
{
    memset(q, 0, sizeof *q);
    q->m = odd[i][0], q->n = odd[i][1], q->k = odd[i][2], q->bits = bits, q->group = (int)odd[i][3];
    return q->k * bits % 128 == 0 && (bits == 16 || q->group * bits % 128 == 0);
}

static cup__stream_plan odd_plan(const problem *q, int which)
{
    product_call product = {.m = q->m, .n = q->n, .k = q->k, .batch_count = 1};
    cup__stream_plan plan;
    cup__stream_choose(&product, q->bits, 132, &plan);
    if (which == 1)
        plan = (cup__stream_plan){2, 3, 8, 1, 1, true, 0};
    else if (which == 2)
        plan = (cup__stream_plan){1, 2, 4, 2, 1, false, 60000};
    return plan;
}

static cup_status run_reference(rig *r, const problem *q)
{
    shape s = {q->m, q->n, q->k, 1, NT, false, false, false, 1, CUP_BF16};
    cup__product p = product_of(r, &s, 0);
    cup__call call = fake_call(r);
    if (q->bits == 16)
        return cup__product_plain(&call, &p);
    product_call product = {.a = r->a, .b = r->b, .y = r->y[0], .m = q->m, .n = q->n, .k = q->k};
    product.a_mn = q->k;
    product.b_mn = q->k * q->bits / 8;
    product.y_row = q->n;
    product.batch_count = 1;
    packed_call w = {.weight = r->b, .scale = r->pre[0], .n = q->n, .k = q->k};
    w.zero = q->bits == 4 ? (void *)r->pre[1] : NULL;
    w.group = q->group;
    w.groups = q->k / w.group;
    return cup__rows_packed(r->c, CUP_BF16, q->bits, CUP_BF16, 0, &product, &w);
}

static void check_odd(rig *r, bool dry)
{
    for (int bits = 16; bits >= 4; bits /= 2)
        for (int i = 0; i < COUNT(odd); i++) {
            problem q;
            if (!odd_problem(i, bits, &q))
                continue;
            shape s = {q.m, q.n, q.k, 1, NT, false, false, false, 1, CUP_BF16};
            if (!dry) {
                prepare(r, &s);
                fill(r, r->pre[0], 1 << 20, 5);
                fill(r, r->pre[1], 1 << 20, 5);
            }
            if (run_reference(r, &q) != CUP_OK)
                fail(r, "reference");
            for (int which = 0; which < ODD_PLANS; which++) {
                cup__stream_plan plan = odd_plan(&q, which);
                if (run_plan(r, r->c, &q, &plan, q.n) != CUP_OK)
                    fail(r, "plan");
                if (!dry)
                    printf("%d bits %lldx%lldx%lld plan %d: error %.2f\n", bits, (long long)q.m,
                           (long long)q.n, (long long)q.k, which, compare(r, &s, r->y[0], r->y[1]));
            }
        }
    for (int i = 0; i < COUNT(odd_n); i++) {
        shape s = {odd_n[i][0], odd_n[i][1], odd_n[i][2], odd_n[i][3], NN, false, false, false, 1,
                   CUP_BF16};
        if (!dry)
            prepare(r, &s);
        cup__product p = product_of(r, &s, 0), other = product_of(r, &s, 1);
        cup__call call = fake_call(r);
        if (cup__product_plain(&call, &p) != CUP_OK ||
            cup__product_stream_refuses(r->c, &other) ||
            cup__product_stream(&call, &other) != CUP_OK)
            fail(r, "NN");
        if (!dry)
            printf("NN %lldx%lldx%lld: error %.2f\n", (long long)s.m, (long long)s.n,
                   (long long)s.k, compare(r, &s, r->y[0], r->y[1]));
    }
    fflush(stdout);
}

/* Products by their implementations. */
static const shape products[] = {
    {1, 4096, 4096, 1, NN, false, false, false, 1, CUP_BF16},
    {16, 4096, 4096, 1, NN, false, false, false, 1, CUP_BF16},
    {8, 14336, 4096, 1, NN, false, false, false, 1, CUP_BF16},
    {1, 4096, 14336, 1, NN, false, false, false, 1, CUP_BF16},
    {1, 1024, 4096, 32, NT, false, false, false, 1, CUP_BF16},
    {8, 4096, 1024, 8, NT, false, false, false, 1, CUP_BF16},
    {4, 1024, 4096, 32, NN, false, false, false, 1, CUP_BF16},
    {4, 4096, 4096, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 1024, 1024, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 4096, 14336, 1, NT, false, false, false, 1, CUP_BF16},
    {1, 128256, 4096, 1, NT, false, false, false, 1, CUP_BF16},
};

static const struct {
    const char *name;
    cup__product_refuses refuses;
    cup_status (*run)(cup__call *call, const cup__product *p);
} product_ways[] = {{"stream", cup__product_stream_refuses, cup__product_stream},
                    {"rows", cup__product_rows_refuses, cup__product_rows},
                    {"cublaslt", cup__product_cublaslt_refuses, cup__product_cublaslt},
                    {"wgmma", cup__product_wgmma_refuses, cup__product_wgmma}};

static void time_products(rig *r, bool dry)
{
    for (int i = 0; i < COUNT(products); i++) {
        static double us[4][32];
        const shape *s = &products[i];
        if (!dry)
            prepare(r, s);
        cup__product p = product_of(r, s, 1);
        for (int round = -2; round < (dry ? -1 : 15); round++)
            for (int j = 0; j < COUNT(product_ways); j++) {
                if (dry && j == 2)
                    continue;
                cup__call call = fake_call(r);
                double ms = 0;
                if (product_ways[j].refuses(r->c, &p)) {
                    us[j][round < 0 ? 0 : round] = 0;
                    continue;
                }
                if (dry) {
                    product_ways[j].run(&call, &p);
                    continue;
                }
                r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
                cup__timer_start(r->timer);
                cup_status status = product_ways[j].run(&call, &p);
                if (cup__timer_stop(r->timer, &ms) != CUP_OK || status != CUP_OK)
                    fail(r, product_ways[j].name);
                us[j][round < 0 ? 0 : round] = ms * 1000;
            }
        if (dry)
            continue;
        printf("%lldx%lldx%lld batch %lld N%c:", (long long)s->m, (long long)s->n, (long long)s->k,
               (long long)s->batch, s->tb ? 'T' : 'N');
        for (int j = 0; j < COUNT(product_ways); j++)
            printf(" %s %.2f", product_ways[j].name, median(us[j], 15));
        printf("\n");
        fflush(stdout);
    }
}

/* linear_int8 and linear_int4 of many rows: the cuts of weight_only_wgmma.cu, and the other
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
        error[j] = m > 512 ? 0 : compare(r, &s, r->y[0], r->y[1]);
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

/* Compiles all that is run here into a pack. */
static int pack(const char *path)
{
    cup_context *c = cup__context_dry("sm_90a");
    char *some = (char *)4096;
    rig dry = {.c = c, .gpu = cup__cuda_of(c->device), .a = some, .b = some, .y = {some, some},
               .pre = {some, some}};
    for (int i = 0; i < COUNT(problems); i++)
        for (int j = 0; j < problems[i].count; j++) {
            way *w = &problems[i].ways[j];
            if (w->kind == 0 || w->kind == 5)
                run_plan(&dry, c, &problems[i], &w->plan, problems[i].n);
            if (w->kind == 5)
                run_plan(&dry, c, &problems[i], &w->plan, 16 * 132);
            shape s = {problems[i].m, problems[i].n, problems[i].k, 1, NT, false, false, false, 1,
                       CUP_BF16};
            cup__product p = product_of(&dry, &s, 0);
            cup__call call = fake_call(&dry);
            if (w->kind == 1)
                cup__product_rows(&call, &p);
            cup__product_plain(&call, &p);
        }
    check_odd(&dry, true);
    time_products(&dry, true);
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
    cup__kernels_pack(&error, path, &count);
    printf("%d kernels %s %s\n", count, error.text, cup_error_text(c));
    cup_context_free(c);
    return error.status != CUP_OK;
}

int main(int argc, char **argv)
{
    rig r;
    int rounds = 21;
    for (int i = 0; i < COUNT(problems); i++)
        fill_problem(&problems[i]);
    if (argc > 1)
        return pack(argv[1]);
    open_rig(&r, (size_t)1100 << 20);
    check_odd(&r, false);
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
    time_products(&r, false);
    for (int bits = 8; bits >= 4; bits -= 4)
        for (int i = 0; i < COUNT(codes_rows); i++)
            codes_shape(&r, bits, codes_rows[i], 4096, 4096);
    return close_rig(&r);
}
