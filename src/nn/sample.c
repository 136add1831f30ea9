/* Drawing the next token. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/philox.h"
#include "cupola/nn.h"

typedef struct candidate {
    double weight; /* e^(logit - best), so that the best has 1 */
    int64_t token;
} candidate;

/* The likeliest first; of equals the lower token, so that the order is always the same. */
static int by_weight(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static int64_t best_of(const float *logits, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
}

/* How many candidates, which are sorted, may be drawn. */
static int64_t cut(const candidate *all, int64_t count, const cup_sampling *s)
{
    if (s->top_k > 0 && s->top_k < count)
        count = s->top_k;
    if (!(s->top_p > 0 && s->top_p < 1))
        return count;
    double sum = 0, part = 0;
    for (int64_t i = 0; i < count; i++)
        sum += all[i].weight;
    for (int64_t i = 0; i < count; i++) {
        part += all[i].weight;
        if (part >= s->top_p * sum)
            return i + 1;
    }
    return count;
}

/* A number in [0, 1) of 53 bits, of its own for each draw. */
static double uniform(uint64_t seed, uint64_t draw)
{
    cup__philox_words w = cup__philox(seed, (uint32_t)draw, (uint32_t)(draw >> 32), 0x73616d70u, 0);
    uint64_t bits = ((uint64_t)w.at[0] << 32 | w.at[1]) >> 11;
    return (double)bits * 0x1p-53;
}

int64_t cup_sample(const float *logits, int64_t count, const cup_sampling *sampling, uint64_t draw)
{
    cup_sampling own, *s = &own;
    int64_t best = best_of(logits, count);
    if (cup__options_take(NULL, "sample", &own, sizeof own, sampling) != CUP_OK)
        return -1;
    if (best < 0 || s->temperature < 0 || isinf(logits[best]))
        return best;
    candidate *all = cup__malloc((size_t)count * sizeof *all);
    if (!all)
        return -1;
    double temperature = s->temperature > 0 ? s->temperature : 1;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(logits[i]))
            all[kept++] =
                (candidate){exp(((double)logits[i] - (double)logits[best]) / temperature), i};
    qsort(all, (size_t)kept, sizeof *all, by_weight);
    kept = cut(all, kept, s);
    double sum = 0;
    for (int64_t i = 0; i < kept; i++)
        sum += all[i].weight;
    double left = uniform(s->seed, draw) * sum;
    int64_t drawn = 0;
    while (drawn < kept - 1 && left >= all[drawn].weight)
        left -= all[drawn++].weight;
    int64_t token = all[drawn].token;
    cup__free(all);
    return token;
}
