/* Pooling on the GPU: which kernel, and its knobs. */
#include "cuda/cuda.h"
#include "ops/pool/pool_call.cuh"
#include "ops/pool/pool.h"

#define MOST_INDEX ((int64_t)INT32_MAX) /* that a launch works on */
#define MOST_STRIDE 4                   /* of windows side by side that are read as vectors */
#define MOST_WINDOW 7                   /* of windows that pool_lines.cu unrolls */

typedef struct launch {
    cup__call *call;
    cup__pooling p;
    const char *file, *entry;
    int vec, unroll;
    bool tiles;
    bool lines; /* pool_lines.cu */
    int64_t inner, columns, rows; /* of what is written, in vectors or groups */
    pool_call argument;
} launch;

static cup_status launch_part(const launch *l, int64_t plane, int64_t planes, int64_t row,
                              int64_t rows)
{
    const cup__pooling *p = &l->p;
    const cup_tensor *places = p->is_max && l->argument.places ? l->call->out[1] : NULL;
    if (l->call->op->kind & CUP__POOL_GRAD)
        places = p->is_max ? l->call->in[1] : NULL;
    cup__knob knobs[] = {{"CUP_T", l->call->in[0]->dtype},
                         {"MAX", p->is_max},
                         {"WINDOW_H", p->window[0]},
                         {"WINDOW_W", p->window[1]},
                         {"STRIDE_H", p->stride[0]},
                         {"STRIDE_W", p->stride[1]},
                         {"DILATION_H", p->dilation[0]},
                         {"DILATION_W", p->dilation[1]},
                         {"VEC", l->vec},
                         {"UNROLL", l->unroll},
                         {"COUNT_PADDING", p->count_padding},
                         {"TILES", l->tiles},
                         {"PLACE", places ? (int64_t)places->dtype : -1},
                         {"PAD_H", p->padding[0]},
                         {"PAD_W", p->padding[1]},
                         {"BACKWARD", (l->call->op->kind & CUP__POOL_GRAD) != 0}};
    int count = l->lines ? 16 : 13;
    cup__cuda *gpu = cup__cuda_of(l->call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, l->file, l->entry, knobs, count);
    pool_call argument = l->argument;
    argument.plane = plane;
    argument.first_row = (int)row;
    argument.rows = divisor_of(rows);
    argument.count = (unsigned)(planes * rows * l->columns * l->inner);
    int64_t block = (int64_t)POOL_THREADS * l->unroll;
    cup__grid grid = {.x = (argument.count + block - 1) / block, .threads = POOL_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

const char *cup__pool_cuda_refuses(const cup__call *call)
{
    cup__pooling p = cup__pooling_of(call);
    int64_t most = p.inner ? MOST_INDEX / 2 / p.inner : MOST_INDEX;
    return p.in[1] > most || p.out[1] > most ? "a row is too long for 32 bits" : NULL;
}

/* As many planes as 32 bits can number at once, or as many rows of one. */
static cup_status launch_parts(launch *l)
{
    const cup__pooling *p = &l->p;
    l->argument.inner = divisor_of(l->inner);
    l->argument.columns = divisor_of(l->columns);
    l->argument.height = (int)p->in[0];
    l->argument.width = (int)p->in[1];
    l->argument.out_height = (int)p->out[0];
    l->argument.out_width = (int)p->out[1];
    l->argument.pad_height = (int)p->padding[0];
    l->argument.pad_width = (int)p->padding[1];
    int64_t row = l->columns * l->inner, plane = row * l->rows, most = MOST_INDEX - 65536;
    int64_t planes = plane > most ? 1 : most / plane;
    int64_t rows = plane > most ? most / row : l->rows;
    for (int64_t i = 0; i < p->planes; i += planes)
        for (int64_t r = 0; r < l->rows; r += rows)
            CUP_TRY(launch_part(l, i, p->planes - i < planes ? p->planes - i : planes, r,
                                l->rows - r < rows ? l->rows - r : rows));
    return CUP_OK;
}

int cup__pool_vector(const cup_tensor *t, int64_t width, int most)
{
    int size = (int)cup_dtype_size(t->dtype);
    while (most > 1 && (most * size > 16 || width % most ||
                        (uintptr_t)t->data % (uintptr_t)(most * size)))
        most /= 2;
    return most;
}

/* How many windows of a row of the image, each `stride` long, a thread takes at once: 0 when its
 * rows do not begin where vectors may. */
static int group_of(const cup__pooling *p, const cup_tensor *image, const cup_tensor *other,
                    const cup_tensor *places)
{
    int64_t size = cup_dtype_size(image->dtype), stride = p->stride[1];
    if (p->inner != 1 || p->padding[0] || p->padding[1] || p->dilation[0] != 1 ||
        p->dilation[1] != 1 || p->window[0] > p->stride[0] || p->window[1] > stride ||
        stride > MOST_STRIDE || p->window[0] > MOST_STRIDE)
        return 0;
    for (int d = 0; d < 2; d++) /* the last window must not reach over the edge */
        if ((p->out[d] - 1) * p->stride[d] + p->stride[d] > p->in[d])
            return 0;
    int most = stride == 3 ? (int)(16 / size) : (int)(16 / size / stride);
    int group = cup__pool_vector(other, p->out[1], most > 0 ? most : 1);
    if (places)
        group = cup__pool_vector(places, p->out[1], group);
    int64_t bytes = group * stride * size, aligned = bytes > 16 ? 16 : bytes;
    bool words = (bytes & (bytes - 1)) == 0 || bytes % 16 == 0;
    if (!words || p->in[1] * size % aligned || (uintptr_t)image->data % (uintptr_t)aligned)
        return 0;
    return group;
}

/* How many neighbours of a line a thread of pool_lines.cu takes: of y, or of dx in backward, which
 * it writes, up to `bytes` of them; for these it reads some of `other`. 0 when lines do not begin
 * where vectors may, or end too early. */
static int neighbours_of(const cup__pooling *p, const cup_tensor *t, const cup_tensor *other,
                         const cup_tensor *places, bool is_grad)
{
    int64_t size = cup_dtype_size(t->dtype), stride = p->stride[1];
    int64_t written = is_grad ? p->in[1] : p->out[1], read = is_grad ? p->out[1] : p->in[1];
    if (p->inner != 1 || p->dilation[0] != 1 || p->dilation[1] != 1 || stride > MOST_STRIDE ||
        stride == 3 || p->window[0] > MOST_WINDOW || p->window[1] > MOST_WINDOW ||
        p->window[1] - 1 < p->padding[1])
        return 0;
    for (int most = 16; most > 1; most /= 2) {
        int64_t n = is_grad ? most / stride : most * stride, bytes = is_grad ? 32 : 16;
        if (most * size > bytes || n < 1 || n * size > 32 || written % most ||
            written / most * n > read)
            continue;
        int64_t word = n * size > 16 ? 16 : n * size, own = most * size > 16 ? 16 : most * size;
        bool fits = (uintptr_t)t->data % (uintptr_t)own == 0 && written * size % own == 0 &&
                    (uintptr_t)other->data % (uintptr_t)word == 0 && read * size % word == 0;
        int64_t beside = is_grad ? n : most;
        if (fits && (!places || ((uintptr_t)places->data % (uintptr_t)beside == 0 &&
                                 places->shape[3] % beside == 0)))
            return most;
    }
    return 0;
}

static void plan_lines(launch *l, int neighbours)
{
    bool is_grad = l->call->op->kind & CUP__POOL_GRAD;
    l->file = "pool_lines.cu";
    l->entry = is_grad ? "pool_lines_bwd" : "pool_lines_fwd";
    l->lines = true;
    l->vec = neighbours;
    l->unroll = 1;
    l->inner = 1;
    l->rows = (is_grad ? l->p.in : l->p.out)[0];
    l->columns = (is_grad ? l->p.in : l->p.out)[1] / neighbours;
}

/* Lanes of a pixel's values. */
static void plan_pixels(launch *l, const cup_tensor *a, const cup_tensor *b,
                        const cup_tensor *places, const int64_t written[2])
{
    int64_t inner = l->p.inner;
    l->vec = cup__pool_vector(a, inner, 16);
    l->vec = cup__pool_vector(b, inner, l->vec);
    l->vec = places ? cup__pool_vector(places, inner, l->vec) : l->vec;
    l->unroll = 1;
    l->inner = inner / l->vec;
    l->rows = written[0];
    l->columns = written[1];
}

static void plan_groups(launch *l, int group, int unroll)
{
    l->tiles = true;
    l->vec = group;
    l->unroll = unroll;
    l->inner = 1;
    l->rows = l->p.out[0];
    l->columns = l->p.out[1] / group;
}

cup_status cup__pool_cuda(cup__call *call)
{
    const cup_tensor *x = call->in[0], *y = call->out[0];
    cup_tensor *places = call->out_count > 1 ? call->out[1] : NULL;
    launch l = {.call = call, .p = cup__pooling_of(call), .file = "pool.cu"};
    l.argument =
        (pool_call){.x = x->data, .y = y->data, .places = places ? places->data : NULL};
    int group = group_of(&l.p, x, y, places);
    l.entry = group ? "pool_rows_fwd" : "pool_fwd";
    int neighbours = group ? 0 : neighbours_of(&l.p, y, x, places, false);
    if (group)
        plan_groups(&l, group, 2);
    else if (neighbours)
        plan_lines(&l, neighbours);
    else
        plan_pixels(&l, x, y, places, l.p.out);
    return launch_parts(&l);
}

cup_status cup__pool_grad_cuda(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *dx = call->out[0];
    cup_tensor *places = call->in_count > 1 ? call->in[1] : NULL;
    launch l = {.call = call, .p = cup__pooling_of(call), .file = "pool_grad.cu"};
    l.argument =
        (pool_call){.x = dy->data, .y = dx->data, .places = places ? places->data : NULL};
    bool tiles = true;
    for (int d = 0; d < 2; d++)
        tiles = tiles && l.p.window[d] == l.p.stride[d] &&
                l.p.out[d] * l.p.stride[d] == l.p.in[d];
    int group = tiles ? group_of(&l.p, dx, dy, places) : 0;
    l.entry = group ? "pool_rows_bwd" : "pool_bwd";
    int neighbours = group ? 0 : neighbours_of(&l.p, dx, dy, places, true);
    if (group)
        plan_groups(&l, group, 1);
    else if (neighbours)
        plan_lines(&l, neighbours);
    else
        plan_pixels(&l, dy, dx, places, l.p.in);
    return launch_parts(&l);
}
