/* What threads keep from one piece of work to the next, each used by one of them at a time. */
#ifndef CUP_DATA_WORKS_H
#define CUP_DATA_WORKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct cup__works {
    pthread_mutex_t lock;
    void **work; /* those that no thread has */
    size_t count, most;
} cup__works;

/* False: no host memory, and nothing needs to be freed. */
bool cup__works_begin(cup__works *works, size_t most);
/* All works must have been taken. */
void cup__works_end(cup__works *works);

/* NULL where none is left. */
void *cup__works_take(cup__works *works);
/* Gives one back, or returns it where there are too many; NULL is none. */
void *cup__works_give(cup__works *works, void *work);

#endif
