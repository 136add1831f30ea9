/* Batchnorm and groupnorm on the GPU: knobs and launches of channelnorm.cu. */
#include <string.h>

#include "base/divide.h"
#include "dispatch/attributes.h"
#include "ops/norm/channelnorm_cuda.h"
#include "dispatch/rows.h"
#include "tensor/moments.h"

#define BLOCK 256
#define PIECES 4       /* vectors on the way to a thread */
#define ROUNDS 2       /* times as many are one part of a plane */
#define BLOCKS_EACH 4  /* of columns, for each multiprocessor */
#define MERGED 64      /* lines at most that are made of those of a product, */
#define MERGED_WIDTH 64 /* by blocks of so many columns */
#define KNOBS 10
#define VEC_KNOB 3

/* The launches of one call: what they have in common. */
typedef struct work {
    cup__cuda *gpu;
    cup__channels at;
    const cup_tensor *x, *second, *gamma, *beta; /* second: dy, or the residual */
    cup_tensor *out, *mask, *dresidual;
    bool relu;
    cup_dtype param, result;
    channels_call call;
    cup__knob knobs[KNOBS];
    bool columns;
    int groups; /* of threads in a block, where a group takes a part of a plane */
    int side;
    cup_tensor *partial;
} work;

const char *cup__channelnorm_cuda_refuses(const cup__call *call)
{
    int x = call->op == &cup__op_channelnorm_grad ? 1 : 0;
    return call->in[x]->count > (int64_t)1 << 40 ? "it has more than 2^40 elements" : NULL;
}

static int least_power(int64_t least, int from, int most)
{
    while (from < most && from < least)
        from *= 2;
    return from;
}

channels_call cup__channelnorm_planes(const cup__channels *at, int64_t most, int vec)
{
    int64_t part = divide_up(divide_up(at->after, divide_up(at->after, most)), vec) * vec;
    int64_t parts = divide_up(at->after, part);
    return (channels_call){.before = at->before,
                           .after = at->after,
                           .count = at->count,
                           .instances = (unsigned)at->instances,
                           .channels = (unsigned)at->channels,
                           .groups = (unsigned)at->groups,
                           .each = (unsigned)at->each,
                           .line = 1,
                           .lines = (unsigned)at->before,
                           .part = (unsigned)part,
                           .parts = (unsigned)parts,
                           .tasks = (unsigned)(at->instances * at->groups),
                           .by_parts = divisor_of(parts),
                           .by_each = divisor_of(at->each)};
}

static int vec_of(const work *w, int64_t width)
{
    int vec = 16 / (int)cup_dtype_size(w->x->dtype);
    const cup_tensor *all[] = {w->x, w->second, w->out, w->dresidual};
    for (int i = 0; i < 4; i++)
        vec = cup__row_vec(all[i], width, vec);
    return vec;
}

/* Groups of threads for parts of planes: returns the threads of one. */
static int plan_planes(work *w, int vec)
{
    channels_call *c = &w->call;
    int group = least_power(divide_up(w->at.after, (int64_t)vec * PIECES), 8, BLOCK);
    int64_t part = (int64_t)group * vec * PIECES * ROUNDS;
    w->groups = BLOCK / group;
    c->line = 1;
    c->lines = (unsigned)w->at.before;
    c->part = (unsigned)part;
    c->parts = (unsigned)divide_up(w->at.after, part);
    c->tasks = (unsigned)(w->at.instances * w->at.before * w->at.channels * c->parts);
    return group;
}

/* Tiles of columns and slices of rows: returns the threads along the columns. */
static int plan_columns(work *w, int vec)
{
    channels_call *c = &w->call;
    int lanes = least_power(divide_up(w->at.channels, vec), 1, 32), rows = BLOCK / lanes;
    int64_t tiles = divide_up(w->at.channels, (int64_t)lanes * vec);
    /* Whole rounds, whether two or four blocks fit a multiprocessor. */
    int64_t wanted = BLOCKS_EACH * (int64_t)cup__cuda_facts(w->gpu)->multiprocessors;
    int64_t columns = tiles * w->at.instances, slices = columns ? wanted / columns : 0;
    int64_t line = divide_up(w->at.before, slices ? slices : 1);
    line = (divide_up(line, PIECES * rows) + !line) * PIECES * rows;
    c->line = (unsigned)line;
    c->lines = (unsigned)divide_up(w->at.before, line);
    c->part = c->parts = 1;
    c->tiles = (unsigned)tiles;
    c->tasks = (unsigned)(tiles * c->lines * w->at.instances);
    return lanes;
}

/* Statistics that a block makes side by side, where their partial sums are neighbours. */
static int plan_side(const work *w)
{
    if (w->at.each > 1 || w->call.parts > 1)
        return 1;
    return w->call.lines > 64 && w->at.instances * w->at.groups < 1024 ? 4 : 32;
}

static cup_status plan(work *w, cup_context *context, bool back)
{
    const cup__channels *at = &w->at;
    channels_call *c = &w->call;
    w->gpu = cup__cuda_of(context->device);
    w->columns = at->after == 1;
    int vec = vec_of(w, w->columns ? at->channels : at->after), group = 32, lanes = 32;
    c->before = at->before;
    c->after = at->after;
    c->count = at->count;
    c->instances = (unsigned)at->instances;
    c->channels = (unsigned)at->channels;
    c->groups = (unsigned)at->groups;
    c->each = (unsigned)at->each;
    if (w->columns)
        lanes = plan_columns(w, vec);
    else
        group = plan_planes(w, vec);
    int64_t sums = at->instances * c->lines * at->channels * c->parts;
    if (sums > INT32_MAX || at->channels > INT32_MAX / 64 || at->before > INT32_MAX)
        return cup__fail(&context->error, CUP_UNSUPPORTED,
                         "%lld channels of %lld planes are too many for a GPU",
                         (long long)at->channels, (long long)(at->instances * at->before));
    w->side = plan_side(w);
    const cup__knob knobs[KNOBS] = {{"CUP_T", w->x->dtype}, {"PARAM", w->param},
                                    {"BACK", back},         {"VEC", vec},
                                    {"GROUP", group},       {"PIECES", PIECES},
                                    {"THREADS", BLOCK},     {"LANES", lanes},
                                    {"RELU", w->relu},
                                    {"RESIDUAL", back ? w->dresidual != NULL
                                                      : w->second != NULL}};
    memcpy(w->knobs, knobs, sizeof knobs);
    cup__shape shape = {w->x->dtype == CUP_F64 ? CUP_F64 : CUP_F32, 2, {sums, 2}};
    w->partial = cup__tensor_make(context, &shape, "partial sums");
    return w->partial ? CUP_OK : context->error.status;
}

static cup__kernel *kernel_of(const work *w, const char *entry)
{
    return cup__kernel_get(w->gpu, "channelnorm.cu", entry, w->knobs, KNOBS);
}

static cup__kernel *finish_of(const work *w, bool back, const char *entry)
{
    const cup__knob knobs[] = {{"CUP_T", w->x->dtype}, {"PARAM", w->param},
                               {"RESULT", w->result},  {"BACK", back},
                               {"THREADS", BLOCK},     {"SIDE", w->side}};
    return cup__kernel_get(w->gpu, "channelnorm_finish.cu", entry, knobs, 6);
}

static cup__grid grid_of(const work *w)
{
    return (cup__grid){.x = w->columns ? w->call.tasks : divide_up(w->call.tasks, w->groups),
                       .threads = BLOCK};
}

static cup_status launch_sums(work *w, void *mean, void *rstd)
{
    cup__kernel *kernel = kernel_of(w, w->columns ? "channel_sums_columns" : "channel_sums_planes");
    if (!kernel)
        return w->x->context->error.status;
    void *dy = cup__data_of(w->second), *mask = cup__data_of(w->mask);
    return cup__launch(w->gpu, kernel, grid_of(w), CUP__ARG(w->call), CUP__ARG(w->x->data),
                       CUP__ARG(dy), CUP__ARG(mask), CUP__ARG(mean), CUP__ARG(rstd),
                       CUP__ARG(w->partial->data));
}

static cup_status launch_apply(work *w, void *mean, void *rstd, void *other)
{
    cup__kernel *kernel =
        kernel_of(w, w->columns ? "channel_apply_columns" : "channel_apply_planes");
    if (!kernel)
        return w->x->context->error.status;
    void *second = cup__data_of(w->second), *gamma = cup__data_of(w->gamma);
    void *mask = cup__data_of(w->mask), *dresidual = cup__data_of(w->dresidual);
    cup__grid grid = grid_of(w);
    grid.dependent = true;
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(w->call), CUP__ARG(w->x->data),
                       CUP__ARG(second), CUP__ARG(mask), CUP__ARG(mean), CUP__ARG(rstd),
                       CUP__ARG(gamma), CUP__ARG(other), CUP__ARG(w->out->data),
                       CUP__ARG(dresidual));
}

/* Bits that the kernel before has not written, as its vectors are no bytes of them. */
static cup_status launch_mask(work *w)
{
    int64_t vec = w->knobs[VEC_KNOB].value;
    bool paired = w->columns && vec == 4 && w->at.channels % 8 == 0;
    if (!w->mask || !w->mask->count || vec == 8 || paired)
        return CUP_OK;
    cup__kernel *kernel = kernel_of(w, "channel_mask");
    if (!kernel)
        return w->x->context->error.status;
    int64_t count = w->out->count;
    cup__grid grid = {.x = divide_up(w->mask->count, BLOCK), .threads = BLOCK};
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(w->out->data), CUP__ARG(count),
                       CUP__ARG(w->mask->data));
}

/* Moments that the product before has left become partial sums of `call`. */
static cup_status launch_merge(work *w, const cup__moments *m, channels_call *call)
{
    cup__kernel *kernel = finish_of(w, false, "channel_merge");
    if (!kernel)
        return w->x->context->error.status;
    unsigned lines = (unsigned)m->lines->shape[0], rows = (unsigned)m->line;
    int64_t most = smaller(w->call.lines, MERGED), each = divide_up(lines, most);
    call->line = (unsigned)each * rows;
    call->lines = (unsigned)divide_up(lines, each);
    cup__grid grid = {.x = divide_up(w->at.channels, MERGED_WIDTH), .y = call->lines,
                      .threads = BLOCK, .dependent = true};
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(*call), CUP__ARG(m->lines->data),
                       CUP__ARG(lines), CUP__ARG(rows), CUP__ARG(w->partial->data));
}

static cup_status launch_forward(work *w, const cup__channelnorm *n, void *mean, void *rstd)
{
    bool columns = w->columns && n->batch && !n->constant;
    const cup__moments *m = columns ? cup__moments_of(n->x, w->at.channels) : NULL;
    channels_call made = w->call;
    if (m)
        CUP_TRY(launch_merge(w, m, &made));
    else if (!n->constant)
        CUP_TRY(launch_sums(w, mean, rstd));
    cup__kernel *kernel = finish_of(w, false, "channel_finish");
    if (!kernel)
        return w->x->context->error.status;
    cup__grid grid = {.x = divide_up(w->at.instances * w->at.groups, w->side), .threads = BLOCK,
                      .dependent = !n->constant};
    void *running_mean = cup__data_of(n->running_mean), *running_var = cup__data_of(n->running_var);
    CUP_TRY(cup__launch(w->gpu, kernel, grid, CUP__ARG(made), CUP__ARG(w->partial->data),
                        CUP__ARG(mean), CUP__ARG(rstd), CUP__ARG(running_mean),
                        CUP__ARG(running_var)));
    CUP_TRY(launch_apply(w, mean, rstd, cup__data_of(w->beta)));
    return launch_mask(w);
}

static cup_dtype param_dtype(const cup_tensor *gamma, const cup_tensor *beta, cup_dtype otherwise)
{
    return gamma ? gamma->dtype : beta ? beta->dtype : otherwise;
}

cup_status cup__channelnorm_cuda(cup__call *call)
{
    cup__channelnorm n = cup__channelnorm_of(call);
    work w = {.at = n.at, .x = n.x, .second = n.residual, .out = n.y, .gamma = n.gamma,
              .beta = n.beta, .mask = n.mask, .relu = n.relu,
              .param = param_dtype(n.gamma, n.beta, n.x->dtype)};
    w.result = w.param;
    cup_tensor *own = NULL;
    cup_status status = plan(&w, call->c, false);
    w.call.constant = n.constant;
    w.call.momentum = n.momentum;
    w.call.eps = n.eps;
    if (status == CUP_OK && !n.mean) {
        cup__shape shape = {w.partial->dtype, 2, {2, n.at.instances * n.at.groups}};
        own = cup__tensor_make(call->c, &shape, "statistics");
        status = own ? CUP_OK : call->c->error.status;
    }
    if (status == CUP_OK) {
        int64_t size = n.at.instances * n.at.groups * cup_dtype_size(w.partial->dtype);
        status = launch_forward(&w, &n, own ? own->data : n.mean->data,
                                own ? (char *)own->data + size : n.rstd->data);
    }
    cup_tensor_free(own);
    cup_tensor_free(w.partial);
    return status;
}

static cup_status launch_finish_back(work *w, const cup__channelnorm_back *b, void *means_of)
{
    cup__kernel *kernel = finish_of(w, true, "channel_finish");
    if (!kernel)
        return w->x->context->error.status;
    void *gamma = cup__data_of(w->gamma), *dgamma = cup__data_of(b->dgamma);
    void *dbeta = cup__data_of(b->dbeta);
    int64_t second = b->dgamma || b->dbeta ? divide_up(w->at.channels, w->side) : 0;
    cup__grid grid = {.x = divide_up(w->at.instances * w->at.groups, w->side) + second,
                      .threads = BLOCK, .dependent = true};
    return cup__launch(w->gpu, kernel, grid, CUP__ARG(w->call), CUP__ARG(w->partial->data),
                       CUP__ARG(gamma), CUP__ARG(means_of), CUP__ARG(dgamma), CUP__ARG(dbeta));
}

static cup_status launch_back(work *w, const cup__channelnorm_back *b, void *means_of)
{
    void *mean = b->mean->data, *rstd = b->rstd->data;
    CUP_TRY(launch_sums(w, mean, rstd));
    CUP_TRY(launch_finish_back(w, b, means_of));
    return launch_apply(w, mean, rstd, means_of);
}

cup_status cup__channelnorm_back_cuda(cup__call *call)
{
    const cup__channelnorm_grad_attributes *a = call->attributes;
    cup__channelnorm_back b = cup__channelnorm_back_of(call);
    work w = {.at = b.at, .x = b.x, .second = b.dy, .out = b.dx, .gamma = b.gamma,
              .mask = b.mask, .relu = b.mask != NULL, .dresidual = b.dresidual,
              .result = a->dtype,
              .param = param_dtype(b.gamma, NULL, b.x->dtype)};
    cup_tensor *means = NULL;
    cup_status status = plan(&w, call->c, true);
    w.call.constant = b.constant;
    if (status == CUP_OK) {
        cup__shape shape = {w.partial->dtype, 2, {b.at.instances * b.at.groups, 2}};
        means = cup__tensor_make(call->c, &shape, "means of gradients");
        status = means ? launch_back(&w, &b, means->data) : call->c->error.status;
    }
    cup_tensor_free(means);
    cup_tensor_free(w.partial);
    return status;
}
