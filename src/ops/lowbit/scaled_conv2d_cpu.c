/* Convolutions of codes of 8 bits on a CPU. What a place reads is put side by side, so that each
 * result of integers is one exact sum; other codes become f32 and go the way of conv2d. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/conv/conv.h"
#include "ops/lowbit/scaled.h"

#define GRAIN (1 << 16) /* products in a piece of work */

typedef struct job {
    cup_tensor *out;
    const cup_tensor *sums; /* of products of f32, or NULL */
    cup__conv v;
    const int8_t *weight; /* [result][row][column][channel], or NULL */
    int64_t depth;
    atomic_int no_memory;
} job;

/* Puts a sum of the element of `at` in y, of all results number `result`. */
static void put(const job *j, float sum, int64_t result, int64_t at)
{
    const conv_call *c = &j->v.call;
    float scale = (c->x_scale ? *c->x_scale : 1.0f) *
                  (c->w_scale ? c->w_scale[result * c->scale_step] : 1.0f);
    float v = sum * scale + (c->bias ? ((const float *)c->bias)[result * c->bias_step] : 0.0f);
    cup__store_f32((char *)j->out->data + at * cup_dtype_size(j->out->dtype), &v, j->out->dtype, 1);
}

/* What a place reads of a group, by row and column of the kernel and then channel. */
static void gather(const conv_call *c, int64_t image, int64_t group, int row, int column,
                   int8_t *to)
{
    const conv_side *s = c->side;
    const int8_t *x = (const int8_t *)c->x + image * c->x_step[0] + group * c->x_group;
    for (int i = 0; i < s[0].taps; i++)
        for (int t = 0; t < s[1].taps; t++, to += c->channels) {
            int64_t high = (int64_t)row * s[0].stride + (int64_t)i * s[0].dilation - s[0].before;
            int64_t wide = (int64_t)column * s[1].stride + (int64_t)t * s[1].dilation - s[1].before;
            const int8_t *from = x + high * c->x_step[2] + wide * c->x_step[3];
            if (high < 0 || high >= s[0].in || wide < 0 || wide >= s[1].in)
                memset(to, 0, (size_t)c->channels);
            else if (c->x_step[1] == 1)
                memcpy(to, from, (size_t)c->channels);
            else
                for (int64_t k = 0; k < c->channels; k++)
                    to[k] = from[k * c->x_step[1]];
        }
}

static void whole_row(job *j, int64_t index, int8_t *space)
{
    const conv_call *c = &j->v.call;
    int64_t group = index % c->groups, rest = index / c->groups;
    int row = (int)(rest % c->side[0].out);
    int64_t image = rest / c->side[0].out;
    for (int column = 0; column < c->side[1].out; column++) {
        gather(c, image, group, row, column, space);
        for (int64_t i = 0; i < c->results; i++) {
            int64_t result = group * c->results + i;
            int32_t sum = cup__scaled_dot(space, j->weight + result * j->depth, j->depth);
            put(j, (float)sum, result, image * c->y_step[0] + result * c->y_step[1] +
                                           row * c->y_step[2] + column * c->y_step[3]);
        }
    }
}

static void whole_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    int8_t *space = cup__malloc((size_t)j->depth + 1);
    if (!space) {
        atomic_store(&j->no_memory, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        whole_row(j, i, space);
    cup__free(space);
}

/* Element numbers count as in a row-major result. */
static void float_sums(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    const int64_t places = j->out->shape[2] * j->out->shape[3], results = j->out->shape[1];
    for (int64_t i = begin; i < end; i++)
        put(j, ((const float *)j->sums->data)[cup__offset_of(j->sums, i)], i / places % results,
            cup__offset_of(j->out, i));
}

static cup_status run_whole(cup__call *call, job *j)
{
    cup_context *c = call->c;
    const conv_call *v = &j->v.call;
    cup_tensor *turned = cup_permute(c, call->in[1], (int64_t[]){0, 2, 3, 1}, 4);
    cup_tensor *weight = turned ? cup__contiguous(c, turned) : NULL;
    int64_t rows = (int64_t)v->images * v->side[0].out * v->groups;
    if (weight) {
        j->weight = weight->data;
        j->depth = (int64_t)v->channels * v->side[0].taps * v->side[1].taps;
        int64_t each = v->side[1].out * (v->results + 1) * (j->depth + 1);
        cup__parallel_for(rows, GRAIN / (each + 1) + 1, whole_rows, j);
    }
    if (weight != turned)
        cup_tensor_free(weight);
    cup_tensor_free(turned);
    if (atomic_load(&j->no_memory))
        return cup__call_fail(call, CUP_MEMORY, "out of host memory for a row");
    return c->error.status;
}

static cup_status run_floats(cup__call *call, job *j)
{
    cup_context *c = call->c;
    const cup__conv2d_attributes a = cup__conv_attributes(call);
    cup_tensor *in[3] = {cup_cast(c, call->in[0], CUP_F32), cup_cast(c, call->in[1], CUP_F32)};
    cup_tensor *sums =
        in[0] && in[1] ? cup__op_call(c, &cup__rows[CUP__OP_conv2d], in, 3, &a, NULL) : NULL;
    if (sums) {
        j->sums = sums;
        cup__parallel_for(j->out->count, GRAIN / 16, float_sums, j);
    }
    cup_tensor_free(sums);
    cup_tensor_free(in[0]);
    cup_tensor_free(in[1]);
    return c->error.status;
}

cup_status cup__scaled_conv_cpu(cup__call *call)
{
    job j = {.out = call->out[0], .v = cup__conv_of(call)};
    if (j.out->count == 0)
        return CUP_OK;
    return j.v.dtype == CUP_I8 ? run_whole(call, &j) : run_floats(call, &j);
}
