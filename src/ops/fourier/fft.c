#include "ops/fourier/fft.h"

#include <math.h>

#include "base/memory.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"

#define MOST ((int64_t)1 << 30) /* numbers of a line: places of a chirp are exact in double */

cup__fft_lines cup__fft_lines_of(const cup__call *call)
{
    const cup__fft_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    cup__fft_lines l = {a->axis < 0 ? a->axis + x->ndim : a->axis, 1, 1, 1, a->inverse};
    for (int d = 0; d < x->ndim - 1; d++)
        *(d < l.axis ? &l.outer : d == l.axis ? &l.length : &l.inner) *= x->shape[d];
    return l;
}

bool cup__fft_smooth(int64_t n)
{
    for (int64_t p = 2; p <= CUP__FFT_PRIME && n > 1; p++)
        while (n % p == 0)
            n /= p;
    return n <= 1;
}

int64_t cup__fft_room(int64_t n)
{
    int64_t room = 1;
    while (room < 2 * n - 1)
        room *= 2;
    return room;
}

static cup_status infer(cup__call *call)
{
    const cup__fft_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0];
    int axis;
    CUP_TRY(cup__need_axis(call, 0, a->axis, &axis));
    if (x->dtype != CUP_F32 && x->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE, "x must be f32 or f64; convert it with cup_cast");
    if (x->shape[x->ndim - 1] != 2 || axis == x->ndim - 1)
        return cup__call_fail(call, CUP_SHAPE,
                              "x must have pairs of real and imaginary parts in its last "
                              "dimension, and another one as axis");
    if (x->shape[axis] < 1 || x->shape[axis] > MOST)
        return cup__call_fail(call, CUP_SHAPE, "a line of %lld numbers; from 1 to 2^30 can be",
                              (long long)x->shape[axis]);
    call->result[0] = cup__shape_of(x);
    return CUP_OK;
}

/* Angles stand in a table, as a line needs each of them n times; a long sum needs more digits than
 * what it is compared with. */
static cup_status specification(cup__call *call)
{
    cup__fft_lines l = cup__fft_lines_of(call);
    const cup_tensor *x = call->in[0];
    int64_t n = l.length;
    long double turn = (l.inverse ? 2 : -2) * acosl(-1) / (long double)n;
    long double *all = cup__malloc(((size_t)x->count + 2 * (size_t)n) * sizeof *all);
    if (!all)
        return cup__call_fail(call, CUP_MEMORY, "out of host memory");
    long double *cosine = all + x->count, *sine = cosine + n, over = l.inverse ? n : 1;
    for (int64_t i = 0; i < x->count; i++)
        all[i] = cup__load(x, cup__offset_of(x, i));
    for (int64_t i = 0; i < n; i++) {
        cosine[i] = cosl(turn * (long double)i);
        sine[i] = sinl(turn * (long double)i);
    }
    for (int64_t i = 0; i < x->count / 2; i++) {
        int64_t k = i / l.inner % n;
        const long double *first = &all[2 * (i - k * l.inner)];
        long double real = 0, imaginary = 0;
        for (int64_t j = 0, at = 0; j < n; j++, first += 2 * l.inner) {
            real += first[0] * cosine[at] - first[1] * sine[at];
            imaginary += first[0] * sine[at] + first[1] * cosine[at];
            at += k;
            at -= at >= n ? n : 0;
        }
        cup__store(call->out[0], 2 * i, (double)(real / over));
        cup__store(call->out[0], 2 * i + 1, (double)(imaginary / over));
    }
    cup__free(all);
    return CUP_OK;
}

/* The matrix of the transform is symmetric, and conjugate complex to that of the other one. */
static cup_status gradient(cup__grad *g)
{
    const cup__fft_attributes *a = g->attributes;
    int axis = a->axis < 0 ? a->axis + g->in_shape[0].ndim : a->axis;
    double n = (double)g->in_shape[0].size[axis];
    cup_tensor *back = cup_fft(g->c, g->d_out[0], axis, !a->inverse);
    g->d_in[0] = cup_scale(g->c, back, a->inverse ? 1 / n : n);
    return CUP_OK;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    cup__fft_lines l = cup__fft_lines_of(call);
    const cup_tensor *x = call->in[0];
    *bytes = 2.0 * (double)(x->count * cup_dtype_size(x->dtype));
    *flops = 2.5 * (double)x->count * log2((double)l.length + 1);
}

/* A term of a sum takes as long as two operations of others, which find each of their numbers. */
static double specified(const cup__call *call)
{
    return (double)call->in[0]->count * (double)cup__fft_lines_of(call).length;
}

/* Many lines are read and written at the rate of memory by cuFFT, 3.8 times faster than by our own
 * kernel at 65,536 lines of 256; of few the launch is what takes longest. */
#define NUMBERS_MANY (1 << 20)

static const char *best_refuses(const cup__call *call)
{
    if (call->in[0]->count < NUMBERS_MANY)
        return "there are few lines";
    return cup__fft_cufft_refuses(call);
}

static const cup__impl impls[] = {
    {.name = "cufft_best", .place = CUP__CUDA, .eager = true, CUP__THRESHOLDS(512, 1024),
     .refuses = best_refuses, .run = cup__fft_cufft},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(4, 5, 1536, 3072),
     .refuses = cup__fft_blocks_refuses, .run = cup__fft_blocks},
    {.name = "cufft", .place = CUP__CUDA, CUP__THRESHOLDS(64, 1024),
     .refuses = cup__fft_cufft_refuses, .run = cup__fft_cufft},
    {.name = "products", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128), .strided = true,
     .run = cup__fft_products},
    {.name = "radix", .place = CUP__CPU, CUP__THRESHOLDS(4, 128), .run = cup__fft_cpu},
    {.name = "products", .place = CUP__CPU, CUP__THRESHOLDS(64, 128), .strided = true,
     .run = cup__fft_products},
    {0}};
#define ALONG(axis, inverse) &(const cup__fft_attributes){axis, inverse}
static const cup__sample samples[] = {
    {"1x2", ALONG(0, false)},       {"8x2", ALONG(0, false)},     {"3x12x2", ALONG(-2, true)},
    {"2x30x5x2", ALONG(1, false)},  {"0x4x2", ALONG(1, false)},   {"7x37x2", ALONG(1, true)},
    {"5x128x2", ALONG(-2, false)},  {"2x131x2", ALONG(1, false)}, {"3x360x2", ALONG(1, true)},
    {"60x70x2", ALONG(0, false)},   {"1x1536x2", ALONG(1, true)},
    {"1x625x2", ALONG(1, false)},   {"1024x2", ALONG(0, false)},
    {"2x262x3x2", ALONG(1, true)}, {"65x4x2", ALONG(0, false)},
    {NULL, NULL}};
static const cup__sample bench[] = {{"65536x64x2", ALONG(1, false)},
                                    {"4096x1024x2", ALONG(1, false)},
                                    {"64x65536x2", ALONG(1, false)},
                                    {NULL, NULL}};

const cup__op cup__op_fft = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64)},
    .tolerance = 32, /* sums of a line's numbers, which may cancel */
    .cost = cost,
    .specified = specified,
};
