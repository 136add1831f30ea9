/* Byte-level BPE: a word's bytes are tokens, and pairs of tokens that stand next to each other are
 * merged, the pair of the highest rank first. */
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer.h"

#define CACHED_WORDS 65536
#define LONGEST_CACHED 64
#define NONE UINT32_MAX

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for a BPE tokenizer");
}

/* What encoding one text needs: places for the word in work, and the words met before. */
typedef struct encoder {
    cup__error *error;
    const cup_tokenizer *tokenizer;
    cup__tokens out;
    size_t room;    /* of the next four, in bytes of a word */
    int32_t *token; /* at a place of the word; -1 where it was merged away */
    uint32_t *left; /* the places before and after, NONE at the ends */
    uint32_t *right;
    uint64_t *heap; /* rank << 32 | place of the left token; the smallest first */
    size_t heap_count;
    cup__strings words;
    uint32_t *word_ends; /* of the known words' tokens */
    size_t word_capacity;
    int32_t *word_tokens;
    size_t token_count, token_capacity;
} encoder;

static cup_status make_room(encoder *e, size_t length)
{
    if (length <= e->room)
        return CUP_OK;
    size_t room = e->room ? e->room : 64;
    while (room < length)
        room *= 2;
    void *grown;
#define GROW(array, count)                                                                         \
    if (!(grown = cup__realloc(e->array, count, sizeof *e->array)))                                \
        return no_memory(e->error);                                                                \
    e->array = grown
    GROW(token, room);
    GROW(left, room);
    GROW(right, room);
    /* One entry for each pair at first, and two more for each merge. */
    GROW(heap, 3 * room);
#undef GROW
    e->room = room;
    return CUP_OK;
}

static void heap_push(encoder *e, uint64_t entry)
{
    size_t at = e->heap_count++;
    for (size_t parent; at && e->heap[parent = (at - 1) / 2] > entry; at = parent)
        e->heap[at] = e->heap[parent];
    e->heap[at] = entry;
}

static uint64_t heap_pop(encoder *e)
{
    uint64_t top = e->heap[0], last = e->heap[--e->heap_count];
    size_t at = 0, count = e->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && e->heap[child + 1] < e->heap[child];
        if (e->heap[child] >= last)
            break;
        e->heap[at] = e->heap[child];
    }
    e->heap[at] = last;
    return top;
}

static void push_pair(encoder *e, uint32_t place)
{
    uint32_t next = place == NONE ? NONE : e->right[place];
    if (next == NONE)
        return;
    uint32_t rank = cup__map_find(&e->tokenizer->ranks, cup__pair(e->token[place], e->token[next]));
    if (rank != CUP__NOT_THERE)
        heap_push(e, (uint64_t)rank << 32 | place);
}

static void merge_at(encoder *e, const cup__merge *merge, uint32_t place)
{
    uint32_t gone = e->right[place], after = e->right[gone];
    e->token[place] = merge->token;
    e->token[gone] = -1;
    e->right[place] = after;
    if (after != NONE)
        e->left[after] = place;
    push_pair(e, e->left[place]);
    push_pair(e, place);
}

/* Leaves the word's tokens packed at the beginning of e->token. */
static size_t merge_word(encoder *e, const char *word, uint32_t length)
{
    const cup_tokenizer *t = e->tokenizer;
    for (uint32_t i = 0; i < length; i++) {
        e->token[i] = t->byte_token[(unsigned char)word[i]];
        e->left[i] = i ? i - 1 : NONE;
        e->right[i] = i + 1 < length ? i + 1 : NONE;
    }
    e->heap_count = 0;
    for (uint32_t i = 0; i < length; i++)
        push_pair(e, i);
    while (e->heap_count) {
        uint64_t entry = heap_pop(e);
        uint32_t place = (uint32_t)entry;
        const cup__merge *merge = &t->merges[entry >> 32];
        /* The entry may be of a pair that another merge has changed. */
        if (e->token[place] == merge->left && e->right[place] != NONE &&
            e->token[e->right[place]] == merge->right)
            merge_at(e, merge, place);
    }
    size_t count = 0;
    for (uint32_t i = 0; i < length; i++)
        if (e->token[i] >= 0)
            e->token[count++] = e->token[i];
    return count;
}

static cup_status remember(encoder *e, size_t index, size_t count)
{
    if (!cup__grow(&e->word_ends, &e->word_capacity, index + 1, sizeof *e->word_ends))
        return no_memory(e->error);
    for (size_t i = 0; i < count; i++) {
        if (!cup__grow(&e->word_tokens, &e->token_capacity, e->token_count, sizeof *e->word_tokens))
            return no_memory(e->error);
        e->word_tokens[e->token_count++] = e->token[i];
    }
    e->word_ends[0] = 0;
    e->word_ends[index + 1] = (uint32_t)e->token_count;
    return CUP_OK;
}

static cup_status encode_known(encoder *e, size_t index)
{
    uint32_t begin = e->word_ends[index];
    return e->out.put(e->out.user, e->word_tokens + begin, e->word_ends[index + 1] - begin);
}

static cup_status encode_word(void *user, const char *word, size_t length)
{
    encoder *e = user;
    size_t known = e->words.count;
    uint32_t index = CUP__NOT_THERE;
    if (length <= LONGEST_CACHED && known < CACHED_WORDS) {
        index = cup__strings_add(&e->words, word, length);
        if (index == CUP__NOT_THERE)
            return no_memory(e->error);
    } else if (length <= LONGEST_CACHED) {
        index = cup__strings_find(&e->words, word, length);
    }
    if (index < known)
        return encode_known(e, index);
    CUP_TRY(make_room(e, length));
    size_t count = merge_word(e, word, (uint32_t)length);
    if (index != CUP__NOT_THERE)
        CUP_TRY(remember(e, index, count));
    return e->out.put(e->out.user, e->token, count);
}

static cup_status encode(cup__error *error, const cup_tokenizer *t, const char *text, size_t length,
                         cup__tokens out)
{
    encoder e = {.error = error, .tokenizer = t, .out = out};
    cup_status status = cup__split(error, t->splitter, text, length, encode_word, &e);
    cup__free(e.token);
    cup__free(e.left);
    cup__free(e.right);
    cup__free(e.heap);
    cup__free(e.word_ends);
    cup__free(e.word_tokens);
    cup__strings_free(&e.words);
    return status;
}

/* The bytes of tokens in the order in which they are made. */
typedef struct vocabulary {
    cup__error *error;
    const char *name;
    cup_tokenizer *tokenizer;
    cup__text bytes;
    struct place {
        uint32_t begin, length; /* the length is 0 while the token is not made */
    } * places;
} vocabulary;

static cup_status define(vocabulary *v, int32_t token, const char *bytes, size_t length)
{
    if (token < 0 || token >= v->tokenizer->size)
        return cup__fail(v->error, CUP_FORMAT, "%s: token %d is not below the size %d", v->name,
                         (int)token, (int)v->tokenizer->size);
    if (length == 0 || length > CUP__LONGEST_TOKEN)
        return cup__fail(v->error, CUP_FORMAT,
                         "%s: token %d has %zu bytes; from 1 to %d are allowed", v->name,
                         (int)token, length, CUP__LONGEST_TOKEN);
    struct place *place = &v->places[token];
    if (place->length) {
        /* Two merges may make the same bytes, and share a token then. */
        if (place->length == length && memcmp(v->bytes.bytes + place->begin, bytes, length) == 0)
            return CUP_OK;
        return cup__fail(v->error, CUP_FORMAT, "%s: token %d is made in two ways", v->name,
                         (int)token);
    }
    *place = (struct place){(uint32_t)v->bytes.length, (uint32_t)length};
    cup__text_append(&v->bytes, bytes, length);
    if (v->bytes.failed || v->bytes.length > UINT32_MAX - CUP__LONGEST_TOKEN)
        return no_memory(v->error);
    return CUP_OK;
}

static cup_status define_merge(vocabulary *v, size_t rank)
{
    cup_tokenizer *t = v->tokenizer;
    const cup__merge *m = &t->merges[rank];
    char bytes[2 * CUP__LONGEST_TOKEN];
    size_t length = 0;
    for (int side = 0; side < 2; side++) {
        int32_t part = side ? m->right : m->left;
        if (part < 0 || part >= t->size || !v->places[part].length)
            return cup__fail(v->error, CUP_FORMAT,
                             "%s: merge %zu uses token %d, which is not made before it", v->name,
                             rank, (int)part);
        memcpy(bytes + length, v->bytes.bytes + v->places[part].begin, v->places[part].length);
        length += v->places[part].length;
    }
    CUP_TRY(define(v, m->token, bytes, length));
    uint64_t pair = cup__pair(m->left, m->right);
    if (cup__map_find(&t->ranks, pair) != CUP__NOT_THERE)
        return cup__fail(v->error, CUP_FORMAT, "%s: merge %zu is there twice", v->name, rank);
    return cup__map_add(&t->ranks, pair, (uint32_t)rank) ? CUP_OK : no_memory(v->error);
}

static cup_status define_all(vocabulary *v, const cup__special *special, size_t special_count)
{
    cup_tokenizer *t = v->tokenizer;
    for (int i = 0; i < 256; i++)
        CUP_TRY(define(v, t->byte_token[i], (char[]){(char)i}, 1));
    for (size_t i = 0; i < t->merge_count; i++)
        CUP_TRY(define_merge(v, i));
    for (size_t i = 0; i < special_count; i++) {
        CUP_TRY(define(v, special[i].token, special[i].text, special[i].length));
        t->special[t->special_count++] = special[i].token;
    }
    return CUP_OK;
}

/* Puts the bytes into the order of the tokens. */
static cup_status arrange(vocabulary *v)
{
    cup_tokenizer *t = v->tokenizer;
    for (int32_t i = 0; i < t->size; i++) {
        if (!v->places[i].length)
            return cup__fail(v->error, CUP_FORMAT, "%s: nothing makes token %d", v->name, (int)i);
        t->begins[i] = (uint32_t)t->bytes.length;
        cup__text_append(&t->bytes, v->bytes.bytes + v->places[i].begin, v->places[i].length);
    }
    t->begins[t->size] = (uint32_t)t->bytes.length;
    return t->bytes.failed ? no_memory(v->error) : CUP_OK;
}

cup_status cup__bpe_complete(cup__error *error, cup_tokenizer *t, const char *name,
                             const cup__special *special, size_t special_count)
{
    size_t size = (size_t)t->size;
    vocabulary v = {error, name, t, {0}, cup__calloc(size, sizeof *v.places)};
    t->begins = cup__malloc((size + 1) * sizeof *t->begins);
    t->special = cup__malloc(special_count * sizeof *t->special);
    cup_status status = CUP_OK;
    if (!v.places || !t->begins || !t->special)
        status = no_memory(error);
    else
        status = define_all(&v, special, special_count);
    if (status == CUP_OK)
        status = arrange(&v);
    cup__text_free(&v.bytes);
    cup__free(v.places);
    return status;
}

static void save(const cup_tokenizer *t, cup__json_writer *writer)
{
    size_t length;
    cup__json_add_string(writer, "pattern", cup__splitter_pattern(t->splitter));
    cup__json_add_integer(writer, "size", t->size);
    cup__json_open(writer, "special", CUP__JSON_OBJECT);
    for (size_t i = 0; i < t->special_count; i++) {
        char text[CUP__LONGEST_TOKEN + 1] = {0};
        const char *bytes = cup_tokenizer_token(t, t->special[i], &length);
        memcpy(text, bytes, length);
        cup__json_add_integer(writer, text, t->special[i]);
    }
    cup__json_close(writer);
    cup__json_open(writer, "bytes", CUP__JSON_ARRAY);
    for (int i = 0; i < 256; i++)
        cup__json_add_integer(writer, NULL, t->byte_token[i]);
    cup__json_close(writer);
    cup__json_open(writer, "merges", CUP__JSON_ARRAY);
    for (size_t i = 0; i < t->merge_count; i++) {
        cup__json_open(writer, NULL, CUP__JSON_ARRAY);
        cup__json_add_integer(writer, NULL, t->merges[i].left);
        cup__json_add_integer(writer, NULL, t->merges[i].right);
        cup__json_add_integer(writer, NULL, t->merges[i].token);
        cup__json_close(writer);
    }
    cup__json_close(writer);
}

const cup__tokenizer_calls cup__tokenizer_bpe = {"bpe", encode, save, cup__bpe_load};
