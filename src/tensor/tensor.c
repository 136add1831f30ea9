#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/away.h"
#include "tensor/coming.h"
#include "tensor/debug.h"
#include "tensor/wrap.h"

bool cup__shape_equal(const cup__shape *a, const cup__shape *b)
{
    return a->ndim == b->ndim && !memcmp(a->size, b->size, sizeof *a->size * (size_t)a->ndim);
}

const char *cup__shape_text(const cup__shape *shape, char out[CUP__SHAPE_TEXT])
{
    int used = snprintf(out, CUP__SHAPE_TEXT, "[");
    for (int i = 0; i < shape->ndim && i < CUP_MAX_DIMS; i++)
        used += snprintf(out + used, (size_t)(CUP__SHAPE_TEXT - used), "%s%lld", i ? "," : "",
                         (long long)shape->size[i]);
    snprintf(out + used, (size_t)(CUP__SHAPE_TEXT - used), "] %s", cup_dtype_name(shape->dtype));
    return out;
}

const char *cup__tensor_text(const cup_tensor *t, char out[CUP__SHAPE_TEXT])
{
    cup__shape shape = cup__shape_of(t);
    return cup__shape_text(&shape, out);
}

const char *cup_tensor_text(const cup_tensor *t, char *text, size_t bytes)
{
    char whole[CUP__SHAPE_TEXT];
    if (!text || !bytes)
        return "";
    if (t)
        cup__usable(t, true, __func__);
    snprintf(text, bytes, "%s", t ? cup__tensor_text(t, whole) : "NULL");
    return text;
}

cup_status cup__shape_check(cup__error *error, const cup__shape *shape, int64_t *count)
{
    if (shape->ndim < 0 || shape->ndim > CUP_MAX_DIMS)
        return cup__fail(error, CUP_SHAPE, "a tensor of %d dimensions: 0 to %d are possible",
                         shape->ndim, CUP_MAX_DIMS);
    int64_t size = cup_dtype_size(shape->dtype);
    if (!size)
        return cup__fail(error, CUP_DTYPE, "%d is no dtype", (int)shape->dtype);
    int64_t nonzero = size;
    *count = 1;
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->size[i] < 0)
            return cup__fail(error, CUP_SHAPE, "dimension %d has the negative size %lld", i,
                             (long long)shape->size[i]);
        *count *= shape->size[i] ? 1 : 0;
        if (shape->size[i] &&
            (!cup__multiply_i64(nonzero, shape->size[i], &nonzero) || nonzero > INT64_MAX / 4)) {
            char text[CUP__SHAPE_TEXT];
            return cup__fail(error, CUP_SHAPE, "%s is too large to address",
                             cup__shape_text(shape, text));
        }
    }
    *count *= nonzero / size;
    return CUP_OK;
}

static void list_add(cup_tensor **list, cup_tensor *t)
{
    t->previous = NULL;
    t->next = *list;
    if (*list)
        (*list)->previous = t;
    *list = t;
}

static cup_tensor **list_of(cup_tensor *t)
{
    if (t->scope == CUP__SCOPE_NONE)
        return &t->context->held;
    return t->scope < 0 ? &t->context->kept : &t->context->scopes[t->scope].tensors;
}

static void list_remove(cup_tensor *t)
{
    if (t->previous)
        t->previous->next = t->next;
    else
        *list_of(t) = t->next;
    if (t->next)
        t->next->previous = t->previous;
    t->previous = t->next = NULL;
}

static void list_move(cup_tensor *t, int scope)
{
    list_remove(t);
    t->scope = scope;
    list_add(list_of(t), t);
}

static cup_tensor *tensor_struct(cup_context *c)
{
    cup_tensor *t = c->spare;
    if (t)
        c->spare = t->next;
    else
        t = c->debug ? cup__debug_tensor(c) : cup__malloc(sizeof *t);
    if (!t) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a tensor");
        return NULL;
    }
    t->context = c;
    t->storage = NULL;
    t->data = NULL;
    t->is_parameter = false;
    t->refs = 1;
    t->output = 0;
    t->node = 0;
    t->grad = NULL;
    t->scope = (int)c->depth - 1;
    list_add(list_of(t), t);
    return t;
}

void cup__storage_drop(cup__storage *storage)
{
    if (!storage || --storage->refs > 0)
        return;
    while (storage->coming)
        cup__coming_end(storage->context, storage->coming);
    cup__device *device = storage->context->device;
    bool here = !storage->away || storage->away->here;
    cup__free(storage->away);
    if (storage->foreign) {
        cup__foreign_release(storage->context, storage->foreign);
    } else if (storage->pinned) {
        device->calls->unpin(device, storage->data, storage->bytes ? storage->bytes : 1);
    } else if (here) {
        if (storage->context->debug)
            cup__debug_poison(storage);
        device->calls->release(device, storage->data);
    }
    storage->next = storage->context->spare_storage;
    storage->context->spare_storage = storage;
}

cup_status cup__tensor_change(cup_tensor *t, const char *verb)
{
    cup_context *c = t->context;
    char text[CUP__SHAPE_TEXT];
    if (c->tape_calls && c->tape_calls->holds(t))
        return cup__fail(&c->error, CUP_STATE,
                         "%s %s: it is a recorded result, and gradients would not know of the "
                         "change; change a copy of it, or call cup_backward or cup_tape_clear "
                         "first",
                         verb, cup__tensor_text(t, text));
    if (cup__tensor_read_only(t))
        return cup__fail(&c->error, CUP_STATE,
                         "%s %s: its memory was wrapped as read-only; change a copy of it", verb,
                         cup__tensor_text(t, text));
    t->storage->version++;
    return CUP_OK;
}

void cup__tensor_retain(cup_tensor *t)
{
    t->refs++;
}

void cup__tensor_release(cup_tensor *t)
{
    if (!t || t->context->closed || --t->refs > 0)
        return;
    list_remove(t);
    cup__storage_drop(t->storage);
    if (t->grad)
        cup_tensor_free(t->grad);
    if (t->context->debug) {
        cup__debug_bury(t);
        return;
    }
    t->next = t->context->spare;
    t->context->spare = t;
}

void cup__tensor_disown(cup_tensor *t)
{
    list_move(t, CUP__SCOPE_NONE);
    cup__tensor_release(t);
}

cup__storage *cup__storage_struct(cup_context *c)
{
    cup__storage *storage = c->spare_storage;
    if (!storage)
        return cup__malloc(sizeof *storage);
    c->spare_storage = storage->next;
    return storage;
}

static cup__storage *storage_make(cup_context *c, size_t bytes, const char *tag, bool pinned)
{
    const cup__device_calls *calls = c->device->calls;
    cup__storage *storage = cup__storage_struct(c);
    if (!storage) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for a tensor");
        return NULL;
    }
    *storage = (cup__storage){.context = c, .bytes = bytes, .refs = 1, .pinned = pinned};
    if ((pinned ? calls->pin : calls->allocate)(c->device, bytes ? bytes : 1, tag,
                                                &storage->data) != CUP_OK) {
        storage->next = c->spare_storage;
        c->spare_storage = storage;
        return NULL;
    }
    return storage;
}

static cup_tensor *make(cup_context *c, const cup__shape *shape, const char *tag, bool pinned)
{
    int64_t count;
    if (!c || c->error.status != CUP_OK || cup__shape_check(&c->error, shape, &count) != CUP_OK)
        return NULL;
    cup_tensor *t = tensor_struct(c);
    if (!t)
        return NULL;
    t->storage = storage_make(c, (size_t)(count * cup_dtype_size(shape->dtype)), tag, pinned);
    if (!t->storage) {
        cup__tensor_release(t);
        return NULL;
    }
    t->data = t->storage->data;
    t->offset = 0;
    t->dtype = shape->dtype;
    t->ndim = shape->ndim;
    t->count = count;
    t->contiguous = true;
    int64_t stride = 1;
    for (int i = shape->ndim; i-- > 0;) {
        t->shape[i] = shape->size[i];
        t->stride[i] = stride;
        stride *= shape->size[i] ? shape->size[i] : 1;
    }
    return t;
}

cup_tensor *cup__tensor_make(cup_context *c, const cup__shape *shape, const char *tag)
{
    return make(c, shape, tag, false);
}

cup_tensor *cup__tensor_pinned(cup_context *c, const cup__shape *shape, const char *tag)
{
    return make(c, shape, tag, true);
}

static bool is_contiguous(const cup_tensor *t)
{
    int64_t stride = 1;
    for (int i = t->ndim; i-- > 0;) {
        if (t->shape[i] == 0)
            return true;
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return false;
        stride *= t->shape[i];
    }
    return true;
}

cup_tensor *cup__tensor_on(cup__storage *storage, void *data, const cup__shape *shape,
                           const int64_t *stride)
{
    cup_context *c = storage->context;
    int64_t count;
    if (c->error.status != CUP_OK || cup__shape_check(&c->error, shape, &count) != CUP_OK)
        return NULL;
    cup_tensor *t = tensor_struct(c);
    if (!t)
        return NULL;
    t->storage = storage;
    t->storage->refs++;
    t->data = data;
    t->offset = (char *)data - (char *)storage->data;
    t->dtype = shape->dtype;
    t->ndim = shape->ndim;
    t->count = count;
    memcpy(t->shape, shape->size, sizeof t->shape);
    for (int i = 0; i < shape->ndim; i++)
        t->stride[i] = stride[i];
    t->contiguous = is_contiguous(t);
    return t;
}

cup_tensor *cup__tensor_view(cup_tensor *base, const cup__shape *shape, const int64_t *stride,
                             int64_t offset)
{
    char *data = (char *)base->storage->data + base->offset + offset * cup_dtype_size(base->dtype);
    return cup__tensor_on(base->storage, data, shape, stride);
}

void cup__tensor_order(cup_tensor *t, const char *order)
{
    int64_t stride = 1;
    for (int i = t->ndim; i-- > 0;) {
        int d = order[i] - '0';
        t->stride[d] = stride;
        stride *= t->shape[d] ? t->shape[d] : 1;
    }
    t->contiguous = is_contiguous(t);
}

bool cup__tensor_overlap(const cup_tensor *s, const cup_tensor *t)
{
    const cup_tensor *both[] = {s, t};
    const char *end[2];
    for (int i = 0; i < 2; i++) {
        int64_t last = 0;
        for (int d = 0; d < both[i]->ndim; d++)
            last += (both[i]->shape[d] - 1) * both[i]->stride[d];
        end[i] = (const char *)both[i]->data + (last + 1) * cup_dtype_size(both[i]->dtype);
    }
    return s->storage && t->storage && s->count && t->count &&
           (const char *)s->data < end[1] && (const char *)t->data < end[0];
}

cup_tensor *cup_tensor_new(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape)
{
    CUP__DEBUG_CALL(c);
    cup__shape wanted = {.dtype = dtype, .ndim = ndim};
    if (c && ndim > 0 && !shape) {
        cup__fail(&c->error, CUP_ARGUMENT, "a tensor of %d dimensions: its shape is NULL", ndim);
        return NULL;
    }
    if (ndim > 0 && ndim <= CUP_MAX_DIMS && shape)
        memcpy(wanted.size, shape, sizeof *shape * (size_t)ndim);
    return cup__tensor_make(c, &wanted, "tensor");
}

cup_tensor *cup_tensor_from(cup_context *c, cup_dtype dtype, int ndim, const int64_t *shape,
                            const void *data)
{
    CUP__DEBUG_CALL(c);
    cup_tensor *t = cup_tensor_new(c, dtype, ndim, shape);
    if (!t || cup_tensor_write(t, data, (size_t)(t->count * cup_dtype_size(dtype))) != CUP_OK)
        return NULL;
    return t;
}

cup_tensor *cup_keep(cup_tensor *t)
{
    if (!cup__usable(t, true, "cup_keep"))
        return NULL;
    CUP__DEBUG_CALL(t->context);
    if (t->scope < 0)
        return t;
    list_move(t, -1);
    return t;
}

void cup__tensor_hand_out(cup_tensor *t)
{
    cup_context *c = t ? t->context : NULL;
    if (!t || c->unopened || c->depth < 2 || t->scope != (int)c->depth - 1)
        return;
    list_move(t, (int)c->depth - 2);
}

void cup__tensor_adopt(cup_tensor *t)
{
    list_move(t, (int)t->context->depth - 1);
}

void cup_tensor_free(cup_tensor *t)
{
    if (!t || t->context->closed)
        return;
    CUP__DEBUG_CALL(t->context);
    if (t->context->debug) {
        if (!cup__usable(t, true, "cup_tensor_free"))
            return;
        cup__debug_gone(t, "cup_tensor_free");
    }
    cup__tensor_disown(t);
}

cup_context *cup_tensor_context(const cup_tensor *t)
{
    return t ? t->context : NULL;
}

cup_dtype cup_tensor_dtype(const cup_tensor *t)
{
    return cup__usable(t, false, "cup_tensor_dtype") ? t->dtype : CUP_F32;
}

int cup_tensor_ndim(const cup_tensor *t)
{
    return cup__usable(t, false, "cup_tensor_ndim") ? t->ndim : 0;
}

static bool find_dimension(const cup_tensor *t, int *dimension)
{
    if (!cup__usable(t, false, "the size of a dimension"))
        return false;
    if (*dimension < 0)
        *dimension += t->ndim;
    return *dimension >= 0 && *dimension < t->ndim;
}

int64_t cup_tensor_size(const cup_tensor *t, int dimension)
{
    return find_dimension(t, &dimension) ? t->shape[dimension] : 0;
}

int64_t cup_tensor_stride(const cup_tensor *t, int dimension)
{
    return find_dimension(t, &dimension) ? t->stride[dimension] : 0;
}

int64_t cup_tensor_count(const cup_tensor *t)
{
    return cup__usable(t, false, "cup_tensor_count") ? t->count : 0;
}

bool cup_tensor_is_contiguous(const cup_tensor *t)
{
    return cup__usable(t, false, "cup_tensor_is_contiguous") && t->contiguous;
}

void *cup_tensor_data(cup_tensor *t)
{
    if (!cup__usable(t, true, "cup_tensor_data"))
        return NULL;
    cup__coming_end_of(t->context, &t, 1);
    return t->data;
}

int64_t cup__offset_within(const cup_tensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int i = t->ndim; i-- > 0;) {
        offset += index % t->shape[i] * t->stride[i];
        index /= t->shape[i];
    }
    return offset;
}

double cup__element(const cup_tensor *t, int64_t index)
{
    return cup__load(t, cup__offset_of(t, index));
}
