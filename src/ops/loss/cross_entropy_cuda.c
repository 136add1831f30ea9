/* Cross-entropy on the GPU: knobs and launches of cross_entropy.cu. */
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"
#include "dispatch/rows.h"

#define SCALE_BLOCKS 16 /* of scale_by, a multiprocessor */
#define BLOCK 128 /* threads of a block whose rows take a warp or less */

/* `rule` of cross_entropy.cu for f32, and for f64. */
typedef struct rule_f32 {
    int64_t rows, ignore;
    int width, classes;
    float smoothing, z_loss;
} rule_f32;

typedef struct rule_f64 {
    int64_t rows, ignore;
    int width, classes;
    double smoothing, z_loss;
} rule_f64;

typedef union rule {
    rule_f32 f32;
    rule_f64 f64;
} rule;

static cup__argument rule_of(rule *r, const cup__cross_entropy *e)
{
    int width = (int)e->width, classes = (int)e->classes;
    if (e->logits->dtype == CUP_F64) {
        r->f64 = (rule_f64){e->rows, e->ignore_index, width, classes, e->smoothing, e->z_loss};
        return (cup__argument){&r->f64, sizeof r->f64};
    }
    r->f32 = (rule_f32){e->rows,  e->ignore_index,     width,
                        classes, (float)e->smoothing, (float)e->z_loss};
    return (cup__argument){&r->f32, sizeof r->f32};
}

/* Where the second pass over a row finds it again. */
enum { REGISTERS, SHARED, CACHES };

typedef struct plan {
    cup__row_plan rows;
    int stage, shared, blocks;
} plan;

static plan plan_of(const cup__cross_entropy *e, const cup_tensor *to, int shared_most)
{
    int size = (int)cup_dtype_size(e->logits->dtype);
    int vec = cup__row_vec(e->logits, e->width, 16 / size);
    vec = cup__row_vec(to, e->width, vec);
    int wide = size == 8 ? 4 : vec == 1 ? 8 : 16;
    plan p = {.rows = cup__plan_rows(e->width, vec, 2 * wide, wide), .blocks = 1};
    if (p.rows.threads < BLOCK)
        p.rows.threads = BLOCK;
    if (p.rows.fits)
        return p;
    p.stage = CACHES;
    int64_t bytes = e->width * size;
    if (bytes + 1024 > shared_most)
        return p;
    p.stage = SHARED;
    p.shared = (int)bytes;
    p.blocks = 2;
    /* Two blocks of 512 threads share a multiprocessor: one reads while the other writes. */
    if (2 * (bytes + 1024) > shared_most) {
        p.rows.group = p.rows.threads = 1024;
        p.blocks = 1;
    }
    return p;
}

static cup__kernel *kernel_of(const cup__cross_entropy *e, cup__cuda *gpu, const plan *p,
                              const char *kind, const char *entry)
{
    const cup__knob knobs[] = {{"CUP_T", e->logits->dtype}, {"INDEX", e->targets->dtype},
                               {kind, 1},                   {"VEC", p->rows.vec},
                               {"GROUP", p->rows.group},    {"PIECES", p->rows.pieces},
                               {"THREADS", p->rows.threads}, {"STAGE", p->stage},
                               {"IN_PLACE", e->in_place},    {"BLOCKS", p->blocks}};
    return cup__kernel_get(gpu, "cross_entropy.cu", entry, knobs, 10);
}

static cup_status launch_rows(cup__call *call, const cup__cross_entropy *e, cup_tensor *losses)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    plan p = plan_of(e, NULL, cup__cuda_facts(gpu)->shared_per_block);
    if (!e->in_place)
        p = plan_of(e, NULL, 0);
    cup__kernel *kernel = kernel_of(e, gpu, &p, "ROWS", "cross_entropy_rows");
    if (!kernel)
        return call->c->error.status;
    int64_t groups = p.rows.threads / p.rows.group;
    cup__grid grid = {.x = (e->rows + groups - 1) / groups, .threads = p.rows.threads,
                      .shared = p.shared};
    rule r;
    void *lse = call->out_count > 1 ? call->out[1]->data : NULL;
    const void *share = e->share             ? e->share->data
                        : call->out_count > 2 ? call->out[2]->data
                                              : NULL;
    return cup__launch(gpu, kernel, grid, CUP__ARG(e->logits->data), CUP__ARG(e->targets->data),
                       CUP__ARG(share), CUP__ARG(lse), CUP__ARG(losses->data), rule_of(&r, e));
}

static cup_status launch_count(cup__call *call, const cup__cross_entropy *e, cup_tensor *share)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", share->dtype}, {"INDEX", e->targets->dtype}};
    cup__kernel *kernel = cup__kernel_get(gpu, "cross_entropy.cu", "cross_entropy_count", knobs, 2);
    if (!kernel)
        return call->c->error.status;
    return cup__launch(gpu, kernel, ((cup__grid){.x = 1, .threads = 1024}),
                       CUP__ARG(e->targets->data), CUP__ARG(e->rows), CUP__ARG(e->ignore_index),
                       CUP__ARG(share->data));
}

cup_status cup__target_share_cuda(cup__call *call)
{
    const cup__target_share_attributes *a = call->attributes;
    cup__cross_entropy e = {
        .targets = call->in[0], .rows = call->in[0]->count, .ignore_index = a->ignore_index};
    return launch_count(call, &e, call->out[0]);
}

static cup_status launch_finish(cup__call *call, const cup__cross_entropy *e, cup_tensor *losses)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__knob knobs[] = {{"CUP_T", e->logits->dtype}, {"INDEX", e->targets->dtype}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "cross_entropy.cu", "cross_entropy_finish", knobs, 2);
    if (!kernel)
        return call->c->error.status;
    const void *given = e->share ? e->share->data : NULL;
    void *share = call->out_count > 2 ? call->out[2]->data : NULL;
    return cup__launch(gpu, kernel, ((cup__grid){.x = 1, .threads = 1024}),
                       CUP__ARG(e->targets->data), CUP__ARG(losses->data), CUP__ARG(e->rows),
                       CUP__ARG(e->ignore_index), CUP__ARG(given), CUP__ARG(share),
                       CUP__ARG(call->out[0]->data));
}

cup_status cup__cross_entropy_cuda(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    if (e.width > INT32_MAX)
        return cup__call_fail(call, CUP_UNSUPPORTED, "a row has more than 2^31 - 1 elements");
    cup__shape shape = {call->result[0].dtype, 1, {e.rows}};
    cup_tensor *losses = cup__tensor_make(call->c, &shape, "losses");
    if (!losses)
        return call->c->error.status;
    cup_status status = CUP_OK;
    if (e.in_place && !e.share)
        status = launch_count(call, &e, call->out[2]);
    if (status == CUP_OK)
        status = launch_rows(call, &e, losses);
    if (status == CUP_OK)
        status = launch_finish(call, &e, losses);
    cup_tensor_free(losses);
    return status;
}

cup_status cup__cross_entropy_grad_cuda(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    plan p = plan_of(&e, call->out[0], 0);
    cup__kernel *kernel = kernel_of(&e, gpu, &p, "SLOPES", "cross_entropy_slopes");
    if (!kernel)
        return call->c->error.status;
    int64_t groups = p.rows.threads / p.rows.group;
    cup__grid grid = {.x = (e.rows + groups - 1) / groups, .threads = p.rows.threads};
    rule r;
    return cup__launch(gpu, kernel, grid, CUP__ARG(e.logits->data), CUP__ARG(e.targets->data),
                       CUP__ARG(call->in[2]->data), CUP__ARG(call->in[3]->data),
                       CUP__ARG(call->in[4]->data), CUP__ARG(call->out[0]->data),
                       rule_of(&r, &e));
}

/* The kernels take statistics as they are saved: double for f64, single for the others. */
const char *cup__cross_entropy_grad_cuda_refuses(const cup__call *call)
{
    cup_dtype wanted = call->in[0]->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    for (int i = 2; i < 5; i++)
        if (call->in[i]->dtype != wanted)
            return "its statistics have another dtype than those that are saved";
    return NULL;
}

cup_status cup__scale_by_cuda(cup__call *call)
{
    cup_tensor *x = call->in[0], *by = call->in[1];
    int vector = cup__row_vec(x, x->count, 16 / (int)cup_dtype_size(x->dtype));
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"CUP_FACTOR", by->dtype}, {"VEC", vector}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int64_t blocks = (x->count / vector + 255) / 256;
    int64_t most = (int64_t)cup__cuda_facts(gpu)->multiprocessors * SCALE_BLOCKS;
    cup__grid grid = {.x = blocks < most ? blocks : most, .threads = 256};
    return cup__launch(gpu, cup__kernel_get(gpu, "scale_by.cu", "scale_by", knobs, 3), grid,
                       CUP__ARG(x->data), CUP__ARG(by->data), CUP__ARG(x->count));
}
