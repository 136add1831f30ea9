/* Convolutions of images with a few channels by wgmma.cu: image and weight are packed
 * (conv_pack.cuh) so that a line holds neighbouring columns and rows as if they were channels. */
#include "base/divide.h"
#include "cupola/ops.h"
#include "ops/conv/conv_cuda.h"
#include "ops/conv/conv_pack.cuh"

#define LINE 64     /* elements */
#define FEW 8       /* channels at most */
#define LEAST 16    /* results */
#define FARTHEST 255
#define STEP_MOST 8
#define MOST_BLOCKS 65536

typedef struct packing {
    int channels, group, columns; /* of a line; their product is LINE */
    int taps;                     /* lines of a result */
    int64_t rows, wide;           /* of the packed image, and columns */
} packing;

static packing packing_of(const cup__conv *v)
{
    const conv_call *c = &v->call;
    const conv_side *s = c->side;
    packing p = {.channels = c->channels <= 4 ? 4 : FEW, .columns = (int)power_from(s[1].taps)};
    p.group = LINE / p.channels / p.columns;
    while (p.group > power_from(s[0].taps)) {
        p.group /= 2;
        p.columns *= 2;
    }
    if (p.group == 0)
        return p;
    p.taps = (int)divide_up(s[0].taps, p.group);
    p.rows = (int64_t)(s[0].out - 1) * s[0].stride + (int64_t)(p.taps - 1) * p.group + 1;
    int64_t even = CUP__CONV_PIECE_BYTES / cup_dtype_size(v->dtype) / 4; /* of 4 elements or more */
    p.wide = round_up((int64_t)(s[1].out - 1) * s[1].stride + p.columns, even);
    return p;
}

const char *cup__conv_wgmma_few_refuses(const cup__call *call)
{
    const char *why = cup__conv_wgmma_never(call);
    if (why)
        return why;
    const cup__conv v = cup__conv_of(call);
    const conv_call c = v.call;
    if (c.back || c.groups != 1)
        return "it has no gradient of the image, and no groups";
    if (c.channels == 0 || c.channels > FEW || c.results % CUP__CONV_PIECE || c.results < LEAST)
        return "it is for images of a few channels, and many results";
    if (c.side[0].dilation != 1 || c.side[1].dilation != 1 || c.side[0].stride > STEP_MOST)
        return "its kernel has gaps, or its stride is large";
    if (c.side[1].taps > LINE / 4)
        return "its kernel is wider than a line";
    packing p = packing_of(&v);
    int piece = CUP__CONV_PIECE_BYTES / (int)cup_dtype_size(v.dtype);
    if (p.group == 0 || p.group * p.channels * c.side[1].stride % piece)
        return "its lines would not start at multiples of 16 bytes";
    if ((p.taps - 1) * p.group > FARTHEST)
        return "its kernel is higher than TMA reads";
    return p.rows * p.wide > INT32_MAX / c.images ? "its image is too large for 32 bits" : NULL;
}

typedef struct job {
    cup__call *call;
    const cup__conv *v;
    packing how;
} job;

static cup_status run_pack(const job *j, const char *entry, const conv_pack *p)
{
    cup__cuda *gpu = cup__cuda_of(j->call->c->device);
    cup__knob knobs[] = {{"CUP_T", j->v->dtype}, {"GROUP", j->how.group},
                         {"CHANNELS", j->how.channels}, {"BASE", true}};
    cup__kernel *kernel = cup__kernel_get(gpu, "conv_pack.cu", entry, knobs, p->base ? 4 : 3);
    if (!kernel)
        return j->call->c->error.status;
    int64_t blocks = divide_up(p->all, CONV_THREADS);
    cup__grid grid = {.x = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, .threads = CONV_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(*p));
}

static conv_pack weight_pack(const job *j, const void *from, void *to, const long long step[4])
{
    const conv_call *c = &j->v->call;
    conv_pack p = {.from = from, .to = to,
                   .all = (int64_t)c->results * j->how.taps * j->how.columns,
                   .columns = divisor_of(j->how.columns), .rows = divisor_of(j->how.taps),
                   .row_step = j->how.group, .size = {c->side[0].taps, c->side[1].taps},
                   .channels = c->channels};
    for (int i = 0; i < 4; i++)
        p.step[i] = step[i];
    return p;
}

static cup_tensor *make_lines(const job *j, int64_t count)
{
    cup__shape shape = {j->v->dtype, 2, {count, j->how.group * j->how.channels}};
    return cup__tensor_make(j->call->c, &shape, "packed image");
}

static cup_tensor *packed_image(const job *j)
{
    const conv_call *c = &j->v->call;
    int64_t all = c->images * j->how.rows * j->how.wide;
    cup_tensor *to = make_lines(j, all);
    conv_pack p = {.from = c->x, .to = to ? to->data : NULL, .all = all,
                   .columns = divisor_of(j->how.wide), .rows = divisor_of(j->how.rows),
                   .row_step = 1, .before = {c->side[0].before, c->side[1].before},
                   .size = {c->side[0].in, c->side[1].in}, .channels = c->channels};
    for (int i = 0; i < 4; i++)
        p.step[i] = c->x_step[i];
    if (to)
        run_pack(j, "conv_pack_columns", &p);
    return to;
}

static cup_tensor *packed_weight(const job *j)
{
    const conv_call *c = &j->v->call;
    cup_tensor *to = make_lines(j, (int64_t)c->results * j->how.taps * j->how.columns);
    if (to) {
        conv_pack p = weight_pack(j, c->w, to->data, c->w_step);
        run_pack(j, "conv_pack_columns", &p);
    }
    return to;
}

/* The convolution of lines: a column of it is a line, and its rows are taps. */
static cup__conv of_lines(const job *j, const cup_tensor *image)
{
    cup__conv v = *j->v;
    conv_call *c = &v.call;
    const packing *how = &j->how;
    int64_t each = how->group * how->channels;
    c->x = image->data;
    c->x_step[0] = how->rows * how->wide * each;
    c->x_step[1] = 1;
    c->x_step[2] = how->wide * each;
    c->x_step[3] = c->side[1].stride * each;
    c->channels = LINE;
    c->side[0] = (conv_side){.in = (int)how->rows, .out = c->side[0].out, .taps = how->taps,
                             .stride = c->side[0].stride, .dilation = how->group};
    c->side[1] = (conv_side){.in = c->side[1].out, .out = c->side[1].out, .taps = 1, .stride = 1,
                             .dilation = 1};
    return v;
}

static cup_status run_rows(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    job j = {call, &v, packing_of(&v)};
    cup_tensor *image = packed_image(&j), *weight = image ? packed_weight(&j) : NULL;
    if (weight && call->c->error.status == CUP_OK) {
        cup__conv lines = of_lines(&j, image);
        lines.call.w = weight->data;
        lines.call.w_step[0] = (int64_t)j.how.taps * LINE;
        lines.call.w_step[1] = 1;
        lines.call.w_step[2] = lines.call.w_step[3] = LINE;
        cup__conv_wgmma_class(call, &lines, 0, 0);
    }
    cup_tensor_free(weight);
    cup_tensor_free(image);
    return call->c->error.status;
}

cup_status cup__conv_wgmma_few(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, false, run_rows) : CUP_OK;
}

static cup_status run_sums(cup__call *call)
{
    cup__conv v = cup__conv_of(call);
    job j = {call, &v, packing_of(&v)};
    cup_tensor *image = packed_image(&j), *sums = NULL;
    conv_parts parts;
    if (image && call->c->error.status == CUP_OK) {
        cup__conv lines = of_lines(&j, image);
        sums = cup__conv_wgmma_sums(call, &lines, &parts);
    }
    if (sums) {
        conv_pack p = weight_pack(&j, sums->data, v.call.y, v.call.y_step);
        p.parts = parts.parts;
        p.base = v.residual;
        for (int i = 0; i < 4; i++)
            p.base_step[i] = v.residual_step[i];
        run_pack(&j, "conv_unpack_columns", &p);
    }
    cup_tensor_free(sums);
    cup_tensor_free(image);
    return call->c->error.status;
}

cup_status cup__conv_weight_wgmma_few(cup__call *call)
{
    return call->out[0]->count ? cup__conv_run_last(call, false, run_sums) : CUP_OK;
}
