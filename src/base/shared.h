/* Shared libraries that are looked for at run time. */
#ifndef CUP_BASE_SHARED_H
#define CUP_BASE_SHARED_H

/* Loads a library for the rest of the process, its symbols for itself; NULL: dlerror says why not.
 * None is ever unloaded, one that turns out to be of no use neither: as it was loaded it may have
 * started threads, registered handlers of fork and exit or made memory of threads, and these must
 * not come back to where its code was. */
void *cup__shared_open(const char *name);

#endif
