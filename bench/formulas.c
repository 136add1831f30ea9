/* Times formulas on this card, L2 flushed, random data; and what a call costs the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda.h"
#include "cupola/expr.h"
#include "cupola/ops.h"
#include "tensor/context.h"

#define ROUNDS 41
#define FLUSH ((size_t)256 << 20)

typedef struct formula {
    const char *text;
    cup_dtype dtype;
    int ndim[3];
    int64_t shape[3][3];
} formula;

#define SAME(n) {1, 1, 1}, {{n}, {n}, {n}}
#define ROWS(m, n) {2, 2, 1}, {{m, n}, {m, n}, {n}}
static const formula formulas[] = {
    {"a + b", CUP_F32, SAME(1 << 20)},
    {"a*b + c", CUP_F32, SAME(1 << 20)},
    {"a*b + c", CUP_F32, SAME(1 << 25)},
    {"a*b + c", CUP_BF16, SAME(1 << 26)},
    {"gelu(a*b + c)", CUP_BF16, SAME(1 << 26)},
    {"gelu(a + c) * b", CUP_BF16, ROWS(32768, 3072)},
    {"swiglu(a, b)", CUP_BF16, ROWS(8192, 14336)},
    {"a*b, a + b, a - b", CUP_F32, SAME(1 << 25)},
    {"f32(a*b + c)", CUP_BF16, SAME(1 << 26)},
    {"sum[-1](a*b)", CUP_F32, ROWS(32768, 1024)},
    {"sum[-1](a*b)", CUP_BF16, ROWS(32768, 4096)},
    {"sum[-1](a*b*c)", CUP_BF16, ROWS(100, 1000000)},
    {"sum[0](a*b)", CUP_F32, ROWS(32768, 1024)},
    {"sum[0](a*b), sum[0](a)", CUP_BF16, ROWS(32768, 4096)},
    {"sum[0](a*b)", CUP_BF16, ROWS(8192, 50257)},
    {"sum[0](a*b)", CUP_F32, ROWS(8192, 10001)},
    {"sum[0](a*b)", CUP_BF16, ROWS(8192, 50264)},
    {"sum[-1](a*b)", CUP_BF16, ROWS(8192, 50257)},
    {"sum[](a*b)", CUP_F32, SAME(1 << 25)},
    {"max[](a)", CUP_BF16, SAME(1 << 26)},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void must(cup_context *c)
{
    if (cup_error(c) == CUP_OK)
        return;
    printf("FAILED: %s\n", cup_error_text(c));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void time_formula(cup_context *c, const formula *f, void *flush, cup__timer *timer)
{
    cup_tensor *in[3], *out[CUP_EXPR_RESULTS] = {NULL};
    double us[ROUNDS], bytes = 0, start = now();
    cup_scope_open(c);
    cup_expr *e = cup_expr_new(c, "a b c", NULL, f->text);
    for (int i = 0; i < 3; i++)
        in[i] = cup_normal(c, f->dtype, f->ndim[i], f->shape[i], 0, 1);
    must(c);
    cup_synchronize(c);
    start = now();
    cup_expr_call(e, in, NULL, out);
    must(c);
    cup_synchronize(c);
    double first = now() - start;
    for (int i = 0; i < ROUNDS; i++) {
        double ms;
        c->device->calls->fill(c->device, flush, 0, FLUSH);
        cup__timer_start(timer);
        cup_expr_call(e, in, NULL, out);
        cup__timer_stop(timer, &ms);
        us[i] = ms * 1000;
    }
    must(c);
    for (int i = 0; i < 3; i++)
        if (strchr(f->text, "abc"[i]) && (i != 2 || strstr(f->text, " c") || strstr(f->text, "*c")))
            bytes += (double)(cup_tensor_count(in[i]) * cup_dtype_size(f->dtype));
    for (int j = 0; j < CUP_EXPR_RESULTS && out[j]; j++)
        bytes += (double)(cup_tensor_count(out[j]) * cup_dtype_size(cup_tensor_dtype(out[j])));
    qsort(us, ROUNDS, sizeof *us, by_value);
    printf("%-24s %-5s %8lld x %-8lld %9.2f us (low %.2f) %7.0f GB/s, first %.0f ms\n", f->text,
           cup_dtype_name(f->dtype), (long long)f->shape[0][0],
           (long long)(f->ndim[0] > 1 ? f->shape[0][1] : 1), us[ROUNDS / 2], us[2],
           bytes / us[ROUNDS / 2] * 1e-3, first * 1e-3);
    fflush(stdout);
    cup_expr_free(e);
    cup_scope_close(c);
}

static void time_host(cup_context *c)
{
    int64_t shape[] = {64};
    cup_tensor *in[] = {cup_normal(c, CUP_F32, 1, shape, 0, 1),
                        cup_normal(c, CUP_F32, 1, shape, 0, 1)};
    cup_tensor *out[CUP_EXPR_RESULTS] = {cup_tensor_new(c, CUP_F32, 1, shape)};
    cup_expr *e = cup_expr_new(c, "a b", NULL, "a + b");
    for (int round = 0; round < 3; round++) {
        double start = now();
        for (int i = 0; i < 2000; i++)
            cup_expr_call(e, in, NULL, out);
        double fused = (now() - start) / 2000;
        cup_synchronize(c);
        start = now();
        for (int i = 0; i < 2000; i++)
            cup_tensor_free(cup_add(c, in[0], in[1]));
        double op = (now() - start) / 2000;
        cup_synchronize(c);
        printf("host: a formula %.2f us a call, the op add %.2f\n", fused, op);
    }
    must(c);
    cup_expr_free(e);
}

int main(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    must(c);
    void *flush;
    cup__timer *timer;
    c->device->calls->allocate(c->device, FLUSH, "flush", &flush);
    cup__timer_new(cup__cuda_of(c->device), &timer);
    must(c);
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        time_formula(c, &formulas[i], flush, timer);
    time_host(c);
    cup__timer_free(timer);
    c->device->calls->release(c->device, flush);
    cup_context_free(c);
    return 0;
}
