#include <math.h>

#include "base/parallel.h"
#include "cuda/cuda.h"
#include "dispatch/attributes.h"
#include "ops/activation/gelu.h"
#include "ops/lowbit/scaled.h"

typedef cup__quantize_turned_attributes attributes;

#define SIDE PRODUCT_SCALE_DEPTH
#define THREADS 256
#define PART 8 /* rows and columns of a thread, as in quantize_turned.cu */
#define LEAST_SCALE 0x1p-126

enum { X, PRE };
enum { Y, TURNED, SCALE, ROW_SCALE, COLUMN_SCALE, SUMS };

static cup_status infer(cup__call *call)
{
    const attributes *t = call->attributes;
    const cup_tensor *x = call->in[X], *pre = call->in[PRE];
    CUP_TRY(cup__need_float(call, X));
    CUP_TRY(cup__need_ndim(call, X, 2, 2));
    if (t->dtype != CUP_F8E4M3 && t->dtype != CUP_F8E5M2)
        return cup__call_fail(call, CUP_DTYPE, "codes are f8e4m3 or f8e5m2 here, not %s",
                              cup_dtype_name(t->dtype));
    if (pre)
        CUP_TRY(cup__need_same_dtype(call, X, PRE));
    if (pre && (pre->ndim != 2 || pre->shape[0] != x->shape[0] || pre->shape[1] != x->shape[1]))
        return cup__call_fail(call, CUP_SHAPE, "pre must have the shape of x");
    int64_t rows = x->shape[0], columns = x->shape[1];
    int64_t down = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
    const int64_t sizes[][2] = {{rows, columns}, {columns, rows},  {down, across},
                                {rows, across},  {columns, down}, {t->summing ? down : 0, columns}};
    for (int i = 0; i <= SUMS; i++)
        call->result[i] = (cup__shape){.dtype = i <= TURNED ? t->dtype : CUP_F32,
                                       .ndim = 2,
                                       .size = {sizes[i][0], sizes[i][1]}};
    call->order[ROW_SCALE] = call->order[COLUMN_SCALE] = "10"; /* as products read them */
    return CUP_OK;
}

/* Tile number `i` of a matrix. */
typedef struct place {
    int64_t number, down, across, row, column, rows, columns;
} place;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static place place_of(const cup__call *call, int64_t i)
{
    const cup_tensor *x = call->in[X];
    int64_t across = (x->shape[1] + SIDE - 1) / SIDE;
    place p = {.number = i, .down = i / across, .across = i % across};
    p.row = p.down * SIDE;
    p.column = p.across * SIDE;
    p.rows = smaller(SIDE, x->shape[0] - p.row);
    p.columns = smaller(SIDE, x->shape[1] - p.column);
    return p;
}

static int64_t tiles_of(const cup__call *call)
{
    return call->out[SCALE]->count;
}

static double scale_of(double most, cup_dtype dtype)
{
    return most == 0 ? 1 : fmax(most / cup__code_most(dtype), LEAST_SCALE);
}

/* A tile's scale to all who ask for it. */
static void put_scale(const cup__call *call, const place *p, double scale)
{
    cup_tensor *const *out = call->out;
    cup__store(out[SCALE], p->number, scale);
    for (int64_t i = 0; i < p->rows; i++)
        cup__store(out[ROW_SCALE],
                   (p->row + i) * out[ROW_SCALE]->stride[0] + p->across * out[ROW_SCALE]->stride[1],
                   scale);
    for (int64_t i = 0; i < p->columns; i++)
        cup__store(out[COLUMN_SCALE],
                   (p->column + i) * out[COLUMN_SCALE]->stride[0] +
                       p->down * out[COLUMN_SCALE]->stride[1],
                   scale);
}

static double number_at(const cup__call *call, int64_t at)
{
    const cup_tensor *pre = call->in[PRE];
    double x = cup__load(call->in[X], cup__offset_of(call->in[X], at));
    if (pre)
        return x * cup__gelu_slope(cup__load(pre, cup__offset_of(pre, at)));
    return ((const attributes *)call->attributes)->gelu ? cup__gelu(x) : x;
}

static cup_status specification(cup__call *call)
{
    const attributes *t = call->attributes;
    int64_t rows = call->in[X]->shape[0], columns = call->in[X]->shape[1];
    for (int64_t n = 0; n < tiles_of(call); n++) {
        place p = place_of(call, n);
        double most = 0;
        for (int64_t i = 0; i < p.rows * p.columns; i++)
            most = fmax(most, fabs(number_at(call, (p.row + i / p.columns) * columns + p.column +
                                                       i % p.columns)));
        double scale = scale_of(most, t->dtype);
        put_scale(call, &p, scale);
        for (int64_t k = p.column; k < p.column + p.columns; k++) {
            double sum = 0;
            for (int64_t i = p.row; i < p.row + p.rows; i++) {
                double v = number_at(call, i * columns + k);
                sum += v;
                cup__store(call->out[Y], i * columns + k, v / scale);
                cup__store(call->out[TURNED], k * rows + i, v / scale);
            }
            if (t->summing)
                cup__store(call->out[SUMS], p.down * columns + k, sum);
        }
    }
    return CUP_OK;
}

/* A row of a tile in f32. */
static void load_row(const cup__call *call, int64_t at, int64_t count, float *to)
{
    const cup_tensor *x = call->in[X], *pre = call->in[PRE];
    int64_t size = cup_dtype_size(x->dtype);
    float before[SIDE];
    cup__load_f32(to, (const char *)x->data + at * size, x->dtype, count);
    if (pre)
        cup__load_f32(before, (const char *)pre->data + at * size, x->dtype, count);
    for (int64_t k = 0; k < count && pre; k++)
        to[k] *= cup__gelu_slope_f32(before[k]);
    for (int64_t k = 0; k < count && !pre && ((const attributes *)call->attributes)->gelu; k++)
        to[k] = cup__gelu_f32(to[k]);
}

static void run_tile(const cup__call *call, const place *p)
{
    const attributes *t = call->attributes;
    int64_t rows = call->in[X]->shape[0], columns = call->in[X]->shape[1];
    uint8_t *y = call->out[Y]->data, *turned = call->out[TURNED]->data;
    float most = 0, v[SIDE], sums[SIDE] = {0};
    for (int64_t i = 0; i < p->rows; i++) {
        load_row(call, (p->row + i) * columns + p->column, p->columns, v);
        for (int64_t k = 0; k < p->columns; k++) {
            most = fmaxf(most, fabsf(v[k]));
            sums[k] += v[k];
        }
    }
    float scale = most / (float)cup__code_most(t->dtype);
    scale = most == 0 ? 1.0f : fmaxf(scale, (float)LEAST_SCALE);
    put_scale(call, p, (double)scale);
    float factor = 1 / scale;
    for (int64_t i = p->row; i < p->row + p->rows; i++) {
        load_row(call, i * columns + p->column, p->columns, v);
        for (int64_t k = 0; k < p->columns; k++)
            v[k] *= factor;
        cup__store_f32((char *)y + i * columns + p->column, v, t->dtype, p->columns);
        for (int64_t k = p->column; k < p->column + p->columns; k++)
            turned[k * rows + i] = y[i * columns + k];
    }
    for (int64_t k = 0; k < p->columns && t->summing; k++)
        ((float *)call->out[SUMS]->data)[p->down * columns + p->column + k] = sums[k];
}

static void run_tiles(int64_t begin, int64_t end, void *user)
{
    for (int64_t i = begin; i < end; i++) {
        place p = place_of(user, i);
        run_tile(user, &p);
    }
}

static cup_status run(cup__call *call)
{
    cup__parallel_for(tiles_of(call), 1, run_tiles, call);
    return CUP_OK;
}

static bool is_aligned(const void *data, int64_t bytes)
{
    return (uintptr_t)data % (uintptr_t)bytes == 0;
}

/* Scales of rows or columns, as the kernel knows them. */
typedef struct scales {
    void *at;
    long long step, tile;
} scales;

static scales scales_of(const cup_tensor *t)
{
    return (scales){t->data, t->stride[0], t->stride[1]};
}

static cup_status launch(cup__call *call, cup_tensor *const *in)
{
    const attributes *t = call->attributes;
    cup__cuda *gpu = cup__cuda_of(call->c->device);
    const void *x = in[X]->data, *pre = in[PRE] ? in[PRE]->data : NULL;
    long long rows = call->in[X]->shape[0], columns = call->in[X]->shape[1];
    scales of_rows = scales_of(call->out[ROW_SCALE]),
           of_columns = scales_of(call->out[COLUMN_SCALE]);
    void *out[SUMS + 1];
    for (int i = 0; i <= SUMS; i++)
        out[i] = call->out[i]->data;
    bool whole = rows % PART == 0 && columns % PART == 0 && is_aligned(x, 16) &&
                 is_aligned(pre, 16) && is_aligned(out[Y], PART) && is_aligned(out[TURNED], PART);
    cup__knob knobs[] = {{"CUP_T", in[X]->dtype},
                         {"Y_T", t->dtype},
                         {"VEC", whole ? PART : 1},
                         {"GELU", pre ? 2 : t->gelu},
                         {"SUMS", t->summing}};
    cup__kernel *kernel =
        cup__kernel_get(gpu, "quantize_turned.cu", "quantize_turned", knobs, 5);
    cup__grid grid = {.x = tiles_of(call), .threads = THREADS, .dependent = true};
    unsigned multiprocessors = (unsigned)cup__cuda_facts(gpu)->multiprocessors;
    if (!kernel)
        return call->c->error.status;
    return cup__launch(gpu, kernel, grid, CUP__ARG(x), CUP__ARG(pre), CUP__ARG(out[Y]),
                       CUP__ARG(out[TURNED]), CUP__ARG(out[SCALE]), CUP__ARG(of_rows),
                       CUP__ARG(of_columns), CUP__ARG(out[SUMS]), CUP__ARG(rows),
                       CUP__ARG(columns), CUP__ARG(multiprocessors));
}

/* In f32 what comes in f64. */
static cup_status run_cuda(cup__call *call)
{
    cup_context *c = call->c;
    cup_tensor *in[2] = {call->in[X], call->in[PRE]};
    bool wide = in[X]->dtype == CUP_F64;
    for (int i = 0; i < 2 && wide; i++)
        in[i] = in[i] ? cup_cast(c, in[i], CUP_F32) : NULL;
    cup_status status = c->error.status == CUP_OK ? launch(call, in) : c->error.status;
    for (int i = 0; i < 2 && wide; i++)
        cup_tensor_free(in[i]);
    return status;
}

static const cup__impl impls[] = {
    {.name = "tiles", .place = CUP__CPU, CUP__THRESHOLDS(8, 128), .refuses = cup__refuses_f64,
     .run = run, .slack = 0x1p-16},
    {.name = "tiles", .place = CUP__CUDA, CUP__THRESHOLDS(8, 128), .run = run_cuda,
     .slack = 0x1p-16},
    {0},
};

static const attributes e4m3 = {CUP_F8E4M3, false, false}, gelu = {CUP_F8E4M3, true, false},
                        sums = {CUP_F8E4M3, false, true}, e5m2 = {CUP_F8E5M2, true, true};
static const cup__sample samples[] = {{"0x5 -", &e4m3},        {"3x0 -", &sums},
                                      {"1x1 -", &e4m3},        {"7x9 7x9", &sums},
                                      {"128x128 -", &gelu},    {"136x264 136x264", &sums},
                                      {"129x257 129x257", &e5m2}, {"130x40 -", &e5m2},
                                      {"400x136 -", &sums},    {"120x392 -", &gelu},
                                      {"129x129 -", &gelu},    {"1x1 -", &gelu},
                                      {NULL, NULL}};
static const cup__sample bench[] = {{"32768x768 -", &e4m3},
                                    {"32768x768 -", &sums},
                                    {"32768x3072 -", &gelu},
                                    {"32768x3072 32768x3072", &sums},
                                    {NULL, NULL}};

const cup__op cup__op_quantize_turned = {
    .infer = infer,
    .specification = specification,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .tolerance = 128, /* sums of up to 128 numbers */
    .codes = true,
};
