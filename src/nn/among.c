/* What processes that share out a model get from each other, beside sums. */
#include "comm/comm.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/halves.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

/* Heads of keys and values that are fewer than the processes that share out a model: several of
 * these have the same head. Each has an equal part of its features, as of any parameter, makes that
 * part of keys and values, and gets the rest from the others that have it. How many do: */
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

/* Tokens between the blocks of a model that processes share out, of which each has a part: sequence
 * parallel. Sums of what layers have parts of give each process its own rows, and layers that have
 * parts of all rows gather them before. */
bool cup__rows_are_shared(const cup_parameters *list)
{
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    return modes->sequence && modes->among;
}

/* [.., width] as [rows, width]. */
static cup_tensor *flat(cup_context *c, cup_tensor *x)
{
    const int64_t shape[] = {-1, x->shape[x->ndim - 1]};
    return cup_reshape(c, x, 2, shape);
}

static cup_tensor *as_part(cup_context *c, cup_tensor *rows)
{
    return rows ? cup_reshape(c, rows, 3, (int64_t[]){1, rows->shape[0], rows->shape[1]}) : NULL;
}

static cup_status check_whole(cup_parameters *list, const cup_tensor *x)
{
    cup_context *c = cup__parameters_context(list);
    char text[CUP__SHAPE_TEXT];
    int count = cup_comm_count(cup_parameters_comm(list));
    if (x->ndim == 3 && x->shape[0] * x->shape[1] % count == 0)
        return CUP_OK;
    return cup__fail(&c->error, CUP_SHAPE,
                     "tokens %s cannot be shared out equally between blocks to %d processes; take "
                     "[B,T,width] where B times T is a multiple of these, or leave "
                     "cup_parameters_sequence off",
                     cup__tensor_text(x, text), count);
}

/* Whether tokens are there and shared out; a sentence where there are none. */
static bool to_share(cup_parameters *list, const cup_tensor *x)
{
    if (list && !x)
        cup__fail(&cup__parameters_context(list)->error, CUP_ARGUMENT,
                  "the tokens between blocks are NULL");
    return list && x && cup__rows_are_shared(list);
}

cup_tensor *cup_parameters_rows_take(cup_parameters *list, cup_tensor *x)
{
    if (!to_share(list, x))
        return x;
    cup_context *c = cup__parameters_context(list);
    cup__parameters_modes *modes = cup__parameters_modes_of(list);
    if (check_whole(list, x) != CUP_OK)
        return NULL;
    modes->batch = x->shape[0];
    modes->length = x->shape[1];
    int64_t each = modes->batch * modes->length / cup_comm_count(modes->among);
    const int64_t starts[] = {cup_comm_rank(modes->among) * each, 0}, sizes[] = {each, -1};
    cup_scope_open(c);
    cup_tensor *rows = flat(c, x);
    rows = rows ? cup_slice(c, rows, starts, 2, sizes, 2) : NULL;
    return cup_scope_return(c, as_part(c, rows));
}

cup_tensor *cup_parameters_rows_join(cup_parameters *list, cup_tensor *x)
{
    if (!to_share(list, x))
        return x;
    cup_context *c = cup__parameters_context(list);
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    const int64_t whole[] = {modes->batch, modes->length, x->shape[x->ndim - 1]};
    if (modes->batch * modes->length * whole[2] != x->count * cup_comm_count(modes->among)) {
        char text[CUP__SHAPE_TEXT];
        cup__fail(&c->error, CUP_SHAPE,
                  "tokens %s are no part of the %lld x %lld that were shared out last",
                  cup__tensor_text(x, text), (long long)modes->batch, (long long)modes->length);
        return NULL;
    }
    return cup__comm_gather_again(modes->among, x, 3, whole);
}

cup_tensor *cup__rows_sum(const cup_parameters *list, cup_comm *m, cup_tensor *x)
{
    if (x && !cup__rows_are_shared(list) && cup__parameters_modes_of(list)->beside)
        return cup__comm_sum_beside(m, x);
    if (!x || !cup__rows_are_shared(list))
        return cup_comm_sum(m, x);
    cup_context *c = cup__parameters_context(list);
    cup_scope_open(c);
    cup_tensor *own = flat(c, x);
    own = own ? cup_comm_sum_scatter(m, own) : NULL;
    return cup_scope_return(c, as_part(c, own));
}

/* Tiles of the products that have fewest of them, those that give rows of x's width. */
#define TILE_ROWS 128
#define TILE_COLUMNS 256

cup_status cup__layers_wait(const cup_parameters *list, cup_tensor *x, cup_tensor *delta)
{
    const cup__parameters_modes *modes = cup__parameters_modes_of(list);
    if (!modes->among || !modes->beside || modes->half_tiles < 0 || modes->sequence ||
        modes->fp8 || modes->ring || x->ndim != 3 || x->shape[0] < 2)
        return CUP_OK;
    int64_t tiles = x->shape[0] / 2 * x->shape[1] / TILE_ROWS * x->shape[2] / TILE_COLUMNS;
    return tiles < modes->half_tiles ? CUP_OK : cup__halves_begin(x->context, x, delta);
}
