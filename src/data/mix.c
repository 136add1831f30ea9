/* Data of several sets, of which each row is drawn by their weights. */
#include "data/mix.h"

#include <math.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/philox.h"
#include "tensor/context.h"

/* Turning the seed round keeps them apart from the numbers that ops draw with the same seed. */
cup__draw cup__data_draw(uint64_t seed, uint64_t step, uint64_t row)
{
    cup__philox_words words = cup__philox(~seed, (uint32_t)row, (uint32_t)(row >> 32),
                                          (uint32_t)step, (uint32_t)(step >> 32));
    return (cup__draw){(uint64_t)words.at[1] << 32 | words.at[0],
                       (uint64_t)words.at[3] << 32 | words.at[2]};
}

/* 53 of the bits are a number from 0 up to, but not including, 1. */
static int choose(const cup__mix *mix, uint64_t bits)
{
    double at = (double)(bits >> 11) * 0x1p-53 * mix->ends[mix->count - 1];
    int i = 0;
    while (i < mix->count - 1 && at >= mix->ends[i])
        i++;
    return i;
}

const cup_data *cup__mix_choose(const cup__mix *mix, uint64_t bits)
{
    return mix->sets[choose(mix, bits)];
}

static int64_t part_of(int64_t samples, uint64_t part)
{
    return (int64_t)((unsigned __int128)samples * part >> 64);
}

/* A set has its part of any number of first samples, rounded down; what comes between is for those
 * behind it, and so on. */
int cup__mix_sample(const cup__mix *mix, int64_t *at)
{
    int i = 0;
    for (; i < mix->count - 1; i++) {
        int64_t before = part_of(*at, mix->parts[i]);
        if (part_of(*at + 1, mix->parts[i]) > before) {
            *at = before;
            break;
        }
        *at -= before;
    }
    return i;
}

void cup__mix_counts(const cup__mix *mix, int64_t samples, int64_t *counts)
{
    for (int i = 0; i < mix->count; i++) {
        counts[i] = i < mix->count - 1 ? part_of(samples, mix->parts[i]) : samples;
        samples -= counts[i];
    }
}

int64_t cup__mix_tokens(const cup__mix *mix, cup_split split)
{
    int64_t sum = 0;
    for (int i = 0; i < mix->count; i++)
        sum += cup_data_count(mix->sets[i], split);
    return sum;
}

int64_t cup__mix_fewest(const cup__mix *mix, cup_split split)
{
    int64_t fewest = INT64_MAX;
    for (int i = 0; i < mix->count; i++) {
        int64_t count = cup_data_count(mix->sets[i], split);
        fewest = count < fewest ? count : fewest;
    }
    return fewest;
}

int64_t cup__mix_windows(const cup__mix *mix, cup_split split, int64_t context)
{
    int64_t sum = 0;
    for (int i = 0; i < mix->count; i++)
        sum += cup_data_windows(mix->sets[i], split, context);
    return sum;
}

const cup_data *cup__mix_at(const cup__mix *mix, cup_split split, int64_t context,
                            int64_t *window)
{
    int i = 0;
    for (; i < mix->count - 1; i++) {
        int64_t count = cup_data_windows(mix->sets[i], split, context);
        if (*window < count)
            break;
        *window -= count;
    }
    return mix->sets[i];
}

void cup__mix_free(cup__mix *mix)
{
    for (int i = 0; i < mix->count; i++)
        cup_data_free(mix->sets[i]);
    cup__free(mix->sets);
    cup__free(mix->weights);
    cup__free(mix->ends);
    cup__free(mix->parts);
    *mix = (cup__mix){0};
}

static cup_status check(cup__error *error, cup_data *const *sets, const double *weights, int count)
{
    double sum = 0;
    if (!sets || !weights || count < 1)
        return cup__fail(error, CUP_ARGUMENT, "a mix of data: the %s; give one set or more",
                         count < 1 ? "number of sets is 0" : sets ? "weights are NULL"
                                                                  : "sets are NULL");
    for (int i = 0; i < count; i++) {
        sum += weights[i];
        if (!sets[i] || sets[i]->mix.count)
            return cup__fail(error, CUP_ARGUMENT, "a mix of data: set %d is %s", i,
                             sets[i] ? "a mix itself; give its sets" : "NULL");
        for (int k = 0; k < i; k++)
            if (sets[k] == sets[i])
                return cup__fail(error, CUP_ARGUMENT,
                                 "a mix of data: the sets %d and %d are one and the same", k, i);
        if (!(weights[i] > 0) || !isfinite(sum))
            return cup__fail(error, CUP_ARGUMENT,
                             "a mix of data: the weight %g of set %d is not possible; give numbers "
                             "above 0",
                             weights[i], i);
        if (sets[i]->vocabulary != sets[0]->vocabulary)
            return cup__fail(error, CUP_ARGUMENT,
                             "a mix of data: set %d is in tokens of a vocabulary of %lld, the "
                             "first of %lld; take the same tokenizer",
                             i, (long long)sets[i]->vocabulary, (long long)sets[0]->vocabulary);
    }
    return CUP_OK;
}

static void set_parts(cup__mix *mix)
{
    double left = 0;
    for (int i = mix->count - 1; i >= 0; i--) {
        left += mix->weights[i];
        double part = mix->weights[i] / left;
        mix->parts[i] = part < 1 ? (uint64_t)(part * 0x1p64) : UINT64_MAX;
    }
}

/* What is told of the sets together. */
static void sum_up(cup_data *d)
{
    cup__hash hash;
    char text[CUP__HASH_TEXT];
    cup__hash_begin(&hash);
    d->vocabulary = d->mix.sets[0]->vocabulary;
    for (int i = 0; i < d->mix.count; i++) {
        const cup_data *set = d->mix.sets[i];
        uint64_t own = cup_data_hash(set);
        cup__hash_add(&hash, &own, sizeof own);
        cup__hash_add(&hash, &d->mix.weights[i], sizeof *d->mix.weights);
        cup__text_append(&d->sources, set->sources.bytes, set->sources.length);
        d->files += set->files;
        d->mix.ends[i] = d->mix.weights[i] + (i ? d->mix.ends[i - 1] : 0);
        if (set->text_field && !d->text_field && !(d->text_field = cup__strdup(set->text_field)))
            d->sources.failed = true;
    }
    cup__hash_text(&hash, text);
    d->hash = cup__hash_bytes(text, sizeof text);
}

cup_data *cup_data_mix(cup_context *c, cup_data *const *sets, const double *weights, int count)
{
    if (!c || c->error.status != CUP_OK || check(&c->error, sets, weights, count) != CUP_OK)
        return NULL;
    cup_data *d = cup__calloc(1, sizeof *d);
    size_t most = (size_t)count;
    if (d) {
        d->mix.sets = cup__calloc(most, sizeof(cup_data *));
        d->mix.weights = cup__calloc(most, sizeof *weights);
        d->mix.ends = cup__calloc(most, sizeof *weights);
        d->mix.parts = cup__calloc(most, sizeof *d->mix.parts);
    }
    bool fits = d && d->mix.sets && d->mix.weights && d->mix.ends && d->mix.parts;
    for (int i = 0; fits && i < count; i++) {
        d->mix.sets[i] = sets[i];
        d->mix.weights[i] = weights[i];
    }
    if (fits) {
        d->mix.count = count;
        sum_up(d);
        set_parts(&d->mix);
    }
    if (fits && !d->sources.failed)
        return d;
    cup__fail(&c->error, CUP_MEMORY, "out of host memory for a mix of data");
    if (d)
        d->mix.count = 0; /* the sets stay the caller's */
    cup_data_free(d);
    return NULL;
}

int cup_data_sets(const cup_data *d)
{
    return d ? d->mix.count : 0;
}

const cup_data *cup_data_set(const cup_data *d, int index)
{
    return d && index >= 0 && index < d->mix.count ? d->mix.sets[index] : NULL;
}

double cup__data_weight(const cup_data *d, int i)
{
    return d->mix.weights[i];
}

int64_t cup__data_source_count(const cup_data *d, int i)
{
    const cup__text *sources = &d->mix.sets[i]->sources;
    int64_t count = 0;
    for (size_t k = 0; k < sources->length; k++)
        count += !sources->bytes[k];
    return count;
}

cup_status cup_data_drawn(cup_context *c, const cup_data *d, uint64_t seed, uint64_t steps,
                          int64_t rows, int64_t *counts)
{
    if (!c)
        return CUP_ARGUMENT;
    if (!d || !d->mix.count || !counts || rows < 0)
        return cup__fail(&c->error, CUP_ARGUMENT, "the draws of a mix: %s",
                         !d            ? "the data is NULL"
                         : !counts     ? "the place for their numbers is NULL"
                         : rows < 0    ? "the rows of a step are fewer than none"
                                       : "the data is no mix; see cup_data_mix");
    for (int i = 0; i < d->mix.count; i++)
        counts[i] = 0;
    for (uint64_t step = 0; step < steps; step++)
        for (int64_t row = 0; row < rows; row++)
            counts[choose(&d->mix, cup__data_draw(seed, step, (uint64_t)row).set)]++;
    return CUP_OK;
}
