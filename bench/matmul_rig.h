/* What the programs that time matrix products share: random operands, a product over them, and
 * the comparison of two results. */
#ifndef BENCH_MATMUL_RIG_H
#define BENCH_MATMUL_RIG_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gpu.h"
#include "dispatch/attributes.h"
#include "ops/matmul/product_cuda.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define FLUSH ((size_t)256 << 20)
#define ROUNDS 9
#ifndef COMPARED
#define COMPARED ((size_t)1 << 25) /* elements at the end of large results */
#endif

#define NT false, true
#define NN false, false
#define TN true, false

typedef struct shape {
    int64_t m, n, k, batch;
    bool ta, tb;
    bool bias, gelu, pre;
    int parts;
    int dtype;
} shape;

typedef struct rig {
    cup_context *c;
    cup__cuda *gpu;
    void *noise; /* of random bf16 or f16 */
    int64_t noise_count;
    int noise_dtype;
    char *a, *b, *y[2], *pre[2], *bias, *flush;
    size_t capacity;
    cup__timer *timer;
    int failures;
} rig;

static void fail(rig *r, const char *what)
{
    printf("FAILED %s: %s\n", what, cup_error_text(r->c));
    fflush(stdout);
    exit(1);
}

static char *memory(rig *r, size_t bytes)
{
    void *at;
    if (r->c->device->calls->allocate(r->c->device, bytes, "sweep", &at) != CUP_OK)
        fail(r, "allocating");
    return at;
}

static double normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 40) * 0x1p-24 - 0.5;
    }
    return sum * 1.7320508;
}

static void make_noise(rig *r, int dtype)
{
    if (r->noise && r->noise_dtype == dtype)
        return;
    r->noise_count = 1 << 22;
    r->noise_dtype = dtype;
    size_t bytes = (size_t)r->noise_count * (size_t)cup_dtype_size((cup_dtype)dtype);
    float *values = malloc((size_t)r->noise_count * sizeof *values);
    void *host = malloc(bytes);
    uint64_t state = 42;
    for (int64_t i = 0; i < r->noise_count; i++)
        values[i] = (float)normal(&state);
    cup__store_f32(host, values, (cup_dtype)dtype, r->noise_count);
    if (!r->noise)
        r->noise = memory(r, (size_t)r->noise_count * sizeof *values);
    if (r->c->device->calls->write(r->c->device, r->noise, host, bytes))
        fail(r, "writing");
    free(host);
    free(values);
}

/* Random elements everywhere, each piece of memory starting elsewhere in the noise. */
static void fill(rig *r, char *to, int64_t count, int64_t offset)
{
    const cup__device_calls *calls = r->c->device->calls;
    int64_t size = cup_dtype_size((cup_dtype)r->noise_dtype);
    for (int64_t done = 0; done < count;) {
        int64_t at = (offset + done * 7) % (r->noise_count / 2) & ~(int64_t)7;
        int64_t now = r->noise_count - at < count - done ? r->noise_count - at : count - done;
        calls->copy(r->c->device, to + done * size, (char *)r->noise + at * size,
                    (size_t)(now * size));
        done += now;
    }
}

static int64_t padded(int64_t count)
{
    return (count + 7) / 8 * 8;
}

/* The product of a shape in the rig's memory; lines are padded to multiples of 8 elements. */
static inline cup__product product_of(rig *r, const shape *s, int which)
{
    cup__product p = {.dtype = (cup_dtype)s->dtype, .y_dtype = (cup_dtype)s->dtype, .factor = 1,
                      .m = s->m, .n = s->n, .k = s->k,
                      .batch_count = s->batch};
    int64_t a_line = padded(s->ta ? s->m : s->k), b_line = padded(s->tb ? s->k : s->n);
    p.a = (cup__matrix){.data = r->a, .row = s->ta ? 1 : a_line, .column = s->ta ? a_line : 1};
    p.b = (cup__matrix){.data = r->b, .row = s->tb ? 1 : b_line, .column = s->tb ? b_line : 1};
    p.y = (cup__matrix){.data = r->y[which], .row = s->n, .column = 1};
    if (s->batch > 1) {
        p.batch_ndim = 1;
        p.batch_size[0] = s->batch;
        p.a.batch[0] = a_line * (s->ta ? s->k : s->m);
        p.b.batch[0] = s->batch % 3 == 0 ? 0 : b_line * (s->tb ? s->n : s->k);
        p.y.batch[0] = s->m * s->n;
    }
    p.bias = s->bias ? r->bias : NULL;
    p.activation = s->gelu ? PRODUCT_GELU : 0;
    p.saving = s->pre;
    p.pre = s->pre ? r->pre[which] : NULL;
    return p;
}

static inline void prepare(rig *r, const shape *s)
{
    make_noise(r, s->dtype);
    int64_t a = padded(s->ta ? s->m : s->k) * (s->ta ? s->k : s->m) * s->batch;
    int64_t b = padded(s->tb ? s->k : s->n) * (s->tb ? s->n : s->k) * s->batch;
    size_t size = (size_t)cup_dtype_size((cup_dtype)s->dtype);
    if ((size_t)a * size > r->capacity || (size_t)b * size > r->capacity ||
        (size_t)(s->m * s->n * s->batch) * size > r->capacity) {
        printf("shape too large for the rig\n");
        exit(1);
    }
    fill(r, r->a, a, 1000);
    fill(r, r->b, b, 700000);
    fill(r, r->bias, s->n, 90000);
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)(s->m * s->n * s->batch) * size + 512;
        r->c->device->calls->fill(r->c->device, r->y[i], 0xff, bytes);
        if (s->pre)
            r->c->device->calls->fill(r->c->device, r->pre[i], 0xff, bytes);
    }
}

/* The largest difference in units of the dtype's epsilon; infinite when the bytes behind the
 * result were touched. */
static inline double compare(rig *r, const shape *s, const char *want, const char *got)
{
    static const double epsilons[] = {
        [CUP_F32] = 0x1p-23, [CUP_F16] = 0x1p-10, [CUP_BF16] = 0x1p-7};
    size_t count = (size_t)(s->m * s->n * s->batch);
    size_t size = (size_t)cup_dtype_size((cup_dtype)s->dtype);
    if (count > COMPARED) {
        want += (count - COMPARED) * size;
        got += (count - COMPARED) * size;
        count = COMPARED;
    }
    char *w = malloc(count * size), *g = malloc(count * size + 512);
    float *w32 = malloc(count * 4), *g32 = malloc(count * 4);
    cup__device *d = r->c->device;
    if (d->calls->read(d, w, want, count * size) || d->calls->read(d, g, got, count * size + 512))
        fail(r, "reading");
    cup__load_f32(w32, w, (cup_dtype)s->dtype, (int64_t)count);
    cup__load_f32(g32, g, (cup_dtype)s->dtype, (int64_t)count);
    double squares = 0, worst = 0;
    for (size_t i = 0; i < count; i++)
        squares += (double)w32[i] * (double)w32[i];
    double rms = sqrt(squares / (double)count), epsilon = epsilons[s->dtype];
    for (size_t i = 0; i < count; i++) {
        double v = (double)w32[i], x = (double)g32[i];
        double error = fabs(x - v) / (epsilon * (fabs(v) + rms) + 1e-30);
        if (!(error <= worst))
            worst = isnan(error) ? INFINITY : error;
    }
    for (size_t i = 0; i < 512; i++)
        if ((unsigned char)g[count * size + i] != 0xff)
            worst = INFINITY;
    free(w);
    free(g);
    free(w32);
    free(g32);
    return worst;
}

static inline cup__call fake_call(rig *r)
{
    return (cup__call){.c = r->c, .row = cup__row_find("matmul")};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* Memory for operands of up to `capacity` bytes. */
static void open_rig(rig *r, size_t capacity)
{
    memset(r, 0, sizeof *r);
    r->c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(r->c) != CUP_OK)
        fail(r, "opening the GPU");
    r->gpu = cup__cuda_of(r->c->device);
    r->capacity = capacity;
    r->a = memory(r, capacity);
    r->b = memory(r, capacity);
    for (int i = 0; i < 2; i++) {
        r->y[i] = memory(r, capacity + 512);
        r->pre[i] = memory(r, capacity + 512);
    }
    r->bias = memory(r, 1 << 20);
    r->flush = memory(r, FLUSH);
    if (cup__timer_new(r->gpu, &r->timer) != CUP_OK)
        fail(r, "a timer");
}

/* The exit code. */
static int close_rig(rig *r)
{
    if (cup_error(r->c) != CUP_OK)
        fail(r, "the run");
    cup__timer_free(r->timer);
    cup_context_free(r->c);
    return r->failures != 0;
}

#endif
