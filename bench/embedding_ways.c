/* Times the gradient of embedding where ids are spread evenly, as in text, few, and all the same,
 * with the L2 cache flushed before each run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cupola/cupola.h"
#include "dispatch/attributes.h"

#define FLUSH ((size_t)256 << 20)
#define RUNS 31

static const char *const kinds[] = {"even", "text", "64 ids", "one id"};

static uint64_t state = 1;

static double unit(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* An id: evenly, by Zipf's law, out of 64, or always the same. */
static int64_t draw(int kind, int64_t rows)
{
    int64_t id = (int64_t)(unit() * (double)rows);
    if (kind == 1)
        id = (int64_t)pow((double)rows, unit()) - 1;
    return kind == 2 ? id % 64 : kind == 3 ? 1234 % rows : id;
}

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

/* Microseconds of one call, the median. */
static double time_call(cup_context *c, cup__call *call, cup__timer *timer, void *flush)
{
    double us[RUNS], milliseconds = 0;
    for (int i = -3; i < RUNS; i++) {
        c->device->calls->fill(c->device, flush, 0x33, FLUSH);
        cup__timer_start(timer);
        if (cup__call_run(call, cup__call_choose(call)) != CUP_OK ||
            cup__timer_stop(timer, &milliseconds) != CUP_OK)
            fail(c);
        us[i < 0 ? 0 : i] = milliseconds * 1000;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    return us[RUNS / 2];
}

static void time_one(cup_context *c, int64_t count, int64_t rows, int64_t width, cup_dtype dtype,
                     cup_dtype id_dtype)
{
    void *flush = NULL, *values = calloc((size_t)count, 8);
    cup__timer *timer = NULL;
    cup_scope_open(c);
    c->device->calls->allocate(c->device, FLUSH, "flush", &flush);
    cup_tensor *dy = cup_normal(c, dtype, 2, (int64_t[]){count, width}, 0, 1);
    cup_tensor *ids = cup_tensor_new(c, id_dtype, 1, (int64_t[]){count});
    cup_tensor *in[] = {dy, ids};
    cup__embedding_grad_attributes a = {rows};
    cup__call call;
    if (!flush || !values || cup__timer_new(cup__cuda_of(c->device), &timer) != CUP_OK ||
        cup__call_begin(&call, c, &cup__rows[CUP__OP_embedding_grad], in, 2, &a) != CUP_OK ||
        cup__call_allocate(&call) != CUP_OK)
        fail(c);
    for (int kind = 0; kind < 4; kind++) {
        for (int64_t i = 0; i < count; i++)
            if (id_dtype == CUP_I32)
                ((int32_t *)values)[i] = (int32_t)draw(kind, rows);
            else
                ((int64_t *)values)[i] = draw(kind, rows);
        cup_tensor_write(ids, values, (size_t)(count * cup_dtype_size(id_dtype)));
        printf("%lld %s ids of %lld rows of %lld %s, %s: %.1f us\n", (long long)count,
               cup_dtype_name(id_dtype), (long long)rows, (long long)width, cup_dtype_name(dtype),
               kinds[kind], time_call(c, &call, timer, flush));
    }
    fflush(stdout);
    cup__timer_free(timer);
    c->device->calls->release(c->device, flush);
    free(values);
    cup_scope_close(c);
}

int main(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        fail(c);
    time_one(c, 32768, 50304, 768, CUP_BF16, CUP_I32);
    time_one(c, 32768, 50304, 768, CUP_BF16, CUP_I64);
    time_one(c, 32768, 50304, 768, CUP_F32, CUP_I32);
    time_one(c, 8192, 128256, 4096, CUP_BF16, CUP_I32);
    time_one(c, 1 << 20, 65, 384, CUP_BF16, CUP_I32);
    cup_context_free(c);
    return 0;
}
