/* By what weights are known again. */
#include "base/memory.h"
#include "train/together.h"

cup_status cup__tensor_hash_add(cup__tensor_hash *h, cup_tensor *t)
{
    size_t size = (size_t)t->count * (size_t)cup_dtype_size(t->dtype);
    if (!h->begun)
        cup__hash_begin(&h->hash);
    h->begun = true;
    if (size > h->room) {
        cup__free(h->bytes);
        h->bytes = cup__malloc(size);
        h->room = h->bytes ? size : 0;
    }
    if (!h->bytes && size)
        return cup__fail(&t->context->error, CUP_MEMORY,
                         "out of host memory for a tensor to be compared");
    CUP_TRY(size ? cup_tensor_read(t, h->bytes, size) : CUP_OK);
    cup__hash_add(&h->hash, h->bytes, size);
    return CUP_OK;
}

uint64_t cup__tensor_hash_end(cup__tensor_hash *h)
{
    char text[CUP__HASH_TEXT];
    if (!h->begun)
        cup__hash_begin(&h->hash);
    cup__hash_text(&h->hash, text);
    cup__free(h->bytes);
    *h = (cup__tensor_hash){.begun = false};
    return cup__hash_bytes(text, CUP__HASH_TEXT - 1);
}

cup_status cup__tensors_hash(cup_context *c, cup_tensor *const *tensors, int64_t count,
                             uint64_t *out)
{
    cup__tensor_hash hash = {.begun = false};
    cup_status status = CUP_OK;
    for (int64_t i = 0; i < count && status == CUP_OK; i++)
        status = cup__tensor_hash_add(&hash, tensors[i]);
    *out = cup__tensor_hash_end(&hash);
    return status == CUP_OK ? c->error.status : status;
}
