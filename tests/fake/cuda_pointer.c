/* What the fake driver says of addresses. */
#define FAKE_INSIDE
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define NEED(result, name, exported, arguments) EXPORT result name arguments __asm__(exported);
#define MAY NEED
#include "cuda/driver.def"
#undef NEED
#undef MAY

typedef struct range {
    struct range *next;
    const char *begin;
    size_t bytes;
    CUmemorytype type;
    int device;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range *ranges;

void fake_range_add(const void *memory, size_t bytes, CUmemorytype type)
{
    CUcontext context;
    cuCtxGetCurrent(&context);
    range *made = malloc(sizeof *made);
    pthread_mutex_lock(&lock);
    *made = (range){ranges, memory, bytes, type, (int)(uintptr_t)context - 1};
    ranges = made;
    pthread_mutex_unlock(&lock);
}

void fake_range_remove(const void *memory)
{
    pthread_mutex_lock(&lock);
    for (range **link = &ranges; *link; link = &(*link)->next)
        if ((*link)->begin == memory) {
            range *gone = *link;
            *link = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (const range *r = ranges; r; r = r->next) {
        if (address - (CUdeviceptr)(uintptr_t)r->begin >= r->bytes)
            continue;
        result = CUDA_SUCCESS;
        if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(unsigned *)value = r->type;
        else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)value = r->device;
        else
            *(unsigned *)value = 0;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuCtxSynchronize(void)
{
    ENTER;
    fake_finish();
    return CUDA_SUCCESS;
}
