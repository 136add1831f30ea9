/* The inside of data, which may be a mix of several sets. */
#ifndef CUP_DATA_MIX_H
#define CUP_DATA_MIX_H

#include "data/corpus.h"
#include "data/shards.h"

/* Sets of which each row is drawn from one, by their weights. */
typedef struct cup__mix {
    cup_data **sets; /* its own */
    double *weights; /* as they were given */
    double *ends;    /* sums of the weights up to each set and with it */
    uint64_t *parts; /* of what the sets before leave, as a fraction of 2^64 */
    int count;       /* 0: no mix */
} cup__mix;

struct cup_data {
    bool wide; /* 32 bits a token, where 16 are not enough */
    void *tokens;
    int64_t count, capacity;
    int64_t train;      /* the first of them are for training */
    int64_t vocabulary; /* of the tokenizer */
    cup__shards shards; /* where the tokens are in files, and not in memory */
    cup__mix mix;       /* or those of others, and none of its own */
    uint64_t hash;      /* of either */
    int64_t files;
    cup__text sources;
    char *text_field; /* of the corpus, or NULL */
};

/* The random numbers of a row: where in its set it stands, and of which set it is. */
typedef struct cup__draw {
    uint64_t place, set;
} cup__draw;
cup__draw cup__data_draw(uint64_t seed, uint64_t step, uint64_t row);

const cup_data *cup__mix_choose(const cup__mix *mix, uint64_t bits);
int64_t cup__mix_tokens(const cup__mix *mix, cup_split split);
/* Of the set that has the fewest. */
int64_t cup__mix_fewest(const cup__mix *mix, cup_split split);
int64_t cup__mix_windows(const cup__mix *mix, cup_split split, int64_t context);
/* The set that a window of the mix is in, whose number becomes that in the set. */
const cup_data *cup__mix_at(const cup__mix *mix, cup_split split, int64_t context,
                            int64_t *window);
void cup__mix_free(cup__mix *mix);

/* Samples in the order of cup_data_samples: whose sample `at` is, which becomes its number there;
 * and how many of the first `samples` are of each set. */
int cup__mix_sample(const cup__mix *mix, int64_t *at);
void cup__mix_counts(const cup__mix *mix, int64_t samples, int64_t *counts);

/* Refuses rows of a part that cannot be asked for; and the row at a place of a part of a set. */
cup_status cup__data_check(cup_context *c, const cup_data *d, cup_split part, int64_t first_row,
                           int64_t rows, int64_t context, const int32_t *inputs,
                           const int32_t *targets);
cup_status cup__data_row(cup__error *error, const cup_data *set, cup_split part, int64_t place,
                         int64_t context, int32_t *inputs, int32_t *targets);

#endif
