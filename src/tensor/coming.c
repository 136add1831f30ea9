#include "tensor/coming.h"

void cup__coming_begin(cup__coming *coming, cup_tensor *from, cup_tensor *to)
{
    cup_context *c = to->context;
    coming->to = to->storage;
    coming->to->coming = coming;
    coming->from = from ? from->storage : NULL;
    if (coming->from)
        coming->from->refs++;
    coming->next = c->coming;
    c->coming = coming;
}

cup_status cup__coming_end(cup_context *c, cup__coming *coming)
{
    cup__coming **link = &c->coming;
    cup__storage *from = coming->from;
    while (*link != coming)
        link = &(*link)->next;
    *link = coming->next;
    coming->to->coming = NULL;
    cup_status status = coming->end(coming);
    cup__storage_drop(from);
    return status;
}

cup_status cup__coming_end_of(cup_context *c, cup_tensor *const *tensors, int count)
{
    for (int i = 0; tensors && i < count; i++)
        if (tensors[i] && tensors[i]->context == c && tensors[i]->storage->coming)
            CUP_TRY(cup__coming_end(c, tensors[i]->storage->coming));
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
