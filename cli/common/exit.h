/* How the command ends: its exit codes, and the sentences it leaves on stderr. */
#ifndef CLI_EXIT_H
#define CLI_EXIT_H

#include "cupola/base.h"

/* One row an exit code: name, value that never changes, words. */
#define CLI_EXIT_LIST(X)                                                                           \
    X(OK, 0, "The work is done.")                                                                  \
    X(FAILED, 1, "The work failed, or a check was not met.")                                       \
    X(USAGE, 2, "The command line or an environment variable is wrong; nothing was done.")         \
    X(NO_GPU, 3, "A GPU, or a library of NVIDIA, was asked for and cannot be used.")               \
    X(MEMORY, 4, "Host or device memory ran out.")                                                 \
    X(FILE, 5, "A file could not be read or written, or its content is not valid.")     \
    X(PEER, 6, "Another process of the run ended or did not answer in time.")

typedef enum cli_exit {
#define CLI_EXIT_ENUM(name, value, words) CLI_##name = value,
    CLI_EXIT_LIST(CLI_EXIT_ENUM)
#undef CLI_EXIT_ENUM
} cli_exit;

/* What a process that a signal ended adds the signal's number to. */
#define CLI_SIGNAL 128

/* The exit code of a status of the library. */
int cli_exit_of(cup_status status);

/* Names the verb that messages begin with. */
void cli_name_verb(const char *verb);

/* Says on stderr what went wrong and returns `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a wrong command line; adds where help is. Returns CLI_USAGE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says a failure of the library, whose sentence may have lines where it is a compiler's; `of` is
 * the thing it is about, or NULL. Returns the status's exit code. */
int cli_fail_status(cup_status status, const char *of, const char *text);

/* Says a context's error, NULL being no memory, and returns its exit code; 0 when it has none. */
int cli_report(const cup_context *c);

/* A name from outside as it may be printed: see cup_text_visible. Holds until the eighth call
 * after it. */
const char *cli_shown(const char *name);

/* Writes to stdout at once, and remembers why that failed. */
void cli_write(const void *bytes, size_t count);

/* For the begin of the program: what is written to a stream that was closed must not end in a file
 * that was opened later, and a file that grows over its limit is a failure, no signal. */
void cli_keep_streams(void);

/* Writes what is left of stdout. A result that did not get out makes a success a failure, except
 * that a reader who has left is not worth a word. */
int cli_close_output(int code);

/* The exit code of stdout that could not be written, and its sentence; errno or 0: unknown. */
int cli_output_failed(int why);

#endif
