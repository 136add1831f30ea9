/* Files of tokens in the making: see shards.h. */
#ifndef CUP_DATA_TOKENIZE_H
#define CUP_DATA_TOKENIZE_H

#include "base/file.h"

/* One kind of them, for training or for validation. Numbered files of up to `most` tokens in a
 * folder, or one of tokens and nothing else; each stands under its name when it is whole. */
typedef struct cup__shard_writer {
    const char *folder, *prefix;
    bool wide, bare;
    int64_t most, held, tokens; /* of a file, in the one that is open, and in all */
    int files;
    cup__writer writer;
} cup__shard_writer;

/* Tokens of 16 bits, or of 32 where they are wide. CUP_UNSUPPORTED where the first ones would be
 * taken for a header. */
cup_status cup__shard_writer_add(cup__error *error, cup__shard_writer *w, const void *tokens,
                                 size_t count);
/* Completes the last file. */
cup_status cup__shard_writer_end(cup__error *error, cup__shard_writer *w);
/* Removes all files. */
void cup__shard_writer_undo(cup__shard_writer *w);

#endif
