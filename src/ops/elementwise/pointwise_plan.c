#include "ops/elementwise/pointwise_plan.h"

#include "kernels/pointwise_call.cuh"

#define UNIT_MOST 64      /* bytes of one tensor in a unit */
#define BYTES_AT_ONCE 16  /* that a thread should have on their way: more was slower, see NOTES */
#define PACK_FROM 65536   /* elements from which a transposed input is worth a copy */

static int size_of(cup_dtype dtype)
{
    return (int)cup_dtype_size(dtype);
}

/* The neighbours, up to `most`, that can be read at once when accesses start at multiples of
 * `step` elements from the base. What does not allow 16 bytes is cut out of lines of 16 bytes (0),
 * or read one by one: a kernel for each width between would be compiled often and gain little. */
bool cup__unit_is_lines(int vec, int64_t size)
{
    return vec * size % 16 == 0 && size <= 8;
}

static int width_of(const cup__nest *n, int k, int most, int64_t step)
{
    int size = size_of(n->x_dtype[k]), width = most;
    while (width * size > 16)
        width /= 2;
    if (step % width == 0 && (uintptr_t)n->x[k] % (uintptr_t)(width * size) == 0)
        return width;
    return cup__unit_is_lines(most, size) ? 0 : 1;
}

static bool is_flat(const cup__loop *loop, int k)
{
    int64_t step = 1;
    for (int d = loop->ndim; d-- > 0; step *= loop->size[d])
        if (loop->size[d] > 1 && loop->stride[k][d] != step)
            return false;
    return true;
}

static bool is_scalar(const cup__loop *loop, int k)
{
    for (int d = 0; d < loop->ndim; d++)
        if (loop->size[d] > 1 && loop->stride[k][d])
            return false;
    return true;
}

static int64_t inner_of(const cup__loop *loop)
{
    return loop->size[loop->ndim - 1];
}

/* How input k is read in units of `vec`. */
static int kind_of(const cup__loop *loop, int k, int vec)
{
    if (is_flat(loop, k))
        return POINTWISE_FLAT;
    if (is_scalar(loop, k))
        return POINTWISE_SCALAR;
    int64_t stride = loop->stride[k][loop->ndim - 1];
    if (stride > 1 || stride < 0 || inner_of(loop) % vec)
        return POINTWISE_GATHER;
    return stride == 1 ? POINTWISE_ROW : POINTWISE_COLUMN;
}

static bool result_fits(const cup__nest *n, int vec)
{
    for (int j = 0; j < n->results; j++) {
        int bytes = vec * size_of(n->y_dtype[j]);
        if ((uintptr_t)n->y[j] % (uintptr_t)(bytes > 16 ? 16 : bytes))
            return false;
    }
    return true;
}

/* Elements of a unit: 16 bytes of the narrowest tensor that is read or written side by side, as
 * far as the results' alignment allows, and fewer where that keeps units inside rows. */
static int choose_vec(const cup__nest *n, bool whole)
{
    const cup__loop *loop = &n->loop;
    int least = 16, most = 1;
    bool rows = false;
    for (int j = 0; j < n->results; j++) {
        int size = size_of(n->y_dtype[j]);
        least = size < least ? size : least;
        most = size > most ? size : most;
    }
    for (int k = 0; k < n->inputs; k++) {
        int kind = kind_of(loop, k + 1, 1), size = size_of(n->x_dtype[k]);
        rows |= kind == POINTWISE_ROW || kind == POINTWISE_COLUMN;
        if (kind != POINTWISE_FLAT && kind != POINTWISE_ROW)
            continue;
        least = size < least ? size : least;
        most = size > most ? size : most;
    }
    int vec = 16 / least;
    while (vec > 1 && vec * most > UNIT_MOST)
        vec /= 2;
    while (vec > 1 && !result_fits(n, vec))
        vec /= 2;
    while (whole && inner_of(loop) % vec)
        vec /= 2;
    if (rows && inner_of(loop) % vec && inner_of(loop) % (vec / 2) == 0 && vec > 2)
        vec /= 2;
    return vec;
}

cup__access_plan cup__access_plan_make(const cup__nest *n, const cup__loop *outer,
                                       const cup__gpu_facts *facts)
{
    const cup__loop *loop = &n->loop;
    cup__access_plan plan = {.vec = choose_vec(n, outer != NULL), .ndim = 1};
    int bytes = 0;
    for (int k = 0; k < n->inputs; k++) {
        int kind = plan.kind[k] = kind_of(loop, k + 1, plan.vec);
        plan.width[k] = 1;
        while (kind != POINTWISE_FLAT && kind != POINTWISE_SCALAR && plan.ndim < loop->ndim)
            plan.ndim *= 2; /* dimensions of size 1 fill up */
        int64_t step = plan.vec; /* the lowest bit of any decides */
        for (int d = 0; kind == POINTWISE_ROW && d < loop->ndim - 1; d++)
            step |= loop->stride[k + 1][d];
        for (int d = 0; outer && d < outer->ndim; d++)
            step |= outer->stride[k + 1][d];
        if (kind == POINTWISE_FLAT || kind == POINTWISE_ROW) {
            plan.width[k] = width_of(n, k, plan.vec, step);
            bytes += plan.vec * size_of(n->x_dtype[k]);
        }
    }
    plan.unroll = bytes ? BYTES_AT_ONCE / bytes : 1;
    plan.unroll = plan.unroll < 1 ? 1 : plan.unroll > 4 ? 4 : plan.unroll;
    int64_t blocks = loop->count / plan.vec / POINTWISE_THREADS;
    if (blocks < 8 * facts->multiprocessors)
        plan.unroll = 1;
    return plan;
}

int64_t cup__access_knob(const cup__nest *n, const cup__access_plan *plan, int k)
{
    return n->x_dtype[k] | plan->kind[k] << 8 | plan->width[k] << 16;
}

bool cup__is_transposed(const cup__loop *loop, int k, const cup_tensor *in)
{
    int64_t stride = loop->stride[k][loop->ndim - 1];
    return in->count >= PACK_FROM && in->count == loop->count && stride != 1;
}
