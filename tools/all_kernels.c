/* Compiles every kernel the ops ask for, for every architecture, without a GPU: `make kernels`.
 * Arguments are architectures; without any, all of them. */
#include <stdio.h>

#include "base/text.h"
#include "cuda/dry.h"
#include "cuda/loader.h"
#include "prof/kernels.h"

static void report(void *user, int done, int count, const cup__kernel_request *request,
                   const char *failure)
{
    if (failure)
        fprintf(stderr, "FAILED %s: %s\n", (const char *)user, failure);
    else if (done % 100 == 0)
        fprintf(stderr, "%s: %d of %d, %s\n", (const char *)user, done, count, request->file);
}

int main(int argc, char **argv)
{
    cup__compile_strictly();
    int failed = 0;
    const char *const *archs = argc > 1 ? (const char *const *)argv + 1 : cup__architectures;
    for (; *archs; archs++) {
        cup__error error = {0};
        int count = 0;
        if (cup__library_need(&error, CUP__LIBNVRTC) == CUP_OK)
            cup__kernels_build(&error, *archs, NULL, 0, report, (void *)(uintptr_t)*archs, &count);
        printf("%s: %d kernels%s%s\n", *archs, count, error.status ? ": " : ", all compile",
               error.text);
        failed |= error.status != CUP_OK;
    }
    return failed;
}
