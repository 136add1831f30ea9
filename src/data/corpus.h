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
    cup__text sources; /* the absolute paths it was loaded from, each with its 0 */
    int64_t skipped;
    int64_t most_bytes;
    bool *more; /* see cup_corpus_options; NULL */
    char *text_field; /* of JSON Lines; NULL: the usual one */
};

/* The sources of the corpus that was encoded. */
const cup__text *cup__data_sources(const cup_data *d);
/* Its text_field. */
const char *cup__data_text_field(const cup_data *d);

/* The weight of set i of a mix, and how many of the sources are its. */
double cup__data_weight(const cup_data *d, int i);
int64_t cup__data_source_count(const cup_data *d, int i);

/* The size of the tokenizer that encoded it: tokens are below it. */
int64_t cup__data_vocabulary(const cup_data *d);

#endif
