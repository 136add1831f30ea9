#include "prof/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cupola/ops.h"

static const double epsilon[] = {[CUP_F32] = 0x1p-23,   [CUP_F64] = 0x1p-52,
                                 [CUP_F16] = 0x1p-10,   [CUP_BF16] = 0x1p-7,
                                 [CUP_F8E4M3] = 0x1p-3, [CUP_F8E5M2] = 0x1p-2};

/* The smallest size that rounds to infinity. */
static const double most[] = {[CUP_F32] = 0x1.ffffffp127,  [CUP_F64] = INFINITY,
                              [CUP_F16] = 65520,           [CUP_BF16] = 0x1.ffp127,
                              [CUP_F8E4M3] = INFINITY,     [CUP_F8E5M2] = 61440};
static const double smallest[] = {[CUP_F32] = 0x1p-149,   [CUP_F64] = 0x1p-1074,
                                  [CUP_F16] = 0x1p-24,    [CUP_BF16] = 0x1p-133,
                                  [CUP_F8E4M3] = 0x1p-9,  [CUP_F8E5M2] = 0x1p-16};

double cup__epsilon(cup_dtype dtype)
{
    return epsilon[dtype];
}

double cup__smallest(cup_dtype dtype)
{
    return smallest[dtype];
}

double cup__most(cup_dtype dtype)
{
    return most[dtype];
}

static double value_at(const cup_tensor *t, int64_t i)
{
    return cup__load(t, t->contiguous ? i : cup__offset_of(t, i));
}

static bool both_special(double got, double want)
{
    return (isnan(got) && isnan(want)) || (isinf(want) && got == want);
}

/* Blocks of a fixed size, so that what comes of them does not depend on the threads. */
#define BLOCK 65536

typedef struct comparison {
    const cup_tensor *want, *got;
    const double *forgiven; /* by element; NULL: nothing */
    double slack, least, rms;
    bool codes, by_rows, overflows;
    double *of_block; /* the sum of squares, then the largest error */
    int64_t *where;
} comparison;

static int64_t end_of(const comparison *c, int64_t block)
{
    return block * BLOCK + BLOCK < c->want->count ? block * BLOCK + BLOCK : c->want->count;
}

static void add_squares(int64_t begin, int64_t end, void *user)
{
    comparison *c = user;
    double large = cup__dtype_is_float(c->got->dtype) ? fmin(most[c->got->dtype], 1e150) : 1e150;
    for (int64_t b = begin; b < end; b++) {
        double squares = 0;
        for (int64_t i = b * BLOCK; i < end_of(c, b); i++) {
            double v = fabs(value_at(c->want, i));
            squares += isfinite(v) ? fmin(v, large) * fmin(v, large) : 0;
        }
        c->of_block[b] = squares;
    }
}

/* Below a dtype's normal numbers its steps are equal. What is too large for it is infinite, which
 * stands for the smallest number that is. */
static double error_of(const comparison *c, double w, double g, double forgiven, double whole)
{
    cup_dtype dtype = c->got->dtype;
    bool is_float = cup__dtype_is_float(dtype);
    if (both_special(g, w) || g == w)
        return 0;
    if (c->overflows && is_float && !isfinite(g) && fabs(w) >= most[dtype])
        return 0;
    if (is_float && isinf(g) && !isnan(w) && signbit(g) == signbit(w) && isfinite(most[dtype])) {
        if (fabs(w) >= most[dtype])
            return 0;
        g = copysign(most[dtype], g);
    }
    double scale = is_float ? epsilon[dtype] * (fabs(w) + c->rms) + smallest[dtype] + c->least
                             : 0.125;
    double error = fabs(g - w);
    forgiven += c->slack * (fabs(w) + whole);
    error = error <= forgiven ? 0 : (error - forgiven) / scale;
    return isnan(error) ? INFINITY : error;
}

static double code_of(cup_dtype dtype, double value)
{
    unsigned char byte;
    cup_tensor one = {.data = &byte, .dtype = dtype};
    cup__store_any(&one, 0, value);
    return cup__load_any(&one, 0);
}

/* The room of f32's own rounding is left where nothing is forgiven. */
static double error_of_code(const comparison *c, double w, double g)
{
    double reach = (c->slack + epsilon[CUP_F32]) * (fabs(w) + c->rms) + c->least;
    if (both_special(g, w) || g == w)
        return 0;
    if (isnan(w) || isnan(g))
        return INFINITY;
    double low = code_of(c->got->dtype, w - reach), high = code_of(c->got->dtype, w + reach);
    return g < low || g > high ? INFINITY : 0;
}

/* The root mean square of the row that an element is in. */
static double size_of_row(const comparison *c, int64_t i)
{
    const cup_tensor *t = c->want;
    int64_t width = t->ndim ? t->shape[t->ndim - 1] : 1;
    double squares = 0;
    for (int64_t k = i - i % width; k < i - i % width + width; k++) {
        double v = value_at(t, k);
        squares += isfinite(v) ? v * v : 0;
    }
    return sqrt(squares / (double)width);
}

static void find_worst(int64_t begin, int64_t end, void *user)
{
    comparison *c = user;
    for (int64_t b = begin; b < end; b++) {
        double worst = 0, whole = c->rms;
        int64_t width = c->want->ndim ? c->want->shape[c->want->ndim - 1] : 1;
        for (int64_t i = b * BLOCK; i < end_of(c, b); i++) {
            if (c->by_rows && (i == b * BLOCK || i % width == 0))
                whole = size_of_row(c, i);
            double w = value_at(c->want, i), g = value_at(c->got, i);
            double forgiven = c->forgiven ? c->forgiven[i] : 0;
            double error = c->codes ? error_of_code(c, w, g) : error_of(c, w, g, forgiven, whole);
            if (error > worst) {
                worst = error;
                c->where[b] = i;
            }
        }
        c->of_block[b] = worst;
    }
}

static double compare_blocks(comparison *c, int64_t blocks, char *note, size_t note_size)
{
    double squares = 0, worst = 0;
    cup__parallel_for(blocks, 1, add_squares, c);
    for (int64_t b = 0; b < blocks; b++)
        squares += c->of_block[b];
    c->rms = sqrt(squares / (double)(c->want->count ? c->want->count : 1));
    cup__parallel_for(blocks, 1, find_worst, c);
    for (int64_t b = 0; b < blocks; b++) {
        if (!(c->of_block[b] > worst))
            continue;
        worst = c->of_block[b];
        snprintf(note, note_size, "element %lld is %.9g, expected %.9g", (long long)c->where[b],
                 value_at(c->got, c->where[b]), value_at(c->want, c->where[b]));
    }
    return worst;
}

double cup__compare(const cup_tensor *want, const cup_tensor *got, double slack, char *note,
                    size_t note_size)
{
    return cup__compare_above(want, got, slack, 1e-300, 0, note, note_size);
}

static double compare(comparison *c, char *note, size_t note_size)
{
    int64_t blocks = (c->want->count + BLOCK - 1) / BLOCK;
    c->of_block = cup__calloc((size_t)blocks, sizeof *c->of_block);
    c->where = cup__calloc((size_t)blocks, sizeof *c->where);
    double worst = INFINITY;
    if (c->of_block && c->where)
        worst = compare_blocks(c, blocks, note, note_size);
    else
        snprintf(note, note_size, "there is no host memory to compare");
    cup__free(c->of_block);
    cup__free(c->where);
    return worst;
}

double cup__compare_above(const cup_tensor *want, const cup_tensor *got, double slack, double least,
                          int ways, char *note, size_t note_size)
{
    comparison c = {.want = want,
                    .got = got,
                    .slack = slack,
                    .least = least,
                    .by_rows = ways & CUP__COMPARE_ROWS,
                    .overflows = ways & CUP__COMPARE_OVERFLOWS};
    return compare(&c, note, note_size);
}

double cup__compare_beyond(const cup_tensor *want, const cup_tensor *got, const double *forgiven,
                           double least, char *note, size_t note_size)
{
    comparison c = {.want = want, .got = got, .forgiven = forgiven, .least = least};
    return compare(&c, note, note_size);
}

double cup__compare_codes(const cup_tensor *want, const cup_tensor *got, double slack, double least,
                          char *note, size_t note_size)
{
    comparison c = {.want = want, .got = got, .slack = slack, .least = least, .codes = true};
    return compare(&c, note, note_size);
}

bool cup__on_host(cup_tensor *t, cup_tensor *host, void **memory)
{
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    *memory = cup__malloc(bytes);
    if (!*memory || cup_tensor_read(t, *memory, bytes) != CUP_OK)
        return false;
    *host = (cup_tensor){
        .data = *memory, .dtype = t->dtype, .count = t->count, .contiguous = true};
    return true;
}

int cup__steady(cup_context *c, const cup__op *op, cup_tensor **out, int count)
{
    cup_tensor *wide[CUP__MAX_OUT] = {NULL}, *made[CUP__MAX_OUT] = {NULL};
    cup_dtype dtype = out[0] ? out[0]->dtype : CUP_F64;
    if (!op->steady)
        return count;
    for (int i = 0; i < count; i++)
        wide[i] = dtype == CUP_F64 ? out[i] : cup_cast(c, out[i], CUP_F64);
    if (c->error.status != CUP_OK)
        return -1;
    int all = op->steady(c, wide, made);
    for (int i = 0; i < all && c->error.status == CUP_OK && dtype != CUP_F64; i++)
        made[i] = cup_cast(c, made[i], dtype);
    memcpy(out, made, sizeof made);
    return c->error.status == CUP_OK ? all : -1;
}
