/* The host side of conv_depthwise.cu, conv_depthwise_weight.cu and conv_depthwise_columns.cu. */
#include "base/divide.h"
#include "ops/conv/conv_cuda.h"

#define TAPS_MOST 7    /* in each direction: those of a weight's gradient are sums in registers */
#define STRIDE_MOST 2
#define TEAMS (CONV_THREADS / (CONV_CHANNELS / 2)) /* of a block, which have strips each */
#define GRID_YZ_MOST 65535
#define STEP_MOST (INT32_MAX / 64) /* from place to place, so that those of a strip fit an int */
#define PARTS_MOST 512
#define NARROW_TEAMS (CONV_NARROW_THREADS / (CONV_CHANNELS / 2))
#define NARROW_BLOCKS 3 /* of conv_depthwise_columns.cu that a multiprocessor has at a time */

static bool steps_are_even(const long long step[4], const void *data, int64_t size)
{
    return step[1] == 1 && step[0] % 2 == 0 && step[2] % 2 == 0 && step[3] % 2 == 0 &&
           step[3] <= STEP_MOST && (uintptr_t)data % (uintptr_t)(2 * size) == 0;
}

/* Why it cannot do a convolution, whatever its tensors lie like. */
static const char *refuses_sizes(const cup__conv *v)
{
    const conv_call *c = &v->call;
    if (v->dtype == CUP_F64)
        return "it sums in f32";
    if (c->channels != 1 || c->results != 1 || c->groups < 2 || c->groups % 2)
        return "its groups are not of one channel each, or not even";
    int stride = c->side[0].stride;
    if (c->side[1].stride != stride || stride > (c->back ? 1 : STRIDE_MOST))
        return "its strides differ, or are too large";
    for (int d = 0; d < 2; d++)
        if (c->side[d].dilation != 1 || c->side[d].taps > TAPS_MOST || c->side[d].in == 0)
            return "its kernel is too large, or has gaps";
    if (divide_up(c->groups, CONV_CHANNELS) > GRID_YZ_MOST)
        return "it has too many channels";
    for (int in = 0; in < 2; in++) { /* with what rows and strips are rounded up to */
        int64_t rows = (in ? c->side[0].in : c->side[0].out) + (int64_t)CONV_HIGH;
        int64_t wide = (in ? c->side[1].in : c->side[1].out) + (int64_t)CONV_STRIP;
        if (rows * wide > INT32_MAX / 2 / (c->images ? c->images : 1))
            return "its places are too many for 32 bits";
    }
    return NULL;
}

const char *cup__conv_depthwise_refuses(const cup__call *call)
{
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    int64_t size = cup_dtype_size(v.dtype);
    const char *why = refuses_sizes(&v);
    if (why)
        return why;
    bool weight = call->op->kind == CUP__CONV_WEIGHT;
    if (!steps_are_even(c->x_step, c->x, size) ||
        (weight && !steps_are_even(c->w_step, c->w, size)))
        return "channels are not neighbours in memory, two by two";
    return NULL;
}

cup_status cup__conv_depthwise(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    if (call->out[0]->count == 0)
        return CUP_OK;
    conv_line high = conv_line_of(&c->side[0], c->back, 0);
    conv_line wide = conv_line_of(&c->side[1], c->back, 0);
    int64_t strips = divide_up(wide.count, CONV_STRIP);
    int64_t units = divide_up(high.count, CONV_HIGH) * CONV_HIGH * strips;
    conv_tiles tiles = {.places = (unsigned)strips, .results = (unsigned)units, .classes = {1, 1}};
    cup__knob knobs[] = {{"CUP_T", v.dtype},
                         {"TAPS_H", c->side[0].taps},
                         {"TAPS_W", c->side[1].taps},
                         {"STRIDE", high.step},
                         {"PAIRS", steps_are_even(c->y_step, c->y, cup_dtype_size(v.dtype))}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "conv_depthwise.cu", "conv_depthwise", knobs, 5);
    if (!kernel)
        return call->c->error.status;
    cup__grid grid = {.x = divide_up((int64_t)tiles.results * c->images, TEAMS),
                      .z = divide_up(c->groups, CONV_CHANNELS),
                      .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(tiles));
}

/* Whether a thread can have all taps of a weight, and the rows of dy above it. */
static bool walks_down(const cup__conv *v)
{
    return cup_dtype_size(v->dtype) == 2 && v->call.side[0].stride == 1;
}

/* How the strips are put into parts, with the memory of their sums. Those that threads walk down
 * are as high as the image. */
static cup_tensor *make_parts(cup__call *call, const cup__conv *v, conv_parts *out)
{
    const conv_call *c = &v->call;
    bool down = walks_down(v);
    int64_t strips = divide_up(c->side[1].out, down ? CONV_NARROW_STRIP : CONV_STRIP);
    int64_t channels = divide_up(c->groups, CONV_CHANNELS);
    int64_t all = (int64_t)c->images * (down ? 1 : c->side[0].out) * strips;
    int64_t busy = cup__cuda_facts(cup__cuda_of(call->c->device))->multiprocessors;
    int64_t parts = down ? NARROW_BLOCKS * busy / channels : divide_up(8 * busy, channels);
    int64_t most = down ? divide_up(all, NARROW_TEAMS) : PARTS_MOST;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    parts = parts > most ? most : parts < 1 ? 1 : parts;
    int64_t part = divide_up(all, parts);
    *out = (conv_parts){.all = all, .part = part, .parts = (int)divide_up(all, part),
                        .depth = (int)taps, .by_columns = divisor_of(strips),
                        .by_rows = divisor_of(c->side[0].out)};
    cup__shape shape = {CUP_F32, 2, {out->parts, c->groups * taps}};
    cup_tensor *sums = cup__tensor_make(call->c, &shape, "partial sums");
    out->sums = sums ? sums->data : NULL;
    return sums;
}

cup_status cup__conv_weight_depthwise(cup__call *call)
{
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    cup__conv v = cup__conv_of(call);
    const conv_call *c = &v.call;
    if (call->out[0]->count == 0)
        return CUP_OK;
    if (c->images == 0)
        return cup__conv_weight_simt(call);
    conv_parts parts;
    cup_tensor *sums = make_parts(call, &v, &parts);
    bool down = walks_down(&v);
    cup__knob knobs[] = {{"CUP_T", v.dtype},
                         {"TAPS_H", c->side[0].taps},
                         {"TAPS_W", c->side[1].taps},
                         {"STRIDE", c->side[0].stride}};
    cup__kernel *kernel =
        !sums  ? NULL
        : down ? cup__kernel_get(gpu, "conv_depthwise_columns.cu", "conv_depthwise_columns", knobs,
                                 3)
               : cup__kernel_get(gpu, "conv_depthwise_weight.cu", "conv_depthwise_weight", knobs,
                                 4);
    cup__grid grid = {.x = divide_up(c->groups, CONV_CHANNELS), .y = parts.parts,
                      .threads = down ? CONV_NARROW_THREADS : CONV_THREADS};
    if (kernel && cup__launch(gpu, kernel, grid, CUP__ARG(v.call), CUP__ARG(parts)) == CUP_OK)
        cup__conv_join(call, &v, &parts, CONV_ALONG_CHANNELS);
    cup_tensor_free(sums);
    return call->c->error.status;
}
