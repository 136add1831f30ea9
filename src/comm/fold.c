/* Adding up versions of the same elements, always in one order. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "comm/comm.h"

#define PIECE 1024
#define GRAIN 65536

typedef struct folding {
    const void *const *blocks;
    int block_count;
    cup_dtype dtype;
    cup_combine how;
    void *out;
} folding;

static void load(const folding *f, int block, int64_t at, int64_t count, double *to)
{
    float plain[PIECE];
    size_t size = (size_t)cup_dtype_size(f->dtype);
    const char *from = (const char *)f->blocks[block] + (size_t)at * size;
    if (f->dtype == CUP_F64) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    cup__load_f32(plain, from, f->dtype, count);
    for (int64_t i = 0; i < count; i++)
        to[i] = (double)plain[i];
}

static void store(const folding *f, int64_t at, int64_t count, const double *from)
{
    float plain[PIECE];
    size_t size = (size_t)cup_dtype_size(f->dtype);
    char *to = (char *)f->out + (size_t)at * size;
    if (f->dtype == CUP_F64) {
        memcpy(to, from, (size_t)count * sizeof *from);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        plain[i] = (float)from[i];
    cup__store_f32(to, plain, f->dtype, count);
}

/* A NaN stays one. */
static double pick(double a, double b, cup_combine how)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return how == CUP_COMBINE_MIN ? fmin(a, b) : fmax(a, b);
}

static void fold_floats(const folding *f, int64_t at, int64_t count)
{
    double sum[PIECE], next[PIECE];
    load(f, 0, at, count, sum);
    for (int b = 1; b < f->block_count; b++) {
        load(f, b, at, count, next);
        if (f->how == CUP_COMBINE_MIN || f->how == CUP_COMBINE_MAX)
            for (int64_t i = 0; i < count; i++)
                sum[i] = pick(sum[i], next[i], f->how);
        else
            for (int64_t i = 0; i < count; i++)
                sum[i] += next[i];
    }
    for (int64_t i = 0; i < count && f->how == CUP_COMBINE_MEAN; i++)
        sum[i] /= (double)f->block_count;
    store(f, at, count, sum);
}

static int64_t load_whole(const folding *f, int block, int64_t at)
{
    return f->dtype == CUP_I64 ? ((const int64_t *)f->blocks[block])[at]
                               : ((const int32_t *)f->blocks[block])[at];
}

/* Sums go round at the end of the range, as everywhere. */
static void fold_whole(const folding *f, int64_t at, int64_t count)
{
    for (int64_t i = at; i < at + count; i++) {
        int64_t sum = load_whole(f, 0, i);
        for (int b = 1; b < f->block_count; b++) {
            int64_t next = load_whole(f, b, i);
            if (f->how == CUP_COMBINE_MIN)
                sum = next < sum ? next : sum;
            else if (f->how == CUP_COMBINE_MAX)
                sum = next > sum ? next : sum;
            else
                sum = (int64_t)((uint64_t)sum + (uint64_t)next);
        }
        if (f->dtype == CUP_I64)
            ((int64_t *)f->out)[i] = sum;
        else
            ((int32_t *)f->out)[i] = (int32_t)(uint32_t)(uint64_t)sum;
    }
}

static void fold_range(int64_t begin, int64_t end, void *user)
{
    const folding *f = user;
    bool whole = f->dtype == CUP_I64 || f->dtype == CUP_I32;
    for (int64_t at = begin; at < end; at += PIECE) {
        int64_t count = end - at < PIECE ? end - at : PIECE;
        if (whole)
            fold_whole(f, at, count);
        else
            fold_floats(f, at, count);
    }
}

void cup__fold_blocks(const void *const *blocks, int block_count, cup_dtype dtype,
                      cup_combine how, int64_t count, void *out)
{
    folding f = {blocks, block_count, dtype, how, out};
    cup__parallel_for(count, GRAIN, fold_range, &f);
}
