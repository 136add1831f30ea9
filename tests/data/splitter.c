#include "test.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/splitter.h"

static cup_status add_word(void *user, const char *word, size_t length)
{
    cup__text *out = user;
    cup__text_append(out, "|", 1);
    cup__text_append(out, word, length);
    return CUP_OK;
}

static void expect_words(const char *text, size_t length, const char *words)
{
    cup__error error = {0};
    cup__splitter *splitter;
    cup__text out = {0};
    EXPECT_INT(cup__splitter_new(&error, "gpt2", &splitter), CUP_OK);
    if (cup__split(&error, splitter, text, length, add_word, &out) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    EXPECT_TEXT(cup__text_string(&out), words);
    cup__text_free(&out);
    cup__splitter_free(splitter);
}

/* What GPT-2's own pattern gives in Python's regex module. */
TEST(splitter_cuts_as_gpt2_does)
{
    static const char *const cases[][2] = {
        {"", ""},
        {"Hello world", "|Hello| world"},
        {"Hello world's 123 foo   bar!?\n\n  x", "|Hello| world|'s| 123| foo|  | bar|!?|\n\n | x"},
        {"I'll we've they'D don't", "|I|'ll| we|'ve| they|'|D| don|'t"},
        {" \t\n", "| \t\n"},
        {"'S 's's", "|'|S| '|s|'s"},
        {"a\u00a0b\u2003 c", "|a|\u00a0|b|\u2003| c"},
        {"3.14 is x\u00b2\u00bd \u2167", "|3|.|14| is| x|\u00b2\u00bd| \u2167"},
        {"na\u00efve \u65e5\u672c\u8a9e \U0001f642\U0001f642!",
         "|na\u00efve| \u65e5\u672c\u8a9e| \U0001f642\U0001f642!"},
        {"x\u180ey", "|x|\u180e|y"},
        {"a\xc2\x85"
         "b \x1c c",
         "|a|\xc2\x85|b| \x1c| c"},
        {"e\u0301 ok", "|e|\u0301| ok"},
        {"tab\tsep  two", "|tab|\t|sep| | two"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_words(cases[i][0], strlen(cases[i][0]), cases[i][1]);
}

TEST(splitter_takes_bytes_that_are_not_utf8)
{
    expect_words("ab\xff\xfe cd\xc3", 8, "|ab|\xff\xfe| cd|\xc3");
    expect_words("\xed\xa0\x80x", 4, "|\xed\xa0\x80|x");
}

static cup_status count_word(void *user, const char *word, size_t length)
{
    (void)word;
    size_t *counts = user;
    counts[0]++;
    counts[1] += length;
    counts[2] = length > counts[2] ? length : counts[2];
    return CUP_OK;
}

/* Neither a limit of PCRE2 nor a word without end may stop the work. */
TEST(splitter_endless_words_are_cut)
{
    static const char *const units[] = {"a", " ", "\n", "!", "\xff", "\u65e5", "' ", "1"};
    cup__error error = {0};
    cup__splitter *splitter;
    EXPECT_INT(cup__splitter_new(&error, "gpt2", &splitter), CUP_OK);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), length = 300000 * unit, counts[3] = {0};
        char *text = malloc(length);
        for (size_t i = 0; i < length; i += unit)
            memcpy(text + i, units[u], unit);
        if (cup__split(&error, splitter, text, length, count_word, counts) != CUP_OK)
            test_fail(__FILE__, __LINE__, "%s", error.text);
        EXPECT_INT(counts[1], length);
        EXPECT(counts[2] <= CUP__LONGEST_WORD);
        free(text);
    }
    cup__splitter_free(splitter);
}

TEST(splitter_unknown_pattern)
{
    cup__error error = {0};
    cup__splitter *splitter;
    EXPECT_INT(cup__splitter_new(&error, "(a+)+$", &splitter), CUP_FORMAT);
    EXPECT_CONTAINS(error.text, "pattern \"(a+)+$\" is unknown");
}

/* GPT-2's pattern as it is, run by PCRE2 for every word. */
static void split_by_pattern(const char *text, size_t length, cup__text *out)
{
#define SPACES                                                                                     \
    "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"                   \
    "\\x{202f}\\x{205f}\\x{3000}"
    static const char pattern[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+"
        "|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+";
    int number;
    PCRE2_SIZE place;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &number, &place, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(match);
    for (size_t at = 0; at < length; at = found[1]) {
        EXPECT(pcre2_match(code, (PCRE2_SPTR)text, length, at, 0, match, NULL) > 0);
        add_word(out, text + at, found[1] - at);
    }
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

/* Words that are found without the pattern are those that it would have found. */
TEST(splitter_plain_words_are_those_of_the_pattern)
{
    static const char *const parts[] = {
        "a",  "B",      "re",     "s",      "ll",     " ",      " ",      "\n", "\t",
        "'",  "'",      "'ve",    "'d",     "7",      "42",     "!",      "?",  "\x01",
        "\r", "\u00e9", "\u0301", "\u00a0", "\u2003", "\u00b2", "\u65e5", ".",  "\x7f"};
    cup__error error = {0};
    cup__splitter *splitter;
    EXPECT_INT(cup__splitter_new(&error, "gpt2", &splitter), CUP_OK);
    for (int round = 0; round < 3000; round++) {
        cup__text text = {0}, words = {0}, expected = {0};
        size_t kinds = round % 2 ? sizeof parts / sizeof *parts : 18;
        for (unsigned i = 0, count = 1 + test_random() % 40; i < count; i++)
            cup__text_add(&text, "%s", parts[test_random() % kinds]);
        EXPECT_INT(cup__split(&error, splitter, text.bytes, text.length, add_word, &words), CUP_OK);
        split_by_pattern(text.bytes, text.length, &expected);
        EXPECT_TEXT(cup__text_string(&words), cup__text_string(&expected));
        cup__text_free(&text);
        cup__text_free(&words);
        cup__text_free(&expected);
    }
    cup__splitter_free(splitter);
}
