/* See cudnn.h. */
#include "cudnn.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_SET 16
#define CONFIGS 7
#define WRONG CUDNN_STATUS_BAD_PARAM

/* Declares each call as the library does, and so holds the two against each other. */
#define NEED(result, name, exported, arguments) EXPORT result name arguments;
#include "cuda/cudnn.def"
#undef NEED

EXPORT fake_cudnn_fail_function fake_cudnn_fail;
EXPORT fake_cudnn_calls_function fake_cudnn_calls;
EXPORT fake_cudnn_live_function fake_cudnn_live;
EXPORT fake_cudnn_last_function fake_cudnn_last;

static long fail_in, live, calls_count;
static struct {
    const char *name;
    long count;
} calls[16];
static int last_ran = -1;

struct cudnnContext {
    CUstream stream;
};

typedef struct attribute {
    int name, type;
    int64_t count;
    union {
        int64_t number[4];
        void *pointer[4];
        float real;
        int word;
    };
} attribute;

typedef struct described {
    int type;
    bool final;
    attribute set[MOST_SET];
    int count;
    int config; /* of an engine and its configuration: number of the algorithm */
} described;

void fake_cudnn_fail(long n)
{
    fail_in = n;
}

long fake_cudnn_calls(const char *name)
{
    long count = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && calls[i].name; i++)
        if (!name || !strcmp(calls[i].name, name))
            count += calls[i].count;
    return count;
}

long fake_cudnn_live(void)
{
    return live;
}

int fake_cudnn_last(void)
{
    return last_ran;
}

static cudnnStatus_t enter(const char *name)
{
    size_t i = 0;
    while (calls[i].name && strcmp(calls[i].name, name))
        i++;
    calls[i].name = name;
    calls[i].count++;
    calls_count++;
    return fail_in && --fail_in == 0 ? CUDNN_STATUS_INTERNAL_ERROR : CUDNN_STATUS_SUCCESS;
}

#define ENTER                                                                                      \
    do {                                                                                           \
        cudnnStatus_t refused = enter(__func__);                                                   \
        if (refused != CUDNN_STATUS_SUCCESS)                                                       \
            return refused;                                                                        \
    } while (0)

size_t cudnnGetVersion(void)
{
    const char *value = getenv("FAKE_CUDNN_VERSION");
    return value ? (size_t)atol(value) : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS       ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == WRONG                      ? "CUDNN_STATUS_BAD_PARAM"
                                                  : "CUDNN_STATUS_INTERNAL_ERROR";
}

#ifndef FAKE_CUDNN_8
void cudnnGetLastErrorString(char *text, size_t size)
{
    snprintf(text, size, "the stand-in says so");
}
#endif

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    ENTER;
    *handle = calloc(1, sizeof **handle);
    live++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    live--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream stream)
{
    ENTER;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    ENTER;
    described *d = calloc(1, sizeof *d);
    d->type = type;
    d->config = -1;
    *out = d;
    live++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    free(d);
    live--;
    return d ? CUDNN_STATUS_SUCCESS : WRONG;
}

static const attribute *find(const described *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->set[i].name == name)
            return &d->set[i];
    return NULL;
}

static size_t size_of(int type)
{
    return type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_HANDLE ||
                   type == CUDNN_TYPE_BACKEND_DESCRIPTOR
               ? 8
               : 4;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    ENTER;
    described *d = descriptor;
    if (!d || d->final || find(d, name) || count < 1 || count > 4 || !values ||
        d->count == MOST_SET)
        return WRONG;
    attribute *a = &d->set[d->count++];
    a->name = name;
    a->type = type;
    a->count = count;
    memcpy(a->number, values, (size_t)count * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

/* An attribute that must be there, of this type and count; else one of zeros. */
static const attribute *needed(const described *d, int name, int type, int64_t count, bool *good)
{
    static const attribute none;
    const attribute *a = find(d, name);
    *good = *good && a && a->type == type && a->count == count;
    return *good ? a : &none;
}

/* A descriptor that must be set, be final and of this type. */
static const described *referred(const described *d, int name, int type, bool *good)
{
    const attribute *a = needed(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, good);
    const described *to = *good ? a->pointer[0] : NULL;
    *good = *good && to && to->final && to->type == type;
    return to;
}

static bool is_tensor(const described *d)
{
    bool good = true;
    const attribute *type =
        needed(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &good);
    const attribute *align =
        needed(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &good);
    const attribute *size = needed(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, &good);
    const attribute *step = needed(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, &good);
    needed(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &good);
    for (int i = 0; i < 4; i++)
        good = good && size->number[i] > 0 && step->number[i] > 0;
    int64_t bytes = type->word == CUDNN_DATA_FLOAT ? 4 : 2;
    return good && align->number[0] >= bytes && !(align->number[0] & (align->number[0] - 1)) &&
           (type->word == CUDNN_DATA_FLOAT || type->word == CUDNN_DATA_HALF ||
            type->word == CUDNN_DATA_BFLOAT16);
}

static bool is_convolution(const described *d)
{
    static const int sides[] = {
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
        CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS};
    bool good = true;
    const attribute *sums =
        needed(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &good);
    const attribute *mode =
        needed(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &good);
    const attribute *count =
        needed(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &good);
    for (int i = 0; i < 4; i++) {
        const attribute *a = needed(d, sides[i], CUDNN_TYPE_INT64, 2, &good);
        good = good && a->number[0] >= (i > 1) && a->number[1] >= (i > 1);
    }
    return good && sums->word == CUDNN_DATA_FLOAT && mode->word == CUDNN_CROSS_CORRELATION &&
           count->number[0] == 2;
}

/* A convolution whose descriptors are all there; W, X and Y stand behind ALPHA at 3, 4 and 5. */
typedef struct meaning {
    int part; /* 0: forward, 1: with respect to x, 2: to w */
    const int64_t *size[3], *step[3], *id[3]; /* of w, x and y */
    const int64_t *before, *behind, *stride, *dilation;
    int type;
} meaning;

static bool understand(const described *d, meaning *m)
{
    bool good = true;
    m->part = d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? 0
              : d->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? 1
                                                                                        : 2;
    int first = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA + 6 * m->part;
    good = needed(d, first, CUDNN_TYPE_FLOAT, 1, &good)->real == 1 && good;
    good = needed(d, first + 1, CUDNN_TYPE_FLOAT, 1, &good)->real == 0 && good;
    const described *c = referred(d, first + 2, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &good);
    for (int i = 0; i < 3 && good; i++) {
        const described *t = referred(d, first + 3 + i, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &good);
        if (!good)
            return false;
        m->size[i] = find(t, CUDNN_ATTR_TENSOR_DIMENSIONS)->number;
        m->step[i] = find(t, CUDNN_ATTR_TENSOR_STRIDES)->number;
        m->id[i] = find(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)->number;
        m->type = find(t, CUDNN_ATTR_TENSOR_DATA_TYPE)->word;
    }
    if (!good)
        return false;
    m->before = find(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)->number;
    m->behind = find(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)->number;
    m->stride = find(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)->number;
    m->dilation = find(c, CUDNN_ATTR_CONVOLUTION_DILATIONS)->number;
    const int64_t *w = m->size[0], *x = m->size[1], *y = m->size[2];
    for (int s = 0; s < 2; s++)
        good = good && y[2 + s] == (x[2 + s] + m->before[s] + m->behind[s] -
                                    (w[2 + s] - 1) * m->dilation[s] - 1) / m->stride[s] + 1;
    return good && x[0] == y[0] && w[0] == y[1] && x[1] % w[1] == 0 && w[0] % (x[1] / w[1]) == 0;
}

static bool is_finished(const described *d, cudnnStatus_t *status)
{
    bool good = true;
    meaning m;
    const described *to;
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return is_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return is_convolution(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return understand(d, &m);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        needed(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &good);
        to = needed(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &good)
                 ->pointer[0];
        return good && to->final && understand(to, &m);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        referred(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                 &good);
        return needed(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &good)->word ==
                   CUDNN_HEUR_MODE_A &&
               good;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        needed(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &good);
        to = referred(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                      CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &good);
        if (good && to->config == 2)
            *status = CUDNN_STATUS_NOT_SUPPORTED;
        return good;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        needed(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, &good);
        needed(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, &good);
        needed(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &good);
        return good;
    default:
        return false;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    ENTER;
    described *d = descriptor;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (!d || d->final || !is_finished(d, &status))
        return WRONG;
    d->final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* What the heuristic proposes: a list of configurations that belong to a graph. */
static cudnnStatus_t propose(const described *d, int64_t most, int64_t *count, void *values)
{
    *count = CONFIGS;
    for (int64_t i = 0; i < most && i < CONFIGS; i++) {
        described *config = ((described **)values)[i];
        if (!config || config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return WRONG;
        config->final = true;
        config->config = (int)i;
        config->set[0] = (attribute){.name = CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH};
        config->set[0].pointer[0] =
            find(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->pointer[0];
        config->count = 1;
    }
    return CUDNN_STATUS_SUCCESS;
}

static const described *config_of(const described *plan)
{
    return find(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->pointer[0];
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most,
                                       int64_t *count, void *values)
{
    static const int notes[CONFIGS] = {
        CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
        CUDNN_NUMERICAL_NOTE_TENSOR_CORE,      CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP,
        CUDNN_NUMERICAL_NOTE_TENSOR_CORE,      CUDNN_NUMERICAL_NOTE_WINOGRAD,
        CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    static const int64_t workspaces[CONFIGS] = {0, FAKE_CUDNN_WORKSPACE, 0, 0, (int64_t)1 << 40,
                                                0, 0};
    ENTER;
    const described *d = descriptor;
    if (!d || !count)
        return WRONG;
    *count = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && d->final &&
        type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return propose(d, most, count, values);
    if (most < 1 || !values)
        return WRONG;
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && d->config >= 0)
        (*(described **)values)->config = d->config;
    else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && d->config >= 0)
        *(int *)values = notes[d->config];
    else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && d->final)
        *(int64_t *)values = workspaces[config_of(d)->config];
    else
        return WRONG;
    return CUDNN_STATUS_SUCCESS;
}

static float *at(const meaning *m, int which, void *const *data, const int64_t place[4])
{
    float *base = data[*m->id[which] - 1];
    for (int i = 0; i < 4; i++)
        base += place[i] * m->step[which][i];
    return base;
}

/* Each product of a convolution once, added to the tensor that is made. */
static void multiply(const meaning *m, void *const *data)
{
    static const int made[] = {2, 1, 0};
    const int64_t *w = m->size[0], *x = m->size[1], *y = m->size[2], *to = m->size[made[m->part]];
    int64_t groups = x[1] / w[1], each = w[0] / groups, all = to[0] * to[1] * to[2] * to[3];
    for (int64_t i = 0; i < all; i++)
        *at(m, made[m->part], data,
            (int64_t[]){i / (to[1] * to[2] * to[3]), i / (to[2] * to[3]) % to[1],
                        i / to[3] % to[2], i % to[3]}) = 0;
    int64_t taps = w[1] * w[2] * w[3];
    for (int64_t i = 0; i < y[0] * y[1] * y[2] * y[3] * taps; i++) {
        int64_t p = i / taps, k = i % taps;
        int64_t yp[4] = {p / (y[1] * y[2] * y[3]), p / (y[2] * y[3]) % y[1], p / y[3] % y[2],
                         p % y[3]};
        int64_t wp[4] = {yp[1], k / (w[2] * w[3]), k / w[3] % w[2], k % w[3]};
        int64_t xp[4] = {yp[0], yp[1] / each * w[1] + wp[1],
                         yp[2] * m->stride[0] + wp[2] * m->dilation[0] - m->before[0],
                         yp[3] * m->stride[1] + wp[3] * m->dilation[1] - m->before[1]};
        if (xp[2] < 0 || xp[2] >= x[2] || xp[3] < 0 || xp[3] >= x[3])
            continue;
        float *of[3] = {at(m, 0, data, wp), at(m, 1, data, xp), at(m, 2, data, yp)};
        int to_one = made[m->part];
        *of[to_one] += *of[(to_one + 1) % 3] * *of[(to_one + 2) % 3];
    }
}

/* Waits for the stream as the stand-in for the driver has it; false while it is captured. */
static bool wait_for(CUstream stream)
{
    void *driver = dlopen(getenv("CUP_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
    CUresult (*wait)(CUstream) = NULL;
    if (driver)
        *(void **)&wait = dlsym(driver, "cuStreamSynchronize");
    bool done = wait && wait(stream) == CUDA_SUCCESS;
    if (driver)
        dlclose(driver);
    return done;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    ENTER;
    const described *p = plan, *with = pack;
    if (!handle || !handle->stream || !p || !p->final || !with || !with->final)
        return WRONG;
    const described *config = config_of(p), *graph = config->set[0].pointer[0];
    meaning m;
    understand(find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS)->pointer[0], &m);
    const int64_t *ids = find(with, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->number;
    void *const *data = find(with, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->pointer;
    void *space = find(with, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->pointer[0];
    for (int i = 0; i < 3; i++)
        if (!data[i] || ids[i] != i + 1)
            return WRONG;
    if ((config->config == 1) != (space != NULL))
        return WRONG;
    last_ran = config->config;
    if (wait_for(handle->stream) && m.type == CUDNN_DATA_FLOAT)
        multiply(&m, data);
    return CUDNN_STATUS_SUCCESS;
}
