/* Tokens in files: llm.c's, which say in a header what they are, and nanoGPT's, which are 16 bits a
 * token and nothing else. They stand one behind the other, those for training first. */
#ifndef CUP_DATA_SHARDS_H
#define CUP_DATA_SHARDS_H

#include "base/file.h"
#include "base/hash.h"

#define CUP__SHARD_HEADER 1024 /* bytes: 256 numbers of 32 bits */

typedef struct cup__shard {
    char *path;
    uint64_t size;  /* of the file, in bytes */
    uint64_t begin; /* of its tokens, in bytes */
    bool wide;      /* 32 bits a token */
    int64_t first, count; /* of its tokens among all */
} cup__shard;

typedef struct cup__shards {
    cup__shard *shard;
    size_t count, capacity;
    int64_t tokens;     /* in all */
    int64_t train;      /* the first of them, or -1 where names do not say what is for what */
    int64_t vocabulary; /* that tokens are below */
} cup__shards;

/* Whether a path is one of tokens, not of text: a name that ends in .bin, or a folder with such a
 * file that has "train" or "val" in its name or begins as llm.c's do. */
bool cup__shards_named(const char *path);

/* Opens files and folders of them, in which names with "train" are for training and other names
 * with "val" for validation; a token that is not below the vocabulary is told when it is read.
 * `out` must be closed also after a failure. */
cup_status cup__shards_open(cup__error *error, const char *const *paths, int count,
                            int64_t vocabulary, cup__shards *out);
void cup__shards_close(cup__shards *shards);

/* Whether a file that begins with this number is one of llm.c. */
bool cup__shard_known(int32_t number);

/* Looks at one open file, and fills in all of `out` but path and first. */
cup_status cup__shard_look(cup__error *error, const cup__file *file, cup__shard *out);

/* The `context` tokens from `place` on, and the same one token later. */
cup_status cup__shards_row(cup__error *error, const cup__shards *shards, int64_t place,
                           int64_t context, int32_t *inputs, int32_t *targets);

/* Of each file its size and what stands in up to 64 places of it, in order to tell others apart;
 * their tokens are checked too. */
cup_status cup__shards_hash(cup__error *error, const cup__shards *shards, uint64_t *out);

#endif
