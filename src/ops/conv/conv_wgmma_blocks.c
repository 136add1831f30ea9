/* The gradient of an image of a few channels by wgmma.cu: the places that a stride steps over are
 * results of one place (conv_blocks.cuh), so that dy is read once for all of them. */
#include "base/divide.h"
#include "ops/conv/conv_blocks.cuh"
#include "ops/conv/conv_cuda.h"

#define FEW 8             /* channels of the image at most, */
#define LEAST 16          /* and of dy at least */
#define RESULTS_MOST 1024 /* elements of a block */
#define MOST_BLOCKS 65536

typedef struct blocks {
    int first[2], count[2], taps[2];
    int each; /* elements, rounded up to what TMA can write */
} blocks;

/* Blocks begin at multiples of the stride in the image with its padding. */
static blocks blocks_of(const conv_call *c)
{
    blocks b = {.each = c->results};
    for (int d = 0; d < 2; d++) {
        const conv_side *s = &c->side[d];
        b.first[d] = s->before / s->stride;
        b.count[d] = (s->in - 1 + s->before) / s->stride - b.first[d] + 1;
        b.taps[d] = (int)divide_up(s->taps, s->stride);
        b.each *= s->stride;
    }
    b.each = (int)divide_up(b.each, CUP__CONV_PIECE) * CUP__CONV_PIECE;
    return b;
}

/* The convolution of dy that makes blocks. */
static cup__conv of_blocks(const cup__conv *v, const blocks *b)
{
    cup__conv made = *v;
    conv_call *c = &made.call;
    c->back = 0;
    c->results = b->each;
    c->w_step[3] = c->channels;
    c->w_step[2] = b->taps[1] * c->w_step[3];
    c->w_step[1] = 1;
    c->w_step[0] = b->taps[0] * c->w_step[2];
    c->y_step[3] = b->each;
    c->y_step[2] = b->count[1] * c->y_step[3];
    c->y_step[1] = 1;
    c->y_step[0] = b->count[0] * c->y_step[2];
    for (int d = 0; d < 2; d++)
        c->side[d] = (conv_side){.in = v->call.side[d].out, .out = b->count[d], .taps = b->taps[d],
                                 .stride = 1, .dilation = 1,
                                 .before = b->taps[d] - 1 - b->first[d]};
    return made;
}

const char *cup__conv_wgmma_blocks_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_never(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    if (!c->back || c->groups != 1)
        return "it is for the gradient of the image, in one group";
    if (c->results == 0 || c->results > FEW || c->channels % CUP__CONV_PIECE || c->channels < LEAST)
        return "it is for images of a few channels, and many results";
    if (c->side[0].dilation != 1 || c->side[1].dilation != 1)
        return "its kernel has gaps";
    int64_t most = RESULTS_MOST / c->results;
    if (c->side[0].stride > most || c->side[1].stride > most / c->side[0].stride)
        return "its strides are too large";
    const blocks b = blocks_of(c);
    if ((int64_t)b.taps[0] * b.taps[1] > INT32_MAX / b.each / c->channels)
        return "its weight is too large for 32 bits";
    const cup__conv made = of_blocks(&v, &b);
    return cup__conv_wgmma_reaches(&made.call) ? NULL
                                               : "its taps or padding reach farther than TMA does";
}

static conv_blocks task_of(const conv_call *c, const blocks *b)
{
    conv_blocks to = {.few = divisor_of(c->results), .results = divisor_of(c->channels),
                      .each = b->each};
    for (int d = 0; d < 2; d++) {
        to.stride[d] = divisor_of(c->side[d].stride);
        to.taps[d] = c->side[d].taps;
        to.before[d] = c->side[d].before;
        to.first[d] = b->first[d];
        to.count[d] = b->count[d];
    }
    return to;
}

static cup_status run_task(cup__call *call, const cup__conv *v, const char *entry,
                           const conv_blocks *task)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__knob knobs[] = {{"CUP_T", v->dtype}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_blocks.cu", entry, knobs, 1);
    if (!kernel)
        return call->c->error.status;
    int64_t count = divide_up(task->all, CONV_THREADS);
    cup__grid grid = {.x = count < MOST_BLOCKS ? count : MOST_BLOCKS, .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*task));
}

/* Of the gradient's call the weight's steps are by channel of the image, then of dy. */
static cup_tensor *make_weight(cup__call *call, const cup__conv *v, const blocks *b)
{
    const conv_call *c = &v->call;
    cup__shape shape = {v->dtype, 4, {b->each, b->taps[0], b->taps[1], c->channels}};
    cup_tensor *made = cup__tensor_make(call->c, &shape, "weight of blocks");
    if (!made)
        return NULL;
    conv_blocks task = task_of(c, b);
    task.from = c->w;
    task.to = made->data;
    task.all = made->count;
    const long long step[] = {c->w_step[1], c->w_step[0], c->w_step[2], c->w_step[3]};
    for (int i = 0; i < 4; i++)
        task.step[i] = step[i];
    for (int d = 0; d < 2; d++)
        task.sides[d] = divisor_of(b->taps[d]);
    run_task(call, v, "conv_block_weight", &task);
    return made;
}

static cup_status unblock(cup__call *call, const cup__conv *v, const blocks *b,
                          const cup_tensor *made)
{
    const conv_call *c = &v->call;
    conv_blocks task = task_of(c, b);
    task.from = made->data;
    task.to = c->y;
    task.all = (int64_t)c->images * c->side[0].in * c->side[1].in;
    for (int i = 0; i < 4; i++)
        task.step[i] = c->y_step[i];
    for (int d = 0; d < 2; d++)
        task.sides[d] = divisor_of(c->side[d].in);
    return run_task(call, v, "conv_unblock", &task);
}

static cup_status run(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    const blocks b = blocks_of(&v.call);
    cup__conv lines = of_blocks(&v, &b);
    cup__shape shape = {v.dtype, 4, {v.call.images, b.count[0], b.count[1], b.each}};
    cup_tensor *weight = make_weight(call, &v, &b);
    cup_tensor *made = weight ? cup__tensor_make(call->c, &shape, "blocks of an image") : NULL;
    if (made && call->c->error.status == CUP_OK) {
        lines.call.w = weight->data;
        lines.call.y = made->data;
        if (cup__conv_wgmma_class(call, &lines, 0, 0) == CUP_OK)
            unblock(call, &v, &b, made);
    }
    cup_tensor_free(made);
    cup_tensor_free(weight);
    return call->c->error.status;
}

cup_status cup__conv_wgmma_blocks(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, false, run) : CUP_OK;
}
