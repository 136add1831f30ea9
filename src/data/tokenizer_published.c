/* Which words a tokenizer.json of Hugging Face's tokenizers has, and what of it is not read. */
#include <string.h>

#include "data/tokenizer.h"

/* The patterns as they are written there, and the names of ours. */
static const struct {
    const char *text, *name;
} patterns[] = {
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "llama3"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "qwen2"},
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     "gpt2"},
};

static cup_status refuse(cup__error *error, const cup__json *json, const char *what)
{
    return cup__fail(error, CUP_UNSUPPORTED,
                     "%s: %s, which is not read here; byte-level BPE is, cut into words by "
                     "GPT-2's pattern or by isolated ones of its own, and BPE of sentencepiece's "
                     "kind",
                     json->name, what);
}

static bool is_word(const cup__json_node *object, const char *key, const char *word)
{
    const cup__json_node *node = cup__json_find(object, key);
    return node && node->kind == CUP__JSON_STRING && !strcmp(node->string, word);
}

static bool is_set(const cup__json_node *object, const char *key, bool usual)
{
    const cup__json_node *node = cup__json_find(object, key);
    return node && node->kind == CUP__JSON_BOOL ? node->boolean : usual;
}

static bool is_there(const cup__json_node *object, const char *key)
{
    const cup__json_node *node = cup__json_find(object, key);
    return node && node->kind != CUP__JSON_NULL;
}

static const char *name_of(const cup__json_node *step)
{
    const cup__json_node *text = cup__json_find(cup__json_find(step, "pattern"), "Regex");
    if (!text || text->kind != CUP__JSON_STRING || !is_word(step, "behavior", "Isolated") ||
        is_set(step, "invert", false))
        return NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!strcmp(text->string, patterns[i].text))
            return patterns[i].name;
    return NULL;
}

typedef struct steps {
    const char *split;
    bool digits, bytes, words;
} steps;

/* Whether a step of cutting into words is one that is read, behind those before. */
static bool take_step(steps *s, const cup__json_node *step)
{
    if (s->bytes)
        return false;
    if (is_word(step, "type", "Split") && !s->split && !s->digits)
        return (s->split = name_of(step)) != NULL;
    if (is_word(step, "type", "Digits") && !s->split)
        return (s->digits = is_set(step, "individual_digits", false));
    if (!is_word(step, "type", "ByteLevel") || is_set(step, "add_prefix_space", true))
        return false;
    s->bytes = true;
    s->words = is_set(step, "use_regex", true);
    return s->words != (s->split != NULL);
}

/* They are one, or a list. */
static const char *find_pattern(const cup__json_node *first)
{
    steps s = {0};
    const cup__json_node *list = cup__json_find(first, "pretokenizers");
    bool good = true;
    if (!is_word(first, "type", "Sequence"))
        good = take_step(&s, first);
    else if (list && list->kind == CUP__JSON_ARRAY)
        CUP__JSON_EACH (step, list)
            good = good && take_step(&s, step);
    if (!good || !s.bytes)
        return NULL;
    return s.split ? s.split : s.digits ? "gpt2-digits" : "gpt2";
}

/* Adds the line by which a step cuts; false where it is none that is read. The last one may cut as
 * GPT-2's does. */
static bool add_line(const cup__json_node *step, bool *ends, cup__text *out)
{
    const cup__json_node *text = cup__json_find(cup__json_find(step, "pattern"), "Regex");
    const char *line = NULL;
    if (*ends)
        return false;
    if (is_word(step, "type", "ByteLevel")) {
        *ends = !is_set(step, "add_prefix_space", true);
        line = is_set(step, "use_regex", true) ? patterns[2].text : "";
    } else if (is_word(step, "type", "Digits")) {
        line = is_set(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+";
    } else if (is_word(step, "type", "Split") && text && text->kind == CUP__JSON_STRING &&
               is_word(step, "behavior", "Isolated") && !is_set(step, "invert", false)) {
        line = text->string;
    }
    if (line && *line)
        cup__text_add(out, "%s%s", out->length ? "\n" : CUP__SPLIT_REGEX, line);
    return line && (*line || *ends) && !strchr(line, '\n');
}

static const char *join_lines(const cup__json_node *first, cup__text *out)
{
    const cup__json_node *list = cup__json_find(first, "pretokenizers");
    bool good = true, ends = false;
    if (!is_word(first, "type", "Sequence") || !list || list->kind != CUP__JSON_ARRAY)
        return NULL;
    CUP__JSON_EACH (step, list)
        good = good && add_line(step, &ends, out);
    return good && ends && !out->failed ? out->bytes : NULL;
}

const char *cup__published_words(const char *pattern)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!strcmp(pattern, patterns[i].name) && strcmp(pattern, "gpt2") != 0)
            return patterns[i].text;
    return NULL;
}

static bool is_mark(const cup__json_node *object, const char *key)
{
    return is_word(object, key, "\xe2\x96\x81");
}

static bool marks_spaces(const cup__json_node *step)
{
    return is_word(step, "type", "Replace") && is_mark(step, "content") &&
           is_word(cup__json_find(step, "pattern"), "String", " ");
}

/* Older files mark spaces as they bring text into a form: as they are, or behind one more. */
static const char *find_marks(const cup__json_node *normalizer)
{
    const cup__json_node *list = cup__json_find(normalizer, "normalizers");
    if (marks_spaces(normalizer))
        return "spaces";
    if (!is_word(normalizer, "type", "Sequence") || !list || list->kind != CUP__JSON_ARRAY ||
        list->count < 1 || list->count > 2)
        return NULL;
    const cup__json_node *first = list + 1, *last = list->count == 2 ? first + first->span : first;
    bool prepends = is_word(first, "type", "Prepend") && is_mark(first, "prepend");
    if (!marks_spaces(last) || prepends != (list->count == 2))
        return NULL;
    return prepends ? "spaces-one-more" : "spaces";
}

/* Newer ones mark them as they cut it into words, of which there is then one. */
static const char *find_spaces(const cup__json *json)
{
    static const char *const schemes[][2] = {
        {"never", "spaces"}, {"first", "spaces-first"}, {"always", "spaces-always"}};
    const cup__json_node *normalizer = cup__json_find(json->root, "normalizer");
    const cup__json_node *list = cup__json_find(normalizer, "normalizers");
    const cup__json_node *words = cup__json_find(json->root, "pre_tokenizer");
    bool none = !is_there(json->root, "normalizer") ||
                (list && list->kind == CUP__JSON_ARRAY && list->count == 0);
    if (!is_there(json->root, "pre_tokenizer"))
        return none ? NULL : find_marks(normalizer);
    if (!none || !is_word(words, "type", "Metaspace") || !is_mark(words, "replacement") ||
        is_set(words, "split", true))
        return NULL;
    for (int i = 0; i < 3; i++)
        if (is_word(words, "prepend_scheme", schemes[i][0]))
            return schemes[i][1];
    return is_there(words, "prepend_scheme")                ? NULL
           : is_set(words, "add_prefix_space", true) ? "spaces-always"
                                                            : "spaces";
}

bool cup__published_whole_words(const cup__json_node *model)
{
    return is_set(model, "ignore_merges", false);
}

bool cup__published_nfc(const cup__json *json)
{
    return is_word(cup__json_find(json->root, "normalizer"), "type", "NFC");
}

/* What an added token asks for beside being one wherever its text stands. One that is searched for
 * in text with its spaces marked is the same, but where a mark more stands in front. */
static cup_status check_added(cup__error *error, const cup__json *json, const char *pattern)
{
    static const char *const keys[] = {"lstrip", "rstrip", "single_word", "normalized"};
    int count = !strcmp(pattern, "spaces-one-more") ? 4 : 3;
    const cup__json_node *list = cup__json_find(json->root, "added_tokens");
    if (!list || list->kind != CUP__JSON_ARRAY)
        return CUP_OK;
    CUP__JSON_EACH (token, list)
        for (int i = 0; i < count; i++)
            if (is_set(token, keys[i], false)) {
                const cup__json_node *text = cup__json_find(token, "content");
                return cup__fail(error, CUP_UNSUPPORTED,
                                 "%s: the added token \"%.60s\" has \"%s\", by which it takes or "
                                 "wants other text round it, which is not read here; set it to "
                                 "false where texts do not hold the token so",
                                 json->name,
                                 text && text->kind == CUP__JSON_STRING ? text->string : "",
                                 keys[i]);
            }
    return CUP_OK;
}

static cup_status check_model(cup__error *error, const cup__json *json, const cup__json_node *model)
{
    static const char *const marks[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const cup__json_node *dropout = cup__json_find(model, "dropout");
    if (is_there(model, "type") && !is_word(model, "type", "BPE"))
        return refuse(error, json, "the model is no BPE");
    for (int i = 0; i < 2; i++)
        if (is_there(model, marks[i]) && !is_word(model, marks[i], ""))
            return refuse(error, json, "parts of words are marked");
    if (is_there(model, "dropout") &&
        (dropout->kind != CUP__JSON_NUMBER || cup__json_number(dropout) != 0))
        return refuse(error, json, "merges are left out at random (\"dropout\")");
    return CUP_OK;
}

static cup_status find_words(cup__error *error, const cup__json *json, cup__text *lines,
                             const char **out)
{
    const cup__json_node *model = cup__json_find(json->root, "model");
    const cup__json_node *words = cup__json_find(json->root, "pre_tokenizer");
    if (is_set(model, "byte_fallback", false)) {
        if (cup__published_whole_words(model))
            return refuse(error, json, "texts are looked up before they are merged");
        *out = find_spaces(json);
        return *out ? CUP_OK : refuse(error, json, "spaces are marked in another way");
    }
    if (is_there(json->root, "normalizer") && !cup__published_nfc(json))
        return refuse(error, json, "text is changed by a normalizer other than NFC");
    *out = words ? find_pattern(words) : NULL;
    if (words && !*out)
        *out = join_lines(words, lines);
    return *out ? CUP_OK : refuse(error, json, "text is cut into words in another way");
}

cup_status cup__published_pattern(cup__error *error, const cup__json *json, cup__text *lines,
                                  const char **out)
{
    *out = NULL;
    CUP_TRY(check_model(error, json, cup__json_find(json->root, "model")));
    CUP_TRY(find_words(error, json, lines, out));
    return check_added(error, json, *out);
}
