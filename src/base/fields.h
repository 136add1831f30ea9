/* Structs of numbers that users set, told as tables: their ranges, and their form in files. */
#ifndef CUP_BASE_FIELDS_H
#define CUP_BASE_FIELDS_H

#include "base/json.h"

/* A choice is an enum; in files it is the word that stands at its number. */
typedef enum cup__field_kind {
    CUP__FIELD_WHOLE,
    CUP__FIELD_REAL,
    CUP__FIELD_FLAG,
    CUP__FIELD_CHOICE,
    CUP__FIELD_TEXT, /* an array of characters, of which `most` is the size */
    CUP__FIELD_LATER = 8, /* with one of these: 0 in files that were written before it was there */
    CUP__FIELD_FLAG_ONCE = 16 /* with a choice: may be a flag in files, which stands for 0 and 1 */
} cup__field_kind;

#define CUP__LATER(kind) (cup__field_kind)(CUP__FIELD_##kind | CUP__FIELD_LATER)

/* A number of a struct: its name in files and sentences, where it stands, its range, and whether
 * what goes on from a file must have the same. */
typedef struct cup__field {
    const char *name;
    cup__field_kind kind;
    size_t offset;
    double least, most;
    bool fixed;
    const char *const *words; /* of a choice, ending with NULL */
} cup__field;

/* Each takes a table that ends with a NULL name, and the struct it tells of. */

/* Fails where a number is out of its range; `what` begins the sentence. */
cup_status cup__fields_check(cup__error *error, const char *what, const cup__field *fields,
                             const void *from);

/* The name of the first fixed field in which two structs differ; NULL: none. */
const char *cup__fields_differ(const cup__field *fields, const void *a, const void *b);

/* Into the JSON object that is open, and out of one. Ranges are not checked. */
void cup__fields_write(cup__json_writer *writer, const cup__field *fields, const void *from);
cup_status cup__fields_read(cup__error *error, const cup__json *json, const cup__json_node *object,
                            const cup__field *fields, void *to);

#endif
