#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/data.h"

static cup_context *cpu(void)
{
    cup_options options = {.size = sizeof options, .device = "cpu"};
    return cup_context_new(&options);
}

static cup_tokenizer *train(cup_context *c, const char *text, size_t length, int64_t size)
{
    cup_corpus *corpus = cup_corpus_new(c, text, length);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, size);
    cup_corpus_free(corpus);
    if (!t)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    return t;
}

static void expect_token(const cup_tokenizer *t, int32_t token, const char *text)
{
    size_t bytes;
    const char *got = cup_tokenizer_token(t, token, &bytes);
    if (!got || bytes != strlen(text) || memcmp(got, text, bytes) != 0)
        test_fail(__FILE__, __LINE__, "token %d is \"%.*s\", expected \"%s\"", token, (int)bytes,
                  got ? got : "", text);
}

/* The words of the paper that brought BPE to text: low 5, lower 2, newest 6, widest 3. */
TEST(bpe_learns_the_known_example)
{
    cup__text text = {0};
    const char *const words[] = {"low", "lower", "newest", "widest"};
    const int counts[] = {5, 2, 6, 3};
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < counts[w]; i++)
            cup__text_add(&text, "%s\n", words[w]);
    cup_context *c = cpu();
    cup_tokenizer *t = train(c, text.bytes, text.length, 257 + 6);
    const char *const want[] = {"es", "est", "lo", "low", "ew", "new"};
    for (int i = 0; i < 6; i++)
        expect_token(t, 256 + i, want[i]);
    expect_token(t, 262, "<|endoftext|>");
    cup__text_free(&text);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* The rule in its plainest form, for words of letters with a space in front. */
#define MOST 400
typedef struct plain {
    int32_t symbols[MOST];
    int count;
    int32_t merges[64][2];
    int merge_count;
} plain;

static bool same_word(const char *letters, int i)
{
    return letters[i] != ' ';
}

static void plain_merge(plain *p, char *begins, int32_t left, int32_t right, int32_t token)
{
    int to = 0;
    for (int i = 0; i < p->count; to++) {
        bool both = i + 1 < p->count && p->symbols[i] == left && p->symbols[i + 1] == right &&
                    !begins[i + 1];
        char begin = begins[i];
        p->symbols[to] = both ? token : p->symbols[i];
        i += both ? 2 : 1;
        begins[to] = begin;
    }
    p->count = to;
}

static bool plain_learn(plain *p, char *begins)
{
    int best = 1;
    int32_t left = 0, right = 0;
    for (int i = 0; i + 1 < p->count; i++) {
        int32_t a = p->symbols[i], b = p->symbols[i + 1];
        int count = 0;
        for (int j = 0; j + 1 < p->count; j++)
            count += p->symbols[j] == a && p->symbols[j + 1] == b && !begins[j + 1];
        bool lower = a < left || (a == left && b < right);
        if (!begins[i + 1] && (count > best || (count == best && best > 1 && lower))) {
            best = count;
            left = a;
            right = b;
        }
    }
    if (best < 2)
        return false;
    p->merges[p->merge_count][0] = left;
    p->merges[p->merge_count][1] = right;
    plain_merge(p, begins, left, right, 256 + p->merge_count++);
    return true;
}

/* The trained text, encoded, must be what is left when all merges were learned on it; and so must
 * any other text when the merges are applied one after the other. */
TEST(bpe_learns_and_encodes_as_the_plain_rule)
{
    cup_context *c = cpu();
    for (int round = 0; round < 60; round++) {
        char text[MOST], begins[MOST];
        int32_t tokens[MOST];
        plain p = {.count = 50 + (int)(test_random() % (MOST - 50))};
        for (int i = 0; i < p.count; i++)
            text[i] = "aab b"[test_random() % (round % 2 ? 5 : 3)];
        for (int i = 0; i < p.count; i++)
            text[i] = i % 30 == 0                                    ? ' '
                      : text[i] == ' ' && text[i ? i - 1 : 0] == ' ' ? 'a'
                                                                     : text[i];
        text[p.count - 1] = 'b';
        for (int i = 0; i < p.count; i++) {
            p.symbols[i] = text[i];
            begins[i] = !same_word(text, i);
        }
        int length = p.count;
        while (p.merge_count < 20 && plain_learn(&p, begins))
            ;
        cup_tokenizer *t = train(c, text, (size_t)length, 257 + 20);
        EXPECT_INT(cup_tokenizer_size(t), 257 + p.merge_count);
        EXPECT_INT(cup_tokenizer_encode(c, t, text, (size_t)length, tokens), p.count);
        EXPECT(memcmp(tokens, p.symbols, (size_t)p.count * sizeof *tokens) == 0);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* Words met before, words beyond the cache and words too long for it give the same tokens as a word
 * alone does. */
TEST(bpe_cache_changes_nothing)
{
    cup_context *c = cpu();
    cup__text text = {0};
    for (int n = 0; n < 130000; n++) {
        int i = n % 80000;
        cup__text_add(
            &text, " %.*sw%c%c%c%c", i % 100 ? 0 : 70,
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz",
            'a' + i % 26, 'a' + i / 26 % 26, 'a' + i / 676 % 26, 'a' + i / 17576 % 26);
    }
    cup_tokenizer *t = train(c, text.bytes, 200000, 400);
    int32_t *all = malloc(text.length * 4), one[128];
    int64_t count = cup_tokenizer_encode(c, t, text.bytes, text.length, all), at = 0;
    for (size_t from = 0, to; from < text.length; from = to) {
        for (to = from + 1; to < text.length && text.bytes[to] != ' '; to++)
            ;
        int64_t few = cup_tokenizer_encode(c, t, text.bytes + from, to - from, one);
        EXPECT(few > 0 && at + few <= count);
        EXPECT(memcmp(all + at, one, (size_t)few * 4) == 0);
        at += few;
    }
    EXPECT_INT(at, count);
    free(all);
    cup__text_free(&text);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* GPT-2's way to write a byte. */
static void add_byte(cup__text *out, int byte)
{
    int next = 256, code = byte;
    for (int b = 0; b <= byte; b++) {
        bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        code = printed ? b : next++;
    }
    if (code == '"' || code == '\\')
        cup__text_append(out, "\\", 1);
    if (code < 128)
        cup__text_add(out, "%c", code);
    else
        cup__text_add(out, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 63));
}

static void add_token(cup__text *out, const cup_tokenizer *t, int32_t token)
{
    size_t bytes;
    const unsigned char *text = (const unsigned char *)cup_tokenizer_token(t, token, &bytes);
    for (size_t i = 0; i < bytes; i++)
        add_byte(out, text[i]);
}

/* A vocabulary in GPT-2's order: bytes that can be printed first. */
static int32_t gpt2_number(int32_t token)
{
    int32_t number = 0;
    if (token >= 256)
        return token;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            if (printed != (pass == 0))
                continue;
            if (b == token)
                return number;
            number++;
        }
    return -1;
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
}

static const char sample[] =
    "\"It's \\ the caf\xc3\xa9\", the man's caf\xc3\xa9\n\n the caf\xc3\xa9 \xff";

/* Two merges, "t h" and "th e" with the space's letter, are written by hand as in the real file. */
TEST(bpe_reads_gpt2_files)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_tokenizer *t = train(c, "abc abc", 7, 257);
    cup__text vocabulary = {0};
    cup__text_add(&vocabulary, "{");
    for (int32_t i = 0; i < 256; i++) {
        cup__text_add(&vocabulary, "\"");
        add_token(&vocabulary, t, i);
        cup__text_add(&vocabulary, "\": %d, ", gpt2_number(i));
    }
    cup__text_add(&vocabulary, "\"th\": 256, \"\u0120the\": 257, \"<|endoftext|>\": 258, "
                               "\"\u0120th\": 259}");
    put(folder, "vocab.json", vocabulary.bytes);
    put(folder, "merges.txt", "#version: 0.2\nt h\n\u0120 th\r\n\u0120th e\n");
    cup_tokenizer *gpt2 = cup_tokenizer_load(c, folder);
    EXPECT_TEXT(cup_error_text(c), "");
    int32_t got[100];
    EXPECT_INT(gpt2_number('!'), 0);
    EXPECT_INT(gpt2_number('t'), 83);
    EXPECT_INT(gpt2_number(' '), 220);
    EXPECT_INT(gpt2_number('\n'), 198);
    EXPECT_INT(cup_tokenizer_encode(c, gpt2, "the the!\n\n<|endoftext|>", 23, got), 7);
    const int32_t want[] = {256, 68, 257, 0, 198, 198, 258};
    EXPECT(memcmp(got, want, sizeof want) == 0);
    EXPECT_INT(cup_tokenizer_special(gpt2, "<|endoftext|>"), 258);
    expect_token(gpt2, 257, " the");
    int64_t count = cup_tokenizer_encode(c, gpt2, sample, strlen(sample), got);
    cup__text back = {0};
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = cup_tokenizer_token(gpt2, got[i], &bytes);
        cup__text_append(&back, text, bytes);
    }
    EXPECT_TEXT(back.bytes, sample);
    char path[4400];
    snprintf(path, sizeof path, "%s/own.json", folder);
    EXPECT_INT(cup_tokenizer_save(c, gpt2, path), CUP_OK);
    cup_tokenizer *own = cup_tokenizer_load(c, path);
    int32_t again[100];
    EXPECT_INT(cup_tokenizer_encode(c, own, sample, strlen(sample), again), count);
    EXPECT(memcmp(got, again, (size_t)count * 4) == 0);
    cup__text_free(&back);
    cup__text_free(&vocabulary);
    cup_tokenizer_free(own);
    cup_tokenizer_free(gpt2);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static void expect_refused(const char *folder, const char *words)
{
    cup_context *c = cpu();
    EXPECT(cup_tokenizer_load(c, folder) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

TEST(bpe_bad_gpt2_files_have_sentences)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    cup_tokenizer *t = train(c, "abc abc", 7, 257);
    cup__text bytes = {0}, all = {0};
    for (int32_t i = 0; i < 256; i++) {
        cup__text_add(&bytes, "%s\"", i ? ", " : "");
        add_token(&bytes, t, i);
        cup__text_add(&bytes, "\": %d", i);
    }
    cup__text_add(&all, "{%s, \"ab\": 256}", bytes.bytes);
    put(folder, "vocab.json", all.bytes);
    expect_refused(folder, "merges.txt cannot be opened: there is no such file");
    static const char *const merges[] = {"a b\nb c\n", "ab\n", "a b c\n", "a \u65e5\n",
                                         "a b\n\xff\n"};
    const char *const lines[] = {"line 2", "line 1", "line 1", "line 1", "line 2"};
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) {
        put(folder, "merges.txt", merges[i]);
        expect_refused(folder, lines[i]);
    }
    put(folder, "merges.txt", "a b\n\na b\n");
    expect_refused(folder, "merge 1 is there twice");
    put(folder, "merges.txt", "a b\n");
    put(folder, "vocab.json", "{}");
    expect_refused(folder, "256 texts or more");
    put(folder, "vocab.json", "[1,2]");
    expect_refused(folder, "256 texts or more");
    const char *const more[][2] = {{", \"ab\": -1", "must have a token from 0 to 256"},
                                   {", \"ab\": 257", "must have a token from 0 to 256"},
                                   {", \"ab\": 1.5", "must have a token from 0 to 256"},
                                   {", \"ab\": 255", "made in two ways"}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        all.length = 0;
        cup__text_add(&all, "{%s%s}", bytes.bytes, more[i][0]);
        put(folder, "vocab.json", all.bytes);
        expect_refused(folder, more[i][1]);
    }
    all.length = 0;
    cup__text_add(&all, "{\"ab\": 0%s}", strchr(bytes.bytes, ','));
    put(folder, "vocab.json", all.bytes);
    expect_refused(folder, "no token for the byte 0x00");
    cup__text_free(&bytes);
    cup__text_free(&all);
    cup_tokenizer_free(t);
    cup_context_free(c);
}
