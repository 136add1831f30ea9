/* Copies on the GPU: one plain copy, words along rows that both sides share, tiles that transpose,
 * or single elements. */
#include <string.h>

#include "cuda/cuda.h"
#include "ops/shape/copy_call.cuh"
#include "ops/shape/copy.h"
#include "dispatch/loop.h"

#define TILE_LEAST 16 /* sizes from which a transposition goes through tiles */
#define THIN_LEAST 64 /* rows of matrices with fewer columns, from which they have a kernel */
#define STAGED_MOST 8 /* columns of those that go through shared memory */
#define Y 0           /* the tensors of the nest */
#define X 1

typedef struct copying {
    cup__call *call;
    int size; /* bytes of an element */
    char *y;
    const char *x;
} copying;

/* The most neighbours, a power of two up to `most`, that one access of at most 16 bytes may have
 * when all accesses start at multiples of `step` elements from `base`. */
static int width_of(const void *base, int size, int64_t step, int most)
{
    int width = most;
    while (width > 1 && (width * size > 16 || step % width ||
                         (uintptr_t)base % (uintptr_t)(width * size)))
        width /= 2;
    return width;
}

/* A number that has the factors of two that all strides of tensor k but that of `skipped` share. */
static int64_t common_step(const cup__loop *loop, int k, int skipped)
{
    int64_t step = 0;
    for (int d = 0; d < loop->ndim; d++)
        if (d != skipped && loop->size[d] > 1)
            step |= loop->stride[k][d];
    return step;
}

static cup_status launch_words(const copying *c, const cup__loop *loop)
{
    int last = loop->ndim - 1;
    int64_t inner = loop->size[last];
    bool rows = loop->stride[X][last] == 1 || inner == 1;
    int vec = 1;
    if (loop->stride[Y][last] == 1 || inner == 1)
        vec = width_of(c->y, c->size, common_step(loop, Y, last) | inner, 16);
    if (rows)
        vec = width_of(c->x, c->size, common_step(loop, X, last), vec);
    words_call argument = {.y = c->y, .x = c->x, .x_inner = (int)loop->stride[X][last]};
    argument.count = (unsigned)(loop->count / vec);
    for (int d = 0; d < loop->ndim; d++) {
        int at = last - d, step = d ? 1 : vec;
        argument.dim[d] = divisor_of(loop->size[at] / step);
        argument.x_stride[d] = (int)loop->stride[X][at] * step;
        argument.y_stride[d] = (int)loop->stride[Y][at] * step;
    }
    int unroll = argument.count > 1 << 18 ? 4 : 1;
    cup__knob knobs[] = {{"SIZE", c->size}, {"VEC", vec}, {"SPREAD", !rows && vec > 1},
                         {"NDIM", loop->ndim}, {"UNROLL", unroll}};
    cup__cuda *gpu = cup__cuda_of(c->call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "copy.cu", "copy_fwd", knobs, 5);
    if (!kernel)
        return c->call->c->error.status;
    int64_t block = COPY_THREADS * unroll;
    cup__grid grid = {.x = ((int64_t)argument.count + block - 1) / block, .threads = COPY_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

/* The side of a tile: rows of 128 or 256 bytes. */
static int side_of(int size, int64_t rows, int64_t columns)
{
    if (size == 8)
        return 32;
    if (size == 1 || (size == 2 && rows >= 1024 && columns >= 256))
        return 128;
    return 64;
}

/* Transposes dimension `across`, along which x has its neighbours, with the innermost. */
static cup_status launch_tiles(const copying *c, const cup__loop *loop, int across)
{
    int down = loop->ndim - 1, dims = 0;
    int64_t rows = loop->size[down], columns = loop->size[across];
    int side = side_of(c->size, rows, columns);
    int64_t tiles_across = (columns + side - 1) / side, tiles_down = (rows + side - 1) / side;
    tiles_call argument = {.y = c->y,
                           .x = c->x,
                           .rows = (unsigned)rows,
                           .columns = (unsigned)columns,
                           .across = divisor_of(tiles_across),
                           .down = divisor_of(tiles_down),
                           .x_row = loop->stride[X][down],
                           .y_column = loop->stride[Y][across]};
    for (int d = down; d-- > 0;) {
        if (d == across)
            continue;
        argument.dim[dims] = divisor_of(loop->size[d]);
        argument.x_stride[dims] = loop->stride[X][d];
        argument.y_stride[dims++] = loop->stride[Y][d];
    }
    int most = 16 / c->size;
    cup__knob knobs[] = {{"SIZE", c->size}, {"SIDE", side},
                         {"ACROSS", width_of(c->x, c->size, common_step(loop, X, across), most)},
                         {"DOWN", width_of(c->y, c->size, common_step(loop, Y, down), most)}};
    cup__cuda *gpu = cup__cuda_of(c->call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "transpose.cu", "transpose_fwd", knobs, 4);
    if (!kernel)
        return c->call->c->error.status;
    cup__grid grid = {.x = loop->count / rows / columns * tiles_across * tiles_down,
                      .threads = COPY_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

/* The dimension along which x has its neighbours when that is not the innermost, which has y's;
 * -1 when tiles would not do. */
static int transposed_dimension(const cup__loop *loop)
{
    int last = loop->ndim - 1;
    if (loop->stride[Y][last] != 1 || loop->size[last] < TILE_LEAST)
        return -1;
    for (int d = 0; d < last; d++)
        if (loop->stride[X][d] == 1 && loop->size[d] >= TILE_LEAST)
            return d;
    return -1;
}

/* Whether x, or with `packed` Y y, holds matrices of few columns densely, which are rows on the
 * other side: the dimensions of these and of their length. */
static bool is_thin(const cup__loop *loop, int packed, int *few, int *along)
{
    int other = packed == X ? Y : X;
    for (int d = 0; d < loop->ndim; d++)
        if (loop->stride[X][d] < 0) /* the kernel's offsets have no sign */
            return false;
    for (int f = 0; f < loop->ndim; f++)
        for (int a = 0; a < loop->ndim; a++)
            if (f != a && loop->size[f] < TILE_LEAST && loop->size[a] >= THIN_LEAST &&
                loop->stride[packed][f] == 1 && loop->stride[packed][a] == loop->size[f] &&
                loop->stride[other][a] == 1) {
                *few = f;
                *along = a;
                return true;
            }
    return false;
}

static cup_status launch_thin(const copying *c, const cup__loop *loop, int packed, int few,
                              int along)
{
    int64_t steps[] = {loop->size[along], 0, 0};
    tiles_call argument = {.y = c->y, .x = c->x, .x_row = loop->stride[X][few],
                           .y_column = loop->stride[Y][few]};
    int dims = 0;
    for (int d = loop->ndim; d-- > 0;) {
        for (int k = Y; k <= X && d != along; k++)
            steps[1 + k] |= d == few && k == packed ? 0 : loop->stride[k][d];
        if (d == along || d == few)
            continue;
        argument.dim[dims] = divisor_of(loop->size[d]);
        argument.x_stride[dims] = loop->stride[X][d];
        argument.y_stride[dims++] = loop->stride[Y][d];
    }
    int vec = width_of(c->y, c->size, steps[0] | steps[1 + Y], 16 / c->size);
    vec = width_of(c->x, c->size, steps[0] | steps[1 + X], vec);
    argument.across = divisor_of(loop->size[along] / vec);
    argument.rows = (unsigned)(loop->count / loop->size[few] / vec);
    bool staged = vec * c->size == 16 && loop->size[few] > 1 && loop->size[few] <= STAGED_MOST;
    cup__knob knobs[] = {{"SIZE", c->size}, {"SMALL", loop->size[few]}, {"VEC", vec},
                         {"SPREAD", packed == Y}, {"STAGED", staged}};
    cup__cuda *gpu = cup__cuda_of(c->call->c->device);
    cup__kernel *kernel = cup__kernel_get(gpu, "transpose_narrow.cu", "thin_fwd", knobs, 5);
    cup__grid grid = {.x = ((int64_t)argument.rows + COPY_THREADS - 1) / COPY_THREADS,
                      .threads = COPY_THREADS};
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

static cup_status copy_part(const cup__loop *part, const int64_t *offset, void *user)
{
    copying c = *(const copying *)user;
    c.y += offset[Y] * c.size;
    c.x += offset[X] * c.size;
    int across = transposed_dimension(part), few, along;
    if (is_thin(part, X, &few, &along))
        return launch_thin(&c, part, X, few, along);
    if (is_thin(part, Y, &few, &along))
        return launch_thin(&c, part, Y, few, along);
    return across < 0 ? launch_words(&c, part) : launch_tiles(&c, part, across);
}

cup_status cup__copy_cuda(cup__call *call)
{
    cup_tensor *in = call->in[0], *out = call->out[0];
    copying c = {.call = call, .size = (int)cup_dtype_size(in->dtype), .y = out->data,
                 .x = in->data};
    cup__loop loop;
    cup__loop_make(&loop, out, call->in, 1);
    cup__loop_sort(&loop);
    int last = loop.ndim - 1;
    bool plain = loop.ndim == 1 && (loop.size[0] == 1 || (loop.stride[Y][last] == 1 &&
                                                          loop.stride[X][last] == 1));
    if (plain)
        return call->c->device->calls->copy(call->c->device, c.y, c.x,
                                            (size_t)(out->count * c.size));
    return cup__loop_parts(&loop, copy_part, &c);
}
