/* From a source and its knobs to code: the text with what it includes, its key, the compiler. */
#ifndef CUP_CUDA_UNIT_H
#define CUP_CUDA_UNIT_H

#include "base/error.h"
#include "base/text.h"
#include "cuda/cuda.h"

#define CUP__MOST_PARTS 48
#define CUP__MOST_KNOBS 32

/* A source in its text. A file that says CUP_SPILLS_ALLOWED may spill registers. */
typedef struct cup__part {
    const char *name;
    const char *text;
    size_t size;
    char *owned; /* the text, when it was read from disk */
} cup__part;

/* The parts that make one compilation: part 0 is the file, the others what it includes. */
typedef struct cup__unit {
    cup__part parts[CUP__MOST_PARTS];
    int count;
} cup__unit;

/* Collects the file and, through them all, `#include "..."`. The texts come from the folder
 * CUP_KERNELS names, else from inside the library; that of the file itself may be given. */
cup_status cup__unit_open(cup__error *error, const char *file, const char *text, cup__unit *out);
void cup__unit_close(cup__unit *unit);

/* Names equal compilations: a hash of all texts, the knobs, the architecture, the options and our
 * version, but not of the compiler's version, which is kept beside it. */
typedef struct cup__key {
    uint64_t low, high;
} cup__key;

cup__key cup__unit_key(const cup__unit *unit, const char *arch, const cup__knob *knobs,
                       int knob_count);

/* Machine code, or PTX ending in 0 for a card the compiler does not know. */
typedef struct cup__code {
    char *bytes;
    size_t size;
} cup__code;

/* Makes spilled registers, an ignored setmaxnreg and serialized wgmma failures like errors of the
 * language: for those who build kernels. A user's run goes on with such code, and logs it. */
void cup__compile_strictly(void);

/* Compiles with NVRTC, in any thread. */
cup_status cup__unit_compile(cup__error *error, const cup__unit *unit, const char *arch,
                             const cup__knob *knobs, int knob_count, cup__code *out);

/* Writes the text as the compiler sees it, knobs and includes in place, to a file in `folder`, for
 * CUP_LOG=source. Gives its path, to be freed with cup__free; NULL when it cannot be written. */
char *cup__unit_dump(const cup__unit *unit, const char *arch, const cup__knob *knobs,
                     int knob_count, const char *folder);

/* NVRTC's version as 13000, 0 when there is none. */
int cup__compiler_version(void);

/* Copies the knobs in the order of their names. */
void cup__knobs_sort(cup__knob *sorted, const cup__knob *knobs, int count);
/* "CUP_T=3 VEC=8" */
void cup__knobs_text(cup__text *text, const cup__knob *knobs, int count);

#endif
