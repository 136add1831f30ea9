/* Words of tokenizers of sentencepiece's kind: a text is one word for them, in which spaces are
 * characters as others are. It is cut before spaces all the same where no merge joins what stands
 * there. */
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer.h"

#define MARK "\xe2\x96\x81" /* U+2581, as which spaces are written */

static const char *const names[] = {[CUP__SPACES_AS_THEY_ARE] = "spaces",
                                    [CUP__SPACES_FIRST] = "spaces-first",
                                    [CUP__SPACES_ALWAYS] = "spaces-always",
                                    [CUP__SPACES_ONE_MORE] = "spaces-one-more"};

cup__spaces cup__spaces_named(const char *name)
{
    for (int i = CUP__SPACES_AS_THEY_ARE; i <= CUP__SPACES_ONE_MORE; i++)
        if (!strcmp(name, names[i]))
            return (cup__spaces)i;
    return CUP__SPACES_NONE;
}

const char *cup__spaces_name(cup__spaces spaces)
{
    return names[spaces];
}

size_t cup__spaces_unmark(const char *text, size_t length, char *out)
{
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        bool mark = length - at >= 3 && memcmp(text + at, MARK, 3) == 0;
        out[used++] = mark ? ' ' : text[at];
        at += mark ? 3 : 1;
    }
    return used;
}

static bool joins_at_space(const cup_tokenizer *t, const cup__merge *m)
{
    size_t left, right;
    const char *before = cup_tokenizer_token(t, m->left, &left);
    const char *after = cup_tokenizer_token(t, m->right, &right);
    return *after == ' ' && before[left - 1] != ' ';
}

static bool holds_space_within(const cup_tokenizer *t, int32_t token)
{
    size_t length;
    const char *bytes = cup_tokenizer_token(t, token, &length);
    for (size_t i = 1; i < length; i++)
        if (bytes[i] == ' ' && bytes[i - 1] != ' ')
            return true;
    return false;
}

bool cup__spaces_part_words(const cup_tokenizer *t)
{
    for (size_t i = 0; i < t->merge_count; i++)
        if (joins_at_space(t, &t->merges[i]) || holds_space_within(t, t->merges[i].token))
            return false;
    return true;
}

static bool is_put_in_front(cup__spaces spaces, cup__standing standing, bool has_one)
{
    if (standing == CUP__STANDING_WITHIN || spaces == CUP__SPACES_AS_THEY_ARE)
        return false;
    if (spaces == CUP__SPACES_ONE_MORE)
        return true;
    return !has_one && (spaces == CUP__SPACES_ALWAYS || standing == CUP__STANDING_FIRST);
}

static cup_status pass_words(const cup_tokenizer *t, const char *text, size_t length,
                             cup__word word, void *user)
{
    size_t from = 0;
    for (size_t at = 1; t->parts_at_spaces && at < length; at++) {
        if (text[at] != ' ' || text[at - 1] == ' ')
            continue;
        CUP_TRY(cup__split_pass(text + from, at - from, word, user));
        from = at;
    }
    return cup__split_pass(text + from, length - from, word, user);
}

cup_status cup__spaces_split(cup__error *error, const cup_tokenizer *t, const char *text,
                             size_t length, cup__standing standing, cup__word word, void *user)
{
    if (!length)
        return CUP_OK;
    char *bytes = cup__malloc(length + 1);
    if (!bytes)
        return cup__fail(error, CUP_MEMORY, "out of host memory for splitting text into words");
    *bytes = ' ';
    size_t used = cup__spaces_unmark(text, length, bytes + 1);
    bool front = is_put_in_front(t->spaces, standing, bytes[1] == ' ');
    cup_status status = pass_words(t, bytes + !front, used + front, word, user);
    cup__free(bytes);
    return status;
}
