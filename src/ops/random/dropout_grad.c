#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/random/dropout.h"
#include "tensor/floats.h"

#define CHUNK 1024 /* elements computed together; a multiple of 8 */

static cup_status infer(cup__call *call)
{
    const cup_tensor *dy = call->in[0], *mask = call->in[1];
    CUP_TRY(cup__need_float(call, 0));
    if (mask->dtype != CUP_U8 || mask->count != (dy->count + 7) / 8)
        return cup__call_fail(call, CUP_SHAPE, "the mask must have one bit an element");
    call->result[0] = cup__shape_of(dy);
    return CUP_OK;
}

static cup_status specification(cup__call *call)
{
    double scale = cup__dropout_of(call).scale;
    const cup_tensor *dy = call->in[0], *mask = call->in[1];
    for (int64_t i = 0; i < dy->count; i++) {
        unsigned byte = (unsigned)cup__load(mask, cup__offset_of(mask, i / 8));
        double value = cup__load(dy, cup__offset_of(dy, i));
        cup__store(call->out[0], i, byte >> i % 8 & 1 ? value * scale : 0);
    }
    return CUP_OK;
}

static void run_chunks(int64_t begin, int64_t end, void *user)
{
    const cup__call *call = user;
    const cup_tensor *dy = call->in[0];
    const uint8_t *mask = call->in[1]->data;
    float scale = (float)cup__dropout_of(call).scale;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        float in[CHUNK], out[CHUNK];
        int64_t start = chunk * CHUNK,
                count = dy->count - start < CHUNK ? dy->count - start : CHUNK;
        cup__floats_read(in, dy, start, 1, count);
        cup__floats_mask(out, in, mask + start / 8, scale, count);
        cup__floats_write(call->out[0], start, 1, out, count);
    }
}

static cup_status run(cup__call *call)
{
    cup__parallel_for((call->out[0]->count + CHUNK - 1) / CHUNK, 8, run_chunks, call);
    return CUP_OK;
}

static const cup__impl impls[] = {
    {.name = "bits", .place = CUP__CUDA, CUP__THRESHOLDS(8, 1024), .run = cup__dropout_cuda},
    {.name = "bits", .place = CUP__CPU, CUP__THRESHOLDS(8, 1024),
     .refuses = cup__refuses_f64, .run = run},
    {0},
};
#define P(p) &(const cup__dropout_grad_attributes){p}
static const cup__sample samples[] = {{"7 1", P(0.5)},         {"() 1", P(0.3)},
                                      {"16x3 6", P(1)},        {"33x1000 4125", P(0.1)},
                                      {"2x3x1025 769", P(0.75)}, {NULL, NULL}};
static const cup__sample bench[] = {{"32768x3072 12582912", P(0.1)}, {NULL, NULL}};

static cup_status gradient(cup__grad *g)
{
    const cup__dropout_grad_attributes *a = g->attributes;
    g->d_in[0] = cup__dropout_grad(g->c, g->d_out[0], g->in[1], a->p);
    return CUP_OK;
}

const cup__op cup__op_dropout_grad = {
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_IN(1),
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-2, 2}, {0, 256}},
    .in_dtypes = {CUP__DTYPES_FLOAT, CUP__DTYPE(U8)},
};
