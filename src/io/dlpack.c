#include "cupola/dlpack.h"

#include <stdio.h>

#include "base/memory.h"
#include "cuda/cuda.h"
#include "cuda/stream.h"
#include "cupola/ops.h"
#include "tensor/debug.h"
#include "tensor/wrap.h"

#define MAJOR 1
#define MINOR 2 /* the first in which strides are always there */

static const struct {
    uint8_t code, bits;
    cup_dtype dtype;
} types[] = {
    {kDLFloat, 32, CUP_F32},
    {kDLFloat, 64, CUP_F64},
    {kDLFloat, 16, CUP_F16},
    {kDLBfloat, 16, CUP_BF16},
    {kDLInt, 64, CUP_I64},
    {kDLInt, 32, CUP_I32},
    {kDLInt, 8, CUP_I8},
    {kDLUInt, 8, CUP_U8},
    {kDLBool, 8, CUP_BOOL},
    {kDLFloat8_e4m3fn, 8, CUP_F8E4M3},
    {kDLFloat8_e5m2, 8, CUP_F8E5M2},
};
#define TYPES (sizeof types / sizeof *types)

/* Out. */

typedef struct exported {
    DLManagedTensorVersioned managed; /* first, so that a pointer to one is one to the other */
    const cup_hold *hold;
} exported;

static void end_export(DLManagedTensorVersioned *self)
{
    exported *e = (exported *)self;
    if (!e)
        return;
    cup__hold_free_idle(e->hold);
    cup__free(e);
}

static DLManagedTensorVersioned *export_hold(const cup_hold *hold, exported *e, bool copied)
{
    e->hold = hold;
    DLTensor *t = &e->managed.dl_tensor;
    bool empty = false;
    for (int d = 0; d < hold->ndim; d++)
        empty = empty || hold->shape[d] == 0;
    e->managed.version = (DLPackVersion){MAJOR, MINOR};
    e->managed.deleter = end_export;
    e->managed.flags = (hold->read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0) |
                       (copied ? DLPACK_FLAG_BITMASK_IS_COPIED : 0);
    t->data = empty ? NULL : hold->data;
    t->device = hold->device < 0 ? (DLDevice){kDLCPU, 0} : (DLDevice){kDLCUDA, hold->device};
    t->ndim = hold->ndim;
    t->shape = (int64_t *)(uintptr_t)hold->shape;
    t->strides = (int64_t *)(uintptr_t)hold->strides;
    for (size_t i = 0; i < TYPES; i++)
        if (types[i].dtype == hold->dtype)
            t->dtype = (DLDataType){types[i].code, types[i].bits, 1};
    return &e->managed;
}

static cup_status ready_for(cup_context *c, int64_t stream)
{
    if (!c->device->is_cuda || stream == -1)
        return CUP_OK;
    if (stream < 1)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "exporting to the stream %lld: 1 is the legacy default stream, 2 that of "
                         "the thread, above 2 a CUstream, -1 no waiting",
                         (long long)stream);
    return cup__cuda_lead(cup__cuda_of(c->device), (CUstream)(uintptr_t)stream);
}

DLManagedTensorVersioned *cup_dlpack_export(cup_tensor *t, int64_t stream, bool copy)
{
    if (!cup__usable(t, true, "cup_dlpack_export"))
        return NULL;
    cup_context *c = t->context;
    CUP__DEBUG_CALL(c);
    if (c->error.status != CUP_OK)
        return NULL;
    exported *e = cup__calloc(1, sizeof *e);
    if (!e)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a tensor that is handed out");
    bool recording = c->recording;
    c->recording = recording && !copy;
    cup_tensor *taken = e && copy ? cup_copy(c, t) : t;
    c->recording = recording;
    const cup_hold *hold = e && taken ? cup_tensor_hold(taken) : NULL;
    if (taken != t)
        cup_tensor_free(taken);
    if (hold && ready_for(c, stream) == CUP_OK)
        return export_hold(hold, e, copy);
    cup_hold_free(hold);
    cup__free(e);
    return NULL;
}

int64_t cup_dlpack_stream(cup_context *c)
{
    if (!c || c->closed || !c->device || !c->device->is_cuda)
        return -1;
    return (int64_t)(uintptr_t)cup__cuda_stream_shown(cup__cuda_of(c->device));
}

/* In. */

static void end_import(void *user)
{
    DLManagedTensorVersioned *managed = user;
    if (managed->deleter)
        managed->deleter(managed);
}

static cup_status refuse(cup_context *c, cup_status status, const char *words)
{
    return cup__fail(&c->error, status, "a DLPack tensor: %s", words);
}

static cup_status check_device(cup_context *c, DLDevice device)
{
    char text[300];
    int kind = (int)device.device_type;
    bool host = kind == kDLCPU || kind == kDLCUDAHost;
    if (!c->device->is_cuda)
        return host ? CUP_OK
                    : refuse(c, CUP_ARGUMENT, "it is not in the host's memory, and the context is "
                                              "on the CPU; have its maker copy it to the host");
    int own = cup__cuda_facts(cup__cuda_of(c->device))->index;
    if (kind == kDLCUDAManaged || (kind == kDLCUDA && device.device_id == own))
        return CUP_OK;
    snprintf(text, sizeof text,
             "it is on device %d of kind %d, and the context is on cuda:%d; have its maker copy it "
             "there",
             (int)device.device_id, kind, own);
    return refuse(c, CUP_ARGUMENT, text);
}

static cup_status find_dtype(cup_context *c, DLDataType type, cup_dtype *out)
{
    char text[200];
    for (size_t i = 0; i < TYPES && type.lanes == 1; i++)
        if (types[i].code == type.code && types[i].bits == type.bits) {
            *out = types[i].dtype;
            return CUP_OK;
        }
    snprintf(text, sizeof text,
             "its elements, of code %d, %d bits and %d lanes, are of no dtype there is here; have "
             "its maker convert it",
             type.code, type.bits, type.lanes);
    return refuse(c, CUP_DTYPE, text);
}

static cup_tensor *import(cup_context *c, DLManagedTensorVersioned *managed)
{
    const DLTensor *t = &managed->dl_tensor;
    cup_dtype dtype = CUP_F32;
    if (c->error.status != CUP_OK || check_device(c, t->device) != CUP_OK ||
        find_dtype(c, t->dtype, &dtype) != CUP_OK)
        return NULL;
    uintptr_t first;
    if (__builtin_add_overflow((uintptr_t)t->data, t->byte_offset, &first)) {
        refuse(c, CUP_ARGUMENT, "its byte_offset leads past all memory");
        return NULL;
    }
    cup_wrap_options options = {
        .size = sizeof options,
        .strides = t->strides,
        .read_only = managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY,
        .release = end_import,
        .user = managed,
    };
    return cup_tensor_wrap(c, dtype, t->ndim, t->shape,
                           t->data ? (void *)first : NULL, &options);
}

cup_tensor *cup_dlpack_import(cup_context *c, DLManagedTensorVersioned *managed)
{
    CUP__DEBUG_CALL(c);
    if (!managed) {
        if (c)
            refuse(c, CUP_ARGUMENT, "it is NULL");
        return NULL;
    }
    cup_tensor *t = NULL;
    if (c && managed->version.major != MAJOR) {
        char text[160];
        snprintf(text, sizeof text, "it is of DLPack %u.%u, and %d is understood here",
                 (unsigned)managed->version.major, (unsigned)managed->version.minor, MAJOR);
        refuse(c, CUP_UNSUPPORTED, text);
    } else if (c) {
        t = import(c, managed);
    }
    if (!t)
        end_import(managed);
    return t;
}
