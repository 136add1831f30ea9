/* tokenizer.json of others. bench/published_tokenizers.py holds what is read of it to the library
 * that writes it. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/data.h"
#include "test.h"

#define LEVEL(words) "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":" words "}"
#define SPLIT(digits)                                                                              \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" digits       \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"     \
    "\"behavior\":\"Isolated\",\"invert\":false}," LEVEL("false") "]}"
#define DIGITS                                                                                     \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"  \
    LEVEL("true") "]}"

static char path[4400];

static cup_context *begin(void)
{
    snprintf(path, sizeof path, "%s/tokenizer.json", test_folder());
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* A file with the 256 bytes, each as GPT-2 writes it, then the merges 1 2, 12 3 and space a, and a
 * token beside the vocabulary. */
static void put(const char *words, const char *more)
{
    cup__text text = {0};
    int next = 256;
    cup__text_add(&text, "{\"version\":\"1.0\",%s"
                         "\"added_tokens\":[{\"id\":259,\"content\":\"<|end|>\"}],"
                         "\"pre_tokenizer\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{",
                  more, words);
    for (int b = 0; b < 256; b++) {
        bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        cup__text_add(&text, "\"\\u%04x\":%d,", printed ? b : next++, b);
    }
    cup__text_add(&text, "\"12\":256,\"123\":257,\"\\u0120a\":258},"
                         "\"merges\":[\"1 2\",[\"12\",\"3\"],\"\\u0120 a\"]}}");
    EXPECT_INT(cup__file_write(NULL, path, text.bytes, text.length), CUP_OK);
    cup__text_free(&text);
}

static void expect_tokens(cup_context *c, const cup_tokenizer *t, const char *text,
                          const int32_t *wanted)
{
    int32_t tokens[64];
    int64_t count = cup_tokenizer_encode(c, t, text, strlen(text), tokens), i = 0;
    for (; i < count && wanted[i] >= 0; i++)
        EXPECT_INT(tokens[i], wanted[i]);
    EXPECT(i == count && wanted[i] < 0);
}

/* Words end where the file says; and what is written again is read as the same. */
TEST(tokenizer_json_of_others_is_read_and_written)
{
    static const struct {
        const char *words;
        int32_t tokens[20]; /* of " a123123<|end|> a" */
    } cases[] = {
        {LEVEL("true"), {258, 257, 257, 259, 258, -1}},
        {SPLIT("{1,3}"), {258, 257, 257, 259, 258, -1}},
        {SPLIT(""), {258, '1', '2', '3', '1', '2', '3', 259, 258, -1}},
        {DIGITS, {258, '1', '2', '3', '1', '2', '3', 259, 258, -1}},
    };
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(cases[i].words, i % 2 ? "\"normalizer\":{\"type\":\"NFC\"}," : "\"normalizer\":null,");
        cup_tokenizer *t = cup_tokenizer_load(c, path);
        EXPECT_TEXT(cup_error_text(c), "");
        EXPECT_INT(cup_tokenizer_size(t), 260);
        EXPECT_INT(cup_tokenizer_special(t, "<|end|>"), 259);
        expect_tokens(c, t, " a123123<|end|> a", cases[i].tokens);
        EXPECT_INT(cup_tokenizer_export(c, t, path), CUP_OK);
        cup_tokenizer *again = cup_tokenizer_load(c, path);
        EXPECT_TEXT(cup_error_text(c), "");
        expect_tokens(c, again, " a123123<|end|> a", cases[i].tokens);
        EXPECT_INT(cup_tokenizer_save(c, again, path), CUP_OK);
        cup_tokenizer *own = cup_tokenizer_load(c, path);
        expect_tokens(c, own, " a123123<|end|> a", cases[i].tokens);
        cup_tokenizer_free(own);
        cup_tokenizer_free(again);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* Three digits at most are a word of Llama 3's, and a line's end belongs to the signs before it. */
TEST(tokenizer_json_has_the_words_of_its_pattern)
{
    cup_context *c = begin();
    put(SPLIT("{1,3}"), "");
    cup_tokenizer *t = cup_tokenizer_load(c, path);
    expect_tokens(c, t, "11232", (const int32_t[]){'1', 256, '3', '2', -1});
    expect_tokens(c, t, "12", (const int32_t[]){256, -1});
    cup_tokenizer_free(t);
    put(LEVEL("true"), "");
    t = cup_tokenizer_load(c, path);
    expect_tokens(c, t, "11232", (const int32_t[]){'1', 257, '2', -1});
    cup_tokenizer_free(t);
    cup_context_free(c);
}

TEST(tokenizer_json_of_another_kind_is_refused)
{
    static const struct {
        const char *words, *more, *part;
    } cases[] = {
        {LEVEL("false"), "", "in another way"},
        {"null", "", "in another way"},
        {"{\"type\":\"Whitespace\"}", "", "in another way"},
        {"{\"type\":\"ByteLevel\"}", "", "in another way"},
        {SPLIT("{1,2}"), "", "in another way"},
        {LEVEL("true"), "\"normalizer\":{\"type\":\"Lowercase\"},", "a normalizer other than NFC"},
    };
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(cases[i].words, cases[i].more);
        EXPECT(!cup_tokenizer_load(c, path));
        EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
        EXPECT_CONTAINS(cup_error_text(c), cases[i].part);
        cup_error_clear(c);
    }
    cup_corpus *corpus = cup_corpus_new(c, "abc", 3);
    cup_tokenizer *t = cup_tokenizer_char_new(c, corpus);
    EXPECT_INT(cup_tokenizer_export(c, t, path), CUP_UNSUPPORTED);
    cup_error_clear(c);
    cup_tokenizer_free(t);
    cup_corpus_free(corpus);
    put(LEVEL("true"), "");
    t = NULL;
    for (long n = 1; !t; n++) {
        cup__memory_fail_at(n, false);
        t = cup_tokenizer_load(c, path);
        cup__memory_fail_at(0, false);
        EXPECT((t || cup_error(c) == CUP_MEMORY || cup_error(c) == CUP_UNSUPPORTED) && n < 2000);
        cup_error_clear(c);
    }
    cup_tokenizer_free(t);
    cup_context_free(c);
}
