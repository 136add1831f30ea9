/* Faults for tests: an operation that changes files fails, or the process is killed at it. */
#ifndef CUP_BASE_FAULT_H
#define CUP_BASE_FAULT_H

#include <stdbool.h>

/* The n-th operation from now on (from 1 on) fails with EIO, or is where SIGKILL comes; 0: none. */
void cup__fault_at(long n, bool kill);

/* Asked before each operation that makes, writes, syncs, renames or removes a file: true, with
 * errno set, where it is to fail. */
bool cup__fault(void);

#endif
