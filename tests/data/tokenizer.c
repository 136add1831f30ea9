#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cupola/data.h"

static cup_context *cpu(void)
{
    cup_options options = {.size = sizeof options, .device = "cpu"};
    return cup_context_new(&options);
}

static cup_tokenizer *char_tokenizer(cup_context *c, const char *text)
{
    cup_corpus *corpus = cup_corpus_new(c, text, strlen(text));
    cup_tokenizer *t = cup_tokenizer_char_new(c, corpus);
    cup_corpus_free(corpus);
    return t;
}

static cup_tokenizer *bpe_tokenizer(cup_context *c, const char *text, size_t length, int64_t size)
{
    cup_corpus *corpus = cup_corpus_new(c, text, length);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, size);
    cup_corpus_free(corpus);
    if (!t)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    return t;
}

TEST(tokenizer_char)
{
    cup_context *c = cpu();
    cup_tokenizer *t = char_tokenizer(c, "hello w\u00e9\U0001f642 o\n");
    int32_t tokens[64];
    size_t bytes;
    EXPECT_TEXT(cup_tokenizer_kind(t), "char");
    EXPECT_INT(cup_tokenizer_size(t), 9);
    EXPECT_INT(cup_tokenizer_encode(c, t, "\n heo\u00e9\U0001f642", 11, tokens), 7);
    const int32_t want[] = {0, 1, 3, 2, 5, 7, 8};
    EXPECT(memcmp(tokens, want, sizeof want) == 0);
    EXPECT_INT(cup_tokenizer_encode(c, t, "", 0, tokens), 0);
    EXPECT(memcmp(cup_tokenizer_token(t, 7, &bytes), "\u00e9", 2) == 0 && bytes == 2);
    EXPECT(!cup_tokenizer_token(t, 9, &bytes) && !cup_tokenizer_token(t, -1, &bytes));
    EXPECT_INT(cup_tokenizer_special(t, "<|endoftext|>"), -1);

    EXPECT_INT(cup_tokenizer_encode(c, t, "h\u00e8", 3, tokens), -1);
    EXPECT_CONTAINS(cup_error_text(c),
                    "no character \"\u00e8\", U+00E8, which the text has at byte 1");
    cup_error_clear(c);
    EXPECT_INT(cup_tokenizer_encode(c, t, "h\x01", 2, tokens), -1);
    EXPECT_CONTAINS(cup_error_text(c), "no character U+0001,");
    cup_error_clear(c);
    EXPECT_INT(cup_tokenizer_encode(c, t, "h\xc3", 2, tokens), -1);
    EXPECT_CONTAINS(cup_error_text(c), "not UTF-8: byte 1 is 0xc3");
    cup_error_clear(c);
    EXPECT(char_tokenizer(c, "abc\xff") == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "not UTF-8: byte 3 is 0xff");
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static void expect_same(cup_context *c, const cup_tokenizer *a, const cup_tokenizer *b,
                        const char *text, size_t length)
{
    int32_t *x = malloc((length + 1) * 4), *y = malloc((length + 1) * 4);
    int64_t count = cup_tokenizer_encode(c, a, text, length, x);
    EXPECT_INT(cup_tokenizer_encode(c, b, text, length, y), count);
    EXPECT(count >= 0 && memcmp(x, y, (size_t)count * 4) == 0);
    EXPECT_INT(cup_tokenizer_size(a), cup_tokenizer_size(b));
    free(x);
    free(y);
}

TEST(tokenizer_files_round_trip)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder());
    const char *text = "the cat the hat the bat\n\xc3\xa9\t\"quoted\" \\ the end";
    cup_context *c = cpu();
    cup_tokenizer *kinds[] = {char_tokenizer(c, text), bpe_tokenizer(c, text, strlen(text), 300)};
    for (int i = 0; i < 2; i++) {
        EXPECT_INT(cup_tokenizer_save(c, kinds[i], path), CUP_OK);
        cup_tokenizer *back = cup_tokenizer_load(c, path);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_TEXT(cup_tokenizer_kind(back), cup_tokenizer_kind(kinds[i]));
        expect_same(c, kinds[i], back, text, strlen(text));
        EXPECT_INT(cup_tokenizer_special(back, "<|endoftext|>"),
                   cup_tokenizer_special(kinds[i], "<|endoftext|>"));
        cup_tokenizer_free(back);
        cup_tokenizer_free(kinds[i]);
    }
    cup_context_free(c);
}

static void expect_file_refused(const char *path, const char *text, const char *words)
{
    cup_context *c = cpu();
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    EXPECT(cup_tokenizer_load(c, path) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_context_free(c);
}

/* A BPE file with the 256 bytes in their order and what the case gives. */
static void expect_bpe_refused(const char *path, int size, const char *rest, const char *words)
{
    cup__text text = {0};
    cup__text_add(&text, "{\"schema\":1,\"kind\":\"bpe\",\"size\":%d,\"bytes\":[0", size);
    for (int i = 1; i < 256; i++)
        cup__text_add(&text, ",%d", i);
    cup__text_add(&text, "],%s}", rest);
    expect_file_refused(path, text.bytes, words);
    cup__text_free(&text);
}

TEST(tokenizer_bad_files_have_sentences)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder());
    static const char *const cases[][2] = {
        {"", "not valid JSON: an early end"},
        {"{\"schema\":2,\"kind\":\"char\"}", "\"schema\" must be a whole number from 1 to 1"},
        {"{\"kind\":\"char\"}", "no key \"schema\""},
        {"{\"schema\":1,\"kind\":\"word\"}", "\"char\" or \"bpe\""},
        {"{\"version\":\"1.0\",\"model\":{}}", "in another way"},
        {"{\"schema\":1,\"kind\":\"char\"}", "no key \"characters\""},
        {"{\"schema\":1,\"kind\":\"char\",\"characters\":\"\"}", "is empty"},
        {"{\"schema\":1,\"kind\":\"char\",\"characters\":\"ba\"}", "rising order"},
        {"{\"schema\":1,\"kind\":\"char\",\"characters\":\"aa\"}", "rising order"},
        {"{\"schema\":1,\"kind\":\"bpe\"}", "no key \"pattern\""},
        {"{\"schema\":1,\"kind\":\"bpe\",\"pattern\":\"gpt2\",\"size\":256,\"bytes\":[1],"
         "\"special\":{},\"merges\":[]}",
         "\"bytes\" must be 256 tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_file_refused(path, cases[i][0], cases[i][1]);
    static const struct {
        int size;
        const char *rest, *words;
    } bpe[] = {
        {256, "\"pattern\":\"x\",\"special\":{},\"merges\":[]", "pattern \"x\" is unknown"},
        {257, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[]", "nothing makes token 256"},
        {256, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,2]]", "must be 3 tokens"},
        {256, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[7]", "must be 3 tokens"},
        {256, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,-2,3]]", "must be 3 tokens"},
        {256, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,2,256]]", "not below the size"},
        {257, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,256,256]]", "token 256, which"},
        {257, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,999,256]]", "token 999, which"},
        {256, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,2,9]]", "made in two ways"},
        {257, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[1,2,256],[1,2,256]]",
         "there twice"},
        {257, "\"pattern\":\"gpt2\",\"special\":{\"x\":257},\"merges\":[]", "below \"size\""},
        {257, "\"pattern\":\"gpt2\",\"special\":{\"\":256},\"merges\":[]", "has 0 bytes"},
        {257, "\"pattern\":\"gpt2\",\"special\":[],\"merges\":[]", "must be an object"},
        {255, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[]", "\"size\" must be"}};
    for (size_t i = 0; i < sizeof bpe / sizeof *bpe; i++)
        expect_bpe_refused(path, bpe[i].size, bpe[i].rest, bpe[i].words);
}

/* Each merge doubles a token: 13 of them would make 8192 bytes. */
TEST(tokenizer_refuses_tokens_without_end)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder());
    cup__text rest = {0};
    cup__text_add(&rest, "\"pattern\":\"gpt2\",\"special\":{},\"merges\":[[97,97,256]");
    for (int i = 257; i < 269; i++)
        cup__text_add(&rest, ",[%d,%d,%d]", i - 1, i - 1, i);
    cup__text_add(&rest, "]");
    expect_bpe_refused(path, 269, rest.bytes, "token 268 has 8192 bytes");
    cup__text_free(&rest);
}

TEST(tokenizer_special_texts)
{
    cup_context *c = cpu();
    const char *text = "a<|endoftext|>b<|endoftext|><|endoftext<|endoftext|>";
    cup_tokenizer *t = bpe_tokenizer(c, "abab", 4, 257);
    int32_t tokens[64], end = cup_tokenizer_special(t, "<|endoftext|>");
    EXPECT_INT(end, 256);
    EXPECT_INT(cup_tokenizer_encode(c, t, text, strlen(text), tokens), 2 + 3 + 11);
    EXPECT(tokens[0] == 'a' && tokens[1] == end && tokens[2] == 'b' && tokens[3] == end);
    EXPECT(tokens[4] == '<' && tokens[15] == end);
    EXPECT_INT(cup_tokenizer_special(t, "<|x|>"), -1);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

TEST(tokenizer_sizes)
{
    cup_context *c = cpu();
    cup_corpus *corpus = cup_corpus_new(c, "abc abc", 7);
    EXPECT(cup_tokenizer_bpe_new(c, corpus, 256) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "256 tokens is not possible; give from 257");
    cup_error_clear(c);
    EXPECT(cup_tokenizer_bpe_new(c, corpus, (int64_t)1 << 40) == NULL);
    cup_error_clear(c);
    cup_tokenizer *t = cup_tokenizer_bpe_new(c, corpus, 100000);
    EXPECT_INT(cup_tokenizer_size(t), 256 + 2 + 1);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    cup_context_free(c);
}

static void decode(cup_decoder *d, const int32_t *tokens, int64_t count, cup__text *out)
{
    for (int64_t i = 0; i <= count; i++) {
        size_t bytes;
        const char *text =
            i < count ? cup_decoder_add(d, tokens[i], &bytes) : cup_decoder_end(d, &bytes);
        EXPECT(text && cup__utf8_check(text, bytes) == bytes);
        cup__text_append(out, text, bytes);
    }
}

TEST(tokenizer_decoder_gives_whole_characters)
{
    cup_context *c = cpu();
    cup_tokenizer *t = bpe_tokenizer(c, "x", 1, 257);
    cup_decoder *d = cup_decoder_new(c, t);
    int32_t tokens[64];
    size_t bytes;
    const char *text = "a\u00e9\u65e5\U0001f642z";
    int64_t count = cup_tokenizer_encode(c, t, text, strlen(text), tokens);
    cup__text out = {0};
    decode(d, tokens, count, &out);
    EXPECT_TEXT(out.bytes, text);
    out.length = 0;
    decode(d, (int32_t[]){'a', 0xff, 'b', 0xe6, 'c', 0xe6, 0x97}, 7, &out);
    EXPECT_TEXT(out.bytes, "a\ufffdb\ufffdc\ufffd");
    EXPECT(cup_decoder_add(d, 257, &bytes) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "there is no token 257; the vocabulary has 257");
    cup__text_free(&out);
    cup_decoder_free(d);
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Any bytes come back as they were, whatever the tokenizer was trained on. */
TEST(tokenizer_bpe_keeps_all_bytes)
{
    cup_context *c = cpu();
    static char train[20000], text[3000];
    static int32_t tokens[3000];
    for (size_t i = 0; i < sizeof train; i++)
        train[i] = "etaoin shrdlu\n\xc3\xa9'12"[test_random() % 20];
    cup_tokenizer *t = bpe_tokenizer(c, train, sizeof train, 700);
    EXPECT_INT(cup_tokenizer_size(t), 700);
    for (int round = 0; round < 300; round++) {
        size_t length = test_random() % sizeof text;
        for (size_t i = 0; i < length; i++)
            text[i] = round % 3 ? train[test_random() % sizeof train] : (char)test_random();
        int64_t count = cup_tokenizer_encode(c, t, text, length, tokens);
        EXPECT(count >= 0 && count <= (int64_t)length);
        size_t at = 0, bytes;
        for (int64_t i = 0; i < count; i++, at += bytes) {
            const char *token = cup_tokenizer_token(t, tokens[i], &bytes);
            EXPECT(at + bytes <= length && memcmp(text + at, token, bytes) == 0);
        }
        EXPECT_INT(at, length);
    }
    cup_tokenizer_free(t);
    cup_context_free(c);
}

static bool everything(cup_context *c, const char *folder)
{
    const char *text = "some text, some more text, and the end <|endoftext|> of the text";
    int32_t tokens[100];
    char path[4400];
    size_t bytes;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    cup_corpus *corpus = cup_corpus_new(c, text, strlen(text));
    cup_tokenizer *small = cup_tokenizer_char_new(c, corpus);
    cup_tokenizer *large = cup_tokenizer_bpe_new(c, corpus, 280);
    cup_tokenizer *back = NULL;
    if (large && cup_tokenizer_save(c, large, path) == CUP_OK)
        back = cup_tokenizer_load(c, folder);
    cup_decoder *decoder = back ? cup_decoder_new(c, back) : NULL;
    bool good = small && decoder && cup_decoder_add(decoder, 65, &bytes) &&
                cup_tokenizer_encode(c, back, text, strlen(text), tokens) > 0;
    cup_decoder_free(decoder);
    cup_tokenizer_free(back);
    cup_tokenizer_free(large);
    cup_tokenizer_free(small);
    cup_corpus_free(corpus);
    return good;
}

TEST(tokenizer_allocation_failures)
{
    const char *folder = test_folder();
    cup_context *c = cpu();
    bool good = false;
    for (long n = 1; !good; n++) {
        cup__memory_fail_at(n, false);
        good = everything(c, folder);
        cup__memory_fail_at(0, false);
        EXPECT(good || (cup_error(c) == CUP_MEMORY && n < 3000));
        cup_error_clear(c);
    }
    cup_context_free(c);
}
