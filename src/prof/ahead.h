/* Work that is done ahead on all cores, for a loop that takes what came of it in order: while a
 * check runs calls, threads compile the kernels of those to come and work out what they are held
 * against. */
#ifndef CUP_PROF_AHEAD_H
#define CUP_PROF_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct cup__ahead cup__ahead;

/* Item i, in any thread; `room` is zero at first and later as an earlier item left it. What fails
 * is to be written down in it. */
typedef void (*cup__ahead_make)(int64_t i, void *room, void *user);
typedef void (*cup__ahead_drop)(void *room);

/* On a GPU that is not there nothing is made of an item but its kernels. */
void cup__ahead_nothing(int64_t i, void *room, void *user);

/* What is done of an item once and needs no room, such as compiling, in any thread: a thread that
 * finds no free room goes on with that of later items. Of an item that is made meanwhile it may not
 * have ended. */
typedef void (*cup__ahead_prepare)(int64_t i, void *user);

/* Begins items 0 to count - 1, each in one of a few rooms of `size` bytes, which `drop` clears at
 * the end. `prepare` may be NULL. NULL: no memory. */
cup__ahead *cup__ahead_new(int64_t count, size_t size, cup__ahead_prepare prepare,
                           cup__ahead_make make, cup__ahead_drop drop, void *user);

/* The room of item i, waiting until it is made; those of items before it are given up. Items may
 * be left out, but not gone back to. */
void *cup__ahead_get(cup__ahead *ahead, int64_t i);

/* How long the loop waited, in seconds. */
double cup__ahead_waited(const cup__ahead *ahead);

void cup__ahead_free(cup__ahead *ahead);

#endif
