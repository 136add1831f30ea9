/* Text of any size in pieces, cut where no tokenizer sees it. */
#ifndef CUP_DATA_READER_H
#define CUP_DATA_READER_H

#include "base/text.h"
#include "data/stream.h"

typedef struct cup__input {
    char *path;
    uint64_t size; /* of the file */
    bool found;    /* in a folder: passed over where it is no text */
} cup__input;

typedef struct cup__reader {
    cup__input *inputs;
    size_t count, capacity, next; /* `next` is open, or is to be opened */
    uint64_t total, before;       /* bytes of all files, and of those behind us */
    uint64_t boundary;            /* bytes of files from which on it is for validation */
    int64_t skipped;
    cup__stream stream; /* of `next`, where `open` */
    bool open, ended, begun, lines;
    char *bytes; /* read and not given */
    size_t held, room;
    int64_t line;
} cup__reader;

/* Some of a text, or whole lines of JSON. */
typedef struct cup__piece {
    const char *path; /* the reader's */
    char *bytes;      /* to be freed; a 0 behind them */
    size_t length;
    int64_t line; /* the number of its first line */
    bool lines;   /* of JSON, each a text */
    bool begins, ends; /* the text */
    bool validation;
} cup__piece;

/* Finds the files. `out` must be closed also after a failure. */
cup_status cup__reader_open(cup__error *error, const char *const *paths, int count,
                            double validation, cup__reader *out);
void cup__reader_close(cup__reader *reader);

/* The next piece; its bytes are NULL when there is none. */
cup_status cup__reader_next(cup__error *error, cup__reader *reader, cup__piece *out);

/* The bytes of all files that were read. */
uint64_t cup__reader_done(const cup__reader *reader);

/* Where the text may be cut, near `wanted`: each half has the words it has in the whole, by GPT-2's
 * pattern. 0: nowhere. */
size_t cup__reader_cut(const char *text, size_t length, size_t wanted);

#endif
