#include "test.h"

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
