/* The launch of an update: parameters of one kind go into one table and one kernel. What the kernel
 * would read of the host's memory comes first, in pieces, and goes back when it is changed: threads
 * that read it themselves reach a tenth of what the bus carries. */
#include "cuda/cuda.h"
#include "cuda/ferry.h"
#include "optim/codes.h"
#include "optim/update.h"
#include "tensor/tensor.h"

#define THREADS 256
#define MOST_AT_ONCE 512 /* what a kernel's arguments have room for, which is 32764 bytes */

#define ALIGN 256
#define DIRECT_MOST 16384 /* elements of a parameter that is changed in the host's memory */
#define PLACE_BYTES ((int64_t)16 << 20)
#define COPIES_MOST (PLACE_BYTES / (DIRECT_MOST * 4) + 2 * CUP__RECORD)

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
            if (r[k] && r[k]->dtype != wide && (k < CUP__FIRST || !call->op->update->coded))
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

/* CHUNK of optim/update.cuh, and CODED_CHUNK of optim/update_coded.cuh. */
static int64_t chunk_of(const launch *l)
{
    return l->call->op->update->coded ? THREADS * 8
                                      : THREADS * 16 / (int64_t)cup_dtype_size(l->kind.dtype);
}

/* The elements [from, to) of a parameter, whose tensors lie at `data`, as if all of each did. Where
 * they do not begin with the parameter, they are the launch's first: its chunks are then counted
 * from before it, round the end of their numbers. */
static void add_part(launch *l, int row, void *const data[CUP__RECORD], int64_t from, int64_t to)
{
    int64_t chunk = chunk_of(l);
    for (int k = 0; k < CUP__RECORD; k++)
        l->aligned &= (uintptr_t)data[k] % 16 == 0;
    l->entries[l->count++] = (entry){.value = data[CUP__VALUE],
                                     .gradient = data[CUP__GRADIENT],
                                     .master = data[CUP__MASTER],
                                     .first = data[CUP__FIRST],
                                     .second = data[CUP__SECOND],
                                     .count = to,
                                     .chunk = (uint32_t)l->chunks - (uint32_t)(from / chunk),
                                     .row = (uint32_t)row};
    l->chunks += (to - from + chunk - 1) / chunk;
}

static void add(launch *l, int row)
{
    cup_tensor *const *r = cup__update_record(l->call, row);
    void *data[CUP__RECORD];
    for (int k = 0; k < CUP__RECORD; k++)
        data[k] = r[k] ? r[k]->data : NULL;
    add_part(l, row, data, 0, cup__update_elements(l->call, row));
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

static bool is_coded(const cup__call *call, int k)
{
    return k >= CUP__FIRST && call->op->update->coded;
}

/* Bytes of the first elements of a tensor of a record; rows of codes are whole. */
static int64_t bytes_of(const cup__call *call, int k, const cup_tensor *t, int64_t count)
{
    return is_coded(call, k) ? (count + CUP__CODES - 1) / CUP__CODES * CUP__CODES_ROW
                             : count * cup_dtype_size(t->dtype);
}

/* Bytes that an element has in the host's memory, at most. */
static int64_t hosted_bytes(const cup__call *call, int row)
{
    cup_tensor *const *r = cup__update_record(call, row);
    int64_t bytes = 0;
    for (int k = 0; k < CUP__RECORD; k++)
        if (r[k] && r[k]->storage->pinned)
            bytes += is_coded(call, k) ? 2 : cup_dtype_size(r[k]->dtype);
    return bytes;
}

/* Small parameters are changed where they are, by one launch: copies would take longer. */
static bool is_ferried(const cup__call *call, int row)
{
    return cup__update_elements(call, row) > DIRECT_MOST && hosted_bytes(call, row) > 0;
}

/* What is brought into one place, changed by one launch, and taken back. */
typedef struct ferried {
    launch *l;
    cup__cuda *gpu;
    char *room; /* of all places */
    int64_t bytes, used; /* of a place */
    int place, count, back_count;
    cup__ferry_copy copies[COPIES_MOST], back[COPIES_MOST];
} ferried;

static cup_status carry(ferried *f)
{
    if (f->count == 0)
        return CUP_OK;
    CUP_TRY(cup__ferry_bring(f->gpu, f->place, f->copies, f->count));
    CUP_TRY(send(f->l));
    CUP_TRY(cup__ferry_return(f->gpu, f->place, f->back, f->back_count));
    f->place = (f->place + 1) % CUP__FERRY_PLACES;
    f->used = 0;
    f->count = f->back_count = 0;
    return CUP_OK;
}

/* The elements [from, to), which have room in the place. */
static void load_part(ferried *f, int row, int64_t from, int64_t to)
{
    cup_tensor *const *r = cup__update_record(f->l->call, row);
    void *data[CUP__RECORD];
    for (int k = 0; k < CUP__RECORD; k++) {
        data[k] = r[k] ? r[k]->data : NULL;
        if (!r[k] || !r[k]->storage->pinned)
            continue;
        int64_t before = bytes_of(f->l->call, k, r[k], from);
        int64_t bytes = bytes_of(f->l->call, k, r[k], to) - before;
        char *here = f->room + f->place * f->bytes + f->used;
        cup__ferry_copy copy = {here, (char *)r[k]->data + before, (size_t)bytes};
        f->copies[f->count++] = copy;
        if (k != CUP__GRADIENT)
            f->back[f->back_count++] = copy;
        data[k] = (void *)((uintptr_t)here - (uintptr_t)before);
        f->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    add_part(f->l, row, data, from, to);
}

static cup_status load(ferried *f, int row)
{
    int64_t count = cup__update_elements(f->l->call, row), chunk = chunk_of(f->l);
    int64_t each = hosted_bytes(f->l->call, row);
    for (int64_t from = 0, to; from < count; from = to) {
        int64_t fits = (f->bytes - f->used - CUP__RECORD * ALIGN) / each / chunk * chunk;
        if (from > 0 || fits < chunk || f->count > COPIES_MOST - CUP__RECORD) {
            CUP_TRY(carry(f));
            fits = (f->bytes - CUP__RECORD * ALIGN) / each / chunk * chunk;
        }
        to = count - from < fits ? count : from + fits;
        load_part(f, row, from, to);
    }
    return CUP_OK;
}

/* The parameters of the launch's kind whose states come and go. */
static cup_status carry_all(ferried *f)
{
    for (int i = 0; i < cup__update_records(f->l->call); i++)
        if (is_ferried(f->l->call, i) &&
            same_kind(f->l->kind, kind_of(cup__update_record(f->l->call, i))))
            CUP_TRY(load(f, i));
    return carry(f);
}

/* Of no more than is to be brought, as far as that is known. */
static int64_t bytes_of_place(const cup__call *call)
{
    int64_t bytes = 0;
    for (int i = 0; i < cup__update_records(call) && bytes < PLACE_BYTES; i++)
        if (is_ferried(call, i))
            bytes += cup__update_elements(call, i) * hosted_bytes(call, i) +
                     2 * CUP__RECORD * ALIGN;
    return bytes < PLACE_BYTES ? bytes : PLACE_BYTES;
}

/* All of the launch's kind that lies where the kernel finds it. */
static cup_status send_all(launch *l)
{
    for (int i = 0; i < cup__update_records(l->call); i++) {
        if (cup__update_elements(l->call, i) == 0 || is_ferried(l->call, i) ||
            !same_kind(l->kind, kind_of(cup__update_record(l->call, i))))
            continue;
        add(l, i);
        if (l->count == MOST_AT_ONCE)
            CUP_TRY(send(l));
    }
    return send(l);
}

static cup_status update(cup__call *call, ferried *f)
{
    launch l = {.call = call, .aligned = true};
    for (int start = 0; start < cup__update_records(call); start++) {
        if (is_taken(call, start))
            continue;
        l.kind = kind_of(cup__update_record(call, start));
        CUP_TRY(send_all(&l));
        f->l = &l;
        if (f->bytes)
            CUP_TRY(carry_all(f));
    }
    return CUP_OK;
}

cup_status cup__update_cuda(cup__call *call)
{
    cup__device *device = call->c->device;
    ferried f = {.gpu = cup__cuda_of(device), .bytes = bytes_of_place(call)};
    void *room = NULL;
    if (!f.bytes)
        return update(call, &f);
    CUP_TRY(device->calls->allocate(device, (size_t)(CUP__FERRY_PLACES * f.bytes),
                                    "states on their way", &room));
    f.room = room;
    cup_status status = cup__ferry_begin(f.gpu);
    if (status == CUP_OK)
        status = update(call, &f);
    if (status == CUP_OK)
        status = cup__ferry_end(f.gpu);
    device->calls->release(device, room);
    return status;
}
