/* Text into files of tokens, and text that is packed or in lines of JSON. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/data.h"
#include "data/reader.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"

static cup_context *cpu(int threads)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .threads = threads));
}

static const char *at(const char *folder, const char *name)
{
    static char paths[8][4400];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const char *put(const char *folder, const char *name, const char *text, size_t length)
{
    const char *path = at(folder, name);
    EXPECT_INT(cup__file_write(NULL, path, text, length), CUP_OK);
    return path;
}

/* Words, numbers, spaces of all kinds and characters beyond ASCII. */
static void add_words(cup__text *text, size_t length)
{
    static const char *const words[] = {"the",  " cat",    "'s",  " 12",  "\n",  "\n\n", "  ",
                                        " sat", " caf\u00e9", "!?",  "\t",   " on", " \u65e5",
                                        ".\n",  "A",       " 'tis", "\u00a0"};
    size_t end = text->length + length;
    while (text->length < end)
        cup__text_add(text, "%s", words[test_random() % (sizeof words / sizeof *words)]);
}

static cup_tokenizer *learn(cup_context *c, const cup__text *text, int64_t size)
{
    size_t some = text->length < 100000 ? text->length : 100000;
    cup_corpus *corpus = cup_corpus_new(c, text->bytes, some);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, size);
    cup_corpus_free(corpus);
    return t;
}

/* All tokens of a part; to be freed. */
static int32_t *tokens_of(cup_context *c, const cup_data *d, cup_split split, int64_t *count)
{
    *count = cup_data_count(d, split);
    int32_t *all = malloc((size_t)*count * sizeof *all);
    EXPECT_INT(cup_data_window(c, d, split, 0, 1, *count - 1, all, all + 1), CUP_OK);
    return all;
}

/* Pieces of a text, cut wherever it is possible, have the tokens of the whole. */
TEST(tokenize_cuts_change_no_token)
{
    cup_context *c = cpu(1);
    for (int round = 0; round < 200; round++) {
        cup__text text = {0};
        add_words(&text, 300);
        cup_tokenizer *t = learn(c, &text, 300);
        int32_t *whole = malloc(text.length * 4), *parts = malloc(text.length * 4);
        int64_t count = cup_tokenizer_encode(c, t, text.bytes, text.length, whole), sum = 0;
        for (size_t from = 0, cut = 1; cut; from += cut) {
            size_t left = text.length - from;
            cut = cup__reader_cut(text.bytes + from, left, 1 + test_random() % 20);
            sum += cup_tokenizer_encode(c, t, text.bytes + from, cut ? cut : left, parts + sum);
        }
        EXPECT_INT(sum, count);
        EXPECT(memcmp(whole, parts, (size_t)count * 4) == 0);
        free(whole);
        free(parts);
        cup__text_free(&text);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* What is read from the files is what the text gives in memory, by any number of threads. */
TEST(tokenize_writes_what_text_gives)
{
    const char *folder = test_folder();
    cup__text text = {0};
    add_words(&text, 3500000);
    put(folder, "text.txt", text.bytes, text.length);
    int64_t made[2][2];
    for (int round = 0; round < 2; round++) {
        cup_context *c = cpu(round ? 3 : 1);
        cup_tokenizer *t = learn(c, &text, 500);
        const char *out = at(folder, round ? "b" : "a"), *from = at(folder, "text.txt");
        cup_tokenized found = {0};
        EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 0.2,
                                CUP_OPTIONS(cup_tokenize_options, .shard_tokens = 400001), &found),
                   CUP_OK);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(found.texts, 1);
        EXPECT_INT(found.bytes, (int64_t)text.length);
        cup_tokenizer *again = cup_tokenizer_load(c, out);
        cup_data *d = cup_data_open(c, &out, 1, again, 8);
        EXPECT_INT(cup_data_files(d), found.files);
        EXPECT(found.files > 3);
        int64_t train, validation;
        int32_t *first = tokens_of(c, d, CUP_SPLIT_TRAIN, &train);
        int32_t *second = tokens_of(c, d, CUP_SPLIT_VALIDATION, &validation);
        int32_t *whole = malloc(text.length * 4);
        int64_t count = cup_tokenizer_encode(c, t, text.bytes, text.length, whole);
        EXPECT_INT(train + validation, count + 1);
        EXPECT_NEAR((double)validation / (double)count, 0.2, 0.01);
        EXPECT(memcmp(whole, first, (size_t)train * 4) == 0);
        EXPECT(memcmp(whole + train, second, (size_t)(validation - 1) * 4) == 0);
        EXPECT_INT(second[validation - 1], cup_tokenizer_special(t, "<|endoftext|>"));
        made[round][0] = train;
        made[round][1] = (int64_t)cup_data_hash(d);
        free(first);
        free(second);
        free(whole);
        cup_data_free(d);
        cup_tokenizer_free(t);
        cup_tokenizer_free(again);
        cup_context_free(c);
    }
    EXPECT(memcmp(made[0], made[1], sizeof made[0]) == 0);
    cup__text_free(&text);
}

static const char lines[] = "{\"id\": 1, \"text\": \"one \\u00e9\"}\n\n{\"text\": \"two\\n\"}\r\n"
                            "{\"text\": \"\", \"id\": 2}\n{\"text\": \"three\"}";
static const char joined[] = "one \u00e9two\nthree";

/* Whether the command is there that packs a file for a test. */
static bool pack(const char *folder, const char *command)
{
    char words[200];
    return test_command(words, sizeof words, "cd '%s' && %s 2>&1", folder, command) == 0;
}

TEST(corpus_reads_lines_and_packed_files)
{
    const char *folder = test_folder();
    put(folder, "a.jsonl", lines, sizeof lines - 1);
    if (!pack(folder, "gzip -k a.jsonl && cat a.jsonl.gz a.jsonl.gz >two.ndjson.gz && "
                      "zstd -q a.jsonl && printf text >t.txt && gzip t.txt"))
        test_skip("gzip or zstd is not installed");
    static const char *const names[] = {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst"};
    cup_context *c = cpu(1);
    for (int i = 0; i < 3; i++) {
        const char *path = at(folder, names[i]);
        cup_corpus *corpus = cup_corpus_load(c, &path, 1, NULL);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_TEXT(cup_corpus_text(corpus), joined);
        EXPECT_INT(cup_corpus_files(corpus), 3);
        cup_corpus_free(corpus);
    }
    const char *both[] = {at(folder, "two.ndjson.gz"), at(folder, "t.txt.gz")};
    EXPECT(cup_corpus_load(c, both, 2, NULL) == NULL); /* "{..}{..}" stands on one line of it */
    EXPECT_CONTAINS(cup_error_text(c), "two.ndjson.gz: line 5");
    cup_error_clear(c);
    cup_corpus *text = cup_corpus_load(c, both + 1, 1, NULL);
    EXPECT_TEXT(cup_corpus_text(text), "text");
    cup_corpus_free(text);
    cup_context_free(c);
}

static void expect_corpus_refused(const char *path, int64_t most, const char *words)
{
    cup_context *c = cpu(1);
    EXPECT(!cup_corpus_load(c, &path, 1, CUP_OPTIONS(cup_corpus_options, .most_bytes = most)));
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

TEST(corpus_bad_lines_and_packed_files_have_sentences)
{
    const char *folder = test_folder();
    put(folder, "zeros", "", 0);
    if (!pack(folder, "head -c 50000000 /dev/zero | tr '\\0' a >b.txt && gzip b.txt && "
                      "head -c 30000 b.txt.gz >cut.txt.gz && "
                      "printf abcdefgh | zstd -q >c.zst && head -c 12 c.zst >cut.zst"))
        test_skip("gzip or zstd is not installed");
    expect_corpus_refused(at(folder, "b.txt.gz"), 1 << 20, "more than 1048576 bytes; name fewer");
    expect_corpus_refused(at(folder, "cut.txt.gz"), 0, "ends in the middle of what is packed");
    expect_corpus_refused(at(folder, "cut.zst"), 0, "ends in the middle of what is packed");
    expect_corpus_refused(put(folder, "no.gz", "text", 4), 0, "cannot be unpacked");
    expect_corpus_refused(put(folder, "no.zst", "some text", 9), 0, "cannot be unpacked");
    expect_corpus_refused(put(folder, "a.jsonl", "{\"text\": \"a\"}\n{\"a\": 1}\n", 23), 0,
                          "a.jsonl: line 2: there is no field \"text\" with a text");
    expect_corpus_refused(put(folder, "b.jsonl", "{\"text\": 1}\n", 12), 0, "b.jsonl: line 1");
    expect_corpus_refused(put(folder, "c.jsonl", "{}\n\n{\n", 6), 0, "c.jsonl: line 1");
    setenv("CUP_LIBZ", "off", 1);
    setenv("CUP_LIBZSTD", "off", 1);
    expect_corpus_refused(at(folder, "b.txt.gz"), 0, "b.txt.gz needs libz.so.1");
    expect_corpus_refused(at(folder, "c.zst"), 0, "c.zst needs libzstd.so.1, which cannot be");
    unsetenv("CUP_LIBZ");
    unsetenv("CUP_LIBZSTD");
}

/* Files of all kinds in a folder; then what a text or a line alone gives. */
TEST(tokenize_reads_folders_and_lines)
{
    const char *folder = test_folder(), *from = at(folder, "texts"), *out = at(folder, "out/");
    EXPECT_INT(cup__folder_make(NULL, from), CUP_OK);
    put(folder, "texts/a.txt", "alpha", 5);
    put(folder, "texts/b.jsonl", lines, sizeof lines - 1);
    put(folder, "texts/binary", "a\0b", 3);
    put(folder, "texts/empty", "", 0);
    put(folder, "texts/z.txt", "omega", 5);
    cup_context *c = cpu(2);
    cup__text text = {0};
    cup__text_add(&text, "alpha%somega \n", joined);
    cup_tokenizer *t = learn(c, &text, 260);
    cup_tokenized made;
    EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 0, NULL, &made), CUP_OK);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(made.texts, 5);
    EXPECT_INT(made.skipped, 2);
    EXPECT_INT(made.validation, 0);
    EXPECT_INT(made.files, 1);
    EXPECT(made.train > 5 && made.train <= 5 + (int64_t)strlen(joined) + 5 + 5);
    cup_data *d = cup_data_open(c, &out, 1, t, 2);
    EXPECT_INT(cup_data_count(d, CUP_SPLIT_TRAIN) + cup_data_count(d, CUP_SPLIT_VALIDATION),
               made.train);
    EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 0, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "is not empty, and tokens replace nothing");
    cup_error_clear(c);
    const char *bad = put(folder, "bad.jsonl", "{\"text\": \"a\"}\nno\n", 17);
    EXPECT_INT(cup_tokenize(c, &bad, 1, t, at(folder, "other"), 0, NULL, NULL), CUP_FORMAT);
    EXPECT_CONTAINS(cup_error_text(c), "bad.jsonl: line 2");
    EXPECT(!cup__folder_exists(at(folder, "other")));
    EXPECT(!cup__folder_exists(at(folder, "other.part")));
    cup_data_free(d);
    cup__text_free(&text);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static bool stop(int64_t bytes, int64_t all, int64_t tokens, void *user)
{
    EXPECT(bytes <= all && tokens >= 0);
    return --*(int *)user < 0;
}

TEST(tokenize_stops_and_leaves_nothing)
{
    const char *folder = test_folder(), *out = at(folder, "out");
    cup__text text = {0};
    add_words(&text, 9000000);
    const char *from = put(folder, "text.txt", text.bytes, text.length);
    cup_context *c = cpu(1);
    cup_tokenizer *t = learn(c, &text, 300);
    int left = 1;
    EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 0.1,
                            CUP_OPTIONS(cup_tokenize_options, .shard_tokens = 1000000,
                                        .progress = stop, .user = &left),
                            NULL),
               CUP_INTERRUPTED);
    cup_error_clear(c);
    EXPECT(!cup__folder_exists(out) && !cup__folder_exists(at(folder, "out.part")));
    EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 1, NULL, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "part for validation is 1");
    cup_error_clear(c);
    cup__text_free(&text);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

TEST(tokenize_allocation_failures)
{
    const char *folder = test_folder();
    const char *from[] = {put(folder, "a.txt", "some text, and some more", 24),
                          put(folder, "b.jsonl", lines, sizeof lines - 1)};
    const char *out = at(folder, "out"), *part = at(folder, "out.part");
    cup_context *c = cpu(1);
    cup__text text = {0};
    add_words(&text, 400);
    cup_tokenizer *t = learn(c, &text, 260);
    cup_status status = CUP_MEMORY;
    for (long n = 1; status != CUP_OK; n++) {
        cup__memory_fail_at(n, false);
        status = cup_tokenize(c, from, 2, t, out, 0.3, NULL, NULL);
        cup__memory_fail_at(0, false);
        if (status != CUP_OK && status != CUP_MEMORY)
            test_fail(__FILE__, __LINE__, "allocation %ld: %s", n, cup_error_text(c));
        EXPECT(n < 1000);
        EXPECT(status == CUP_OK || (!cup__folder_exists(out) && !cup__folder_exists(part)));
        cup_error_clear(c);
    }
    cup__text_free(&text);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Tokens and nothing else, which nanoGPT reads and cup_data_open, too. */
TEST(tokenize_writes_what_nanogpt_reads)
{
    const char *folder = test_folder(), *out = at(folder, "out");
    cup__text text = {0};
    add_words(&text, 20000);
    const char *from = put(folder, "text.txt", text.bytes, text.length);
    cup_context *c = cpu(2);
    cup_tokenizer *t = learn(c, &text, 400);
    cup_tokenized made;
    const cup_tokenize_options how = {.size = sizeof how, .format = CUP_TOKEN_FORMAT_NANOGPT};
    EXPECT_INT(cup_tokenize(c, &from, 1, t, out, 0.25, &how, &made), CUP_OK);
    EXPECT_INT(made.files, 2);
    char *bytes;
    size_t length;
    EXPECT_INT(cup__file_read(NULL, at(folder, "out/train.bin"), 1 << 20, &bytes, &length), CUP_OK);
    EXPECT_INT((int64_t)length, 2 * made.train);
    int32_t *whole = malloc(text.length * 4);
    int64_t count = cup_tokenizer_encode(c, t, text.bytes, text.length, whole), train, validation;
    for (int64_t i = 0; i < made.train; i++)
        EXPECT_INT(((const uint16_t *)(const void *)bytes)[i], whole[i]);
    cup__free(bytes);
    cup_data *d = cup_data_open(c, &out, 1, t, 8);
    int32_t *first = tokens_of(c, d, CUP_SPLIT_TRAIN, &train);
    int32_t *second = tokens_of(c, d, CUP_SPLIT_VALIDATION, &validation);
    EXPECT_INT(train + validation, count + 1);
    EXPECT(memcmp(whole + train, second, (size_t)(validation - 1) * 4) == 0);
    free(first);
    free(second);
    free(whole);
    cup_data_free(d);
    /* What has no room in 16 bits, and a format that is none. */
    int32_t size = t->size;
    t->size = 65537;
    EXPECT_INT(cup_tokenize(c, &from, 1, t, at(folder, "b"), 0, &how, NULL), CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "16 bits a token, for 65536 of them, and the tokenizer has");
    cup_error_clear(c);
    t->size = size;
    EXPECT_INT(cup_tokenize(c, &from, 1, t, at(folder, "b"), 0,
                            CUP_OPTIONS(cup_tokenize_options, .format = (cup_token_format)2),
                            NULL),
               CUP_ARGUMENT);
    EXPECT_CONTAINS(cup_error_text(c), "there is no format 2");
    EXPECT(!cup__folder_exists(at(folder, "b")) && !cup__folder_exists(at(folder, "b.part")));
    cup_tokenizer_free(t);
    cup__text_free(&text);
    cup_context_free(c);
}

/* A file of tokens alone that begins as llm.c's do would be read as one of those. */
TEST(tokenize_writes_no_file_that_looks_like_another)
{
    const char *folder = test_folder();
    static const uint16_t tokens[] = {0xd888, 0x0134, 7};
    cup__error error = {0};
    for (int bare = 0; bare < 2; bare++) {
        cup__shard_writer w = {.folder = folder, .prefix = "train", .bare = bare, .most = 100,
                               .writer.handle = -1};
        EXPECT_INT(cup__shard_writer_add(&error, &w, tokens + 1, 2), CUP_OK);
        EXPECT_INT(cup__shard_writer_add(&error, &w, tokens, 3), CUP_OK);
        cup__shard_writer_undo(&w);
        w = (cup__shard_writer){.folder = folder, .prefix = "train", .bare = bare, .most = 100,
                                .writer.handle = -1};
        EXPECT_INT(cup__shard_writer_add(&error, &w, tokens, 3),
                   bare ? CUP_UNSUPPORTED : CUP_OK);
        cup__shard_writer_undo(&w);
    }
    EXPECT_CONTAINS(error.text, "look like a file of llm.c");
}
