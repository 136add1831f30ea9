/* The ordered implementations that products share, and the way from a call to a product. */
#include "dispatch/attributes.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/wgmma.h"

#define MOST_INPUTS 4
#define ADDED_K_MOST 8192 /* another matrix: from here on a pass of its own is faster */

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

void cup__product_like(const cup__call *call, cup__product *p)
{
    cup_tensor like[MOST_INPUTS], *in[MOST_INPUTS] = {NULL};
    int given = call->op->impls == cup__product_impls ? call->op->epilogue->bias : 0;
    for (int i = 0; i < call->in_count; i++)
        in[i] = call->in[i] && (i == 0 || i != given) ? cup__product_packed(call->in[i], &like[i])
                                                      : call->in[i];
    cup__product_of(call, in, p);
}

static const char *refusal(const cup__call *call, cup__product_refuses refuses)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup__product p;
    cup__product_like(call, &p);
    return refuses(call->c, &p);
}

#define LONG 2048     /* terms of a sum */
#define SMALL 4000000 /* terms of all sums of a matrix */

/* OpenBLAS adds up small products term by term, in one number for each result, where the processor
 * has AVX-512: of 100,000 equal terms the sum is off by 3e-5 of itself. */
static const char *blas_refuses(const cup__call *call)
{
    const char *why = cup__product_blas_refuses(call);
    cup__product p;
    if (why)
        return why;
    cup__product_like(call, &p);
    return p.k > LONG && p.m * p.n < SMALL / p.k ? "a BLAS may add up so long sums one by one"
                                                 : NULL;
}

typedef cup_status runner(cup__call *call, const cup__product *p, const cup__plan *plan);

/* Runs with all packed but, on a CPU, the matrices. */
static cup_status run(cup__call *call, runner *how, const cup__plan *plan)
{
    cup_context *c = call->c;
    cup_tensor *in[MOST_INPUTS] = {NULL};
    int a = call->op->epilogue->a;
    for (int i = 0; i < call->in_count; i++) {
        cup_tensor *t = call->in[i];
        bool matrix = i == a || i == a + 1;
        bool keep = !t || (matrix ? !c->device->is_cuda || cup__product_lies_well(t)
                                  : t->contiguous);
        in[i] = keep ? t : cup_copy(c, t);
        if (!keep)
            call->memo = NULL; /* whose launch would be of the copy */
    }
    cup_status status = c->error.status;
    if (status == CUP_OK) {
        cup__product p;
        cup__product_of(call, in, &p);
        status = how(call, &p, plan);
    }
    for (int i = 0; i < call->in_count; i++)
        if (in[i] != call->in[i])
            cup_tensor_free(in[i]);
    return status;
}

#define IMPLEMENTATION(name)                                                                       \
    static cup_status by_##name(cup__call *call, const cup__product *p, const cup__plan *plan)     \
    {                                                                                              \
        (void)plan;                                                                                \
        return cup__product_##name(call, p);                                                       \
    }                                                                                              \
    static cup_status run_##name(cup__call *call)                                                  \
    {                                                                                              \
        return run(call, by_##name, NULL);                                                         \
    }
#define REFUSAL(name)                                                                              \
    static const char *refuses_##name(const cup__call *call)                                       \
    {                                                                                              \
        return refusal(call, cup__product_##name##_refuses);                                       \
    }
#define CUDA_IMPLEMENTATION(name) IMPLEMENTATION(name) REFUSAL(name)
IMPLEMENTATION(blas)
IMPLEMENTATION(blocked)
CUDA_IMPLEMENTATION(rows)
CUDA_IMPLEMENTATION(stream)
CUDA_IMPLEMENTATION(resident)
CUDA_IMPLEMENTATION(wgmma)
CUDA_IMPLEMENTATION(cublaslt)
CUDA_IMPLEMENTATION(mma)
CUDA_IMPLEMENTATION(split)
CUDA_IMPLEMENTATION(tf32)
CUDA_IMPLEMENTATION(plain)
REFUSAL(stream_best)
REFUSAL(wgmma_best)
REFUSAL(split_best)

static const char *refuses_fused(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup__product p;
    cup__product_like(call, &p);
    if (p.kind == PRODUCT_ADD && p.k > ADDED_K_MOST)
        return "where k is so long a sum in a pass of its own is faster";
    return cup__product_wgmma_menu_refuses(call->c, &p);
}

static int list_wgmma(const cup__call *call, cup__plan *out, int most)
{
    cup__product p;
    cup__product_like(call, &p);
    return cup__wgmma_plans(call->c, &p, out, most);
}

static const char *refuses_wgmma_plan(const cup__call *call, const cup__plan *plan)
{
    cup__product p;
    cup__wgmma_plan tiles;
    cup__product_like(call, &p);
    return cup__wgmma_plan_of(plan, &tiles) ? cup__wgmma_plan_refuses(&p, &tiles)
                                            : "there are no such tiles";
}

static cup_status by_wgmma_plan(cup__call *call, const cup__product *p, const cup__plan *plan)
{
    cup__wgmma_plan tiles;
    return cup__wgmma_plan_of(plan, &tiles) ? cup__product_wgmma_kept(call, p, &tiles)
                                            : cup__product_wgmma(call, p);
}

static cup_status run_wgmma_plan(cup__call *call, const cup__plan *plan)
{
    return run(call, by_wgmma_plan, plan);
}

static const cup__planning wgmma_planning = {cup__wgmma_plan_names, list_wgmma,
                                             refuses_wgmma_plan, run_wgmma_plan};

/* The algorithms that the library proposes, best guess first. */
static const char *const cublaslt_names[] = {"rank", NULL};

static int list_cublaslt(const cup__call *call, cup__plan *out, int most)
{
    (void)call;
    int count = most < CUP__RANKS_MOST ? most : CUP__RANKS_MOST;
    for (int i = 0; i < count; i++)
        out[i] = (cup__plan){{i}};
    return count;
}

static const char *refuses_cublaslt_plan(const cup__call *call, const cup__plan *plan)
{
    cup__product p;
    cup__product_like(call, &p);
    return plan->number[0] >= CUP__RANKS_MOST
               ? "so many algorithms are not asked for"
               : cup__product_cublaslt_rank_refuses(call->c, &p, plan->number[0]);
}

static cup_status by_cublaslt_plan(cup__call *call, const cup__product *p, const cup__plan *plan)
{
    return cup__product_cublaslt_by(call, p, plan->number[0]);
}

static cup_status run_cublaslt_plan(cup__call *call, const cup__plan *plan)
{
    return run(call, by_cublaslt_plan, plan);
}

static const cup__planning cublaslt_planning = {cublaslt_names, list_cublaslt,
                                                refuses_cublaslt_plan, run_cublaslt_plan};

static cup_status run_composed(cup__call *call)
{
    return call->op->epilogue->compose(call);
}

const cup__impl cup__product_impls[] = {
    {.name = "blas", .place = CUP__CPU, .strided = true, .refuses = blas_refuses,
     .run = run_blas, .varies = "a BLAS library may add in another order each time"},
    {.name = "blocked", .place = CUP__CPU, CUP__THRESHOLDS(128, 512),
     .strided = true, .run = run_blocked},
    {.name = "stream_best", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32), .strided = true,
     .eager = true, .refuses = refuses_stream_best, .run = run_stream},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(4, 8, 16),
     .strided = true, .refuses = refuses_rows,
     .run = run_rows},
    {.name = "resident", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 256, 512), .strided = true,
     .refuses = refuses_resident, .run = run_resident},
    {.name = "wgmma_best", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .eager = true, .refuses = refuses_wgmma_best,
     .run = run_wgmma},
    {.name = "split_best", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128),
     .strided = true, .eager = true, .refuses = refuses_split_best,
     .run = run_split},
    {.name = "cublaslt", .place = CUP__CUDA, .strided = true, .refuses = refuses_cublaslt,
     .run = run_cublaslt, .planning = &cublaslt_planning},
    {.name = "stream", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 64),
     .strided = true, .refuses = refuses_stream,
     .run = run_stream},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 192, 256),
     .strided = true, .refuses = refuses_wgmma,
     .run = run_wgmma, .planning = &wgmma_planning},
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

const cup__impl cup__product_fused_impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = run_composed},
    {.name = "wgmma", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256, 4096, 8192),
     .strided = true, .refuses = refuses_fused,
     .run = run_wgmma, .planning = &wgmma_planning},
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = run_composed},
    {0},
};
