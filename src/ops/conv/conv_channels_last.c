/* Calls whose channels are neighbours in memory, as TMA reads and writes them: what lies otherwise
 * is copied. */
#include <string.h>

#include "cupola/ops.h"
#include "ops/conv/conv_cuda.h"
#include "ops/shape/copy.h"

#define MOST_INPUTS 5
#define STEP_MOST ((int64_t)1 << 38) /* elements that a tensor map can have from line to line */

/* Whether TMA can walk over a tensor with the channels in dimension `channel`. */
static bool lies_well(const cup_tensor *t, int channel)
{
    int64_t piece = CUP__CONV_PIECE_BYTES / cup_dtype_size(t->dtype);
    bool good = t->stride[channel] == 1 && (uintptr_t)t->data % CUP__CONV_PIECE_BYTES == 0;
    for (int d = 0; d < 4; d++)
        if (d != channel && t->shape[d] > 1)
            good = good && t->stride[d] > 0 && t->stride[d] < STEP_MOST &&
                   t->stride[d] % piece == 0;
    return good;
}

bool cup__conv_lies_last(const cup_tensor *t)
{
    return lies_well(t, 1);
}

/* Whether dimensions lie behind each other as if they were one. */
static bool lies_evenly(const cup_tensor *t, const int *d, int count)
{
    int64_t next = 0;
    for (int i = count - 1; i >= 0; i--) {
        if (t->shape[d[i]] == 1)
            continue;
        if (next && t->stride[d[i]] != next)
            return false;
        next = t->stride[d[i]] * t->shape[d[i]];
    }
    return true;
}

static cup_tensor *make_last(cup_context *c, const cup_tensor *t)
{
    cup__shape shape = {t->dtype, 4, {t->shape[0], t->shape[2], t->shape[3], t->shape[1]}};
    cup_tensor *made = cup__tensor_make(c, &shape, "channels last");
    cup_tensor *turned = made ? cup_permute(c, made, (int64_t[]){0, 3, 1, 2}, 4) : NULL;
    cup_tensor_free(made);
    return turned;
}

static cup_tensor *copied_last(cup_context *c, cup_tensor *t)
{
    cup_tensor *made = make_last(c, t);
    if (made && cup__copy_to(c, made, t) != CUP_OK) {
        cup_tensor_free(made);
        return NULL;
    }
    return made;
}

/* Tensors of a call as the kernel takes them: its own, or copies. */
typedef struct borrowed {
    cup_tensor *in[MOST_INPUTS], *out;
} borrowed;

static bool is_dy(const cup__call *call, int i)
{
    return i == 0 && call->op->kind != CUP__CONV_FORWARD;
}

static const int taps[] = {2, 3}, places[] = {0, 2, 3};

static bool is_good(const cup__call *call, int i)
{
    const cup_tensor *t = call->in[i];
    bool weight = call->op->kind != CUP__CONV_WEIGHT && i == 1;
    bool dy = call->op->kind == CUP__CONV_WEIGHT && i == 0;
    return lies_well(t, 1) && (!weight || lies_evenly(t, taps, 2)) &&
           (!dy || lies_evenly(t, places, 3));
}

static cup_status borrow(cup__call *call, bool all, borrowed *b)
{
    cup_context *c = call->c;
    *b = (borrowed){.out = call->out[0]};
    memcpy(b->in, call->in, (size_t)call->in_count * sizeof *b->in);
    for (int i = 0; i < 2; i++)
        if ((all || is_dy(call, i)) && !is_good(call, i))
            if (!(b->in[i] = copied_last(c, call->in[i])))
                return c->error.status;
    cup_tensor *bias = cup__conv_bias(call);
    if (bias && (!bias->contiguous || (uintptr_t)bias->data % 4))
        if (!(b->in[cup__conv_bias_at(call)] = cup_copy(c, bias)))
            return c->error.status;
    cup_tensor *residual = cup__conv_residual(call);
    if (residual && !(lies_well(residual, 1) && lies_evenly(residual, places, 3)))
        if (!(b->in[3] = copied_last(c, residual)))
            return c->error.status;
    bool lies_as_it_is =
        call->op->kind == CUP__CONV_WEIGHT || (!all && call->op->kind == CUP__CONV_INPUT);
    bool spread = residual && !lies_evenly(call->out[0], places, 3);
    if (!lies_as_it_is && (spread || !lies_well(call->out[0], 1)))
        if (!(b->out = make_last(c, call->out[0])))
            return c->error.status;
    return CUP_OK;
}

/* Runs with what is borrowed, and hands the result over. */
cup_status cup__conv_run_last(cup__call *call, bool all, cup_status (*run)(cup__call *call))
{
    borrowed b;
    cup_tensor **in = call->in, *out = call->out[0];
    if (borrow(call, all, &b) == CUP_OK) {
        call->in = b.in;
        call->out[0] = b.out;
        run(call);
        call->in = in;
        call->out[0] = out;
        if (b.out != out && call->c->error.status == CUP_OK)
            cup__copy_to(call->c, out, b.out);
    }
    for (int i = 0; i < call->in_count; i++)
        if (b.in[i] != in[i])
            cup_tensor_free(b.in[i]);
    if (b.out != out)
        cup_tensor_free(b.out);
    return call->c->error.status;
}

cup_status cup__conv_run_scoped(cup__call *call, bool all, cup_status (*run)(cup__call *call))
{
    if (call->out[0]->count == 0)
        return CUP_OK;
    cup_scope_open(call->c);
    cup__conv_run_last(call, all, run);
    cup_scope_return(call->c, NULL);
    return call->c->error.status;
}

cup_status cup__conv_run_image_last(cup__call *call, cup_status (*run)(cup__call *call))
{
    cup_tensor **in = call->in, *own[MOST_INPUTS];
    if (lies_well(in[0], 1))
        return run(call);
    memcpy(own, in, (size_t)call->in_count * sizeof *own);
    if (!(own[0] = copied_last(call->c, in[0])))
        return call->c->error.status;
    call->in = own;
    run(call);
    call->in = in;
    cup_tensor_free(own[0]);
    return call->c->error.status;
}
