#include "ops/lowbit/rounded.h"

#include "base/divide.h"
#include "cuda/cuda.h"
#include "ops/lowbit/round_off_call.cuh"
#include "ops/shape/copy.h"
#include "tensor/context.h"

#define VEC ROUND_OFF_VECTOR
#define ALIGNED 16     /* bytes of a vector */
#define BLOCKS_EACH 6  /* of a multiprocessor */

/* How x lies: as rows that are evenly apart. */
typedef struct lying {
    int64_t rows, columns, row_step;
} lying;

/* False where it lies otherwise, or not in whole vectors. */
static bool lies_in_rows(const cup_tensor *x, lying *l)
{
    int i = x->ndim - 1;
    *l = (lying){1, 1, 0};
    for (; i >= 0 && (x->shape[i] == 1 || x->stride[i] == l->columns); i--)
        l->columns *= x->shape[i];
    for (; i >= 0; i--) {
        if (x->shape[i] == 1)
            continue;
        if (l->rows > 1 && x->stride[i] != l->row_step * l->rows)
            return false;
        if (l->rows == 1)
            l->row_step = x->stride[i];
        l->rows *= x->shape[i];
    }
    if ((uintptr_t)x->data % ALIGNED)
        return false;
    return l->rows == 1 || (l->columns % VEC == 0 && l->row_step % VEC == 0 &&
                            x->count / VEC < INT32_MAX);
}

static cup_tensor *make(cup_context *c, const cup_tensor *x, cup_dtype dtype, int planes)
{
    cup__shape shape = cup__shape_of(x);
    if (planes > 1)
        shape = (cup__shape){.ndim = 2, .size = {planes, x->count}};
    shape.dtype = dtype;
    return cup__tensor_make(c, &shape, "rounded");
}

/* What the kernels are told of a tensor, which is copied where it lies in a way that they do not
 * read, and makes the result. */
static cup_status fill(cup_context *c, cup__rounding *one, int planes, round_off_tensor *to)
{
    cup_tensor *x = one->x;
    lying l;
    if (!lies_in_rows(x, &l)) {
        x = make(c, x, CUP_F32, 1);
        if (!x || cup__copy_to(c, x, one->x) != CUP_OK)
            return c->error.status;
        lies_in_rows(x, &l);
    }
    one->half = make(c, x, CUP_F16, planes);
    if (!one->half)
        return c->error.status;
    *to = (round_off_tensor){.x = x->data,
                             .y = one->half->data,
                             .count = x->count,
                             .row_step = l.row_step,
                             .several = l.rows > 1,
                             .vectors = divisor_of(l.rows > 1 ? l.columns / VEC : 1),
                             .most = (float)one->most};
    return CUP_OK;
}

/* Deals out the blocks, as many as the card holds or as there is work for. */
static int64_t deal(round_off_call *call, int count, int multiprocessors)
{
    int64_t all = 0, given = 0, most = (int64_t)multiprocessors * BLOCKS_EACH;
    for (int i = 0; i < count; i++)
        all += call->of[i].count;
    for (int i = 0; i < count; i++) {
        round_off_tensor *t = &call->of[i];
        double share = all ? (double)t->count / (double)all * (double)most : 0;
        int64_t work = divide_up(t->count, ROUND_OFF_THREADS * VEC * ROUND_OFF_AT_ONCE);
        int64_t blocks = work < (int64_t)share ? work : (int64_t)share;
        t->first = (int)given;
        t->blocks = (int)(blocks > 0 ? blocks : 1);
        t->each = divide_up(t->count / VEC, t->blocks);
        given += t->blocks;
    }
    return given;
}

int64_t cup__rounding_begin(cup_context *c, cup__rounding *all, int count, int planes,
                            round_off_call *call)
{
    if (count > ROUND_OFF_MOST) {
        cup__fail(&c->error, CUP_INTERNAL, "%d tensors to round, for at most %d", count,
                  ROUND_OFF_MOST);
        return 0;
    }
    for (int i = 0; i < count; i++)
        if (fill(c, &all[i], planes, &call->of[i]) != CUP_OK)
            return 0;
    int multiprocessors = cup__cuda_facts(cup__cuda_of(c->device))->multiprocessors;
    int64_t blocks = deal(call, count, multiprocessors);
    cup__shape shape = {.dtype = CUP_F32, .ndim = 1, .size = {blocks}};
    cup_tensor *largest = cup__tensor_make(c, &shape, "largest sizes");
    call->largest = largest ? largest->data : NULL;
    return largest ? blocks : 0;
}

cup_status cup__rounding_launch(cup_context *c, const char *file, const char *entry,
                                const cup__knob *knobs, int knob_count, const round_off_call *call,
                                int64_t blocks)
{
    cup__cuda *gpu = cup__cuda_of(c->device);
    cup__grid grid = {.x = blocks, .threads = ROUND_OFF_THREADS, .dependent = true};
    cup__kernel *kernel = cup__kernel_get(gpu, file, entry, knobs, knob_count);
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(*call)) : c->error.status;
}

cup_status cup__round_off(cup_context *c, cup__rounding *all, int count, cup_tensor *scales)
{
    round_off_call call = {.scales = scales->data};
    int64_t blocks = cup__rounding_begin(c, all, count, 1, &call);
    if (!blocks)
        return c->error.status;
    CUP_TRY(cup__rounding_launch(c, "round_off.cu", "largest_of_all", NULL, 0, &call, blocks));
    return cup__rounding_launch(c, "round_off.cu", "round_off_all", NULL, 0, &call, blocks);
}
