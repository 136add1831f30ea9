/* The host side of conv_outer.cu: rows of up to 8 channels, or of what a place's taps see of so few
 * that there are 16, and rows of many. */
#include "base/divide.h"
#include "ops/conv/conv_cuda.h"

#define FEW 8                /* channels of the one side at most, */
#define FEW_PACKED 5         /* in 16 bits where they can be packed for tensor cores instead, */
#define FEW_SUMS 4           /* and where tensor cores sum over places or many channels, too */
#define CHUNK 32             /* threads side by side that a row is cut into pieces for */
#define WEIGHT_SHARED 49152  /* bytes of shared memory that every kernel may have */
#define GRID_Y_MOST 65535
#define SERIAL 256           /* places that a thread adds up behind each other */

int64_t cup__conv_step_of(const long long *step, int64_t images, int64_t high, int64_t wide)
{
    int64_t each = wide > 1 ? step[3] : high > 1 ? step[2] : step[0];
    bool even = (high == 1 || step[2] == wide * each) &&
                (images == 1 || step[0] == high * wide * each);
    return even ? each : 0;
}

int64_t cup__conv_place_step(const conv_call *c, const long long *step)
{
    return cup__conv_step_of(step, c->images, c->side[0].in, c->side[1].in);
}

/* Of y; of x there are as many where windows have one place. */
static int64_t places_of(const conv_call *c)
{
    return (int64_t)c->images * c->side[0].out * c->side[1].out;
}

static int64_t step_of(const conv_call *c, const long long *step)
{
    return cup__conv_step_of(step, c->images, c->side[0].out, c->side[1].out);
}

static bool lies_in_rows(const conv_call *c, const long long *step, int channels)
{
    return (channels == 1 || step[1] == 1) && step_of(c, step) > 0;
}

/* What all taps of a place see. */
static int64_t depth_of(const conv_call *c)
{
    return (int64_t)c->channels * c->side[0].taps * c->side[1].taps;
}

/* Whether the taps of a place are few enough to be its row. In 16 bits they are packed for tensor
 * cores instead. */
static bool gathers(const cup__conv *v)
{
    const conv_call *c = &v->call;
    return v->dtype == CUP_F32 && !cup__conv_is_product(c) && !c->back && c->groups == 1 &&
           depth_of(c) <= CONV_OUTER_GATHERED && places_of(c) < INT32_MAX;
}

/* What all three have to ask; `y_step` is that of dy for the weight's gradient. */
static const char *refuses(const cup__call *call, const cup__conv *v, const long long *y_step)
{
    const conv_call *c = &v->call;
    if (!call->c->device->is_cuda)
        return "it is for GPUs";
    if (cup__conv_is_scaled(call) || (!cup__conv_is_product(c) && !gathers(v)))
        return "its windows have more than one place, or gaps between them";
    if (depth_of(c) == 0 || c->results == 0 || places_of(c) == 0)
        return "it has nothing to sum";
    int64_t many = c->channels > c->results ? c->channels : c->results;
    if (many > (int64_t)GRID_Y_MOST * CHUNK)
        return "it has too many channels";
    if ((!gathers(v) && !lies_in_rows(c, c->x_step, c->channels)) ||
        !lies_in_rows(c, y_step, c->results))
        return "the channels of places are no neighbours in memory, or places lie apart";
    return NULL;
}

static const char *refuses_residual(const cup__conv *v)
{
    const int64_t *r = v->residual_step;
    const long long step[4] = {r[0], r[1], r[2], r[3]};
    return v->residual && !lies_in_rows(&v->call, step, v->call.results)
               ? "the residual does not lie as the result does"
               : NULL;
}

const char *cup__conv_rows_refuses(const cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    const char *why = refuses(call, &v, v.call.y_step);
    if (why)
        return why;
    if (v.call.channels > FEW && !gathers(&v))
        return "it sums over many channels";
    if (v.call.channels > FEW_PACKED && cup_dtype_size(v.dtype) == 2 &&
        !cup__conv_wgmma_few_refuses(call))
        return "tensor cores are faster for so many channels, packed";
    return refuses_residual(&v);
}

const char *cup__conv_dots_refuses(const cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    const char *why = refuses(call, &v, v.call.y_step);
    if (why)
        return why;
    if (gathers(&v))
        return "its windows have more than one place";
    int64_t size = cup_dtype_size(v.dtype), real = size < 4 ? 4 : size;
    if (v.call.results > (size == 2 ? FEW_SUMS : FEW))
        return "it makes many channels";
    if (v.call.results * v.call.channels > WEIGHT_SHARED / real)
        return "its weight is too large for shared memory";
    return refuses_residual(&v);
}

const char *cup__conv_weight_rows_refuses(const cup__call *call)
{
    const cup__conv v = cup__conv_of(call);
    const char *why = refuses(call, &v, v.call.w_step);
    if (why)
        return why;
    if (v.dtype == CUP_F64)
        return "it sums in f32";
    int64_t most = cup_dtype_size(v.dtype) == 2 ? FEW_SUMS : FEW;
    return !gathers(&v) && smaller(v.call.channels, v.call.results) > most
               ? "both sides have many channels"
               : NULL;
}

/* Rows of channels that are neighbours. */
typedef struct lines {
    const void *data;
    int64_t step; /* from row to row */
    int count;
} lines;

/* How many channels of all rows can be read at once. */
static int vector_of(const lines *l, int64_t size)
{
    int vector = (int)(16 / size);
    while (vector > 1 && (lowest_bit(l->step | l->count) < vector ||
                          (uintptr_t)l->data % (uintptr_t)(size * vector)))
        vector /= 2;
    return vector;
}

typedef struct job {
    cup__call *call;
    cup__conv v;
    conv_rows rows;
    int few, few_vector, vector;
    bool gathers;
} job;

/* Where the taps of places are, of an image. */
static void set_gather(job *j)
{
    const conv_call *c = &j->v.call;
    conv_rows *r = &j->rows;
    for (int d = 0; d < 2; d++) {
        const conv_line l = conv_line_of(&c->side[d], false, 0);
        r->from[d] = l.from;
        r->step[d] = l.step;
        r->apart[d] = l.tap_step;
        r->size[d] = l.size;
    }
    r->high = divisor_of(c->side[0].out);
    r->wide = divisor_of(c->side[1].out);
    for (int i = 0; i < 4; i++)
        r->image_step[i] = c->x_step[i];
    for (int i = 0; i < 3; i++)
        r->tap_step[i] = c->w_step[i + 1];
}

static void set_rows(job *j, const lines *few, const lines *many)
{
    int64_t size = cup_dtype_size(j->v.dtype);
    j->few = few->count;
    j->few_vector = j->gathers ? 1 : vector_of(few, size);
    j->vector = vector_of(many, size);
    j->rows.places = places_of(&j->v.call);
    j->rows.few = (void *)(uintptr_t)few->data;
    j->rows.many = (void *)(uintptr_t)many->data;
    j->rows.few_row = few->step;
    j->rows.many_row = many->step;
    j->rows.count = many->count;
}

/* Rows of x and y of a call that makes y. */
static job begin(cup__call *call, bool few_results)
{
    job j = {.call = call, .v = cup__conv_of(call)};
    const conv_call *c = &j.v.call;
    const int64_t *r = j.v.residual_step;
    const long long step[4] = {r[0], r[1], r[2], r[3]};
    lines x = {c->x, cup__conv_place_step(c, c->x_step), (int)depth_of(c)};
    lines y = {c->y, step_of(c, c->y_step), c->results};
    lines residual = {j.v.residual, j.v.residual ? step_of(c, step) : 0, c->results};
    j.gathers = gathers(&j.v);
    if (j.gathers)
        set_gather(&j);
    set_rows(&j, few_results ? &y : &x, few_results ? &x : &y);
    if (j.v.residual && !few_results)
        j.vector = (int)smaller(j.vector, vector_of(&residual, cup_dtype_size(j.v.dtype)));
    if (!few_results && j.few > FEW_SUMS) /* as a thread keeps all their weights in registers */
        j.vector = (int)smaller(j.vector, 4);
    j.rows.weight = c->w;
    j.rows.weight_few = c->w_step[few_results ? 0 : 1];
    j.rows.weight_many = c->w_step[few_results ? 1 : 0];
    j.rows.bias = c->bias;
    j.rows.bias_step = c->bias_step;
    j.rows.residual = j.v.residual;
    j.rows.residual_row = residual.step;
    return j;
}

static cup_status launch(job *j, const char *entry, cup__grid grid)
{
    cup__cuda *gpu = cup__cuda_of(j->call->c->device);
    cup__knob knobs[] = {{"CUP_T", j->v.dtype},
                         {"FEW", j->few},
                         {"VEC", j->vector},
                         {"FEW_VEC", j->few_vector},
                         {"RESIDUAL", j->rows.residual != NULL},
                         {"ACTIVATION", j->v.activation},
                         {"GATHER", j->v.call.channels},
                         {"TAPS_HIGH", j->v.call.side[0].taps},
                         {"TAPS_WIDE", j->v.call.side[1].taps}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "conv_outer.cu", entry, knobs, j->gathers ? 9 : 6);
    return kernel ? cup__launch(gpu, kernel, grid, CUP__ARG(j->rows)) : j->call->c->error.status;
}

/* Sets the threads that a piece of a row has, all pieces as even as they can be; returns how many
 * pieces there are. */
static int64_t cut_rows(job *j)
{
    int64_t vectors = j->rows.count / j->vector, pieces = divide_up(vectors, CHUNK);
    j->rows.lanes = (int)divide_up(vectors, pieces);
    return pieces;
}

static int64_t blocks_at_once(const job *j, int each, int64_t pieces)
{
    int64_t all = cup__cuda_facts(cup__cuda_of(j->call->c->device))->multiprocessors;
    return divide_up(all * each, pieces);
}

/* Places that a thread has at a time. */
static int each_of(const job *j)
{
    return CONV_OUTER_EACH(j->gathers);
}

cup_status cup__conv_rows(cup__call *call)
{
    job j = begin(call, false);
    int64_t pieces = cut_rows(&j), slots = CONV_THREADS / j.rows.lanes;
    int64_t most = blocks_at_once(&j, CONV_OUTER_BLOCKS(j.few), pieces);
    return launch(&j, "conv_outer",
                  (cup__grid){.x = smaller(divide_up(j.rows.places, slots * each_of(&j)), most),
                              .y = pieces, .threads = CONV_THREADS});
}

/* A power of two: the largest that leaves few threads without channels. */
static int lanes_of(int64_t vectors)
{
    int lanes = CHUNK;
    while (lanes > 1 && round_up(vectors, lanes) > vectors + vectors / 8)
        lanes /= 2;
    return lanes;
}

cup_status cup__conv_dots(cup__call *call)
{
    job j = begin(call, true);
    int64_t real = cup_dtype_size(j.v.dtype) < 4 ? 4 : cup_dtype_size(j.v.dtype);
    j.rows.lanes = lanes_of(j.rows.count / j.vector);
    int64_t slots = CONV_THREADS / j.rows.lanes;
    return launch(&j, "conv_dots",
                  (cup__grid){.x = smaller(divide_up(j.rows.places, slots * each_of(&j)),
                                           blocks_at_once(&j, CONV_OUTER_BLOCKS(j.few), 1)),
                              .threads = CONV_THREADS,
                              .shared = (int)(j.few * j.rows.count * real)});
}

/* Parts for blocks that run at once, or so many that a thread adds up SERIAL places at most. */
static cup_tensor *make_parts(job *j, int64_t pieces, conv_parts *out)
{
    const conv_call *c = &j->v.call;
    int64_t slots = CONV_THREADS / j->rows.lanes, all = j->rows.places;
    int64_t part = divide_up(all, blocks_at_once(j, CONV_OUTER_WEIGHT_BLOCKS, pieces));
    part = round_up(smaller(part, slots * SERIAL), slots);
    *out = (conv_parts){.all = all, .part = part, .parts = (int)divide_up(all, part),
                        .depth = (int)depth_of(c), .channels = c->channels};
    cup__shape shape = {CUP_F32, 2, {out->parts, c->results * depth_of(c)}};
    cup_tensor *sums = cup__tensor_make(j->call->c, &shape, "partial sums");
    out->sums = sums ? sums->data : NULL;
    return sums;
}

cup_status cup__conv_weight_rows(cup__call *call)
{
    job j = {.call = call, .v = cup__conv_of(call)};
    const conv_call *c = &j.v.call;
    lines x = {c->x, cup__conv_place_step(c, c->x_step), (int)depth_of(c)};
    lines dy = {c->w, step_of(c, c->w_step), c->results};
    conv_parts parts;
    j.gathers = gathers(&j.v);
    if (j.gathers)
        set_gather(&j);
    bool few_results = !j.gathers && c->results < c->channels;
    set_rows(&j, few_results ? &dy : &x, few_results ? &x : &dy);
    j.rows.weight_few = few_results ? c->channels : 1;
    j.rows.weight_many = few_results ? 1 : depth_of(c);
    int64_t pieces = cut_rows(&j);
    cup_tensor *sums = make_parts(&j, pieces, &parts);
    j.rows.sums = parts.sums;
    j.rows.part = parts.part;
    if (sums && launch(&j, "conv_outer_weight", (cup__grid){.x = parts.parts, .y = pieces,
                                                            .threads = CONV_THREADS}) == CUP_OK)
        cup__conv_add_parts(call, &j.v, &parts);
    cup_tensor_free(sums);
    return call->c->error.status;
}
