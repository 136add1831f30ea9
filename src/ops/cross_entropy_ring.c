/* Cross-entropy on Hopper and later: knobs and the launch of cross_entropy_sm90.cu. */
#include "ops/attributes.h"
#include "ops/cross_entropy.h"
#include "ops/rows.h"

#define WARPS 16
#define PIECES 4
#define RING 2
#define PARTS_MOST 16
#define SHARED_OWN 8192  /* bytes of the kernel's shared memory that are not the ring */
#define CLUSTER_MOST 8
#define LEAST_BYTES 8192 /* of a row: a vector for each thread of a block */

/* `rule` of cross_entropy_sm90.cu. */
typedef struct rule {
    int64_t rows, ignore;
    int width, classes;
    float smoothing, z_loss;
} rule;

static int64_t over(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Bytes of a block's ring. */
static int64_t ring_bytes(int64_t vectors, int cluster)
{
    return over(vectors, cluster * WARPS) * WARPS * RING * 16;
}

/* The fewest blocks a row that have room for it; more where there are fewer rows than blocks. 0
 * where there are never enough. */
static int cluster_of(const cup__cross_entropy *e, const cup__gpu_facts *facts)
{
    int64_t vectors = e->width * (int64_t)cup_dtype_size(e->logits->dtype) / 16;
    for (int cluster = 1; cluster <= CLUSTER_MOST; cluster *= 2) {
        int64_t slice = over(vectors, cluster * WARPS);
        if (slice > PARTS_MOST * PIECES * 32 ||
            ring_bytes(vectors, cluster) + SHARED_OWN > facts->shared_per_block)
            continue;
        while (cluster < CLUSTER_MOST && e->rows * cluster * 2 <= facts->multiprocessors &&
               vectors >= 2 * cluster * WARPS * 32)
            cluster *= 2;
        return cluster;
    }
    return 0;
}

const char *cup__cross_entropy_ring_refuses(const cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    const cup__gpu_facts *facts = cup__cuda_facts(cup__cuda_of(call->c->device));
    int size = (int)cup_dtype_size(e.logits->dtype);
    if (facts->major < 9)
        return "it needs the bulk copies of Hopper";
    if (e.logits->dtype == CUP_F64)
        return "it computes in single precision";
    if (e.width * size < LEAST_BYTES)
        return "its rows are short";
    if (e.width > INT32_MAX || e.width * size % 16 || (uintptr_t)e.logits->data % 16)
        return "its rows do not begin at multiples of 16 bytes";
    return cluster_of(&e, facts) ? NULL : "a row does not fit the shared memory of 8 blocks";
}

cup_status cup__cross_entropy_ring(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const cup__gpu_facts *facts = cup__cuda_facts(gpu);
    int64_t vectors = e.width * (int64_t)cup_dtype_size(e.logits->dtype) / 16;
    int cluster = cluster_of(&e, facts);
    const cup__knob knobs[] = {{"CUP_T", e.logits->dtype}, {"INDEX", e.targets->dtype},
                               {"IN_PLACE", e.in_place},   {"CLUSTER", cluster},
                               {"WARPS", WARPS},           {"PIECES", PIECES},
                               {"RING", RING}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "cross_entropy_sm90.cu", "cross_entropy_sm90", knobs, 7);
    cup__shape shape = {CUP_F32, 1, {e.rows}};
    cup_tensor *losses = kernel ? cup__tensor_make(call->c, &shape, "losses") : NULL;
    if (!losses)
        return call->c->error.status;
    int64_t clusters = facts->multiprocessors / cluster;
    cup__grid grid = {.x = (e.rows < clusters ? e.rows : clusters) * cluster,
                      .threads = WARPS * 32,
                      .cluster = cluster,
                      .shared = (int)ring_bytes(vectors, cluster)};
    rule r = {e.rows,         e.ignore_index,     (int)e.width,
              (int)e.classes, (float)e.smoothing, (float)e.z_loss};
    void *lse = call->out_count > 1 ? call->out[1]->data : NULL;
    void *share = call->out_count > 2 ? call->out[2]->data : NULL;
    cup_status status =
        cup__launch(gpu, kernel, grid, CUP__ARG(e.logits->data), CUP__ARG(e.targets->data),
                    CUP__ARG(share), CUP__ARG(lse), CUP__ARG(losses->data),
                    CUP__ARG(call->out[0]->data), CUP__ARG(r));
    cup_tensor_free(losses);
    return status;
}
