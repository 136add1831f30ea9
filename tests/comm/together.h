/* Processes that compute together, for tests. */
#ifndef COMM_TOGETHER_H
#define COMM_TOGETHER_H

#include "cupola/cupola.h"

/* What one process does. What it finds wrong it says with `wrong`. */
typedef void (*together_body)(cup_context *c, cup_comm *m, void *user);
void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What they compute on from now on: "cpu", as at first, or "cuda", on which each rank has a GPU. */
void together_on(const char *device, bool deterministic);

/* Where they meet. */
const char *together_address(void);

/* Runs the body in so many processes at once and fails where one finds something wrong or does not
 * end well. */
void together(int count, together_body body, void *user);

/* The same without a look at the outcome: the exit codes, and what each said. A process that ends
 * by a signal has 128 + its number; the context's error is a process's last word. */
typedef struct together_end {
    int code;
    char text[1024];
    double seconds;
} together_end;
void together_look(int count, const cup_comm_options *options, together_body body, void *user,
                   together_end *ends);

#endif
