/* Heads of values of another size than those of keys: the smaller ones are filled up with zeros,
 * which changes no score and adds columns of zeros to the results. */
#include <string.h>

#include "cupola/ops.h"
#include "ops/attention/attention.h"
#include "ops/shape/copy.h"

static cup_status even(cup__attention *a, cup__attention_evened *all, cup__heads *h, int64_t size,
                       bool is_result)
{
    if (!h->tensor || size == a->size)
        return CUP_OK;
    cup_context *c = a->c;
    const int64_t before[4] = {0}, after[4] = {0, 0, 0, a->size - size};
    cup__shape shape = cup__shape_of(h->tensor);
    shape.size[3] = a->size;
    cup_tensor *made = is_result ? cup__tensor_make(c, &shape, "attention")
                                 : cup_pad(c, h->tensor, before, 4, after, 4, NULL);
    if (!made)
        return c->error.status;
    all->original[all->count] = h->tensor;
    all->is_result[all->count] = is_result;
    all->made[all->count++] = made;
    h->tensor = made;
    h->offset = 0;
    memcpy(h->stride, made->stride, sizeof h->stride);
    return CUP_OK;
}

cup_status cup__attention_even(cup__attention *a, cup__attention_evened *all)
{
    bool back = a->d_o.tensor != NULL, was = a->c->recording;
    cup__heads *of_keys[] = {&a->q, &a->k, &a->dq, &a->dk};
    cup__heads *of_values[] = {&a->v, &a->d_o, &a->o, &a->dv};
    cup_status status = CUP_OK;
    all->count = 0;
    a->c->recording = false;
    for (int i = 0; i < 4 && status == CUP_OK; i++) {
        status = even(a, all, of_keys[i], a->key_size, i > 1);
        if (status == CUP_OK)
            status = even(a, all, of_values[i], a->value_size, i == 3 || (i == 2 && !back));
    }
    a->c->recording = was;
    return status == CUP_OK ? CUP_OK : cup__attention_uneven(a, all, status);
}

cup_status cup__attention_uneven(const cup__attention *a, cup__attention_evened *all,
                                 cup_status status)
{
    bool was = a->c->recording;
    a->c->recording = false;
    for (int i = 0; i < all->count; i++) {
        cup__shape shape = cup__shape_of(all->original[i]);
        if (status == CUP_OK && all->is_result[i]) {
            cup_tensor *view = cup__tensor_view(all->made[i], &shape, all->made[i]->stride, 0);
            status = view ? cup__copy_to(a->c, all->original[i], view) : a->c->error.status;
            cup_tensor_free(view);
        }
        cup_tensor_free(all->made[i]);
    }
    a->c->recording = was;
    return status;
}
