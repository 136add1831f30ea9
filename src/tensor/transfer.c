/* Tensors to and from the host's memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/away.h"
#include "tensor/coming.h"
#include "tensor/debug.h"

static cup_status check_bytes(cup_tensor *t, const void *data, size_t bytes, const char *verb)
{
    size_t wanted = (size_t)(t->count * cup_dtype_size(t->dtype));
    char text[CUP__SHAPE_TEXT];
    if (t->context->closed || !cup__usable(t, true, verb))
        return t->context->error.status;
    CUP_TRY(cup__away_check(t, verb));
    CUP_TRY(cup__coming_end_of(t->context, &t, 1));
    if (bytes != wanted)
        return cup__fail(&t->context->error, CUP_ARGUMENT,
                         "%s %s: the buffer has %zu bytes, the tensor %zu", verb,
                         cup__tensor_text(t, text), bytes, wanted);
    if (!data && bytes)
        return cup__fail(&t->context->error, CUP_ARGUMENT, "%s %s: the buffer is NULL", verb,
                         cup__tensor_text(t, text));
    return CUP_OK;
}

/* The bytes from the first to the last element of a strided view. */
static size_t span_of(const cup_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++)
        last += (t->shape[i] - 1) * t->stride[i];
    return (size_t)((last + 1) * cup_dtype_size(t->dtype));
}

/* Moves the elements of a view between its span and packed memory. */
static void move_elements(const cup_tensor *t, char *span, char *packed, bool pack)
{
    size_t size = (size_t)cup_dtype_size(t->dtype);
    for (int64_t i = 0; i < t->count; i++) {
        char *at = span + (size_t)cup__offset_of(t, i) * size;
        if (pack)
            memcpy(packed + (size_t)i * size, at, size);
        else
            memcpy(at, packed + (size_t)i * size, size);
    }
}

static cup_status through_span(cup_tensor *t, void *packed, bool pack)
{
    cup__device *device = t->context->device;
    size_t bytes = span_of(t);
    char *span = cup__malloc(bytes);
    if (!span)
        return cup__fail(&t->context->error, CUP_MEMORY, "out of host memory for a copy");
    cup_status status = device->calls->read(device, span, t->data, bytes);
    if (status == CUP_OK) {
        move_elements(t, span, packed, pack);
        if (!pack)
            status = device->calls->write(device, t->data, span, bytes);
    }
    cup__free(span);
    return status;
}

cup_status cup_tensor_read(cup_tensor *t, void *data, size_t bytes)
{
    if (!t)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(t->context);
    CUP_TRY(check_bytes(t, data, bytes, "reading"));
    if (bytes == 0)
        return CUP_OK;
    cup__device *device = t->context->device;
    if (t->contiguous)
        return device->calls->read(device, data, t->data, bytes);
    return through_span(t, data, true);
}

cup_status cup_tensor_write(cup_tensor *t, const void *data, size_t bytes)
{
    if (!t)
        return CUP_ARGUMENT;
    CUP__DEBUG_CALL(t->context);
    CUP_TRY(check_bytes(t, data, bytes, "writing"));
    if (bytes == 0)
        return CUP_OK;
    CUP_TRY(cup__tensor_change(t, "writing"));
    cup__device *device = t->context->device;
    if (t->contiguous)
        return device->calls->write(device, t->data, data, bytes);
    return through_span(t, (void *)(uintptr_t)data, false);
}

double cup_tensor_item(cup_tensor *t)
{
    if (!t)
        return NAN;
    if (!cup__usable(t, true, "cup_tensor_item"))
        return NAN;
    char text[CUP__SHAPE_TEXT];
    if (t->count != 1) {
        cup__fail(&t->context->error, CUP_SHAPE,
                  "item of %s: it has %lld elements, not one; read it with cup_tensor_read",
                  cup__tensor_text(t, text), (long long)t->count);
        return NAN;
    }
    uint64_t bytes = 0;
    if (cup_tensor_read(t, &bytes, (size_t)cup_dtype_size(t->dtype)) != CUP_OK)
        return NAN;
    cup_tensor view = {.data = &bytes, .dtype = t->dtype};
    return cup__load(&view, 0);
}

cup_tensor *cup_tensor_to(cup_context *c, cup_tensor *t)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!t) {
        cup__fail(&c->error, CUP_ARGUMENT, "the tensor to copy from another context is NULL");
        return NULL;
    }
    if (!cup__usable(t, true, "cup_tensor_to")) {
        cup__fail(&c->error, t->context->error.status, "%s", t->context->error.text);
        return NULL;
    }
    cup__shape shape = cup__shape_of(t);
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    cup_tensor *copy = cup__tensor_make(c, &shape, "copy");
    char *host = copy ? cup__malloc(bytes) : NULL;
    if (!host) {
        if (copy)
            cup__fail(&c->error, CUP_MEMORY, "out of host memory for a copy");
        return NULL;
    }
    cup_status status = cup_tensor_read(t, host, bytes);
    if (status != CUP_OK)
        cup__fail(&c->error, status, "copying from another context: %s", t->context->error.text);
    else
        status = cup_tensor_write(copy, host, bytes);
    cup__free(host);
    return status == CUP_OK ? copy : NULL;
}

#define SHOWN_OF_A_DIMENSION 6

static void print_level(const cup_tensor *t, FILE *file, int dimension, int64_t offset)
{
    if (dimension == t->ndim) {
        if (cup__dtype_is_float(t->dtype))
            fprintf(file, "%g", cup__load(t, offset));
        else if (t->dtype == CUP_I64)
            fprintf(file, "%lld", (long long)((const int64_t *)t->data)[offset]);
        else
            fprintf(file, "%lld", (long long)cup__load(t, offset));
        return;
    }
    fputc('[', file);
    int64_t size = t->shape[dimension];
    for (int64_t i = 0; i < size; i++) {
        if (i)
            fputs(dimension + 1 == t->ndim ? ", " : ",\n", file);
        if (size > SHOWN_OF_A_DIMENSION && i == SHOWN_OF_A_DIMENSION / 2) {
            fputs("..., ", file);
            i = size - SHOWN_OF_A_DIMENSION / 2;
        }
        print_level(t, file, dimension + 1, offset + i * t->stride[dimension]);
    }
    fputc(']', file);
}

cup_status cup_tensor_print(cup_tensor *t, FILE *file)
{
    if (!t)
        return CUP_ARGUMENT;
    if (!cup__usable(t, true, "cup_tensor_print"))
        return t->context->error.status;
    char text[CUP__SHAPE_TEXT];
    if (!file)
        return cup__fail(&t->context->error, CUP_ARGUMENT, "printing %s: the file is NULL",
                         cup__tensor_text(t, text));
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    char *host = cup__malloc(bytes);
    if (!host)
        return cup__fail(&t->context->error, CUP_MEMORY, "out of host memory for printing");
    cup_status status = cup_tensor_read(t, host, bytes);
    if (status == CUP_OK) {
        cup_tensor view = *t;
        view.data = host;
        int64_t stride = 1;
        for (int i = t->ndim; i-- > 0; stride *= t->shape[i])
            view.stride[i] = stride;
        fprintf(file, "%s ", cup__tensor_text(t, text));
        print_level(&view, file, 0, 0);
        fputc('\n', file);
    }
    cup__free(host);
    return status;
}
