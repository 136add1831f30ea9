/* cupola/dlpack.h: tensors to and from other libraries by DLPack, without a copy. Not part of
 * cupola.h, since it declares names that are DLPack's: where its own header is used as well,
 * include that first.
 *
 * A Python extension has the rest: a capsule "dltensor_versioned", renamed when it is taken, and
 * Python's lock around the deleter. */
#ifndef CUPOLA_DLPACK_H
#define CUPOLA_DLPACK_H

#include "cupola/wrap.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DLPACK_DLPACK_H_

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;

typedef enum {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLComplex = 5,
    kDLBool = 6,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e5m2 = 12
} DLDataTypeCode;

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)

#endif

/* The tensor as DLPack's, with its memory held until the deleter is called, also when the tensor or
 * the context was freed before. The deleter is a call on the context, in its thread; on a GPU it
 * waits for all work there, so that nobody reads the memory any more. Marked as read-only where it
 * was wrapped so or gradients rely on what it holds. With `copy` it is a copy, and marked so.
 *
 * `stream`, on a GPU, is where the taker will use it, in DLPack's numbers: 1 the legacy default
 * stream, 2 that of the thread, above 2 a CUstream; it then waits for what fills the memory. -1:
 * nothing waits. 0 is an error, and the CPU does not look at it. NULL on failure. */
CUP_API DLManagedTensorVersioned *cup_dlpack_export(cup_tensor *t, int64_t stream, bool copy);

/* A tensor of the context that is another library's memory, as cup_tensor_wrap makes one: of the
 * host on a CPU context, of its own GPU on others. Ask its maker for it with the number of the
 * context's stream, cup_dlpack_stream, so that what fills it comes before what uses it.
 *
 * The call takes `managed` over whatever happens: its deleter is called when the last use of the
 * memory is over, or at once where NULL is returned. */
CUP_API cup_tensor *cup_dlpack_import(cup_context *c, DLManagedTensorVersioned *managed);

/* The number of the context's stream for makers of arrays; -1, no need to wait, on a CPU. */
CUP_API int64_t cup_dlpack_stream(cup_context *c);

#ifdef __cplusplus
}
#endif
#endif
