/* Reductions on all cores. The elements are cut into pieces by their number alone, each piece is
 * folded in double precision, and the pieces of a result are joined in order, so that the bits do
 * not depend on the threads. */
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "ops/reduce/reduce.h"

#define LANES 128     /* partial results side by side, enough to hide the latency of an addition */
#define FEW_LANES 32  /* for runs of fewer than FEW elements */
#define FEW 2048
#define TILE 1024     /* columns folded together; their partial results fit the first cache */
#define PIECE 131072  /* elements folded in one go */

typedef struct job {
    cup__call *call;
    const cup__fold *fold;
    cup__reduction r;
    /* The kept dimension along which a tile lies, -1 to fold along rows; its index step in the
     * result, and what is left of the results without it. */
    int across;
    int64_t across_step, tiles, outer;
    int64_t pieces, piece; /* of each result, and their elements */
    double *partial;       /* [outputs, pieces] */
    const double *shift;   /* [outputs] or NULL */
    double *folded;        /* [outputs], when joined */
} job;

static void fold_rows(const job *j, double *acc, const double *shift, const char *at, int64_t rows,
                      int64_t stride, int64_t count)
{
    cup_dtype dtype = j->call->in[0]->dtype;
    float buffer[TILE];
    if (dtype == CUP_F32) {
        j->fold->f32(acc, shift, (const float *)(const void *)at, rows, stride, count);
    } else if (dtype == CUP_F64) {
        j->fold->f64(acc, shift, (const double *)(const void *)at, rows, stride, count);
    } else {
        for (int64_t row = 0; row < rows; row++) {
            cup__load_f32(buffer, at + row * stride * 2, dtype, count);
            j->fold->f32(acc, shift, buffer, 1, 0, count);
        }
    }
}

/* Elements in a row, folded by lanes. */
static void fold_run(const job *j, double *lanes, const double *shift, const char *at,
                     int64_t count)
{
    int64_t size = cup_dtype_size(j->call->in[0]->dtype);
    int64_t width = count < FEW ? FEW_LANES : LANES, rows = count / width, rest = count % width;
    if (rows)
        fold_rows(j, lanes, shift, at, rows, width, width);
    if (rest)
        fold_rows(j, lanes, shift, at + rows * width * size, 1, 0, rest);
}

/* Brings elements that do not lie in a row together and folds them. */
static void fold_gathered(const job *j, double *lanes, const double *shift, int64_t base,
                          int64_t begin, int64_t end)
{
    double buffer[FEW_LANES];
    for (int64_t i = begin; i < end; i += FEW_LANES) {
        int64_t count = end - i < FEW_LANES ? end - i : FEW_LANES;
        for (int64_t k = 0; k < count; k++)
            buffer[k] = cup__load(j->call->in[0], base + cup__reduction_folded(&j->r, i + k));
        j->fold->f64(lanes, shift, buffer, 1, 0, count);
    }
}

static double fold_piece(const job *j, int64_t output, int64_t begin, int64_t end)
{
    const cup__reduction *r = &j->r;
    const cup_tensor *in = j->call->in[0];
    double lanes[LANES], shift[LANES];
    int64_t used = end - begin < FEW ? FEW_LANES : LANES;
    for (int64_t i = 0; i < used; i++) {
        lanes[i] = j->fold->start;
        shift[i] = j->shift ? j->shift[output] : 0;
    }
    int64_t base = cup__reduction_kept(r, output), last = r->folded - 1;
    if (last >= 0 && r->folded_stride[last] != 1) {
        fold_gathered(j, lanes, shift, base, begin, end);
    } else {
        int64_t run = last < 0 ? 1 : r->folded_size[last];
        for (int64_t i = begin, count; i < end; i += count) {
            count = run - i % run < end - i ? run - i % run : end - i;
            int64_t offset = base + cup__reduction_folded(r, i);
            fold_run(j, lanes, shift, (const char *)in->data + offset * cup_dtype_size(in->dtype),
                     count);
        }
    }
    for (int64_t width = used / 2; width > 0; width /= 2)
        j->fold->join(lanes, lanes + width, width);
    return lanes[0];
}

static void fold_along(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task % j->pieces * j->piece, left = j->r.length - first;
        j->partial[task] = fold_piece(j, task / j->pieces, first,
                                      first + (left < j->piece ? left : j->piece));
    }
}

/* The index in the result of the first column of an outer row: the outer index with a zero put in
 * where the dimension across stands. */
static int64_t output_of(const job *j, int64_t outer)
{
    int64_t inner = outer % j->across_step;
    return outer / j->across_step * j->across_step * j->r.kept_size[j->across] + inner;
}

static void fold_tile(const job *j, int64_t outer, int64_t tile, int64_t piece)
{
    const cup__reduction *r = &j->r;
    const cup_tensor *in = j->call->in[0];
    double acc[TILE], shift[TILE];
    int64_t column = tile * TILE, width = r->kept_size[j->across] - column;
    int64_t count = width < TILE ? width : TILE, last = r->folded - 1;
    int64_t output = output_of(j, outer) + column * j->across_step;
    for (int64_t i = 0; i < count; i++) {
        acc[i] = j->fold->start;
        shift[i] = j->shift ? j->shift[output + i * j->across_step] : 0;
    }
    int64_t base = cup__reduction_kept(r, output), size = cup_dtype_size(in->dtype);
    int64_t begin = piece * j->piece, end = begin + j->piece;
    if (end > r->length)
        end = r->length;
    for (int64_t i = begin, rows; i < end; i += rows) {
        int64_t run = last < 0 ? 1 : r->folded_size[last];
        rows = run - i % run < end - i ? run - i % run : end - i;
        fold_rows(j, acc, shift,
                  (const char *)in->data + (base + cup__reduction_folded(r, i)) * size, rows,
                  last < 0 ? 0 : r->folded_stride[last], count);
    }
    for (int64_t i = 0; i < count; i++)
        j->partial[(output + i * j->across_step) * j->pieces + piece] = acc[i];
}

static void fold_across(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t task = begin; task < end; task++) {
        int64_t piece = task % j->pieces, rest = task / j->pieces;
        fold_tile(j, rest / j->tiles, rest % j->tiles, piece);
    }
}

static void join(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t i = begin; i < end; i++) {
        j->folded[i] = j->partial[i * j->pieces];
        for (int64_t piece = 1; piece < j->pieces; piece++)
            j->fold->join(&j->folded[i], &j->partial[i * j->pieces + piece], 1);
    }
}

static void finish(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    for (int64_t i = begin; i < end; i++) {
        double shift = j->shift ? j->shift[i] : 0;
        cup__store(j->call->out[0], i,
                   j->fold->finish(j->call, (double)j->r.length, j->folded[i], shift));
    }
}

/* Whether to fold along the elements of a result or across many results at once. */
static void plan(job *j)
{
    const cup__reduction *r = &j->r;
    j->across = -1;
    int64_t step = 1;
    for (int i = r->kept; i-- > 0; step *= r->kept_size[i])
        if (r->kept_stride[i] == 1 && r->kept_size[i] >= 8) {
            j->across = i;
            j->across_step = step;
        }
    if (j->across >= 0) {
        int64_t width = r->kept_size[j->across];
        j->tiles = (width + TILE - 1) / TILE;
        j->outer = r->outputs / width;
        j->piece = PIECE / (width < TILE ? width : TILE);
    } else {
        j->piece = PIECE;
    }
    j->pieces = r->length > j->piece ? (r->length + j->piece - 1) / j->piece : 1;
}

static void pass(job *j, const cup__fold *fold)
{
    j->fold = fold;
    int64_t each = j->r.length < j->piece ? j->r.length : j->piece;
    if (j->across >= 0)
        cup__parallel_for(j->outer * j->tiles * j->pieces, PIECE / 2 / (each * 8 + 1) + 1,
                          fold_across, j);
    else
        cup__parallel_for(j->r.outputs * j->pieces, PIECE / 2 / (each + 1) + 1, fold_along, j);
    cup__parallel_for(j->r.outputs, PIECE / 4 / j->pieces + 1, join, j);
}

static void run(job *j, double *memory)
{
    const cup__fold *fold = j->call->op->fold;
    int64_t outputs = j->r.outputs;
    double *shift = memory + outputs;
    j->folded = memory;
    j->partial = shift + outputs;
    if (fold->first) {
        for (int64_t i = 0; i < outputs && fold->from_first; i++)
            shift[i] = j->r.length ? cup__load(j->call->in[0], cup__reduction_kept(&j->r, i)) : 0;
        j->shift = fold->from_first ? shift : NULL;
        pass(j, fold->first);
        for (int64_t i = 0; i < outputs; i++)
            shift[i] = fold->first->finish(j->call, (double)j->r.length, j->folded[i],
                                           fold->from_first ? shift[i] : 0);
        j->shift = shift;
    }
    pass(j, fold);
    cup__parallel_for(outputs, PIECE / 16, finish, j);
}

const char *cup__reduce_cpu_refuses(const cup__call *call)
{
    return cup__dtype_is_float(call->in[0]->dtype) ? NULL : "integers are folded one by one";
}

cup_status cup__reduce_cpu(cup__call *call)
{
    job j = {.call = call};
    cup__reduction_make(&j.r, call);
    plan(&j);
    cup__shape shape = {.dtype = CUP_F64, .ndim = 2, .size = {j.r.outputs, j.pieces + 2}};
    cup_tensor *memory = cup__tensor_make(call->c, &shape, "partial results");
    if (!memory)
        return call->c->error.status;
    run(&j, memory->data);
    cup_tensor_free(memory);
    return CUP_OK;
}

const cup__impl cup__reduce_impls[] = {
    {.name = "lanes", .place = CUP__CPU, CUP__THRESHOLDS(1024, 4096),
     .strided = true, .refuses = cup__reduce_cpu_refuses,
     .run = cup__reduce_cpu},
    {.name = "pieces", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 256, 4096, 8192),
     .strided = true, .run = cup__reduce_cuda},
    {0},
};
