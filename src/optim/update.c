#include "optim/update.h"

#include <string.h>

#include "base/half.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"
#include "optim/codes.h"
#include "tensor/floats.h"

#define CHUNK 8192 /* elements a core takes at a time */
#define PIECE 1024 /* elements converted at a time, which fit the first-level cache */

int cup__update_records(const cup__call *call)
{
    return (call->in_count - CUP__RECORDS_AT) / CUP__RECORD;
}

cup_tensor *const *cup__update_record(const cup__call *call, int i)
{
    return call->in + CUP__RECORDS_AT + i * CUP__RECORD;
}

int64_t cup__update_elements(const cup__call *call, int i)
{
    cup_tensor *const *r = cup__update_record(call, i);
    return r[CUP__GRADIENT] ? r[CUP__VALUE]->count : 0;
}

static bool is_number(const cup__attribute *a)
{
    return strcmp(a->name, "stochastic") != 0;
}

void cup__update_numbers(const cup__row *row, const void *attributes, double *out)
{
    int count = 0;
    for (const cup__attribute *a = row->attributes; a->name; a++) {
        const char *at = (const char *)attributes + a->offset;
        if (is_number(a) && count < CUP__UPDATE_NUMBERS)
            out[count++] = a->kind == CUP__KIND_BOOL ? *(const bool *)at
                                                     : *(const double *)(const void *)at;
    }
    while (count < CUP__UPDATE_NUMBERS)
        out[count++] = 0;
}

int cup__update_states(const cup__row *row, const void *attributes)
{
    double a[CUP__UPDATE_NUMBERS];
    const cup__update *update = row->op->update;
    cup__update_numbers(row, attributes, a);
    bool without = update->last_for && a[update->last_for - 1] == 0;
    return update->states - (without ? 1 : 0);
}

bool cup__update_stochastic(const cup__row *row, const void *attributes)
{
    for (const cup__attribute *a = row->attributes; a->name; a++)
        if (!is_number(a))
            return *(const bool *)((const char *)attributes + a->offset);
    return false;
}

static bool is_wide(const cup_tensor *t)
{
    return t->dtype == CUP_F32 || t->dtype == CUP_F64;
}

static cup_status check_record(cup__call *call, int i, int states)
{
    static const char *const names[] = {"parameter", "gradient", "master copy", "first state",
                                        "second state"};
    cup_tensor *const *r = cup__update_record(call, i);
    int at = CUP__RECORDS_AT + i * CUP__RECORD;
    for (int k = 0; k < CUP__RECORD; k++) {
        bool needed = k == CUP__VALUE || (k >= CUP__FIRST && k - CUP__FIRST < states);
        if (!r[k] && needed)
            return cup__call_fail(call, CUP_ARGUMENT, "the %s of parameter %d is NULL", names[k],
                                  i);
        if (!r[k])
            continue;
        cup__shape shape = cup__shape_of(r[k]), want = cup__shape_of(r[CUP__VALUE]);
        bool coded = k >= CUP__FIRST && call->op->update->coded;
        if (coded)
            want = cup__update_state_shape(call->row, &want);
        if (!cup__shape_equal(&shape, &want))
            return cup__call_fail(call, CUP_SHAPE, "the %s of parameter %d has another shape",
                                  names[k], i);
        if (coded && r[k]->dtype != CUP_U8)
            return cup__call_fail(call, CUP_DTYPE, "the %s of parameter %d must be u8", names[k],
                                  i);
        if (k >= CUP__MASTER && !coded && !is_wide(r[k]))
            return cup__call_fail(call, CUP_DTYPE, "the %s of parameter %d must be f32 or f64",
                                  names[k], i);
    }
    CUP_TRY(cup__need_float(call, at));
    return cup__need_same_dtype(call, at, at + CUP__GRADIENT);
}

cup_status cup__update_infer(cup__call *call)
{
    int records = cup__update_records(call);
    int states = cup__update_states(call->row, call->attributes);
    if (call->in_count < CUP__RECORDS_AT || (call->in_count - CUP__RECORDS_AT) % CUP__RECORD != 0 ||
        !call->in[1])
        return cup__call_fail(call, CUP_ARGUMENT,
                              "inputs are factors, settings and five for each parameter");
    const cup_tensor *factors = call->in[0], *settings = call->in[1];
    if (!is_wide(factors) || factors->count != CUP__FACTOR_COUNT || !is_wide(settings) ||
        settings->ndim != 2 || settings->shape[0] != records ||
        settings->shape[1] != CUP__SETTING_COUNT)
        return cup__call_fail(call, CUP_SHAPE, "factors must be [%d], settings [%d,%d]",
                              CUP__FACTOR_COUNT, records, CUP__SETTING_COUNT);
    for (int i = 0; i < records; i++)
        CUP_TRY(check_record(call, i, states));
    return CUP_OK;
}

/* The numbers for parameter i; false when the step is to be skipped. */
static bool step_of(const cup__call *call, int i, cup__step *step)
{
    const cup_tensor *factors = call->in[0], *settings = call->in[1];
    double factor[CUP__FACTOR_COUNT], setting[CUP__SETTING_COUNT];
    for (int k = 0; k < CUP__FACTOR_COUNT; k++)
        factor[k] = cup__load(factors, cup__offset_of(factors, k));
    for (int k = 0; k < CUP__SETTING_COUNT; k++)
        setting[k] = cup__load(settings, cup__offset_of(settings, i * CUP__SETTING_COUNT + k));
    step->corrected = factor[CUP__FACTOR_CORRECTED] * setting[CUP__SETTING_RATE];
    step->rate = factor[CUP__FACTOR_RATE] * setting[CUP__SETTING_RATE];
    step->root = factor[CUP__FACTOR_ROOT];
    step->gradient = factor[CUP__FACTOR_GRADIENT];
    step->decay = setting[CUP__SETTING_DECAY];
    if (call->op->update->unscaled)
        step->gradient = 1;
    cup__update_numbers(call->row, call->attributes, step->a);
    for (int k = 0; k < CUP__UPDATE_NUMBERS; k++)
        step->rest[k] = 1 - step->a[k];
    return factor[CUP__FACTOR_GO] != 0;
}

/* Rounds to bf16: of the two neighbours the one that a random number of 16 bits picks. Element i of
 * record `row` takes half i % 2 of word i / 2 % 4 of block i / 8. */
static uint16_t round_at_random(const cup__call *call, int row, int64_t i, float x)
{
    uint32_t bits = cup__bits(x), up;
    if ((bits & 0x7f800000) == 0x7f800000)
        return cup__to_bf16(x);
    cup__philox_words words = cup__philox_block(call->random, call->sequence,
                                                (uint64_t)row << 40 | (uint64_t)(i / 8));
    up = bits + (words.at[i / 2 % 4] >> (i % 2 * 16) & 0xffff);
    /* Nothing finite becomes infinite. */
    return (uint16_t)(((up & 0x7f800000) == 0x7f800000 ? bits : up) >> 16);
}

static bool is_stochastic(const cup__call *call, cup_tensor *const *r)
{
    return !r[CUP__MASTER] && r[CUP__VALUE]->dtype == CUP_BF16 &&
           cup__update_stochastic(call->row, call->attributes);
}

static int load_states(const cup__call *call, cup_tensor *const *r, int64_t index, double *state)
{
    int states = 0;
    for (; states < 2 && r[CUP__FIRST + states]; states++) {
        const cup_tensor *t = r[CUP__FIRST + states];
        float coded;
        if (call->op->update->coded)
            cup__codes_read(t, states == 0, index, 1, &coded);
        state[states] = call->op->update->coded ? (double)coded
                                                : cup__load(t, cup__offset_of(t, index));
    }
    return states;
}

static void update_element(const cup__call *call, int row, int64_t index, const cup__step *step)
{
    cup_tensor *const *r = cup__update_record(call, row);
    cup_tensor *truth = r[CUP__MASTER] ? r[CUP__MASTER] : r[CUP__VALUE];
    double state[2] = {0, 0};
    int states = load_states(call, r, index, state);
    double gradient = cup__load(r[CUP__GRADIENT], cup__offset_of(r[CUP__GRADIENT], index));
    double before = cup__load(truth, cup__offset_of(truth, index));
    double value = call->op->update->f64(before, gradient * step->gradient, state, states, step);
    for (int k = 0; k < states && !call->op->update->coded; k++)
        cup__store(r[CUP__FIRST + k], cup__offset_of(r[CUP__FIRST + k], index), state[k]);
    if (is_stochastic(call, r)) {
        uint16_t bits = round_at_random(call, row, index, (float)value);
        ((uint16_t *)truth->data)[cup__offset_of(truth, index)] = bits;
        return;
    }
    cup__store(truth, cup__offset_of(truth, index), value);
    if (truth != r[CUP__VALUE])
        cup__store(r[CUP__VALUE], cup__offset_of(r[CUP__VALUE], index), value);
}

static cup__step_f32 in_f32(const cup__step *s)
{
    cup__step_f32 n = {.corrected = (float)s->corrected,
                       .root = (float)s->root,
                       .gradient = (float)s->gradient,
                       .rate = (float)s->rate,
                       .decay = (float)s->decay};
    for (int k = 0; k < CUP__UPDATE_NUMBERS; k++) {
        n.a[k] = (float)s->a[k];
        n.rest[k] = (float)s->rest[k];
    }
    return n;
}

/* States that become codes are computed in f32 by all, each operation rounded, since codes have no
 * tolerance. */
static void update_codes(const cup__call *call, int row, const cup__step *step)
{
    cup_tensor *const *r = cup__update_record(call, row);
    const cup__step_f32 floats = in_f32(step);
    for (int64_t at = 0; at < cup__update_elements(call, row); at += CUP__CODES) {
        float values[CUP__CODES] = {0}, g[CUP__CODES], first[CUP__CODES], second[CUP__CODES];
        int64_t left = r[CUP__VALUE]->count - at, count = left < CUP__CODES ? left : CUP__CODES;
        for (int64_t i = 0; i < count; i++)
            g[i] = (float)cup__load(r[CUP__GRADIENT], cup__offset_of(r[CUP__GRADIENT], at + i));
        cup__codes_read(r[CUP__FIRST], true, at, count, first);
        cup__codes_read(r[CUP__SECOND], false, at, count, second);
        call->op->update->f32(values, g, first, second, count, &floats);
        for (int64_t i = 0; i < count; i++)
            update_element(call, row, at + i, step);
        cup__codes_write(call, row, true, at, count, first);
        cup__codes_write(call, row, false, at, count, second);
    }
}

cup_status cup__update_specification(cup__call *call)
{
    for (int i = 0; i < cup__update_records(call); i++) {
        cup__step step;
        if (!step_of(call, i, &step))
            return CUP_OK;
        if (call->op->update->coded)
            update_codes(call, i, &step);
        for (int64_t k = 0; k < cup__update_elements(call, i) && !call->op->update->coded; k++)
            update_element(call, i, k, &step);
    }
    return CUP_OK;
}

static const char *refuses(const cup__call *call)
{
    for (int i = CUP__RECORDS_AT; i < call->in_count; i++)
        if (call->in[i] && call->in[i]->dtype == CUP_F64)
            return "it computes in single precision and a parameter or state is f64";
    return NULL;
}

typedef struct job {
    cup__call *call;
    int64_t *first; /* chunk of each parameter, and behind the last their number */
} job;

static float *floats_at(cup_tensor *t, int64_t offset)
{
    return t ? (float *)t->data + offset : NULL;
}

static void run_rule(const job *j, int row, float *value, const float *gradient,
                     const cup__step_f32 *step, int64_t offset, int64_t count)
{
    cup_tensor *const *r = cup__update_record(j->call, row);
    const cup__update *update = j->call->op->update;
    float first[PIECE], second[PIECE];
    if (!update->coded) {
        update->f32(value, gradient, floats_at(r[CUP__FIRST], offset),
                    floats_at(r[CUP__SECOND], offset), count, step);
        return;
    }
    cup__codes_read(r[CUP__FIRST], true, offset, count, first);
    cup__codes_read(r[CUP__SECOND], false, offset, count, second);
    update->f32(value, gradient, first, second, count, step);
    cup__codes_write(j->call, row, true, offset, count, first);
    cup__codes_write(j->call, row, false, offset, count, second);
}

static void update_piece(const job *j, int row, const cup__step_f32 *step, int64_t offset,
                         int64_t count)
{
    cup_tensor *const *r = cup__update_record(j->call, row);
    float value_buffer[PIECE], gradient_buffer[PIECE];
    cup_tensor *p = r[CUP__VALUE], *g = r[CUP__GRADIENT];
    char *at = (char *)p->data + offset * cup_dtype_size(p->dtype);
    const float *gradient = cup__floats_of(g, offset, count, gradient_buffer);
    float *value = r[CUP__MASTER]        ? floats_at(r[CUP__MASTER], offset)
                   : p->dtype == CUP_F32 ? floats_at(p, offset)
                                         : value_buffer;
    if (value == value_buffer)
        cup__load_f32(value, at, p->dtype, count);
    run_rule(j, row, value, gradient, step, offset, count);
    if (is_stochastic(j->call, r))
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)(void *)at)[i] = round_at_random(j->call, row, offset + i, value[i]);
    else if ((char *)value != at)
        cup__store_f32(at, value, p->dtype, count);
}

static void update_chunks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    int i = 0;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        while (j->first[i + 1] <= chunk)
            i++;
        cup__step step;
        cup_tensor *const *r = cup__update_record(j->call, i);
        if (!step_of(j->call, i, &step))
            return;
        const cup__step_f32 floats = in_f32(&step);
        int64_t from = (chunk - j->first[i]) * CHUNK, to = from + CHUNK;
        if (to > r[CUP__VALUE]->count)
            to = r[CUP__VALUE]->count;
        for (int64_t at = from; at < to; at += PIECE)
            update_piece(j, i, &floats, at, to - at < PIECE ? to - at : PIECE);
    }
}

static cup_status run(cup__call *call)
{
    int records = cup__update_records(call);
    job j = {call, cup__malloc((size_t)(records + 1) * sizeof *j.first)};
    if (!j.first)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    j.first[0] = 0;
    for (int i = 0; i < records; i++)
        j.first[i + 1] = j.first[i] + (cup__update_elements(call, i) + CHUNK - 1) / CHUNK;
    cup__parallel_for(j.first[records], 4, update_chunks, &j);
    cup__free(j.first);
    return CUP_OK;
}

const cup__impl cup__update_impls[] = {
    {.name = "chunks", .place = CUP__CPU, CUP__THRESHOLDS(4, 1024, 8192),
     .refuses = refuses, .run = run},
    {.name = "chunks", .place = CUP__CUDA, CUP__THRESHOLDS(4, 1024, 8192),
     .refuses = cup__update_refuses_cuda, .run = cup__update_cuda},
    {0},
};

void cup__update_cost(const cup__call *call, double *bytes, double *flops)
{
    *bytes = *flops = 0;
    for (int i = 0; i < cup__update_records(call); i++) {
        cup_tensor *const *r = cup__update_record(call, i);
        for (int k = 0; k < CUP__RECORD; k++) {
            if (!r[k])
                continue;
            /* All is read and written, but the gradient is only read, and a parameter with a
             * master only written. */
            bool once = k == CUP__GRADIENT || (k == CUP__VALUE && r[CUP__MASTER]);
            *bytes += (double)(r[k]->count * cup_dtype_size(r[k]->dtype)) * (once ? 1 : 2);
        }
        *flops += 16.0 * (double)cup__update_elements(call, i);
    }
}
