/* Measured choices as text: one line says that on a card, under a driver and a version of this
 * library, a call was fastest done in some way. Its fields, divided by tabs, are the card
 * ("NVIDIA H200"), the CUDA version of the driver ("13000"), the version ("0.2.0"), the call
 * ("product dtype=3 m=4096 ..."), the way ("wgmma tile_m=128 ...") and its microseconds. A line
 * that begins with # is a comment. Of two for the same call the later one counts. */
#ifndef CUP_DISPATCH_TUNING_H
#define CUP_DISPATCH_TUNING_H

#include "base/error.h"
#include "base/map.h"
#include "base/text.h"

#define CUP__TUNING_BYTES_MOST ((uint64_t)64 << 20) /* of a file */

typedef struct cup__tuning_line {
    char *card, *driver, *version, *call, *way; /* all in one block that begins at `card` */
    double us;
} cup__tuning_line;

typedef struct cup__tuning {
    cup__tuning_line *lines;
    size_t count, capacity;
    cup__map by_call; /* from the hash of what a line is for to its index */
} cup__tuning;

/* Adds the lines of a text; `name` is the file that messages name. */
cup_status cup__tuning_parse(cup__error *error, const char *name, const char *text, size_t size,
                             cup__tuning *to);
/* The same for a file. One that is not there is no failure unless it is `needed`. */
cup_status cup__tuning_read(cup__error *error, const char *path, bool needed, cup__tuning *to);

/* Adds a line, in place of the one for the same call. */
cup_status cup__tuning_put(cup__error *error, cup__tuning *to, const cup__tuning_line *line);

/* All lines as text, sorted. */
void cup__tuning_write(const cup__tuning *tuning, cup__text *text);
cup_status cup__tuning_save(cup__error *error, const cup__tuning *tuning, const char *path);
void cup__tuning_free(cup__tuning *tuning);

/* The user's file: CUP_TUNING, else tuning.tsv in the cache folder. *out is NULL where there is
 * none, else to be freed with cup__free. */
cup_status cup__tuning_path(cup__error *error, char **out);

/* The lines that the library was built with. */
cup_status cup__tuning_shipped(cup__error *error, cup__tuning *to);

/* Hands over the records that count on the context's GPU, those that the library was built with
 * and then the user's, of each those of other drivers first, so that what comes later replaces what
 * came before. `take` is false where there is no memory. A file that cannot be used is said aloud
 * and done without. */
typedef bool (*cup__tuning_take)(void *to, const cup__tuning_line *line);
void cup__tuning_records(cup_context *c, cup__tuning_take take, void *to);

/* Puts what was measured on the context's GPU into the user's file. */
cup_status cup__tuning_remember(cup_context *c, const cup__text *call, const cup__text *way,
                                double us);

#endif
