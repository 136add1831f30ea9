/* Cross-entropy on Hopper and later: knobs and the launch of cross_entropy_ring.cu. */
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"
#include "dispatch/row_ring.h"

#define MARGIN 16384     /* bytes of shared memory that are not rows */
#define LEAST_BYTES 8192 /* of a row: a vector for each thread of a block */

/* `rule` of cross_entropy_ring.cu. */
typedef struct rule {
    int64_t rows, ignore;
    int width, classes;
    float smoothing, z_loss;
} rule;

const char *cup__cross_entropy_ring_refuses(const cup__call *call)
{
    const cup_tensor *logits = call->in[0];
    if (call->in[1]->count == 0)
        return "there are no rows";
    return cup__row_ring_refuses(logits, logits->shape[logits->ndim - 1], LEAST_BYTES,
                                 cup__cuda_facts(cup__cuda_of(call->c->device)));
}

cup_status cup__cross_entropy_ring(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int64_t bytes = e.width * (int64_t)cup_dtype_size(e.logits->dtype);
    /* Where nothing is written back two blocks fill each other's waits better than a ring. */
    bool two = !e.in_place && 2 * bytes < facts->shared_per_block - MARGIN;
    cup__row_ring plan = cup__row_ring_plan(e.rows, bytes, two ? 2 : 1, two ? 8 : 0, 8, facts);
    cup__knob knobs[3 + CUP__ROW_RING_KNOBS] = {
        {"CUP_T", e.logits->dtype}, {"INDEX", e.targets->dtype}, {"IN_PLACE", e.in_place}};
    cup__row_ring_knobs(&plan, knobs + 3);
    cup__kernel *kernel = cup__kernel_get(gpu, "cross_entropy_ring.cu", "cross_entropy_sm90",
                                          knobs, 3 + CUP__ROW_RING_KNOBS);
    cup__shape shape = {CUP_F32, 1, {e.rows}};
    cup_tensor *losses = kernel ? cup__tensor_make(call->c, &shape, "losses") : NULL;
    if (!losses)
        return call->c->error.status;
    rule r = {e.rows,         e.ignore_index,     (int)e.width,
              (int)e.classes, (float)e.smoothing, (float)e.z_loss};
    void *lse = call->out_count > 1 ? call->out[1]->data : NULL;
    void *share = call->out_count > 2 ? call->out[2]->data : NULL;
    const void *given = e.share ? e.share->data : NULL;
    cup_status status =
        cup__launch(gpu, kernel, plan.grid, CUP__ARG(e.logits->data), CUP__ARG(e.targets->data),
                    CUP__ARG(given), CUP__ARG(share), CUP__ARG(lse), CUP__ARG(losses->data),
                    CUP__ARG(call->out[0]->data), CUP__ARG(r));
    cup_tensor_free(losses);
    return status;
}
