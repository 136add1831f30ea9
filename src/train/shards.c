#include "train/shards.h"

#include <string.h>

#include "base/memory.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "train/together.h"

bool cup__loop_is_parted(const cup_loop *l)
{
    return l->among || l->pipe || l->experts;
}

cup__cut cup__portion_cut(const cup_tensor *t, const cup__portion *part, int rank, int64_t rows)
{
    cup__cut cut = cup__cut_none(t);
    if (part) {
        int64_t count = cup_comm_count(part->comm), at = 0;
        cut.whole = cup__part_whole_shape(t, part);
        cut.axis = part->axis;
        cut.count = part->sections;
        for (int i = 0; i < part->sections; i++) {
            cut.size[i] = part->section[i] / count;
            cut.begin[i] = at + rank * cut.size[i];
            at += part->section[i];
        }
    }
    if (rows)
        cut.whole.size[0] = rows;
    return cut;
}

static int64_t rows_of(const cup__portion *part)
{
    return part ? part->rows : 0;
}

/* Of what several stages have, the first one writes. */
static bool is_ours(const cup_loop *l, const char *name, bool state)
{
    if (!l->pipe)
        return true;
    const char *end = state ? strrchr(name, '.') : NULL;
    size_t length = end ? (size_t)(end - name) : strlen(name);
    const cup__catalogue *all = &l->pipeline->weights;
    for (int64_t i = 0; i < all->count; i++)
        if (!strncmp(all->list[i].name, name, length) && !all->list[i].name[length])
            return __builtin_ctzll(all->list[i].stages) == cup_comm_rank(l->pipe);
    return false;
}

/* To whom of a stage tensors fall: to who has least so far, of a part to those `each` who follow
 * each other and have it all. */
typedef struct shares {
    int64_t *load;
    int count;
} shares;

static cup_status open_shares(cup_loop *l, shares *s)
{
    s->count = cup_comm_count(l->peers);
    s->load = cup__calloc((size_t)s->count, sizeof *s->load);
    return s->load ? CUP_OK
                   : cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
}

static int fall(shares *s, int each, int64_t elements)
{
    int least = 0;
    for (int r = each; r + each <= s->count; r += each)
        if (s->load[r] < s->load[least])
            least = r;
    for (int r = least; r < least + each; r++)
        s->load[r] += elements;
    return least;
}

static cup_status no_room(cup_loop *l)
{
    return cup__fail(&l->c->error, CUP_MEMORY, "out of host memory for a checkpoint");
}

static cup_status check_name(cup_loop *l, const char *name)
{
    if (!(l->among || l->experts) || !cup__slice_is(name))
        return CUP_OK;
    return cup__fail(&l->c->error, CUP_ARGUMENT,
                     "training: the name \"%.200s\" is that of a slice in the checkpoints of "
                     "processes that share out a model; take another",
                     name);
}

static size_t bytes_of(const cup__shape *shape)
{
    size_t bytes = (size_t)cup_dtype_size(shape->dtype);
    for (int i = 0; i < shape->ndim; i++)
        bytes *= (size_t)shape->size[i];
    return bytes;
}

/* Puts the parts of all who share a tensor out together, in host memory. */
static cup_status take_parts(cup_loop *l, cup_tensor *t, const cup__portion *part, char *whole)
{
    cup_comm *m = part->comm;
    cup__shape shape = cup__shape_of(t);
    size_t bytes = bytes_of(&shape);
    char *packed = cup__malloc(bytes);
    cup_tensor *other = packed ? cup_tensor_new(l->c, t->dtype, t->ndim, t->shape) : NULL;
    cup_status status = packed ? l->c->error.status : no_room(l);
    for (int r = 0; r < cup_comm_count(m) && status == CUP_OK; r++) {
        bool own = r == cup_comm_rank(m);
        cup__cut cut = cup__portion_cut(t, part, r, part->rows);
        status = own ? CUP_OK : cup_comm_receive(m, other, r);
        if (status == CUP_OK)
            status = cup_tensor_read(own ? t : other, packed, bytes);
        if (status == CUP_OK)
            cup__cut_place(&cut, &shape, packed, whole);
    }
    cup__free(packed);
    return status;
}

/* A whole tensor in host memory, with its shape before it. */
static cup_status copy_whole(cup_loop *l, cup__shard *s, const cup_named *named,
                             const cup__portion *part)
{
    cup_tensor *t = named->tensor;
    cup__shape shape = part ? cup__part_whole_shape(t, part) : cup__shape_of(t);
    if (rows_of(part))
        shape.size[0] = part->rows;
    char *block = cup__malloc(sizeof shape.size + bytes_of(&shape));
    if (!block)
        return no_room(l);
    char *bytes = block + sizeof shape.size;
    s->blocks[s->block_count++] = block;
    memcpy(block, shape.size, sizeof shape.size);
    s->copies[s->count++] = (cup__safetensors_source){.name = named->name,
                                                      .dtype = shape.dtype,
                                                      .ndim = shape.ndim,
                                                      .shape = (const int64_t *)(void *)block,
                                                      .bytes = bytes};
    if (part)
        return take_parts(l, t, part, bytes);
    return bytes_of(&shape) ? cup_tensor_read(t, bytes, bytes_of(&shape)) : CUP_OK;
}

/* A tensor that belongs to one process is with it, and so are its parts. */
static cup_status take_weight(cup_loop *l, shares *sh, cup__shard *s, const cup_named *named,
                              int64_t i)
{
    const cup__portion *part = cup__loop_part(l, named->name, false);
    int each = part ? cup_comm_count(part->comm) : 1, rank = cup_comm_rank(l->peers);
    int64_t elements = named->tensor->count * each;
    CUP_TRY(check_name(l, named->name));
    int writer = rank / each * each + (int)(i % each);
    if (!cup__split_shared_out(named->tensor))
        writer = fall(sh, 1, elements);
    else if (cup__split_elsewhere(named->tensor))
        return CUP_OK;
    if (writer / each != rank / each)
        return CUP_OK;
    if (writer == rank)
        return copy_whole(l, s, named, part);
    return cup_comm_send(part->comm, named->tensor, writer % each);
}

static cup_status take_weights(cup_loop *l, const cup_named *named, int64_t count, cup__shard *s)
{
    shares sh;
    s->copies = cup__calloc((size_t)count + 1, sizeof *s->copies);
    s->blocks = cup__calloc((size_t)count + 1, sizeof *s->blocks);
    if (!s->copies || !s->blocks)
        return no_room(l);
    CUP_TRY(open_shares(l, &sh));
    cup_status status = CUP_OK;
    for (int64_t i = 0; i < count && status == CUP_OK; i++) {
        if (!is_ours(l, named[i].name, false))
            continue;
        cup_scope_open(l->c);
        status = take_weight(l, &sh, s, &named[i], i);
        cup_scope_close(l->c);
    }
    cup__free(sh.load);
    return status;
}

cup_status cup__shard_weights(cup_loop *l, cup__shard *out)
{
    int64_t count;
    *out = (cup__shard){0};
    if (!cup__loop_is_parted(l))
        return cup__loop_own_weights(l, l->folder != NULL, &out->named, &out->count);
    const cup_named *named = cup_parameters_named(l->list, &count);
    return named ? take_weights(l, named, count, out) : l->c->error.status;
}

/* What a part has of each of its stretches, as a view. */
static cup_status add_slices(cup_loop *l, cup__shard *s, const cup_named *state,
                             const cup__portion *part)
{
    cup_tensor *t = state->tensor;
    cup__cut cut = cup__portion_cut(t, part, cup_comm_rank(part->comm), 0);
    int64_t whole = cut.whole.size[cut.axis], at = 0;
    for (int i = 0; i < cut.count; i++) {
        cup__shape shape = cup__shape_of(t);
        shape.size[cut.axis] = cut.size[i];
        int64_t end = cut.begin[i] + cut.size[i];
        char *name = s->names[s->view_count];
        if (!cut.size[i])
            continue;
        if (!cup__slice_name(state->name, cut.axis, cut.begin[i], end, whole, name))
            return cup__fail(&l->c->error, CUP_ARGUMENT,
                             "training: the name %.200s is too long for a checkpoint", state->name);
        cup_tensor *view =
            cup_keep(cup__tensor_view(t, &shape, t->stride, at * t->stride[cut.axis]));
        if (!view)
            return l->c->error.status;
        s->views[s->view_count++] = view;
        s->named[s->count++] = (cup_named){name, view};
        at += cut.size[i];
    }
    return CUP_OK;
}

/* Of split states each has those that it keeps; of others all have all. What is of no parameter is
 * counted by all. */
static cup_status take_states(cup_loop *l, const cup_named *state, int64_t count, cup__shard *s)
{
    shares sh;
    CUP_TRY(open_shares(l, &sh));
    cup_status status = CUP_OK;
    for (int64_t i = 0; i < count && status == CUP_OK; i++) {
        const cup__portion *part = cup__loop_part(l, state[i].name, true);
        int each = part ? cup_comm_count(part->comm) : 1, rank = cup_comm_rank(l->peers);
        bool taken = strchr(state[i].name, '.') ? is_ours(l, state[i].name, true)
                                                : cup_comm_rank(l->comm) == 0;
        if (taken && strchr(state[i].name, '.') && cup__split_stage(l->optimizer) == 0)
            taken = fall(&sh, each, state[i].tensor->count) / each == rank / each;
        if (!taken)
            continue;
        status = check_name(l, state[i].name);
        if (status == CUP_OK && part)
            status = add_slices(l, s, &state[i], part);
        else if (status == CUP_OK)
            s->named[s->count++] = state[i];
    }
    cup__free(sh.load);
    return status;
}

cup_status cup__shard_states(cup_loop *l, cup__shard *out)
{
    int64_t count;
    *out = (cup__shard){0};
    if (!cup__loop_is_parted(l))
        return cup__optimizer_written(l->optimizer, l->comm, &out->named, &out->count);
    const cup_named *state = cup_optimizer_state(l->optimizer, &count);
    CUP_TRY(l->c->error.status);
    size_t most = (size_t)count * CUP__CUT_MOST + 1;
    out->named = cup__calloc(most, sizeof *out->named);
    out->views = cup__calloc(most, sizeof(cup_tensor *));
    out->names = cup__calloc(most, sizeof *out->names);
    if (!out->named || !out->views || !out->names)
        return no_room(l);
    return take_states(l, state, count, out);
}

void cup__shard_free(cup__shard *s)
{
    for (int64_t i = 0; i < s->view_count; i++)
        cup_tensor_free(s->views[i]);
    for (int64_t i = 0; i < s->block_count; i++)
        cup__free(s->blocks[i]);
    cup__free(s->named);
    cup__free(s->copies);
    cup__free(s->views);
    cup__free(s->names);
    cup__free(s->blocks);
    *s = (cup__shard){0};
}

/* Of the tensors of a list those that are here; `all` of them are in a file. */
static cup_status read_list(cup_loop *l, const cup__checkpoint *checkpoint, const char *file,
                            const cup_named *list, int64_t count, bool states, int64_t all)
{
    cup__wanted *wanted = cup__calloc((size_t)count + 1, sizeof *wanted);
    int64_t found = 0;
    if (!list || !wanted) {
        cup__free(wanted);
        return list ? no_room(l) : l->c->error.status;
    }
    for (int64_t i = 0; i < count; i++) {
        const cup__portion *part = cup__loop_part(l, list[i].name, states);
        int rank = part ? cup_comm_rank(part->comm) : 0;
        if (states || !cup__split_elsewhere(list[i].tensor))
            wanted[found++] = (cup__wanted){
                list[i].name, list[i].tensor,
                cup__portion_cut(list[i].tensor, part, rank, states ? 0 : rows_of(part))};
    }
    cup_status status = cup__checkpoint_fill_cut(l->c, checkpoint, file, wanted, found, all, false);
    cup__free(wanted);
    return status;
}

cup_status cup__shards_read(cup_loop *l, const cup__checkpoint *checkpoint)
{
    int64_t count;
    const cup_named *list = cup_parameters_named(l->list, &count);
    int64_t all = l->pipe ? l->pipeline->weights.count : count;
    CUP_TRY(read_list(l, checkpoint, CUP__MODEL_FILE, list, count, false, all));
    all = l->pipe ? l->pipeline->states.count : cup__optimizer_state_count(l->optimizer);
    list = cup_optimizer_state(l->optimizer, &count);
    return read_list(l, checkpoint, CUP__OPTIMIZER_FILE, list, count, true, all);
}
