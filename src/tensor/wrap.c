#include "tensor/wrap.h"

#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cuda/cuda.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

static cup_status fail(cup_context *c, cup_status status, const cup__shape *shape,
                       const char *words)
{
    char text[CUP__SHAPE_TEXT];
    return cup__fail(&c->error, status, "wrapping %s: %s", cup__shape_text(shape, text), words);
}

/* The bytes from the first to behind the last element; 0 when there is none. */
static cup_status find_span(cup_context *c, const cup__shape *shape, const int64_t *strides,
                            int64_t count, int64_t *bytes)
{
    int64_t last = 0, reach, size = cup_dtype_size(shape->dtype);
    *bytes = 0;
    for (int d = 0; d < shape->ndim; d++) {
        if (strides[d] < 0)
            return fail(c, CUP_ARGUMENT, shape,
                        "a stride is negative; copy it to memory in which addresses go up");
        if (count && (!cup__multiply_i64(shape->size[d] - 1, strides[d], &reach) ||
                      __builtin_add_overflow(last, reach, &last)))
            return fail(c, CUP_ARGUMENT, shape, "its strides reach too far to address");
    }
    if (count && (!cup__multiply_i64(last + (last < INT64_MAX), size, bytes) ||
                  *bytes > INT64_MAX / 4))
        return fail(c, CUP_ARGUMENT, shape, "its strides reach too far to address");
    return CUP_OK;
}

/* Whether each dimension steps over all that those of smaller strides reach. */
static bool has_own_addresses(const cup__shape *shape, const int64_t *strides)
{
    bool done[CUP_MAX_DIMS] = {false};
    int64_t reach = 0;
    for (int i = 0; i < shape->ndim; i++) {
        int least = -1;
        for (int d = 0; d < shape->ndim; d++)
            if (!done[d] && (least < 0 || strides[d] < strides[least]))
                least = d;
        done[least] = true;
        if (shape->size[least] == 1)
            continue;
        if (strides[least] <= reach)
            return false;
        reach += (shape->size[least] - 1) * strides[least];
    }
    return true;
}

static cup_status check_memory(cup_context *c, const cup__shape *shape, const void *memory,
                               int64_t bytes)
{
    char why[CUP__REACH_TEXT];
    if (!memory)
        return fail(c, CUP_ARGUMENT, shape, "its memory is NULL");
    if ((uintptr_t)memory % (uintptr_t)cup_dtype_size(shape->dtype))
        return fail(c, CUP_ARGUMENT, shape,
                    "the memory is at no multiple of an element's size; copy it to one");
    if ((uintptr_t)bytes > UINTPTR_MAX - (uintptr_t)memory)
        return fail(c, CUP_ARGUMENT, shape, "the memory does not end where addresses do");
    cup_status status = c->device->calls->reach(c->device, memory, (size_t)bytes, why);
    return status == CUP_OK ? CUP_OK : fail(c, status, shape, why);
}

static cup_status check(cup_context *c, const cup__shape *shape, const int64_t *strides,
                        const void *memory, bool read_only, int64_t *bytes)
{
    int64_t count;
    CUP_TRY(cup__shape_check(&c->error, shape, &count));
    CUP_TRY(find_span(c, shape, strides, count, bytes));
    if (!count)
        return CUP_OK;
    if (!read_only && !has_own_addresses(shape, strides))
        return fail(c, CUP_ARGUMENT, shape,
                    "by its strides elements may share an address, and it may be written; say "
                    "read_only, or copy it");
    return check_memory(c, shape, memory, *bytes);
}

static cup__storage *storage_of(cup_context *c, void *memory, int64_t bytes,
                                const cup_wrap_options *options)
{
    static _Alignas(256) char nothing[256];
    cup__foreign *foreign = cup__malloc(sizeof *foreign);
    cup__storage *storage = foreign ? cup__storage_struct(c) : NULL;
    if (!storage) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a tensor");
        cup__free(foreign);
        return NULL;
    }
    *foreign = (cup__foreign){options->read_only, options->release, options->user};
    *storage = (cup__storage){.context = c, .data = bytes ? memory : nothing,
                              .bytes = (size_t)bytes, .refs = 1, .foreign = foreign};
    return storage;
}

static void row_major(const cup__shape *shape, int64_t strides[CUP_MAX_DIMS])
{
    int64_t stride = 1;
    for (int d = shape->ndim; d-- > 0;) {
        strides[d] = stride;
        stride *= shape->size[d] ? shape->size[d] : 1;
    }
}

static cup_tensor *wrap(cup_context *c, const cup__shape *shape, void *memory,
                        const cup_wrap_options *options)
{
    int64_t strides[CUP_MAX_DIMS], bytes, count;
    if (cup__shape_check(&c->error, shape, &count) != CUP_OK)
        return NULL;
    row_major(shape, strides);
    if (options->strides)
        memcpy(strides, options->strides, sizeof *strides * (size_t)shape->ndim);
    if (check(c, shape, strides, memory, options->read_only, &bytes) != CUP_OK)
        return NULL;
    cup__storage *storage = storage_of(c, memory, bytes, options);
    if (!storage)
        return NULL;
    cup_tensor *t = cup__tensor_on(storage, storage->data, shape, strides);
    if (!t)
        storage->foreign->release = NULL;
    cup__storage_drop(storage);
    return t;
}

cup_tensor *cup_tensor_wrap(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                            void *memory, const cup_wrap_options *options)
{
    CUP__DEBUG_CALL(c);
    cup__shape wanted = {.dtype = dtype, .ndim = ndim};
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (ndim > 0 && !shape) {
        cup__fail(&c->error, CUP_ARGUMENT, "a tensor of %d dimensions: its shape is NULL", ndim);
        return NULL;
    }
    cup_wrap_options o;
    if (cup__options_take(&c->error, "cup_tensor_wrap", &o, sizeof o, options) != CUP_OK)
        return NULL;
    if (ndim > 0 && ndim <= CUP_MAX_DIMS)
        memcpy(wanted.size, shape, sizeof *shape * (size_t)ndim);
    return wrap(c, &wanted, memory, &o);
}

void cup__foreign_release(cup_context *c, cup__foreign *foreign)
{
    cup__foreign last = *foreign;
    cup__free(foreign);
    if (last.release)
        c->device->calls->part(c->device, last.release, last.user);
}

bool cup__tensor_read_only(const cup_tensor *t)
{
    return t->storage->foreign && t->storage->foreign->read_only;
}

/* Holds. */

typedef struct hold {
    cup_hold seen; /* first, so that a pointer to one is a pointer to the other */
    cup_context *context;
    cup__storage *storage;
} hold;

const cup_hold *cup_tensor_hold(cup_tensor *t)
{
    if (!cup__usable(t, true, "cup_tensor_hold"))
        return NULL;
    cup_context *c = t->context;
    CUP__DEBUG_CALL(c);
    if (c->error.status != CUP_OK)
        return NULL;
    cup__coming_end_of(c, &t, 1);
    hold *h = cup__calloc(1, sizeof *h);
    if (!h) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a hold");
        return NULL;
    }
    cup__device *device = c->device;
    *h = (hold){.seen = {.data = t->data, .dtype = t->dtype, .ndim = t->ndim}, .context = c,
                .storage = t->storage};
    h->seen.device = device->is_cuda ? cup__cuda_facts(cup__cuda_of(device))->index : -1;
    h->seen.read_only =
        cup__tensor_read_only(t) || (c->tape_calls && c->tape_calls->holds(t));
    memcpy(h->seen.shape, t->shape, sizeof *t->shape * (size_t)t->ndim);
    memcpy(h->seen.strides, t->stride, sizeof *t->stride * (size_t)t->ndim);
    t->storage->refs++;
    c->holds++;
    cup__context_join(c);
    return &h->seen;
}

static void let_go(hold *h)
{
    cup_context *c = h->context;
    cup__storage_drop(h->storage);
    cup__free(h);
    c->holds--;
    cup__context_leave(c);
}

void cup_hold_free(const cup_hold *held)
{
    hold *h = (hold *)(uintptr_t)held;
    if (!h)
        return;
    /* The context may end in this call, which its watching must not outlive. */
    cup_context *watched = h->context->closed ? NULL : h->context;
    CUP__DEBUG_CALL(watched);
    let_go(h);
}

void cup__hold_free_idle(const cup_hold *held)
{
    const hold *h = (const hold *)held;
    h->context->device->calls->idle(h->context->device);
    cup_hold_free(held);
}
