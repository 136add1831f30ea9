/* How a convolution is described to cuDNN, and which of its algorithms are taken: those that give
 * equal bits each time and add in f32. */
#include <stdio.h>

#include "base/log.h"
#include "cuda/loader.h"
#include "ops/conv/conv_cudnn.h"

#define WORKSPACE_MOST ((int64_t)256 << 20)
#define NOTES_MOST 32

typedef cudnnBackendDescriptor_t descriptor;

void cup__cudnn_failed(char why[160], const char *doing, cudnnStatus_t status)
{
    char words[512] = "";
    cup__cudnn.cudnnGetLastErrorString(words, sizeof words);
    snprintf(why, 160, "cuDNN failed with %.60s when %s", cup__cudnn.cudnnGetErrorString(status),
             doing);
    cup__log(CUP__INFO, "%s: %s", why, words);
}

/* Behind a step that failed the next ones do nothing. */
static descriptor make(cup__cudnn_problem *p, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->status = cup__cudnn.cudnnBackendCreateDescriptor(type, &d);
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->made[p->made_count++] = d;
    return d;
}

static void set(cup__cudnn_problem *p, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->status = cup__cudnn.cudnnBackendSetAttribute(d, name, type, count, values);
}

static void refer(cup__cudnn_problem *p, descriptor d, int name, const descriptor *to)
{
    set(p, d, (cudnnBackendAttributeName_t)name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, to);
}

static void finish(cup__cudnn_problem *p, descriptor d)
{
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->status = cup__cudnn.cudnnBackendFinalize(d);
}

static cudnnDataType_t type_of(int32_t dtype)
{
    return dtype == CUP_BF16  ? CUDNN_DATA_BFLOAT16
           : dtype == CUP_F16 ? CUDNN_DATA_HALF
                              : CUDNN_DATA_FLOAT;
}

static descriptor tensor_of(cup__cudnn_problem *p, int role)
{
    const cup__cudnn_key *key = &p->key;
    cudnnDataType_t type = type_of(key->dtype);
    int64_t id = role + 1, alignment = key->alignment[role];
    descriptor d = make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(p, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(p, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, key->size[role]);
    set(p, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, key->step[role]);
    set(p, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(p, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    finish(p, d);
    return d;
}

static descriptor convolution_of(cup__cudnn_problem *p)
{
    const cup__cudnn_key *key = &p->key;
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t sides = 2;
    descriptor d = make(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(p, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    set(p, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(p, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
    set(p, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, key->before);
    set(p, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, key->behind);
    set(p, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, key->stride);
    set(p, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, key->dilation);
    finish(p, d);
    return d;
}

/* The attributes of the three operations are in one order, from the first one's number on. */
static descriptor operation_of(cup__cudnn_problem *p)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        int first;
    } operations[] = {
        [CUP__CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA},
        [CUP__CONV_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA},
        [CUP__CONV_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA}};
    enum { ALPHA, BETA, CONVOLUTION, W, X, Y };
    static const float one = 1, zero = 0;
    int first = operations[p->key.part].first;
    descriptor x = tensor_of(p, CUP__CUDNN_X), w = tensor_of(p, CUP__CUDNN_W);
    descriptor y = tensor_of(p, CUP__CUDNN_Y), convolution = convolution_of(p);
    descriptor d = make(p, operations[p->key.part].type);
    set(p, d, (cudnnBackendAttributeName_t)(first + ALPHA), CUDNN_TYPE_FLOAT, 1, &one);
    set(p, d, (cudnnBackendAttributeName_t)(first + BETA), CUDNN_TYPE_FLOAT, 1, &zero);
    refer(p, d, first + CONVOLUTION, &convolution);
    refer(p, d, first + W, &w);
    refer(p, d, first + X, &x);
    refer(p, d, first + Y, &y);
    finish(p, d);
    return d;
}

/* Asks for what it proposes, best guess first. */
static void propose(cup__cudnn_problem *p, descriptor graph)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor d = make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    refer(p, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph);
    set(p, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(p, d);
    int64_t count = 0, got = 0;
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->status = cup__cudnn.cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                                                        NULL);
    if (count > CUP__CUDNN_CONFIGS)
        count = CUP__CUDNN_CONFIGS;
    for (int i = 0; i < count; i++)
        p->config[i] = make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (p->status == CUDNN_STATUS_SUCCESS && count > 0)
        p->status = cup__cudnn.cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got,
                                                        p->config);
    if (p->status == CUDNN_STATUS_SUCCESS)
        p->config_count = (int)(got < count ? got : count);
}

void cup__cudnn_describe(cup__cudnn_problem *p, cudnnHandle_t handle)
{
    descriptor operation = operation_of(p);
    descriptor graph = make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    refer(p, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation);
    finish(p, graph);
    propose(p, graph);
    if (p->status != CUDNN_STATUS_SUCCESS)
        cup__cudnn_failed(p->why, "the convolution was described to it", p->status);
}

void cup__cudnn_forget(cup__cudnn_problem *p)
{
    while (p->plan_count)
        cup__cudnn.cudnnBackendDestroyDescriptor(p->plan[--p->plan_count].plan);
    while (p->made_count)
        cup__cudnn.cudnnBackendDestroyDescriptor(p->made[--p->made_count]);
}

static bool is_welcome_note(int note)
{
    return note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || note >= CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP;
}

/* Whether an algorithm's sums are the plain ones, in f32 and always in one order. */
static bool is_welcome(descriptor config)
{
    descriptor engine;
    int64_t count = 0, one = 0;
    cudnnBackendNumericalNote_t notes[NOTES_MOST];
    cudnnStatus_t status =
        cup__cudnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
    if (status != CUDNN_STATUS_SUCCESS)
        return false;
    status = cup__cudnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                     CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MOST, &count,
                                                     notes);
    bool welcome = status == CUDNN_STATUS_SUCCESS && count <= NOTES_MOST;
    for (int64_t i = 0; i < count && welcome; i++)
        welcome = is_welcome_note((int)notes[i]);
    cup__cudnn.cudnnBackendDestroyDescriptor(engine);
    return welcome;
}

/* What it proposes and then cannot do on this card, or only with much memory, is passed over. */
static bool plan_make(cudnnHandle_t handle, descriptor config, cup__cudnn_plan *out)
{
    int64_t one = 0;
    *out = (cup__cudnn_plan){0};
    cudnnStatus_t status = cup__cudnn.cudnnBackendCreateDescriptor(
        CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &out->plan);
    if (status != CUDNN_STATUS_SUCCESS)
        return false;
    status = cup__cudnn.cudnnBackendSetAttribute(out->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                                 CUDNN_TYPE_HANDLE, 1, &handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendSetAttribute(out->plan,
                                                     CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendFinalize(out->plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendGetAttribute(out->plan,
                                                     CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                     CUDNN_TYPE_INT64, 1, &one, &out->workspace);
    if (status == CUDNN_STATUS_SUCCESS && out->workspace <= WORKSPACE_MOST)
        return true;
    cup__cudnn.cudnnBackendDestroyDescriptor(out->plan);
    return false;
}

const cup__cudnn_plan *cup__cudnn_plan_of(cup__cudnn_problem *p, cudnnHandle_t handle, int rank)
{
    while (p->plan_count <= rank && p->looked_at < p->config_count) {
        descriptor config = p->config[p->looked_at++];
        if (is_welcome(config) && plan_make(handle, config, &p->plan[p->plan_count]))
            p->plan_count++;
    }
    return rank < p->plan_count ? &p->plan[rank] : NULL;
}

cudnnStatus_t cup__cudnn_execute(cudnnHandle_t handle, const cup__cudnn_plan *plan,
                                 void *const data[CUP__CUDNN_ROLES], void *workspace)
{
    static const int64_t ids[CUP__CUDNN_ROLES] = {1, 2, 3};
    descriptor pack;
    cudnnStatus_t status =
        cup__cudnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    status = cup__cudnn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                 CUDNN_TYPE_INT64, CUP__CUDNN_ROLES, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                     CUDNN_TYPE_VOID_PTR, CUP__CUDNN_ROLES, data);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                     CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cup__cudnn.cudnnBackendExecute(handle, plan->plan, pack);
    cup__cudnn.cudnnBackendDestroyDescriptor(pack);
    return status;
}
