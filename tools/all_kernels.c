/* Compiles every kernel the ops ask for, for every architecture, without a GPU: `make kernels`.
 * Arguments are architectures, without any all of them, then "--" and ops, without any all. */
#include <stdio.h>
#include <string.h>

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

static bool build(const char *arch, const char *op)
{
    cup__error error = {0};
    int count = 0;
    if (cup__library_need(&error, CUP__LIBNVRTC) == CUP_OK)
        cup__kernels_build(&error, arch, op, 0, report, (void *)(uintptr_t)arch, &count);
    printf("%s: %d kernels%s%s%s%s\n", arch, count, op ? " of " : "", op ? op : "",
           error.status ? ": " : ", all compile", error.text);
    fflush(stdout);
    return error.status == CUP_OK;
}

int main(int argc, char **argv)
{
    static const char *const all[] = {NULL};
    cup__compile_strictly();
    int end = 1;
    while (end < argc && strcmp(argv[end], "--") != 0)
        end++;
    const char *const *ops = end + 1 < argc ? (const char *const *)argv + end + 1 : all;
    int count = end + 1 < argc ? argc - end - 1 : 1;
    bool failed = false;
    for (int a = 0; end > 1 ? a < end - 1 : cup__architectures[a] != NULL; a++)
        for (int i = 0; i < count; i++)
            failed |= !build(end > 1 ? argv[a + 1] : cup__architectures[a], ops[i]);
    return failed;
}
