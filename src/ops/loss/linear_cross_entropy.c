/* Cross-entropy of linear(x, weight) without the logits as a whole: rows are taken in chunks, whose
 * logits become their gradient in place, and that goes on into the gradients of x and weight at
 * once. What is kept for backward is these two, which only have to be scaled there. That of the
 * weight is a sum over the chunks, in full precision, which backward rounds: then no logits are
 * there any more. */
#include "base/memory.h"
#include "cupola/grad.h"
#include "dispatch/attributes.h"
#include "ops/loss/cross_entropy.h"
#include "ops/matmul/product.h"

#define CHUNK_BYTES ((int64_t)1 << 28) /* of logits, where the caller does not say */
#define CHUNK_MULTIPLE 256             /* rows */

static int64_t chunk_of(const cup__call *call)
{
    const cup__linear_cross_entropy_attributes *a = call->attributes;
    int64_t rows = call->in[2]->count, chunk = a->chunk;
    if (rows == 0)
        return 1;
    if (chunk == 0) {
        int64_t row = call->in[1]->shape[0] * (int64_t)cup_dtype_size(call->in[1]->dtype);
        chunk = CHUNK_BYTES / row / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
        chunk = chunk < CHUNK_MULTIPLE ? CHUNK_MULTIPLE : chunk;
        /* Chunks of nearly the same size. */
        int64_t parts = (rows + chunk - 1) / chunk;
        chunk = (rows / parts + CHUNK_MULTIPLE) / CHUNK_MULTIPLE * CHUNK_MULTIPLE;
    }
    return chunk < rows ? chunk : rows;
}

static cup_status infer(cup__call *call)
{
    const cup__linear_cross_entropy_attributes *a = call->attributes;
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    CUP_TRY(cup__need_float(call, 0));
    CUP_TRY(cup__need_same_dtype(call, 0, 1));
    CUP_TRY(cup__need_index(call, 2));
    CUP_TRY(cup__need_ndim(call, 0, 1, CUP_MAX_DIMS));
    CUP_TRY(cup__need_ndim(call, 1, 2, 2));
    cup__shape rows = cup__shape_of(x), targets = cup__shape_of(call->in[2]);
    rows.ndim--;
    if (!cup__shape_equal(&rows, &targets))
        return cup__call_fail(call, CUP_SHAPE,
                              "there must be one target for each row of x: its shape without the "
                              "last dimension");
    if (x->shape[x->ndim - 1] != weight->shape[1])
        return cup__call_fail(call, CUP_SHAPE, "rows of x and of the weight have other lengths");
    if (a->columns < 0 || a->columns > weight->shape[0] || weight->shape[0] == 0)
        return cup__call_fail(call, CUP_ARGUMENT,
                              "columns is %lld; it must be between 1 and the %lld rows of the "
                              "weight, or 0 for all",
                              (long long)a->columns, (long long)weight->shape[0]);
    if (a->chunk < 0)
        return cup__call_fail(call, CUP_ARGUMENT, "chunk is %lld rows", (long long)a->chunk);
    call->result[0] = (cup__shape){.dtype = x->dtype == CUP_F64 ? CUP_F64 : CUP_F32};
    call->result[1] = cup__shape_of(x);
    call->result[2] = cup__shape_of(weight);
    if (chunk_of(call) < call->in[2]->count)
        call->result[2].dtype = call->result[0].dtype;
    return CUP_OK;
}

/* out[i,j] = sum over k of a[i,k] b[k,j], through strides of elements. */
static void multiply(cup_tensor *out, const cup_tensor *a, const cup_tensor *b, int64_t m,
                     int64_t n, int64_t k, const int64_t (*step)[2])
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += cup__element(a, i * step[0][0] + l * step[0][1]) *
                       cup__element(b, l * step[1][0] + j * step[1][1]);
            cup__store(out, cup__offset_of(out, i * n + j), sum);
        }
}

/* The specification of cross_entropy_part, on logits in double. */
static cup_status specify_loss(cup__call *call, cup_tensor *logits, cup_tensor *loss)
{
    const cup__linear_cross_entropy_attributes *a = call->attributes;
    cup_context *c = call->c;
    const cup__target_share_attributes whole = {a->ignore_index, CUP_F64};
    const cup__cross_entropy_part_attributes part = {a->ignore_index, a->label_smoothing, a->z_loss,
                                                     a->columns};
    cup__shape one = {.dtype = CUP_F64};
    cup_tensor *share = cup__tensor_make(c, &one, "share");
    if (!share)
        return c->error.status;
    cup_tensor *flat = cup_reshape(c, call->in[2], 1, (int64_t[]){-1});
    cup_tensor *in[] = {logits, flat, share};
    cup__call count, sum;
    cup_status status = cup__call_begin(&count, c, &cup__rows[CUP__OP_target_share], &flat, 1,
                                        &whole);
    count.out[0] = share;
    if (status == CUP_OK)
        status = cup__call_run(&count, NULL);
    if (status == CUP_OK)
        status = cup__call_begin(&sum, c, &cup__rows[CUP__OP_cross_entropy_part], in, 3, &part);
    sum.out[0] = loss;
    return status == CUP_OK ? cup__call_run(&sum, NULL) : status;
}

static cup_status specification(cup__call *call)
{
    const cup_tensor *x = call->in[0], *weight = call->in[1];
    int64_t rows = call->in[2]->count, classes = weight->shape[0], width = weight->shape[1];
    cup__shape shape = {CUP_F64, 2, {rows, classes}};
    cup_scope_open(call->c);
    cup_tensor *logits = cup__tensor_make(call->c, &shape, "logits");
    cup_status status = logits ? CUP_OK : call->c->error.status;
    if (logits) {
        multiply(logits, x, weight, rows, classes, width,
                 (const int64_t[2][2]){{width, 1}, {1, width}});
        status = specify_loss(call, logits, call->out[0]);
    }
    if (status == CUP_OK && call->out_count > 1) {
        multiply(call->out[1], logits, weight, rows, width, classes,
                 (const int64_t[2][2]){{classes, 1}, {width, 1}});
        multiply(call->out[2], logits, x, classes, width, rows,
                 (const int64_t[2][2]){{1, classes}, {width, 1}});
    }
    cup_scope_return(call->c, NULL);
    return status;
}

/* What the chunks of one call share. */
typedef struct chunks {
    cup_context *c;
    const cup__linear_cross_entropy_attributes *a;
    cup_tensor *x, *weight, *targets, *share, *losses, *dx, *dweight;
    int64_t rows, chunk;
} chunks;

/* Rows from `from` on of a tensor of one or two dimensions. */
static cup_tensor *rows_from(cup_tensor *t, int64_t from, int64_t count)
{
    cup__shape shape = cup__shape_of(t);
    shape.size[0] = count;
    return cup__tensor_view(t, &shape, t->stride, from * t->stride[0]);
}

/* The product of the gradient of a chunk's logits and its x is added to the weight's gradient, in
 * full precision. */
static void add_to_weight(chunks *k, cup_tensor *slopes, cup_tensor *x, bool first)
{
    const cup__matmul_attributes turned = {true, false};
    cup_tensor *in[] = {slopes, x};
    if (first && k->chunk == k->rows) {
        cup__op_call(k->c, &cup__rows[CUP__OP_matmul], in, 2, &turned, &k->dweight);
        return;
    }
    cup_tensor *added[] = {k->dweight, slopes, x};
    const cup__matmul_add_attributes add = {true, false};
    const cup__matmul_into_attributes into = {true, false};
    if (first)
        cup__op_call(k->c, &cup__rows[CUP__OP_matmul_into], added, 3, &into, NULL);
    else
        cup__op_call(k->c, &cup__rows[CUP__OP_matmul_add], added, 3, &add, NULL);
}

/* Where nobody asks for gradients, the logits stay as they are. */
static void run_loss(const chunks *k, cup_tensor **in, cup_tensor *loss)
{
    const cup__linear_cross_entropy_attributes *a = k->a;
    const cup__cross_entropy_part_attributes part = {a->ignore_index, a->label_smoothing,
                                                     a->z_loss, a->columns};
    const cup__cross_entropy_sum_attributes sum = {a->ignore_index, a->label_smoothing, a->z_loss,
                                                   a->columns};
    if (k->dx)
        cup__op_call(k->c, &cup__rows[CUP__OP_cross_entropy_part], in, 3, &part, &loss);
    else
        cup__op_call(k->c, &cup__rows[CUP__OP_cross_entropy_sum], in, 3, &sum, &loss);
}

static void run_chunk(chunks *k, int64_t from)
{
    cup_context *c = k->c;
    int64_t count = k->rows - from < k->chunk ? k->rows - from : k->chunk;
    cup_scope_open(c);
    cup_tensor *x = rows_from(k->x, from, count);
    cup_tensor *logits = cup_linear(c, x, k->weight, NULL);
    cup__shape one = {.dtype = k->losses->dtype};
    cup_tensor *loss = cup__tensor_view(k->losses, &one, NULL, from / k->chunk);
    cup_tensor *in[] = {logits, rows_from(k->targets, from, count), k->share};
    run_loss(k, in, loss);
    if (k->dx) {
        cup_tensor *product[] = {logits, k->weight}, *dx = rows_from(k->dx, from, count);
        const cup__matmul_attributes plain = {false, false};
        cup__op_call(c, &cup__rows[CUP__OP_matmul], product, 2, &plain, &dx);
        add_to_weight(k, logits, x, from == 0);
        cup_tensor_free(dx);
    }
    cup_tensor_free(in[1]);
    cup_tensor_free(loss);
    cup_tensor_free(x);
    cup_scope_return(c, NULL);
}

static cup_status run_chunks(cup__call *call, chunks *k)
{
    cup_context *c = call->c;
    cup_dtype wide = call->out[0]->dtype;
    k->x = cup__rows_of(c, call->in[0]);
    k->targets = cup_reshape(c, call->in[2], 1, (int64_t[]){-1});
    k->share = cup__target_share(c, k->targets, k->a->ignore_index, wide);
    int64_t count = (k->rows + k->chunk - 1) / k->chunk;
    k->losses = cup_tensor_new(c, wide, 1, &count);
    if (call->out_count > 1) {
        k->dx = cup__rows_of(c, call->out[1]);
        k->dweight = call->out[2];
    }
    if (k->rows == 0 && k->dweight)
        c->device->calls->fill(c->device, k->dweight->data, 0,
                               (size_t)(k->dweight->count * cup_dtype_size(k->dweight->dtype)));
    for (int64_t from = 0; from < k->rows && c->error.status == CUP_OK; from += k->chunk)
        run_chunk(k, from);
    const cup__sum_attributes all = {.keep = false};
    cup__op_call(c, &cup__rows[CUP__OP_sum], &k->losses, 1, &all, &call->out[0]);
    return c->error.status;
}

static cup_status run(cup__call *call)
{
    chunks k = {.c = call->c,
                .a = call->attributes,
                .weight = call->in[1],
                .rows = call->in[2]->count,
                .chunk = chunk_of(call)};
    bool was = cup_grad_recording(call->c, false);
    cup_scope_open(call->c);
    cup_status status = run_chunks(call, &k);
    cup_scope_return(call->c, NULL);
    cup_grad_recording(call->c, was);
    return status;
}

static cup_status gradient(cup__grad *g)
{
    for (int i = 0; i < 2; i++)
        g->d_in[i] = cup__loss_slope(g, g->out[1 + i]);
    if (g->d_in[1]->dtype != g->in_shape[1].dtype)
        g->d_in[1] = cup_cast(g->c, g->d_in[1], g->in_shape[1].dtype);
    return CUP_OK;
}

/* That of cross_entropy at the logits as a whole, taken on to x and weight. */
static cup_status composed(cup__grad *g)
{
    const cup__linear_cross_entropy_attributes *a = g->attributes;
    const cup__cross_entropy_attributes loss = {a->ignore_index, a->label_smoothing, a->z_loss,
                                                a->columns, false};
    cup_context *c = g->c;
    cup_tensor *x = cup__rows_of(c, g->in[0]), *weight = g->in[1], *slopes = NULL;
    cup_tensor *targets = cup_reshape(c, g->in[2], 1, (int64_t[]){-1});
    cup_tensor *logits = cup_linear(c, x, weight, NULL);
    cup_dtype wide = g->out_shape[0].dtype;
    cup_tensor *share = targets ? cup__target_share(c, targets, a->ignore_index, wide) : NULL;
    if (!logits || !share)
        return c->error.status;
    cup_tensor *in[] = {logits, targets}, *out[] = {NULL, NULL, share};
    const cup__shape in_shape[] = {cup__shape_of(logits), cup__shape_of(targets)};
    cup__grad of_loss = *g;
    of_loss.attributes = &loss;
    of_loss.in = in;
    of_loss.out = out;
    of_loss.in_shape = in_shape;
    of_loss.d_in = &slopes;
    CUP_TRY(cup__cross_entropy_composed(&of_loss));
    if (!slopes)
        return cup__no_slopes(g);
    cup_tensor *dx = cup_matmul(c, slopes, weight, false, false);
    g->d_in[0] = cup_reshape(c, dx, g->in_shape[0].ndim, g->in_shape[0].size);
    g->d_in[1] = cup_matmul(c, slopes, x, true, false);
    return c->error.status;
}

static const char *refuses(const cup__call *call, bool narrow)
{
    return narrow != (cup_dtype_size(call->in[0]->dtype) == 2) ? "it is for other dtypes" : NULL;
}

static const char *refuses_wide(const cup__call *call)
{
    return refuses(call, false);
}

static const char *refuses_narrow(const cup__call *call)
{
    return refuses(call, true);
}

/* In training: three products. */
static void cost(const cup__call *call, double *bytes, double *flops)
{
    double rows = (double)call->in[2]->count, weight = (double)call->in[1]->count;
    double products = call->out_count > 1 ? 3 : 1;
    double size = (double)cup_dtype_size(call->in[1]->dtype);
    *flops = products * 2 * rows * weight;
    *bytes = size * (weight + (double)call->in[0]->count) * (products > 1 ? 2 : 1);
}

/* Logits of 16 bits are rounded on their way, which the loss, in f32, shows. */
#define SLACK 0x1p-8
/* So are their gradients, whose product with x is summed in f32: less is forgiven than 16 units of
 * a result in bf16, as which it ends. */
#define SLACK_OF_SUM 0x1p-6
static const cup__impl impls[] = {
    {.name = "chunks", .place = CUP__CPU, CUP__THRESHOLDS(64, 128, 256),
     .refuses = refuses_wide, .run = run},
    {.name = "narrow chunks", .place = CUP__CPU, .refuses = refuses_narrow, .run = run,
     .slack = SLACK, .hidden_slack = SLACK_OF_SUM},
    {.name = "chunks", .place = CUP__CUDA, CUP__THRESHOLDS(64, 128, 256),
     .refuses = refuses_wide, .run = run},
    {.name = "narrow chunks", .place = CUP__CUDA, .refuses = refuses_narrow, .run = run,
     .slack = SLACK, .hidden_slack = SLACK_OF_SUM},
    {0},
};
static int64_t indices(cup_tensor *const *in, int i, const void *attributes)
{
    const cup__linear_cross_entropy_attributes *a = attributes;
    return i != 2 ? 0 : a->columns ? a->columns : in[1]->shape[0];
}

static const cup__linear_cross_entropy_attributes plain = {.ignore_index = -1},
                                                  cut = {2, 0.2, 1e-3, 7, 4},
                                                  padded = {-1, 0, 0, 37, 16};
static const cup__sample samples[] = {
    {"3x5 9x5 3", &plain}, {"5 9x5 ()", &plain},      {"2x5x8 9x8 2x5", &cut},
    {"0x5 9x5 0", &plain}, {"0x3x5 9x5 0x3", &plain}, {"3x0 9x0 3", &plain},
    {"33x16 40x16 33", &padded}, {"65x13 7x13 65", &cut}, {NULL, NULL}};
static const cup__sample bench[] = {{"8192x768 50304x768 8192", &plain}, {NULL, NULL}};

const cup__op cup__op_linear_cross_entropy = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = composed,
    .saves = CUP__SAVE_IN(0) | CUP__SAVE_IN(1) | CUP__SAVE_IN(2) | CUP__SAVE_OUT(1) |
             CUP__SAVE_OUT(2),
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}, {-1, 1}, {0, 7}},
    .indices = indices,
    .in_dtypes = {0, 0, CUP__DTYPES_INDEX},
    .tolerance = 16, /* as cross_entropy's gradient */
    .cost = cost,
};
