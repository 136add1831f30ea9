/* Drawing the next token of a text. */
#include "ops/random/draw_token.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/philox.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/matmul/product_state.h"
#include "ops/random/draw_token_call.cuh"

#define CLUSTER 8
#define SHARED_FROM 4096 /* tokens; a block alone is as fast for fewer */
#define HELD_MOST 12     /* tokens of a thread, in registers */
#define CODES_MOST 65520 /* tokens of a row that draw_token_codes.cu counts */
#define COUNTS_BYTES 131072
#define COUNTS_STATIC 17408 /* of shared memory, beside them */

typedef struct candidate {
    float logit;
    int32_t token;
} candidate;

/* The likeliest first; of equals the lower token, so that the order is always the same. */
static bool is_before(candidate x, candidate y)
{
    return x.logit > y.logit || (x.logit == y.logit && x.token < y.token);
}

/* A heap whose root is the first of all, or the last. */
typedef struct heap {
    candidate *at;
    int64_t count;
    bool last;
} heap;

static void sink(const heap *h, int64_t i)
{
    candidate down = h->at[i];
    for (int64_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && is_before(h->at[child + 1], h->at[child]) != h->last)
            child++;
        if (is_before(h->at[child], down) == h->last)
            break;
        h->at[i] = h->at[child];
    }
    h->at[i] = down;
}

static void order(const heap *h)
{
    for (int64_t i = h->count / 2; i-- > 0;)
        sink(h, i);
}

/* Takes the root out; it is put behind those that are left. */
static candidate take(heap *h)
{
    candidate root = h->at[0];
    h->at[0] = h->at[--h->count];
    h->at[h->count] = root;
    sink(h, 0);
    return root;
}

static int64_t best_of(const float *logits, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
}

/* A number in [0, 1) of 53 bits, of its own for each draw. */
static double uniform(uint64_t seed, uint64_t draw)
{
    cup__philox_words w = cup__philox(seed, (uint32_t)draw, (uint32_t)(draw >> 32), DRAW_WORD, 0);
    uint64_t bits = ((uint64_t)w.at[0] << 32 | w.at[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* All that are numbers, or the k likeliest of them: each logit is held against the last of the best
 * so far, which most do not come before. */
static heap candidates(candidate *space, const float *logits, int64_t count, int64_t k)
{
    heap all = {space, 0, true};
    int64_t i = 0;
    for (; i < count && all.count < k; i++)
        if (!isnan(logits[i]))
            all.at[all.count++] = (candidate){logits[i], (int32_t)i};
    if (i < count)
        order(&all);
    for (; i < count; i++) {
        candidate next = {logits[i], (int32_t)i};
        if (!isnan(logits[i]) && is_before(next, all.at[0])) {
            all.at[0] = next;
            sink(&all, 0);
        }
    }
    all.last = false;
    order(&all);
    return all;
}

/* How likely each is, the best having 1. */
typedef struct scale {
    double best, temperature;
} scale;

static double weight(scale s, candidate x)
{
    return exp(((double)x.logit - s.best) / s.temperature);
}

/* Draws one of the likeliest that make up a part of all. What follows in the order is not put in
 * order, since a draw seldom gets far. */
static int64_t draw_from(heap *all, scale by, double part, double uniform)
{
    int64_t count = all->count;
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < count; i++)
        sum += weight(by, all->at[i]);
    while (part < 1 && all->count > 0 && kept < part * sum)
        kept += weight(by, take(all));
    bool whole = all->count == count;
    double left = uniform * (whole ? sum : kept);
    candidate drawn = all->at[0];
    for (int64_t taken = 0; taken < count; taken++) {
        if (!whole && count - taken == all->count)
            break;
        candidate next = whole ? take(all) : all->at[count - 1 - taken];
        double own = weight(by, next);
        if (own == 0)
            break;
        drawn = next;
        if (left < own)
            break;
        left -= own;
    }
    return drawn.token;
}

int64_t cup__draw_token(const float *logits, int64_t count, const cup__draw *how)
{
    int64_t best = best_of(logits, count);
    if (best < 0 || how->temperature < 0 || isinf(logits[best]))
        return best;
    int64_t k = how->top_k > 0 && how->top_k < count ? how->top_k : count;
    candidate *space = cup__malloc((size_t)k * sizeof *space);
    if (!space)
        return -2;
    heap all = candidates(space, logits, count, k);
    scale by = {(double)logits[best], how->temperature > 0 ? how->temperature : 1};
    double part = how->top_p > 0 && how->top_p < 1 ? how->top_p : 1;
    int64_t token = draw_from(&all, by, part, uniform(how->seed, how->number));
    cup__free(space);
    return token;
}

static cup_status infer(cup__call *call)
{
    const cup__draw_token_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0], *counters = call->in[1];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 2, 2));
    if (counters->dtype != CUP_I64 || counters->count < 1)
        return cup__call_fail(call, CUP_DTYPE, "the counters must be i64, and one at least");
    if (isnan(a->temperature) || isnan(a->top_p) || a->top_k < 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "temperature and top_p must be numbers, and top_k not below 0");
    if (x->shape[1] < 1 || x->shape[1] >= 1 << 24)
        return cup__call_fail(call, CUP_SHAPE, "logits must be [B,V], V from 1 to 2^24 - 1");
    call->result[0] = (cup__shape){.dtype = CUP_I32, .ndim = 1, .size = {x->shape[0]}};
    return CUP_OK;
}

/* The call's attributes, and the number of the first row's draw. */
static cup__draw draw_of(const cup__call *call)
{
    const cup__draw_token_attributes *a = call->attributes;
    return (cup__draw){.temperature = a->temperature,
                       .top_k = a->top_k,
                       .top_p = a->top_p,
                       .seed = (uint64_t)a->seed};
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    cup_tensor *counters = call->in[1];
    int64_t rows = x->shape[0], count = x->shape[1], *counter = counters->data;
    cup__draw how = draw_of(call);
    float *row = cup__malloc((size_t)count * sizeof *row);
    if (!row)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    uint64_t first = (uint64_t)counter[cup__offset_of(counters, 0)] * (uint64_t)rows;
    int64_t token = 0;
    for (int64_t b = 0; b < rows && token > -2; b++) {
        for (int64_t i = 0; i < count; i++)
            row[i] = (float)cup__load(x, cup__offset_of(x, b * count + i));
        how.number = first + (uint64_t)b;
        int32_t *to = call->out[0]->data;
        token = cup__draw_token(row, count, &how);
        to[cup__offset_of(call->out[0], b)] = (int32_t)token;
    }
    cup__free(row);
    if (token == -2)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    for (int64_t i = 0; i < counters->count; i++)
        counter[cup__offset_of(counters, i)]++;
    return CUP_OK;
}

/* Blocks that share a row, on cards that can, and what a thread of them holds of it. All rows are
 * to be on the card at once. */
static void share_row(const cup__cuda *gpu, int64_t rows, int64_t count, int *cluster, int *per)
{
    const cup__gpu_facts *card = cup__cuda_facts(gpu);
    *cluster = card->major >= 9 && count > SHARED_FROM ? CLUSTER : 1;
    while (*cluster > 2 && rows * *cluster > card->multiprocessors)
        *cluster /= 2;
    int64_t each = (count + *cluster * DRAW_THREADS - 1) / (*cluster * DRAW_THREADS);
    *per = each > HELD_MOST ? 0 : each > 8 ? HELD_MOST : 1;
    while (*per && *per < each)
        *per *= 2;
}

static const char *refuses_apart(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    if (x->stride[1] != 1 && x->shape[1] > 1)
        return "the logits of a row do not lie side by side";
    return call->in[1]->contiguous ? NULL : "the counters do not lie side by side";
}

static const char *refuses_codes(const cup__call *call)
{
    const cup_tensor *x = call->in[0];
    const cup__gpu_facts *card = cup__cuda_facts(cup__cuda_of(call->c->device));
    if (x->dtype != CUP_F16 && x->dtype != CUP_BF16)
        return "the logits have no 16 bits";
    if (x->shape[1] <= SHARED_FROM || x->shape[1] > CODES_MOST)
        return "it is for rows of 4,097 to 65,520 logits";
    if (card->shared_per_block < COUNTS_BYTES + COUNTS_STATIC)
        return "counts of all codes do not fit in shared memory";
    return refuses_apart(call);
}

static draw_call call_of(const cup__call *call)
{
    const cup_tensor *x = call->in[0], *counters = call->in[1];
    cup__draw how = draw_of(call);
    bool cut = how.top_k > 0 && how.top_k < x->shape[1];
    draw_call argument = {.logits = x->data,
                          .tokens = call->out[0]->data,
                          .counters = counters->data,
                          .counter_count = (int)counters->count,
                          .rows = (int)x->shape[0],
                          .count = (int)x->shape[1],
                          .row = x->stride[0],
                          .top_k = cut ? (int)how.top_k : 0,
                          .likeliest = how.temperature < 0,
                          .top_p = how.top_p > 0 && how.top_p < 1 ? how.top_p : 0,
                          .seed = how.seed};
    /* What is infinitely cold would have 0 times infinity for its best. */
    double cold = how.temperature > 0 ? how.temperature : 1;
    argument.scale = (float)fmin(M_LOG2E / cold, FLT_MAX);
    argument.reach = (float)fmax((DRAW_LEAST - 1) * M_LN2 * cold, -FLT_MAX);
    return argument;
}

static cup_status run_codes(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__product_state *state = cup__product_state_of(call->c);
    if (!state)
        return call->c->error.status;
    draw_call argument = call_of(call);
    argument.done = state->counters;
    int64_t vectors = (argument.count + 14) / 8;
    int64_t held = (vectors + DRAW_THREADS - 33) / (DRAW_THREADS - 32);
    cup__knob knobs[] = {{"CUP_T", call->in[0]->dtype}, {"HELD", held}};
    cup__grid grid = {.x = argument.rows,
                      .threads = DRAW_THREADS,
                      .shared = COUNTS_BYTES,
                      .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, "draw_token_codes.cu", "draw_codes", knobs, 2);
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : call->c->error.status;
}

static cup_status run_cuda(cup__call *call)
{
    const cup_tensor *x = call->in[0];
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    draw_call argument = call_of(call);
    int cluster, per;
    share_row(gpu, x->shape[0], x->shape[1], &cluster, &per);
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"CLUSTER", cluster}, {"PER", per}};
    cup__grid grid = {.x = x->shape[0] * cluster,
                      .threads = DRAW_THREADS,
                      .cluster = cluster,
                      .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, "draw_token.cu", "draw_fwd", knobs, 3);
    if (!kernel)
        return call->c->error.status;
    CUP_TRY(cup__launch(gpu, kernel, grid, CUP__ARG(argument)));
    if (argument.rows == 1)
        return CUP_OK;
    kernel = cup__kernel_get(gpu, "draw_token.cu", "draw_count", knobs, 3);
    grid.x = grid.cluster = 1;
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(argument)) : call->c->error.status;
}

static const cup__impl impls[] = {
    {.name = "codes", .place = CUP__CUDA, CUP__THRESHOLDS(16, 4096, 8192), .strided = true,
     .refuses = refuses_codes, .run = run_codes},
    {.name = "bins", .place = CUP__CUDA, CUP__THRESHOLDS(16, 33, 66, 1024, 4096, 8192),
     .strided = true, .refuses = refuses_apart, .run = run_cuda},
    {.name = "packed", .place = CUP__CUDA, .run = run_cuda},
    {0}};
#define WITH(...) &(const cup__draw_token_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1 1", WITH(1, 0, 0, 7)},        {"0x5 2", WITH(1, 0, 0, 7)},
    {"3x40 2", WITH(0.8, 0, 0, 1)},     {"2x1000 1", WITH(1.3, 50, 0, 2)},
    {"2x1025 2", WITH(1, 0, 0.9, 3)},   {"2x5000 2", WITH(0.7, 200, 0.95, 4)},
    {"1x50257 2", WITH(0.8, 0, 0, 5)},  {"1x50257 2", WITH(100, 0, 0, 6)},
    {"1x50257 1", WITH(-1, 0, 0, 0)},   {"1x50257 1", WITH(1, 50000, 0.99, 1)},
    {"1x151936 2", WITH(0.6, 20, 0.95, 9)}, {"17x5000 1", WITH(1, 0, 0, 10)},
    {"34x5000 2", WITH(1, 30, 0.9, 11)}, {"67x5000 1", WITH(0.9, 0, 0, 12)},
    {"1x400000 2", WITH(1, 0, 0.9, 8)}, {"17x50257 2", WITH(0.8, 40, 0.9, 13)},
    {"18x65520 1", WITH(2, 0, 0, 14)},  {"19x4099 1", WITH(-1, 0, 0, 0)},
    {"20x9001 2", WITH(5, 9000, 0, 15)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"1x50257 2", WITH(0.8, 0, 0, 1)},
                                    {"1x50257 2", WITH(0.8, 200, 0, 1)},
                                    {"64x50257 2", WITH(0.8, 0, 0, 1)},
                                    {"64x50257 2", WITH(0.8, 200, 0, 1)},
                                    {"64x50257 2", WITH(0.8, 0, 0.95, 1)},
                                    {NULL, NULL}};

const cup__op cup__op_draw_token = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .in_place = 1u << 1,
    .samples = samples,
    .bench = bench,
    .domain = {{-8, 8}, {0, 1000}},
    .in_dtypes = {CUP__DTYPES_FLOAT, CUP__DTYPE(I64)},
};
