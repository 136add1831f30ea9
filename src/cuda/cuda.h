/* One GPU as a context uses it: the device table of base/device.h, plus kernels and launches. */
#ifndef CUP_CUDA_CUDA_H
#define CUP_CUDA_CUDA_H

#include "base/device.h"
#include "cuda/api.h"

typedef struct cup__cuda cup__cuda;
typedef struct cup__kernel cup__kernel;

/* Opens GPU `index`; the error says what is missing and how to mend it. The returned device can
 * be passed to cup__cuda_of. */
cup_status cup__cuda_open(cup__error *error, int index, int64_t memory_limit, cup__device **out);

/* How many GPUs can be used; 0 with the reason in `why` (of at least 512 bytes). */
int cup__cuda_count(char why[512]);

/* The GPU behind a device whose is_cuda is true. */
cup__cuda *cup__cuda_of(cup__device *device);

/* Whether it is a GPU that the driver refuses to this process after a kernel that went wrong. */
bool cup__device_is_lost(cup__device *device);

/* What the kernels are chosen by. */
typedef struct cup__gpu_facts {
    int index, major, minor, multiprocessors, clock_khz, memory_clock_khz, memory_bus_bits;
    int64_t memory_bytes, l2_bytes;
    int shared_per_block; /* bytes of dynamic shared memory a block may ask for */
    char name[128], arch[16]; /* arch as NVRTC names it: sm_90a */
} cup__gpu_facts;
const cup__gpu_facts *cup__cuda_facts(const cup__cuda *gpu);

/* The facts of GPU `index` without opening it, which is much quicker; they are set also when the
 * failure is that the card is too old. */
cup_status cup__cuda_look(cup__error *error, int index, cup__gpu_facts *out);

CUstream cup__cuda_stream(const cup__cuda *gpu);
/* The same for others, who may queue work of their own on it from then on. */
CUstream cup__cuda_stream_shown(cup__cuda *gpu);

/* A knob becomes -Dname=value when the kernel is compiled. */
typedef struct cup__knob {
    const char *name; /* a literal */
    int64_t value;
} cup__knob;

/* The kernel `entry` of the embedded source `file` ("copy.cu") compiled with these knobs for this
 * GPU: from memory, else from the cache folder, else by NVRTC. Calling again with equal arguments
 * is a short look-up; the pointer stays valid as long as the device. NULL on failure, with the
 * compiler's words in the device's error. */
cup__kernel *cup__kernel_get(cup__cuda *gpu, const char *file, const char *entry,
                             const cup__knob *knobs, int knob_count);

/* The same for a source whose text the library has elsewhere, a literal; `file` is a name for
 * messages and the cache. */
cup__kernel *cup__kernel_of_text(cup__cuda *gpu, const char *file, const char *text,
                                 const char *entry, const cup__knob *knobs, int knob_count);

/* The same for a source that is not one of ours. The caller keeps the pointer: each call looks for
 * the code anew. */
cup__kernel *cup__kernel_from_text(cup__cuda *gpu, const char *name, const char *text,
                                   const char *entry, const cup__knob *knobs, int knob_count);

typedef struct cup__grid {
    int64_t x, y, z;  /* blocks; y and z of 0 mean 1. A grid with x 0 launches nothing. */
    int threads;      /* a block, along x */
    int threads_y, threads_z; /* 0 means 1 */
    int shared;       /* bytes of dynamic shared memory */
    int cluster;      /* blocks a cluster along x; 0 or 1: none */
    bool dependent;   /* launch as a programmatic dependent of the kernel before it */
    bool together;    /* blocks wait for each other: none begins before all have a place */
    bool waits;       /* they do, and find it on a card that runs nothing else meanwhile */
} cup__grid;

/* One kernel argument with its size, so that a launch can be checked against the kernel's own
 * parameters. CUP__ARG takes a variable or another lvalue. */
typedef struct cup__argument {
    const void *value;
    size_t size;
} cup__argument;
#define CUP__ARG(lvalue) ((cup__argument){&(lvalue), sizeof(lvalue)})

/* Launches on the context's stream. Counts and sizes of the arguments are checked against what
 * the driver knows of the kernel where it can tell. */
cup_status cup__launch_arguments(cup__cuda *gpu, cup__kernel *kernel, cup__grid grid,
                                 const cup__argument *arguments, int count);
#define cup__launch(gpu, kernel, grid, ...)                                                        \
    cup__launch_arguments(gpu, kernel, grid, (const cup__argument[]){__VA_ARGS__},                 \
                          (int)(sizeof((const cup__argument[]){__VA_ARGS__}) /                     \
                                sizeof(cup__argument)))

/* How many of its clusters run at once on an empty card. */
cup_status cup__clusters_at_once(cup__cuda *gpu, cup__kernel *kernel, const cup__grid *grid,
                                 int *most);

/* Whether what was launched last is the kernel of this one's name. */
bool cup__launched_last(const cup__cuda *gpu, const cup__kernel *kernel);

/* Says that the bytes which the kernel that was launched last writes are known, and are those that
 * follow; it must let the next one start only when it has waited for the one before. And whether
 * that is known and spares these bytes, so that a dependent kernel may read them before it waits;
 * never where others know the stream, who may launch kernels between. */
void cup__launch_known(cup__cuda *gpu);
void cup__launch_writes(cup__cuda *gpu, const void *data, int64_t bytes);
bool cup__launched_spares(const cup__cuda *gpu, const void *data, int64_t bytes);

/* Names the op on whose behalf the next launches happen, for logs and for the text of errors
 * that surface later. `op` is a literal. */
void cup__cuda_op(cup__cuda *gpu, const char *op);

/* Before work is queued on the stream through another library, such as cuBLASLt: makes the GPU
 * current on this thread and notes `what`, a literal, for the text of errors. */
cup_status cup__launch_foreign(cup__cuda *gpu, const char *what);

/* Says that one more stream runs something on the card from here on, or one less. */
void cup__cuda_beside(cup__cuda *gpu, bool on);

/* Measures: records events on the stream and gives the milliseconds between them. */
typedef struct cup__timer cup__timer;
cup_status cup__timer_new(cup__cuda *gpu, cup__timer **out);
cup_status cup__timer_start(cup__timer *timer);
cup_status cup__timer_stop(cup__timer *timer, double *milliseconds); /* waits */
void cup__timer_free(cup__timer *timer);

/* Captures what is launched between begin and end into a graph that can be launched again.
 * Memory allocated meanwhile stays with the graph, and with that of `before`, unless NULL, which is
 * always launched before it and whose memory it shares. */
typedef struct cup__graph cup__graph;
cup_status cup__graph_begin(cup__cuda *gpu, cup__graph *before);
cup_status cup__graph_end(cup__cuda *gpu, cup__graph **out);
cup_status cup__graph_launch(cup__graph *graph);
void cup__graph_free(cup__graph *graph);

#endif
