/* Data in epochs, each window once in each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/data.h"
#include "data/permutation.h"
#include "test.h"

enum { CONTEXT = 5, SETS = 3 };
static const int lengths[SETS] = {4001, 9000, 1500};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* Bytes say in whose window number which they are: 3 letters of it, one of the set, one of none. */
static cup_data *make(cup_context *c, int set, cup_tokenizer **t)
{
    static char text[16384];
    for (int i = 0; i < lengths[set]; i++) {
        int window = i / CONTEXT, digit[] = {window % 25, window / 25 % 25, window / 625};
        text[i] = (char)('a' + (i % CONTEXT < 3 ? digit[i % CONTEXT] : set));
    }
    cup_corpus *all = cup_corpus_new(c, "abcdefghijklmnopqrstuvwxyz", 26);
    if (!*t)
        *t = cup_tokenizer_char_new(c, all);
    cup_corpus_free(all);
    cup_corpus *corpus = cup_corpus_new(c, text, (size_t)lengths[set]);
    cup_data *d = cup_data_new(c, corpus, *t, CONTEXT);
    cup_corpus_free(corpus);
    return d;
}

static int64_t window_of(const int32_t *row)
{
    return row[0] + 25 * row[1] + 625 * row[2];
}

/* Any count, seed and epoch has each number once, and not in the order of another. */
TEST(permutation_has_each_number_once)
{
    static const int64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097};
    static uint8_t seen[4097];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int64_t count = counts[i], others = 0;
            memset(seen, 0, sizeof seen);
            for (int64_t k = 0; k < count; k++) {
                int64_t at = cup__permuted(1, 7, epoch, k, count);
                EXPECT(at >= 0 && at < count && !seen[at]);
                seen[at] = 1;
                others += at != cup__permuted(2, 7, epoch, k, count);
            }
            EXPECT(count < 255 || others > count * 9 / 10);
        }
    int64_t far = cup__permuted(1, 7, UINT64_MAX, INT64_C(1) << 60, (INT64_C(1) << 60) + 1);
    EXPECT(far >= 0 && far <= INT64_C(1) << 60);
}

TEST(samples_are_every_window_once_an_epoch)
{
    enum { ROWS = 7 };
    cup_context *c = cpu();
    cup_tokenizer *t = NULL;
    cup_data *d = make(c, 0, &t);
    int64_t windows = cup_data_windows(d, CUP_SPLIT_TRAIN, CONTEXT), order[2][1000];
    int32_t inputs[ROWS * CONTEXT], targets[ROWS * CONTEXT], one[CONTEXT], next[CONTEXT];
    static uint8_t seen[2][1000];
    EXPECT_INT(windows, 719);
    for (int64_t first = 0; first < 2 * windows; first += ROWS) {
        EXPECT_INT(
            cup_data_samples(c, d, 3, first, ROWS, CONTEXT, inputs, targets),
            CUP_OK);
        EXPECT_INT(cup_data_samples(c, d, 3, first + 4, 1, CONTEXT, one, next),
                   CUP_OK);
        EXPECT(!memcmp(one, inputs + 4 * CONTEXT, sizeof one));
        EXPECT(!memcmp(next, targets + 4 * CONTEXT, sizeof next));
        for (int64_t r = 0; r < ROWS && first + r < 2 * windows; r++) {
            int64_t window = window_of(inputs + r * CONTEXT), epoch = (first + r) / windows;
            EXPECT(window < windows && !seen[epoch][window]++);
            EXPECT(!memcmp(inputs + r * CONTEXT + 1, targets + r * CONTEXT, 4 * (CONTEXT - 1)));
            order[epoch][(first + r) % windows] = window;
        }
    }
    int64_t same = 0, in_place = 0;
    for (int64_t i = 0; i < windows; i++) {
        same += order[0][i] == order[1][i];
        in_place += order[0][i] == i;
    }
    EXPECT(same < 20 && in_place < 20);
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Sets have what their weights say of any number of samples, and each its own epochs. */
TEST(samples_of_a_mix_keep_to_the_weights)
{
    static const double weights[SETS] = {0.5, 0.2, 0.3};
    enum { SAMPLES = 6000 };
    cup_context *c = cpu();
    cup_tokenizer *t = NULL;
    cup_data *sets[SETS];
    int64_t taken[SETS] = {0}, counts[SETS], windows[SETS];
    static int32_t inputs[SAMPLES * CONTEXT], targets[SAMPLES * CONTEXT];
    static int seen[SETS][2000];
    for (int i = 0; i < SETS; i++) {
        sets[i] = make(c, i, &t);
        windows[i] = cup_data_windows(sets[i], CUP_SPLIT_TRAIN, CONTEXT);
    }
    cup_data *d = cup_data_mix(c, sets, weights, SETS);
    EXPECT_INT(cup_data_samples(c, d, 5, 0, SAMPLES, CONTEXT, inputs, targets),
               CUP_OK);
    for (int64_t n = 0; n < SAMPLES; n++) {
        int set = inputs[n * CONTEXT + 3];
        int64_t window = window_of(inputs + n * CONTEXT);
        EXPECT_INT(seen[set][window]++, taken[set]++ / windows[set]);
        EXPECT_INT(cup_data_sample_counts(c, d, n + 1, counts), CUP_OK);
        for (int i = 0; i < SETS; i++) {
            EXPECT_INT(counts[i], taken[i]);
            EXPECT(llabs(taken[i] - (int64_t)(weights[i] * (double)(n + 1))) <= SETS);
        }
    }
    EXPECT(taken[0] > 4 * windows[0] && taken[1] < windows[1]);
    EXPECT_INT(cup_data_sample_counts(c, d, -1, counts), CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_data_sample_counts(c, sets[0], 1, counts), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "the data is no mix");
    cup_error_clear(c);
    EXPECT_INT(cup_data_samples(c, d, 5, -1, 1, CONTEXT, inputs, targets),
               CUP_ARGUMENT);
    cup_error_clear(c);
    /* A weight that is next to nothing beside the others. */
    cup_data_free(d);
    for (int i = 0; i < SETS; i++)
        sets[i] = make(c, i, &t);
    d = cup_data_mix(c, sets, (double[]){1, 1e-300, 1e-300}, SETS);
    EXPECT_INT(cup_data_sample_counts(c, d, INT64_MAX, counts), CUP_OK);
    EXPECT(counts[0] > INT64_MAX - 3 && counts[0] + counts[1] + counts[2] == INT64_MAX);
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}
