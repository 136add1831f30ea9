/* GPT-2's vocab.json, from texts to tokens, and merges.txt, a pair of texts a line; and
 * tokenizer.json of Hugging Face's tokenizers, which has both. In all each byte of a token is
 * written as a character that can be printed. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

#define MOST_FILE ((uint64_t)256 << 20)

typedef struct reader {
    cup__error *error;
    const char *name;
    cup_tokenizer *tokenizer;
    int16_t byte_of[512]; /* the byte that a code point stands for, or -1 */
    char *bytes;          /* of the texts below */
    size_t used;
    cup__strings texts;
    int32_t *tokens; /* of the texts */
    uint8_t *made;   /* whether bytes or merges make a text */
    cup__special *special;
    size_t special_count;
    size_t added;    /* tokens listed beside the vocabulary, some of which may be in it */
    bool listed;     /* what is special is among those; other texts are pieces */
    bool characters; /* texts are of characters, with marks for spaces and names for bytes */
} reader;

/* Bytes that can be printed stand for themselves, the others for 256 and so on in their order. */
static void make_table(reader *r)
{
    int next = 256;
    memset(r->byte_of, -1, sizeof r->byte_of);
    for (int b = 0; b < 256; b++) {
        bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        r->byte_of[printed ? b : next++] = (int16_t)b;
    }
}

/* Turns characters into the bytes they stand for, which are never more; SIZE_MAX when one stands
 * for none. */
static size_t to_bytes(const reader *r, const char *text, size_t length, char *out)
{
    size_t count = 0;
    if (r->characters)
        return cup__spaces_unmark(text, length, out);
    for (size_t at = 0; at < length;) {
        uint32_t code;
        int used = cup__utf8_decode(text + at, length - at, &code);
        if (used <= 0 || code >= 512 || r->byte_of[code] < 0)
            return SIZE_MAX;
        out[count++] = (char)r->byte_of[code];
        at += (size_t)used;
    }
    return count;
}

static cup_status add_text(reader *r, const cup__json_node *node)
{
    int64_t token;
    if (!cup__json_integer(node, &token) || token < 0 || token >= r->tokenizer->size)
        return cup__fail(r->error, CUP_FORMAT,
                         "%s: \"%.100s\" must have a token from 0 to %d, one less than there are",
                         r->name, node->key, (int)r->tokenizer->size - 1);
    char *to = r->bytes + r->used;
    size_t length = to_bytes(r, node->key, strlen(node->key), to);
    if (length == SIZE_MAX) {
        r->special[r->special_count++] =
            (cup__special){node->key, strlen(node->key), (int32_t)token, false};
        return CUP_OK;
    }
    size_t known = r->texts.count;
    uint32_t index = cup__strings_add(&r->texts, to, length);
    if (index == CUP__NOT_THERE)
        return cup__no_memory(r->error, r->name);
    if (index < known)
        return cup__fail(r->error, CUP_FORMAT, "%s: \"%.100s\" is there twice", r->name, node->key);
    r->tokens[index] = (int32_t)token;
    r->used += length;
    return CUP_OK;
}

/* An object of texts and their tokens, of which there are `more` in another place. */
static cup_status read_vocabulary(reader *r, const cup__json_node *object, size_t more)
{
    if (object->kind != CUP__JSON_OBJECT || object->count < 256 ||
        object->count > CUP__MOST_TOKENS - more)
        return cup__fail(r->error, CUP_FORMAT,
                         "%s must be an object with 256 texts or more and their tokens", r->name);
    size_t count = object->count, bytes = 0;
    CUP__JSON_EACH(node, object)
    bytes += strlen(node->key);
    r->tokenizer->size = (int32_t)(count + more);
    r->bytes = cup__malloc(bytes);
    r->tokens = cup__malloc(count * sizeof *r->tokens);
    r->made = cup__calloc(count, 1);
    r->special = cup__malloc((2 * count + more + r->added) * sizeof *r->special);
    if (!r->bytes || !r->tokens || !r->made || !r->special)
        return cup__no_memory(r->error, r->name);
    CUP__JSON_EACH(node, object)
    CUP_TRY(add_text(r, node));
    for (int b = 0; b < 256; b++) {
        char name[8] = {(char)b};
        if (r->characters)
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        uint32_t index = cup__strings_find(&r->texts, name, r->characters ? strlen(name) : 1);
        if (index == CUP__NOT_THERE)
            return cup__fail(r->error, CUP_FORMAT,
                             "%s has no token for the byte 0x%02x; it is no byte-level vocabulary",
                             r->name, (unsigned)b);
        r->tokenizer->byte_token[b] = r->tokens[index];
        r->made[index] = 1;
    }
    return CUP_OK;
}

/* A line's two texts, joined in `out` with the first `*left` bytes from the left one. */
static size_t join(const reader *r, const char *line, size_t length, char *out, size_t *left)
{
    const char *space = memchr(line, ' ', length);
    if (!space || length > 4 * CUP__LONGEST_TOKEN)
        return SIZE_MAX;
    size_t first = (size_t)(space - line);
    *left = to_bytes(r, line, first, out);
    if (*left == SIZE_MAX)
        return SIZE_MAX;
    size_t right = to_bytes(r, space + 1, length - first - 1, out + *left);
    return right == SIZE_MAX ? SIZE_MAX : *left + right;
}

static cup_status add_merge(reader *r, const char *file, size_t number, const char *line,
                            size_t length)
{
    cup_tokenizer *t = r->tokenizer;
    char bytes[4 * CUP__LONGEST_TOKEN];
    size_t left = 0, whole = join(r, line, length, bytes, &left);
    uint32_t parts[3] = {CUP__NOT_THERE, CUP__NOT_THERE, CUP__NOT_THERE};
    if (whole != SIZE_MAX) {
        parts[0] = cup__strings_find(&r->texts, bytes, left);
        parts[1] = cup__strings_find(&r->texts, bytes + left, whole - left);
        parts[2] = cup__strings_find(&r->texts, bytes, whole);
    }
    for (int i = 0; i < 3; i++)
        if (parts[i] == CUP__NOT_THERE)
            return cup__fail(r->error, CUP_FORMAT,
                             "%s, line %zu: not two texts of %s that make a third; are the two "
                             "files of one model?",
                             file, number, r->name);
    if (!cup__grow(&t->merges, &t->merge_capacity, t->merge_count, sizeof *t->merges))
        return cup__no_memory(r->error, r->name);
    t->merges[t->merge_count++] =
        (cup__merge){r->tokens[parts[0]], r->tokens[parts[1]], r->tokens[parts[2]]};
    r->made[parts[2]] = 1;
    return CUP_OK;
}

static cup_status read_merges(reader *r, const char *file, const char *text, size_t length)
{
    const char *end = text + length;
    for (size_t number = 1; text < end; number++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        const char *next = stop ? stop + 1 : end;
        size_t count = (size_t)((stop ? stop : end) - text);
        count -= count && text[count - 1] == '\r';
        bool comment = number == 1 && count >= 8 && memcmp(text, "#version", 8) == 0;
        if (count && !comment)
            CUP_TRY(add_merge(r, file, number, text, count));
        text = next;
    }
    return CUP_OK;
}

/* What neither bytes nor merges make can only be special, and stands in texts as it is written; or,
 * where special ones are listed, a piece. */
static cup_status complete(reader *r, const cup__json_node *object)
{
    CUP__JSON_EACH(node, object)
    {
        char bytes[CUP__LONGEST_TOKEN];
        if (strlen(node->key) > CUP__LONGEST_TOKEN)
            continue;
        size_t length = to_bytes(r, node->key, strlen(node->key), bytes);
        if (length == SIZE_MAX)
            continue;
        uint32_t index = cup__strings_find(&r->texts, bytes, length);
        if (!r->made[index])
            r->special[r->special_count++] =
                (cup__special){r->listed ? r->texts.string[index].bytes : node->key,
                               r->listed ? length : strlen(node->key), r->tokens[index],
                               r->listed};
    }
    return cup__bpe_complete(r->error, r->tokenizer, r->name, r->special, r->special_count);
}

static cup_status read_both(reader *r, const char *merges)
{
    char *text = NULL;
    size_t length;
    cup__json json;
    CUP_TRY(cup__json_read(r->error, r->name, MOST_FILE, &json));
    cup_status status = read_vocabulary(r, json.root, 0);
    if (status == CUP_OK)
        status = cup__file_read(r->error, merges, MOST_FILE, &text, &length);
    if (status == CUP_OK)
        status = read_merges(r, merges, text, length);
    if (status == CUP_OK)
        status = complete(r, json.root);
    cup__free(text);
    cup__json_free(&json);
    return status;
}

static void free_reader(reader *r)
{
    cup__free(r->bytes);
    cup__free(r->tokens);
    cup__free(r->made);
    cup__free(r->special);
    cup__strings_free(&r->texts);
}

cup_status cup__gpt2_load(cup__error *error, const char *vocabulary, const char *merges,
                          cup_tokenizer *t)
{
    reader r = {.error = error, .name = vocabulary, .tokenizer = t};
    make_table(&r);
    cup_status status = cup__splitter_new(error, "gpt2", &t->splitter);
    if (status == CUP_OK)
        status = read_both(&r, merges);
    free_reader(&r);
    return status;
}

/* A merge is a text with a space in it, or two texts. */
static cup_status read_merge_list(reader *r, const cup__json_node *list)
{
    size_t number = 0;
    char line[4 * CUP__LONGEST_TOKEN];
    CUP__JSON_EACH (node, list) {
        bool two = node->kind == CUP__JSON_ARRAY && node->count == 2;
        const cup__json_node *left = two ? node + 1 : NULL, *right = two ? left + left->span : NULL;
        bool both = two && left->kind == CUP__JSON_STRING && right->kind == CUP__JSON_STRING;
        int length = !both && node->kind == CUP__JSON_STRING
                         ? snprintf(line, sizeof line, "%s", node->string)
                         : snprintf(line, sizeof line, "%s %s", both ? left->string : "",
                                    both ? right->string : "");
        size_t used = length > 0 && (size_t)length < sizeof line ? (size_t)length : 0;
        CUP_TRY(add_merge(r, "its merges", ++number, line, used));
    }
    return CUP_OK;
}

/* So that a special text is not one of the pieces as well. */
static void take_from_texts(reader *r, const char *text)
{
    char bytes[CUP__LONGEST_TOKEN];
    size_t length = strlen(text);
    length = length <= sizeof bytes ? to_bytes(r, text, length, bytes) : SIZE_MAX;
    uint32_t index =
        length == SIZE_MAX ? CUP__NOT_THERE : cup__strings_find(&r->texts, bytes, length);
    if (index != CUP__NOT_THERE)
        r->made[index] = 1;
}

/* Tokens that stand in texts as they are written, among those of the vocabulary or beside them. */
static cup_status read_added(reader *r, const cup__json_node *list, const cup__json_node *object)
{
    CUP__JSON_EACH (node, list) {
        const cup__json_node *text = cup__json_find(node, "content");
        int64_t token;
        if (!text || text->kind != CUP__JSON_STRING || !*text->string ||
            !cup__json_integer(cup__json_find(node, "id"), &token) || token < 0 ||
            token >= r->tokenizer->size)
            return cup__fail(r->error, CUP_FORMAT,
                             "%s: each of \"added_tokens\" must have a content and an id below %d",
                             r->name, (int)r->tokenizer->size);
        if (r->listed)
            take_from_texts(r, text->string);
        if (r->listed || !cup__json_find(object, text->string))
            r->special[r->special_count++] =
                (cup__special){text->string, strlen(text->string), (int32_t)token, false};
    }
    return CUP_OK;
}

static size_t count_beside(const cup__json_node *list, const cup__json_node *object)
{
    size_t count = 0;
    CUP__JSON_EACH (node, list) {
        const cup__json_node *text = cup__json_find(node, "content");
        count += text && text->kind == CUP__JSON_STRING && !cup__json_find(object, text->string);
    }
    return count;
}

static cup_status read_pattern(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    cup__text lines = {0};
    const char *pattern;
    cup_status status = cup__published_pattern(error, json, &lines, &pattern);
    if (status == CUP_OK)
        status = cup__bpe_pattern(error, t, pattern);
    cup__text_free(&lines);
    return status;
}

cup_status cup__bpe_published_load(cup__error *error, const cup__json *json, cup_tokenizer *t)
{
    static const cup__json_node none = {.kind = CUP__JSON_ARRAY, .span = 1};
    const cup__json_node *model, *vocabulary, *merges;
    const cup__json_node *added = cup__json_find(json->root, "added_tokens");
    reader r = {.error = error, .name = json->name, .tokenizer = t};
    added = added && added->kind == CUP__JSON_ARRAY ? added : &none;
    CUP_TRY(read_pattern(error, json, t));
    CUP_TRY(cup__json_get(error, json, json->root, "model", CUP__JSON_OBJECT, &model));
    CUP_TRY(cup__json_get(error, json, model, "vocab", CUP__JSON_OBJECT, &vocabulary));
    CUP_TRY(cup__json_get(error, json, model, "merges", CUP__JSON_ARRAY, &merges));
    t->whole_words = cup__published_whole_words(model);
    t->nfc = cup__published_nfc(json);
    r.characters = t->spaces;
    r.listed = r.characters || t->whole_words;
    r.added = added->count;
    make_table(&r);
    cup_status status = read_vocabulary(&r, vocabulary, count_beside(added, vocabulary));
    if (status == CUP_OK)
        status = read_merge_list(&r, merges);
    if (status == CUP_OK)
        status = read_added(&r, added, vocabulary);
    if (status == CUP_OK)
        status = complete(&r, vocabulary);
    if (status == CUP_OK)
        status = cup__around_published(error, json, t);
    free_reader(&r);
    return status;
}
