/* JSON as RFC 8259 has it, read strictly: bounded size and depth, valid UTF-8, no key twice, whole
 * numbers kept exact up to 64 bits. And a writer of the same. */
#ifndef CUP_BASE_JSON_H
#define CUP_BASE_JSON_H

#include "base/error.h"
#include "base/text.h"

typedef enum cup__json_kind {
    CUP__JSON_NULL,
    CUP__JSON_BOOL,
    CUP__JSON_NUMBER,
    CUP__JSON_STRING,
    CUP__JSON_ARRAY,
    CUP__JSON_OBJECT
} cup__json_kind;

/* One value. The nodes of a document stand in the order of its text, so that the first child
 * follows its parent and `span` nodes after a node comes its next sibling. A value takes two bytes
 * of text at least, and its node 24: small, because that bounds what a file can make us take. */
typedef struct cup__json_node {
    const char *key; /* in an object; ends in 0, and holds none */
    union {
        bool boolean;
        double number;      /* of one that is not whole; cup__json_number takes either */
        uint64_t magnitude; /* of a whole number */
        const char *string; /* ends in 0 */
    };
    uint32_t count;    /* of children, or of a string's bytes */
    unsigned span : 27; /* of nodes, itself included */
    unsigned kind : 3;  /* a cup__json_kind */
    unsigned is_integer : 1, is_negative : 1; /* of a number: whole, |value| < 2^64; below zero */
} cup__json_node;

typedef struct cup__json {
    char *name; /* what was read, for messages */
    char *text; /* what the strings lie in */
    cup__json_node *root;
    size_t count, capacity; /* of nodes; all are allocated at once */
} cup__json;

/* Parses `length` bytes. `name` is the file or part of a file that messages name. */
cup_status cup__json_parse(cup__error *error, const char *name, const char *text, size_t length,
                           cup__json *out);
cup_status cup__json_read(cup__error *error, const char *path, uint64_t most, cup__json *out);
void cup__json_free(cup__json *json);

/* The children of a value that is there, one after the other. */
#define CUP__JSON_EACH(child, parent)                                                              \
    for (const cup__json_node *child = (parent) + 1; child < (parent) + (parent)->span;            \
         child += child->span)

/* The value of a key, NULL when there is none or `object` is no object. */
const cup__json_node *cup__json_find(const cup__json_node *object, const char *key);

/* The value of a key that must be there and of the right kind; the message names both. Strings
 * that hold a 0 are refused. */
cup_status cup__json_get(cup__error *error, const cup__json *json, const cup__json_node *object,
                         const char *key, cup__json_kind kind, const cup__json_node **out);
cup_status cup__json_get_integer(cup__error *error, const cup__json *json,
                                 const cup__json_node *object, const char *key, int64_t low,
                                 int64_t high, int64_t *out);
cup_status cup__json_get_unsigned(cup__error *error, const cup__json *json,
                                  const cup__json_node *object, const char *key, uint64_t *out);
cup_status cup__json_get_number(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, double *out);
cup_status cup__json_get_boolean(cup__error *error, const cup__json *json,
                                 const cup__json_node *object, const char *key, bool *out);
cup_status cup__json_get_string(cup__error *error, const cup__json *json,
                                const cup__json_node *object, const char *key, const char **out);

/* The value of a number. */
double cup__json_number(const cup__json_node *node);

/* The node as a whole number; false when it is none, or not there (NULL), or out of range. */
bool cup__json_integer(const cup__json_node *node, int64_t *out);

/* Writes a document piece by piece into `text`; ask text.failed at the end. Values of an object
 * have a key, others NULL. Containers less deep than `lines` put each value on a line. */
typedef struct cup__json_writer {
    cup__text text;
    int lines, depth;
    bool filled;      /* the open container has a value */
    char closing[64]; /* of the open containers */
} cup__json_writer;

void cup__json_open(cup__json_writer *writer, const char *key, cup__json_kind kind);
void cup__json_close(cup__json_writer *writer);
void cup__json_add_null(cup__json_writer *writer, const char *key);
void cup__json_add_boolean(cup__json_writer *writer, const char *key, bool value);
void cup__json_add_integer(cup__json_writer *writer, const char *key, int64_t value);
void cup__json_add_unsigned(cup__json_writer *writer, const char *key, uint64_t value);
/* The shortest digits that give the same double; null for what JSON has no number for. */
void cup__json_add_number(cup__json_writer *writer, const char *key, double value);
void cup__json_add_string(cup__json_writer *writer, const char *key, const char *value);
/* Bytes that are not UTF-8 become U+FFFD. */
void cup__json_add_bytes(cup__json_writer *writer, const char *key, const char *value,
                         size_t length);
/* Copies a value of a document, with all that is in it. */
void cup__json_add_node(cup__json_writer *writer, const char *key, const cup__json_node *node);

#endif
