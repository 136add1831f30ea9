/* Parameters of which each process has a part. */
#include "base/memory.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"

static cup_status check_sections(cup_context *c, const char *name, int64_t size,
                                 const cup__portion *part, const char *what)
{
    int64_t sum = 0;
    for (int i = 0; i < part->sections; i++) {
        int64_t section = part->section[i];
        sum += section;
        if (section < 0 || section % cup_comm_count(part->comm))
            return cup__fail(&c->error, CUP_ARGUMENT,
                             "parameter %.200s: %lld %s cannot be shared out equally to %d "
                             "processes; take a number of them that divides it",
                             name, (long long)section, what, cup_comm_count(part->comm));
    }
    if (sum == size)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT,
                     "parameter %.200s: its sections are %lld %s together, and it has %lld", name,
                     (long long)sum, what, (long long)size);
}

static cup_status set_sections(cup_context *c, const char *name, int ndim, const int64_t *shape,
                               const cup_parameter_options *o, cup__portion *out)
{
    bool last = ndim > 1 && out->axis == ndim - 1;
    for (; out->sections < 3 && o->sections[out->sections]; out->sections++)
        out->section[out->sections] = o->sections[out->sections];
    if (!out->sections)
        out->section[out->sections++] = shape[out->axis];
    return check_sections(c, name, shape[out->axis], out, last ? "columns" : "rows");
}

/* Whole experts are shared out along the first dimension, which is one section. */
cup_status cup__part_set(cup_context *c, const char *name, int ndim, const int64_t *shape,
                         const cup_parameter_options *o, const cup__parameters_modes *modes,
                         cup__portion *out)
{
    static const int axes[] = {[CUP_PART_COLUMNS] = 1,
                               [CUP_PART_EXPERTS_ROWS] = 1,
                               [CUP_PART_EXPERTS_COLUMNS] = 2};
    static const int parts = (int)(sizeof axes / sizeof *axes);
    int part = (int)o->part;
    bool matrices = part == CUP_PART_EXPERTS_ROWS || part == CUP_PART_EXPERTS_COLUMNS;
    bool experts = part == CUP_PART_EXPERTS || (matrices && modes->experts);
    *out = (cup__portion){.rows = o->rows};
    if (part != CUP_PART_WHOLE)
        out->comm = experts ? modes->experts : modes->among;
    if (!out->comm)
        return CUP_OK;
    if (part > 0 && part < parts)
        out->axis = experts ? 0 : axes[part];
    if (part < 0 || part >= parts || ndim <= out->axis || ndim >= CUP_MAX_DIMS || !shape)
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "parameter %.200s: there is no part %d of %d dimensions", name, part,
                         ndim);
    if (!(matrices && experts))
        return set_sections(c, name, ndim, shape, o, out);
    out->section[out->sections++] = shape[0];
    return check_sections(c, name, shape[0], out, "experts");
}

cup__shape cup__part_whole_shape(const cup_tensor *t, const cup__portion *part)
{
    cup__shape shape = cup__shape_of(t);
    shape.size[part->axis] *= cup_comm_count(part->comm);
    return shape;
}

/* The places [from, from + size) along the axis. */
static cup_tensor *stretch(cup_context *c, cup_tensor *t, int axis, int64_t from, int64_t size)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    for (int i = 0; t && i < t->ndim; i++)
        sizes[i] = -1;
    starts[axis] = from;
    sizes[axis] = size;
    return t ? cup_slice(c, t, starts, t->ndim, sizes, t->ndim) : NULL;
}

cup_tensor *cup__part_take(cup_context *c, cup_tensor *whole, const cup__portion *part)
{
    int64_t count = cup_comm_count(part->comm), rank = cup_comm_rank(part->comm), at = 0;
    cup_tensor *own[3];
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    for (int i = 0; i < part->sections; i++) {
        int64_t size = part->section[i] / count;
        own[i] = stretch(c, whole, part->axis, at + rank * size, size);
        at += part->section[i];
    }
    cup_tensor *t = cup_scope_return(c, cup_concat(c, own, part->sections, part->axis));
    cup_grad_recording(c, was);
    return t;
}

/* Section i of the whole, from what all have, [processes, ..]. */
static cup_tensor *section(cup_context *c, cup_tensor *all, const cup__portion *part, int i)
{
    int64_t count = cup_comm_count(part->comm), at = 0, size = part->section[i] / count;
    cup_tensor *whole = NULL;
    for (int k = 0; k < i; k++)
        at += part->section[k] / count;
    for (int64_t r = 0; all && r < count; r++) {
        cup_tensor *one = stretch(c, all, 0, r, 1);
        one = stretch(c, one, part->axis + 1, at, size);
        cup_tensor *pair[] = {whole, one};
        whole = r ? cup_concat(c, pair, 2, part->axis + 1) : one;
    }
    return whole;
}

cup_tensor *cup__part_gather(cup_context *c, cup_tensor *t, const cup__portion *part)
{
    int64_t shape[CUP_MAX_DIMS] = {cup_comm_count(part->comm)};
    cup__shape whole = cup__part_whole_shape(t, part);
    cup_tensor *own[3];
    bool was = cup_grad_recording(c, false);
    cup_scope_open(c);
    for (int i = 0; i < t->ndim; i++)
        shape[i + 1] = t->shape[i];
    cup_tensor *all = cup_tensor_new(c, t->dtype, t->ndim + 1, shape), *y = NULL;
    if (all && cup_comm_all_gather(part->comm, t, all) == CUP_OK) {
        for (int i = 0; i < part->sections; i++)
            own[i] = section(c, all, part, i);
        y = cup_concat(c, own, part->sections, part->axis + 1);
        y = y ? cup_reshape(c, y, whole.ndim, whole.size) : NULL;
    }
    y = cup_scope_return(c, y);
    cup_grad_recording(c, was);
    return y;
}

/* The first of those who have all together, who have all parts of something, count it. */
static cup_status count_parts(const cup_parameters *list, cup_optimizer *o,
                              const cup__portion *const *part, int count)
{
    cup_comm *m = cup__parameters_sharers(list);
    bool *counted = cup__calloc((size_t)count + 1, sizeof *counted);
    cup_status status = CUP_OK;
    if (!counted)
        return cup__fail(&o->c->error, CUP_MEMORY, "out of host memory for an optimizer");
    for (int i = 0; i < count && status == CUP_OK; i++) {
        status = part[i] ? cup__optimizer_divide(o, i, part[i]->comm) : CUP_OK;
        counted[i] = cup_comm_rank(m) < cup_comm_count(part[i] ? part[i]->comm : NULL);
    }
    if (status == CUP_OK)
        return cup__optimizer_count(o, m, counted);
    cup__free(counted);
    return status;
}

cup_optimizer *cup__parts_optimizer(const cup_parameters *list, const cup_parameter *parameters,
                                    int count, const cup_optimizer_options *options)
{
    cup_context *c = cup__parameters_context(list);
    if (!cup__parameters_sharers(list))
        return cup_optimizer_new(c, parameters, count, options);
    const cup__portion **part = cup__calloc((size_t)count + 1, sizeof(cup__portion *));
    if (!part) {
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for an optimizer");
        return NULL;
    }
    for (int i = 0; i < count; i++)
        part[i] = cup__parameters_part(list, parameters[i].tensor);
    cup_optimizer *o = cup__optimizer_new(c, parameters, count, options, part);
    cup_status status = o ? count_parts(list, o, part, count) : CUP_OK;
    cup__free(part);
    if (status == CUP_OK)
        return o;
    cup_optimizer_free(o);
    return NULL;
}
