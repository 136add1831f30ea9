#include "tensor/coming.h"

/* The end of what a tensor spans in memory. */
static const char *end_of(const cup_tensor *t)
{
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++)
        last += (t->shape[i] - 1) * t->stride[i];
    return (const char *)t->data + (t->count ? (last + 1) * cup_dtype_size(t->dtype) : 0);
}

void cup__coming_begin(cup__coming *coming, cup_tensor *from, cup_tensor *to)
{
    cup_context *c = to->context;
    coming->low = to->data;
    coming->high = end_of(to);
    coming->to = to->storage;
    coming->to->coming = coming;
    coming->from = from ? from->storage : NULL;
    if (coming->from)
        coming->from->refs++;
    coming->next = c->coming;
    c->coming = coming;
}

static cup__coming *to_of(const cup_context *c, const cup__storage *storage)
{
    cup__coming *one = c->coming;
    while (one && one->to != storage)
        one = one->next;
    return one;
}

void cup__coming_forget(cup_context *c, cup__coming *coming)
{
    cup__coming **link = &c->coming;
    while (*link != coming)
        link = &(*link)->next;
    *link = coming->next;
    coming->to->coming = to_of(c, coming->to);
}

cup_status cup__coming_end(cup_context *c, cup__coming *coming)
{
    cup__storage *from = coming->from;
    cup__coming_forget(c, coming);
    cup_status status = coming->end(coming);
    cup__storage_drop(from);
    return status;
}

/* What is on its way to memory that the tensor spans, or NULL. */
static cup__coming *within(const cup_context *c, const cup_tensor *t)
{
    cup__coming *one = t->storage->coming ? c->coming : NULL;
    while (one && (one->to != t->storage || one->low >= end_of(t) ||
                   (const char *)t->data >= one->high))
        one = one->next;
    return one;
}

cup_status cup__coming_end_of(cup_context *c, cup_tensor *const *tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        while (tensors[i] && tensors[i]->context == c) {
            cup__coming *one = within(c, tensors[i]);
            if (!one)
                break;
            CUP_TRY(cup__coming_end(c, one));
        }
    return CUP_OK;
}

static cup__coming *from_of(const cup_context *c, const cup_tensor *t)
{
    cup__coming *one = c->coming;
    while (one && one->from != t->storage)
        one = one->next;
    return one;
}

cup_status cup__coming_end_from(cup_context *c, cup_tensor *const *tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        for (cup__coming *one; tensors[i] && (one = from_of(c, tensors[i])) != NULL;)
            CUP_TRY(cup__coming_end(c, one));
    return CUP_OK;
}

cup_status cup__coming_end_all(cup_context *c)
{
    cup_status status = CUP_OK;
    while (c->coming) {
        cup_status one = cup__coming_end(c, c->coming);
        status = status == CUP_OK ? one : status;
    }
    return status;
}
