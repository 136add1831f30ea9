/* argmax and argmin; their gradient is nought almost everywhere, so they have none. */
#include <math.h>

#include "base/parallel.h"
#include "dispatch/attributes.h"
#include "ops/reduce/reduce.h"
#include "ops/loss/softmax.h"

#define PIECE 4096

typedef struct job {
    cup__call *call;
    cup__reduction r;
} job;

/* The first element of the row that is the most extreme, `most` of it, or NaN. */
static int64_t find(const float *x, int64_t count, float most)
{
    for (int64_t i = 0; i < count; i++)
        if (x[i] == most || (isnan(most) && isnan(x[i])))
            return i;
    return 0;
}

static int64_t place_in_row(const job *j, const char *row)
{
    const cup_tensor *in = j->call->in[0];
    float buffer[PIECE], best = 0;
    int64_t place = 0, length = j->r.length;
    for (int64_t i = 0; i < length && !isnan(best); i += PIECE) {
        int64_t count = length - i < PIECE ? length - i : PIECE;
        cup__load_f32(buffer, row + i * cup_dtype_size(in->dtype), in->dtype, count);
        float most = cup__row_max(buffer, count);
        if (i == 0 || most > best || isnan(most)) {
            best = most;
            place = i + find(buffer, count, most);
        }
    }
    return place;
}

static void run_rows(int64_t begin, int64_t end, void *user)
{
    const job *j = user;
    const cup_tensor *in = j->call->in[0];
    for (int64_t i = begin; i < end; i++) {
        int64_t at = cup__reduction_kept(&j->r, i) * cup_dtype_size(in->dtype);
        ((int64_t *)j->call->out[0]->data)[i] = place_in_row(j, (const char *)in->data + at);
    }
}

static const char *refuses(const cup__call *call)
{
    cup__reduction r;
    cup__reduction_make(&r, call);
    if (!cup__dtype_is_float(call->in[0]->dtype) || call->in[0]->dtype == CUP_F64)
        return "it compares in single precision";
    return r.folded > 1 || (r.folded == 1 && r.folded_stride[0] != 1)
               ? "the elements folded together do not lie side by side"
               : NULL;
}

static cup_status run(cup__call *call)
{
    job j = {.call = call};
    cup__reduction_make(&j.r, call);
    cup__parallel_for(j.r.outputs, 8 * PIECE / (j.r.length + 1) + 1, run_rows, &j);
    return CUP_OK;
}

/* Of i64, not all of which are doubles. */
static int64_t place_of_integer(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), place = 0, best = 0;
    for (int64_t i = 0; i < r->length; i++) {
        int64_t x = cup__reduction_integer(call, base + cup__reduction_folded(r, i));
        if (i == 0 || (call->op == &cup__op_argmax ? x > best : x < best)) {
            best = x;
            place = i;
        }
    }
    return place;
}

static int64_t place_of(const cup__call *call, const cup__reduction *r, int64_t output)
{
    int64_t base = cup__reduction_kept(r, output), place = 0;
    double best = 0;
    for (int64_t i = 0; i < r->length; i++) {
        double x = cup__load(call->in[0], base + cup__reduction_folded(r, i));
        bool beats = call->op == &cup__op_argmax ? x > best : x < best;
        if (i == 0 || beats || (isnan(x) && !isnan(best))) {
            best = x;
            place = i;
        }
    }
    return place;
}

static cup_status specification(cup__call *call)
{
    cup__reduction r;
    cup__reduction_make(&r, call);
    bool whole = !cup__dtype_is_float(call->in[0]->dtype);
    for (int64_t i = 0; i < r.outputs; i++)
        ((int64_t *)call->out[0]->data)[i] =
            whole ? place_of_integer(call, &r, i) : place_of(call, &r, i);
    return CUP_OK;
}

static const cup__impl max_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(1024),
     .strided = true, .refuses = refuses, .run = run},
    {.name = "pieces", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 256, 4096),
     .strided = true, .run = cup__reduce_cuda},
    {0},
};
static const cup__impl min_impls[] = {
    {.name = "pieces", .place = CUP__CUDA, CUP__THRESHOLDS(16, 32, 256, 4096),
     .strided = true, .run = cup__reduce_cuda}, {0}};

static const cup__fold max_fold = {.source = "argmax.cu",
                                   .text = CUP__STATE_TEXT("argmax_state.cuh"),
                                   .gives_place = true, .needs_elements = true};
static const cup__fold min_fold = {.source = "argmin.cu",
                                   .text = "#define LESS 1\n" CUP__STATE_TEXT("argmax_state.cuh"),
                                   .gives_place = true, .needs_elements = true};

#define PLACE(of, implementations)                                                                 \
    .fold = (of), .infer = cup__reduce_infer, .specification = specification,                      \
    .impls = (implementations), .samples = cup__reduce_samples, .bench = cup__reduce_bench,        \
    .in_dtypes = {CUP__DTYPES_FLOAT | CUP__DTYPES_INTEGER}

const cup__op cup__op_argmax = {PLACE(&max_fold, max_impls)};
const cup__op cup__op_argmin = {PLACE(&min_fold, min_impls)};
