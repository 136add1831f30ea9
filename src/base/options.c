#include "base/options.h"

#include <string.h>

#define LARGEST 4096 /* bytes beyond our own; what claims to be more is no struct of options */

cup_status cup__options_take(cup__error *error, const char *name, void *to, size_t own,
                             const void *from)
{
    size_t size = 0;
    memset(to, 0, own);
    memcpy(to, &own, sizeof own);
    if (!from)
        return CUP_OK;
    memcpy(&size, from, sizeof size);
    /* One that ends within a word is that of no version: a pointer would be read in part. */
    if (size < sizeof size || size % sizeof size || size > own + LARGEST)
        return cup__fail(error, CUP_ARGUMENT,
                         "%s: the size of its options is %zu; make them with CUP_OPTIONS, or set "
                         "their size to that of the struct",
                         name, size);
    for (size_t i = own; i < size; i++)
        if (((const char *)from)[i])
            return cup__fail(error, CUP_UNSUPPORTED,
                             "%s: its options have %zu bytes, and this library, %s, knows %zu of "
                             "them; leave the newer fields 0, or use a newer library",
                             name, size, cup_version(), own);
    memcpy(to, from, size < own ? size : own);
    memcpy(to, &own, sizeof own);
    return CUP_OK;
}
