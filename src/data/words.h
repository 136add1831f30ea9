/* How often each word stands in a text, which may be counted by several threads and bounded. */
#ifndef CUP_DATA_WORDS_H
#define CUP_DATA_WORDS_H

#include "base/map.h"

#define CUP__WORD_TABLES 64 /* a word is in that of its hash */
#define CUP__WORD_LONGEST ((size_t)256)

typedef struct cup__word_table {
    cup__strings texts;
    int64_t *counts; /* of each */
    size_t capacity;
    char **blocks; /* that hold the bytes */
    size_t block_count, block_capacity, used; /* of the last block */
} cup__word_table;

/* All zero has no words. */
typedef struct cup__words {
    cup__word_table tables[CUP__WORD_TABLES];
} cup__words;

/* Counts a word, which is copied; longer ones in pieces of the longest. False: no host memory. */
bool cup__words_add(cup__words *words, const char *text, size_t length);
void cup__words_free(cup__words *words);

/* The number of different words. */
size_t cup__words_count(const cup__words *words);

/* Adds up what others have counted, on all cores, and leaves them without words. False: no host
 * memory. */
bool cup__words_join(cup__words *words, cup__words *const *others, size_t count);

/* Where there are more than `most` words, drops the rarest, all that occur as often or less, so
 * that three quarters of that are left or fewer, and adds what they were counted to *dropped.
 * False: no host memory. */
bool cup__words_bound(cup__words *words, size_t most, int64_t *dropped);

#endif
