#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/data.h"

static cup_context *cpu(void)
{
    cup_options options = {.size = sizeof options, .device = "cpu"};
    return cup_context_new(&options);
}

static const char *put(const char *folder, const char *name, const char *text, size_t length)
{
    static char paths[4][4400];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    EXPECT_INT(cup__folder_make(NULL, path), CUP_OK);
    *slash = '/';
    EXPECT_INT(cup__file_write(NULL, path, text, length), CUP_OK);
    return path;
}

TEST(corpus_reads_folders_in_order)
{
    const char *folder = test_folder();
    put(folder, "b.txt", "B", 1);
    put(folder, "a/z.txt", "AZ", 2);
    put(folder, "a/y.txt", "AY", 2);
    put(folder, ".hidden", "H", 1);
    put(folder, ".git/x", "G", 1);
    put(folder, "build/x.c", "X", 1);
    put(folder, "a/__pycache__/x", "P", 1);
    put(folder, "empty", "", 0);
    put(folder, "binary", "a\0b", 3);
    put(folder, "latin1", "caf\xe9", 4);
    char link[4400];
    snprintf(link, sizeof link, "%s/loop", folder);
    EXPECT_INT(symlink(folder, link), 0);
    snprintf(link, sizeof link, "%s/pipe", folder);
    EXPECT_INT(mkfifo(link, 0666), 0);
    cup_context *c = cpu();
    const char *single = put(folder, "build/named.txt", "N", 1);
    cup_corpus *corpus = cup_corpus_load(c, (const char *[]){folder, single}, 2, NULL);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_TEXT(cup_corpus_text(corpus), "AYAZBN");
    EXPECT_INT(cup_corpus_files(corpus), 4);
    EXPECT_INT(cup_corpus_skipped(corpus), 9);
    EXPECT_INT(cup_corpus_bytes(corpus), 6);
    cup_corpus_free(corpus);
    cup_context_free(c);
}

static void expect_refused(const char *path, int64_t most, const char *words)
{
    cup_context *c = cpu();
    EXPECT(!cup_corpus_load(c, &path, 1, CUP_OPTIONS(cup_corpus_options, .most_bytes = most)));
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

TEST(corpus_bad_input_has_sentences)
{
    const char *folder = test_folder();
    char path[4400];
    snprintf(path, sizeof path, "%s/none", folder);
    expect_refused(path, 0, "none cannot be opened: there is no such file");
    expect_refused("", 0, "path of a data file is empty");
    expect_refused(put(folder, "empty", "", 0), 0, "empty is empty; name a file with text");
    expect_refused(put(folder, "binary", "PK\3\4\0", 5), 0, "is binary, not text: byte 4 is 0");
    expect_refused(folder, 0, "holds no text files");
    expect_refused(put(folder, "large", "0123456789", 10), 9,
                   "more than 9 bytes; name fewer files");
    expect_refused(folder, 9, "more than 9 bytes");
    cup_context *c = cpu();
    EXPECT(cup_corpus_load(c, NULL, 0, NULL) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "no data was named");
    cup_error_clear(c);
    EXPECT(cup_corpus_new(c, "", 0) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "is empty");
    cup_context_free(c);
    if (geteuid() == 0)
        return;
    const char *secret = put(folder, "secret", "x", 1);
    EXPECT_INT(chmod(secret, 0), 0);
    expect_refused(secret, 0, "permission denied");
}

static cup_data *make_data(cup_context *c, const char *text, size_t length, int64_t context)
{
    cup_corpus *corpus = cup_corpus_new(c, text, length);
    cup_tokenizer *t = cup_tokenizer_char_new(c, corpus);
    cup_data *d = cup_data_new(c, corpus, t, context);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    return d;
}

static char *letters(size_t length)
{
    char *text = malloc(length);
    for (size_t i = 0; i < length; i++)
        text[i] = (char)('a' + test_random() % 26);
    return text;
}

TEST(data_split_and_windows)
{
    cup_context *c = cpu();
    char *text = letters(1005);
    memcpy(text, "abcdefghijklmnopqrstuvwxyz", 26);
    cup_data *d = make_data(c, text, 1005, 8);
    int32_t inputs[64], targets[64];
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_TRAIN), 904);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_VALIDATION), 101);
    EXPECT_INT(cup_data_windows(d, CUP_SPLIT_TRAIN, 8), 112);
    EXPECT_INT(cup_data_windows(d, CUP_SPLIT_VALIDATION, 50), 2);
    EXPECT_INT(cup_data_windows(d, CUP_SPLIT_VALIDATION, 101), 0);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, 3, 8, 8, inputs, targets), CUP_OK);
    for (int i = 0; i < 64; i++) {
        EXPECT_INT(inputs[i], text[904 + 24 + i] - 'a');
        EXPECT_INT(targets[i], text[904 + 25 + i] - 'a');
    }
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, 10, 3, 8, inputs, targets),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "rows 10 to 13 were asked for");
    cup_error_clear(c);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, 0, 1, 101, inputs, targets),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "more than this part of the data has, 101");
    cup_error_clear(c);
    EXPECT_INT(cup_data_batch(c, d, (cup_split)2, 0, 0, 0, 1, 8, inputs, targets), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "the part 2 of the data is neither");
    cup_error_clear(c);
    EXPECT_INT(cup_data_count(d, (cup_split)2) + cup_data_windows(d, (cup_split)2, 1), 0);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 0, 0, -1, 1, 8, inputs, targets),
               CUP_ARGUMENT);
    cup_error_clear(c);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 0, 0, INT64_MAX, 1, 8, inputs, targets),
               CUP_ARGUMENT);
    cup_data_free(d);
    free(text);
    cup_context_free(c);
}

TEST(data_batches_depend_on_seed_step_and_row_only)
{
    cup_context *c = cpu();
    char *text = letters(5000);
    cup_data *d = make_data(c, text, 5000, 16);
    int32_t whole[8 * 16], targets[8 * 16], half[4 * 16], other[8 * 16], ignored[8 * 16];
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 1, 2, 0, 8, 16, whole, targets), CUP_OK);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 1, 2, 4, 4, 16, half, ignored), CUP_OK);
    EXPECT(memcmp(whole + 64, half, sizeof half) == 0);
    for (int r = 0; r < 8; r++)
        EXPECT(memcmp(whole + r * 16 + 1, targets + r * 16, 15 * 4) == 0);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 1, 3, 0, 8, 16, other, ignored), CUP_OK);
    EXPECT(memcmp(whole, other, sizeof whole) != 0);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_TRAIN, 2, 2, 0, 8, 16, other, ignored), CUP_OK);
    EXPECT(memcmp(whole, other, sizeof whole) != 0);
    EXPECT_INT(cup_data_batch(c, d, CUP_SPLIT_VALIDATION, 1, 2, 0, 8, 16, other, ignored), CUP_OK);
    EXPECT(memcmp(whole, other, sizeof whole) != 0);
    cup_data_free(d);
    free(text);
    cup_context_free(c);
}

/* Every place of the part is drawn, the first and the last one included, and about as often. */
TEST(data_batches_reach_every_place)
{
    cup_context *c = cpu();
    enum { COUNT = 100, CONTEXT = 4, PLACES = 90 - CONTEXT, STEPS = 2000, ROWS = 10 };
    char text[2 * COUNT + 1];
    int32_t inputs[ROWS * CONTEXT], targets[ROWS * CONTEXT];
    int drawn[PLACES] = {0};
    for (int i = 0; i < COUNT; i++) {
        text[2 * i] = (char)(0xc4 + i / 64);
        text[2 * i + 1] = (char)(0x80 + i % 64);
    }
    cup_data *d = make_data(c, text, 2 * COUNT, CONTEXT);
    for (uint64_t step = 0; step < STEPS; step++) {
        EXPECT_INT(
            cup_data_batch(c, d, CUP_SPLIT_TRAIN, 7, step, 0, ROWS, CONTEXT, inputs, targets), 0);
        for (int r = 0; r < ROWS; r++)
            drawn[inputs[r * CONTEXT]]++;
    }
    double mean = (double)STEPS * ROWS / PLACES;
    for (int i = 0; i < PLACES; i++)
        EXPECT_NEAR(drawn[i], mean, 0.35 * mean);
    cup_data_free(d);
    cup_context_free(c);
}

TEST(data_too_short_has_a_sentence)
{
    cup_context *c = cpu();
    EXPECT(make_data(c, "a", 1, 256) == NULL);
    EXPECT_CONTAINS(cup_error_text(c),
                    "the data has 1 tokens, 0 for training and 1 for validation");
    EXPECT_CONTAINS(cup_error_text(c), "the context of 256; give more text or a smaller context");
    cup_error_clear(c);
    char *text = letters(300);
    EXPECT(make_data(c, text, 300, 30) == NULL);
    cup_error_clear(c);
    EXPECT(make_data(c, text, 300, 0) == NULL);
    cup_error_clear(c);
    EXPECT(make_data(c, text, 300, INT64_MAX) == NULL);
    cup_error_clear(c);
    cup_data *d = make_data(c, text, 300, 29);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_VALIDATION), 30);
    cup_data_free(d);
    free(text);
    cup_context_free(c);
}

/* More than 65536 tokens need more than 16 bits each; files end in the token for it. */
TEST(data_wide_tokens_and_ends_of_files)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    size_t length = 400000;
    char *text = letters(length);
    for (size_t i = 7; i < length; i += 8)
        text[i] = ' ';
    const char *first = put(folder, "1", text, length), *second = put(folder, "2", text, length);
    cup_corpus *corpus = cup_corpus_load(c, (const char *[]){first, second}, 2, NULL);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, 80000);
    EXPECT(cup_tokenizer_size(t) > 65536);
    cup_data *d = cup_data_new(c, corpus, t, 4);
    int64_t count = cup_data_count(d, CUP_SPLIT_VALIDATION);
    int32_t *inputs = malloc((size_t)count * 4), *targets = malloc((size_t)count * 4);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_VALIDATION, 0, 1, count - 1, inputs, targets),
               CUP_OK);
    int32_t end = cup_tokenizer_special(t, "<|endoftext|>"), largest = 0;
    EXPECT_INT(targets[count - 2], end);
    for (int64_t i = 0; i < count - 1; i++)
        largest = inputs[i] > largest ? inputs[i] : largest;
    EXPECT(largest > 65535 && largest < end);
    free(inputs);
    free(targets);
    free(text);
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    cup_context_free(c);
}

TEST(data_allocation_failures)
{
    const char *folder = test_folder();
    put(folder, "a.txt", "some text to read and to encode, ", 32);
    put(folder, "sub/b.txt", "and some more text", 18);
    cup_context *c = cpu();
    cup_data *d = NULL;
    for (long n = 1; !d; n++) {
        cup__memory_fail_at(n, false);
        cup_corpus *corpus = cup_corpus_load(c, &folder, 1, NULL);
        cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, 260);
        d = cup_data_new(c, corpus, t, 3);
        cup__memory_fail_at(0, false);
        EXPECT((d || cup_error(c) == CUP_MEMORY) && n < 1000);
        cup_error_clear(c);
        cup_tokenizer_free(t);
        cup_corpus_free(corpus);
    }
    cup_data_free(d);
    cup_context_free(c);
}
