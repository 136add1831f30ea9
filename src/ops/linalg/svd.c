#include <float.h>
#include <math.h>

#include "cupola/ops.h"
#include "ops/linalg/cusolver.h"
#include "ops/linalg/lapack.h"
#include "ops/linalg/linalg.h"

#define MOST 1024 /* of the shorter side */
#define SWEEPS 40 /* some ten are needed */
#define LARGE 128 /* of the shorter side, from which cuSOLVER may be faster, */
#define EACH 1400 /* for a matrix for each of so many of its square */

static cup_status infer(cup__call *call)
{
    CUP_TRY(cup__need_matrices(call, MOST));
    cup__shape a = cup__shape_of(call->in[0]);
    int d = a.ndim - 2;
    int64_t m = a.size[d], n = a.size[d + 1], k = m < n ? m : n;
    call->result[0] = call->result[1] = call->result[2] = a;
    call->result[0].size[d + 1] = k;
    call->result[1].ndim = d + 1;
    call->result[1].size[d] = k;
    call->result[2].size[d] = k;
    return CUP_OK;
}

/* The columns of the matrix, or of its transpose where that is the taller one, are turned into each
 * other until they stand at right angles: then they are u s, and the turns together v. */
typedef struct turning {
    int64_t rows, count;
    double *x, *v; /* columns one behind another: of x `rows` numbers, of v `count` */
} turning;

static double product(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* By an angle of sine s and, of half of it, tangent u: with cosines near 1, whose rounding is no
 * matter of luck, lengths would grow from turn to turn. The larger one stays, or becomes, the
 * first. */
static void turn(double *first, double *second, int64_t count, double s, double u, bool exchange)
{
    for (int64_t i = 0; i < count; i++) {
        double a = first[i], b = second[i];
        double less = a - s * (b + u * a), more = b + s * (a - u * b);
        first[i] = exchange ? more : less;
        second[i] = exchange ? less : more;
    }
}

/* A column below this part of the largest element is noise, and 0 as far as angles go. */
#define NOISE (DBL_EPSILON / 2 * (DBL_EPSILON / 2))

static bool turn_pair(const turning *t, int64_t p, int64_t q)
{
    double *a = t->x + p * t->rows, *b = t->x + q * t->rows;
    double aa = product(a, a, t->rows), bb = product(b, b, t->rows), ab = product(a, b, t->rows);
    double most = fmax(8, sqrt((double)t->rows) / 2) * DBL_EPSILON * sqrt(aa * bb), s = 0, u = 0;
    bool exchange = bb > aa, turned = fabs(ab) > most && fmin(aa, bb) > NOISE;
    if (turned) {
        double zeta = (bb - aa) / (2 * ab);
        double tangent = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta);
        double c = 1 / sqrt(1 + tangent * tangent);
        s = c * tangent;
        u = s / (1 + c);
    }
    if (turned || exchange) {
        turn(a, b, t->rows, s, u, exchange);
        turn(t->v + p * t->count, t->v + q * t->count, t->count, s, u, exchange);
    }
    return turned || exchange;
}

/* A unit vector at right angles to the columns before: of the unit vectors the one that is least
 * among them, less what it has of them, twice as rounding leaves some. */
static void complete(const turning *t, int64_t column)
{
    double least = INFINITY, *own = t->x + column * t->rows;
    int64_t at = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        double among = 0;
        for (int64_t j = 0; j < column; j++)
            among += t->x[j * t->rows + i] * t->x[j * t->rows + i];
        if (among < least) {
            least = among;
            at = i;
        }
    }
    for (int64_t i = 0; i < t->rows; i++)
        own[i] = i == at;
    for (int64_t j = 0; j < 2 * column; j++) {
        const double *other = t->x + j % column * t->rows;
        double part = product(own, other, t->rows);
        for (int64_t i = 0; i < t->rows; i++)
            own[i] -= part * other[i];
    }
    double size = sqrt(product(own, own, t->rows));
    for (int64_t i = 0; i < t->rows; i++)
        own[i] /= size;
}

/* Leaves unit vectors and their lengths. */
static void turn_all(const turning *t, double *lengths)
{
    bool any = true;
    for (int sweep = 0; sweep < SWEEPS && any; sweep++) {
        any = false;
        for (int64_t p = 0; p < t->count; p++)
            for (int64_t q = p + 1; q < t->count; q++)
                any |= turn_pair(t, p, q);
    }
    for (int64_t j = 0; j < t->count; j++) {
        double *own = t->x + j * t->rows, square = product(own, own, t->rows);
        lengths[j] = sqrt(square);
        for (int64_t i = 0; i < t->rows && square > NOISE; i++)
            own[i] /= lengths[j];
        if (!(square > NOISE))
            complete(t, j);
    }
}

/* Whether of the largest elements the first is below 0. */
static bool is_below(const double *x, int64_t count)
{
    int64_t at = 0;
    for (int64_t i = 1; i < count; i++)
        at = fabs(x[i]) > fabs(x[at]) ? i : at;
    return count > 0 && x[at] < 0;
}

/* At a scale at which squares neither vanish nor grow too large. */
static void factor(const cup__call *call, double *a)
{
    const cup_tensor *in = call->in[0];
    int64_t m = in->shape[in->ndim - 2], n = in->shape[in->ndim - 1], k = m < n ? m : n;
    double *u = a + m * n, *s = u + m * k, *vt = s + k, most = 0;
    turning t = {.rows = m < n ? n : m, .count = k, .x = vt + k * n};
    t.v = t.x + t.rows * k;
    for (int64_t i = 0; i < m * n; i++)
        most = fmax(most, isfinite(a[i]) ? fabs(a[i]) : INFINITY);
    if (isinf(most)) {
        for (double *x = u; x < t.x; x++)
            *x = NAN;
        return;
    }
    int exponent = 0;
    frexp(most, &exponent);
    for (int64_t i = 0; i < m * n; i++)
        t.x[m < n ? i : i % n * m + i / n] = ldexp(a[i], -exponent);
    for (int64_t i = 0; i < k * k; i++)
        t.v[i] = i / k == i % k;
    turn_all(&t, s);
    const double *left = m < n ? t.v : t.x, *right = m < n ? t.x : t.v;
    for (int64_t j = 0; j < k; j++) {
        double sign = is_below(right + j * n, n) ? -1 : 1;
        s[j] = ldexp(s[j], exponent);
        for (int64_t i = 0; i < m; i++)
            u[i * k + j] = sign * left[j * m + i];
        for (int64_t i = 0; i < n; i++)
            vt[j * n + i] = sign * right[j * n + i];
    }
}

static void factor_lapack(const cup__call *call, double *a)
{
    const cup_tensor *in = call->in[0];
    int64_t m = in->shape[in->ndim - 2], n = in->shape[in->ndim - 1], k = m < n ? m : n;
    double *u = a + m * n, *s = u + m * k, *vt = s + k;
    if (!cup__lapack_svd(a, (int)m, (int)n, u, s, vt)) {
        factor(call, a);
        return;
    }
    for (int64_t j = 0; j < k; j++) {
        if (!is_below(vt + j * n, n))
            continue;
        for (int64_t i = 0; i < m; i++)
            u[i * k + j] = -u[i * k + j];
        for (int64_t i = 0; i < n; i++)
            vt[j * n + i] = -vt[j * n + i];
    }
}

static cup_status each(cup__call *call, void (*body)(const cup__call *, double *), bool parallel)
{
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], k = m < n ? m : n;
    int64_t results = (m + n + 1) * k;
    cup__linalg how = {
        .body = body, .results = m * n, .room = results + m * n + k * k};
    return cup__linalg_each(call, &how, 60.0 * (double)m * (double)n * (double)k, parallel);
}

static cup_status specification(cup__call *call)
{
    return each(call, factor, false);
}

static cup_status run(cup__call *call)
{
    return each(call, factor, true);
}

static cup_status run_lapack(cup__call *call)
{
    return each(call, factor_lapack, true);
}

static cup_status run_cuda(cup__call *call)
{
    const cup_tensor *t = call->in[0];
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], k = m < n ? m : n;
    cup__linalg_columns by = cup__linalg_columns_of(m < n ? n : m, k, (k + 1) / 2);
    return cup__linalg_launch(call, "svd.cu", "svd_fwd", &by,
                              (int64_t)(by.distance + by.across + 1) * k);
}

static cup_status run_cusolver(cup__call *call)
{
    return cup__cusolver_run(call, cup__svd_cusolver, run_cuda);
}

static const char *refuses_dtype(const cup__call *call)
{
    return call->in[0]->dtype == CUP_F32 ? NULL : "its vectors of f64 are less upright than ours";
}

static const char *cusolver_refuses(const cup__call *call)
{
    const char *why = refuses_dtype(call);
    return why ? why : cup__cusolver_in_turn_refuses(call);
}

/* A block that turns all columns alone takes k^3, and many blocks as long as one; the library takes
 * one matrix after another, with the whole card. */
static const char *best_refuses(const cup__call *call)
{
    const cup_tensor *a = call->in[0];
    int64_t m = a->shape[a->ndim - 2], n = a->shape[a->ndim - 1], k = m < n ? m : n;
    if (k < LARGE || a->count / m / n > k * k / EACH)
        return "of matrices so small, or so many, a block of the GPU each is thought to be faster";
    const char *why = refuses_dtype(call);
    return why ? why : cup__cusolver_refuses(call);
}

/* A vector [..,K] as a row or a column of matrices. */
static cup_tensor *vector_as(cup_context *c, cup_tensor *s, bool row)
{
    int64_t shape[CUP_MAX_DIMS];
    if (!s)
        return NULL;
    for (int d = 0; d < s->ndim - 1; d++)
        shape[d] = s->shape[d];
    shape[s->ndim - 1] = row ? 1 : s->shape[s->ndim - 1];
    shape[s->ndim] = row ? s->shape[s->ndim - 1] : 1;
    return cup_reshape(c, s, s->ndim + 1, shape);
}

static cup_tensor *sum_of(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    return a && b ? cup_add(c, a, b) : a ? a : b;
}

static cup_tensor *skew_of(cup_context *c, cup_tensor *x)
{
    return cup_sub(c, x, cup__linalg_turned(c, x));
}

/* What turns among the vectors of both sides cost: those in which both turn alike go with 1 over
 * the difference of two values, those in which they turn against each other with 1 over the sum.
 * Of equal values nothing can be said, so that inf or NaN shows it. */
static cup_tensor *of_turns(cup_context *c, cup_tensor *left, cup_tensor *right, cup_tensor *row,
                            cup_tensor *column)
{
    int64_t k = row->shape[row->ndim - 1];
    cup_tensor *one = cup_eye(c, row->dtype, k, k, NULL); /* no vector turns into itself */
    cup_tensor *alike = sum_of(c, left, right);
    cup_tensor *against = left && right ? cup_sub(c, left, right)
                          : left        ? left
                                        : cup_neg(c, right);
    alike = cup_div(c, alike, cup_add(c, cup_sub(c, row, column), one));
    against = cup_div(c, against, cup_add(c, cup_add(c, row, column), one));
    return cup_scale(c, cup_add(c, alike, against), 0.5);
}

/* u m vt, where m is made of what comes back to the values and of turns among the vectors; and what
 * of the longer vectors turns out of the space of them all. */
static cup_status gradient(cup__grad *g)
{
    cup_context *c = g->c;
    const cup__shape *a = &g->in_shape[0];
    int64_t rows = a->size[a->ndim - 2], columns = a->size[a->ndim - 1];
    int64_t k = rows < columns ? rows : columns;
    cup_tensor *u = g->out[0], *vt = g->out[2], *du = g->d_out[0], *dvt = g->d_out[2];
    cup_tensor *row = vector_as(c, g->out[1], true), *column = vector_as(c, g->out[1], false);
    cup_tensor *m = NULL, *outside = NULL;
    cup_tensor *x = du ? cup_matmul(c, u, du, true, false) : NULL;
    cup_tensor *y = dvt ? cup_matmul(c, vt, dvt, false, true) : NULL;
    if (g->d_out[1])
        m = cup_mul(c, cup_eye(c, a->dtype, k, k, NULL), vector_as(c, g->d_out[1], true));
    if (du || dvt) {
        cup_tensor *left = du ? skew_of(c, x) : NULL, *right = dvt ? skew_of(c, y) : NULL;
        m = sum_of(c, m, of_turns(c, left, right, row, column));
    }
    if (du && rows > columns) {
        x = cup_sub(c, du, cup_matmul(c, u, x, false, false));
        outside = cup_matmul(c, cup_div(c, x, row), vt, false, false);
    } else if (dvt && rows < columns) {
        y = cup_sub(c, dvt, cup_matmul(c, y, vt, true, false));
        outside = cup_matmul(c, u, cup_div(c, y, column), false, false);
    }
    cup_tensor *inside = cup_matmul(c, cup_matmul(c, u, m, false, false), vt, false, false);
    g->d_in[0] = sum_of(c, inside, outside);
    return c->error.status;
}

/* Rounding turns vectors of near values far, and never their products; and signs follow a rule. */
static int steady(cup_context *c, cup_tensor *const *out, cup_tensor **made)
{
    cup_tensor *u = out[0], *s = out[1], *vt = out[2];
    made[0] = s;
    made[1] = cup_matmul(c, cup_mul(c, u, vector_as(c, s, true)), vt, false, false);
    made[2] = cup_matmul(c, u, u, true, false);
    made[3] = cup_matmul(c, vt, vt, false, true);
    if (vt->shape[vt->ndim - 1] == 0)
        return 4;
    const int64_t last = -1;
    cup_tensor *most = cup_max(c, vt, &last, 1, false), *least = cup_min(c, vt, &last, 1, false);
    made[4] = cup_minimum(c, cup_add(c, most, least), cup__number(c, vt, 0));
    return 5;
}

static void cost(const cup__call *call, double *bytes, double *flops)
{
    const cup_tensor *a = call->in[0];
    double m = (double)a->shape[a->ndim - 2], n = (double)a->shape[a->ndim - 1];
    double k = fmin(m, n), count = m * n > 0 ? (double)a->count / (m * n) : 0;
    *bytes = count * (m * n + (m + n + 1) * k) * (double)cup_dtype_size(a->dtype);
    *flops = 6 * count * m * n * k; /* of one sweep */
}

static const cup__impl impls[] = {
    {.name = "cusolver_best", .place = CUP__CUDA, .eager = true, .refuses = best_refuses,
     .run = run_cusolver},
    {.name = "blocks", .place = CUP__CUDA, CUP__THRESHOLDS(16, 64, 76), .run = run_cuda},
    {.name = "cusolver", .place = CUP__CUDA, CUP__THRESHOLDS(32, 64),
     .refuses = cusolver_refuses, .run = run_cusolver},
    {.name = "lapack", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(16),
     .refuses = cup__lapack_refuses, .run = run_lapack, .varies = CUP__LAPACK_VARIES},
    {.name = "threads", .place = CUP__CPU, .strided = true, .run = run},
    {0}};
static const cup__sample samples[] = {
    {"1x1", NULL},   {"3x7x4", NULL}, {"3x4x7", NULL},  {"2x3x9x9", NULL}, {"0x4x4", NULL},
    {"2x5x0", NULL}, {"2x0x3", NULL}, {"9x17x5", NULL}, {"65x6", NULL},    {"2x20x113", NULL},
    {"81x81", NULL}, {NULL, NULL}};
static const cup__sample bench[] = {
    {"65536x8x8", NULL}, {"4096x64x64", NULL}, {"4096x256x16", NULL}, {NULL, NULL}};

const cup__op cup__op_svd = {
    .infer = infer,
    .specification = specification,
    .gradient = gradient,
    .composed = gradient,
    .saves = CUP__SAVE_OUT(0) | CUP__SAVE_OUT(1) | CUP__SAVE_OUT(2),
    .steady = steady,
    .impls = impls,
    .samples = samples,
    .bench = bench,
    .domain = {{-1, 1}},
    .in_dtypes = {CUP__DTYPE(F32) | CUP__DTYPE(F64)},
    .tolerance = 256, /* some ten turns of each column with each other one */
    .cost = cost,
};
