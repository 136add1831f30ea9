/* Encoding by BPE: a word's bytes are tokens, and pairs of tokens that stand next to each other are
 * merged, the pair of the highest rank first. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "data/nfc.h"
#include "data/tokenizer.h"

#define KNOWN_BITS 15
#define LONGEST_KNOWN 26
#define MOST_TOKENS 9
#define NONE UINT32_MAX

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for a BPE tokenizer");
}

/* A word and its tokens, in one line of a processor's cache. */
typedef struct known {
    uint8_t length, count; /* the length is 0 in an empty one */
    char word[LONGEST_KNOWN];
    int32_t tokens[MOST_TOKENS];
} known;

/* What encoding needs and is kept from text to text: places for the word in work, and the words met
 * last, each at the place of its hash. */
typedef struct encoder {
    cup__error *error;
    const cup_tokenizer *tokenizer;
    cup__tokens out;
    known *words;
    size_t room;    /* of the next four, in bytes of a word */
    int32_t *token; /* at a place of the word; -1 where it was merged away */
    uint32_t *left; /* the places before and after, NONE at the ends */
    uint32_t *right;
    uint64_t *heap; /* rank << 32 | place of the left token; the smallest first */
    size_t heap_count;
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

/* The characters that are tokens, and the bytes of the others. Returns their number. */
static uint32_t begin_word(encoder *e, const char *word, uint32_t bytes)
{
    const cup_tokenizer *t = e->tokenizer;
    uint32_t count = 0, code = 0;
    for (uint32_t at = 0; at < bytes;) {
        int used = t->spaces ? cup__utf8_decode(word + at, bytes - at, &code) : -1;
        uint32_t token = used > 0 ? cup__map_find(&t->characters, code) : CUP__NOT_THERE;
        if (token != CUP__NOT_THERE) {
            e->token[count++] = (int32_t)token;
            at += (uint32_t)used;
            continue;
        }
        for (uint32_t end = at + (used > 0 ? (uint32_t)used : 1); at < end; at++)
            e->token[count++] = t->byte_token[(unsigned char)word[at]];
    }
    return count;
}

/* Leaves the word's tokens packed at the beginning of e->token. */
static size_t merge_word(encoder *e, const char *word, uint32_t bytes)
{
    const cup_tokenizer *t = e->tokenizer;
    uint32_t length = begin_word(e, word, bytes);
    for (uint32_t i = 0; i < length; i++) {
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

/* The eight bytes, or fewer, that a word begins with. */
static uint64_t bytes_at(const char *word, size_t count)
{
    uint64_t bytes = 0;
    memcpy(&bytes, word, count < 8 ? count : 8);
    return bytes;
}

static known *place_of(const encoder *e, const char *word, size_t length)
{
    uint64_t hash = length;
    for (size_t at = 0; at < length; at += 8)
        hash = (hash ^ bytes_at(word + at, length - at)) * UINT64_C(0x9e3779b97f4a7c15);
    return &e->words[(hash ^ hash >> 29) >> (64 - KNOWN_BITS)];
}

static cup_status encode_word(void *user, const char *word, size_t length)
{
    encoder *e = user;
    known *k = length <= LONGEST_KNOWN ? place_of(e, word, length) : NULL;
    if (k && k->length == length && memcmp(k->word, word, length) == 0)
        return e->out.put(e->out.user, k->tokens, k->count);
    uint32_t whole = e->tokenizer->whole_words
                         ? cup__strings_find(&e->tokenizer->words, word, length)
                         : CUP__NOT_THERE;
    if (whole != CUP__NOT_THERE)
        return e->out.put(e->out.user, &e->tokenizer->word_tokens[whole], 1);
    CUP_TRY(make_room(e, length));
    size_t count = merge_word(e, word, (uint32_t)length);
    if (k && count <= MOST_TOKENS) {
        k->length = (uint8_t)length;
        k->count = (uint8_t)count;
        memcpy(k->word, word, length);
        memcpy(k->tokens, e->token, count * sizeof *e->token);
    }
    return e->out.put(e->out.user, e->token, count);
}

void cup__bpe_forget(void *work)
{
    encoder *e = work;
    if (!e)
        return;
    cup__free(e->token);
    cup__free(e->left);
    cup__free(e->right);
    cup__free(e->heap);
    cup__free(e->words);
    cup__free(e);
}

static encoder *new_encoder(const cup_tokenizer *t)
{
    encoder *e = cup__calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->tokenizer = t;
    e->words = cup__calloc((size_t)1 << KNOWN_BITS, sizeof *e->words);
    if (e->words)
        return e;
    cup__free(e);
    return NULL;
}

static cup_status encode_words(encoder *e, const char *text, size_t length, cup__standing standing)
{
    const cup_tokenizer *t = e->tokenizer;
    if (t->spaces)
        return cup__spaces_split(e->error, t, text, length, standing, encode_word, e);
    return cup__split(e->error, t->splitter, text, length, encode_word, e);
}

cup_status cup__bpe_encode(cup__error *error, const cup_tokenizer *t, const char *text,
                           size_t length, cup__standing standing, cup__tokens out, void **work)
{
    encoder *e = *work ? *work : new_encoder(t);
    if (!e)
        return no_memory(error);
    *work = e;
    e->error = error;
    e->out = out;
    if (!t->nfc || !cup__nfc_may_change(text, length))
        return encode_words(e, text, length, standing);
    cup__text form = {0};
    cup_status status = cup__nfc(error, text, length, &form);
    if (status == CUP_OK)
        status = encode_words(e, form.bytes, form.length, standing);
    cup__text_free(&form);
    return status;
}
