#include "ahead.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/dry.h"
#include "tensor/context.h"
#include "test.h"

cup_context *test_noted;

/* What a dry GPU asks of the driver needs one that is open. */
static cup_context *opened;

/* A dry GPU like the one of this machine, or of the architecture that is asked for. */
static cup_context *open_dry(void)
{
    const char *arch = getenv("TEST_AHEAD");
    cup_context *dry = NULL, *gpu = NULL;
    if (!arch) {
        gpu = opened = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
        if (cup_error(gpu) != CUP_OK)
            test_skip("no GPU: %s", cup_error_text(gpu));
        const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(gpu->device));
        dry = cup__context_dry(facts->arch);
        EXPECT(dry && cup_error(dry) == CUP_OK);
        cup__dry_like(cup__cuda_of(dry->device), facts);
        return dry;
    }
    dry = cup__context_dry(arch);
    if (!dry || cup_error(dry) != CUP_OK)
        test_fail(__FILE__, __LINE__, "TEST_AHEAD=%s: %s", arch, cup_error_text(dry));
    return dry;
}

static int compile_noted(void)
{
    int count;
    cup__error error = {0};
    const cup__cuda *gpu = cup__cuda_of(test_noted->device);
    const cup__kernel_request *requests = cup__dry_requests(gpu, &count);
    cup__kernels_prepare(&error, cup__cuda_facts(gpu)->arch, requests, count, 0, NULL, NULL);
    if (error.status != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", error.text);
    cup_context_free(test_noted);
    cup_context_free(opened);
    test_noted = opened = NULL;
    return count;
}

bool test_ahead(int *pass)
{
    if (*pass == 0) {
        test_noted = open_dry();
    } else if (*pass == 1) {
        int count = compile_noted();
        if (getenv("TEST_AHEAD"))
            test_skip("%d kernels are compiled for %s", count, getenv("TEST_AHEAD"));
    }
    return *pass < 2;
}
