/* Matrix products by NVIDIA's cuBLASLt, also of f8 codes with one scale each. It thinks in columns,
 * so y^T = b^T a^T is asked for. What the library says about a shape is remembered, so that a call
 * costs a look-up. */
#include <limits.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "cuda/gpu.h"
#include "cuda/loader.h"
#include "dispatch/attributes.h"
#include "dispatch/memo.h"
#include "ops/matmul/epilogues.h"
#include "ops/matmul/product_cuda.h"
#include "ops/matmul/product_state.h"

#define MOST_CALLS 64 /* for the outer dimensions of a batch */
#define ALIGNMENT_MOST 256
#define CODES_ALIGNMENT 16
#define BIAS_ALIGNMENT 16 /* some of its kernels need it, and the heuristic does not ask */

/* All that a plan depends on. Filled from zeroed memory, so that it can be compared as bytes. */
typedef struct plan_key {
    int64_t m, n, k, batch;
    int64_t leading[3], step[3]; /* of b, a and y: between lines, between matrices of a batch */
    int32_t transposed[2], alignment[3], dtype[3]; /* of b, a and y */
    int32_t precision, epilogue, rank;
    int8_t fast, scaled[2]; /* of codes alone */
} plan_key;

struct cup__cublaslt_plan {
    cup__cublaslt_plan *next;
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
    case CUP_F64:
        return CUDA_R_64F;
    case CUP_F16:
        return CUDA_R_16F;
    case CUP_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_of(const plan_key *key)
{
    if (key->dtype[0] == CUP_F64)
        return CUBLAS_COMPUTE_64F;
    if (key->dtype[0] != CUP_F32 || key->precision == CUP__HIGHEST)
        return CUBLAS_COMPUTE_32F;
    return key->precision == CUP__HIGH ? CUBLAS_COMPUTE_32F_FAST_TF32
                                       : CUBLAS_COMPUTE_32F_FAST_16BF;
}

/* A GELU is a pass of its own: the tail of the library's is 0. */
static int epilogue_of(const cup__product *p)
{
    return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Of each of the matrices that calls of their own begin with: all share one plan. */
static int32_t alignment_of(const cup__product *p, const cup__matrix *m)
{
    uintptr_t at = (uintptr_t)m->data;
    for (int i = 0; i + 1 < p->batch_ndim; i++)
        at |= (uintptr_t)(m->batch[i] * cup_dtype_size(p->dtype));
    uintptr_t lowest = at & (~at + 1);
    return at == 0 || lowest > ALIGNMENT_MOST ? ALIGNMENT_MOST : (int32_t)lowest;
}

/* The distance of lines as the library wants it, also for a single line. */
static int64_t leading(int64_t distance, int64_t lines, int64_t length)
{
    return lines <= 1 || distance < length ? (length > 0 ? length : 1) : distance;
}

static void fill_key(plan_key *key, const cup_context *c, const cup__product *p, int rank)
{
    memset(key, 0, sizeof *key);
    key->rank = rank;
    int last = p->batch_ndim - 1;
    key->m = p->n;
    key->n = p->m;
    key->k = p->k;
    key->batch = last >= 0 ? p->batch_size[last] : 1;
    key->dtype[0] = p->scaling ? p->scaling->b_dtype : p->dtype;
    key->dtype[1] = p->dtype;
    key->dtype[2] = p->scaling ? p->scaling->y_dtype : p->dtype;
    key->fast = p->scaling && p->scaling->fast;
    key->scaled[0] = p->scaling && p->scaling->b.data;
    key->scaled[1] = p->scaling && p->scaling->a.data;
    key->precision = p->dtype == CUP_F32 ? c->precision : 0;
    key->epilogue = epilogue_of(p);
    const cup__matrix *matrix[3] = {&p->b, &p->a, &p->y};
    for (int i = 0; i < 3; i++) {
        key->alignment[i] = alignment_of(p, matrix[i]);
        key->step[i] = last >= 0 ? matrix[i]->batch[last] : 0;
    }
    bool b_rows = p->b.column == 1 || p->n == 1, a_rows = p->a.column == 1 || p->k == 1;
    key->transposed[0] = !b_rows;
    key->transposed[1] = !a_rows;
    key->leading[0] = b_rows ? leading(p->b.row, p->k, p->n) : leading(p->b.column, p->n, p->k);
    key->leading[1] = a_rows ? leading(p->a.row, p->m, p->k) : leading(p->a.column, p->k, p->m);
    key->leading[2] = leading(p->y.row, p->m, p->n);
}

static void plan_free(cup__cublaslt_plan *plan)
{
    if (plan->operation)
        cup__cublaslt.cublasLtMatmulDescDestroy(plan->operation);
    for (int i = 0; i < 3; i++)
        if (plan->layout[i])
            cup__cublaslt.cublasLtMatrixLayoutDestroy(plan->layout[i]);
    cup__free(plan);
}

void cup__product_cublaslt_close(cup__product_state *state)
{
    for (int i = 0; i < CUP__PLAN_SLOTS; i++)
        while (state->plans[i]) {
            cup__cublaslt_plan *plan = state->plans[i];
            state->plans[i] = plan->next;
            plan_free(plan);
        }
    if (state->cublaslt)
        cup__cublaslt.cublasLtDestroy(state->cublaslt);
}

static cublasStatus_t set(cup__cublaslt_plan *plan, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t size)
{
    return cup__cublaslt.cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, size);
}

static bool of_codes(const plan_key *key)
{
    return cup_dtype_size((cup_dtype)key->dtype[0]) == 1;
}

static cublasStatus_t describe(cup__cublaslt_plan *plan)
{
    const plan_key *key = &plan->key;
    const int64_t rows[3] = {key->transposed[0] ? key->k : key->m,
                             key->transposed[1] ? key->n : key->k, key->m};
    const int64_t columns[3] = {key->transposed[0] ? key->m : key->k,
                                key->transposed[1] ? key->k : key->n, key->n};
    int32_t batch = (int32_t)key->batch, y_type = type_of(key->dtype[2]);
    cublasStatus_t status = cup__cublaslt.cublasLtMatmulDescCreate(
        &plan->operation, compute_of(key), key->dtype[0] == CUP_F64 ? CUDA_R_64F : CUDA_R_32F);
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++) {
        cublasLtMatrixLayout_t *layout = &plan->layout[i];
        status = cup__cublaslt.cublasLtMatrixLayoutCreate(layout, type_of(key->dtype[i]),
                                                          (uint64_t)rows[i], (uint64_t)columns[i],
                                                          key->leading[i]);
        if (status != CUBLAS_STATUS_SUCCESS || batch == 1)
            continue;
        cup__cublaslt.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                       &batch, sizeof batch);
        status = cup__cublaslt.cublasLtMatrixLayoutSetAttribute(
            *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &key->step[i],
            sizeof key->step[i]);
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    uint32_t epilogue = (uint32_t)key->epilogue;
    if (of_codes(key))
        set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &key->fast, sizeof key->fast);
    if (of_codes(key) && epilogue == CUBLASLT_EPILOGUE_BIAS)
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &y_type, sizeof y_type);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &key->transposed[0], sizeof(int32_t));
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &key->transposed[1], sizeof(int32_t));
    return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
}

/* The heuristic looks at whether pointers are given, so some address stands in for them. */
static void set_pointers(cup__cublaslt_plan *plan, const void *bias, const void *b_scale,
                         const void *a_scale)
{
    if (plan->key.epilogue == CUBLASLT_EPILOGUE_BIAS)
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(void *));
    if (plan->key.scaled[0])
        set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &b_scale, sizeof(void *));
    if (plan->key.scaled[1])
        set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a_scale, sizeof(void *));
}

static cublasStatus_t choose(cup__product_state *state, cup__cublaslt_plan *plan)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[3] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = cup__cublaslt.cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    uint64_t most = of_codes(&plan->key) ? CUP__WORKSPACE_BYTES : CUP__CUBLASLT_BYTES;
    uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    for (int i = 0; i < 3; i++) {
        uint32_t bytes = (uint32_t)plan->key.alignment[i];
        cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &bytes,
                                                           sizeof bytes);
        if (i == 2)
            cup__cublaslt.cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &bytes, sizeof bytes);
    }
    cublasLtMatmulHeuristicResult_t results[CUP__RANKS_MOST];
    int found = 0, wanted = plan->key.rank + 1;
    status = cup__cublaslt.cublasLtMatmulAlgoGetHeuristic(
        state->cublaslt, plan->operation, plan->layout[0], plan->layout[1], plan->layout[2],
        plan->layout[2], preference, wanted, results, &found);
    cup__cublaslt.cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found < wanted)
        return status != CUBLAS_STATUS_SUCCESS ? status : CUBLAS_STATUS_NOT_SUPPORTED;
    plan->algorithm = results[wanted - 1].algo;
    plan->workspace = results[wanted - 1].workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

/* The plan of a product: remembered, or made. NULL without memory. */
static cup__cublaslt_plan *plan_of(cup_context *c, cup__product_state *state,
                                   const cup__product *p, int rank)
{
    plan_key key;
    fill_key(&key, c, p, rank);
    cup__cublaslt_plan **slot = &state->plans[cup__hash_bytes(&key, sizeof key) % CUP__PLAN_SLOTS];
    for (cup__cublaslt_plan *plan = *slot; plan; plan = plan->next)
        if (!memcmp(&plan->key, &key, sizeof key))
            return plan;
    cup__cublaslt_plan *plan = cup__calloc(1, sizeof *plan);
    if (!plan) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a plan of cuBLASLt");
        return NULL;
    }
    plan->key = key;
    plan->status = describe(plan);
    void *some = state->workspace;
    set_pointers(plan, some, some, some);
    if (plan->status == CUBLAS_STATUS_SUCCESS)
        plan->status = choose(state, plan);
    plan->next = *slot;
    *slot = plan;
    return plan;
}

bool cup__cublaslt_start(cup_context *c, cup__product_state *state)
{
    if (state->cublaslt || state->cublaslt_failed)
        return state->cublaslt != NULL;
    cup__cuda *gpu = cup__cuda_of(c->device);
    if (cup__cuda_enter(gpu) != CUP_OK ||
        cup__cublaslt.cublasLtCreate(&state->cublaslt) != CUBLAS_STATUS_SUCCESS) {
        state->cublaslt = NULL;
        state->cublaslt_failed = true;
    }
    return state->cublaslt != NULL;
}

static int64_t calls_of(const cup__product *p)
{
    return p->batch_ndim ? p->batch_count / p->batch_size[p->batch_ndim - 1] : 1;
}

const char *cup__product_cublaslt_refuses(cup_context *c, const cup__product *p)
{
    return cup__product_cublaslt_rank_refuses(c, p, 0);
}

/* Of f8 it needs everything at multiples of 16 bytes. */
static bool codes_lie_badly(const cup__product *p)
{
    const cup__scaling *s = p->scaling;
    uintptr_t at = (uintptr_t)p->a.data | (uintptr_t)p->b.data | (uintptr_t)p->y.data |
                   (uintptr_t)p->bias | (uintptr_t)s->a.data | (uintptr_t)s->b.data |
                   (uintptr_t)p->k | (uintptr_t)p->n;
    return at % CODES_ALIGNMENT;
}

const char *cup__product_cublaslt_rank_refuses(cup_context *c, const cup__product *p, int rank)
{
    if (cup__cuda_of(c->device)->dry)
        return "a GPU that is not there takes no library";
    if (!cup__library_open(CUP__LIBCUBLASLT))
        return "cuBLASLt was not found, see `cupola info`";
    if (cup__product_is_empty(p))
        return "there is nothing to sum";
    if (p->activation && p->dtype != CUP_F32 && p->dtype != CUP_F64)
        return "its GELU is 0 in the tail, and one of its own would see rounded numbers";
    if (p->dtype == CUP_F64 && (p->bias || p->activation))
        return "cuBLASLt has no epilogues in f64";
    if ((uintptr_t)p->bias % BIAS_ALIGNMENT)
        return "the bias starts between multiples of 16 bytes";
    if (calls_of(p) > MOST_CALLS || p->batch_count > INT32_MAX)
        return "the batch has too many parts for one call";
    bool f8 = p->dtype == CUP_F8E4M3 || p->dtype == CUP_F8E5M2;
    if (p->scaling && (!f8 || p->scaling->kind != PRODUCT_SCALE_ONE))
        return "it is for f8 with one scale";
    if (p->scaling && codes_lie_badly(p))
        return "something does not start at a multiple of 16 bytes";
    cup__product_state *state = cup__product_state_of(c);
    if (!state || !cup__cublaslt_start(c, state))
        return "cuBLASLt could not be started";
    cup__cublaslt_plan *plan = plan_of(c, state, p, rank);
    if (!plan || plan->status != CUBLAS_STATUS_SUCCESS)
        return "cuBLASLt has no algorithm for it";
    return NULL;
}

/* One matrix, or one strided batch of them. */
static cublasStatus_t multiply(cup__product_state *state, cup__cublaslt_plan *plan,
                               const cup__product *p, CUstream stream)
{
    static const float one = 1, zero = 0;
    static const double one64 = 1, zero64 = 0;
    bool wide = p->dtype == CUP_F64;
    const cup__scaling *s = p->scaling;
    set_pointers(plan, p->bias, s ? s->b.data : NULL, s ? s->a.data : NULL);
    return cup__cublaslt.cublasLtMatmul(
        state->cublaslt, plan->operation, wide ? (const void *)&one64 : &one, p->b.data,
        plan->layout[0], p->a.data, plan->layout[1], wide ? (const void *)&zero64 : &zero,
        p->y.data, plan->layout[2], p->y.data, plan->layout[2], &plan->algorithm, state->workspace,
        plan->workspace, stream);
}

static cup_status explain(cup__call *call, cublasStatus_t status)
{
    const char *name = cup__cublaslt.cublasLtGetStatusName
                           ? cup__cublaslt.cublasLtGetStatusName(status)
                           : "";
    return cup__call_fail(call, CUP_DRIVER,
                          "cuBLASLt failed with status %d %s; CUP_LIBCUBLASLT=off does without it",
                          (int)status, name);
}

/* All matrices, in as many strided batches as they are. */
static cup_status multiply_all(cup__call *call, const cup__product *whole, int rank)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product_state *state = cup__product_state_of(c);
    if (!state || !cup__cublaslt_start(c, state))
        return cup__call_fail(call, CUP_DRIVER, "cuBLASLt could not be started");
    CUP_TRY(cup__launch_foreign(gpu, "cublasLtMatmul"));
    cup__cublaslt_plan *plan = plan_of(c, state, whole, rank);
    if (!plan)
        return CUP_MEMORY;
    int64_t inner = whole->batch_ndim ? whole->batch_size[whole->batch_ndim - 1] : 1;
    int64_t size = cup_dtype_size(whole->dtype);
    for (int64_t i = 0; i < calls_of(whole); i++) {
        cup__product part = *whole;
        int64_t y = cup__product_offset(whole, &whole->y, i * inner) * size;
        part.a.data += cup__product_offset(whole, &whole->a, i * inner) * size;
        part.b.data += cup__product_offset(whole, &whole->b, i * inner) * size;
        part.y.data += y;
        part.pre = whole->pre ? (char *)whole->pre + y : NULL;
        cublasStatus_t status = plan->status;
        if (status == CUBLAS_STATUS_SUCCESS)
            status = multiply(state, plan, &part, cup__cuda_stream(gpu));
        if (status != CUBLAS_STATUS_SUCCESS)
            return explain(call, status);
    }
    return CUP_OK;
}

static const char owner; /* of what is kept here */

static cup_status again(cup__call *call, cup__memo *memo)
{
    cup_context *c = call->c;
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__product p = {.dtype = call->in[call->op->epilogue->a]->dtype};
    cup__product_point(call, call->in, &p);
    CUP_TRY(cup__launch_foreign(gpu, "cublasLtMatmul"));
    cup__cublaslt_plan *plan = *(cup__cublaslt_plan **)memo->kept;
    cublasStatus_t status = multiply(cup__product_state_of(c), plan, &p, cup__cuda_stream(gpu));
    return status == CUBLAS_STATUS_SUCCESS ? CUP_OK : explain(call, status);
}

/* Equal calls need a look at neither the product nor its plan. */
static void keep(cup__call *call, const cup__product *p, int rank)
{
    cup__product_state *state = cup__product_state_of(call->c);
    if (!call->memo || !call->op->epilogue || calls_of(p) != 1 || !state)
        return;
    cup__cublaslt_plan *plan = plan_of(call->c, state, p, rank);
    if (plan && cup__memo_keep(call->memo, &owner, &plan, sizeof plan))
        call->memo->again = again;
}

cup_status cup__product_cublaslt(cup__call *call, const cup__product *p)
{
    return cup__product_cublaslt_by(call, p, 0);
}

cup_status cup__product_cublaslt_by(cup__call *call, const cup__product *p, int rank)
{
    if (!p->activation) {
        keep(call, p, rank);
        return multiply_all(call, p, rank);
    }
    cup__product before = *p;
    cup_tensor *in = call->out[p->pre ? 1 : 0], *out[] = {call->out[0]};
    before.y.data = in->data;
    before.pre = NULL;
    CUP_TRY(multiply_all(call, &before, rank));
    return cup__op_call(call->c, &cup__rows[call->op->epilogue->op], &in, 1, NULL, out)
               ? CUP_OK
               : call->c->error.status;
}
