/* Every public op's samples with each of their sizes made 0, one after the other: a result or a
 * sentence, no crash, and the same on the CPU, on a GPU and on one that is not there, forward and
 * backward. What internal ops are called with comes from there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cuda/dry.h"
#include "cupola/grad.h"
#include "gradient_error.h"
#include "cupola/ops.h"
#include "prof/check.h"
#include "prof/compare.h"

#define MOST_INPUTS 64
#define MOST_SIZES 32
#define MOST_TEXT 512
#define LONGEST 300 /* of sizes: samples with larger ones take long and say no more */

/* The distinct sizes in a sample's text, none of them where one is large. */
static int sizes_of(const char *text, long size[MOST_SIZES])
{
    int count = 0;
    while (*text) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || *text == ' ') {
            text++;
            continue;
        }
        if (value > LONGEST)
            return 0;
        bool known = value <= 0 || *end == '*' || count == MOST_SIZES;
        for (int i = 0; i < count; i++)
            known |= size[i] == value;
        if (!known)
            size[count++] = value;
        text = end;
    }
    return count;
}

static void make_empty(char out[MOST_TEXT], const char *text, long size)
{
    size_t used = 0;
    while (*text && used < MOST_TEXT - 24) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || *text == ' ') {
            out[used++] = *text++;
            continue;
        }
        value = value == size && *end != '*' ? 0 : value;
        used += (size_t)snprintf(out + used, MOST_TEXT - used, "%ld", value);
        text = end;
    }
    out[used] = 0;
}

typedef struct empty_call {
    const cup__row *row;
    cup__sample sample;
    cup_dtype dtype;
} empty_call;

/* The call with memory for its results, in a context; false when its shapes are refused. */
static bool begin(cup_context *c, const empty_call *e, cup_dtype hold, uint64_t seed,
                  cup_tensor **in, cup__call *call)
{
    int count = cup__sample_inputs(c, e->row, &e->sample, e->dtype, hold, CUP__ROW_MAJOR, seed, in,
                                   MOST_INPUTS);
    if (count < 0 ||
        cup__call_begin(call, c, e->row, in, count, e->sample.attributes) != CUP_OK)
        return false;
    call->saving = true;
    call->out_count = e->row->results_count;
    return cup__call_allocate(call) == CUP_OK;
}

static void expect_alike(const empty_call *e, const char *impl, cup_tensor *want, cup_tensor *got)
{
    cup_tensor host;
    void *memory = NULL;
    char note[200] = "";
    EXPECT_INT(got->count, want->count);
    EXPECT(cup__on_host(got, &host, &memory));
    double error = cup__compare(want, &host, 0, note, sizeof note);
    free(memory);
    if (!(error <= 64))
        test_fail(__FILE__, __LINE__, "%s by %s, \"%s\": %s", e->row->name, impl,
                  e->sample.shapes, note);
}

/* What the specification says; false when it refuses. */
static bool specify(cup_context *c, const empty_call *e, cup__call *call, cup_tensor **in)
{
    return begin(c, e, CUP_F64, 1, in, call) && cup__call_run(call, NULL) == CUP_OK;
}

static void run_impls(cup_context *c, const empty_call *e, const cup__call *want)
{
    cup__place place = c->device->is_cuda ? CUP__CUDA : CUP__CPU;
    for (const cup__impl *impl = e->row->op->impls; impl && impl->name; impl++) {
        cup_tensor *in[MOST_INPUTS];
        cup__call call;
        if (impl->place != place)
            continue;
        if (!begin(c, e, e->dtype, 1, in, &call))
            test_fail(__FILE__, __LINE__, "\"%s\": %s", e->sample.shapes, cup_error_text(c));
        if (impl->refuses && impl->refuses(&call))
            continue;
        if (cup__call_run(&call, impl) != CUP_OK && cup_error(c) != CUP_UNSUPPORTED)
            test_fail(__FILE__, __LINE__, "\"%s\": %s", e->sample.shapes, cup_error_text(c));
        cup_error_clear(c);
        for (int i = 0; want && i < call.out_count; i++)
            expect_alike(e, impl->name, want->out[i], call.out[i]);
    }
}

/* Knobs that count something, of which there is at least one. */
static void check_knobs(const cup_context *c)
{
    static const char *const counts[] = {"VEC",   "GROUP", "PIECES", "THREADS", "WARPS", "BLOCKS",
                                         "STAGES", "UNROLL", "RING",  "CLUSTER"};
    int count;
    const cup__kernel_request *r = cup__dry_requests(cup__cuda_of(c->device), &count);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < r[i].knob_count; k++)
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
                if (!strcmp(r[i].knobs[k].name, counts[n]) && r[i].knobs[k].value < 1)
                    test_fail(__FILE__, __LINE__, "%s asks for %s=%lld", r[i].file, counts[n],
                              (long long)r[i].knobs[k].value);
}

typedef struct places {
    cup_context *host, *gpu[2]; /* the card, or two that are not there */
    bool dry;
} places;

static void check_gradient(const empty_call *e)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    double error = test_gradient_error(c, e->row, &e->sample);
    if (cup_error(c) != CUP_OK || !(error < 1e-5))
        test_fail(__FILE__, __LINE__, "gradient of %s, \"%s\": %g %s", e->row->name,
                  e->sample.shapes, error, cup_error_text(c));
    cup_context_free(c);
}

/* Backward on a GPU: of a sum over the first result. */
static void run_backward(cup_context *c, const empty_call *e)
{
    cup_tensor *in[MOST_INPUTS], *out[CUP__MAX_OUT] = {NULL};
    int count = cup__sample_inputs(c, e->row, &e->sample, e->dtype, e->dtype, CUP__ROW_MAJOR, 1, in,
                                   MOST_INPUTS);
    for (int i = 0; i < count; i++)
        if (in[i] && cup__dtype_is_float(in[i]->dtype) && !cup__input_changes(e->row->op, i))
            cup_require_grad(in[i]);
    if (cup__overwrites(e->row->op, e->sample.attributes))
        in[0] = cup_scale(c, in[0], 1);
    cup__op_call(c, e->row, in, count, e->sample.attributes, out);
    if (cup_error(c) == CUP_UNSUPPORTED)
        cup_error_clear(c);
    else if (!(CUP__DTYPES_FLOAT >> out[0]->dtype & 1))
        return;
    else if (cup_backward(c, cup_sum(c, out[0], NULL, 0, false)) != CUP_OK)
        test_fail(__FILE__, __LINE__, "gradient of %s, \"%s\": %s", e->row->name,
                  e->sample.shapes, cup_error_text(c));
}

static void check_call(const places *p, const empty_call *e)
{
    cup_tensor *in[MOST_INPUTS];
    cup__call want;
    cup_scope_open(p->host);
    if (specify(p->host, e, &want, in)) {
        if (p->dry)
            run_impls(p->host, e, &want);
        for (int i = 0; i < 2 && p->gpu[i]; i++) {
            cup_scope_open(p->gpu[i]);
            run_impls(p->gpu[i], e, p->dry ? NULL : &want);
            if (e->row->op->gradient && cup__dtype_is_float(e->dtype))
                run_backward(p->gpu[i], e);
            cup_scope_close(p->gpu[i]);
        }
        if (p->dry && e->row->op->gradient && e->dtype == CUP_F32)
            check_gradient(e);
    }
    cup_error_clear(p->host);
    cup_scope_close(p->host);
}

static void check_row(const places *p, const cup__row *row)
{
    for (const cup__sample *s = row->op->samples; s && s->shapes; s++) {
        long size[MOST_SIZES];
        char text[MOST_TEXT];
        int count = strlen(s->shapes) < MOST_TEXT / 2 ? sizes_of(s->shapes, size) : 0;
        for (int i = 0; i < count; i++)
            for (int dtype = 0; dtype < 11; dtype++) {
                empty_call e = {row, {text, s->attributes}, (cup_dtype)dtype};
                make_empty(text, s->shapes, size[i]);
                if (cup__check_dtypes(row) >> dtype & 1)
                    check_call(p, &e);
            }
    }
}

static void without_gpu(void *row)
{
    places p = {.host = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")),
                .gpu = {cup__context_dry("sm_90a"), cup__context_dry("sm_80")},
                .dry = true};
    check_row(&p, row);
    for (int i = 0; i < 2; i++) {
        check_knobs(p.gpu[i]);
        cup_context_free(p.gpu[i]);
    }
    cup_context_free(p.host);
}

TEST_LIMITED(gpu_empty_sizes, 300)
{
    places p = {.host = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu")),
                .gpu = {cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"))}};
    if (cup_error(p.gpu[0]) != CUP_OK)
        test_skip("%s", cup_error_text(p.gpu[0]));
    for (const cup__row *row = cup__rows; row->name; row++)
        if (row->is_public && !row->op->view)
            check_row(&p, row);
    cup_context_free(p.gpu[0]);
    cup_context_free(p.host);
}

__attribute__((constructor)) static void add_all(void)
{
    for (const cup__row *row = cup__rows; row->name; row++) {
        char name[96];
        snprintf(name, sizeof name, "empty_%s", row->name);
        if (row->is_public && !row->op->view)
            test_add(name, __FILE__, __LINE__, without_gpu, (void *)(uintptr_t)row, 120);
    }
}
