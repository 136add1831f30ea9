/* Products of f8 codes with one scale each by NVIDIA's cuBLASLt. What the library says about a
 * shape is remembered. It thinks in columns, so y^T = b a^T is asked for. */
#include <string.h>

#include "base/memory.h"
#include "cuda/gpu.h"
#include "cuda/loader.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/product_state.h"
#include "ops/lowbit/scaled.h"

#define ALIGNMENT 16 /* of everything; f8 needs it */
#define ALIGNMENT_MOST 256

/* All that a plan depends on. Filled from zeroed memory, so that it can be compared as bytes. */
typedef struct plan_key {
    int64_t m, n, k;
    int32_t dtype[3]; /* of a, b and y */
    int32_t alignment[3]; /* of b, a and y, in bytes */
    int8_t bias, fast, scaled[2];
} plan_key;

struct cup__scaled_plan {
    cup__scaled_plan *next;
    plan_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout[3]; /* of b, a and y */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    cublasStatus_t status; /* why there is no algorithm */
};

static cudaDataType_t type_of(int32_t dtype)
{
    switch (dtype) {
    case CUP_F8E4M3:
        return CUDA_R_8F_E4M3;
    case CUP_F8E5M2:
        return CUDA_R_8F_E5M2;
    case CUP_F16:
        return CUDA_R_16F;
    case CUP_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

void cup__scaled_cublaslt_close(cup__product_state *state)
{
    while (state->scaled_plans) {
        cup__scaled_plan *plan = state->scaled_plans;
        state->scaled_plans = plan->next;
        if (plan->operation)
            cup__cublaslt.cublasLtMatmulDescDestroy(plan->operation);
        for (int i = 0; i < 3; i++)
            if (plan->layout[i])
                cup__cublaslt.cublasLtMatrixLayoutDestroy(plan->layout[i]);
        cup__free(plan);
    }
}

static cublasStatus_t set(cup__scaled_plan *plan, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size)
{
    return cup__cublaslt.cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, size);
}

static cublasStatus_t describe(cup__scaled_plan *plan)
{
    const plan_key *key = &plan->key;
    const int32_t dtypes[3] = {key->dtype[1], key->dtype[0], key->dtype[2]};
    const int64_t rows[3] = {key->k, key->k, key->n}, columns[3] = {key->n, key->m, key->m};
    cublasStatus_t status =
        cup__cublaslt.cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cup__cublaslt.cublasLtMatrixLayoutCreate(
            &plan->layout[i], type_of(dtypes[i]), (uint64_t)rows[i], (uint64_t)columns[i], rows[i]);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    int32_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N, bias_type = type_of(key->dtype[2]);
    uint32_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
    set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &key->fast, sizeof key->fast);
    if (key->bias)
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
}

static void set_pointers(cup__scaled_plan *plan, const void *bias, const void *a, const void *b)
{
    if (plan->key.bias)
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (plan->key.scaled[1])
        set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b, sizeof b);
    if (plan->key.scaled[0])
        set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a, sizeof a);
}

/* Up to what the library assumes of matrices of which it is told nothing. */
static int32_t alignment_of(const void *data)
{
    uintptr_t at = (uintptr_t)data, lowest = at & (~at + 1);
    return at == 0 || lowest > ALIGNMENT_MOST ? ALIGNMENT_MOST : (int32_t)lowest;
}

static void say_alignments(const cup__scaled_plan *plan, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t attributes[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = (uint32_t)plan->key.alignment[i < 2 ? i : 2];
        cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, attributes[i], &bytes,
                                                           sizeof bytes);
    }
}

static cublasStatus_t choose(cup__product_state *state, cup__scaled_plan *plan)
{
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = cup__cublaslt.cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    uint64_t most = CUP__WORKSPACE_BYTES;
    uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    say_alignments(plan, preference);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    status = cup__cublaslt.cublasLtMatmulAlgoGetHeuristic(
        state->cublaslt, plan->operation, plan->layout[0], plan->layout[1], plan->layout[2],
        plan->layout[2], preference, 1, &result, &found);
    cup__cublaslt.cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || !found)
        return status != CUBLAS_STATUS_SUCCESS ? status : CUBLAS_STATUS_NOT_SUPPORTED;
    plan->algorithm = result.algo;
    plan->workspace = result.workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

/* The plan of a product: remembered, or made. NULL without memory. */
static cup__scaled_plan *plan_of(cup_context *c, cup__product_state *state, const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    plan_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m;
    key.n = p->n;
    key.k = p->k;
    key.dtype[0] = p->dtype;
    key.dtype[1] = s->b_dtype;
    key.dtype[2] = s->y_dtype;
    key.alignment[0] = alignment_of(p->b.data);
    key.alignment[1] = alignment_of(p->a.data);
    key.alignment[2] = alignment_of(p->y.data);
    key.bias = p->bias != NULL;
    key.fast = s->fast;
    key.scaled[0] = s->a.data != NULL;
    key.scaled[1] = s->b.data != NULL;
    for (cup__scaled_plan *plan = state->scaled_plans; plan; plan = plan->next)
        if (!memcmp(&plan->key, &key, sizeof key))
            return plan;
    cup__scaled_plan *plan = cup__calloc(1, sizeof *plan);
    if (!plan) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a plan of cuBLASLt");
        return NULL;
    }
    plan->key = key;
    plan->status = describe(plan);
    set_pointers(plan, state->workspace, state->workspace, state->workspace);
    if (plan->status == CUBLAS_STATUS_SUCCESS)
        plan->status = choose(state, plan);
    plan->next = state->scaled_plans;
    state->scaled_plans = plan;
    return plan;
}

static const char *product_refuses(cup_context *c, const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    if (cup__cuda_of(c->device)->dry)
        return "a GPU that is not there takes no library";
    if (p->dtype == CUP_I8 || s->kind != PRODUCT_SCALE_ONE)
        return "it is for f8 with one scale";
    if (!cup__library_open(CUP__LIBCUBLASLT))
        return "cuBLASLt was not found, see `cupola info`";
    if (cup__product_is_empty(p))
        return "there is nothing to sum";
    if (p->k % ALIGNMENT || p->n % ALIGNMENT || (uintptr_t)p->a.data % ALIGNMENT ||
        (uintptr_t)p->b.data % ALIGNMENT || (uintptr_t)p->bias % ALIGNMENT ||
        (uintptr_t)p->y.data % ALIGNMENT || (uintptr_t)s->a.data % ALIGNMENT ||
        (uintptr_t)s->b.data % ALIGNMENT)
        return "something does not start at a multiple of 16 bytes";
    cup__product_state *state = cup__product_state_of(c);
    if (!state || !cup__cublaslt_start(c, state))
        return "cuBLASLt could not be started";
    cup__scaled_plan *plan = plan_of(c, state, p);
    if (!plan || plan->status != CUBLAS_STATUS_SUCCESS)
        return "cuBLASLt has no algorithm for it";
    return NULL;
}

const char *cup__scaled_cublaslt_refuses(const cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_product(call, &p, &s);
    return product_refuses(call->c, &p);
}

cup_status cup__scaled_cublaslt_by(cup_context *c, const cup__product *p)
{
    static const float one = 1, zero = 0;
    const char *why = product_refuses(c, p);
    if (why)
        return cup__fail(&c->error, CUP_UNSUPPORTED, "scaled_matmul by cuBLASLt: %s", why);
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    cup__scaled_plan *plan = plan_of(c, state, p);
    CUP_TRY(cup__launch_foreign(gpu, "cublasLtMatmul"));
    set_pointers(plan, p->bias, p->scaling->a.data, p->scaling->b.data);
    cublasStatus_t status = cup__cublaslt.cublasLtMatmul(
        state->cublaslt, plan->operation, &one, p->b.data, plan->layout[0], p->a.data,
        plan->layout[1], &zero, p->y.data, plan->layout[2], p->y.data, plan->layout[2],
        &plan->algorithm, state->workspace, plan->workspace, cup__cuda_stream(gpu));
    if (status == CUBLAS_STATUS_SUCCESS)
        return CUP_OK;
    return cup__fail(&c->error, CUP_DRIVER,
                     "scaled_matmul: cuBLASLt failed with status %d; CUP_LIBCUBLASLT=off does "
                     "without it",
                     (int)status);
}

cup_status cup__scaled_cublaslt(cup__call *call)
{
    cup__product p;
    cup__scaling s;
    cup__scaled_product(call, &p, &s);
    return cup__scaled_cublaslt_by(call->c, &p);
}
