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

#define ISOLATED(regex)                                                                            \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                          \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define STEPS(steps)                                                                               \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" steps "," LEVEL("false") "]}"

static char path[4400];

/* What says how spaces are marked. */
#define MARK_TEXT "\xe2\x96\x81"
#define REPLACE                                                                                    \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK_TEXT "\"}"
#define ONE_MORE                                                                                   \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["                                     \
    "{\"type\":\"Prepend\",\"prepend\":\"" MARK_TEXT "\"}," REPLACE "]}"
#define METASPACE(scheme)                                                                          \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK_TEXT                      \
    "\",\"prepend_scheme\":\"" scheme "\",\"split\":false}"

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

/* Of sentencepiece's kind: <unk>, <s>, 256 bytes, then the texts from 258 on. */
static void put_characters(const char *spaces, const char *merges)
{
    static const char *const texts[] = {MARK_TEXT,           "a",  "b", "\xc3\xa9",
                                        MARK_TEXT MARK_TEXT, "ab", MARK_TEXT "ab", "b" MARK_TEXT};
    cup__text text = {0};
    cup__text_add(&text, "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\"},"
                         "{\"id\":1,\"content\":\"<s>\"}],%s,\"model\":{\"type\":\"BPE\","
                         "\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"<s>\":1",
                  spaces);
    for (int b = 0; b < 256; b++)
        cup__text_add(&text, ",\"<0x%02X>\":%d", (unsigned)b, 2 + b);
    for (int i = 0; i < 8; i++)
        cup__text_add(&text, ",\"%s\":%d", texts[i], 258 + i);
    cup__text_add(&text, "},\"merges\":[\"" MARK_TEXT " " MARK_TEXT "\",\"a b\","
                         "\"" MARK_TEXT " ab\"%s]}}",
                  merges);
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

static void expect_text(cup_context *c, const cup_tokenizer *t, const char *text)
{
    int32_t tokens[64];
    char out[256] = "";
    cup_decoder *d = cup_decoder_new(c, t);
    int64_t count = cup_tokenizer_encode(c, t, text, strlen(text), tokens);
    for (int64_t i = 0; i < count; i++)
        strcat(out, cup_decoder_add(d, tokens[i], NULL));
    strcat(out, cup_decoder_end(d, NULL));
    EXPECT_TEXT(out, text);
    cup_decoder_free(d);
}

enum { MARK = 258, A, B, ACUTE, MARKS, AB, MARK_AB, B_MARK };

/* Where a space is put in front, and what is no token becomes bytes; also when read again from a
 * file of either kind. */
TEST(tokenizer_json_of_sentencepiece_is_read_and_written)
{
    static const struct {
        const char *spaces;
        int32_t tokens[24]; /* of "ab  ab<s> aé☺" */
    } cases[] = {
        {ONE_MORE, {MARK_AB, MARKS, AB, 1, MARKS, A, ACUTE, 228, 154, 188, -1}},
        {METASPACE("always"), {MARK_AB, MARKS, AB, 1, MARK, A, ACUTE, 228, 154, 188, -1}},
        {METASPACE("first"), {MARK_AB, MARKS, AB, 1, MARK, A, ACUTE, 228, 154, 188, -1}},
        {METASPACE("never"), {AB, MARKS, AB, 1, MARK, A, ACUTE, 228, 154, 188, -1}},
        {"\"normalizer\":" REPLACE, {AB, MARKS, AB, 1, MARK, A, ACUTE, 228, 154, 188, -1}},
    };
    static const char text[] = "ab  ab<s> a\xc3\xa9\xe2\x98\xba";
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_characters(cases[i].spaces, "");
        for (int k = 0; k < 3; k++) {
            cup_tokenizer *t = cup_tokenizer_load(c, path);
            EXPECT_TEXT(cup_error_text(c), "");
            EXPECT_INT(cup_tokenizer_size(t), 266);
            EXPECT_INT(cup_tokenizer_special(t, "<s>"), 1);
            expect_tokens(c, t, text, cases[i].tokens);
            expect_text(c, t, i ? text : "ab  ab");
            expect_text(c, t, "ab b\t\xe2\x98\xba ");
            EXPECT_INT(k ? cup_tokenizer_save(c, t, path) : cup_tokenizer_export(c, t, path),
                       CUP_OK);
            cup_tokenizer_free(t);
        }
    }
    cup_context_free(c);
}

TEST(tokenizer_json_of_sentencepiece_survives_every_failed_allocation)
{
    cup_context *c = begin();
    put_characters(METASPACE("first"), "");
    cup_tokenizer *t = NULL;
    int32_t tokens[8];
    int64_t count = -1;
    for (long n = 1; count < 0; n++) {
        cup__memory_fail_at(n, false);
        t = cup_tokenizer_load(c, path);
        count = t ? cup_tokenizer_encode(c, t, "ab a", 4, tokens) : -1;
        cup__memory_fail_at(0, false);
        EXPECT((count == 3 || cup_error(c) == CUP_MEMORY) && n < 2000);
        cup_error_clear(c);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* Whether "b " is merged across the place before a space, where words are otherwise cut. */
TEST(tokenizer_json_of_sentencepiece_cuts_words_where_no_merge_joins_them)
{
    cup_context *c = begin();
    put_characters(METASPACE("never"), ",\"b " MARK_TEXT "\"");
    cup_tokenizer *t = cup_tokenizer_load(c, path);
    EXPECT_TEXT(cup_error_text(c), "");
    expect_tokens(c, t, "b b a", (const int32_t[]){B_MARK, B_MARK, A, -1});
    cup_tokenizer_free(t);
    put_characters(METASPACE("never"), "");
    t = cup_tokenizer_load(c, path);
    expect_tokens(c, t, "b b a", (const int32_t[]){B, MARK, B, MARK, A, -1});
    cup_tokenizer_free(t);
    cup_context_free(c);
}

/* Text in another form than NFC becomes the tokens of the same in it, where the file says so. */
TEST(tokenizer_json_brings_text_into_nfc)
{
    static const struct {
        const char *text, *form;
    } cases[] = {
        {"e\xcc\x81", "\xc3\xa9"},                         /* e with acute */
        {"a\xcc\x83\xcc\xa3", "\xe1\xba\xa1\xcc\x83"},     /* tilde above, dot below: its order */
        {"\xe2\x84\xab", "\xc3\x85"},                     /* Angstrom */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},     /* qa, which stays apart */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, /* Hangul */
        {"\xea\xb0\x80\xe1\x86\xa8 \xcc\x81\xff", "\xea\xb0\x81 \xcc\x81\xff"},
        {"\xe1\xbe\x82", "\xe1\xbe\x82"},                 /* alpha and three marks */
    };
    cup_context *c = begin();
    for (int k = 0; k < 4; k++) {
        if (k == 0)
            put(LEVEL("true"), "\"normalizer\":{\"type\":\"NFC\"},");
        if (k == 3)
            put(LEVEL("true"), "");
        cup_tokenizer *t = cup_tokenizer_load(c, path);
        EXPECT_TEXT(cup_error_text(c), "");
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            int32_t tokens[64], wanted[32] = {0};
            const char *form = k == 3 ? cases[i].text : cases[i].form;
            size_t length = strlen(cases[i].text), count = strlen(form);
            for (size_t b = 0; b < count; b++)
                wanted[b] = (unsigned char)form[b];
            int64_t got = cup_tokenizer_encode(c, t, cases[i].text, length, tokens);
            EXPECT_INT(got, count > length + 1 ? -1 : (int64_t)count);
            if (count <= length + 1)
                EXPECT(!memcmp(tokens, wanted, count * sizeof *tokens));
            cup_error_clear(c);
        }
        if (k == 0)
            EXPECT_INT(cup_tokenizer_export(c, t, path), CUP_OK);
        else
            EXPECT_INT(cup_tokenizer_save(c, t, path), CUP_OK);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* Puts something into the file, in front of a part of it. */
static void insert(const char *part, const char *more)
{
    char *text;
    cup__text changed = {0};
    EXPECT_INT(cup__file_read(NULL, path, 1 << 20, &text, NULL), CUP_OK);
    char *at = strstr(text, part);
    EXPECT(at);
    cup__text_add(&changed, "%.*s%s%s", (int)(at - text), text, more, at);
    EXPECT_INT(cup__file_write(NULL, path, changed.bytes, changed.length), CUP_OK);
    cup__text_free(&changed);
    cup__free(text);
}

/* A word that is a token is that one, though merges make others of it; in all kinds of files. */
TEST(tokenizer_json_looks_words_up_where_it_says_so)
{
    cup_context *c = begin();
    put(LEVEL("true"), "");
    insert("\"12\":256", "\"23\":260,");
    insert("\"1 2\"", "\"2 3\",");
    cup_tokenizer *t = cup_tokenizer_load(c, path);
    expect_tokens(c, t, "123 a", (const int32_t[]){'1', 260, 258, -1});
    cup_tokenizer_free(t);
    insert("\"type\":\"BPE\"", "\"ignore_merges\":true,");
    for (int k = 0; k < 3; k++) {
        t = cup_tokenizer_load(c, path);
        EXPECT_TEXT(cup_error_text(c), "");
        expect_tokens(c, t, "123 a", (const int32_t[]){257, 258, -1});
        expect_tokens(c, t, "1234", (const int32_t[]){'1', 260, '4', -1});
        EXPECT_INT(k ? cup_tokenizer_save(c, t, path) : cup_tokenizer_export(c, t, path), CUP_OK);
        cup_tokenizer_free(t);
    }
    cup_context_free(c);
}

/* Patterns of a tokenizer's own, each of which cuts what those before it left: matches, and what is
 * between them. The numbers are those of the merges 1 2, 12 3 and space a. */
TEST(tokenizer_json_with_patterns_of_its_own)
{
    static const struct {
        const char *words, *text;
        int32_t tokens[8];
    } cases[] = {
        {SPLIT("{1,2}"), "1231 a", {256, '3', '1', 258, -1}},
        {STEPS(ISOLATED("\\\\p{N}{1,3}") "," ISOLATED("2")), "123x12",
         {'1', '2', '3', 'x', '1', '2', -1}},
        {STEPS(ISOLATED("a*")), "12aa a", {'1', '2', 'a', 'a', ' ', 'a', -1}},
        {STEPS(ISOLATED("(?=3)|a*?c")), "1231 a\xc3\xa9" "c",
         {256, '3', '1', 258, 0xc3, 0xa9, 'c', -1}},
        {STEPS(ISOLATED("[\\\\s]")), "12\xe1\xa0\x8e" "3 a",
         {256, 0xe1, 0xa0, 0x8e, '3', ' ', 'a', -1}},
        {STEPS(ISOLATED("\\\\S+")), "12 a", {256, ' ', 'a', -1}},
        {STEPS("{\"type\":\"Digits\"}," ISOLATED("3")), "123 a", {256, '3', 258, -1}},
    };
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put(cases[i].words, "");
        for (int k = 0; k < 3; k++) {
            cup_tokenizer *t = cup_tokenizer_load(c, path);
            EXPECT_TEXT(cup_error_text(c), "");
            expect_tokens(c, t, cases[i].text, cases[i].tokens);
            EXPECT_INT(k ? cup_tokenizer_save(c, t, path) : cup_tokenizer_export(c, t, path),
                       CUP_OK);
            cup_tokenizer_free(t);
        }
    }
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
        {SPLIT("{1,2}+"), "", "may read in another way"},
        {SPLIT("|[[a]b]"), "", "may read in another way"},
        {SPLIT("|^a"), "", "may read in another way"},
        {SPLIT("|\\\\w"), "", "may read in another way"},
        {SPLIT("|(?m:a)"), "", "may read in another way"},
        {SPLIT("|(a"), "", "does not compile"},
        {LEVEL("true"), "\"normalizer\":{\"type\":\"Lowercase\"},", "a normalizer other than NFC"},
    };
    static const char *const spaces[] = {
        "\"normalizer\":null", METASPACE("last"), ONE_MORE "," METASPACE("first"),
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK_TEXT "\"}"};
    cup_context *c = begin();
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        put_characters(spaces[i], "");
        EXPECT(!cup_tokenizer_load(c, path));
        EXPECT_INT(cup_error(c), CUP_UNSUPPORTED);
        EXPECT_CONTAINS(cup_error_text(c), "spaces are marked in another way");
        cup_error_clear(c);
    }
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

/* Loads what was put with a part of it exchanged. */
static void expect_load(cup_context *c, const char *part, const char *by, cup_status status,
                        const char *words)
{
    char *text;
    cup__text changed = {0};
    EXPECT_INT(cup__file_read(NULL, path, 1 << 16, &text, NULL), CUP_OK);
    char *at = strstr(text, part);
    EXPECT(at);
    cup__text_add(&changed, "%.*s%s%s", (int)(at - text), text, by, at + strlen(part));
    EXPECT_INT(cup__file_write(NULL, path, changed.bytes, changed.length), CUP_OK);
    cup_tokenizer_free(cup_tokenizer_load(c, path));
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
    EXPECT_INT(cup__file_write(NULL, path, text, strlen(text)), CUP_OK);
    cup__text_free(&changed);
    cup__free(text);
}

/* What would make other tokens of a text than those of the library that wrote the file. */
TEST(tokenizer_json_that_asks_for_more_is_refused)
{
    static const struct {
        const char *part, *by, *words;
        cup_status status;
    } cases[] = {
        {"\"<|end|>\"", "\"<|end|>\",\"lstrip\":true", "\"<|end|>\" has \"lstrip\"",
         CUP_UNSUPPORTED},
        {"\"<|end|>\"", "\"<|end|>\",\"rstrip\":true", "has \"rstrip\"", CUP_UNSUPPORTED},
        {"\"<|end|>\"", "\"<|end|>\",\"single_word\":true", "has \"single_word\"",
         CUP_UNSUPPORTED},
        {"\"<|end|>\"", "\"<|end|>\",\"normalized\":true,\"lstrip\":false", "", CUP_OK},
        {"\"BPE\"", "\"BPE\",\"dropout\":0.1", "left out at random", CUP_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"dropout\":0.0", "", CUP_OK},
        {"\"BPE\"", "\"BPE\",\"end_of_word_suffix\":\"</w>\"", "parts of words are marked",
         CUP_UNSUPPORTED},
        {"\"BPE\"", "\"BPE\",\"end_of_word_suffix\":\"\"", "", CUP_OK},
        {"\"id\":259,", "", "must have a content and an id", CUP_FORMAT},
    };
    cup_context *c = begin();
    put(LEVEL("true"), "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_load(c, cases[i].part, cases[i].by, cases[i].status, cases[i].words);
    /* In text with a mark more in front its own would stand in front, too. */
    put_characters(METASPACE("first"), "");
    expect_load(c, "\"<s>\"", "\"<s>\",\"normalized\":true", CUP_OK, "");
    put_characters(ONE_MORE, "");
    expect_load(c, "\"<s>\"", "\"<s>\",\"normalized\":true", CUP_UNSUPPORTED,
                "\"<s>\" has \"normalized\"");
    cup_context_free(c);
}
