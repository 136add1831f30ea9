/* Layernorm and its kin on the GPU, of rows too long for the registers of a block: knobs and launch
 * of layernorm_spread.cu and, on Hopper and later, layernorm_spread_sm90.cu. */
#include "base/divide.h"
#include "dispatch/attributes.h"
#include "ops/norm/layernorm.h"
#include "dispatch/rows.h"

#define THREADS 256
#define BLOCKS 4 /* that run at once on a multiprocessor */
#define SLOTS 3  /* parts that a block has in shared memory */
#define SPARE 2048 /* shared memory of a block for other things */

typedef struct spread_plan {
    int vec, pieces;
    bool shift, ring; /* ring: through shared memory */
    int64_t chunks, grid;
} spread_plan;

static int64_t shared_of(const cup__layernorm *n, const spread_plan *p)
{
    return (int64_t)SLOTS * (n->residual ? 2 : 1) * THREADS * 16 * p->pieces;
}

static const char *plan(const cup__call *call, const cup__layernorm *n, spread_plan *p)
{
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    if (n->x->dtype == CUP_F64)
        return "its notes are single precision";
    if (n->width > INT32_MAX)
        return "a row has more than 2^31 - 1 elements";
    if (cup__layernorm_fits(n))
        return "a row fits the registers of a block";
    p->vec = cup__layernorm_vec(n, &p->shift);
    int bytes = p->vec * (int)cup_dtype_size(n->x->dtype), least = bytes == 16 ? 1 : 4;
    p->pieces = bytes < 16 ? 16 : n->residual ? 2 : 4;
    /* Blocks wait for each other: all must find room at a time. */
    p->ring = bytes == 16 && facts->major >= 9 &&
              BLOCKS * (shared_of(n, p) + SPARE) <= facts->shared_per_block;
    p->grid = (int64_t)BLOCKS * facts->multiprocessors;
    int64_t span = (int64_t)THREADS * p->vec, width = n->width + (p->shift ? p->vec - 1 : 0);
    while (p->pieces > least && n->rows * divide_up(width, span * p->pieces) < p->grid &&
           divide_up(width, span * p->pieces / 2) <= p->grid)
        p->pieces /= 2;
    p->chunks = divide_up(width, span * p->pieces);
    return p->chunks > p->grid ? "a row has more parts than blocks run at once" : NULL;
}

const char *cup__layernorm_spread_refuses(const cup__call *call)
{
    cup__layernorm n = cup__layernorm_of(call);
    spread_plan p;
    return plan(call, &n, &p);
}

static cup_status launch(cup__call *call, const cup__layernorm *n, const spread_plan *p,
                         cup_tensor *notes)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup_dtype param = n->gamma ? n->gamma->dtype : n->beta ? n->beta->dtype : n->x->dtype;
    const cup__knob knobs[] = {{"CUP_T", n->x->dtype},       {"PARAM", param},
                               {"CENTRED", n->centred},      {"ADD", n->residual != NULL},
                               {"VEC", p->vec},              {"GROUP", THREADS},
                               {"PIECES", p->pieces},        {"THREADS", THREADS},
                               {"BLOCKS", BLOCKS},           {"SHIFT", p->shift},
                               {"HOLD", p->ring && cup__layernorm_holds(n)},
                               {"SLOTS", SLOTS}};
    const char *file = p->ring ? "layernorm_spread_sm90.cu" : "layernorm_spread.cu";
    const char *entry = p->ring ? "layernorm_spread_sm90" : "layernorm_spread";
    cup__kernel *kernel = cup__kernel_get(gpu, file, entry, knobs, p->ring ? 12 : 11);
    if (!kernel)
        return call->c->error.status;
    int64_t tasks = n->rows * p->chunks;
    cup__grid grid = {.x = tasks < p->grid ? tasks : p->grid, .threads = THREADS};
    if (p->ring)
        grid.shared = (int)shared_of(n, p);
    int width = (int)n->width, chunks = (int)p->chunks;
    float eps = (float)n->eps;
    void *residual = cup__data_of(n->residual), *gamma = cup__data_of(n->gamma);
    void *beta = cup__data_of(n->beta), *sum = cup__data_of(n->sum);
    void *mean = cup__data_of(n->mean), *rstd = cup__data_of(n->rstd);
    CUP_TRY(call->c->device->calls->fill(call->c->device, notes->data, 0, (size_t)(tasks * 16)));
    return cup__launch(gpu, kernel, grid, CUP__ARG(n->x->data), CUP__ARG(residual),
                       CUP__ARG(gamma), CUP__ARG(beta), CUP__ARG(n->y->data), CUP__ARG(sum),
                       CUP__ARG(mean), CUP__ARG(rstd), CUP__ARG(notes->data), CUP__ARG(n->rows),
                       CUP__ARG(width), CUP__ARG(chunks), CUP__ARG(eps));
}

cup_status cup__layernorm_spread(cup__call *call)
{
    cup__layernorm n = cup__layernorm_of(call);
    spread_plan p;
    plan(call, &n, &p);
    cup__shape shape = {CUP_I64, 2, {n.rows * p.chunks, 2}};
    cup_tensor *notes = cup__tensor_make(call->c, &shape, "moments of parts");
    if (!notes)
        return call->c->error.status;
    cup_status status = launch(call, &n, &p, notes);
    cup_tensor_free(notes);
    return status;
}
