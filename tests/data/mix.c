/* Several sets of data in one, each with a weight. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cupola/data.h"
#include "test.h"

enum { CONTEXT = 5, SETS = 3 };
static const double weights[SETS] = {6, 1, 3};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* Set i is of the letters from 'a' + 5 i on, and as long as its number says. */
static void make_text(char *text, int set, int length)
{
    for (int i = 0; i < length; i++)
        text[i] = (char)('a' + 5 * set + (i * i / 3) % 5);
}

static cup_tokenizer *make_sets(cup_context *c, cup_data *sets[SETS])
{
    static const int lengths[SETS] = {400, 900, 150};
    char text[900], letters[26];
    for (int i = 0; i < 26; i++)
        letters[i] = (char)('a' + i);
    cup_corpus *all = cup_corpus_new(c, letters, sizeof letters);
    cup_tokenizer *t = cup_tokenizer_char_new(c, all);
    cup_corpus_free(all);
    for (int i = 0; i < SETS; i++) {
        make_text(text, i, lengths[i]);
        cup_corpus *corpus = cup_corpus_new(c, text, (size_t)lengths[i]);
        sets[i] = cup_data_new(c, corpus, t, CONTEXT);
        cup_corpus_free(corpus);
    }
    return t;
}

/* Rows are of one set each, as often as the weights say; the numbers of draws are those of what was
 * read; and a row does not depend on the rows that are asked for with it. */
TEST(mix_draws_rows_by_weight)
{
    enum { STEPS = 50, ROWS = 40 };
    cup_context *c = cpu();
    cup_data *sets[SETS];
    cup_tokenizer *t = make_sets(c, sets);
    int64_t files = cup_data_files(sets[0]) * SETS, train = 0, seen[SETS] = {0}, counts[SETS];
    for (int i = 0; i < SETS; i++)
        train += cup_data_count(sets[i], CUP_SPLIT_TRAIN);
    cup_data *d = cup_data_mix(c, sets, weights, SETS);
    EXPECT(d && cup_data_sets(d) == SETS && cup_data_sets(sets[0]) == 0);
    EXPECT(cup_data_set(d, 2) == sets[2] && !cup_data_set(d, 3) && !cup_data_set(d, -1));
    EXPECT_INT(cup_data_files(d), files);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_TRAIN), train);
    static int32_t inputs[ROWS * CONTEXT], targets[ROWS * CONTEXT];
    int32_t one[CONTEXT], next[CONTEXT];
    for (uint64_t step = 0; step < STEPS; step++) {
        EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 7, step, 0, ROWS, CONTEXT, inputs,
                                  targets),
                   CUP_OK);
        for (int64_t row = 0; row < ROWS; row++) {
            int set = inputs[row * CONTEXT] / 5;
            seen[set]++;
            for (int64_t i = row * CONTEXT; i < (row + 1) * CONTEXT; i++)
                EXPECT(inputs[i] / 5 == set && targets[i] / 5 == set);
        }
        EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 7, step, 17, 1, CONTEXT, one, next),
                   CUP_OK);
        EXPECT(!memcmp(one, inputs + 17 * CONTEXT, sizeof one));
    }
    EXPECT_INT(cup_data_drawn(c, d, 7, STEPS, ROWS, counts), CUP_OK);
    for (int i = 0; i < SETS; i++) {
        /* Of 2000 draws, five deviations are at most 110. */
        EXPECT_INT(counts[i], seen[i]);
        EXPECT(llabs(counts[i] - (int64_t)(200 * weights[i])) < 110);
    }
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* The windows of the validation part are those of all sets, one set behind the other. */
TEST(mix_evaluates_all_sets)
{
    cup_context *c = cpu();
    cup_data *sets[SETS];
    cup_tokenizer *t = make_sets(c, sets);
    cup_data *d = cup_data_mix(c, sets, weights, SETS);
    int64_t window = 0;
    int32_t inputs[CONTEXT], targets[CONTEXT], own[CONTEXT], next[CONTEXT];
    for (int i = 0; i < SETS; i++)
        for (int64_t k = 0; k < cup_data_windows(sets[i], CUP_SPLIT_VALIDATION, CONTEXT); k++) {
            EXPECT_INT(cup_data_window(c, sets[i], CUP_SPLIT_VALIDATION, k, 1, CONTEXT, own, next),
                       CUP_OK);
            EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, window++, 1, CONTEXT, inputs,
                                       targets),
                       CUP_OK);
            EXPECT(!memcmp(inputs, own, sizeof own) && !memcmp(targets, next, sizeof next));
        }
    EXPECT(window > 20 && cup_data_windows(d, CUP_SPLIT_VALIDATION, CONTEXT) == window);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, window, 1, CONTEXT, inputs, targets),
               CUP_ARGUMENT);
    cup_error_clear(c);
    /* The smallest set decides what fits. */
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_VALIDATION, 1, 0, 0, 0, 15, inputs, targets),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "more than this part of the data has, 15");
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Other weights, sets or an order are other data. */
TEST(mix_hash_follows_sets_and_weights)
{
    static const double others[SETS] = {6, 1, 4};
    static const int order[SETS] = {1, 0, 2};
    cup_context *c = cpu();
    uint64_t hash[4];
    for (int k = 0; k < 4; k++) {
        cup_data *sets[SETS], *turned[SETS];
        cup_tokenizer *t = make_sets(c, sets);
        for (int i = 0; i < SETS; i++)
            turned[i] = sets[order[i]];
        cup_data *d = cup_data_mix(c, k == 2 ? turned : sets, k == 1 ? others : weights, SETS);
        hash[k] = cup_data_hash(d);
        cup_data_free(d);
        cup_tokenizer_free(t);
    }
    EXPECT(hash[0] == hash[3] && hash[0] != hash[1] && hash[0] != hash[2] && hash[1] != hash[2]);
    cup_context_free(c);
}

static void expect_refusal(cup_context *c, cup_data *const *sets, const double *given, int count,
                           const char *part)
{
    EXPECT(!cup_data_mix(c, sets, given, count));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), part);
    cup_error_clear(c);
}

TEST(mix_refuses_what_cannot_be)
{
    cup_context *c = cpu();
    cup_data *sets[SETS];
    int64_t counts[SETS];
    cup_tokenizer *t = make_sets(c, sets);
    expect_refusal(c, sets, weights, 0, "number of sets is 0");
    expect_refusal(c, NULL, weights, 2, "sets are NULL");
    expect_refusal(c, sets, NULL, 2, "weights are NULL");
    expect_refusal(c, sets, (double[]){1, 0}, 2, "weight 0 of set 1");
    expect_refusal(c, sets, (double[]){1e308, 1e308}, 2, "not possible");
    expect_refusal(c, (cup_data *[]){sets[0], NULL}, weights, 2, "set 1 is NULL");
    expect_refusal(c, (cup_data *[]){sets[0], sets[0]}, weights, 2, "one and the same");
    EXPECT_INT(cup_data_drawn(c, sets[0], 1, 1, 1, counts), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "no mix");
    cup_error_clear(c);
    cup_data *d = NULL;
    for (long n = 1; !d; n++) {
        cup__memory_fail_at(n, false);
        d = cup_data_mix(c, sets, weights, SETS);
        cup__memory_fail_at(0, false);
        EXPECT((d || cup_error(c) == CUP_MEMORY) && n < 100);
        cup_error_clear(c);
    }
    expect_refusal(c, &d, weights, 1, "a mix itself");
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}
