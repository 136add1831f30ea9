#include "prof/reference.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "cupola/grad.h"
#include "prof/kernels.h"

#define MOST_SPARE ((int64_t)256 << 20)

struct cup__references {
    cup__ahead *ahead;
    const cup__reference_call *calls;
    const cup__gpu_facts *facts; /* NULL: on a CPU */
    cup__precision precision;
    int threads; /* a new context sets them for all */
};

cup_context *cup__reference_context(cup_context *c, int threads)
{
    cup_memory use;
    if (!c) {
        c = cup__context_cpu(threads);
    } else {
        cup_tape_clear(c);
        cup__scope_pop(c);
        cup_error_clear(c);
        if (cup_memory_use(c, &use) == CUP_OK && use.reserved > MOST_SPARE)
            cup_memory_trim(c);
    }
    if (c && cup_error(c) == CUP_OK)
        cup_scope_open(c);
    return c;
}

void cup__reference_widen_codes(cup__call *call)
{
    for (int i = 0; i < CUP__MAX_OUT && call->op->codes; i++)
        if (call->result[i].dtype == CUP_F8E4M3 || call->result[i].dtype == CUP_F8E5M2)
            call->result[i].dtype = CUP_F64;
}

cup_status cup__reference_run(cup__reference *r, const cup__reference_call *k)
{
    cup_seed(r->c, CUP__CHECK_SEED);
    int count = cup__sample_inputs_filled(r->c, k->row, k->sample, k->dtype, CUP_F64,
                                          CUP__ROW_MAJOR, CUP__CHECK_SEED,
                                          (cup__filling){.alike = true}, r->in, CUP__CHECK_INPUTS);
    if (count < 0)
        return r->c->error.status;
    CUP_TRY(cup__call_begin(&r->call, r->c, k->row, r->in, count, k->sample->attributes));
    cup__reference_widen_codes(&r->call);
    r->call.saving = true;
    r->call.out_count = k->row->results_count;
    CUP_TRY(cup__call_allocate(&r->call));
    return cup__call_run(&r->call, NULL);
}

static void prepare(int64_t i, void *user)
{
    cup__references *all = user;
    const cup__reference_call *k = &all->calls[i];
    cup__kernels_for_check(all->facts, all->precision, k->row, k->sample, k->dtype);
}

static void make(int64_t i, void *room, void *user)
{
    cup__references *all = user;
    cup__reference *r = room;
    const cup__reference_call *k = &all->calls[i];
    r->c = cup__reference_context(r->c, all->threads);
    if (r->c)
        cup__reference_run(r, k);
}

static void drop(void *room)
{
    cup_context_free(((cup__reference *)room)->c);
}

cup__references *cup__references_new(const cup_context *c, const cup__reference_call *calls,
                                     int64_t count)
{
    cup__references *r = cup__calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->calls = calls;
    r->threads = cup__threads();
    r->precision = c->precision;
    if (c->device && c->device->is_cuda)
        r->facts = cup__cuda_facts(cup__cuda_of(c->device));
    r->ahead = cup__ahead_new(count, sizeof(cup__reference), r->facts ? prepare : NULL, make,
                              drop, r);
    if (r->ahead)
        return r;
    cup__free(r);
    return NULL;
}

const cup__reference *cup__references_get(cup__references *r, int64_t i)
{
    return cup__ahead_get(r->ahead, i);
}

double cup__references_waited(const cup__references *r)
{
    return cup__ahead_waited(r->ahead);
}

void cup__references_free(cup__references *r)
{
    if (r)
        cup__ahead_free(r->ahead);
    cup__free(r);
}
