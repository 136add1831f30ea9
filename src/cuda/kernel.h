/* The kernels of one GPU: loaded code and how to find it again fast. */
#ifndef CUP_CUDA_KERNEL_H
#define CUP_CUDA_KERNEL_H

#include "cuda/cuda.h"

#define CUP__MOST_ARGUMENTS 64

/* One source compiled with one set of knobs; its entries share it. */
typedef struct cup__module cup__module;

struct cup__kernel {
    CUfunction function;
    cup__module *module;
    char *name;              /* the entry's */
    int threads_most;        /* a block */
    int registers, local_bytes, static_shared;
    int shared_allowed;      /* bytes of dynamic shared memory it may be launched with */
    bool wide_clusters;      /* has been allowed more than 8 blocks a cluster */
    int argument_count;      /* -1: the driver cannot tell */
    size_t argument_sizes[CUP__MOST_ARGUMENTS];
    cup__kernel *next;       /* of the module's */
};

/* What a call of cup__kernel_get looked like; equal pointers and values are the same kernel. */
typedef struct cup__kernel_alias {
    const char *file, *text, *entry;
    const cup__knob *knobs; /* copied */
    int knob_count;
    cup__kernel *kernel;    /* NULL: the slot is empty */
} cup__kernel_alias;

typedef struct cup__kernels {
    cup__kernel_alias *aliases; /* open addressing, half full at most */
    size_t alias_count, alias_capacity;
    cup__module *modules;
} cup__kernels;

void cup__kernels_close(cup__cuda *gpu, bool driver);

#endif
