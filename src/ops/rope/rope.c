#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_call.cuh"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#define LOW 1.0
#define HIGH 4.0
#define YARN_HIGH 32.0
#define YARN_GROWTH 0.1
#define YARN_LEAST 0.001 /* pairs that its ramp takes at least */
#define POSITIONS 1      /* the input */
#define MOST_DRAWN 10000 /* position that random calls have */

static double or_usual(double value, double usual)
{
    return value == 0 ? usual : value;
}

static double high_of(const cup__rope_rule *rule)
{
    return or_usual(rule->high, rule->yarn ? YARN_HIGH : HIGH);
}

bool cup__rope_rule_is_good(const cup__rope_rule *rule)
{
    double low = or_usual(rule->low, LOW), high = high_of(rule);
    bool ramp = !rule->yarn || (rule->original > 0 && (rule->base == 0 || rule->base > 1));
    return rule->base >= 0 && isfinite(rule->base) && rule->factor >= 0 &&
           isfinite(rule->factor) && rule->original >= 0 && low > 0 && high > low &&
           isfinite(high) && rule->amplitude >= 0 && isfinite(rule->amplitude) && ramp;
}

double cup__rope_amplitude(const cup__rope_rule *rule)
{
    double factor = or_usual(rule->factor, 1);
    double usual = rule->yarn && factor > 1 ? YARN_GROWTH * log(factor) + 1 : 1;
    return or_usual(rule->amplitude, usual);
}

static cup__rope_rule rule_of(const cup__rope_attributes *a)
{
    return (cup__rope_rule){.base = a->base,
                            .factor = a->factor,
                            .low = a->low,
                            .high = a->high,
                            .amplitude = a->amplitude,
                            .original = a->original,
                            .yarn = a->yarn,
                            .untruncated = a->untruncated};
}

/* NULL: none. */
static const cup_tensor *positions_of(const cup__call *call)
{
    return call->in_count > POSITIONS ? call->in[POSITIONS] : NULL;
}

/* What is added to the positions of a batch. */
static int64_t start_of(const cup__call *call, int64_t b)
{
    const cup__rope_attributes *a = call->attributes;
    const cup_tensor *t = positions_of(call);
    int64_t at = t && t->count > 1 ? cup__offset_of(t, b) : 0;
    if (!t)
        return a->offset;
    return a->offset + (t->dtype == CUP_I64 ? ((const int64_t *)t->data)[at]
                                            : ((const int32_t *)t->data)[at]);
}

static cup_status check_positions(cup__call *call)
{
    const cup_tensor *t = positions_of(call);
    if (!t)
        return CUP_OK;
    CUP_TRY(cup__need_index(call, POSITIONS));
    return t->count == 1 || (t->ndim == 1 && t->count == call->in[0]->shape[0])
               ? CUP_OK
               : cup__call_fail(call, CUP_SHAPE, "positions must be one number, or [%lld]",
                                (long long)call->in[0]->shape[0]);
}

static cup_status infer(cup__call *call)
{
    const cup__rope_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_ndim(call, 0, 4, 4));
    int64_t size = a->features ? a->features : x->shape[3];
    if (size < 2 || size > x->shape[3] || size % 2)
        return cup__call_fail(call, CUP_SHAPE, "%lld of %lld features cannot be turned in pairs",
                              (long long)size, (long long)x->shape[3]);
    cup__rope_rule rule = rule_of(a);
    if (!(a->base >= 0) || isinf(a->base))
        return cup__call_fail(call, CUP_ARGUMENT, "base must be positive; 0 means 10000");
    if (!cup__rope_rule_is_good(&rule))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "factor, original, low, high and amplitude must be positive and "
                              "high above low; 0 means the default. yarn needs an original, and a "
                              "base above 1");
    if (a->heads < 0 || a->heads > x->shape[1])
        return cup__call_fail(call, CUP_ARGUMENT, "%d heads cannot be turned", a->heads);
    if (a->offset < 0 || a->offset > (1 << 24) - x->shape[2])
        return cup__call_fail(call, CUP_ARGUMENT, "positions must lie from 0 to 2^24");
    CUP_TRY(check_positions(call));
    call->result[0] = cup__shape_of(x);
    call->order[0] = "0213";
    return CUP_OK;
}

/* How many pairs of a row are turned, and where those of pair i lie. */
static int64_t pairs_of(const cup__call *call)
{
    const cup__rope_attributes *a = call->attributes;
    return (a->features ? a->features : call->in[0]->shape[3]) / 2;
}

static int64_t first_of(const cup__rope_attributes *a, int64_t i)
{
    return a->interleaved ? 2 * i : i;
}

static int64_t second_of(const cup__rope_attributes *a, int64_t i, int64_t pairs)
{
    return a->interleaved ? 2 * i + 1 : i + pairs;
}

/* The number of the pair, and a part of one, that turns round so many times within the original. */
static double pair_of(const cup__rope_rule *rule, double turns, int64_t pairs)
{
    double base = or_usual(rule->base, CUP__ROPE_BASE);
    return (double)pairs * log((double)rule->original / (turns * 2 * M_PI)) / log(base);
}

/* How much of pair i stays as it is, by its number, as published YaRNs have it. */
static double stays_in_yarn(const cup__rope_rule *rule, int64_t i, int64_t pairs)
{
    double first = pair_of(rule, high_of(rule), pairs);
    double last = pair_of(rule, or_usual(rule->low, LOW), pairs);
    first = fmax(rule->untruncated ? first : floor(first), 0);
    last = fmin(rule->untruncated ? last : ceil(last), 2 * (double)pairs - 1);
    last += first == last ? YARN_LEAST : 0;
    return 1 - fmin(fmax(((double)i - first) / (last - first), 0), 1);
}

double cup__rope_frequency(const cup__rope_rule *rule, int64_t i, int64_t pairs)
{
    double low = or_usual(rule->low, LOW), stays = 0;
    double frequency = pow(or_usual(rule->base, CUP__ROPE_BASE), -(double)i / (double)pairs);
    double turns = (double)rule->original * frequency / (2 * M_PI);
    if (rule->factor == 0)
        return frequency;
    if (rule->yarn)
        stays = stays_in_yarn(rule, i, pairs);
    else if (rule->original)
        stays = fmin(fmax((turns - low) / (high_of(rule) - low), 0), 1);
    return frequency * (stays + (1 - stays) / rule->factor);
}

static int64_t heads_turned(const cup__call *call)
{
    const cup__rope_attributes *a = call->attributes;
    return a->heads ? a->heads : call->in[0]->shape[1];
}

static int64_t row_of(const cup_tensor *t, int64_t b, int64_t head, int64_t position)
{
    return b * t->stride[0] + head * t->stride[1] + position * t->stride[2];
}

static void turn_row(cup__call *call, int64_t b, int64_t head, int64_t position)
{
    const cup__rope_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    cup_tensor *y = call->out[0];
    int64_t from = row_of(x, b, head, position), to = row_of(y, b, head, position);
    for (int64_t d = 0; d < x->shape[3]; d++)
        cup__store(y, to + d * y->stride[3], cup__load(x, from + d * x->stride[3]));
    int64_t pairs = head < heads_turned(call) ? pairs_of(call) : 0;
    cup__rope_rule rule = rule_of(a);
    double amplitude = cup__rope_amplitude(&rule);
    for (int64_t i = 0; i < pairs; i++) {
        double angle =
            (double)(start_of(call, b) + position) * cup__rope_frequency(&rule, i, pairs);
        double cosine = amplitude * cos(angle);
        double sine = amplitude * (a->inverse ? -sin(angle) : sin(angle));
        int64_t first = first_of(a, i), second = second_of(a, i, pairs);
        double u = cup__load(x, from + first * x->stride[3]);
        double v = cup__load(x, from + second * x->stride[3]);
        cup__store(y, to + first * y->stride[3], u * cosine - v * sine);
        cup__store(y, to + second * y->stride[3], u * sine + v * cosine);
    }
}

static cup_status specification(cup__call *call)
{
    const int64_t *n = call->in[0]->shape;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t head = 0; head < n[1]; head++)
            for (int64_t position = 0; position < n[2]; position++)
                turn_row(call, b, head, position);
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const cup__rope_attributes *a = g->attributes;
    g->d_in[0] = cup_rope(g->c, g->d_out[0],
                          CUP_OPTIONS(cup_rope_options, .base = a->base, .offset = a->offset,
                                      .features = a->features, .heads = a->heads,
                                      .interleaved = a->interleaved, .inverse = !a->inverse,
                                      .factor = a->factor, .original = a->original, .low = a->low,
                                      .high = a->high, .yarn = a->yarn,
                                      .untruncated = a->untruncated, .amplitude = a->amplitude,
                                      .positions = g->in_count > POSITIONS ? g->in[POSITIONS]
                                                                           : NULL));
    return CUP_OK;
}

/* Cosines and sines of all positions, of each batch where these differ, [positions, pairs] each. */
typedef struct job {
    cup__call *call;
    int64_t pairs, heads;
    bool apart; /* batches have positions of their own */
    float *cosine, *sine;
} job;

static void make_table(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__rope_attributes *a = j->call->attributes;
    cup__rope_rule rule = rule_of(a);
    double amplitude = cup__rope_amplitude(&rule);
    int64_t length = j->call->in[0]->shape[2];
    for (int64_t i = 0; i < j->pairs; i++) {
        double frequency = cup__rope_frequency(&rule, i, j->pairs);
        for (int64_t row = begin; row < end; row++) {
            int64_t position = start_of(j->call, row / length) + row % length;
            double angle = (double)position * frequency;
            double sine = a->inverse ? -sin(angle) : sin(angle);
            j->cosine[row * j->pairs + i] = (float)(amplitude * cos(angle));
            j->sine[row * j->pairs + i] = (float)(amplitude * sine);
        }
    }
}

CUP__WIDE static void turn_halves(float *row, const float *cosine, const float *sine, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        float u = row[i], v = row[pairs + i];
        row[i] = u * cosine[i] - v * sine[i];
        row[pairs + i] = u * sine[i] + v * cosine[i];
    }
}

CUP__WIDE static void turn_neighbours(float *row, const float *cosine, const float *sine,
                                      int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        float u = row[2 * i], v = row[2 * i + 1];
        row[2 * i] = u * cosine[i] - v * sine[i];
        row[2 * i + 1] = u * sine[i] + v * cosine[i];
    }
}

#define LONGEST 1024 /* features of a head */

static void turn_rows(int64_t begin, int64_t end, void *user)
{
    job *j = user;
    const cup__rope_attributes *a = j->call->attributes;
    const cup_tensor *x = j->call->in[0];
    cup_tensor *y = j->call->out[0];
    float row[LONGEST];
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i % x->shape[1], position = i / x->shape[1] % x->shape[2];
        int64_t b = i / x->shape[1] / x->shape[2];
        int64_t at = ((j->apart ? b * x->shape[2] : 0) + position) * j->pairs;
        cup__floats_read(row, x, row_of(x, b, head, position), x->stride[3], x->shape[3]);
        if (head < j->heads && a->interleaved)
            turn_neighbours(row, j->cosine + at, j->sine + at, j->pairs);
        else if (head < j->heads)
            turn_halves(row, j->cosine + at, j->sine + at, j->pairs);
        cup__floats_write(y, row_of(y, b, head, position), y->stride[3], row, x->shape[3]);
    }
}

static const char *refuses_cpu(const cup__call *call)
{
    if (call->in[0]->dtype == CUP_F64)
        return "it computes in single precision";
    return call->in[0]->shape[3] > LONGEST ? "heads are larger than 1024" : NULL;
}

static cup_status run_cpu(cup__call *call)
{
    job j = {.call = call, .pairs = pairs_of(call), .heads = heads_turned(call)};
    int64_t positions = call->in[0]->shape[2], size = call->in[0]->shape[3];
    j.apart = positions_of(call) && positions_of(call)->count > 1;
    positions *= j.apart ? call->in[0]->shape[0] : 1;
    j.cosine = cup__calloc((size_t)(2 * positions * j.pairs), sizeof *j.cosine);
    if (!j.cosine)
        return cup__fail(&call->c->error, CUP_MEMORY, "rope: out of host memory");
    j.sine = j.cosine + positions * j.pairs;
    cup__parallel_for(positions, 2048 / (size + 1) + 1, make_table, &j);
    cup__parallel_for(call->in[0]->count / size, 16384 / size + 1, turn_rows, &j);
    cup__free(j.cosine);
    return CUP_OK;
}

static const char *refuses_cuda(const cup__call *call)
{
    return pairs_of(call) > ROPE_PAIRS ? "over 512 features are turned" : NULL;
}

/* Elements of an access: as many as 16 bytes hold, while all rows and units begin at multiples. */
static int vector_of(const cup__call *call)
{
    const cup_tensor *x = call->in[0], *y = call->out[0];
    int64_t steps = pairs_of(call) | (x->shape[3] - 2 * pairs_of(call));
    for (int i = 0; i < 3; i++)
        steps |= (x->shape[i] > 1 ? x->stride[i] : 0) | (y->shape[i] > 1 ? y->stride[i] : 0);
    int64_t size = cup_dtype_size(x->dtype), vector = 16 / size;
    uintptr_t begin = (uintptr_t)x->data | (uintptr_t)y->data;
    while (vector > 1 && (steps % vector || begin % (uintptr_t)(vector * size) ||
                          x->stride[3] != 1 || y->stride[3] != 1))
        vector /= 2;
    return (int)vector;
}

/* Powers take longer than the rest of a call, and a model's calls all need the same ones. */
void cup__rope_frequencies(const cup__rope_rule *rule, int64_t pairs, bool radians, double *to)
{
    static _Thread_local struct {
        cup__rope_rule rule;
        double frequency[ROPE_PAIRS];
        int64_t pairs;
        bool radians;
    } last;
    bool same = last.rule.base == rule->base && last.rule.factor == rule->factor &&
                last.rule.low == rule->low && last.rule.high == rule->high &&
                last.rule.original == rule->original && last.rule.yarn == rule->yarn &&
                last.rule.untruncated == rule->untruncated;
    if (last.pairs != pairs || !same || last.radians != radians) {
        last.pairs = pairs;
        last.rule = *rule;
        last.radians = radians;
        for (int64_t i = 0; i < pairs; i++)
            last.frequency[i] = cup__rope_frequency(rule, i, pairs) / (radians ? 1 : 2 * M_PI);
    }
    memcpy(to, last.frequency, (size_t)pairs * sizeof *to);
}

static void fill_call(rope_call *to, const cup__call *call)
{
    const cup__rope_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0], *y = call->out[0];
    const cup_tensor *starts = positions_of(call);
    int64_t pairs = pairs_of(call);
    cup__rope_rule rule = rule_of(a);
    *to = (rope_call){
        .x = x->data,
        .y = y->data,
        .rows = x->shape[0] * x->shape[2],
        .heads = (int)x->shape[1],
        .positions = (int)x->shape[2],
        .size = (int)x->shape[3],
        .pairs = (int)pairs,
        .heads_turned = (int)heads_turned(call),
        .inverse = a->inverse,
        .offset = a->offset,
        .amplitude = cup__rope_amplitude(&rule),
        .starts = starts ? starts->data : NULL,
        .starts_step = starts && starts->count > 1 ? (int)starts->stride[0] : 0,
    };
    for (int i = 0; i < 4; i++) {
        to->x_stride[i] = x->stride[i];
        to->y_stride[i] = y->stride[i];
    }
    cup__rope_frequencies(&rule, pairs, x->dtype == CUP_F64, to->frequency);
}

static cup_status run_cuda(cup__call *call)
{
    const cup__rope_attributes *a = call->attributes;
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    int vector = vector_of(call);
    rope_call argument;
    fill_call(&argument, call);
    cup__knob knobs[6] = {
        {"CUP_T", call->in[0]->dtype}, {"VEC", vector}, {"INTERLEAVED", a->interleaved}};
    int count = 3;
    if (argument.amplitude != 1)
        knobs[count++] = (cup__knob){"AMPLIFIED", 1};
    if (positions_of(call)) {
        knobs[count++] = (cup__knob){"PLACED", 1};
        knobs[count++] = (cup__knob){"CUP_ID", positions_of(call)->dtype};
    }
    cup__kernel *kernel = cup__kernel_get(gpu, "rope.cu", "rope_fwd", knobs, count);
    if (!kernel)
        return call->c->error.status;
    int64_t units = (argument.size - argument.pairs) / vector;
    int64_t blocks = (argument.rows * units + ROPE_THREADS - 1) / ROPE_THREADS;
    /* The angles are worth more heads the more blocks there are without dividing these up. */
    int64_t parts = 16 * (int64_t)cup__cuda_facts(gpu)->multiprocessors / blocks + 1;
    parts = parts < argument.heads ? parts : argument.heads;
    argument.heads_each = (int)((argument.heads + parts - 1) / parts);
    cup__grid grid = {
        .x = blocks,
        .y = (argument.heads + argument.heads_each - 1) / argument.heads_each,
        .threads = ROPE_THREADS,
    };
    return cup__launch(gpu, kernel, grid, CUP__ARG(argument));
}

/* Positions of texts that are read on. */
static int64_t places(cup_tensor *const *in, int i, const void *attributes)
{
    (void)in;
    (void)attributes;
    return i == POSITIONS ? MOST_DRAWN : 0;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, .strided = true, .refuses = refuses_cpu, .run = run_cpu},
    {.name = "units", .place = CUP__CUDA, CUP__THRESHOLDS(8, 256, 1024),
     .strided = true, .refuses = refuses_cuda,
     .run = run_cuda},
    {0},
};
#define WITH(...) &(const cup__rope_attributes){__VA_ARGS__}
static const cup__sample samples[] = {
    {"1x1x1x2", WITH(0)},
    {"0x1x1x2", WITH(0)},
    {"2x3x5x8", WITH(0)},
    {"2x3x5x8", WITH(.base = 500, .offset = 7, .features = 4, .heads = 2, .interleaved = true)},
    {"1x2x65x64", WITH(.offset = 100000)},
    {"1x4x9x10", WITH(.features = 6, .interleaved = true, .inverse = true)},
    {"2x2x33x128", WITH(.heads = 1, .inverse = true)},
    {"1x2x65x64", WITH(.base = 5e5, .offset = 9000, .factor = 8, .original = 8192)},
    {"1x2x9x16", WITH(.factor = 3, .original = 40, .low = 0.5, .high = 2)},
    {"1x2x9x16", WITH(.offset = 5, .factor = 2, .inverse = true)},
    {"1x2x65x64", WITH(.base = 1e6, .offset = 40000, .factor = 4, .original = 32768,
                       .yarn = true)},
    {"2x3x5x18", WITH(.features = 16, .heads = 2, .interleaved = true, .inverse = true,
                      .factor = 3, .original = 40, .low = 0.5, .high = 2, .yarn = true,
                      .untruncated = true, .amplitude = 0.75)},
    {"3x3x1x64 3", WITH(.heads = 2)},
    {"2x2x5x16 1", WITH(.offset = 30, .interleaved = true, .inverse = true)},
    {"3x2x9x24 3", WITH(.features = 16, .factor = 4, .original = 64, .yarn = true)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32x12x1024x64", WITH(0)},
                                    {"4x48x4096x128", WITH(.heads = 32)},
                                    {NULL, NULL}};

static uint32_t by_texts(const cup__op *op, cup_tensor *const *in, int in_count,
                         const void *attributes)
{
    (void)op, (void)attributes;
    bool placed = in_count > POSITIONS && in[POSITIONS] && in[POSITIONS]->count > 1;
    return placed ? 1 | 1u << POSITIONS : 1;
}

const cup__op cup__op_rope = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(POSITIONS),
    .impls = impls,
    .strided_out = true,
    .by_texts = by_texts,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {0, 64}},
    .indices = places,
    .in_dtypes = {0, CUP__DTYPES_INDEX},
};
