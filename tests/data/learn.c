/* Tokenizers that are learned from files of any size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/data.h"
#include "data/tokenizer.h"
#include "tensor/context.h"
#include "test.h"

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

/* Words of few syllables, the first of which are the most frequent, with signs between. */
static void add_words(cup__text *text, size_t length)
{
    static const char syllables[] = "katosumirelanopeduviga";
    static const char *const between[] = {" ", " ", " ", " ", ", ", ".\n", " caf\u00e9 ", " 12"};
    size_t end = text->length + length;
    while (text->length < end) {
        for (uint64_t n = 1 + test_random() % 4; n; n--) {
            uint64_t a = test_random() % 11, b = test_random() % 11;
            cup__text_append(text, syllables + 2 * (a < b ? a : b), 2);
        }
        cup__text_add(text, "%s", between[test_random() % 8]);
    }
}

/* A tokenizer as the text of its file; to be freed. It is freed. */
static cup__text file_of(cup_context *c, cup_tokenizer *t)
{
    cup__text text = {0};
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT(t && cup__tokenizer_text(&c->error, t, &text) == CUP_OK);
    cup_tokenizer_free(t);
    return text;
}

/* From a file, packed or not, by any number of threads, comes what the text gives in memory. */
TEST(learn_gives_what_text_in_memory_gives)
{
    const char *folder = test_folder();
    cup__text text = {0};
    add_words(&text, 5000000);
    put(folder, "text.txt", text.bytes, text.length);
    char command[4600], out[100];
    snprintf(command, sizeof command, "cd '%s' && gzip -k text.txt && zstd -q text.txt", folder);
    bool packed = test_command(out, sizeof out, "%s", command) == 0;
    cup_context *c = cpu(1);
    cup_corpus *corpus = cup_corpus_new(c, text.bytes, text.length);
    cup__text whole = file_of(c, cup_tokenizer_bpe_new(c, corpus, 700));
    cup_corpus_free(corpus);
    cup_context_free(c);
    static const char *const names[] = {"text.txt", "text.txt.gz", "text.txt.zst"};
    for (int i = 0; i < (packed ? 3 : 1); i++)
        for (int threads = 1; threads < 4; threads += 2) {
            const char *from = at(folder, names[i]);
            cup_tokenizer_learned l;
            c = cpu(threads);
            cup__text learned = file_of(c, cup_tokenizer_learn(c, &from, 1, 700, NULL, &l));
            EXPECT_TEXT(learned.bytes, whole.bytes);
            EXPECT_INT(l.texts, 1);
            EXPECT_INT(l.merges, 700 - 257);
            EXPECT(l.dropped == 0 && l.words > 900000 && l.different > 3000);
            cup__text_free(&learned);
            cup_context_free(c);
        }
    cup__text_free(&text);
    cup__text_free(&whole);
}

/* Each text of JSON Lines is one, and words do not reach from one to the next. */
TEST(learn_reads_lines_and_folders)
{
    const char *folder = test_folder(), *from = at(folder, "texts");
    EXPECT_INT(cup__folder_make(NULL, from), CUP_OK);
    put(folder, "texts/a.jsonl", "{\"t\": \"abab\"}\n\n{\"t\": \"abab\"}\n", 29);
    put(folder, "texts/b.txt", "abab", 4);
    put(folder, "texts/binary", "a\0b", 3);
    cup_context *c = cpu(2);
    cup_tokenizer_learned l;
    cup_tokenizer *t = cup_tokenizer_learn(
        c, &from, 1, 400, CUP_OPTIONS(cup_tokenizer_learn_options, .text_field = "t"), &l);
    EXPECT_TEXT(cup_error_text(c), "");
    EXPECT_INT(l.texts, 3);
    EXPECT_INT(l.skipped, 1);
    EXPECT_INT(l.words, 3);
    EXPECT_INT(l.different, 1);
    EXPECT_INT(cup_tokenizer_size(t), 256 + 2 + 1); /* ab, abab, and the end of a text */
    int32_t tokens[9];
    EXPECT_INT(cup_tokenizer_encode(c, t, "abab", 4, tokens), 1);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Words of any frequency, counted beside in an array. */
TEST(words_are_joined_and_bounded)
{
    enum { WORDS = 3000, OTHERS = 3 };
    static int64_t counts[WORDS];
    cup__words words = {0}, others[OTHERS] = {0}, *list[OTHERS];
    char text[300];
    int64_t all = 0, dropped = 0, kept = 0;
    for (int i = 0; i < WORDS; i++)
        for (uint64_t n = 1 + test_random() % (i % 10 ? 4 : 60); n; n--, counts[i]++, all++) {
            int length = snprintf(text, sizeof text, "w%d", i);
            EXPECT(cup__words_add(&others[test_random() % OTHERS], text, (size_t)length));
        }
    for (int i = 0; i < OTHERS; i++)
        list[i] = &others[i];
    EXPECT(cup__words_join(&words, list, OTHERS));
    EXPECT(cup__words_count(&words) == WORDS && cup__words_count(&others[1]) == 0);
    EXPECT(cup__words_bound(&words, WORDS, &dropped) && dropped == 0);
    EXPECT(cup__words_bound(&words, 400, &dropped));
    size_t left = cup__words_count(&words);
    EXPECT(left <= 300 && left > 200);
    int64_t least = all;
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        for (size_t k = 0; k < words.tables[i].texts.count; k++) {
            const struct cup__string *s = &words.tables[i].texts.string[k];
            int64_t count = words.tables[i].counts[k];
            snprintf(text, sizeof text, "%.*s", (int)s->length - 1, s->bytes + 1);
            EXPECT_INT(count, counts[atoi(text)]);
            counts[atoi(text)] = 0;
            least = count < least ? count : least;
            kept += count;
        }
    EXPECT_INT(kept + dropped, all);
    for (int i = 0; i < WORDS; i++)
        EXPECT(counts[i] < least);
    memset(text, 'a', sizeof text);
    EXPECT(cup__words_add(&words, text, 300));
    EXPECT(cup__words_count(&words) == left + 2);
    cup__words_free(&words);
}

/* What is dropped is told, does not depend on threads, and takes no frequent word. */
TEST(learn_keeps_to_the_most_words)
{
    const char *folder = test_folder();
    cup__text text = {0}, first = {0};
    add_words(&text, 2500000);
    const char *from = put(folder, "text.txt", text.bytes, text.length);
    for (int threads = 1; threads < 4; threads += 2) {
        cup_context *c = cpu(threads);
        cup_tokenizer_learned l;
        cup__text learned = file_of(
            c, cup_tokenizer_learn(c, &from, 1, 300,
                                   CUP_OPTIONS(cup_tokenizer_learn_options, .words = 1000), &l));
        EXPECT(l.different <= 750 && l.dropped > 1000 && l.dropped < l.words / 2);
        if (threads > 1)
            EXPECT_TEXT(learned.bytes, first.bytes);
        cup__text_free(&first);
        first = learned;
        cup_context_free(c);
    }
    cup__text_free(&first);
    cup__text_free(&text);
}

static bool stop(int64_t bytes, int64_t all, int64_t merges, void *user)
{
    int *left = user;
    EXPECT(bytes <= all && (!merges || bytes == all));
    *left -= merges > 0 || *left > 1;
    return *left < 0;
}

TEST(learn_refuses_and_stops)
{
    const char *folder = test_folder(), *none = at(folder, "none");
    cup__text text = {0};
    add_words(&text, 300000);
    for (int i = 0; i < 12000; i++)
        cup__text_add(&text, " w%d w%d", i, i);
    const char *from = put(folder, "text.txt", text.bytes, text.length);
    cup_context *c = cpu(2);
    EXPECT(!cup_tokenizer_learn(c, &from, 1, 256, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "give from 257");
    cup_error_clear(c);
    EXPECT(!cup_tokenizer_learn(c, &from, 0, 300, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "no data was named");
    cup_error_clear(c);
    EXPECT(!cup_tokenizer_learn(c, &none, 1, 300, NULL, NULL));
    EXPECT(cup_error(c) != CUP_OK);
    cup_error_clear(c);
    EXPECT(!cup_tokenizer_learn(c, &from, 1, 300,
                                CUP_OPTIONS(cup_tokenizer_learn_options, .words = 10), NULL));
    EXPECT_CONTAINS(cup_error_text(c), "10 different words at most; give 1000");
    cup_error_clear(c);
    const char *bad = put(folder, "bad.jsonl", "{\"text\": \"a\"}\nno\n", 17);
    EXPECT(!cup_tokenizer_learn(c, &bad, 1, 300, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "bad.jsonl: line 2");
    cup_error_clear(c);
    const char *blank = put(folder, "blank.jsonl", "\n\n", 2);
    EXPECT(!cup_tokenizer_learn(c, &blank, 1, 300, NULL, NULL));
    EXPECT_CONTAINS(cup_error_text(c), "there is no text in the files");
    cup_error_clear(c);
    /* While it reads, and while it merges. */
    for (int left = 0; left < 2; left++) {
        int calls = left;
        EXPECT(!cup_tokenizer_learn(
            c, &from, 1, 900,
            CUP_OPTIONS(cup_tokenizer_learn_options, .progress = stop, .user = &calls), NULL));
        EXPECT_INT(cup_error(c), CUP_INTERRUPTED);
        cup_error_clear(c);
    }
    cup__text_free(&text);
    cup_context_free(c);
}

TEST(learn_survives_want_of_memory)
{
    const char *folder = test_folder();
    cup__text text = {0};
    add_words(&text, 3000);
    const char *from = put(folder, "text.txt", text.bytes, text.length);
    cup_context *c = cpu(1);
    bool failed = true;
    for (long n = 1; failed; n++) {
        cup__memory_fail_at(n, false);
        cup_tokenizer *t = cup_tokenizer_learn(c, &from, 1, 270, NULL, NULL);
        cup__memory_fail_at(0, false);
        failed = !t;
        EXPECT(t ? cup_error(c) == CUP_OK : cup_error(c) == CUP_MEMORY);
        cup_error_clear(c);
        cup_tokenizer_free(t);
    }
    cup__text_free(&text);
    cup_context_free(c);
}
