/* What the fuzzers share. Each is a file that gives LLVMFuzzerTestOneInput; `make fuzz` builds and
 * runs them all, beginning with the files that seeds.c writes for them. */
#ifndef FUZZ_H
#define FUZZ_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops the fuzzer when what must hold does not. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #condition);             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A file in memory with the bytes, and its path. */
static inline int fuzz_file(const void *data, size_t size, char path[64])
{
    int handle = memfd_create("fuzz", MFD_CLOEXEC);
    MUST(handle >= 0 && write(handle, data, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", handle);
    return handle;
}

#endif
