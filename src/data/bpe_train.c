/* Learning merges of words that were counted: each merge changes only the words that hold its
 * pair. */
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer.h"

#define WATCHED 4096 /* words between two looks at whether to go on */

typedef struct word {
    size_t begin; /* in the symbols */
    uint32_t length;
    int64_t count;
} word;

typedef struct pair {
    int32_t left, right;
    int64_t count;
    uint32_t *words; /* that hold it, or did */
    size_t word_count, word_capacity;
} pair;

typedef struct trainer {
    cup__error *error;
    cup__watch watch;
    size_t watched;
    int64_t merges;
    word *words;
    size_t word_count;
    int32_t *symbols;
    pair *pairs;
    size_t pair_count, pair_capacity;
    cup__map pair_index;
    /* The most frequent pair on top. A count only falls, and is looked at again on the way out. */
    struct candidate {
        int64_t count;
        uint32_t pair;
    } * heap;
    size_t heap_count, heap_capacity;
} trainer;

static cup_status no_memory(trainer *tr)
{
    return cup__fail(tr->error, CUP_MEMORY, "out of host memory for learning a BPE vocabulary");
}

/* Called for each word that is worked on. */
static cup_status look(trainer *tr)
{
    if (++tr->watched % WATCHED || !tr->watch.stop || !tr->watch.stop(tr->merges, tr->watch.user))
        return CUP_OK;
    return cup__fail(tr->error, CUP_INTERRUPTED, "learning a BPE vocabulary was stopped");
}

/* Whether candidate a goes before b: the more frequent one, then the one with the lower tokens, so
 * that the result does not depend on the order of the work. */
static bool goes_before(const trainer *tr, const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    const pair *x = &tr->pairs[a->pair], *y = &tr->pairs[b->pair];
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static cup_status push(trainer *tr, uint32_t index)
{
    struct candidate entry = {tr->pairs[index].count, index};
    if (!cup__grow(&tr->heap, &tr->heap_capacity, tr->heap_count, sizeof *tr->heap))
        return no_memory(tr);
    size_t at = tr->heap_count++;
    for (size_t parent; at && goes_before(tr, &entry, &tr->heap[parent = (at - 1) / 2]);
         at = parent)
        tr->heap[at] = tr->heap[parent];
    tr->heap[at] = entry;
    return CUP_OK;
}

static struct candidate pop(trainer *tr)
{
    struct candidate top = tr->heap[0], last = tr->heap[--tr->heap_count];
    size_t at = 0, count = tr->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && goes_before(tr, &tr->heap[child + 1], &tr->heap[child]);
        if (!goes_before(tr, &tr->heap[child], &last))
            break;
        tr->heap[at] = tr->heap[child];
    }
    tr->heap[at] = last;
    return top;
}

/* The pair's index, a new one when it was not there. */
static uint32_t pair_of(trainer *tr, int32_t left, int32_t right)
{
    uint32_t index = cup__map_find(&tr->pair_index, cup__pair(left, right));
    if (index != CUP__NOT_THERE)
        return index;
    if (!cup__grow(&tr->pairs, &tr->pair_capacity, tr->pair_count, sizeof *tr->pairs) ||
        tr->pair_count >= CUP__NOT_THERE - 1 ||
        !cup__map_add(&tr->pair_index, cup__pair(left, right), (uint32_t)tr->pair_count))
        return CUP__NOT_THERE;
    tr->pairs[tr->pair_count] = (pair){.left = left, .right = right};
    return (uint32_t)tr->pair_count++;
}

/* Adds `count` to each pair of a word, and the word to the pairs from number `first` on. */
static cup_status count_pairs(trainer *tr, uint32_t number, int64_t count, size_t first)
{
    const word *w = &tr->words[number];
    const int32_t *symbols = tr->symbols + w->begin;
    for (uint32_t i = 0; i + 1 < w->length; i++) {
        uint32_t index = pair_of(tr, symbols[i], symbols[i + 1]);
        if (index == CUP__NOT_THERE)
            return no_memory(tr);
        pair *p = &tr->pairs[index];
        p->count += count;
        if (index < first || (p->word_count && p->words[p->word_count - 1] == number))
            continue;
        if (!cup__grow(&p->words, &p->word_capacity, p->word_count, sizeof *p->words))
            return no_memory(tr);
        p->words[p->word_count++] = number;
    }
    return CUP_OK;
}

/* The words as tokens of their bytes. */
static cup_status spell(trainer *tr, const cup_tokenizer *t, const cup__words *words)
{
    size_t symbols = 0, at = 0, count = cup__words_count(words);
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        for (size_t k = 0; k < words->tables[i].texts.count; k++)
            symbols += words->tables[i].texts.string[k].length;
    if (count >= CUP__NOT_THERE)
        return no_memory(tr);
    tr->symbols = cup__realloc(NULL, symbols, sizeof *tr->symbols);
    tr->words = cup__realloc(NULL, count, sizeof *tr->words);
    if (!tr->symbols || !tr->words)
        return no_memory(tr);
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        for (size_t k = 0; k < words->tables[i].texts.count; k++) {
            const struct cup__string *s = &words->tables[i].texts.string[k];
            tr->words[tr->word_count++] = (word){at, s->length, words->tables[i].counts[k]};
            for (uint32_t b = 0; b < s->length; b++)
                tr->symbols[at++] = t->byte_token[(unsigned char)s->bytes[b]];
        }
    return CUP_OK;
}

static cup_status count_all(trainer *tr)
{
    for (size_t i = 0; i < tr->word_count; i++) {
        CUP_TRY(look(tr));
        CUP_TRY(count_pairs(tr, (uint32_t)i, tr->words[i].count, 0));
    }
    for (size_t i = 0; i < tr->pair_count; i++)
        CUP_TRY(push(tr, (uint32_t)i));
    return CUP_OK;
}

static bool holds(const trainer *tr, const word *w, const cup__merge *m)
{
    const int32_t *symbols = tr->symbols + w->begin;
    for (uint32_t i = 0; i + 1 < w->length; i++)
        if (symbols[i] == m->left && symbols[i + 1] == m->right)
            return true;
    return false;
}

static void replace(trainer *tr, word *w, const cup__merge *m)
{
    int32_t *symbols = tr->symbols + w->begin;
    uint32_t to = 0;
    for (uint32_t i = 0; i < w->length; to++) {
        bool both = i + 1 < w->length && symbols[i] == m->left && symbols[i + 1] == m->right;
        symbols[to] = both ? m->token : symbols[i];
        i += both ? 2 : 1;
    }
    w->length = to;
}

static cup_status merge_pair(trainer *tr, uint32_t index, const cup__merge *m)
{
    size_t first = tr->pair_count;
    for (size_t i = 0; i < tr->pairs[index].word_count; i++) {
        uint32_t number = tr->pairs[index].words[i];
        word *w = &tr->words[number];
        CUP_TRY(look(tr));
        if (!holds(tr, w, m))
            continue;
        CUP_TRY(count_pairs(tr, number, -w->count, SIZE_MAX));
        replace(tr, w, m);
        /* Only pairs with the new token are new, and only they have not yet seen the word. */
        CUP_TRY(count_pairs(tr, number, w->count, first));
    }
    for (size_t i = first; i < tr->pair_count; i++)
        CUP_TRY(push(tr, (uint32_t)i));
    pair *p = &tr->pairs[index];
    cup__free(p->words);
    p->words = NULL;
    p->word_count = p->word_capacity = 0;
    return CUP_OK;
}

static cup_status learn(trainer *tr, cup_tokenizer *t, int64_t most)
{
    while ((int64_t)t->merge_count < most && tr->heap_count) {
        struct candidate top = pop(tr);
        const pair *p = &tr->pairs[top.pair];
        if (p->count < 2)
            continue;
        if (p->count != top.count) {
            CUP_TRY(push(tr, top.pair));
            continue;
        }
        if (!cup__grow(&t->merges, &t->merge_capacity, t->merge_count, sizeof *t->merges))
            return no_memory(tr);
        cup__merge *m = &t->merges[t->merge_count];
        *m = (cup__merge){p->left, p->right, 256 + (int32_t)t->merge_count};
        tr->merges = (int64_t)++t->merge_count;
        CUP_TRY(merge_pair(tr, top.pair, m));
    }
    return CUP_OK;
}

static void free_trainer(trainer *tr)
{
    for (size_t i = 0; i < tr->pair_count; i++)
        cup__free(tr->pairs[i].words);
    cup__free(tr->pairs);
    cup__free(tr->words);
    cup__free(tr->symbols);
    cup__free(tr->heap);
    cup__map_free(&tr->pair_index);
}

cup_status cup__bpe_learn(cup__error *error, cup_tokenizer *t, cup__words *words, int64_t most,
                          cup__watch watch)
{
    trainer tr = {.error = error, .watch = watch};
    cup_status status = spell(&tr, t, words);
    cup__words_free(words);
    if (status == CUP_OK)
        status = count_all(&tr);
    if (status == CUP_OK)
        status = learn(&tr, t, most);
    free_trainer(&tr);
    return status;
}
