/* Composed gradients of all ops that have one: against the gradient that is not recorded, and their
 * own derivatives against differences of it, at random calls. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda/support.h"
#include "base/memory.h"
#include "base/text.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "grad/tape.h"
#include "prof/draw.h"
#include "test.h"

#define MOST 16
#define WANTED 5 /* calls of each op */
#define DRAWS 40
#define ELEMENTS 400
#define STEP 1e-6

/* Values of one call: its inputs, then the numbers that its results are weighed with. */
typedef struct point {
    cup_tensor *all[MOST + CUP__MAX_OUT];
    int in_count, count;
    bool rounded; /* some result is not in f64, so that differences of it say nothing */
} point;

static bool is_real(const cup_tensor *t)
{
    return t && (t->dtype == CUP_F64 || t->dtype == CUP_F32 || t->dtype == CUP_BF16);
}

static bool is_parameter(const cup_tensor *t)
{
    return t && t->is_parameter;
}

/* Numbers in [-1, 1), the same for the same seed. */
static cup_tensor *numbers(cup_context *c, const cup_tensor *like, uint64_t seed)
{
    cup_tensor *t = cup_tensor_new(c, CUP_F64, like->ndim, like->shape);
    double *values = t ? cup__calloc((size_t)t->count, sizeof *values) : NULL;
    for (int64_t i = 0; values && i < t->count; i++)
        values[i] = (double)(cup__draw_word(&seed) >> 11) * 0x1p-52 - 1;
    if (values)
        cup_tensor_write(t, values, (size_t)t->count * sizeof *values);
    cup__free(values);
    return t ? cup_cast(c, t, like->dtype) : NULL;
}

/* A loss of the call, as a weighed sum of its results; makes the point where it is not yet made.
 * NULL: it is refused, or nothing in it has a gradient. */
static cup_tensor *loss_of(cup_context *c, const cup__drawn *d, cup_dtype hold, point *p)
{
    cup_tensor *out[CUP__MAX_OUT] = {NULL}, *loss = NULL;
    const void *attributes = d->row->attributes_size ? d->attributes : NULL;
    bool made = p->count > 0;
    cup_seed(c, 5);
    cup_random_step(c, 1);
    if (!made)
        p->in_count = p->count = cup__drawn_inputs(d, c, hold, p->all, MOST);
    for (int i = 0; i < p->in_count && !made; i++) {
        /* An op that rounds on the way is drawn in its own dtype. */
        if (is_real(p->all[i]) && hold == CUP_F64)
            p->all[i] = cup_cast(c, p->all[i], CUP_F64);
        if (is_real(p->all[i]) && !cup__input_changes(d->row->op, i))
            cup_require_grad(p->all[i]);
    }
    cup__op_call(c, d->row, p->all, p->in_count, attributes, out);
    for (int i = 0; i < d->row->visible && cup_error(c) == CUP_OK; i++) {
        if (!is_real(out[i]) || !cup__leads_to_parameter(c, out[i]))
            continue;
        p->rounded |= out[i]->dtype != CUP_F64;
        if (!made)
            p->all[p->in_count + i] = cup_require_grad(numbers(c, out[i], 70 + (uint64_t)i));
        cup_tensor *part = cup_mul(c, out[i], p->all[p->in_count + i]);
        part = cup_cast(c, cup_sum(c, part, NULL, 0, false), hold);
        loss = loss ? cup_add(c, loss, part) : part;
    }
    if (!made)
        p->count += d->row->visible;
    return cup_error(c) == CUP_OK ? loss : NULL;
}

/* The gradients with respect to all that is floating; NULL where there are none. */
static bool gradients(cup_context *c, const point *p, cup_tensor *loss, bool recorded,
                      cup_tensor **d)
{
    cup_tensor *in[MOST + CUP__MAX_OUT], *out[MOST + CUP__MAX_OUT];
    int count = 0;
    for (int i = 0; i < p->count; i++)
        if (is_parameter(p->all[i]))
            in[count++] = p->all[i];
    cup_status status = recorded ? cup_gradients_recorded(c, loss, in, count, out)
                                 : cup_gradients(c, loss, in, count, out);
    count = 0;
    for (int i = 0; i < p->count; i++)
        d[i] = is_parameter(p->all[i]) && status == CUP_OK ? out[count++] : NULL;
    return status == CUP_OK;
}

static void expect_no_error(cup_context *c, const char *call)
{
    if (cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", call, cup_error_text(c));
}

/* The sum of all gradients times numbers: what is differentiated once more. */
static cup_tensor *mix(cup_context *c, const point *p, cup_tensor **d)
{
    cup_tensor *sum = NULL;
    for (int i = 0; i < p->count; i++) {
        if (!d[i])
            continue;
        cup_tensor *by = numbers(c, d[i], 900 + (uint64_t)i);
        cup_tensor *part = cup_sum(c, cup_mul(c, d[i], by), NULL, 0, false);
        part = cup_cast(c, part, CUP_F64);
        sum = sum ? cup_add(c, sum, part) : part;
    }
    return sum;
}

static double value(const cup_tensor *t, int64_t i)
{
    return cup__load(t, cup__offset_of(t, i));
}

static double largest(const cup_tensor *t)
{
    double most = 0;
    for (int64_t i = 0; i < t->count; i++)
        most = fmax(most, fabs(value(t, i)));
    return most;
}

static void expect_same(const char *call, cup_tensor *a, cup_tensor *b, double tolerance)
{
    if (!a && !b)
        return;
    if (!a || !b) {
        /* Nothing and zeros are the same. */
        if (largest(a ? a : b) > 0)
            test_fail(__FILE__, __LINE__, "%s: one gradient is not there", call);
        return;
    }
    EXPECT_INT(a->dtype, b->dtype);
    EXPECT_INT(a->count, b->count);
    double most = fmax(largest(a), 0.1);
    for (int64_t i = 0; i < a->count; i++) {
        double want = value(a, i), got = value(b, i);
        bool same = want == got || (isnan(want) && isnan(got));
        if (!same && !(fabs(want - got) <= tolerance * most))
            test_fail(__FILE__, __LINE__, "%s: element %lld is %g, composed %g", call,
                      (long long)i, want, got);
    }
}

/* The mix of the gradients where all values are moved by `step` along fixed numbers. */
static double mixed_at(cup_context *c, const cup__drawn *d, const point *p, double step)
{
    point moved = *p;
    cup_tensor *slopes[MOST + CUP__MAX_OUT];
    cup_scope_open(c);
    for (int i = 0; i < p->count; i++) {
        if (!is_parameter(p->all[i]))
            continue;
        cup_tensor *by = cup_scale(c, numbers(c, p->all[i], 400 + (uint64_t)i), step);
        moved.all[i] = cup_detach(cup_add(c, p->all[i], by));
        cup_require_grad(moved.all[i]);
    }
    cup_tensor *loss = loss_of(c, d, CUP_F64, &moved), *sum = NULL;
    if (loss && gradients(c, &moved, loss, false, slopes))
        sum = mix(c, &moved, slopes);
    double mixed = sum ? cup_tensor_item(sum) : 0;
    cup_scope_close(c);
    return mixed;
}

/* The derivative of the mix along the same numbers; `size`: of its terms. */
static double slope_of_mix(cup_context *c, const point *p, cup_tensor *sum, double *size)
{
    cup_tensor *d[MOST + CUP__MAX_OUT];
    double slope = 0;
    *size = 1;
    if (!sum || !cup__leads_to_parameter(c, sum) || !gradients(c, p, sum, false, d))
        return 0;
    for (int i = 0; i < p->count; i++) {
        cup_tensor *by = d[i] ? numbers(c, p->all[i], 400 + (uint64_t)i) : NULL;
        for (int64_t k = 0; d[i] && k < d[i]->count; k++) {
            double part = value(d[i], k) * value(by, k);
            slope += part;
            *size += fabs(part);
        }
    }
    return slope;
}

/* False where the call has no gradient, or is refused as a whole. */
static bool hold(const cup__drawn *d, cup_dtype dtype, double tolerance)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup__text text = {0};
    point p = {0};
    cup_tensor *fast[MOST + CUP__MAX_OUT], *composed[MOST + CUP__MAX_OUT];
    cup__drawn_text(d, &text);
    cup_scope_open(c);
    cup_tape_keep(c, true);
    cup_tensor *loss = loss_of(c, d, dtype, &p);
    bool there = loss && gradients(c, &p, loss, false, fast) &&
                 (gradients(c, &p, loss, true, composed) || cup_error(c) != CUP_UNSUPPORTED);
    if (there) {
        expect_no_error(c, text.bytes);
        for (int i = 0; i < p.count; i++)
            expect_same(text.bytes, fast[i], composed[i], tolerance);
    }
    if (there && dtype == CUP_F64 && !p.rounded) {
        cup_tensor *sum = mix(c, &p, composed);
        expect_no_error(c, text.bytes);
        double size, slope = slope_of_mix(c, &p, sum, &size);
        expect_no_error(c, text.bytes);
        double above = mixed_at(c, d, &p, STEP), below = mixed_at(c, d, &p, -STEP);
        double difference = (above - below) / (2 * STEP);
        expect_no_error(c, text.bytes);
        if (isfinite(difference) && !(fabs(slope - difference) <= 1e-5 * size))
            test_fail(__FILE__, __LINE__, "%s: the second derivative is %g, by differences %g",
                      text.bytes, slope, difference);
    }
    cup_scope_close(c);
    cup_context_free(c);
    cup__text_free(&text);
    return there;
}

/* In each dtype that the op takes: calls that were drawn, until enough of them were held. */
static void hold_op(const cup__row *row)
{
    static const cup_dtype dtypes[] = {CUP_F64, CUP_F32, CUP_BF16};
    static const double tolerances[] = {1e-9, 2e-4, 0.06};
    cup_context *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (int k = 0; k < 3; k++) {
        int held = 0, tries;
        for (int number = 0; number < DRAWS && held < WANTED; number++) {
            cup__drawn d;
            cup__draw_limits limits = {.elements = ELEMENTS, .work = 1e5, .tame = true,
                                       .dtypes = 1u << (k == 2 ? CUP_BF16 : CUP_F32)};
            if (cup__draw(scratch, row, &limits, 11, number, &d, &tries))
                held += hold(&d, dtypes[k], tolerances[k]);
            cup_error_clear(scratch);
        }
        if (held < WANTED)
            test_fail(__FILE__, __LINE__, "%s: only %d calls were held", row->name, held);
    }
    cup_context_free(scratch);
}

/* Ops in turn, so that tests share them. */
static void hold_share(int which)
{
    int number = 0;
    for (const cup__row *row = cup__rows; row->name; row++)
        if (row->op->composed && number++ % 4 == which)
            hold_op(row);
}

TEST_LIMITED(composed_gradients_0, 300)
{
    hold_share(0);
}

TEST_LIMITED(composed_gradients_1, 300)
{
    hold_share(1);
}

TEST_LIMITED(composed_gradients_2, 300)
{
    hold_share(2);
}

TEST_LIMITED(composed_gradients_3, 300)
{
    hold_share(3);
}

/* On a GPU whose kernels do nothing: all calls are there, and none is refused. */
static void launch(cup_context *c, const cup__drawn *d)
{
    point p = {0};
    cup_tensor *slopes[MOST + CUP__MAX_OUT];
    cup__text text = {0};
    cup__drawn_text(d, &text);
    cup_scope_open(c);
    cup_tape_keep(c, true);
    cup_tensor *loss = loss_of(c, d, d->dtype, &p), *sum = NULL;
    bool there = loss && gradients(c, &p, loss, false, slopes) &&
                 (gradients(c, &p, loss, true, slopes) || cup_error(c) != CUP_UNSUPPORTED);
    if (there)
        sum = mix(c, &p, slopes);
    if (there && sum && cup__leads_to_parameter(c, sum))
        gradients(c, &p, sum, false, slopes);
    if (there)
        expect_no_error(c, text.bytes);
    cup_error_clear(c);
    cup_tape_clear(c);
    cup_scope_close(c);
    cup__text_free(&text);
}

TEST_LIMITED(composed_gradients_on_the_stand_in, 300)
{
    static const cup_dtype dtypes[] = {CUP_F32, CUP_BF16};
    fake_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    cup_context *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT_TEXT(cup_error_text(c), "");
    for (const cup__row *row = cup__rows; row->name; row++)
        for (int number = 0; row->op->composed && number < 4; number++) {
            int tries;
            cup__drawn d;
            cup__draw_limits limits = {.elements = ELEMENTS, .work = 1e5, .tame = true,
                                       .dtypes = 1u << dtypes[number % 2]};
            if (cup__draw(scratch, row, &limits, 12, number, &d, &tries))
                launch(c, &d);
            cup_error_clear(scratch);
        }
    cup_context_free(scratch);
    cup_context_free(c);
    fake_expect_nothing_left();
}

/* Each allocation fails once while the gradient is composed. */
static void starve(const cup__drawn *d)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *slopes[MOST + CUP__MAX_OUT];
    point p = {0};
    cup_scope_open(c);
    cup_tape_keep(c, true);
    cup_tensor *loss = loss_of(c, d, d->dtype, &p);
    bool done = !loss || !gradients(c, &p, loss, true, slopes);
    for (long n = 1; !done; n++) {
        cup_scope_open(c);
        cup__memory_fail_at(n, false);
        done = gradients(c, &p, loss, true, slopes);
        cup__memory_fail_at(0, false);
        EXPECT_INT(cup_error(c), done ? CUP_OK : CUP_MEMORY);
        cup_error_clear(c);
        cup_scope_close(c);
    }
    cup_scope_close(c);
    cup_context_free(c);
}

TEST_LIMITED(composed_gradients_without_memory, 300)
{
    cup_context *scratch = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    for (const cup__row *row = cup__rows; row->name; row++)
        for (int number = 0; row->op->composed && number < 2; number++) {
            int tries;
            cup__drawn d;
            cup__draw_limits limits = {.elements = 60, .work = 1e5, .tame = true,
                                       .dtypes = 1u << (number ? CUP_BF16 : CUP_F32)};
            if (cup__draw(scratch, row, &limits, 13, number, &d, &tries))
                starve(&d);
            cup_error_clear(scratch);
        }
    cup_context_free(scratch);
}
