/* Options as tables: from one row come the parsing, the help, the man page and the completion. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cli_option_type {
    OPTION_GROUP,   /* no option: the headline of those that follow */
    OPTION_FLAG,    /* bool */
    OPTION_INTEGER, /* int64_t */
    OPTION_REAL,    /* double, never NaN or infinite */
    OPTION_TEXT,    /* const char *, NULL when not given and without default */
    OPTION_CHOICE,  /* const char *, one of the hint's words */
    OPTION_FILES,   /* cli_files */
    OPTION_NAMES    /* the same, of things that are no files */
} cli_option_type;

/* A list of names; of files and folders, "-" is stdin. The option takes all words up to the next
 * option, and may come more than once. */
typedef struct cli_files {
    const char **name;
    int count;
} cli_files;

typedef struct cli_option {
    const char *name; /* without the dashes */
    cli_option_type type;
    size_t offset; /* of the value in the verb's struct */
    int64_t least, most; /* of whole numbers; of a real, most 1 means that high is excluded; of a
                            choice, least 1 means that its word may be left out */
    double low, high;
    const char *hint;     /* what stands for the value: "FILE", "auto|cpu", "f32|bf16" */
    const char *standard; /* the default, as it would be typed; NULL: false, 0 or none. Of a word
                             that may be left out: what it then is */
    const char *words;    /* a phrase, in lower case and without a period */
} cli_option;

/* Whether an option takes a list. */
bool option_is_list(const cli_option *row);

/* Whether the word of a choice may be left out. */
bool option_may_be_bare(const cli_option *row);

/* Whether a table of options ends at this row. */
bool option_ends(const cli_option *row);

/* The middle of a row: type, place and range. A field of another type does not compile.
 *   {"layers", INTEGER(train_given, layers, 1, 1000), "N", "4", "blocks of the model"}, */
#define OPTION_AT(given, field, type)                                                              \
    (offsetof(given, field) + 0 * sizeof(_Generic(((given *)0)->field, type : 0)))
#define GROUP(words)                                                                               \
    {                                                                                              \
        NULL, OPTION_GROUP, 0, 0, 0, 0, 0, NULL, NULL, words                                       \
    }
#define FLAG(given, field) OPTION_FLAG, OPTION_AT(given, field, bool), 0, 0, 0, 0
#define INTEGER(given, field, least, most)                                                         \
    OPTION_INTEGER, OPTION_AT(given, field, int64_t), least, most, 0, 0
#define REAL(given, field, low, high) OPTION_REAL, OPTION_AT(given, field, double), 0, 0, low, high
/* From low up to, but not including, high. */
#define REAL_BELOW(given, field, low, high)                                                        \
    OPTION_REAL, OPTION_AT(given, field, double), 0, 1, low, high
#define TEXT(given, field) OPTION_TEXT, OPTION_AT(given, field, const char *), 0, 0, 0, 0
#define CHOICE(given, field) OPTION_CHOICE, OPTION_AT(given, field, const char *), 0, 0, 0, 0
/* Its word may be left out. Not of verbs that have operands, which it would be taken for. */
#define CHOICE_OR_NONE(given, field)                                                               \
    OPTION_CHOICE, OPTION_AT(given, field, const char *), 1, 0, 0, 0
#define FILES(given, field) OPTION_FILES, OPTION_AT(given, field, cli_files), 0, 0, 0, 0
#define NAMES(given, field) OPTION_NAMES, OPTION_AT(given, field, cli_files), 0, 0, 0, 0

/* One verb of the command, `cupola NAME`. Its file defines `const cli_verb verb_NAME`. */
typedef struct cli_call cli_call;
typedef struct cli_verb {
    const char *name;
    const char *synopsis;      /* what follows the name in the usage line */
    const char *words;         /* one line, a phrase without a period */
    const char *text;          /* paragraphs, separated by empty lines */
    const char *examples;      /* pairs of lines: a sentence and the command; or NULL */
    const cli_option *options; /* ends with a row that is all zero */
    size_t size;               /* of the struct the options fill */
    int operand_least, operand_most;
    bool tells_environment; /* it says itself what is wrong with the environment's variables */
    int (*run)(cli_call *call); /* returns an exit code */
} cli_verb;

#define CALL_MOST_OPTIONS 128 /* rows of a verb's options */

/* One run of a verb. */
struct cli_call {
    const cli_verb *verb;
    void *given; /* the verb's struct, every field set */
    const char **operands;
    int operand_count;
    bool set[CALL_MOST_OPTIONS]; /* row i of the verb's options was on the command line */
    /* Options that every verb has. */
    bool help, json;
    const char *color;
};

extern const cli_option common_options[]; /* their offsets are in a call */

/* Reads the words behind the verb. Returns 0, or says what is wrong and returns the exit code.
 * The call points into `words`; free it with call_free either way. */
int call_parse(cli_call *call, const cli_verb *verb, int count, char **words);
void call_free(cli_call *call);

/* Refuses every option of the verb on the command line that is not in `allowed` (ends with NULL):
 * it would be taken and do nothing beside `with`. Returns an exit code. */
int call_allow(const cli_call *call, const char *with, const char *const *allowed);

/* The same of every option in `denied` (ends with NULL); `with` is said as it is. */
int call_deny(const cli_call *call, const char *with, const char *const *denied);

/* Whether the option was on the command line. */
bool call_has(const cli_call *call, const char *name);

#endif
