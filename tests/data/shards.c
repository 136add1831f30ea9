/* Tokens in files, as llm.c and nanoGPT write them. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/data.h"
#include "data/shards.h"

enum { KINDS = 90, MAGIC = 20240520, MAGIC_WIDE = 20240801 };

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* One token for each of the characters from ! on: token i stands for i + 33. */
static cup_tokenizer *tokenizer(cup_context *c)
{
    char text[KINDS];
    for (int i = 0; i < KINDS; i++)
        text[i] = (char)(i + 33);
    cup_corpus *corpus = cup_corpus_new(c, text, sizeof text);
    cup_tokenizer *t = cup_tokenizer_char_new(c, corpus);
    cup_corpus_free(corpus);
    return t;
}

/* The token at a place of all that these tests write. */
static int token_at(int64_t place)
{
    return (int)(place * 7 % KINDS);
}

/* Writes tokens [first, first + count), with llm.c's header or, where the magic is 0, none. */
static const char *put(const char *folder, const char *name, int32_t magic, int32_t claimed,
                       int64_t first, int64_t count)
{
    static char path[4400];
    size_t each = magic == MAGIC_WIDE ? 4 : 2, begin = magic ? 1024 : 0;
    char *bytes = calloc(1, begin + (size_t)count * each + 1);
    const int32_t header[] = {magic, magic == MAGIC_WIDE ? 7 : 1, claimed};
    if (magic)
        memcpy(bytes, header, sizeof header);
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)token_at(first + i);
        memcpy(bytes + begin + (size_t)i * each, &token, each);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT_INT(cup__file_write(NULL, path, bytes, begin + (size_t)count * each), CUP_OK);
    free(bytes);
    return path;
}

/* Whether the windows of a part are the tokens from `first` on. */
static void expect_tokens(cup_context *c, const cup_data *d, cup_split split, int64_t first)
{
    enum { CONTEXT = 9 };
    int32_t inputs[CONTEXT], targets[CONTEXT];
    int64_t windows = cup_data_windows(d, split, CONTEXT);
    EXPECT(windows > 0);
    for (int64_t w = 0; w < windows; w++) {
        EXPECT_INT(cup_data_window(c, d, split, w, 1, CONTEXT, inputs, targets), CUP_OK);
        for (int i = 0; i < CONTEXT; i++) {
            EXPECT_INT(inputs[i], token_at(first + w * CONTEXT + i));
            EXPECT_INT(targets[i], token_at(first + w * CONTEXT + i + 1));
        }
    }
}

TEST(shards_of_a_folder_have_parts_by_their_names)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    put(folder, "news_train_000001.bin", MAGIC, 100, 0, 100);
    put(folder, "news_train_000002.bin", MAGIC, 3, 100, 3);
    put(folder, "news_train_000003.bin", MAGIC_WIDE, 50, 103, 50);
    put(folder, "news_val_000000.bin", MAGIC, 40, 1000, 40);
    put(folder, "readme.txt", 0, 0, 0, 10);
    EXPECT(cup_data_has_tokens(folder));
    cup_data *d = cup_data_open(c, &folder, 1, t, 8);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_data_files(d), 4);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_TRAIN), 153);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_VALIDATION), 40);
    expect_tokens(c, d, CUP_SPLIT_TRAIN, 0);
    expect_tokens(c, d, CUP_SPLIT_VALIDATION, 1000);
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* nanoGPT's; "val" within "retrieval_train" is not meant. */
TEST(shards_without_a_header)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    put(folder, "val.bin", 0, 0, 500, 60);
    const char *train = put(folder, "retrieval_train.bin", 0, 0, 0, 70000);
    EXPECT(cup_data_has_tokens(train) && !cup_data_has_tokens("/none/text.txt"));
    cup_data *alone = cup_data_open(c, &train, 1, t, 8);
    EXPECT_INT(cup_data_count(alone, CUP_SPLIT_TRAIN), 63000);
    EXPECT_INT(cup_data_count(alone, CUP_SPLIT_VALIDATION), 7000);
    expect_tokens(c, alone, CUP_SPLIT_VALIDATION, 63000);
    cup_data *both = cup_data_open(c, &folder, 1, t, 8);
    EXPECT_INT(cup_data_count(both, CUP_SPLIT_TRAIN), 70000);
    expect_tokens(c, both, CUP_SPLIT_TRAIN, 0);
    expect_tokens(c, both, CUP_SPLIT_VALIDATION, 500);
    EXPECT(cup_data_hash(alone) != cup_data_hash(both));
    cup_data_free(alone);
    cup_data_free(both);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Batches are those that the same tokens give in memory, whatever files they are cut into. */
TEST(shards_give_the_batches_of_text)
{
    enum { COUNT = 4000, ROWS = 16, CONTEXT = 24 };
    static int32_t a[2 * ROWS * CONTEXT], b[2 * ROWS * CONTEXT];
    const char *folder = test_folder();
    char text[COUNT], names[8][32];
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    for (int i = 0; i < COUNT; i++)
        text[i] = (char)(33 + token_at(i));
    cup_corpus *corpus = cup_corpus_new(c, text, COUNT);
    cup_data *memory = cup_data_new(c, corpus, t, CONTEXT);
    for (int64_t i = 0; i < 8; i++) {
        snprintf(names[i], sizeof names[i], "train_%lld.bin", (long long)i);
        put(folder, names[i], i % 2 ? MAGIC : 0, COUNT / 8, i * COUNT / 8, COUNT / 8);
    }
    cup_data *files = cup_data_open(c, &folder, 1, t, CONTEXT);
    for (int split = 0; split < 2; split++)
        for (uint64_t step = 0; step < 50; step++) {
            EXPECT_INT(cup_data_batch(c, memory, (cup_split)split, 3, step, 0, ROWS, CONTEXT, a,
                                      a + ROWS * CONTEXT),
                       CUP_OK);
            EXPECT_INT(cup_data_batch(c, files, (cup_split)split, 3, step, 0, ROWS, CONTEXT, b,
                                      b + ROWS * CONTEXT),
                       CUP_OK);
            EXPECT(memcmp(a, b, sizeof a) == 0);
        }
    cup_data_free(memory);
    cup_data_free(files);
    cup_corpus_free(corpus);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* A folder of text may hold a .bin file that is something else. */
TEST(shards_are_not_all_that_ends_in_bin)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    put(folder, "firmware.bin", 0, 0, 0, 100);
    EXPECT(!cup_data_has_tokens(folder));
    EXPECT(cup_data_open(c, &folder, 1, t, 8) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "neither a file of tokens");
    cup_error_clear(c);
    put(folder, "a.bin", MAGIC, 200, 0, 200);
    EXPECT(cup_data_has_tokens(folder));
    cup_data *d = cup_data_open(c, &folder, 1, t, 8);
    EXPECT_INT(cup_data_files(d), 1);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_TRAIN), 180);
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static void expect_refused(const char *path, cup_status status, const char *words)
{
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    EXPECT(cup_data_open(c, &path, 1, t, 8) == NULL);
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static const char *folder_of_bad;

static void expect_header_refused(const int32_t header[3], int64_t bytes, const char *words)
{
    char path[4400], content[1300] = {0};
    memcpy(content, header, 12);
    snprintf(path, sizeof path, "%s/bad.bin", folder_of_bad);
    EXPECT_INT(cup__file_write(NULL, path, content, (size_t)bytes), CUP_OK);
    expect_refused(path, CUP_FORMAT, words);
}

TEST(shards_that_are_none_have_sentences)
{
    const char *folder = folder_of_bad = test_folder();
    char path[4400];
    snprintf(path, sizeof path, "%s/none.bin", folder);
    expect_refused(path, CUP_IO, "there is no such file");
    expect_refused("text.txt", CUP_ARGUMENT, "neither a file of tokens");
    expect_refused("", CUP_ARGUMENT, "is empty");
    expect_header_refused((int32_t[]){MAGIC, 1, 100}, 1024 + 199, "has 100 tokens, and 199 bytes");
    expect_header_refused((int32_t[]){MAGIC, 1, 100}, 1024 + 202, "which would be 101");
    expect_header_refused((int32_t[]){MAGIC, 1, 0}, 1024, "has 0 tokens");
    expect_header_refused((int32_t[]){MAGIC, 1, -1}, 1024 + 200, "has -1 tokens");
    expect_header_refused((int32_t[]){MAGIC, 1, INT32_MAX}, 1024 + 200, "has 2147483647 tokens");
    expect_header_refused((int32_t[]){MAGIC_WIDE, 7, 50}, 1024 + 201, "has 50 tokens");
    expect_header_refused((int32_t[]){MAGIC, 1, 100}, 500, "middle of its header, at byte 500");
    expect_header_refused((int32_t[]){MAGIC, 2, 100}, 1224, "version 2 of llm.c's tokens");
    expect_header_refused((int32_t[]){20240326, 3, 100}, 1224, "file of a model, not of tokens");
    expect_header_refused((int32_t[]){1, 2, 3}, 13, "has 13 bytes, which are no tokens");
    expect_header_refused((int32_t[]){1, 2, 3}, 0, "has 0 bytes, which are no tokens");
    expect_header_refused((int32_t[]){1 << 16 | 3, 90, 3}, 200,
                          "bad.bin: token 2 is 90, and the tokenizer has 90 tokens only");
    expect_refused(put(folder, "short.bin", MAGIC, 70, 0, 70), CUP_ARGUMENT,
                   "the data has 70 tokens, 63 for training and 7 for validation");
}

/* Far from the places that are looked at when the file is opened. */
TEST(shards_are_checked_when_they_are_read)
{
    enum { COUNT = 200 * 32768, WHERE = 150 * 32768 + 100 };
    const char *folder = test_folder();
    int32_t inputs[8], targets[8];
    put(folder, "val.bin", 0, 0, 0, 100);
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    FILE *file = fopen(put(folder, "train.bin", 0, 0, 0, COUNT), "r+b");
    EXPECT(file != NULL);
    EXPECT_INT(fseek(file, 2 * WHERE, SEEK_SET), 0);
    EXPECT_INT((int64_t)fwrite("\xff\xff", 1, 2, file), 2);
    EXPECT_INT(fclose(file), 0);
    cup_data *d = cup_data_open(c, &folder, 1, t, 8);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_TRAIN, WHERE / 8 - 1, 1, 8, inputs, targets),
               CUP_OK);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_TRAIN, WHERE / 8, 1, 8, inputs, targets),
               CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "train.bin: token 4915300 is 65535");
    cup_error_clear(c);
    put(folder, "train.bin", 0, 0, 0, COUNT - 1);
    EXPECT_INT(cup_data_window(c, d, CUP_SPLIT_TRAIN, 0, 1, 8, inputs, targets), CUP_IO);
    EXPECT_CONTAINS(cup_error_text(c), "leave it alone while it is read");
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

TEST(shards_allocation_failures)
{
    const char *folder = test_folder();
    put(folder, "a_train.bin", MAGIC, 100, 0, 100);
    put(folder, "b_val.bin", 0, 0, 0, 100);
    cup_context *c = cpu();
    cup_tokenizer *t = tokenizer(c);
    cup_data *d = NULL;
    for (long n = 1; !d; n++) {
        cup__memory_fail_at(n, false);
        d = cup_data_open(c, &folder, 1, t, 3);
        cup__memory_fail_at(0, false);
        EXPECT((d || cup_error(c) == CUP_MEMORY || cup_error(c) == CUP_ARGUMENT) && n < 1000);
        cup_error_clear(c);
    }
    cup_data_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}
