/* The ordered implementations that all products share, and the way from a call to a product. */
#include <string.h>

#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/product_tuned.h"

bool cup__product_lies_well(const cup_tensor *t)
{
    if (t->ndim < 2)
        return t->stride[0] == 1 || t->shape[0] <= 1;
    const int64_t *size = t->shape + t->ndim - 2, *stride = t->stride + t->ndim - 2;
    return cup__product_in_lines(size[0], size[1], stride[0], stride[1]);
}

cup_tensor *cup__product_packed(cup_tensor *t, cup_tensor *packed)
{
    if (cup__product_lies_well(t))
        return t;
    *packed = *t;
    packed->data = NULL;
    int64_t stride = 1;
    for (int i = t->ndim; i-- > 0; stride *= t->shape[i])
        packed->stride[i] = stride;
    return packed;
}

typedef cup_status (*runner)(cup__call *call, const cup__product *p);

/* Runs with a packed bias and, on a GPU, with packed matrices where theirs lie badly. */
static cup_status run(cup__call *call, runner how)
{
    cup_tensor *in[3] = {NULL};
    bool is_cuda = call->c->device->is_cuda;
    for (int i = 0; i < call->in_count; i++) {
        bool keep = i < 2 ? !is_cuda || cup__product_lies_well(call->in[i])
                          : !call->in[i] || call->in[i]->contiguous;
        in[i] = keep ? call->in[i] : cup_copy(call->c, call->in[i]);
        if (!keep)
            call->memo = NULL; /* whose launch would be of the copy */
    }
    cup_status status = call->c->error.status;
    if (status == CUP_OK) {
        cup__product p;
        cup__product_of(call, in, &p);
        status = how(call, &p);
    }
    for (int i = 0; i < call->in_count; i++)
        if (in[i] != call->in[i])
            cup_tensor_free(in[i]);
    return status;
}

static const char *refusal(const cup__call *call, cup__product_refuses refuses)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup_tensor a, b, *in[3] = {cup__product_packed(call->in[0], &a),
                               cup__product_packed(call->in[1], &b),
                               call->in_count > 2 ? call->in[2] : NULL};
    cup__product p;
    cup__product_of(call, in, &p);
    return refuses(call->c, &p);
}

#define IMPLEMENTATION(name)                                                                       \
    static cup_status run_##name(cup__call *call)                                                  \
    {                                                                                              \
        return run(call, cup__product_##name);                                                     \
    }
#define CUDA_IMPLEMENTATION(name)                                                                  \
    IMPLEMENTATION(name)                                                                           \
    static const char *refuses_##name(const cup__call *call)                                       \
    {                                                                                              \
        return refusal(call, cup__product_##name##_refuses);                                       \
    }
IMPLEMENTATION(blas)
IMPLEMENTATION(blocked)
CUDA_IMPLEMENTATION(tuned)
CUDA_IMPLEMENTATION(stream_best)
CUDA_IMPLEMENTATION(wgmma_best)
CUDA_IMPLEMENTATION(split_best)
#define WAY_IMPLEMENTATION(upper, name, best) CUDA_IMPLEMENTATION(name)
CUP__PRODUCT_WAYS(WAY_IMPLEMENTATION)

const cup__impl cup__product_impls[] = {
    {.name = "blas", .place = CUP__CPU, .strided = true, .refuses = cup__product_blas_refuses,
     .run = run_blas, .varies = "a BLAS library may add in another order each time"},
    {.name = "blocked", .place = CUP__CPU, CUP__THRESHOLDS(128, 512),
     .strided = true, .run = run_blocked},
    {.name = "tuned", .place = CUP__CUDA, .strided = true, .refuses = refuses_tuned,
     .run = run_tuned, .varies = "another way may be the fastest when it is measured again"},
    {.name = "stream_best", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32), .strided = true,
     .refuses = refuses_stream_best, .run = run_stream_best},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(4, 8, 16),
     .strided = true, .refuses = refuses_rows,
     .run = run_rows},
    {.name = "wgmma_best", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .refuses = refuses_wgmma_best,
     .run = run_wgmma_best},
    {.name = "split_best", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128),
     .strided = true, .refuses = refuses_split_best,
     .run = run_split_best},
    {.name = "cublaslt", .place = CUP__CUDA, .strided = true, .refuses = refuses_cublaslt,
     .run = run_cublaslt},
    {.name = "stream", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64),
     .strided = true, .refuses = refuses_stream,
     .run = run_stream},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .refuses = refuses_wgmma,
     .run = run_wgmma},
    {.name = "mma", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128),
     .strided = true, .refuses = refuses_mma, .run = run_mma},
    {.name = "split", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64, 128),
     .strided = true, .refuses = refuses_split,
     .run = run_split},
    {.name = "tf32", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128),
     .strided = true, .refuses = refuses_tf32,
     .run = run_tf32},
    {.name = "plain", .place = CUP__CUDA, CUP__THRESHOLDS(16, 128),
     .strided = true, .refuses = refuses_plain,
     .run = run_plain},
    {0},
};
