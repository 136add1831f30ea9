/* What the files of cupola kernels share. */
#ifndef CLI_KERNELS_H
#define CLI_KERNELS_H

#include "cli/common/options.h"
#include "cupola/base.h"

typedef struct kernels_given {
    cli_files archs, ops;
    const char *pack;
    int64_t threads;
    bool common;
} kernels_given;

/* cupola kernels build. Returns an exit code. */
int kernels_build(cli_call *call, cup_context *c);

#endif
