/* Heads of keys and values that are fewer than the processes that share out a model: several of
 * these have the same head. Each has an equal part of its features, as of any parameter, makes that
 * part of keys and values, and gets the rest from the others that have it. */
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

/* How many processes have one head. */
static int64_t sharers_of(int processes, int64_t kv_heads)
{
    return kv_heads < processes ? processes / kv_heads : 1;
}

bool cup__keys_can_share(int processes, int64_t kv_heads, int64_t head_size)
{
    if (kv_heads % processes == 0)
        return true;
    int64_t sharers = sharers_of(processes, kv_heads);
    return processes % kv_heads == 0 && head_size % sharers == 0;
}

cup_status cup__keys_share(cup_parameters *list, int processes, int64_t kv_heads)
{
    cup__parameters_modes *modes = cup__parameters_modes_of(list);
    cup_context *c = cup__parameters_context(list);
    int64_t sharers = sharers_of(processes, kv_heads);
    if (sharers == 1 || cup_comm_count(modes->keys) == sharers)
        return c->error.status;
    if (modes->keys)
        return cup__fail(&c->error, CUP_UNSUPPORTED,
                         "attention under \"%s\": other layers of the list have as many heads of "
                         "keys and values as %d processes share, and this one as many as %lld do; "
                         "give all the same number",
                         cup__parameters_prefix(list), cup_comm_count(modes->keys),
                         (long long)sharers);
    modes->keys =
        cup_comm_split_new(modes->among, cup_comm_rank(modes->among) / (int)sharers);
    return c->error.status;
}

/* The columns [from, from + count). */
static cup_tensor *columns(cup_context *c, cup_tensor *x, int64_t from, int64_t count)
{
    const int64_t starts[] = {0, 0, from}, sizes[] = {-1, -1, count};
    return cup_slice(c, x, starts, 3, sizes, 3);
}

cup_tensor *cup__keys_gather(const cup_attention_layer *layer, cup_context *c, cup_tensor *qkv)
{
    cup_comm *keys = cup__parameters_modes_of(layer->layer.parameters)->keys;
    int64_t queries = (int64_t)layer->heads * layer->head_size;
    int64_t whole = queries + 2 * (int64_t)layer->kv_heads * layer->head_size;
    if (!keys || !qkv || qkv->shape[qkv->ndim - 1] == whole)
        return qkv;
    int64_t batch = qkv->shape[0], length = qkv->shape[1], count = cup_comm_count(keys);
    int64_t own = layer->head_size / count;
    const int64_t apart[] = {1, batch, length, 2, own}, order[] = {1, 2, 3, 0, 4};
    const int64_t together[] = {batch, length, 2 * (int64_t)layer->head_size};
    cup_tensor *part = cup_reshape(c, columns(c, qkv, queries, 2 * own), 5, apart);
    cup_tensor *all = cup_permute(c, cup_comm_gather(keys, part), order, 5);
    cup_tensor *both[] = {columns(c, qkv, 0, queries), cup_reshape(c, all, 3, together)};
    return both[1] ? cup_concat(c, both, 2, 2) : NULL;
}
