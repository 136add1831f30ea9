/* Batchnorm and groupnorm on all cores, in single precision along runs of neighbouring elements.
 * Statistics are made of fixed blocks of x, so that they do not depend on the number of threads. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/stream.h"
#include "dispatch/attributes.h"
#include "ops/norm/channelnorm.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#define LANES 32
#define RUN 2048     /* elements converted and summed in single precision at a time */
#define SLICE 64     /* rows whose columns are summed in single precision */
#define GRAIN 16384  /* elements worth a task */

/* Sums behind one channel of one block: of the distance from the pivot and its square, or of dy and
 * dy times the normalised x. */
typedef struct pair {
    double first, second;
} pair;

/* One pass over x: [outer, channels, after], in blocks of whole planes or, where channels lie
 * innermost, of SLICE rows. */
typedef struct pass {
    cup__channels at;
    const cup_tensor *x, *dy, *mask; /* of dy */
    const cup_tensor *residual;
    cup_tensor *out;
    bool relu;
    pair *sums;         /* a block of channels: [blocks, channels] */
    int64_t outer;      /* instances * before */
    int64_t slices;     /* of an instance, where channels lie innermost */
    const float *mean, *scale, *shift, *slope; /* [instances, channels]; see apply_run */
    const float *pivot; /* [instances, channels] */
    bool stream;        /* the result goes around the caches */
} pass;

/* Elements of dy as floats, 0 where their bits are not set. */
static const float *flowing(const pass *p, int64_t at, int64_t count, float *buffer)
{
    if (!p->dy)
        return NULL;
    const float *dy = cup__floats_of(p->dy, at, count, buffer);
    if (!p->mask)
        return dy;
    for (int64_t i = 0; i < count; i++)
        buffer[i] = cup__mask_bit(p->mask, at + i) ? dy[i] : 0;
    return buffer;
}

/* Of x - pivot and its square; or, with dy, of dy and dy (x - pivot). */
CUP__WIDE static void sum_run(const float *x, const float *dy, int64_t count, float pivot, pair *to)
{
    float first[LANES] = {0}, second[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float d = x[i + k] - pivot, f = dy ? dy[i + k] : d;
            first[k] += f;
            second[k] += f * d;
        }
    for (int k = 0; i < count; i++, k++) {
        float d = x[i] - pivot, f = dy ? dy[i] : d;
        first[k] += f;
        second[k] += f * d;
    }
    to->first += (double)cup__floats_join(first, LANES);
    to->second += (double)cup__floats_join(second, LANES);
}

/* The same of a row of channels, one after the other. */
CUP__WIDE static void sum_row(const float *x, const float *dy, int64_t count, const float *pivot,
                              float *first, float *second)
{
    for (int64_t i = 0; i < count; i++) {
        float d = x[i] - pivot[i], f = dy ? dy[i] : d;
        first[i] += f;
        second[i] += f * d;
    }
}

static void sum_planes(int64_t begin, int64_t end, void *user)
{
    const pass *p = user;
    float buffers[2][RUN];
    for (int64_t plane = begin; plane < end; plane++) {
        int64_t channel = plane % p->at.channels, outer = plane / p->at.channels;
        float pivot = p->pivot[outer / p->at.before * p->at.channels + channel];
        pair *sums = &p->sums[plane];
        *sums = (pair){0, 0};
        for (int64_t i = 0; i < p->at.after; i += RUN) {
            int64_t at = plane * p->at.after + i, left = p->at.after - i;
            int64_t count = left < RUN ? left : RUN;
            sum_run(cup__floats_of(p->x, at, count, buffers[0]),
                    flowing(p, at, count, buffers[1]), count, pivot, sums);
        }
    }
}

static void sum_slice_part(const pass *p, int64_t slice, int64_t from, int64_t count)
{
    float buffers[2][RUN / 4], first[RUN / 4] = {0}, second[RUN / 4] = {0};
    int64_t instance = slice / p->slices, channels = p->at.channels;
    int64_t row = slice % p->slices * SLICE, last = row + SLICE;
    for (; row < last && row < p->at.before; row++) {
        int64_t at = (instance * p->at.before + row) * channels + from;
        sum_row(cup__floats_of(p->x, at, count, buffers[0]),
                flowing(p, at, count, buffers[1]), count,
                p->pivot + instance * channels + from, first, second);
    }
    for (int64_t i = 0; i < count; i++)
        p->sums[slice * channels + from + i] = (pair){(double)first[i], (double)second[i]};
}

static void sum_slices(int64_t begin, int64_t end, void *user)
{
    const pass *p = user;
    for (int64_t slice = begin; slice < end; slice++)
        for (int64_t c = 0; c < p->at.channels; c += RUN / 4) {
            int64_t left = p->at.channels - c;
            sum_slice_part(p, slice, c, left < RUN / 4 ? left : RUN / 4);
        }
}

static int64_t grain_of(int64_t each)
{
    return each >= GRAIN ? 1 : GRAIN / (each + 1) + 1;
}

/* Blocks that have sums of their own, of every channel. */
static int64_t blocks_of(const pass *p)
{
    return p->at.after == 1 ? p->at.instances * p->slices : p->outer;
}

static void sum_all(pass *p)
{
    if (p->at.after == 1)
        cup__parallel_for(blocks_of(p), grain_of(SLICE * p->at.channels), sum_slices, p);
    else
        cup__parallel_for(p->outer * p->at.channels, grain_of(p->at.after), sum_planes, p);
}

/* The sums of one channel of one instance. */
static pair total_of(const pass *p, int64_t instance, int64_t channel)
{
    int64_t blocks = blocks_of(p) / p->at.instances;
    pair total = {0, 0};
    for (int64_t i = 0; i < blocks; i++) {
        const pair *s = &p->sums[(instance * blocks + i) * p->at.channels + channel];
        total.first += s->first;
        total.second += s->second;
    }
    return total;
}

/* out = (x - mean) scale + shift, or with dy out = dy scale + (x - mean) slope + shift. */
CUP__WIDE static void apply_run(float *out, const float *x, const float *dy, int64_t count,
                                float mean, float scale, float slope, float shift)
{
    if (dy)
        for (int64_t i = 0; i < count; i++)
            out[i] = dy[i] * scale + ((x[i] - mean) * slope + shift);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = (x[i] - mean) * scale + shift;
}

CUP__WIDE static void apply_row(float *out, const float *x, const float *dy, int64_t count,
                                const float *mean, const float *scale, const float *slope,
                                const float *shift)
{
    if (dy)
        for (int64_t i = 0; i < count; i++)
            out[i] = dy[i] * scale[i] + ((x[i] - mean[i]) * slope[i] + shift[i]);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = (x[i] - mean[i]) * scale[i] + shift[i];
}

CUP__WIDE static void join_run(float *out, const float *residual, int64_t count, bool relu)
{
    for (int64_t i = 0; residual && i < count; i++)
        out[i] += residual[i];
    for (int64_t i = 0; relu && i < count; i++)
        out[i] = out[i] < 0 ? 0 : out[i];
}

/* Brings a run that was made in a buffer to its place. */
static void put_run(const pass *p, int64_t at, int64_t count, const float *from, float *spare)
{
    cup_tensor *t = p->out;
    int64_t size = cup_dtype_size(t->dtype);
    void *to = (char *)t->data + at * size;
    if (!p->stream) {
        cup__store_f32(to, from, t->dtype, count);
        return;
    }
    if (t->dtype != CUP_F32)
        cup__store_f32(spare, from, t->dtype, count);
    cup__stream(to, t->dtype == CUP_F32 ? from : spare, (size_t)(count * size));
}

/* A run of a plane, or with `row` of a row of channels. */
static void apply_at(const pass *p, int64_t at, int64_t count, int64_t channel, bool row)
{
    float buffers[3][RUN];
    const float *x = cup__floats_of(p->x, at, count, buffers[0]);
    const float *dy = flowing(p, at, count, buffers[1]);
    bool direct = p->out->dtype == CUP_F32 && !p->stream;
    float *out = direct ? (float *)p->out->data + at : buffers[2];
    const float *slope = p->slope ? p->slope + channel : NULL;
    if (row)
        apply_row(out, x, dy, count, p->mean + channel, p->scale + channel, slope,
                  p->shift + channel);
    else
        apply_run(out, x, dy, count, p->mean[channel], p->scale[channel], slope ? *slope : 0,
                  p->shift[channel]);
    if (p->residual || p->relu)
        join_run(out,
                 p->residual ? cup__floats_of(p->residual, at, count, buffers[1]) : NULL, count,
                 p->relu);
    if (!direct)
        put_run(p, at, count, out, buffers[0]);
}

static void apply_lines(int64_t begin, int64_t end, void *user)
{
    const pass *p = user;
    bool row = p->at.after == 1;
    int64_t length = row ? p->at.channels : p->at.after;
    for (int64_t line = begin; line < end; line++) {
        int64_t outer = row ? line : line / p->at.channels;
        int64_t channel = outer / p->at.before * p->at.channels;
        channel += row ? 0 : line % p->at.channels;
        for (int64_t i = 0; i < length; i += RUN) {
            int64_t left = length - i;
            apply_at(p, line * length + i, left < RUN ? left : RUN, channel + (row ? i : 0), row);
        }
    }
    if (p->stream)
        cup__stream_end();
}

static void apply_all(pass *p)
{
    bool row = p->at.after == 1;
    p->stream = p->out->count * cup_dtype_size(p->out->dtype) >= CUP__STREAM_LEAST;
    cup__parallel_for(p->outer * (row ? 1 : p->at.channels),
                      grain_of(row ? p->at.channels : p->at.after), apply_lines, p);
}

/* The bytes of a mask, or the elements of dy that they let through, RUN at a time. */
static void write_mask(int64_t begin, int64_t end, void *user)
{
    const cup__channelnorm *n = user;
    float buffer[RUN];
    for (int64_t run = begin; run < end; run++) {
        int64_t at = run * RUN, left = n->y->count - at, count = left < RUN ? left : RUN;
        const float *y = cup__floats_of(n->y, at, count, buffer);
        uint8_t *bytes = (uint8_t *)n->mask->data + at / 8;
        memset(bytes, 0, (size_t)(count + 7) / 8);
        for (int64_t i = 0; i < count; i++)
            bytes[i / 8] |= (uint8_t)((y[i] > 0) << i % 8);
    }
}

static void write_residual(int64_t begin, int64_t end, void *user)
{
    const cup__channelnorm_back *b = user;
    const pass p = {.dy = b->dy, .mask = b->mask};
    float buffer[RUN];
    for (int64_t run = begin; run < end; run++) {
        int64_t at = run * RUN, left = b->dy->count - at, count = left < RUN ? left : RUN;
        char *to = (char *)b->dresidual->data + at * cup_dtype_size(b->dy->dtype);
        cup__store_f32(to, flowing(&p, at, count, buffer), b->dy->dtype, count);
    }
}

static void over_runs(int64_t count, void (*each)(int64_t, int64_t, void *), void *user)
{
    cup__parallel_for((count + RUN - 1) / RUN, GRAIN / RUN, each, user);
}

const char *cup__channelnorm_cpu_refuses(const cup__call *call)
{
    int x = call->op == &cup__op_channelnorm_grad ? 1 : 0;
    return call->in[x]->dtype == CUP_F64 ? "it computes in single precision" : NULL;
}

static double at(const cup_tensor *t, int64_t i, double missing)
{
    return t ? cup__load(t, i) : missing;
}

/* Five floats a channel of each instance, then the sums of the blocks. */
static cup_status begin_pass(cup_context *c, pass *p, cup_tensor **floats, cup_tensor **sums)
{
    p->outer = p->at.instances * p->at.before;
    p->slices = (p->at.before + SLICE - 1) / SLICE;
    cup__shape shape = {CUP_F32, 3, {5, p->at.instances, p->at.channels}};
    *floats = cup__tensor_make(c, &shape, "channels");
    shape = (cup__shape){CUP_F64, 3, {blocks_of(p), p->at.channels, 2}};
    *sums = cup__tensor_make(c, &shape, "sums of channels");
    if (!*floats || !*sums)
        return c->error.status;
    p->sums = (*sums)->data;
    return CUP_OK;
}

/* Each channel's first element in each instance. */
static void take_pivots(const pass *p, float *pivot)
{
    const cup__channels *c = &p->at;
    for (int64_t i = 0; i < c->instances; i++)
        for (int64_t k = 0; k < c->channels; k++)
            pivot[i * c->channels + k] =
                (float)cup__load(p->x, (i * c->before * c->channels + k) * c->after);
}

static void set_running(const cup__channelnorm *n, int64_t channel, double mean, double var)
{
    double m = n->momentum, count = (double)n->at.count;
    double old_mean = cup__load(n->running_mean, channel);
    double old_var = cup__load(n->running_var, channel);
    cup__store(n->running_mean, channel, old_mean + m * (mean - old_mean));
    cup__store(n->running_var, channel, old_var + m * (var * count / (count - 1) - old_var));
}

/* Mean and variance of a group from the moments of its channels. */
static void join_group(const pass *p, int64_t instance, int64_t group, double *mean, double *var)
{
    const cup__channels *c = &p->at;
    double each = (double)(c->before * c->after), squares = 0;
    *mean = *var = 0;
    if (!c->count)
        return;
    for (int64_t k = group * c->each; k < (group + 1) * c->each; k++)
        *mean += ((double)p->pivot[instance * c->channels + k] +
                  total_of(p, instance, k).first / each) / (double)c->each;
    for (int64_t k = group * c->each; k < (group + 1) * c->each; k++) {
        pair t = total_of(p, instance, k);
        double own = (double)p->pivot[instance * c->channels + k] + t.first / each;
        squares += t.second - t.first * t.first / each + each * (own - *mean) * (own - *mean);
    }
    *var = fmax(squares / (double)c->count, 0);
}

static void set_group(const cup__channelnorm *n, const pass *p, int64_t instance, int64_t group,
                      float *mean, float *scale, float *shift)
{
    double m, var;
    if (n->constant) {
        m = cup__load(n->running_mean, group);
        var = cup__load(n->running_var, group);
    } else {
        join_group(p, instance, group, &m, &var);
    }
    double rstd = 1 / sqrt(var + n->eps);
    if (n->running_mean && !n->constant && n->at.count)
        set_running(n, group, m, var);
    if (n->mean) {
        cup__store(n->mean, instance * n->at.groups + group, m);
        cup__store(n->rstd, instance * n->at.groups + group, rstd);
    }
    for (int64_t k = group * n->at.each; k < (group + 1) * n->at.each; k++) {
        int64_t to = instance * n->at.channels + k;
        mean[to] = (float)m;
        scale[to] = (float)(rstd * at(n->gamma, k, 1));
        /* What the rounding of the mean took away goes into the shift. */
        shift[to] = (float)(at(n->beta, k, 0) -
                            (m - (double)mean[to]) * rstd * at(n->gamma, k, 1));
    }
}

cup_status cup__channelnorm_cpu(cup__call *call)
{
    cup__channelnorm n = cup__channelnorm_of(call);
    pass p = {.at = n.at, .x = n.x, .out = n.y, .residual = n.residual, .relu = n.relu};
    cup_tensor *floats = NULL, *sums = NULL;
    cup_status status = begin_pass(call->c, &p, &floats, &sums);
    if (status == CUP_OK) {
        int64_t all = n.at.instances * n.at.channels;
        float *mean = floats->data, *scale = mean + all, *shift = scale + all, *pivot = shift + all;
        p.pivot = pivot;
        if (!n.constant && n.at.count) {
            take_pivots(&p, pivot);
            sum_all(&p);
        }
        for (int64_t i = 0; i < n.at.instances; i++)
            for (int64_t g = 0; g < n.at.groups; g++)
                set_group(&n, &p, i, g, mean, scale, shift);
        p.mean = mean;
        p.scale = scale;
        p.shift = shift;
        if (n.at.count)
            apply_all(&p);
        if (n.mask)
            over_runs(n.y->count, write_mask, &n);
    }
    cup_tensor_free(sums);
    cup_tensor_free(floats);
    return status;
}

/* dx = gamma rstd dy - (x - mean) rstd^2 mean(g n) - rstd mean(g) with g = gamma dy and n the
 * normalised x; the two means are 0 for fixed statistics. */
static void set_back(const cup__channelnorm_back *b, const pass *p, int64_t instance, int64_t group,
                     float *scale, float *slope, float *shift)
{
    const cup__channels *c = &b->at;
    double rstd = cup__load(b->rstd, instance * c->groups + group), sum = 0, dot = 0;
    for (int64_t k = group * c->each; k < (group + 1) * c->each && !b->constant; k++) {
        pair t = total_of(p, instance, k);
        sum += at(b->gamma, k, 1) * t.first / (double)c->count;
        dot += at(b->gamma, k, 1) * t.second * rstd / (double)c->count;
    }
    for (int64_t k = group * c->each; k < (group + 1) * c->each; k++) {
        int64_t to = instance * c->channels + k;
        scale[to] = (float)(at(b->gamma, k, 1) * rstd);
        slope[to] = (float)(-rstd * rstd * dot);
        shift[to] = (float)(-rstd * sum);
    }
}

static void set_parameters(const cup__channelnorm_back *b, const pass *p)
{
    const cup__channels *c = &b->at;
    for (int64_t k = 0; k < c->channels; k++) {
        double dgamma = 0, dbeta = 0;
        for (int64_t i = 0; i < c->instances && c->count; i++) {
            pair t = total_of(p, i, k);
            dgamma += t.second * cup__load(b->rstd, i * c->groups + k / c->each);
            dbeta += t.first;
        }
        if (b->dgamma)
            cup__store(b->dgamma, k, dgamma);
        if (b->dbeta)
            cup__store(b->dbeta, k, dbeta);
    }
}

cup_status cup__channelnorm_back_cpu(cup__call *call)
{
    cup__channelnorm_back b = cup__channelnorm_back_of(call);
    pass p = {.at = b.at, .x = b.x, .dy = b.dy, .mask = b.mask, .out = b.dx};
    cup_tensor *floats = NULL, *sums = NULL;
    cup_status status = begin_pass(call->c, &p, &floats, &sums);
    if (status == CUP_OK) {
        int64_t all = b.at.instances * b.at.channels;
        float *mean = floats->data, *scale = mean + all, *slope = scale + all, *shift = slope + all;
        for (int64_t i = 0; i < all; i++) {
            int64_t group = i % b.at.channels / b.at.each;
            mean[i] = (float)cup__load(b.mean, i / b.at.channels * b.at.groups + group);
        }
        p.pivot = p.mean = mean;
        p.scale = scale;
        p.slope = slope;
        p.shift = shift;
        if (b.at.count)
            sum_all(&p);
        for (int64_t i = 0; i < b.at.instances && b.at.count; i++)
            for (int64_t g = 0; g < b.at.groups; g++)
                set_back(&b, &p, i, g, scale, slope, shift);
        set_parameters(&b, &p);
        if (b.at.count)
            apply_all(&p);
        if (b.dresidual)
            over_runs(b.dy->count, write_residual, &b);
    }
    cup_tensor_free(sums);
    cup_tensor_free(floats);
    return status;
}
