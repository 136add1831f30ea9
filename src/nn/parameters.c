/* Lists of parameters: their names, and what is asked of all of them or of those under a prefix. */
#include "nn/parameters.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "cupola/grad.h"
#include "tensor/tensor.h"

#define NAME_MOST 250

/* A name. Of a tensor with several the first one is its own, the others say so. */
typedef struct entry {
    char *name;
    cup_tensor *tensor; /* held, once for each name */
    cup_parameter_options options;
    cup_tensor *counted; /* the rows that count, a view, or NULL: all */
    bool shared;
    bool divided; /* this process has a part of it */
    cup__portion part;
} entry;

struct cup_parameters {
    cup_parameters *root; /* the list itself where it has no prefix */
    cup_parameters *next; /* the root's lists under prefixes */
    char *prefix;         /* "h.0." or "" */
    /* Of the root alone. */
    cup_context *context;
    cup_dtype dtype;
    entry *entries;
    size_t count, capacity;
    cup__parameters_modes modes;
    cup_named *named; /* what was asked for last */
};

static cup_status no_memory(cup_context *c)
{
    return cup__fail(&c->error, CUP_MEMORY, "out of host memory for a list of parameters");
}

cup_context *cup__parameters_context(const cup_parameters *list)
{
    return list->root->context;
}

const char *cup__parameters_prefix(const cup_parameters *list)
{
    return list->prefix;
}

cup_dtype cup__parameters_dtype(const cup_parameters *list)
{
    return list->root->dtype;
}

cup__parameters_modes *cup__parameters_modes_of(const cup_parameters *list)
{
    return &list->root->modes;
}

cup_parameters *cup_parameters_new(cup_context *c, cup_dtype dtype)
{
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!cup__dtype_learns(dtype)) {
        cup__fail(&c->error, CUP_DTYPE,
                  "parameters: numbers of %s cannot be learned; take f32, bf16, f16 or f64%s",
                  cup_dtype_name(dtype),
                  cup__dtype_is_float(dtype)
                      ? ", and cup_parameters_fp8, by which linear layers multiply in 8 bits"
                      : "");
        return NULL;
    }
    cup_parameters *list = cup__calloc(1, sizeof *list);
    char *prefix = cup__strdup("");
    if (!list || !prefix) {
        cup__free(list);
        cup__free(prefix);
        no_memory(c);
        return NULL;
    }
    *list = (cup_parameters){
        .root = list, .prefix = prefix, .context = c, .dtype = dtype, .modes.training = true};
    cup__context_join(c);
    return list;
}

void cup_parameters_free(cup_parameters *list)
{
    if (!list || list->root != list)
        return;
    for (size_t i = 0; i < list->count; i++) {
        entry *e = &list->entries[i];
        if (!e->shared && !list->context->closed) {
            cup_tensor_free(e->counted);
            if (e->tensor->scope != CUP__SCOPE_NONE)
                cup_tensor_free(e->tensor);
        }
    }
    for (size_t i = 0; i < list->count; i++) {
        cup__tensor_release(list->entries[i].tensor);
        cup__free(list->entries[i].name);
    }
    for (cup_parameters *part = list->next; part;) {
        cup_parameters *next = part->next;
        cup__free(part->prefix);
        cup__free(part);
        part = next;
    }
    cup__parameters_slopes_free(list);
    cup_comm_free(list->modes.keys);
    cup__context_leave(list->context);
    cup__free(list->entries);
    cup__free(list->named);
    cup__free(list->prefix);
    cup__free(list);
}

/* The whole of a name, to be freed; NULL and a sentence where it cannot be one. */
static char *whole_name(const cup_parameters *list, const char *name, const char *end)
{
    cup_context *c = list->root->context;
    size_t length = name ? strlen(name) : 0, all = strlen(list->prefix) + length + strlen(end);
    bool good = length > 0 && all <= NAME_MOST && name[0] != '.' && name[length - 1] != '.' &&
                !strstr(name, "..");
    for (size_t i = 0; good && i < length; i++)
        good = (unsigned char)name[i] > ' ' && name[i] != 127;
    if (!good) {
        cup__fail(&c->error, CUP_ARGUMENT,
                  "parameters: \"%s%.100s\" is no name; it needs parts without blanks, joined by "
                  "dots, and at most %d letters",
                  list->prefix, name ? name : "", NAME_MOST);
        return NULL;
    }
    char *whole = cup__malloc(all + 1);
    if (!whole)
        no_memory(c);
    else
        snprintf(whole, all + 1, "%s%s%s", list->prefix, name, end);
    return whole;
}

cup_parameters *cup_parameters_under(cup_parameters *list, const char *prefix)
{
    if (!list || !prefix || !*prefix)
        return list;
    cup_parameters *root = list->root, *part;
    if (root->context->error.status != CUP_OK)
        return NULL;
    char *whole = whole_name(list, prefix, ".");
    if (!whole)
        return NULL;
    for (part = root->next; part && strcmp(part->prefix, whole) != 0;)
        part = part->next;
    if (part) {
        cup__free(whole);
        return part;
    }
    part = cup__calloc(1, sizeof *part);
    if (!part) {
        cup__free(whole);
        no_memory(root->context);
        return NULL;
    }
    *part = (cup_parameters){.root = root, .prefix = whole, .next = root->next};
    root->next = part;
    return part;
}

const char *cup__parameters_first(const cup_parameters *list)
{
    return list->root->count ? list->root->entries[0].name : NULL;
}

/* Under its first name; NULL of a tensor that is not the list's. */
static entry *entry_of(const cup_parameters *root, const cup_tensor *t)
{
    for (size_t i = 0; t && i < root->count; i++)
        if (root->entries[i].tensor == t)
            return &root->entries[i];
    return NULL;
}

const cup__portion *cup__parameters_part(const cup_parameters *list, const cup_tensor *t)
{
    const entry *e = cup__parameters_sharers(list) ? entry_of(list->root, t) : NULL;
    return e && e->divided ? &e->part : NULL;
}

const char *cup__parameters_name(const cup_parameters *list, const cup_tensor *t)
{
    const entry *e = entry_of(list->root, t);
    return e ? e->name : NULL;
}

const cup__portion *cup__parameters_part_named(const cup_parameters *list, const char *name,
                                               size_t length)
{
    const entry *e = list->root->entries;
    const entry *end = e + (cup__parameters_sharers(list) ? list->root->count : 0);
    while (e < end && (strlen(e->name) != length || memcmp(e->name, name, length)))
        e++;
    return e < end && e->divided ? &e->part : NULL;
}

static bool is_in(const cup_parameters *list, const entry *e)
{
    return !strncmp(e->name, list->prefix, strlen(list->prefix));
}

/* Whether it is the first name that the list has for its tensor. */
static bool counts(const cup_parameters *list, const entry *e)
{
    if (!is_in(list, e))
        return false;
    for (const entry *other = list->root->entries; e->shared && other < e; other++)
        if (other->tensor == e->tensor && is_in(list, other))
            return false;
    return true;
}

static bool is_trained(const entry *e)
{
    return !e->options.buffer && e->tensor->is_parameter;
}

/* What is counted and saved of it. */
static cup_tensor *counted(const entry *e)
{
    return e->counted ? e->counted : e->tensor;
}

/* Sets the rows behind those that count to zeros. Of a part they are counted with the whole. */
static cup_status count_rows(cup_context *c, entry *e)
{
    cup_tensor *t = e->tensor;
    int64_t rows = e->options.rows;
    if (rows == 0)
        return CUP_OK;
    if (t->ndim < 1 || rows < 0 || rows > t->shape[0])
        return cup__fail(&c->error, CUP_ARGUMENT,
                         "parameter %.200s: %lld rows of %lld cannot count; 0 means all", e->name,
                         (long long)rows, (long long)(t->ndim < 1 ? 0 : t->shape[0]));
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    size_t used = t->shape[0] ? bytes / (size_t)t->shape[0] * (size_t)rows : 0;
    if (bytes > used)
        CUP_TRY(c->device->calls->fill(c->device, (char *)t->data + used, 0, bytes - used));
    cup__shape shape = cup__shape_of(t);
    if (e->divided)
        return CUP_OK;
    shape.size[0] = rows;
    e->counted = cup_keep(cup__tensor_view(t, &shape, t->stride, 0));
    return c->error.status;
}

/* Room for one more under a name that is not there yet, which it takes over. */
static entry *add_entry(cup_parameters *root, char *name)
{
    cup_context *c = root->context;
    for (size_t i = 0; i < root->count; i++)
        if (!strcmp(root->entries[i].name, name)) {
            cup__fail(&c->error, CUP_ARGUMENT,
                      "parameters: there is a \"%s\" already; names are unique in a list", name);
            cup__free(name);
            return NULL;
        }
    if (!cup__grow(&root->entries, &root->capacity, root->count, sizeof *root->entries)) {
        no_memory(c);
        cup__free(name);
        return NULL;
    }
    entry *e = &root->entries[root->count];
    *e = (entry){.name = name};
    return e;
}

/* The tensor of an entry that has its name. */
static cup_status make_tensor(cup_parameters *root, entry *e, cup_dtype dtype, int ndim,
                              const int64_t *shape)
{
    cup_context *c = root->context;
    const cup_parameter_options *o = &e->options;
    CUP_TRY(cup__part_set(c, e->name, ndim, shape, o, &root->modes, &e->part));
    e->divided = e->part.comm != NULL;
    e->tensor = cup__initial(c, e->name, dtype, ndim, shape, o);
    if (!e->tensor)
        return c->error.status;
    cup_status status = count_rows(c, e);
    if (status == CUP_OK && e->divided) {
        cup_tensor *whole = e->tensor;
        e->tensor = cup_keep(cup__part_take(c, whole, &e->part));
        cup_tensor_free(whole);
        status = c->error.status;
    }
    if (status == CUP_OK && !o->buffer && !cup_require_grad(e->tensor))
        status = c->error.status;
    if (status != CUP_OK)
        cup_tensor_free(e->tensor);
    return status;
}

cup_tensor *cup_parameter_new(cup_parameters *list, const char *name, int ndim,
                              const int64_t *shape, const cup_parameter_options *options)
{
    cup_parameter_options own;
    if (!list || list->root->context->error.status != CUP_OK)
        return NULL;
    cup_parameters *root = list->root;
    cup_context *c = root->context;
    cup_dtype dtype = root->dtype;
    if (cup__options_take(&c->error, "parameter", &own, sizeof own, options) != CUP_OK)
        return NULL;
    if (own.dtype && cup_dtype_find(own.dtype, &dtype) != CUP_OK) {
        cup__fail(&c->error, CUP_DTYPE, "parameters: \"%.100s\" is no dtype", own.dtype);
        return NULL;
    }
    char *whole = whole_name(list, name, "");
    entry *e = whole ? add_entry(root, whole) : NULL;
    if (!e)
        return NULL;
    own.dtype = NULL;
    e->options = own;
    if (make_tensor(root, e, dtype, ndim, shape) != CUP_OK) {
        cup__free(whole);
        return NULL;
    }
    cup__tensor_retain(e->tensor);
    root->count++;
    return e->tensor;
}

cup_tensor *cup_parameter_share(cup_parameters *list, const char *name, cup_tensor *tensor)
{
    if (!list || list->root->context->error.status != CUP_OK)
        return NULL;
    cup_parameters *root = list->root;
    const entry *own = entry_of(root, tensor);
    if (!own) {
        cup__fail(&root->context->error, CUP_ARGUMENT,
                  "parameters: what \"%s%.100s\" is to share is %s", list->prefix,
                  name ? name : "", tensor ? "no tensor of this list" : "NULL");
        return NULL;
    }
    const entry from = *own; /* which moves when one is added */
    char *whole = whole_name(list, name, "");
    entry *e = whole ? add_entry(root, whole) : NULL;
    if (!e)
        return NULL;
    *e = from;
    e->name = whole;
    e->shared = true;
    cup__tensor_retain(tensor);
    root->count++;
    return tensor;
}

cup_tensor *cup_parameters_find(const cup_parameters *list, const char *name)
{
    size_t length = list && name ? strlen(list->prefix) : 0;
    for (size_t i = 0; list && name && i < list->root->count; i++) {
        const entry *e = &list->root->entries[i];
        if (is_in(list, e) && !strcmp(e->name + length, name))
            return e->tensor;
    }
    return NULL;
}

int64_t cup_parameters_count(const cup_parameters *list, bool trained)
{
    int64_t sum = 0;
    for (size_t i = 0; list && i < list->root->count; i++) {
        const entry *e = &list->root->entries[i];
        if (counts(list, e) && (!trained || is_trained(e)))
            sum += counted(e)->count;
    }
    return sum;
}

const cup_named *cup_parameters_named(cup_parameters *list, int64_t *count)
{
    if (count)
        *count = 0;
    if (!list)
        return NULL;
    cup_parameters *root = list->root;
    cup_named *named = cup__calloc(root->count + 1, sizeof *named);
    int64_t used = 0;
    if (!named) {
        no_memory(root->context);
        return NULL;
    }
    for (size_t i = 0; i < root->count; i++)
        if (counts(list, &root->entries[i]))
            named[used++] = (cup_named){root->entries[i].name, counted(&root->entries[i])};
    cup__free(root->named);
    root->named = named;
    if (count)
        *count = used;
    return named;
}

static cup_status set_trained(cup_parameters *list, bool trained)
{
    if (!list)
        return CUP_ARGUMENT;
    cup_context *c = list->root->context;
    int found = 0;
    if (c->error.status != CUP_OK)
        return c->error.status;
    for (size_t i = 0; i < list->root->count; i++) {
        const entry *e = &list->root->entries[i];
        found += counts(list, e);
        if (!counts(list, e) || e->options.buffer)
            continue;
        e->tensor->is_parameter = trained;
        if (!trained)
            cup_grad_clear(e->tensor);
    }
    if (found > 0)
        return CUP_OK;
    return cup__fail(&c->error, CUP_ARGUMENT, "parameters: there is nothing under \"%s\" to %s",
                     list->prefix, trained ? "train" : "freeze");
}

cup_status cup_parameters_freeze(cup_parameters *list)
{
    return set_trained(list, false);
}

cup_status cup_parameters_unfreeze(cup_parameters *list)
{
    return set_trained(list, true);
}

bool cup__parameters_is_fp8(const cup_parameters *list, const cup_tensor *weight)
{
    const entry *e = list->root->modes.fp8 ? entry_of(list->root, weight) : NULL;
    return e && e->options.hidden && list->root->modes.training;
}

cup_optimizer *cup_optimizer_of(cup_parameters *list, const cup_optimizer_options *options)
{
    if (!list || list->root->context->error.status != CUP_OK)
        return NULL;
    const cup_parameters *root = list->root;
    cup_parameter *all = cup__calloc(root->count + 1, sizeof *all);
    int count = 0;
    if (!all) {
        no_memory(root->context);
        return NULL;
    }
    for (size_t i = 0; i < root->count; i++) {
        const entry *e = &root->entries[i];
        if (counts(list, e) && is_trained(e))
            all[count++] = (cup_parameter){.name = e->name,
                                           .tensor = e->tensor,
                                           .decay = e->options.decay,
                                           .rate = e->options.rate,
                                           .hidden = e->options.hidden};
    }
    cup_optimizer *o = cup__parts_optimizer(root, all, count, options);
    cup__free(all);
    return o;
}
