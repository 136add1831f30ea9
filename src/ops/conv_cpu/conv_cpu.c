/* conv2d and the gradient of x on a CPU: a block of places at a time, whose columns are laid out in
 * memory of fixed size and multiplied by the weight. The blocks follow from the shapes alone, so
 * that the number of threads changes no bit. */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "base/divide.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/wide.h"
#include "ops/conv_cpu/conv_cpu.h"
#include "tensor/floats.h"

#define PLACES 512  /* of a block, and results */
#define RESULTS 512
#define DEPTH 512   /* of columns that are laid out at a time */
#define LEAST 64    /* places and results of a block that are not cut further */
#define ENOUGH 16   /* blocks */

typedef struct job {
    cup__conv_class at;
    const cup__blas *blas; /* NULL: our own kernels */
    const float *weight;   /* of each group: results by depth */
    const float *bias;
    int64_t planes, plane; /* blocks stay within planes of so many places */
    int64_t places, results, depth; /* of a block, and of what is laid out of it at a time */
    int64_t place_blocks, result_blocks; /* the first of a plane */
    bool in_place;         /* the image is its own columns */
    atomic_int no_memory;
} job;

/* Whether each place reads one element of each channel, its own, so that the image is the matrix
 * of columns. */
static bool is_product(const cup__conv_class *l)
{
    const long long *step = l->call.x_step;
    int64_t pixel = l->last ? step[3] : 1;
    for (int d = 0; d < 2; d++) {
        const conv_line *n = &l->line[d];
        if (n->taps != 1 || n->step != 1 || n->from != 0 || n->count != n->size)
            return false;
    }
    return l->dtype == CUP_F32 && step[3] == pixel && step[2] == l->line[1].size * pixel &&
           (l->last ? step[0] == l->places * pixel : step[1] >= l->places) &&
           step[l->last ? 3 : 1] <= INT_MAX;
}

static int64_t blocks_of(const job *j)
{
    return j->planes * divide_up(j->plane, j->places) * divide_up(j->at.call.results, j->results) *
           j->at.call.groups;
}

static void choose_blocks(job *j)
{
    const conv_call *c = &j->at.call;
    j->in_place = is_product(&j->at) && (j->at.last || j->at.places >= LEAST);
    bool apart = j->in_place && !j->at.last;
    j->planes = apart ? c->images : 1;
    j->plane = apart ? j->at.places : j->at.places * c->images;
    j->places = j->plane < PLACES ? j->plane : PLACES;
    j->results = c->results < RESULTS ? c->results : RESULTS;
    while (j->places > LEAST && blocks_of(j) < ENOUGH)
        j->places = divide_up(j->places, 2);
    while (j->results > LEAST && blocks_of(j) < ENOUGH)
        j->results = divide_up(j->results, 2);
    j->place_blocks = divide_up(j->plane, j->places);
    j->result_blocks = divide_up(c->results, j->results);
    j->depth = divide_up(j->at.depth, divide_up(j->at.depth, DEPTH) + (j->at.depth == 0));
}

/* The part of the columns of a block: where the image is, or laid out in `space`. */
static cup__conv_matrix columns_of(const job *j, int64_t group, int64_t place, int64_t places,
                                   int64_t from, int64_t depth, float *space)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    if (!j->in_place) {
        cup__conv_fill(l, group, place, places, from, depth, space);
        return (cup__conv_matrix){space, l->last ? depth : places, false};
    }
    int64_t image = place / l->places, pixel = place % l->places;
    int64_t offset = l->last ? place * c->x_step[3] + from
                             : image * c->x_step[0] + pixel + from * c->x_step[1];
    return (cup__conv_matrix){(const float *)c->x + group * c->x_group + offset,
                              l->last ? c->x_step[3] : c->x_step[1], false};
}

CUP__WIDE static void add_number(float *y, float x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x;
}

/* Puts the sums of a block where they go: results by places, or with `last` places by results. */
static void finish(const job *j, int64_t group, int64_t result, int64_t results, int64_t place,
                   int64_t places, float *sums)
{
    const cup__conv_class *l = &j->at;
    const conv_call *c = &l->call;
    const float *bias = j->bias ? j->bias + group * c->results + result : NULL;
    int64_t size = cup_dtype_size(l->dtype), first = group * c->y_group + result * c->y_step[1];
    int64_t step = l->line[1].every * c->y_step[3];
    for (int64_t i = 0; bias && i < (l->last ? places : results); i++)
        if (l->last)
            cup__floats_add(sums + i * results, bias, results);
        else
            add_number(sums + i * places, bias[i], places);
    cup__conv_run run = {0};
    while (cup__conv_run_next(l, place, places, &run)) {
        int64_t row = l->line[0].first + run.row * l->line[0].every;
        int64_t column = l->line[1].first + run.column * l->line[1].every;
        char *y = (char *)c->y + (first + run.image * c->y_step[0] + row * c->y_step[2] +
                                  column * c->y_step[3]) * size;
        for (int64_t o = 0; !l->last && o < results; o++)
            cup__conv_store(y + o * c->y_step[1] * size, step, sums + o * places + run.at,
                            run.count, l->dtype);
        for (int64_t p = 0; l->last && p < run.count; p++)
            cup__store_f32(y + p * step * size, sums + (run.at + p) * results, l->dtype, results);
    }
}

static void run_block(const job *j, int64_t index, float *space)
{
    const cup__conv_class *l = &j->at;
    int64_t block = index % j->place_blocks, plane = index / j->place_blocks % j->planes;
    int64_t rest = index / j->place_blocks / j->planes;
    int64_t result = rest % j->result_blocks * j->results, group = rest / j->result_blocks;
    int64_t begin = block * j->places, place = plane * j->plane + begin;
    int64_t places = j->plane - begin < j->places ? j->plane - begin : j->places;
    int64_t results = l->call.results - result < j->results ? l->call.results - result : j->results;
    float *columns = space, *sums = columns + j->places * j->depth;
    float *more = sums + j->places * j->results;
    const float *weight = j->weight + (group * l->call.results + result) * l->depth;
    if (l->depth == 0)
        memset(sums, 0, (size_t)(places * results) * sizeof *sums);
    for (int64_t k = 0; k < l->depth; k += j->depth) {
        int64_t depth = l->depth - k < j->depth ? l->depth - k : j->depth;
        cup__conv_matrix x = columns_of(j, group, place, places, k, depth, columns);
        cup__conv_matrix w = {weight + k, l->depth, l->last};
        cup__conv_product p = {j->blas, results, places, depth, w, x, k > 0, sums, places};
        if (l->last)
            p = (cup__conv_product){j->blas, places, results, depth, x, w, k > 0, sums, results};
        cup__conv_multiply(&p, more);
    }
    finish(j, group, result, results, place, places, sums);
}

static void run_blocks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int64_t most = j->at.last ? j->places : j->results, least = j->at.last ? j->results : j->places;
    size_t floats = (size_t)(j->places * j->depth + j->places * j->results);
    float *space = cup__malloc(floats * sizeof *space + cup__conv_space(j->blas, most, least));
    if (!space) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        run_block(j, i, space);
    cup__free(space);
}

typedef struct packing {
    const cup__conv_class *at;
    float *to;
} packing;

/* Rows of the weight, in the order of the columns and in f32. */
static void pack_rows(int64_t begin, int64_t end, void *user)
{
    const packing *pack = user;
    const cup__conv_class *l = pack->at;
    const conv_call *c = &l->call;
    int64_t size = cup_dtype_size(l->dtype), high = l->line[0].taps, wide = l->line[1].taps;
    int64_t down = l->line[0].tap_every * c->w_step[2], right = l->line[1].tap_every * c->w_step[3];
    for (int64_t r = begin; r < end; r++) {
        float *to = pack->to + r * l->depth;
        const char *from = (const char *)c->w +
                           (r / c->results * c->w_group + r % c->results * c->w_step[0] +
                            l->line[0].tap * c->w_step[2] + l->line[1].tap * c->w_step[3]) * size;
        for (int64_t channel = 0; !l->last && channel < c->channels; channel++)
            for (int64_t i = 0; i < high; i++, to += wide)
                cup__conv_load(to, from + (channel * c->w_step[1] + i * down) * size, right, wide,
                               l->dtype);
        for (int64_t tap = 0; l->last && tap < high * wide; tap++, to += c->channels)
            cup__conv_load(to, from + (tap / wide * down + tap % wide * right) * size, c->w_step[1],
                           c->channels, l->dtype);
    }
}

/* Whether the weight is what packing would make of it. */
static bool weight_fits(const cup__conv_class *l)
{
    const conv_call *c = &l->call;
    const long long *step = c->w_step;
    int64_t taps = (int64_t)l->line[0].taps * l->line[1].taps;
    return l->dtype == CUP_F32 && !c->back && (!l->last || taps == 1) && step[3] == 1 &&
           step[2] == l->line[1].taps && step[1] == taps && step[0] == l->depth;
}

static cup_status run_class(cup__call *call, const cup__conv *v, const cup__blas *blas, int row,
                            int column, const float *bias)
{
    job j = {.blas = blas, .bias = bias};
    float *packed = NULL;
    bool made = cup__conv_class_make(&j.at, v, row, column);
    int64_t rows = (int64_t)v->call.groups * v->call.results;
    if (made && !weight_fits(&j.at)) {
        packed = cup__malloc((size_t)(rows * j.at.depth + 1) * sizeof *packed);
        if (packed)
            cup__parallel_for(rows, 1 + 4096 / (j.at.depth + 1), pack_rows,
                              &(packing){&j.at, packed});
    }
    j.weight = packed ? packed : v->call.w;
    bool good = made && (packed || weight_fits(&j.at));
    if (good && j.at.places > 0) {
        choose_blocks(&j);
        cup__parallel_for(blocks_of(&j), 1, run_blocks, &j);
    }
    cup__conv_class_free(&j.at);
    cup__free(packed);
    if (!good || atomic_load(&j.no_memory))
        return cup__call_fail(call, CUP_MEMORY, "out of host memory for a block");
    return CUP_OK;
}

static cup_status run(cup__call *call, const cup__blas *blas)
{
    cup__conv v = cup__conv_of(call);
    conv_call *c = &v.call;
    float *bias = NULL;
    cup_status status = CUP_OK;
    if (call->out[0]->count == 0)
        return CUP_OK;
    if (c->bias) {
        int64_t count = (int64_t)c->groups * c->results;
        bias = cup__malloc((size_t)count * sizeof *bias);
        if (!bias)
            return cup__call_fail(call, CUP_MEMORY, "out of host memory for the bias");
        cup__conv_load(bias, c->bias, c->bias_step, count, v.dtype);
    }
    for (int i = 0; i < conv_classes(&c->side[0], c->back) && status == CUP_OK; i++)
        for (int j = 0; j < conv_classes(&c->side[1], c->back) && status == CUP_OK; j++)
            status = run_class(call, &v, blas, i, j, bias);
    cup__free(bias);
    return status;
}

const char *cup__conv_cpu_refuses(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

const char *cup__conv_blas_refuses(const cup__call *call)
{
    const cup__blas *blas = cup__blas_get();
    return blas->found ? cup__conv_cpu_refuses(call) : blas->text;
}

cup_status cup__conv_blas(cup__call *call)
{
    return run(call, cup__blas_get());
}

cup_status cup__conv_blocked(cup__call *call)
{
    return run(call, NULL);
}
