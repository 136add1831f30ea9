/* Tries the attention kernels and their plans on this card. `attention_sweep check` holds them
 * against the plain kernels on shapes chosen to break them; `attention_sweep time [N]` times them,
 * from shape N on, interleaved, on random data with the L2 cache flushed; `attention_sweep warm I
 * N` only compiles every N-th kernel, so that several processes can fill the kernel cache together.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cuda/gpu.h"
#include "ops/attention/attention_wgmma.h"
#include "dispatch/attributes.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define FLUSH ((size_t)256 << 20)
#define ROUNDS 9
#define WATCHDOG 2000000000

typedef struct shape {
    int64_t batch, heads, kv_heads, queries, keys, size;
    bool causal;
    double dropout;
    int dtype;
    double forward_us, backward_us; /* of the best peer, in anchors/h200.tsv; 0: unknown */
} shape;

/* The results in their order: o, lse, dq, dk, dv. */
#define RESULTS 5

typedef struct rig {
    cup_context *c;
    cup_tensor *q, *k, *v, *d_o, *result[RESULTS];
    void *want[RESULTS]; /* what the plain kernels say */
    void *flush;
    int64_t watchdog; /* nanoseconds after which a wait in a kernel ends in a trap */
    cup__timer *timer;
    int runs, failures;
} rig;

static void fail(rig *r, const char *what)
{
    printf("FAILED %s: %s\n", what, cup_error_text(r->c));
    fflush(stdout);
    exit(1);
}

/* Plans of the forward kernel for heads of up to 64, 128, 192 and 256, and of both backward
 * kernels. */
typedef struct named_plan {
    int size;
    cup__hopper_plan plan;
} named_plan;

#define F(size, warpgroups, step, stages, order)                                                   \
    {                                                                                              \
        size,                                                                                      \
        {                                                                                          \
            warpgroups, step, stages, 1, order, 0                                                  \
        }                                                                                          \
    }
#define B(size, step, stages) F(size, 2, step, stages, 0)
static const named_plan forward_plans[] = {
    F(64, 2, 96, 2, 1),   F(64, 2, 112, 2, 1),  F(64, 2, 128, 2, 1),  F(64, 2, 128, 2, 0),
    F(64, 2, 128, 3, 1),  F(64, 2, 160, 2, 1),  F(64, 2, 176, 2, 1),  F(64, 3, 96, 2, 1),
    F(64, 3, 128, 2, 1),  F(64, 3, 128, 2, 0),  F(64, 3, 128, 3, 1),  F(128, 2, 64, 3, 1),
    F(128, 2, 96, 2, 1),  F(128, 2, 112, 2, 1), F(128, 2, 128, 2, 1), F(128, 2, 128, 2, 0),
    F(128, 2, 144, 2, 1), F(128, 2, 160, 2, 1), F(128, 2, 176, 2, 1), F(128, 2, 176, 2, 0),
    F(192, 2, 64, 2, 1),  F(192, 2, 96, 2, 1),  F(192, 2, 96, 2, 0),  F(256, 2, 48, 2, 1),
    F(256, 2, 80, 2, 1),  F(256, 2, 64, 2, 0),
};
static const named_plan queries_plans[] = {
    B(64, 64, 2),  B(64, 64, 4),  B(64, 96, 3),  B(64, 128, 2),
    B(64, 128, 3), B(128, 64, 2), B(128, 80, 2), B(128, 96, 2),
};
static const named_plan keys_plans[] = {
    B(64, 64, 2),  B(64, 64, 3),  B(64, 64, 4),  B(64, 32, 4),
    B(128, 64, 2), B(128, 64, 3), B(128, 32, 4),
};

static int64_t padded(const shape *s)
{
    return (s->size + 63) / 64 * 64;
}

/* Dropout takes registers that some of the larger plans do not have. */
static bool suits(const shape *s, const named_plan *n, cup__hopper_kernel kernel)
{
    int64_t most = kernel == CUP__HOPPER_FORWARD   ? (int64_t[]){128, 112, 64, 48}[n->size / 64 - 1]
                   : kernel == CUP__HOPPER_QUERIES ? (n->size == 64 ? 128 : 64)
                                                   : (n->size == 64 ? 64 : 32);
    if (n->size != padded(s) ||
        (s->dropout > 0 && (n->plan.step > most || n->plan.warpgroups == 3)))
        return false;
    return cup__hopper_bytes(kernel, &n->plan, n->size) <= 232448;
}

static cup_tensor *tensor(rig *r, int dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    cup_tensor *t = cup_tensor_new(r->c, (cup_dtype)dtype, 4, (int64_t[]){a, b, c, d});
    if (!t)
        fail(r, "allocating");
    return t;
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

/* Random elements: a block of them made on the host, copied to fill the tensor. */
static void fill(rig *r, cup_tensor *t, uint64_t seed)
{
    int64_t count = t->count < (1 << 21) ? t->count : 1 << 21;
    uint16_t *host = malloc((size_t)count * 2);
    for (int64_t i = 0; host && i < count; i++) {
        float v = (float)normal(&seed);
        host[i] = t->dtype == CUP_F16 ? cup__to_f16(v) : cup__to_bf16(v);
    }
    cup__device *d = r->c->device;
    if (!host || d->calls->write(d, t->data, host, (size_t)count * 2) != CUP_OK)
        fail(r, "writing");
    free(host);
    for (int64_t done = count; done < t->count; done += count) {
        int64_t now = t->count - done < count ? t->count - done : count;
        d->calls->copy(d, (char *)t->data + done * 2, t->data, (size_t)now * 2);
    }
}

/* All tensors of a shape, in the memory order [batch, positions, heads, size]. */
static void prepare(rig *r, const shape *s)
{
    cup_tensor **queries[] = {&r->q, &r->d_o, &r->result[0], &r->result[2]};
    cup_tensor **keys[] = {&r->k, &r->v, &r->result[3], &r->result[4]};
    cup_scope_open(r->c);
    for (int i = 0; i < 4; i++) {
        *queries[i] = tensor(r, s->dtype, s->batch, s->queries, s->heads, s->size);
        *keys[i] = tensor(r, s->dtype, s->batch, s->keys, s->kv_heads, s->size);
    }
    r->result[1] = tensor(r, CUP_F32, s->batch, s->heads, s->queries, 1);
    for (int i = 0; i < 2; i++) {
        fill(r, *queries[i], 17 + (uint64_t)i);
        fill(r, *keys[i], 27 + (uint64_t)i);
    }
}

static cup__heads heads(cup_tensor *t)
{
    return (cup__heads){.tensor = t,
                        .stride = {t->stride[0], t->stride[2], t->stride[1], t->stride[3]}};
}

static cup__attention attention_of(rig *r, const shape *s, bool backward)
{
    cup__attention a = {
        .c = r->c,
        .random = r->c->random.state,
        .sequence = 5,
        .dtype = (cup_dtype)s->dtype,
        .batch = s->batch,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .queries = s->queries,
        .keys = s->keys,
        .size = s->size,
        .mask = cup__attention_mask_make(s->causal, false, 0, 0, NULL, NULL, s->queries,
                                         s->keys),
        .scale = 1 / sqrt((double)s->size),
        .dropout = s->dropout,
        .q = heads(r->q),
        .k = heads(r->k),
        .v = heads(r->v),
        .o = heads(r->result[0]),
        .lse = r->result[1],
    };
    if (backward) {
        a.d_o = heads(r->d_o);
        a.dq = heads(r->result[2]);
        a.dk = heads(r->result[3]);
        a.dv = heads(r->result[4]);
    }
    return a;
}

static double value_of(const void *host, int dtype, int64_t i)
{
    if (dtype == CUP_F32)
        return (double)((const float *)host)[i];
    uint16_t bits = ((const uint16_t *)host)[i];
    return (double)(dtype == CUP_F16 ? cup__from_f16(bits) : cup__from_bf16(bits));
}

static void *read_all(rig *r, cup_tensor *t)
{
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    void *host = malloc(bytes);
    if (!host || cup_tensor_read(t, host, bytes) != CUP_OK)
        fail(r, "reading");
    return host;
}

/* The largest difference in units of the dtype's epsilon, relative to element and whole. */
static double compare(const void *want, const void *got, int dtype, int64_t count)
{
    double squares = 0, worst = 0;
    double epsilon = dtype == CUP_F32 ? 0x1p-20 : dtype == CUP_F16 ? 0x1p-10 : 0x1p-7;
    for (int64_t i = 0; i < count; i++) {
        double v = value_of(want, dtype, i);
        squares += isfinite(v) ? v * v : 0;
    }
    double rms = sqrt(squares / (double)count);
    for (int64_t i = 0; i < count; i++) {
        double w = value_of(want, dtype, i), g = value_of(got, dtype, i);
        if (w == g)
            continue;
        double error = fabs(g - w) / (epsilon * (fabs(w) + rms) + 1e-30);
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

/* Holds results `first` to `end` against the plain kernels'. */
static void judge(rig *r, const shape *s, const char *name, cup_status status, int first, int end)
{
    if (status != CUP_OK || r->c->device->calls->synchronize(r->c->device) != CUP_OK)
        fail(r, name);
    r->runs++;
    for (int i = first; i < end; i++) {
        cup_tensor *got = r->result[i];
        void *host = read_all(r, got);
        double error = compare(r->want[i], host, got->dtype, got->count);
        free(host);
        if (error <= 6)
            continue;
        r->failures++;
        printf("WRONG %s result %d: %lldx%lld/%lldx%lldx%lldx%lld%s drop %g %s: error %.3g\n", name,
               i, (long long)s->batch, (long long)s->heads, (long long)s->kv_heads,
               (long long)s->queries, (long long)s->keys, (long long)s->size,
               s->causal ? " causal" : "", s->dropout, cup_dtype_name((cup_dtype)s->dtype), error);
        fflush(stdout);
    }
}

/* One way to compute a shape, forward or backward. */
typedef struct entry {
    char name[80];
    enum { FLASH, DECODE, HOPPER } kind;
    int forward, queries, keys; /* plans */
    double us[ROUNDS], middle;
} entry;

static cup_status run(rig *r, const shape *s, const entry *e, bool backward)
{
    cup__attention a = attention_of(r, s, backward);
    if (e->kind == DECODE)
        return cup__attention_decode(&a);
    if (e->kind == FLASH)
        return backward ? cup__attention_flash_grad(&a) : cup__attention_flash(&a);
    if (!backward) {
        cup__hopper_plan plan = forward_plans[e->forward].plan;
        plan.watchdog = r->watchdog;
        return cup__attention_hopper_by(&a, &plan);
    }
    cup__hopper_plan queries = queries_plans[e->queries].plan, keys = keys_plans[e->keys].plan;
    queries.watchdog = keys.watchdog = r->watchdog;
    return cup__attention_hopper_grad_by(&a, &queries, &keys);
}

static int forward_entries(const shape *s, entry *to)
{
    int count = 0;
    to[count++] = (entry){.name = "flash"};
    if (s->heads / s->kv_heads * s->queries <= 64 && s->keys >= 64 && s->dropout == 0)
        to[count++] = (entry){.name = "decode", .kind = DECODE};
    for (int i = 0; i < COUNT(forward_plans); i++)
        if (suits(s, &forward_plans[i], CUP__HOPPER_FORWARD)) {
            const cup__hopper_plan *p = &forward_plans[i].plan;
            to[count] = (entry){.kind = HOPPER, .forward = i};
            snprintf(to[count++].name, sizeof to->name, "w%d n%d s%d%s", p->warpgroups, p->step,
                     p->stages, p->order ? "" : " free");
        }
    return count;
}

/* Each plan of one kernel beside the first plan of the other. */
static int backward_entries(const shape *s, entry *to)
{
    int count = 0, first_q = -1, first_k = -1;
    to[count++] = (entry){.name = "flash"};
    for (int i = 0; i < COUNT(queries_plans); i++)
        for (int j = 0; j < COUNT(keys_plans); j++) {
            const cup__hopper_plan *q = &queries_plans[i].plan, *k = &keys_plans[j].plan;
            if (!suits(s, &queries_plans[i], CUP__HOPPER_QUERIES) ||
                !suits(s, &keys_plans[j], CUP__HOPPER_KEYS))
                continue;
            first_q = first_q < 0 ? i : first_q;
            first_k = first_k < 0 ? j : first_k;
            if (i != first_q && j != first_k)
                continue;
            to[count] = (entry){.kind = HOPPER, .queries = i, .keys = j};
            snprintf(to[count++].name, sizeof to->name, "q n%d s%d k n%d s%d", q->step, q->stages,
                     k->step, k->stages);
        }
    return count;
}

static void spoil(rig *r, int first, int end)
{
    for (int i = first; i < end; i++) {
        size_t bytes = (size_t)(r->result[i]->count * cup_dtype_size(r->result[i]->dtype));
        r->c->device->calls->fill(r->c->device, r->result[i]->data, 0xff, bytes);
    }
}

static void check_shape(rig *r, const shape *s)
{
    entry entries[64];
    prepare(r, s);
    cup__attention a = attention_of(r, s, true);
    if (cup__attention_simple(&a) != CUP_OK || cup__attention_simple_grad(&a) != CUP_OK)
        fail(r, "plain");
    for (int i = 0; i < RESULTS; i++)
        r->want[i] = read_all(r, r->result[i]);
    for (int i = 0, count = forward_entries(s, entries); i < count; i++) {
        spoil(r, 0, 2);
        judge(r, s, entries[i].name, run(r, s, &entries[i], false), 0, 2);
    }
    if (cup_tensor_write(r->result[0], r->want[0], (size_t)r->result[0]->count * 2) != CUP_OK ||
        cup_tensor_write(r->result[1], r->want[1], (size_t)r->result[1]->count * 4) != CUP_OK)
        fail(r, "writing");
    for (int i = 0, count = backward_entries(s, entries); i < count; i++) {
        spoil(r, 2, RESULTS);
        judge(r, s, entries[i].name, run(r, s, &entries[i], true), 2, RESULTS);
    }
    for (int i = 0; i < RESULTS; i++)
        free(r->want[i]);
    cup_scope_close(r->c);
}

static const int64_t checked[][6] = {
    {1, 1, 1, 1, 1, 64},      {2, 4, 2, 65, 65, 64},     {1, 4, 2, 1, 700, 64},
    {1, 2, 1, 130, 300, 128}, {1, 2, 2, 300, 130, 64},   {3, 6, 6, 256, 256, 64},
    {2, 8, 2, 512, 512, 128}, {2, 2, 2, 777, 777, 80},   {1, 3, 3, 1000, 1000, 128},
    {40, 8, 8, 640, 640, 64}, {20, 9, 3, 897, 897, 128}, {1, 2, 1, 190, 450, 192},
    {1, 2, 1, 200, 200, 256}, {1, 2, 2, 129, 129, 40},   {1, 1, 1, 4100, 4100, 64},
    {1, 8, 1, 4, 3000, 128},  {30, 16, 4, 2, 2500, 128}, {7, 5, 5, 383, 191, 72},
};

static void check(rig *r)
{
    for (int variant = 0; variant < 6; variant++)
        for (int i = 0; i < COUNT(checked); i++) {
            const int64_t *n = checked[i];
            /* f16 goes through two of the shapes only. */
            if (variant >= 4 && i != 3 && i != 5)
                continue;
            shape s = {n[0],
                       n[1],
                       n[2],
                       n[3],
                       n[4],
                       n[5],
                       variant & 1,
                       variant & 2 ? 0.2 : 0,
                       variant >= 4 ? CUP_F16 : CUP_BF16,
                       0,
                       0};
            check_shape(r, &s);
        }
    printf("check: %d runs, %d wrong results\n", r->runs, r->failures);
}

static double time_once(rig *r, const shape *s, const entry *e, bool backward)
{
    double milliseconds = 0;
    r->c->device->calls->fill(r->c->device, r->flush, 0, FLUSH);
    cup__timer_start(r->timer);
    if (run(r, s, e, backward) != CUP_OK || cup__timer_stop(r->timer, &milliseconds) != CUP_OK)
        fail(r, e->name);
    return milliseconds * 1000;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_middle(const void *a, const void *b)
{
    double x = ((const entry *)a)->middle, y = ((const entry *)b)->middle;
    return (x > y) - (x < y);
}

static void time_kind(rig *r, const shape *s, bool backward)
{
    entry entries[64];
    int count = backward ? backward_entries(s, entries) : forward_entries(s, entries);
    if (backward && s->queries == 1)
        return;
    double peer = backward ? s->backward_us : s->forward_us, pairs = 0;
    for (int64_t q = 0; q < s->queries; q++)
        pairs += (double)(s->causal ? q + 1 + s->keys - s->queries : s->keys);
    double flops = (backward ? 10 : 4) * pairs * (double)(s->batch * s->heads * s->size);
    for (int i = 0; i < count; i++)
        time_once(r, s, &entries[i], backward);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++)
            entries[i].us[round] = time_once(r, s, &entries[i], backward);
    for (int i = 0; i < count; i++) {
        qsort(entries[i].us, ROUNDS, sizeof *entries[i].us, by_value);
        entries[i].middle = entries[i].us[ROUNDS / 2];
    }
    qsort(entries, (size_t)count, sizeof *entries, by_middle);
    printf("\n%s %lldx%lld/%lldx%lldx%lldx%lld%s%s, peer %.1f us\n", backward ? "bwd" : "fwd",
           (long long)s->batch, (long long)s->heads, (long long)s->kv_heads, (long long)s->queries,
           (long long)s->keys, (long long)s->size, s->causal ? " causal" : "",
           s->dropout > 0 ? " dropout" : "", peer);
    for (int i = 0; i < count; i++)
        printf("  %-24s %9.1f us %6.0f TF/s %6.3f\n", entries[i].name, entries[i].middle,
               1e-6 * flops / entries[i].middle, peer / entries[i].middle);
    fflush(stdout);
}

static const shape timed[] = {
    {64, 6, 6, 256, 256, 64, true, 0.2, CUP_BF16, 0, 0},
    {64, 6, 6, 256, 256, 64, true, 0, CUP_BF16, 0, 0},
    {8, 12, 12, 2048, 2048, 64, false, 0, CUP_BF16, 228.1, 629.8},
    {8, 12, 12, 2048, 2048, 64, true, 0, CUP_BF16, 143.6, 423.8},
    {32, 12, 12, 1024, 1024, 64, true, 0, CUP_BF16, 158.0, 523.5},
    {16, 16, 16, 1024, 1024, 128, true, 0, CUP_BF16, 158.8, 542.8},
    {4, 16, 16, 4096, 4096, 128, false, 0, CUP_BF16, 817.2, 2690.1},
    {4, 16, 16, 4096, 4096, 128, true, 0, CUP_BF16, 508.0, 1504.5},
    {1, 16, 16, 16384, 16384, 128, true, 0, CUP_BF16, 1944.4, 5142.2},
    {4, 32, 32, 4096, 4096, 64, true, 0, CUP_BF16, 634.6, 1788.4},
    {4, 32, 8, 4096, 4096, 128, true, 0, CUP_BF16, 0, 0},
    {32, 32, 8, 1, 8192, 128, false, 0, CUP_BF16, 246.8, 0},
};

static void time_all(rig *r, int first)
{
    for (int i = first; i < COUNT(timed); i++) {
        prepare(r, &timed[i]);
        time_kind(r, &timed[i], false);
        time_kind(r, &timed[i], true);
        cup_scope_close(r->c);
    }
}

/* Asks for every `of`-th kernel that check and time use, by small calls of each kind. */
static void warm(rig *r, int part, int of)
{
    entry entries[64];
    int number = 0;
    for (int variant = 0; variant < 8; variant++)
        for (int64_t size = 64; size <= 256; size += 64) {
            shape s = {1, 1, 1, 64, 64, size, variant & 1, variant & 2 ? 0.2 : 0, CUP_BF16, 0, 0};
            r->watchdog = variant & 4 ? WATCHDOG : 0;
            prepare(r, &s);
            for (int backward = 0; backward < 2; backward++) {
                int count = backward ? backward_entries(&s, entries) : forward_entries(&s, entries);
                for (int i = 0; i < count; i++)
                    if (number++ % of == part && run(r, &s, &entries[i], backward) != CUP_OK)
                        fail(r, entries[i].name);
            }
            cup_scope_close(r->c);
        }
}

int main(int argc, char **argv)
{
    rig r = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda", .seed = 9)),
             .watchdog = argc > 1 && !strcmp(argv[1], "time") ? 0 : WATCHDOG};
    if (cup_error(r.c) != CUP_OK)
        fail(&r, "opening the GPU");
    const char *mode = argc > 1 ? argv[1] : "check";
    cup__device *d = r.c->device;
    if (d->calls->allocate(d, FLUSH, "sweep", &r.flush) != CUP_OK ||
        cup__timer_new(cup__cuda_of(d), &r.timer) != CUP_OK)
        fail(&r, "starting");
    if (!strcmp(mode, "warm") && argc > 3)
        warm(&r, atoi(argv[2]), atoi(argv[3]));
    else if (!strcmp(mode, "time"))
        time_all(&r, argc > 2 ? atoi(argv[2]) : 0);
    else
        check(&r);
    if (cup_error(r.c) != CUP_OK)
        fail(&r, mode);
    cup__timer_free(r.timer);
    cup_context_free(r.c);
    return r.failures != 0;
}
