/* Values that do not come from the specifications: those of tests/ops/anchors.tsv, of another
 * library. Each is held against the specification in double, the implementation that a call takes
 * in f64 and f32, and the gradients that the tape gives. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/cupola.h"
#include "dispatch/op.h"
#include "prof/attributes.h"

#define MOST 16
#define RANDOM_SEED 7 /* with which bench/anchor_cases.py draws */

/* Rows of the library's own that another library computes as well, beside steps of optimizers. */
static const char *const steps = " step_factors target_share ";

/* Kinds of tensors beside "f", which are floats of the dtype of the call. */
static cup_dtype dtype_of(char kind, cup_dtype dtype)
{
    static const char kinds[] = "segbucji";
    static const cup_dtype dtypes[] = {CUP_F32, CUP_F8E4M3, CUP_F8E5M2, CUP_BOOL,
                                       CUP_U8,  CUP_I8,     CUP_I32,    CUP_I64};
    const char *at = strchr(kinds, kind);
    EXPECT(at || kind == 'f');
    return at ? dtypes[at - kinds] : dtype;
}

/* "2x3:f:1,2,.." in a dtype for floats; "-" is NULL. Moves *at behind it. */
static cup_tensor *read_tensor(cup_context *c, const char **at, cup_dtype dtype)
{
    int64_t shape[CUP_MAX_DIMS], count = 1;
    int ndim = 0;
    char *end = (char *)(uintptr_t)*at;
    if (*end == '-') {
        *at += 1;
        return NULL;
    }
    for (; *end != ':'; end += *end == 'x') {
        shape[ndim] = strtoll(end, &end, 10);
        count *= shape[ndim++];
    }
    char kind = end[1];
    end += 3;
    double *values = calloc((size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i < count; i++, end += *end == ',')
        values[i] = strtod(end, &end);
    *at = end;
    cup_tensor *t = cup_tensor_from(c, CUP_F64, ndim, shape, values);
    free(values);
    return cup_cast(c, t, dtype_of(kind, dtype));
}

static int read_tensors(cup_context *c, const char *text, cup_dtype dtype, cup_tensor **out)
{
    int count = 0;
    while (*text) {
        EXPECT(count < MOST);
        out[count++] = read_tensor(c, &text, dtype);
        text += *text == ' ';
    }
    return count;
}

/* The largest difference, relative to the largest element; infinite for another shape. */
static double apart(cup_context *c, cup_tensor *got, cup_tensor *want)
{
    cup__shape a = cup__shape_of(got), b = cup__shape_of(want);
    if (!cup__shape_equal(&a, &b))
        return INFINITY;
    got = cup_cast(c, cup_copy(c, got), CUP_F64);
    want = cup_cast(c, want, CUP_F64);
    double most = 1e-300, worst = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double x = cup__load(got, i), y = cup__load(want, i);
        most = fmax(most, fabs(y));
        worst = x == y ? worst : isnan(x - y) ? INFINITY : fmax(worst, fabs(x - y));
    }
    return worst / fmax(most, 1);
}

typedef struct anchor {
    const char *field[6]; /* op, attributes, inputs, results, gradients, source */
    const cup__row *row;
    char attributes[1024];
    int line;
} anchor;

static void expect_near(const anchor *a, const char *what, int i, double error, double most)
{
    if (!(error <= most))
        test_fail(__FILE__, __LINE__, "line %d of the anchors, %s %s: %s %d is off by %.3g from %s",
                  a->line, a->field[0], a->field[1], what, i, error, a->field[5]);
}

static void check_forward(const anchor *a, cup_dtype dtype, bool specification)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *in[MOST], *want[MOST];
    const void *attributes = a->row->attributes_size ? a->attributes : NULL;
    int count = read_tensors(c, a->field[2], dtype, in);
    int results = read_tensors(c, a->field[3], CUP_F64, want);
    for (; a->row->in_most < MOST && count < a->row->in_most; count++)
        in[count] = NULL;
    cup__call call;
    cup_seed(c, RANDOM_SEED);
    if (cup__call_begin(&call, c, a->row, in, count, attributes) != CUP_OK ||
        cup__call_allocate(&call) != CUP_OK ||
        cup__call_run(&call, specification ? NULL : cup__call_choose(&call)) != CUP_OK)
        test_fail(__FILE__, __LINE__, "line %d of the anchors: %s", a->line, cup_error_text(c));
    cup_tensor *got[MOST];
    int found = 0;
    for (int i = 0; i < a->row->visible; i++)
        got[found++] = call.out[i];
    for (int i = 0; i < count && found < MOST; i++)
        if (in[i] && cup__input_changes(a->row->op, i))
            got[found++] = in[i];
    EXPECT_INT(results, found);
    for (int i = 0; i < results; i++)
        expect_near(a, specification ? "specification" : cup_dtype_name(dtype), i,
                    apart(c, got[i], want[i]), dtype == CUP_F64 ? 1e-11 : 2e-5);
    cup_context_free(c);
}

/* Element k of a result counts ((7 k) mod 5 - 1) / 4 times. */
static cup_tensor *weighed(cup_context *c, cup_tensor *y)
{
    cup_tensor *weights = cup_tensor_new(c, CUP_F64, y->ndim, y->shape);
    for (int64_t k = 0; k < y->count; k++)
        cup__store(weights, k, ((double)(7 * k % 5) - 1) / 4);
    return cup_sum(c, cup_mul(c, y, weights), NULL, 0, false);
}

static void check_gradients(const anchor *a)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    cup_tensor *in[MOST], *want[MOST], *out[CUP__MAX_OUT] = {NULL}, *loss = NULL;
    const void *attributes = a->row->attributes_size ? a->attributes : NULL;
    int count = read_tensors(c, a->field[2], CUP_F64, in);
    int gradients = read_tensors(c, a->field[4], CUP_F64, want);
    for (int i = 0; i < gradients; i++)
        if (want[i])
            cup_require_grad(in[i]);
    int given = count;
    for (; a->row->in_most < MOST && count < a->row->in_most; count++)
        in[count] = NULL;
    cup_seed(c, RANDOM_SEED);
    if (!cup__op_call(c, a->row, in, count, attributes, out) && cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "line %d of the anchors: %s", a->line, cup_error_text(c));
    for (int i = 0; i < a->row->visible && gradients; i++)
        if (out[i] && cup__dtype_is_float(out[i]->dtype)) {
            cup_tensor *part = weighed(c, out[i]);
            loss = loss ? cup_add(c, loss, part) : part;
        }
    if (gradients)
        EXPECT_INT(cup_backward(c, loss), CUP_OK);
    EXPECT(gradients == 0 || gradients == given);
    for (int i = 0; i < gradients; i++)
        if (want[i]) {
            EXPECT(cup_grad(in[i]) != NULL);
            expect_near(a, "gradient", i, apart(c, cup_grad(in[i]), want[i]), 1e-10);
        }
    cup_context_free(c);
}

static bool read_anchor(char *line, int number, anchor *a)
{
    *a = (anchor){.line = number};
    line[strcspn(line, "\n")] = 0;
    if (*line == '#' || !*line)
        return false;
    for (int i = 0; i < 6; i++) {
        char *end = strchr(line, '\t');
        a->field[i] = line;
        EXPECT(end || i == 5);
        if (end) {
            *end = 0;
            line = end + 1;
        }
    }
    a->row = cup__row_find(a->field[0]);
    EXPECT(a->row != NULL);
    cup__error error = {0};
    if (cup__attributes_parse(&error, a->row, a->field[1], a->attributes) != CUP_OK)
        test_fail(__FILE__, __LINE__, "line %d of the anchors: %s", number, error.text);
    return true;
}

TEST_LIMITED(anchors_hold, 60)
{
    static char line[20000], found[20000] = " ";
    FILE *file = fopen("tests/ops/anchors.tsv", "r");
    EXPECT(file != NULL);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        anchor a;
        if (!read_anchor(line, number, &a))
            continue;
        bool view = a.row->op->view != NULL;
        if (!view) {
            check_forward(&a, CUP_F64, true);
            check_forward(&a, CUP_F64, false);
            check_forward(&a, CUP_F32, false);
        }
        check_gradients(&a);
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s ", a.row->name);
    }
    fclose(file);
    for (const cup__row *row = cup__rows; row->name; row++) {
        char name[80];
        snprintf(name, sizeof name, " %s ", row->name);
        if ((row->is_public || row->op->update || strstr(steps, name)) && !strstr(found, name))
            test_fail(__FILE__, __LINE__, "%s has no anchor; bench/anchors.py writes them",
                      row->name);
    }
}
