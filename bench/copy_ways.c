/* Times copies of views (transposed, permuted, sliced, with gaps) and concatenations beside a plain
 * copy of as many bytes, with the L2 cache flushed before each run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"

#define FLUSH ((size_t)256 << 20)
#define RUNS 21

typedef struct view {
    const char *what;
    cup_dtype dtype;
    int ndim;
    int64_t size[5], axes[5];   /* of the tensor; its permutation */
    int64_t start[5], part[5];  /* the slice of it, if part[0] */
} view;

static const view views[] = {
    {"plain", CUP_F32, 2, {8192, 8192}, {0, 1}, {0}, {0}},
    {"transpose", CUP_F32, 2, {8192, 8192}, {1, 0}, {0}, {0}},
    {"transpose", CUP_BF16, 2, {8192, 8192}, {1, 0}, {0}, {0}},
    {"transpose", CUP_U8, 2, {16384, 8192}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F64, 2, {8192, 4096}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {32768, 768}, {1, 0}, {0}, {0}},
    {"transpose", CUP_BF16, 2, {50257, 768}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {8191, 8193}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {1048576, 8}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {8, 1048576}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {4194304, 3}, {1, 0}, {0}, {0}},
    {"transpose", CUP_F32, 2, {3, 4194304}, {1, 0}, {0}, {0}},
    {"heads 0213", CUP_BF16, 4, {32, 1024, 12, 64}, {0, 2, 1, 3}, {0}, {0}},
    {"heads 0213", CUP_BF16, 4, {16, 2048, 16, 128}, {0, 2, 1, 3}, {0}, {0}},
    {"NCHW to NHWC", CUP_F32, 4, {32, 64, 128, 128}, {0, 2, 3, 1}, {0}, {0}},
    {"NHWC to NCHW", CUP_F32, 4, {32, 128, 128, 64}, {0, 3, 1, 2}, {0}, {0}},
    {"NCHW to NHWC", CUP_BF16, 4, {32, 3, 512, 512}, {0, 2, 3, 1}, {0}, {0}},
    {"reversed", CUP_F32, 4, {64, 96, 80, 112}, {3, 2, 1, 0}, {0}, {0}},
    {"batched transpose", CUP_BF16, 3, {512, 256, 512}, {0, 2, 1}, {0}, {0}},
    {"slice", CUP_F32, 2, {8192, 8192}, {0, 1}, {100, 1001}, {8000, 7001}},
    {"slice", CUP_BF16, 2, {32768, 2304}, {0, 1}, {0, 768}, {32768, 768}},
    {"slice", CUP_F32, 2, {1048576, 40}, {0, 1}, {0, 1}, {1048576, 33}},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fail(cup_context *c)
{
    fprintf(stderr, "%s\n", cup_error_text(c));
    exit(1);
}

typedef struct bench {
    cup_context *c;
    cup__timer *timer;
    void *flush;
} bench;

static double time_call(bench *b, cup__call *call)
{
    double us[RUNS], milliseconds = 0;
    for (int i = -3; i < RUNS; i++) {
        b->c->device->calls->fill(b->c->device, b->flush, 0x33, FLUSH);
        cup__timer_start(b->timer);
        if (cup__call_run(call, cup__call_choose(call)) != CUP_OK ||
            cup__timer_stop(b->timer, &milliseconds) != CUP_OK)
            fail(b->c);
        us[i < 0 ? 0 : i] = milliseconds * 1000;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    return us[RUNS / 2];
}

static cup_tensor *tensor_of(cup_context *c, cup_dtype dtype, const int64_t *size, int ndim)
{
    cup_tensor *t = cup_tensor_new(c, dtype, ndim, size);
    if (!t)
        fail(c);
    c->device->calls->fill(c->device, t->data, 0x41, t->storage->bytes);
    return t;
}

static double time_op(bench *b, cup__op_id id, cup_tensor **in, int count, const void *attributes)
{
    cup__call call;
    if (cup__call_begin(&call, b->c, &cup__rows[id], in, count, attributes) != CUP_OK ||
        cup__call_allocate(&call) != CUP_OK)
        fail(b->c);
    return time_call(b, &call);
}

/* Bytes read and written, and how the time compares with a plain copy of them. */
static void tell(bench *b, const char *what, cup_dtype dtype, const char *shape, double us,
                 int64_t bytes)
{
    int64_t count[] = {bytes / 4};
    cup_scope_open(b->c);
    cup_tensor *x = tensor_of(b->c, CUP_F32, count, 1);
    double plain = time_op(b, CUP__OP_copy, &x, 1, NULL);
    cup_scope_close(b->c);
    printf("%-18s %-5s %-22s %8.1f us %7.0f GB/s, %5.1f %% of a plain copy (%.1f us)\n", what,
           cup_dtype_name(dtype), shape, us, 2e-3 * (double)bytes / us, 100 * plain / us, plain);
    fflush(stdout);
}

static void time_view(bench *b, const view *v)
{
    char shape[64] = "";
    for (int i = 0; i < v->ndim; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", i ? "x" : "",
                 (long long)v->size[i]);
    cup_scope_open(b->c);
    cup_tensor *x = tensor_of(b->c, v->dtype, v->size, v->ndim);
    x = cup_permute(b->c, x, v->axes, v->ndim);
    if (v->part[0])
        x = cup_slice(b->c, x, v->start, v->ndim, v->part, v->ndim);
    if (!x)
        fail(b->c);
    int64_t bytes = x->count * cup_dtype_size(v->dtype);
    double us = time_op(b, CUP__OP_copy, &x, 1, NULL);
    cup_scope_close(b->c);
    tell(b, v->what, v->dtype, shape, us, bytes);
}

static void time_concat(bench *b, cup_dtype dtype, int64_t rows, int64_t columns, int parts,
                        int axis)
{
    char shape[64];
    int64_t size[] = {rows, columns}, bytes = 0;
    cup_tensor *in[8];
    cup__concat_attributes a = {axis};
    cup_scope_open(b->c);
    for (int i = 0; i < parts; i++) {
        in[i] = tensor_of(b->c, dtype, size, 2);
        bytes += (int64_t)in[i]->storage->bytes;
    }
    double us = time_op(b, CUP__OP_concat, in, parts, &a);
    cup_scope_close(b->c);
    snprintf(shape, sizeof shape, "%d of %lldx%lld axis %d", parts, (long long)rows,
             (long long)columns, axis);
    tell(b, "concat", dtype, shape, us, bytes);
}

int main(void)
{
    bench b = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"))};
    if (cup_error(b.c) != CUP_OK ||
        b.c->device->calls->allocate(b.c->device, FLUSH, "flush", &b.flush) != CUP_OK ||
        cup__timer_new(cup__cuda_of(b.c->device), &b.timer) != CUP_OK)
        fail(b.c);
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        time_view(&b, &views[i]);
    time_concat(&b, CUP_BF16, 32768, 768, 3, 1);
    time_concat(&b, CUP_F32, 8192, 4096, 2, 0);
    time_concat(&b, CUP_BF16, 4096, 64, 8, 1);
    cup__timer_free(b.timer);
    b.c->device->calls->release(b.c->device, b.flush);
    cup_context_free(b.c);
    return 0;
}
