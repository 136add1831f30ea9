#include "data/words.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"

#define BLOCK ((size_t)1 << 15)

static void free_table(cup__word_table *t)
{
    for (size_t i = 0; i < t->block_count; i++)
        cup__free(t->blocks[i]);
    cup__free(t->blocks);
    cup__free(t->counts);
    cup__strings_free(&t->texts);
    *t = (cup__word_table){0};
}

/* Makes room for one more word. */
static bool reserve(cup__word_table *t, size_t length)
{
    if (!cup__grow(&t->counts, &t->capacity, t->texts.count, sizeof *t->counts))
        return false;
    if (t->block_count && length <= BLOCK - t->used)
        return true;
    if (!cup__grow(&t->blocks, &t->block_capacity, t->block_count, sizeof *t->blocks) ||
        !(t->blocks[t->block_count] = cup__malloc(BLOCK)))
        return false;
    t->block_count++;
    t->used = 0;
    return true;
}

static const char *keep(cup__word_table *t, const char *text, size_t length)
{
    char *to = t->blocks[t->block_count - 1] + t->used;
    t->used += length;
    return memcpy(to, text, length);
}

static bool add(cup__word_table *t, const char *text, size_t length, uint32_t hash, int64_t count)
{
    size_t known = t->texts.count;
    if (!reserve(t, length))
        return false;
    uint32_t index = cup__strings_add_hashed(&t->texts, text, length, hash);
    if (index == CUP__NOT_THERE)
        return false;
    if (index == known) {
        t->texts.string[index].bytes = keep(t, text, length);
        t->counts[index] = 0;
    }
    t->counts[index] += count;
    return true;
}

bool cup__words_add(cup__words *words, const char *text, size_t length)
{
    for (size_t at = 0; at < length; at += CUP__WORD_LONGEST) {
        size_t some = length - at < CUP__WORD_LONGEST ? length - at : CUP__WORD_LONGEST;
        uint32_t hash = cup__strings_hash(text + at, some);
        if (!add(&words->tables[hash >> 26], text + at, some, hash, 1))
            return false;
    }
    return true;
}

void cup__words_free(cup__words *words)
{
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        free_table(&words->tables[i]);
}

size_t cup__words_count(const cup__words *words)
{
    size_t count = 0;
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        count += words->tables[i].texts.count;
    return count;
}

typedef struct joining {
    cup__words *words, *const *others;
    size_t count;
    int64_t most; /* of counts that are dropped */
    int64_t dropped[CUP__WORD_TABLES];
    bool failed[CUP__WORD_TABLES];
} joining;

/* Adds the words of a table that occur oftener than `most` times, and returns false where there is
 * no memory; *dropped counts the others. */
static bool add_table(cup__word_table *to, const cup__word_table *from, int64_t most,
                      int64_t *dropped)
{
    for (size_t i = 0; i < from->texts.count; i++) {
        const struct cup__string *s = &from->texts.string[i];
        if (from->counts[i] <= most)
            *dropped += from->counts[i];
        else if (!add(to, s->bytes, s->length, s->hash, from->counts[i]))
            return false;
    }
    return true;
}

static bool has_failed(const joining *j)
{
    bool failed = false;
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        failed |= j->failed[i];
    return failed;
}

static void join_tables(int64_t begin, int64_t end, void *user)
{
    joining *j = user;
    for (int64_t i = begin; i < end; i++)
        for (size_t k = 0; k < j->count; k++) {
            cup__word_table *from = &j->others[k]->tables[i];
            if (!j->failed[i])
                j->failed[i] = !add_table(&j->words->tables[i], from, 0, &j->dropped[i]);
            free_table(from);
        }
}

bool cup__words_join(cup__words *words, cup__words *const *others, size_t count)
{
    joining j = {.words = words, .others = others, .count = count};
    cup__parallel_for(CUP__WORD_TABLES, 1, join_tables, &j);
    return !has_failed(&j);
}

static size_t count_over(const cup__words *words, int64_t most)
{
    size_t over = 0;
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        for (size_t k = 0; k < words->tables[i].texts.count; k++)
            over += words->tables[i].counts[k] > most;
    return over;
}

static void bound_tables(int64_t begin, int64_t end, void *user)
{
    joining *j = user;
    for (int64_t i = begin; i < end; i++) {
        cup__word_table *t = &j->words->tables[i], kept = {0};
        j->failed[i] = !add_table(&kept, t, j->most, &j->dropped[i]);
        free_table(t);
        *t = kept;
    }
}

bool cup__words_bound(cup__words *words, size_t most, int64_t *dropped)
{
    joining j = {.words = words, .most = 1};
    size_t wanted = most / 4 * 3;
    if (cup__words_count(words) <= most)
        return true;
    while (count_over(words, j.most) > wanted)
        j.most *= 2;
    for (int64_t least = j.most / 2; j.most - least > 1;) {
        int64_t middle = least + (j.most - least) / 2;
        if (count_over(words, middle) > wanted)
            least = middle;
        else
            j.most = middle;
    }
    cup__parallel_for(CUP__WORD_TABLES, 1, bound_tables, &j);
    for (int i = 0; i < CUP__WORD_TABLES; i++)
        *dropped += j.dropped[i];
    return !has_failed(&j);
}
