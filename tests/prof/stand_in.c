/* The host's part of the calls of every op on a GPU, over a driver and a compiler that only stand
 * in. No result is looked at; what fails, what a launch refuses and what a sanitizer finds does
 * count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/support.h"
#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "dispatch/attributes.h"
#include "grad/tape.h"
#include "prof/check.h"
#include "prof/check_call.h"
#include "prof/graph.h"
#include "prof/random_plan.h"

#define MOST_BYTES (64 << 20) /* of the inputs of a call */

static cup_context *begin(void)
{
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    setenv("FAKE_CUDA_MEMORY", "4000000000", 1);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

static void end(cup_context *c)
{
    cup_context_free(c);
    fake_expect_nothing_left();
}

static void report(const cup_check_result *r, void *user)
{
    (void)user;
    if (!r->passed)
        test_fail(__FILE__, __LINE__, "%s by %s, %s, %s, \"%s\": %s", r->op, r->impl,
                  cup_dtype_name(r->dtype), r->layout, r->shapes, r->note);
}

static bool is_large(cup_tensor *const *in, int count)
{
    double bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += in[i] ? (double)in[i]->count * cup_dtype_size(in[i]->dtype) : 0;
    return bytes > MOST_BYTES;
}

static void expect_launches(cup_context *c, const cup__row *row, const cup__sample *s,
                            cup_dtype dtype, cup__layout layout)
{
    cup__check_call k = {.c = c, .row = row, .attributes = s->attributes, .dtype = dtype,
                         .layout = cup__layout_names[layout], .shapes = s->shapes, .repeat = "",
                         .report = report, .out_offset = layout == CUP__PADDED};
    cup_scope_open(c);
    k.in_count = cup__sample_inputs(c, row, s, dtype, dtype, layout, 0, k.in, CUP__CHECK_INPUTS);
    if (k.in_count < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", s->shapes, cup_error_text(c));
    if (!is_large(k.in, k.in_count))
        cup__check_launches(&k);
    cup__scope_pop(c);
}

static bool is_real(const cup_tensor *t)
{
    return t && cup__dtype_is_float(t->dtype) && cup_dtype_size(t->dtype) > 1;
}

/* The public call and its gradients. */
static void expect_backward(cup_context *c, const cup__row *row, const cup__sample *s,
                            cup_dtype dtype, cup__layout layout)
{
    cup_tensor *in[CUP__CHECK_INPUTS], *out[CUP__MAX_OUT] = {NULL}, *loss = NULL;
    cup_scope_open(c);
    int count = cup__sample_inputs(c, row, s, dtype, dtype, layout, 0, in, CUP__CHECK_INPUTS);
    bool runs = count >= 0 && !is_large(in, count);
    for (int i = 0; i < count && runs; i++)
        if (is_real(in[i]))
            cup_require_grad(in[i]);
    if (runs && cup__overwrites(row->op, s->attributes) && in[0])
        in[0] = cup_scale(c, in[0], 1);
    runs = runs && cup__op_call(c, row, in, count, s->attributes, out);
    for (int i = 0; i < row->visible && runs; i++)
        if (is_real(out[i]) && cup__leads_to_parameter(c, out[i])) {
            cup_tensor *part = cup_cast(c, cup_sum(c, out[i], NULL, 0, false), CUP_F32);
            loss = loss ? cup_add(c, loss, part) : part;
        }
    if (loss)
        cup_backward(c, loss);
    if (cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s of %s, \"%s\": %s", row->name, cup_dtype_name(dtype),
                  s->shapes, cup_error_text(c));
    cup__scope_pop(c);
    cup_tape_clear(c);
}

static void expect_op(void *user)
{
    const cup__row *row = user;
    cup_context *c = begin();
    uint32_t dtypes = cup__check_dtypes(row);
    for (const cup__sample *s = row->op->samples; s->shapes; s++)
        for (int dtype = 0; dtype < 32; dtype++)
            for (cup__layout layout = 0; layout < CUP__LAYOUTS; layout++) {
                if (!(dtypes >> dtype & 1) || !cup__check_has_layout(row, s, layout))
                    continue;
                expect_launches(c, row, s, (cup_dtype)dtype, layout);
                bool usual = dtype == CUP_F32 || dtype == CUP_BF16;
                if (row->is_public && row->op->gradient && usual)
                    expect_backward(c, row, s, (cup_dtype)dtype, layout);
            }
    end(c);
}

__attribute__((constructor)) static void add_all(void)
{
    for (const cup__row *row = cup__rows; row->name; row++) {
        char name[96];
        snprintf(name, sizeof name, "stand_in_%s", row->name);
        test_add(name, __FILE__, __LINE__, expect_op, (void *)(uintptr_t)row, 60);
    }
}

#define RANDOM_CALLS 12 /* of each op */

TEST_LIMITED(stand_in_random_calls, 60)
{
    cup_context *c = begin(), *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__drawn *d = malloc(sizeof *d);
    uint64_t seed = test_random();
    for (const cup__row *row = cup__rows; row->name; row++)
        for (int i = 0; i < RANDOM_CALLS; i++) {
            int tries;
            if (!cup__draw(scratch, row, NULL, seed, i, d, &tries))
                continue;
            cup__text text = {0};
            cup__drawn_text(d, &text);
            cup__check_call k = {.c = c, .row = row, .attributes = d->attributes,
                                 .dtype = d->dtype, .layout = "random", .report = report,
                                 .shapes = cup__text_string(&text), .repeat = "",
                                 .out_offset = d->out_offset};
            cup_scope_open(c);
            k.in_count = cup__drawn_inputs(d, c, d->dtype, k.in, CUP__CHECK_INPUTS);
            EXPECT(k.in_count >= 0);
            cup__check_launches(&k);
            cup__scope_pop(c);
            cup__text_free(&text);
        }
    free(d);
    cup_context_free(scratch);
    end(c);
}

TEST_LIMITED(stand_in_graphs, 60)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16, CUP_F16};
    cup_context *c = begin();
    uint64_t seed = test_random();
    for (int i = 0; i < 150; i++) {
        cup__graph g;
        cup__graph_run run;
        cup__graph_draw(seed, i, &g);
        cup_scope_open(c);
        if (cup__graph_execute(&g, c, dtypes[i % 3], dtypes[i % 3], 0, &run) != CUP_OK) {
            cup__text text = {0};
            cup__graph_text(&g, &text);
            test_fail(__FILE__, __LINE__, "%s: %s", cup__text_string(&text), cup_error_text(c));
        }
        cup__scope_pop(c);
        cup_tape_clear(c);
    }
    end(c);
}
