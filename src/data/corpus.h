/* The inside of a corpus. */
#ifndef CUP_DATA_CORPUS_H
#define CUP_DATA_CORPUS_H

#include "base/error.h"
#include "base/text.h"
#include "cupola/data.h"

struct cup_corpus {
    cup__text text;
    size_t *ends; /* of the files in the text */
    size_t count, capacity;
    int64_t skipped;
    int64_t most_bytes;
};

#endif
