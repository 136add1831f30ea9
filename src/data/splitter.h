/* Cuts text into the words that BPE works on, by a pattern such as GPT-2's. */
#ifndef CUP_DATA_SPLITTER_H
#define CUP_DATA_SPLITTER_H

#include "base/error.h"
#include "base/text.h"

/* A word longer than this is cut. No real one is; it bounds the work on absurd input. */
#define CUP__LONGEST_WORD ((size_t)1 << 16)

typedef struct cup__splitter cup__splitter;

/* White space as Unicode has it, for the inside of brackets. PCRE2's own \s also takes U+180E,
 * which the programs that vocabularies were made with do not. */
#define CUP__SPLIT_SPACES                                                                          \
    "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"                   \
    "\\x{202f}\\x{205f}\\x{3000}"

/* In front of patterns of another's: each line is one, whose matches and what is between them are
 * cut by the next. */
#define CUP__SPLIT_REGEX "regex:"

/* Adds a pattern to `out` as PCRE2 has it; false where that may mean something else. */
bool cup__regex_translate(const char *pattern, size_t length, cup__text *out);

/* The splitter of a pattern that has a name, "gpt2", "gpt2-digits", "llama3" or "qwen2", or of such
 * lines. */
cup_status cup__splitter_new(cup__error *error, const char *pattern, cup__splitter **out);
void cup__splitter_free(cup__splitter *splitter);
const char *cup__splitter_pattern(const cup__splitter *splitter);

/* Passes a word on, in pieces of whole characters when it is too long. */
typedef cup_status (*cup__word)(void *user, const char *word, size_t length);
cup_status cup__split_pass(const char *text, size_t length, cup__word word, void *user);

/* Calls `word` for each word in turn, until one fails. Together they are the text. Bytes that are
 * not UTF-8 are words of their own. Threads may share a splitter. */
cup_status cup__split(cup__error *error, const cup__splitter *splitter, const char *text,
                      size_t length, cup__word word, void *user);

#endif
