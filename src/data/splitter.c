#include "data/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

#define SPACES CUP__SPLIT_SPACES
#define SUFFIXES "'s|'t|'re|'ve|'m|'ll|'d"
#define SIGNS "[^" SPACES "\\p{L}\\p{N}]+"
#define BLANKS "|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

/* The second one has each digit as a word before it looks for others; the last two are Llama 3's,
 * with up to three digits in a word, and Qwen's, with one. */
static const struct {
    const char *name, *pattern;
} patterns[] = {
    {"gpt2", SUFFIXES "| ?\\p{L}+| ?\\p{N}+| ?" SIGNS BLANKS},
    {"gpt2-digits", SUFFIXES "| ?\\p{L}+|\\p{N}| ?" SIGNS "|[" SPACES
                    "]+(?![^" SPACES "\\p{N}])|[" SPACES "]+"},
    {"llama3", "(?i:" SUFFIXES ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?" SIGNS
               "[\\r\\n]*|[" SPACES "]*[\\r\\n]+" BLANKS},
    {"qwen2", "(?i:" SUFFIXES ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?" SIGNS
              "[\\r\\n]*|[" SPACES "]*[\\r\\n]+" BLANKS},
};

struct cup__splitter {
    pcre2_general_context *memory;
    pcre2_code *code;
    const char *name;
    char *own; /* what the name is in, where it has lines of its own */
    cup__splitter *next; /* of the lines behind */
    bool plain; /* most words are found without the pattern */
    bool searched; /* matches may stand anywhere, and what is between them is cut, too */
};

static void *take(PCRE2_SIZE size, void *user)
{
    (void)user;
    return cup__malloc(size);
}

static void give(void *block, void *user)
{
    (void)user;
    cup__free(block);
}

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for splitting text into words");
}

static cup_status compile(cup__error *error, const char *name, const char *pattern,
                          cup__splitter *splitter)
{
    int number;
    PCRE2_SIZE place;
    splitter->name = name;
    splitter->memory = pcre2_general_context_create(take, give, NULL);
    if (!splitter->memory)
        return no_memory(error);
    pcre2_compile_context *context = pcre2_compile_context_create(splitter->memory);
    if (!context)
        return no_memory(error);
    uint32_t anchored = splitter->searched ? 0 : PCRE2_ANCHORED;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    splitter->code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | anchored, &number, &place, context);
    pcre2_compile_context_free(context);
    if (!splitter->code && number == PCRE2_ERROR_HEAP_FAILED)
        return no_memory(error);
    if (!splitter->code)
        return cup__fail(error, CUP_UNSUPPORTED,
                         "the pattern \"%s\" does not compile (PCRE2 error %d at %zu); PCRE2 with "
                         "Unicode is needed",
                         name, number, (size_t)place);
    /* Without the compiler for machine code it only takes longer. */
    pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    return CUP_OK;
}

/* One of the lines. */
static cup_status new_line(cup__error *error, const char *line, size_t length, cup__splitter **out)
{
    cup__text text = {0};
    cup__splitter *splitter = *out = cup__calloc(1, sizeof *splitter);
    if (!splitter)
        return no_memory(error);
    splitter->searched = true;
    cup_status status = CUP_OK;
    if (!cup__regex_translate(line, length, &text))
        status = cup__fail(error, CUP_UNSUPPORTED,
                           "the pattern \"%.*s\", by which text is cut into words, has a part that "
                           "PCRE2 may read in another way than the program it was written for",
                           (int)(length < 300 ? length : 300), line);
    else if (text.failed || !text.bytes)
        status = no_memory(error);
    else
        status = compile(error, "of the tokenizer", text.bytes, splitter);
    cup__text_free(&text);
    return status;
}

static cup_status new_lines(cup__error *error, const char *pattern, cup__splitter **out)
{
    cup__splitter *first = NULL, **last = &first;
    const char *line = pattern + strlen(CUP__SPLIT_REGEX);
    cup_status status = CUP_OK;
    while (line && status == CUP_OK) {
        size_t length = strcspn(line, "\n");
        status = new_line(error, line, length, last);
        last = *last ? &(*last)->next : last;
        line = line[length] ? line + length + 1 : NULL;
    }
    if (status == CUP_OK && !(first->own = cup__strdup(pattern)))
        status = no_memory(error);
    if (status == CUP_OK) {
        first->name = first->own;
        *out = first;
    } else {
        cup__splitter_free(first);
    }
    return status;
}

cup_status cup__splitter_new(cup__error *error, const char *pattern, cup__splitter **out)
{
    *out = NULL;
    if (!strncmp(pattern, CUP__SPLIT_REGEX, strlen(CUP__SPLIT_REGEX)))
        return new_lines(error, pattern, out);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (strcmp(pattern, patterns[i].name) != 0)
            continue;
        cup__splitter *splitter = cup__calloc(1, sizeof *splitter);
        if (!splitter)
            return no_memory(error);
        cup_status status = compile(error, patterns[i].name, patterns[i].pattern, splitter);
        splitter->plain = i == 0;
        if (status == CUP_OK)
            *out = splitter;
        else
            cup__splitter_free(splitter);
        return status;
    }
    return cup__fail(error, CUP_FORMAT, "the pattern \"%.100s\" is unknown; \"gpt2\", "
                     "\"gpt2-digits\", \"llama3\" and \"qwen2\" are there",
                     pattern);
}

void cup__splitter_free(cup__splitter *splitter)
{
    if (!splitter)
        return;
    cup__splitter_free(splitter->next);
    cup__free(splitter->own);
    pcre2_code_free(splitter->code);
    pcre2_general_context_free(splitter->memory);
    cup__free(splitter);
}

const char *cup__splitter_pattern(const cup__splitter *splitter)
{
    return splitter->name;
}

cup_status cup__split_pass(const char *text, size_t length, cup__word word, void *user)
{
    while (length > CUP__LONGEST_WORD) {
        size_t piece = CUP__LONGEST_WORD;
        while (piece > CUP__LONGEST_WORD - 4 && ((unsigned char)text[piece] & 0xc0) == 0x80)
            piece--;
        CUP_TRY(word(user, text, piece));
        text += piece;
        length -= piece;
    }
    return word(user, text, length);
}

/* What a byte is to GPT-2's pattern; OTHER: it depends on the character that it is a part of. */
enum { SIGN, LETTER, DIGIT, SPACE, OTHER };

static const unsigned char kinds[256] = {
    ['A' ... 'Z'] = LETTER,   ['a' ... 'z'] = LETTER, ['0' ... '9'] = DIGIT,
    ['\t' ... '\r'] = SPACE, [' '] = SPACE,          [128 ... 255] = OTHER};

static int kind_of(char byte)
{
    return kinds[(unsigned char)byte];
}

static size_t suffix_length(const char *text, size_t length)
{
    static const char *const suffixes[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t bytes = strlen(suffixes[i]);
        if (bytes <= length && memcmp(text, suffixes[i], bytes) == 0)
            return bytes;
    }
    return 0;
}

/* The first word of a text as GPT-2's pattern has it, found without the pattern, which takes
 * longer; 0 where a character beyond ASCII has a say. */
static size_t plain_word(const char *text, size_t length)
{
    size_t at = text[0] == ' ' && length > 1 && kind_of(text[1]) != SPACE;
    int kind = kind_of(text[at]);
    size_t suffix = at == 0 && text[0] == '\'' ? suffix_length(text, length) : 0;
    if (suffix || kind == OTHER)
        return suffix;
    while (++at < length && kind_of(text[at]) == kind)
        ;
    if (at == length)
        return at;
    if (kind_of(text[at]) == OTHER)
        return 0;
    /* The last space before a word is the word's, or a word of its own. */
    return kind == SPACE && at > 1 ? at - 1 : at;
}

typedef struct cutting {
    cup__error *error;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    cup__word word;
    void *user;
} cutting;

static cup_status cut(const cutting *k, const cup__splitter *splitter, const char *text,
                      size_t length);

static cup_status cut_further(const cutting *k, const cup__splitter *splitter, const char *text,
                              size_t length)
{
    if (length == 0)
        return CUP_OK;
    return splitter->next ? cut(k, splitter->next, text, length)
                          : cup__split_pass(text, length, k->word, k->user);
}

/* Matches, and what is between them. One without a character cuts, too. */
static cup_status cut(const cutting *k, const cup__splitter *splitter, const char *text,
                      size_t length)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(k->match);
    size_t done = 0;
    for (size_t at = 0; at < length;) {
        int result = pcre2_match(splitter->code, (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK,
                                 k->match, k->limits);
        size_t from = result < 0 ? length : found[0], to = result < 0 ? length : found[1];
        if (result == PCRE2_ERROR_NOMEMORY || result == PCRE2_ERROR_HEAPLIMIT)
            return no_memory(k->error);
        if (result < 0 && result != PCRE2_ERROR_NOMATCH)
            return cup__fail(k->error, CUP_UNSUPPORTED,
                             "the text cannot be split into words at byte %zu (PCRE2 error %d)", at,
                             result);
        CUP_TRY(cut_further(k, splitter, text + done, from - done));
        CUP_TRY(cut_further(k, splitter, text + from, to - from));
        done = at = to;
        if (from == to)
            for (at++; at < length && ((unsigned char)text[at] & 0xc0) == 0x80; at++)
                ;
    }
    return cut_further(k, splitter, text + done, length - done);
}

/* Text that is UTF-8. */
static cup_status split_valid(cup__error *error, const cup__splitter *splitter,
                              pcre2_match_data *match, pcre2_match_context *limits,
                              const char *text, size_t length, cup__word word, void *user)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(match);
    if (splitter->searched)
        return cut(&(cutting){error, match, limits, word, user}, splitter, text, length);
    for (size_t at = 0; at < length;) {
        size_t plain = splitter->plain ? plain_word(text + at, length - at) : 0;
        if (plain) {
            CUP_TRY(cup__split_pass(text + at, plain, word, user));
            at += plain;
            continue;
        }
        int result = pcre2_match(splitter->code, (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK,
                                 match, limits);
        if (result == PCRE2_ERROR_NOMEMORY || result == PCRE2_ERROR_HEAPLIMIT)
            return no_memory(error);
        /* The patterns take any text, so that only a limit of PCRE2 can be what failed. */
        if (result < 0 || found[1] <= at)
            return cup__fail(error, CUP_UNSUPPORTED,
                             "the text cannot be split into words at byte %zu (PCRE2 error %d)", at,
                             result);
        CUP_TRY(cup__split_pass(text + at, found[1] - at, word, user));
        at = found[1];
    }
    return CUP_OK;
}

static size_t count_invalid(const char *text, size_t length)
{
    size_t count = 0;
    while (count < length && cup__utf8_decode(text + count, length - count, NULL) <= 0)
        count++;
    return count;
}

cup_status cup__split(cup__error *error, const cup__splitter *splitter, const char *text,
                      size_t length, cup__word word, void *user)
{
    pcre2_match_data *match = pcre2_match_data_create(1, splitter->memory);
    pcre2_match_context *limits = pcre2_match_context_create(splitter->memory);
    cup_status status = match && limits ? CUP_OK : no_memory(error);
    if (limits) {
        pcre2_set_match_limit(limits, 10000000);
        pcre2_set_heap_limit(limits, 1 << 20);
    }
    while (length && status == CUP_OK) {
        size_t count = cup__utf8_check(text, length);
        if (count) {
            status = split_valid(error, splitter, match, limits, text, count, word, user);
        } else {
            count = count_invalid(text, length);
            status = cup__split_pass(text, count, word, user);
        }
        text += count;
        length -= count;
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(match);
    return status;
}
