/* Drawing the next token. */
#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/philox.h"
#include "cupola/nn.h"

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
    cup__philox_words w = cup__philox(seed, (uint32_t)draw, (uint32_t)(draw >> 32), 0x73616d70u, 0);
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

int64_t cup_sample(const float *logits, int64_t count, uint64_t draw, const cup_sampling *sampling)
{
    cup_sampling own, *s = &own;
    if (count > INT32_MAX ||
        cup__options_take(NULL, "sample", &own, sizeof own, sampling) != CUP_OK)
        return -1;
    int64_t best = best_of(logits, count);
    if (best < 0 || s->temperature < 0 || isinf(logits[best]))
        return best;
    int64_t k = s->top_k > 0 && s->top_k < count ? s->top_k : count;
    candidate *space = cup__malloc((size_t)k * sizeof *space);
    if (!space)
        return -1;
    heap all = candidates(space, logits, count, k);
    scale by = {(double)logits[best], s->temperature > 0 ? s->temperature : 1};
    double part = s->top_p > 0 && s->top_p < 1 ? s->top_p : 1;
    int64_t token = draw_from(&all, by, part, uniform(s->seed, draw));
    cup__free(space);
    return token;
}
