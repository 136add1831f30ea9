/* The gradient of conv2d's weight on a CPU: products of dy with the columns of x, over blocks of
 * places that are put together into a fixed number of parts, which are summed in order. */
#include <stdatomic.h>
#include <string.h>

#include "base/divide.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "ops/conv_cpu/conv_cpu.h"
#include "tensor/floats.h"

#define PLACES 512 /* of a block, and elements of the weight's rows, and of its columns */
#define RESULTS 512
#define DEPTH 256
#define ENOUGH 16                   /* tasks */
#define MOST_PARTS ((int64_t)1 << 24) /* elements of all parts, where there are several */

typedef struct job {
    cup__conv_class x, dy; /* dy as the columns of a kernel of one place */
    const cup__blas *blas;
    int64_t all, places, blocks; /* places of all images, of a block, and blocks */
    int64_t depth, depths, results, result_blocks; /* of a task */
    int64_t parts, part;   /* blocks of a part */
    float *sums;           /* of each part: groups by results by depth */
    atomic_int no_memory;
} job;

/* Sums have rows of results and columns of depth, which lie as the call's columns do. */
static float *sums_of(const job *j, int64_t part, int64_t group, int64_t result)
{
    const conv_call *c = &j->x.call;
    return j->sums + ((part * c->groups + group) * c->results + result) * j->x.depth;
}

static void run_task(const job *j, int64_t index, float *space)
{
    const conv_call *c = &j->x.call;
    int64_t part = index % j->parts, rest = index / j->parts;
    int64_t from = rest % j->depths * j->depth, group = rest / j->depths / j->result_blocks;
    int64_t result = rest / j->depths % j->result_blocks * j->results;
    int64_t depth = j->x.depth - from < j->depth ? j->x.depth - from : j->depth;
    int64_t results = c->results - result < j->results ? c->results - result : j->results;
    float *columns = space, *others = columns + j->places * j->depth;
    float *more = others + j->places * j->results, *to = sums_of(j, part, group, result) + from;
    int64_t end = (part + 1) * j->part * j->places, first = part * j->part * j->places;
    for (int64_t place = first; place < end && place < j->all; place += j->places) {
        int64_t places = j->all - place < j->places ? j->all - place : j->places;
        cup__conv_fill(&j->x, group, place, places, from, depth, columns);
        cup__conv_fill(&j->dy, group, place, places, result, results, others);
        cup__conv_matrix x = {columns, j->x.last ? depth : places, !j->x.last};
        cup__conv_matrix dy = {others, j->dy.last ? results : places, j->dy.last};
        cup__conv_product p = {j->blas, results, depth, places, dy, x, place > first, to,
                               j->x.depth};
        cup__conv_multiply(&p, more);
    }
}

static void run_tasks(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    size_t floats = (size_t)(j->places * (j->depth + j->results));
    float *space =
        cup__malloc(floats * sizeof *space + cup__conv_space(j->blas, j->results, j->depth));
    if (!space) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        run_task(j, i, space);
    cup__free(space);
}

/* Rows of the result, each the sum of its parts. */
static void finish_rows(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    const conv_call *c = &j->x.call;
    int64_t size = cup_dtype_size(j->x.dtype), wide = c->side[1].taps;
    int64_t taps = c->side[0].taps * wide;
    for (int64_t r = begin; r < end; r++) {
        float *sum = sums_of(j, 0, r / c->results, r % c->results);
        for (int64_t p = 1; p < j->parts; p++)
            cup__floats_add(sum, sums_of(j, p, r / c->results, r % c->results), j->x.depth);
        char *to = (char *)c->y + r * c->y_step[0] * size;
        for (int64_t k = 0; k < j->x.depth; k += j->x.last ? c->channels : 1) {
            int64_t tap = j->x.last ? k / c->channels : k % taps;
            int64_t channel = j->x.last ? 0 : k / taps, count = j->x.last ? c->channels : 1;
            int64_t at = channel * c->y_step[1] + tap / wide * c->y_step[2] +
                         tap % wide * c->y_step[3];
            cup__conv_store(to + at * size, c->y_step[1], sum + k, count, j->x.dtype);
        }
    }
}

/* dy as an image whose columns are its own elements. */
static cup__conv elements_of_dy(const cup__conv *v)
{
    cup__conv dy = *v;
    conv_call *c = &dy.call;
    c->x = v->call.w;
    memcpy(c->x_step, v->call.w_step, sizeof c->x_step);
    c->x_group = v->call.w_group;
    c->channels = v->call.results;
    for (int d = 0; d < 2; d++) {
        int out = v->call.side[d].out;
        c->side[d] = (conv_side){out, out, 1, 1, 1, 0};
    }
    return dy;
}

static void choose(job *j)
{
    const conv_call *c = &j->x.call;
    j->all = j->x.places * c->images;
    j->places = j->all < PLACES ? j->all : PLACES;
    j->blocks = divide_up(j->all, j->places);
    j->depths = divide_up(j->x.depth, DEPTH);
    j->depth = divide_up(j->x.depth, j->depths);
    j->result_blocks = divide_up(c->results, RESULTS);
    j->results = divide_up(c->results, j->result_blocks);
    int64_t tasks = c->groups * j->depths * j->result_blocks;
    int64_t size = (int64_t)c->groups * c->results * j->x.depth;
    j->parts = divide_up(ENOUGH, tasks);
    if (j->parts > MOST_PARTS / size)
        j->parts = MOST_PARTS / size;
    if (j->parts < 1)
        j->parts = 1;
    j->part = divide_up(j->blocks, j->parts);
    j->parts = divide_up(j->blocks, j->part);
}

static cup_status set_zero(cup__call *call)
{
    cup_tensor *out = call->out[0];
    for (int64_t i = 0; i < out->count; i++)
        cup__store(out, cup__offset_of(out, i), 0);
    return CUP_OK;
}

static cup_status run(cup__call *call, const cup__blas *blas)
{
    cup__conv v = cup__conv_of(call), dy = elements_of_dy(&v);
    job j = {.blas = blas};
    if (call->out[0]->count == 0 || v.call.images == 0)
        return set_zero(call);
    /* The columns of both lie alike, as the sums do. */
    bool good = cup__conv_class_make(&j.x, &v, 0, 0) && cup__conv_class_make(&j.dy, &dy, 0, 0);
    j.x.last = v.call.x_step[1] == 1 && v.call.x_step[3] != 1;
    j.dy.last = v.call.w_step[1] == 1 && v.call.w_step[3] != 1;
    if (good) {
        choose(&j);
        j.sums = cup__malloc((size_t)(j.parts * v.call.groups * v.call.results * j.x.depth) *
                             sizeof *j.sums);
    }
    if (j.sums) {
        cup__parallel_for(v.call.groups * j.depths * j.result_blocks * j.parts, 1, run_tasks, &j);
        cup__parallel_for((int64_t)v.call.groups * v.call.results, 1 + 4096 / j.x.depth,
                          finish_rows, &j);
    }
    good = good && j.sums && !atomic_load(&j.no_memory);
    cup__conv_class_free(&j.x);
    cup__conv_class_free(&j.dy);
    cup__free(j.sums);
    return good ? CUP_OK : cup__call_fail(call, CUP_MEMORY, "out of host memory for a block");
}

static cup_status run_blas(cup__call *call)
{
    return run(call, cup__blas_get());
}

static cup_status run_blocked(cup__call *call)
{
    return run(call, NULL);
}

cup_status cup__conv_weight_blas(cup__call *call)
{
    return cup__conv_weight_apart(call, run_blas);
}

cup_status cup__conv_weight_blocked(cup__call *call)
{
    return cup__conv_weight_apart(call, run_blocked);
}
