/* How the gradient of layernorm shares rows out on Hopper, on a GPU that is not there. */
#include <string.h>

#include "../test.h"
#include "cuda/dry.h"
#include "dispatch/attributes.h"

static int64_t knob_of(const cup__kernel_request *request, const char *name)
{
    for (int i = 0; i < request->knob_count; i++)
        if (!strcmp(request->knobs[i].name, name))
            return request->knobs[i].value;
    return 0;
}

/* Of a row of `vectors` all are someone's, and at most half of the threads have none. */
static void check_knobs(const cup__kernel_request *request, int64_t vectors)
{
    int64_t group = knob_of(request, "GROUP"), pieces = knob_of(request, "PIECES");
    EXPECT(group * pieces >= vectors && group * (pieces - 1) < vectors);
    EXPECT(group == 4 || 2 * vectors > group);
    EXPECT(knob_of(request, "THREADS") % group == 0);
    EXPECT_INT(knob_of(request, "FULL"), group * pieces == vectors);
}

static void check_width(cup_dtype dtype, int64_t width)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup_dtype real = dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    cup_tensor *x = cup_full(c, dtype, 2, (int64_t[]){64, width}, 1), *dgamma, *dbeta;
    cup_tensor *one = cup_full(c, real, 1, (int64_t[]){64}, 1);
    cup_tensor *gamma = cup_full(c, dtype, 1, &width, 1), *dx;
    cup__layernorm_grad(c, x, x, one, one, gamma, NULL, real, true, true, &dx, &dgamma, &dbeta);
    EXPECT_TEXT(cup_error_text(c), "");
    int count, found = 0;
    const cup__kernel_request *requests = cup__dry_requests(cup__cuda_of(c->device), &count);
    for (int i = 0; i < count; i++)
        if (!strcmp(requests[i].file, "layernorm_ring_grad.cu")) {
            check_knobs(&requests[i], width * (int64_t)cup_dtype_size(dtype) / 16);
            found++;
        }
    EXPECT_INT(found, 1);
    cup_context_free(c);
}

TEST(layernorm_grad_leaves_few_threads_idle)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F64, CUP_BF16};
    for (int i = 0; i < 3; i++) {
        int64_t vec = 16 / (int64_t)cup_dtype_size(dtypes[i]);
        for (int64_t vectors = 4; vectors <= 1024; vectors += vectors < 200 ? 1 : 31)
            check_width(dtypes[i], vectors * vec);
    }
}
