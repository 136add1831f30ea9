#include "ops/loss/cross_entropy.h"

#include <math.h>

#include "dispatch/attributes.h"

/* Whether the losses are a part of all: these ops are told what each row counts. */
static bool takes_share(const cup__op *op)
{
    return op == &cup__op_cross_entropy_part || op == &cup__op_cross_entropy_sum;
}

cup__cross_entropy cup__cross_entropy_of(const cup__call *call)
{
    /* The gradient's attributes begin as those of cross_entropy do. */
    const cup__cross_entropy_grad_attributes *a = call->attributes;
    cup_tensor *logits = call->in[0];
    cup__cross_entropy e = {
        .logits = logits,
        .targets = call->in[1],
        .width = logits->shape[logits->ndim - 1],
        .ignore_index = a->ignore_index,
        .smoothing = a->label_smoothing,
        .z_loss = a->z_loss,
    };
    e.rows = e.targets->count;
    e.classes = a->columns ? a->columns : e.width;
    e.in_place = cup__call_changes(call, 0);
    if (takes_share(call->op))
        e.share = call->in[2];
    return e;
}

static cup_status check_attributes(cup__call *call)
{
    const cup__cross_entropy_attributes *a = call->attributes;
    int64_t width = call->in[0]->shape[call->in[0]->ndim - 1];
    if (a->columns < 0 || a->columns > width)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "columns is %lld; it must be between 1 and the %lld columns of the "
                              "logits, or 0 for all",
                              (long long)a->columns, (long long)width);
    if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
        return cup__call_fail(call, CUP_ARGUMENT, "label_smoothing is %g; it must be in [0, 1]",
                              a->label_smoothing);
    if (!(a->z_loss >= 0 && isfinite(a->z_loss)))
        return cup__call_fail(call, CUP_ARGUMENT, "z_loss is %g; it must be at least 0", a->z_loss);
    if (width == 0 && call->in[1]->count > 0)
        return cup__call_fail(call, CUP_SHAPE, "the logits have no columns");
    return CUP_OK;
}

static cup_status infer(cup__call *call)
{
    const cup_tensor *logits = call->in[0];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_index(call, 1));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    cup__shape rows = cup__shape_of(logits), targets = cup__shape_of(call->in[1]);
    rows.ndim--;
    if (!cup__shape_equal(&rows, &targets))
        return cup__call_fail(call, CUP_SHAPE,
                              "there must be one target for each row of the logits: their shape "
                              "without the last dimension");
    CUP_TRY(check_attributes(call));
    bool in_place = takes_share(call->op)
                        ? call->op->in_place
                        : ((const cup__cross_entropy_attributes *)call->attributes)->in_place;
    if (in_place && (!logits->contiguous || logits->is_parameter))
        return cup__call_fail(call, CUP_ARGUMENT,
                              "in_place overwrites the logits, so they must be in row-major order "
                              "and no parameter");
    rows.dtype = logits->dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    call->result[0] = (cup__shape){.dtype = rows.dtype};
    if (takes_share(call->op)) {
        if (call->in[2]->count != 1 || call->in[2]->dtype != rows.dtype)
            return cup__call_fail(call, CUP_SHAPE, "the share must be one number of the loss");
        return CUP_OK;
    }
    call->result[1] = rows;
    call->result[2] = call->result[0];
    return CUP_OK;
}

int64_t cup__target_of(const cup__cross_entropy *e, int64_t row)
{
    const cup_tensor *t = e->targets;
    int64_t at = cup__offset_of(t, row);
    return t->dtype == CUP_I64 ? ((const int64_t *)t->data)[at] : ((const int32_t *)t->data)[at];
}

bool cup__target_counts(const cup__cross_entropy *e, int64_t row)
{
    return cup__target_of(e, row) != e->ignore_index;
}

cup_status cup__cross_entropy_share(cup__call *call, const cup__cross_entropy *e, double *share)
{
    int64_t count = 0;
    for (int64_t row = 0; row < e->rows; row++) {
        int64_t target = cup__target_of(e, row);
        if (target == e->ignore_index)
            continue;
        if (target < 0 || target >= e->classes)
            return cup__call_fail(call, CUP_ARGUMENT,
                                  "the target of row %lld is %lld, which is none of the %lld "
                                  "classes",
                                  (long long)row, (long long)target, (long long)e->classes);
        count++;
    }
    *share = e->share ? cup__load(e->share, 0) : count ? 1 / (double)count : 0;
    return CUP_OK;
}

static double logit(const cup__cross_entropy *e, int64_t row, int64_t column)
{
    return cup__load(e->logits, cup__offset_of(e->logits, row * e->width + column));
}

static double lse_of(const cup__cross_entropy *e, int64_t row)
{
    double most = -INFINITY;
    long double sum = 0;
    for (int64_t k = 0; k < e->classes; k++)
        most = fmax(most, logit(e, row, k));
    for (int64_t k = 0; k < e->classes; k++)
        sum += exp(logit(e, row, k) - most);
    return most + log((double)sum);
}

static double row_loss(const cup__cross_entropy *e, int64_t row, double lse)
{
    long double sum = 0;
    double s = e->smoothing;
    for (int64_t k = 0; k < e->classes && s > 0; k++)
        sum += logit(e, row, k);
    double mean = (double)(sum / (long double)e->classes);
    return lse - (1 - s) * logit(e, row, cup__target_of(e, row)) - s * mean + e->z_loss * lse * lse;
}

static double slope_at(const cup__cross_entropy *e, int64_t row, int64_t column, double lse)
{
    if (column >= e->classes || !cup__target_counts(e, row))
        return 0;
    double s = e->smoothing, p = exp(logit(e, row, column) - lse);
    bool hit = cup__target_of(e, row) == column;
    return p * (1 + 2 * e->z_loss * lse) - s / (double)e->classes - (hit ? 1 - s : 0);
}

static void write_slopes(const cup__cross_entropy *e, cup_tensor *to, int64_t row, double lse,
                         double factor)
{
    for (int64_t k = 0; k < e->width; k++)
        cup__store(to, cup__offset_of(to, row * e->width + k), slope_at(e, row, k, lse) * factor);
}

static cup_status specification(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    double share;
    long double loss = 0; /* or its rounding would be more than that of a tree of sums */
    CUP_TRY(cup__cross_entropy_share(call, &e, &share));
    for (int64_t row = 0; row < e.rows; row++) {
        double lse = lse_of(&e, row);
        if (call->out_count > 1)
            cup__store(call->out[1], row, lse);
        if (cup__target_counts(&e, row))
            loss += row_loss(&e, row, lse);
        if (e.in_place)
            write_slopes(&e, e.logits, row, lse, share);
    }
    cup__store(call->out[0], 0, (double)(loss * share));
    if (call->out_count > 2)
        cup__store(call->out[2], 0, share);
    return CUP_OK;
}

static bool overwrites(const void *attributes)
{
    return ((const cup__cross_entropy_attributes *)attributes)->in_place;
}

cup_tensor *cup__loss_slope(cup__grad *g, cup_tensor *slope)
{
    slope = g->kept ? cup_copy(g->c, slope) : slope;
    cup__scale_by(g->c, slope, g->d_out[0]);
    return slope;
}

static cup_status gradient(cup__grad *g)
{
    const cup__cross_entropy_attributes *a = g->attributes;
    if (a->in_place) {
        g->d_in[0] = cup__loss_slope(g, g->in[0]);
        return CUP_OK;
    }
    g->d_in[0] = cup__cross_entropy_grad(g->c, g->in[0], g->in[1], g->out[1], g->out[2],
                                         g->d_out[0], a->ignore_index, a->label_smoothing,
                                         a->z_loss, a->columns);
    return CUP_OK;
}

/* The attributes of all four ops begin alike up to the columns' end. */
static int64_t indices(cup_tensor *const *in, int i, const void *attributes)
{
    const cup__cross_entropy_part_attributes *a = attributes;
    int64_t width = in[0]->shape[in[0]->ndim - 1];
    return i != 1 ? 0 : a->columns ? a->columns : width;
}

static const cup__impl impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(128, 4096),
     .refuses = cup__cross_entropy_cpu_refuses,
     .run = cup__cross_entropy_cpu},
    {.name = "ring", .place = CUP__CUDA,
     CUP__THRESHOLDS(256, 2048, 4096, 5120, 6144, 8192, 16384, 32768),
     .refuses = cup__cross_entropy_ring_refuses,
     .run = cup__cross_entropy_ring},
    {.name = "rows", .place = CUP__CUDA, CUP__THRESHOLDS(32, 128, 1024, 4096, 8192),
     .run = cup__cross_entropy_cuda},
    {0},
};
static const cup__cross_entropy_attributes plain = {.ignore_index = -1},
                                           some = {.ignore_index = 3},
                                           smooth = {-1, 0.1, 0, 0, false},
                                           all = {2, 0.2, 1e-3, 7, false},
                                           over = {.ignore_index = -1, .in_place = true},
                                           over_all = {2, 0.2, 1e-3, 7, true},
                                           padded = {5, 0.1, 1e-3, 8001, true},
                                           over_padded = {3, 0.1, 1e-3, 50257, true},
                                           half_smooth = {-1, 0.435272797969765, 0, 0, false},
                                           half_some = {-100, 0.435272797969765, 0, 6, false};
static const cup__sample samples[] = {
    {"3x9 3", &plain},    {"9 ()", &plain},      {"2x5x8 2x5", &some},  {"33x40 33", &smooth},
    {"65x13 65", &all},   {"0x9 0", &plain},     {"5x1025 5", &all},    {"7x5003 7", &smooth},
    {"2x50304 2", &plain}, {"3x9 3", &over},     {"9 ()", &over},       {"2x5x8 2x5", &over_all},
    {"65x13 65", &over_all}, {"0x9 0", &over},   {"5x1025 5", &over_all}, {"5x1032 5", &over_all},
    {"0x8192 0", &over},   {"0x0 0", &plain},        {"0x0 0", &over},
    {"7x5003 7", &over},   {"3x50304 3", &over}, {"3x50257 3", &over},  {"2x128256 2", &over},
    {"300x2048 300", &over}, {"40x5120 40", &over}, {"64x6144 64", &over},
    {"40x8192 40", &over},   {"40x8192 40", &padded}, {"40x10000 40", &over},
    {"9x32000 9", &over},    {"9x50304 9", &over},  {"9x50304 9", &over_padded},
    {"5x128256 5", &over},   {"5x151936 5", &over}, {"64x6144 64", &plain},
    {"9x32000 9", &smooth},  {"7x128256 7", &plain},
    {"312x2x11x5 312x2x11", &half_smooth}, {"445x2x11x7 445x2x11", &half_some}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x50304 8192", &over}, {"8192x50304 8192", &plain},
                                    {"8192x128256 8192", &over},
                                    {NULL, NULL}};

const cup__op cup__op_cross_entropy = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = cup__cross_entropy_composed,
    .overwrites = overwrites,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-4, 4}, {0, 7}},
    .indices = indices,
    .in_dtypes = {0, CUP__DTYPES_INDEX},
    .tolerance = 8, /* the logarithm of a sum of exponentials, each a few units off */
};

static const cup__cross_entropy_part_attributes part_plain = {.ignore_index = -1},
                                                part_all = {2, 0.2, 1e-3, 7};
static const cup__sample part_samples[] = {
    {"3x9 3 ()", &part_plain},    {"65x13 65 ()", &part_all},  {"5x1025 5 ()", &part_all},
    {"5x8192 5 ()", &part_plain}, {"5x8192 5 ()", &part_all},  {"40x8192 40 ()", &part_plain},
    {NULL, NULL}};

#define WITH_SHARE                                                                                 \
    .infer = infer, .specification = specification, .impls = impls,                                \
    .domain = {{-4, 4}, {0, 7}, {0.1, 1}}, .indices = indices,                                     \
    .in_dtypes = {0, CUP__DTYPES_INDEX, CUP__DTYPE(F32) | CUP__DTYPE(F64)}

const cup__op cup__op_cross_entropy_part = {
    WITH_SHARE,
    .in_place = 1,
    .samples = part_samples,
    .tolerance = 16, /* as the gradient's */
};

static const cup__cross_entropy_sum_attributes sum_plain = {.ignore_index = -1},
                                               sum_all = {2, 0.2, 1e-3, 7};
static const cup__sample sum_samples[] = {
    {"3x9 3 ()", &sum_plain},    {"65x13 65 ()", &sum_all},   {"5x1025 5 ()", &sum_all},
    {"5x8192 5 ()", &sum_plain}, {"40x8192 40 ()", &sum_all}, {NULL, NULL}};

const cup__op cup__op_cross_entropy_sum = {
    WITH_SHARE,
    .samples = sum_samples,
    .tolerance = 8, /* as cross_entropy's */
};

static cup_status share_infer(cup__call *call)
{
    const cup__target_share_attributes *a = call->attributes;
    CUP_TRY(cup__need_index(call, 0));
    if (a->dtype != CUP_F32 && a->dtype != CUP_F64)
        return cup__call_fail(call, CUP_DTYPE, "a share is f32 or f64");
    call->result[0] = (cup__shape){.dtype = a->dtype};
    return CUP_OK;
}

static cup_status share_specification(cup__call *call)
{
    const cup__target_share_attributes *a = call->attributes;
    cup__cross_entropy e = {.targets = call->in[0], .ignore_index = a->ignore_index};
    int64_t count = 0;
    for (int64_t i = 0; i < e.targets->count; i++)
        count += cup__target_counts(&e, i);
    cup__store(call->out[0], 0, count ? 1 / (double)count : 0);
    return CUP_OK;
}

/* On a CPU the specification is as fast as anything. */
static const cup__impl share_impls[] = {
    {.name = "one block", .place = CUP__CUDA, .run = cup__target_share_cuda}, {0}};
static const cup__target_share_attributes single = {-1, CUP_F32}, some_double = {3, CUP_F64};
static const cup__sample share_samples[] = {
    {"7", &single}, {"3x5", &some_double}, {"0", &single}, {"2500", &some_double}, {NULL, NULL}};

const cup__op cup__op_target_share = {
    .infer = share_infer,
    .specification = share_specification,
    .impls = share_impls,
    .samples = share_samples,
    .domain = {{0, 7}},
    .in_dtypes = {CUP__DTYPES_INDEX},
};

static cup_status grad_infer(cup__call *call)
{
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_index(call, 1));
    call->result[0] = cup__shape_of(call->in[0]);
    return CUP_OK;
}

static cup_status grad_specification(cup__call *call)
{
    cup__cross_entropy e = cup__cross_entropy_of(call);
    double share;
    CUP_TRY(cup__cross_entropy_share(call, &e, &share));
    double factor = cup__load(call->in[3], 0) * cup__load(call->in[4], 0);
    for (int64_t row = 0; row < e.rows; row++) {
        double lse = cup__load(call->in[2], cup__offset_of(call->in[2], row));
        write_slopes(&e, call->out[0], row, lse, factor);
    }
    return CUP_OK;
}

static const cup__impl grad_impls[] = {
    {.name = "rows", .place = CUP__CPU, CUP__THRESHOLDS(128, 4096),
     .refuses = cup__cross_entropy_cpu_refuses,
     .run = cup__cross_entropy_grad_cpu},
    {.name = "vector", .place = CUP__CUDA, CUP__THRESHOLDS(8, 256, 1024),
     .refuses = cup__cross_entropy_grad_cuda_refuses,
     .run = cup__cross_entropy_grad_cuda},
    {0},
};
static const cup__cross_entropy_grad_attributes grad_plain = {.ignore_index = -1},
                                                grad_all = {2, 0.2, 1e-3, 7};
static const cup__sample grad_samples[] = {
    {"3x9 3 3 () ()", &grad_plain},      {"9 () () () ()", &grad_plain},
    {"65x13 65 65 () ()", &grad_all},    {"0x9 0 0 () ()", &grad_plain},
    {"5x1025 5 5 () ()", &grad_all},     {"9x50304 9 9 () ()", &grad_plain},
    {NULL, NULL}};
static const cup__sample grad_bench[] = {{"8192x50304 8192 8192 () ()", &grad_plain}, {NULL, NULL}};
#define STATISTIC (CUP__DTYPE(F32) | CUP__DTYPE(F64))

const cup__op cup__op_cross_entropy_grad = {
    .infer = grad_infer,
    .specification = grad_specification,
    .impls = grad_impls,
    .samples = grad_samples,
    .bench = grad_bench,
    .domain = {{-4, 4}, {0, 7}, {4, 8}, {0.1, 1}, {0.5, 2}},
    .indices = indices,
    .in_dtypes = {0, CUP__DTYPES_INDEX, STATISTIC, STATISTIC, STATISTIC},
    .tolerance = 16, /* the rounding of x - lse, up to 12, comes through the exponential */
};
