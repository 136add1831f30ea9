#include "ops/random/dropout.h"

#include <math.h>

#include "base/parallel.h"
#include "base/philox.h"
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "tensor/floats.h"

#define CHUNK 1024 /* elements computed together; a multiple of 8 */
#define FURTHER_ON ((uint64_t)1 << 63)

cup__dropout cup__dropout_of(const cup__call *call)
{
    const cup__dropout_attributes *a = call->attributes;
    uint64_t dropped = (uint64_t)(a->p * 0x1p32 + 0.5), kept = ((uint64_t)1 << 32) - dropped;
    return (cup__dropout){(uint32_t)(dropped >> 16), dropped & 0xffff,
                          kept ? 0x1p32 / (double)kept : 0};
}

cup__dropout_parts cup__dropout_parts_of(const cup__call *call)
{
    const cup__stretched *d = call->drawn;
    const cup_tensor *x = call->in[call->in_count - 1];
    if (!d || !x->count)
        return (cup__dropout_parts){0};
    uint64_t features = (uint64_t)(x->count / x->shape[0] / x->shape[1]);
    return (cup__dropout_parts){(uint64_t)d->rows.half * features / 8,
                                (uint64_t)d->rows.all * features / 8,
                                {(uint64_t)d->rows.place[0] * features / 8,
                                 (uint64_t)d->rows.place[1] * features / 8}};
}

/* The number of a block in the whole. */
static uint64_t whole_block(const cup__dropout_parts *p, uint64_t block)
{
    if (!p->stretch)
        return block;
    uint64_t at = block / p->stretch;
    return at / 2 * p->whole + p->place[at % 2] + block % p->stretch;
}

static uint32_t half_of(const cup__call *call, uint64_t block, int64_t index)
{
    cup__philox_words w = cup__philox_block(call->random, call->sequence, block);
    return w.at[index % 8 / 2] >> index % 2 * 16 & 0xffff;
}

bool cup__dropout_keeps(const cup__call *call, const cup__dropout *dropout, int64_t index)
{
    cup__dropout_parts parts = cup__dropout_parts_of(call);
    uint64_t block = whole_block(&parts, (uint64_t)index / 8);
    uint32_t half = half_of(call, block, index);
    if (half != dropout->threshold)
        return half > dropout->threshold;
    return half_of(call, block | FURTHER_ON, index) >= dropout->rest;
}

cup_status cup__dropout_infer(cup__call *call)
{
    const cup__dropout_attributes *a = call->attributes;
    const cup_tensor *x = call->in[call->in_count - 1];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, call->in_count - 1));
    if (!(a->p >= 0 && a->p <= 1))
        return cup__call_fail(call, CUP_ARGUMENT, "p is %g; it must be from 0 to 1", a->p);
    call->result[0] = cup__shape_of(call->in[0]);
    cup__shape shape = cup__shape_of(x);
    if (!cup__shape_equal(&shape, &call->result[0]))
        return cup__call_fail(call, CUP_SHAPE, "both inputs must have one shape");
    call->result[1] = (cup__shape){.dtype = CUP_U8, .ndim = 1, .size = {(x->count + 7) / 8}};
    return CUP_OK;
}

cup_status cup__dropout_specification(cup__call *call)
{
    cup__dropout dropout = cup__dropout_of(call);
    const cup_tensor *x = call->in[call->in_count - 1];
    const cup_tensor *residual = call->in_count > 1 ? call->in[0] : NULL;
    for (int64_t byte = 0; byte < (x->count + 7) / 8; byte++) {
        unsigned mask = 0;
        for (int64_t i = byte * 8; i < x->count && i < byte * 8 + 8; i++) {
            bool kept = cup__dropout_keeps(call, &dropout, i);
            double y = kept ? cup__load(x, cup__offset_of(x, i)) * dropout.scale : 0;
            if (residual)
                y += cup__load(residual, cup__offset_of(residual, i));
            cup__store(call->out[0], i, y);
            mask |= (unsigned)kept << i % 8;
        }
        if (call->out_count > 1)
            ((uint8_t *)call->out[1]->data)[byte] = (uint8_t)mask;
    }
    return CUP_OK;
}

/* A mask of 8 elements for each of `count` blocks, and above it which of them equal the threshold:
 * numbers of one size all through, since vectors of bytes made of words take 60 KB of code. */
CUP__WIDE static void draw(uint32_t *masks, uint64_t key, uint32_t sequence, uint32_t step,
                           uint64_t first, int64_t count, uint32_t threshold)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t block = first + (uint64_t)i;
        cup__philox_words w =
            cup__philox(key, (uint32_t)block, (uint32_t)(block >> 32), sequence, step);
        uint32_t bits = 0;
        for (int k = 0; k < 4; k++) {
            uint32_t low = w.at[k] & 0xffff, high = w.at[k] >> 16;
            bits |= (uint32_t)(low >= threshold) << (2 * k);
            bits |= (uint32_t)(high >= threshold) << (2 * k + 1);
            bits |= (uint32_t)(low == threshold) << (2 * k + 8);
            bits |= (uint32_t)(high == threshold) << (2 * k + 9);
        }
        masks[i] = bits;
    }
}

/* The masks from element `start` on. */
static void draw_all(uint8_t *mask, const cup__call *call, const cup__dropout *dropout,
                     int64_t start, int64_t bytes)
{
    uint32_t masks[CHUNK / 8];
    cup__dropout_parts parts = cup__dropout_parts_of(call);
    for (int64_t i = 0, run; i < bytes; i += run) {
        uint64_t block = (uint64_t)(start / 8 + i);
        int64_t left = parts.stretch ? (int64_t)(parts.stretch - block % parts.stretch) : bytes;
        run = left < bytes - i ? left : bytes - i;
        draw(masks + i, call->random[0], call->sequence, (uint32_t)call->random[1],
             whole_block(&parts, block), run, dropout->threshold);
    }
    for (int64_t i = 0; i < bytes; i++)
        mask[i] = (uint8_t)masks[i];
    for (int64_t i = 0; dropout->rest && i < bytes; i++)
        for (int k = 0; masks[i] >> (8 + k); k++)
            if (masks[i] >> (8 + k) & 1 && !cup__dropout_keeps(call, dropout, start + i * 8 + k))
                mask[i] &= (uint8_t)~(1u << k);
}

typedef struct job {
    const cup__call *call;
    cup__dropout dropout;
} job;

static void run_chunks(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    const cup__call *call = j->call;
    const cup_tensor *x = call->in[call->in_count - 1];
    for (int64_t chunk = begin; chunk < end; chunk++) {
        float in[CHUNK], out[CHUNK];
        uint8_t mask[CHUNK / 8];
        int64_t start = chunk * CHUNK, count = x->count - start < CHUNK ? x->count - start : CHUNK;
        int64_t bytes = (count + 7) / 8;
        draw_all(mask, call, &j->dropout, start, bytes);
        if (count % 8)
            mask[bytes - 1] &= (uint8_t)((1u << count % 8) - 1);
        cup__floats_read(in, x, start, 1, count);
        cup__floats_mask(out, in, mask, (float)j->dropout.scale, count);
        if (call->in_count > 1) {
            cup__floats_read(in, call->in[0], start, 1, count);
            cup__floats_add(out, in, count);
        }
        cup__floats_write(call->out[0], start, 1, out, count);
        for (int64_t i = 0; call->out_count > 1 && i < bytes; i++)
            ((uint8_t *)call->out[1]->data)[start / 8 + i] = mask[i];
    }
}

static cup_status run(cup__call *call)
{
    job j = {call, cup__dropout_of(call)};
    cup__parallel_for((call->out[0]->count + CHUNK - 1) / CHUNK, 4, run_chunks, &j);
    return CUP_OK;
}

static cup_status gradient(cup__grad *g)
{
    const cup__dropout_attributes *a = g->attributes;
    g->d_in[0] = cup__dropout_grad(g->c, g->d_out[0], g->out[1], a->p);
    return CUP_OK;
}

const cup__impl cup__dropout_impls[] = {
    {.name = "philox", .place = CUP__CUDA, CUP__THRESHOLDS(8, 1024), .run = cup__dropout_cuda},
    {.name = "philox", .place = CUP__CPU, CUP__THRESHOLDS(8, 1024),
     .refuses = cup__refuses_f64, .run = run},
    {0},
};
#define P(p) &(const cup__dropout_attributes){p}
static const cup__sample samples[] = {
    {"7", P(0.5)},        {"()", P(0.3)},       {"3x5", P(0)},          {"16x3", P(1)},
    {"33x1000", P(0.1)}, {"2x3x1025", P(0.75)}, {"0x5", P(0.5)}, {"1025x1025", P(0.9)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072", P(0.1)}, {NULL, NULL}};

const cup__op cup__op_dropout = {
    .infer = cup__dropout_infer,
    .specification = cup__dropout_specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = cup__dropout_impls,
    .saves = CUP__SAVE_OUT(1),
    .random = true,
    .samples = samples,
    .bench = bench,
};
