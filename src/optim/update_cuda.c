/* The launch of an update: parameters of one kind go into one table and one kernel. */
#include "cuda/cuda.h"
#include "optim/update.h"

#define THREADS 256
#define MOST_AT_ONCE 512 /* what a kernel's arguments have room for, which is 32764 bytes */

/* update_entry of optim/update.cuh. */
typedef struct entry {
    void *value;
    const void *gradient;
    void *master, *first, *second;
    int64_t count;
    uint32_t chunk, row;
} entry;

/* What the parameters of one launch have in common. */
typedef struct kind {
    cup_dtype dtype;
    bool master;
    int states;
} kind;

typedef struct launch {
    const cup__call *call;
    kind kind;
    bool aligned;
    int count;
    int64_t chunks;
    entry entries[MOST_AT_ONCE];
} launch;

static kind kind_of(cup_tensor *const *r)
{
    return (kind){r[CUP__VALUE]->dtype, r[CUP__MASTER] != NULL,
                  r[CUP__SECOND]  ? 2
                  : r[CUP__FIRST] ? 1
                                  : 0};
}

static bool same_kind(kind a, kind b)
{
    return a.dtype == b.dtype && a.master == b.master && a.states == b.states;
}

const char *cup__update_refuses_cuda(const cup__call *call)
{
    for (int i = 0; i < cup__update_records(call); i++) {
        cup_tensor *const *r = cup__update_record(call, i);
        cup_dtype wide = r[CUP__VALUE]->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
        for (int k = CUP__MASTER; k < CUP__RECORD; k++)
            if (r[k] && r[k]->dtype != wide)
                return "a state or master copy is not f32, or not f64 for an f64 parameter";
    }
    return call->in[0]->dtype != CUP_F32 || call->in[1]->dtype != CUP_F32
               ? "factors and settings are not f32"
               : NULL;
}

static cup_status send(launch *l)
{
    if (l->count == 0)
        return CUP_OK;
    cup__cuda *gpu = cup__cuda_of(l->call->c->device);
    int64_t most = l->count <= 64 ? 64 : l->count <= 256 ? 256 : MOST_AT_ONCE;
    int64_t wide = 16 / cup_dtype_size(l->kind.dtype);
    const cup__update *update = l->call->op->update;
    bool stochastic = cup__update_stochastic(l->call->row, l->call->attributes);
    const cup__knob knobs[] = {{"CUP_T", l->kind.dtype},
                               {"MOST", most},
                               {"MASTER", l->kind.master},
                               {"STATES", l->kind.states},
                               {"VEC", l->aligned ? wide : 1},
                               {"STOCHASTIC", stochastic && !l->kind.master &&
                                                  l->kind.dtype == CUP_BF16},
                               {"UNSCALED", update->unscaled}};
    cup__kernel *kernel = cup__kernel_of_text(gpu, update->source, update->text, update->entry,
                                              knobs, update->unscaled ? 7 : 6);
    if (!kernel)
        return l->call->c->error.status;
    /* update_attributes of optim/update.cuh. */
    struct {
        double a[CUP__UPDATE_NUMBERS];
        const void *random;
        uint32_t sequence, unused;
    } attributes = {.random = l->call->random, .sequence = l->call->sequence};
    cup__update_numbers(l->call->row, l->call->attributes, attributes.a);
    const void *factors = l->call->in[0]->data, *settings = l->call->in[1]->data;
    cup__argument table = {l->entries, (size_t)most * sizeof *l->entries};
    cup_status status = cup__launch(gpu, kernel, ((cup__grid){.x = l->chunks, .threads = THREADS}),
                                    table, CUP__ARG(l->count), CUP__ARG(factors),
                                    CUP__ARG(settings), CUP__ARG(attributes));
    l->count = 0;
    l->chunks = 0;
    l->aligned = true;
    return status;
}

static void add(launch *l, int row)
{
    cup_tensor *const *r = cup__update_record(l->call, row);
    void *data[CUP__RECORD];
    for (int k = 0; k < CUP__RECORD; k++) {
        data[k] = r[k] ? r[k]->data : NULL;
        l->aligned &= (uintptr_t)data[k] % 16 == 0;
    }
    int64_t count = cup__update_elements(l->call, row);
    l->entries[l->count++] = (entry){.value = data[CUP__VALUE],
                                     .gradient = data[CUP__GRADIENT],
                                     .master = data[CUP__MASTER],
                                     .first = data[CUP__FIRST],
                                     .second = data[CUP__SECOND],
                                     .count = count,
                                     .chunk = (uint32_t)l->chunks,
                                     .row = (uint32_t)row};
    /* CHUNK of optim/update.cuh. */
    int64_t chunk = THREADS * 16 / (int64_t)cup_dtype_size(l->kind.dtype);
    l->chunks += (count + chunk - 1) / chunk;
}

/* Whether an earlier parameter is of the kind, so that its launch has taken this one along. */
static bool is_taken(const cup__call *call, int row)
{
    kind own = kind_of(cup__update_record(call, row));
    for (int i = 0; i < row; i++)
        if (same_kind(own, kind_of(cup__update_record(call, i))))
            return true;
    return false;
}

cup_status cup__update_cuda(cup__call *call)
{
    int records = cup__update_records(call);
    launch l = {.call = call, .aligned = true};
    for (int start = 0; start < records; start++) {
        if (is_taken(call, start))
            continue;
        l.kind = kind_of(cup__update_record(call, start));
        for (int i = start; i < records; i++) {
            if (cup__update_elements(call, i) == 0 ||
                !same_kind(l.kind, kind_of(cup__update_record(call, i))))
                continue;
            add(&l, i);
            if (l.count == MOST_AT_ONCE)
                CUP_TRY(send(&l));
        }
        CUP_TRY(send(&l));
    }
    return CUP_OK;
}
