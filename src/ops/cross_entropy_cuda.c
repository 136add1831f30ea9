/* Cross-entropy on the GPU, forward, backward and both in one pass over the logits. */
#include "cuda/cuda.h"
#include "ops/attributes.h"
#include "ops/cross_entropy.h"

#define WARP_WIDTH_MOST 2048 /* elements of a row that one warp works on */

/* Elements that one access moves: up to 16 bytes that divide the rows and the addresses. */
static int vector_of(const cup_tensor *a, const cup_tensor *b, int64_t width)
{
    int size = (int)cup_dtype_size(a->dtype), vector = 16 / size;
    uintptr_t address = (uintptr_t)a->data | (uintptr_t)b->data;
    while (vector > 1 && (width % vector || address % (uintptr_t)(vector * size)))
        vector /= 2;
    return vector;
}

/* The two numbers of the formulas in the type that the kernels compute in. */
typedef struct factors {
    double wide[2];
    float narrow[2];
    bool is_wide;
} factors;

static factors factors_of(const cup__cross_entropy *e)
{
    return (factors){{e->smoothing, e->z_loss},
                     {(float)e->smoothing, (float)e->z_loss},
                     e->logits->dtype == CUP_F64};
}

static cup__argument factor(const factors *f, int i)
{
    return f->is_wide ? CUP__ARG(f->wide[i]) : CUP__ARG(f->narrow[i]);
}

typedef struct scratch {
    cup_tensor *losses, *lse, *share;
} scratch;

static cup_tensor *statistic(cup__call *call, int result, int64_t count)
{
    if (call->out_count > result && call->out[result]) {
        cup__tensor_retain(call->out[result]);
        return call->out[result];
    }
    cup__shape shape = {call->result[0].dtype, 1, {count}};
    return cup__tensor_make(call->c, &shape, "cross_entropy");
}

static void statistic_free(cup__call *call, int result, cup_tensor *t)
{
    if (call->out_count > result && call->out[result] == t)
        cup__tensor_release(t);
    else
        cup_tensor_free(t);
}

static cup_status run_rows(cup__call *call, const cup__cross_entropy *e, const scratch *s)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int64_t bytes = e->width * cup_dtype_size(e->logits->dtype);
    bool warp = e->width <= WARP_WIDTH_MOST;
    bool staged = !warp && e->in_place && bytes <= facts->shared_per_block - 1024;
    cup__knob knobs[] = {{"CUP_T", e->logits->dtype},
                         {"CUP_ID", e->targets->dtype},
                         {"VEC", vector_of(e->logits, e->logits, e->width)},
                         {"GROUP", warp ? 32 : 512},
                         {"STAGED", staged},
                         {"SLOPES", e->in_place}};
    factors f = factors_of(e);
    cup__grid one = {.x = 1, .threads = 1024};
    CUP_TRY(cup__launch(gpu, cup__kernel_get(gpu, "cross_entropy.cu", "entropy_share", knobs, 6),
                        one, CUP__ARG(e->targets->data), CUP__ARG(s->share->data),
                        CUP__ARG(e->rows), CUP__ARG(e->ignore_index)));
    cup__grid grid = {.x = warp ? (e->rows + 7) / 8 : e->rows, .threads = warp ? 256 : 512};
    grid.shared = staged ? (int)((bytes + 15) / 16 * 16) : 0;
    CUP_TRY(cup__launch(gpu, cup__kernel_get(gpu, "cross_entropy.cu", "entropy_rows", knobs, 6),
                        grid, CUP__ARG(e->logits->data), CUP__ARG(e->targets->data),
                        CUP__ARG(s->share->data), CUP__ARG(s->losses->data),
                        CUP__ARG(s->lse->data), CUP__ARG(e->rows), CUP__ARG(e->width),
                        CUP__ARG(e->classes), CUP__ARG(e->ignore_index), factor(&f, 0),
                        factor(&f, 1)));
    return cup__launch(gpu, cup__kernel_get(gpu, "cross_entropy.cu", "entropy_loss", knobs, 6),
                       one, CUP__ARG(s->losses->data), CUP__ARG(s->share->data),
                       CUP__ARG(call->out[0]->data), CUP__ARG(e->rows));
}

cup_status cup__cross_entropy_cuda(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    cup__shape shape = {call->result[0].dtype, 1, {e.rows}};
    scratch s = {.losses = cup__tensor_make(call->c, &shape, "cross_entropy"),
                 .lse = statistic(call, 1, e.rows),
                 .share = statistic(call, 2, 1)};
    cup_status status = call->c->error.status;
    if (status == CUP_OK)
        status = run_rows(call, &e, &s);
    if (e.in_place)
        e.logits->storage->version++;
    cup_tensor_free(s.losses);
    statistic_free(call, 1, s.lse);
    statistic_free(call, 2, s.share);
    return status;
}

cup_status cup__cross_entropy_grad_cuda(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    cup_tensor *out = call->out[0];
    int vector = vector_of(e.logits, out, e.width);
    cup__knob knobs[] = {
        {"CUP_T", e.logits->dtype}, {"CUP_ID", e.targets->dtype}, {"VEC", vector}};
    factors f = factors_of(&e);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__grid grid = {.x = (out->count / vector + 255) / 256, .threads = 256};
    return cup__launch(gpu, cup__kernel_get(gpu, "cross_entropy.cu", "entropy_bwd", knobs, 3), grid,
                       CUP__ARG(e.logits->data), CUP__ARG(e.targets->data),
                       CUP__ARG(call->in[2]->data), CUP__ARG(call->in[3]->data),
                       CUP__ARG(call->in[4]->data), CUP__ARG(out->data), CUP__ARG(e.rows),
                       CUP__ARG(e.width), CUP__ARG(e.classes), CUP__ARG(e.ignore_index),
                       factor(&f, 0), factor(&f, 1));
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
    int vector = vector_of(x, x, x->count);
    cup__knob knobs[] = {{"CUP_T", x->dtype}, {"CUP_FACTOR", by->dtype}, {"VEC", vector}};
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__grid grid = {.x = (x->count / vector + 255) / 256, .threads = 256};
    return cup__launch(gpu, cup__kernel_get(gpu, "scale_by.cu", "scale_by", knobs, 3), grid,
                       CUP__ARG(x->data), CUP__ARG(by->data), CUP__ARG(x->count));
}
