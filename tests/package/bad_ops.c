/* Every public op with what a caller may get wrong: NULL for anything, lists of a wrong length,
 * numbers out of all range, tensors that do not fit. None may crash, and what is refused is refused
 * with a sentence. */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "prof/check.h"

#define MOST_ARGUMENTS 24

/* The arguments of a call as the machine passes them: whole numbers and addresses in one sequence,
 * doubles in another. More than a function takes do no harm. */
typedef struct arguments {
    intptr_t whole[MOST_ARGUMENTS];
    double real[8];
    int wholes, reals;
    intptr_t options[16]; /* a cup_NAME_options */
} arguments;

typedef intptr_t (*called)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                           intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                           intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, double,
                           double, double, double, double, double, double, double);

static intptr_t call(const cup__row *row, const arguments *a)
{
    char name[80];
    snprintf(name, sizeof name, "cup_%s", row->name);
    void *found = dlsym(RTLD_DEFAULT, name);
    called f;
    if (!found)
        test_fail(__FILE__, __LINE__, "%s is not there", name);
    memcpy(&f, &found, sizeof f);
    const intptr_t *w = a->whole;
    const double *r = a->real;
    return f(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
             w[14], w[15], w[16], w[17], w[18], w[19], r[0], r[1], r[2], r[3], r[4], r[5], r[6],
             r[7]);
}

static void put(arguments *a, intptr_t value)
{
    a->whole[a->wholes++] = value;
}

/* What an attribute is given in place of the sample's value. */
typedef struct wrong {
    int64_t whole;
    double real;
    const int64_t *list;
    int count;
} wrong;

static const int64_t huge[8] = {INT64_MAX, INT64_MIN, INT64_MAX / 2, 1, 1, 1, 1, 1};
static const int64_t twice[8] = {0, 0, 0, 0, 0, 0, 0, 0};
static const int64_t less[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
static const wrong wrongs[] = {
    {0, 0, NULL, 0},         {-1, -1, NULL, 2},         {INT_MAX, 1e300, NULL, -1},
    {INT_MIN, NAN, huge, 9}, {1000003, INFINITY, huge, 2}, {99, -INFINITY, twice, 3},
    {1, 1, less, 2},         {2, 1e-300, huge, 1},      {-2, 2, twice, 2},
    {7, 0.5, less, 4},       {3, -0.0, twice, 1},
};
#define WRONGS (int)(sizeof wrongs / sizeof *wrongs)

static void put_list(arguments *a, const cup__attribute *kind, const int64_t *list, int count)
{
    if (!strcmp(kind->name, "shape")) {
        put(a, count);
        put(a, (intptr_t)list);
    } else {
        put(a, (intptr_t)list);
        put(a, count);
    }
}

/* A field of the options; those that are not there yet are 0. */
static void set_option(arguments *a, const cup__attribute *kind, const char *at, const wrong *w)
{
    static const size_t bytes[] = {[CUP__KIND_INT] = sizeof(int),
                                   [CUP__KIND_DTYPE] = sizeof(cup_dtype),
                                   [CUP__KIND_INT64] = sizeof(int64_t),
                                   [CUP__KIND_BOOL] = sizeof(bool)};
    char *field = (char *)a->options + kind->option;
    if (kind->kind == CUP__KIND_INTS) {
        int count;
        memcpy(&count, at + 8 * sizeof(int64_t), sizeof count);
        const int64_t *list = w ? w->list : (const int64_t *)(const void *)at;
        *(cup_ints *)(void *)field = (cup_ints){list, w ? w->count : count};
    } else if (kind->kind == CUP__KIND_FLOAT) {
        memcpy(field, w ? (const void *)&w->real : at, sizeof(double));
    } else {
        bool changed = w && kind->kind != CUP__KIND_BOOL;
        memcpy(field, changed ? (const void *)&w->whole : at, bytes[kind->kind]);
    }
}

static void put_attribute(arguments *a, const cup__attribute *kind, const char *at, const wrong *w)
{
    int64_t whole = 0;
    int count = 0;
    if (kind->option) {
        set_option(a, kind, at, w);
        return;
    }
    switch (kind->kind) {
    case CUP__KIND_FLOAT:
        a->real[a->reals++] = w ? w->real : *(const double *)(const void *)at;
        return;
    case CUP__KIND_INTS:
        memcpy(&count, at + 8 * sizeof(int64_t), sizeof count);
        put_list(a, kind, w ? w->list : (const int64_t *)(const void *)at, w ? w->count : count);
        return;
    case CUP__KIND_INT64:
        memcpy(&whole, at, 8);
        break;
    case CUP__KIND_BOOL:
        whole = *(const bool *)at;
        break;
    default:
        memcpy(&count, at, sizeof count);
        whole = count;
    }
    put(a, w && kind->kind != CUP__KIND_BOOL ? (intptr_t)w->whole : (intptr_t)whole);
}

/* The call of a sample, with attribute number `changed` given wrongly; -1: none is. */
static void fill(arguments *a, cup_context *c, const cup__row *row, cup_tensor **in, int count,
                 const void *attributes, int changed, const wrong *w, cup_tensor **out)
{
    static const char zeros[1024];
    *a = (arguments){{0}, {0}, 0, 0, {0}};
    put(a, (intptr_t)c);
    if (row->in_most == INT_MAX) {
        put(a, (intptr_t)in);
        put(a, count);
    } else {
        for (int i = 0; i < row->in_arguments; i++)
            put(a, (intptr_t)(in && i < count ? in[i] : NULL));
    }
    int number = 0;
    for (const cup__attribute *k = row->attributes; k && k->name; k++, number++)
        put_attribute(a, k, (attributes ? (const char *)attributes : zeros) + k->offset,
                      number == changed ? w : NULL);
    a->options[0] = (intptr_t)row->options_size;
    if (row->options_size)
        put(a, attributes ? (intptr_t)a->options : 0);
    for (int i = 0; row->visible > 1 && i < row->visible; i++)
        put(a, out ? (intptr_t)&out[i] : 0);
}

/* A call either works, or says why it does not. */
static void expect_words(cup_context *c, const cup__row *row, const arguments *a, const char *what)
{
    bool gives_status = row->visible != 1;
    cup_scope_open(c);
    intptr_t result = call(row, a);
    bool failed = gives_status ? (int)result != CUP_OK : result == 0;
    if (failed != (cup_error(c) != CUP_OK))
        test_fail(__FILE__, __LINE__, "cup_%s, %s: the result says that it %s, the context \"%s\"",
                  row->name, what, failed ? "failed" : "worked", cup_error_text(c));
    if (failed && strlen(cup_error_text(c)) < 12)
        test_fail(__FILE__, __LINE__, "cup_%s, %s: no sentence but \"%s\"", row->name, what,
                  cup_error_text(c));
    cup_scope_close(c);
    cup_error_clear(c);
}

static void try_nulls(cup_context *c, const cup__row *row)
{
    arguments a;
    fill(&a, NULL, row, NULL, 0, NULL, -1, NULL, NULL);
    call(row, &a);
    fill(&a, c, row, NULL, 0, NULL, -1, NULL, NULL);
    expect_words(c, row, &a, "all NULL");
    if (row->in_most == INT_MAX) {
        for (int count = -1; count < 3; count++) {
            fill(&a, c, row, NULL, count, NULL, -1, NULL, NULL);
            expect_words(c, row, &a, "no list");
        }
    }
}

/* Each attribute of a sample's call in turn, and each of its inputs. */
static void try_sample(cup_context *c, const cup__row *row, const cup__sample *s, cup_dtype dtype)
{
    cup_tensor *in[16], *out[CUP__MAX_OUT] = {NULL};
    char what[200];
    arguments a;
    int count = cup__sample_inputs(c, row, s, dtype, dtype, CUP__ROW_MAJOR, 1, in, 16);
    if (count < 0) {
        cup_error_clear(c);
        return;
    }
    int number = 0;
    for (const cup__attribute *k = row->attributes; k && k->name; k++, number++)
        for (int w = 0; w < WRONGS; w++) {
            snprintf(what, sizeof what, "\"%.80s\", %s wrong (%d)", s->shapes, k->name, w);
            fill(&a, c, row, in, count, s->attributes, number, &wrongs[w], out);
            expect_words(c, row, &a, what);
        }
    /* A struct may be 4096 bytes larger than the library's, which then reads them. */
    const size_t sizes[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t), row->options_size + 4097,
                            SIZE_MAX};
    for (int i = 0; row->options_size && i < 6; i++) {
        snprintf(what, sizeof what, "\"%.80s\", options of %zu bytes", s->shapes, sizes[i]);
        fill(&a, c, row, in, count, s->attributes, -1, NULL, out);
        memcpy(a.options, &sizes[i], sizeof sizes[i]);
        expect_words(c, row, &a, what);
    }
    cup_context *other = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    const int64_t shape[] = {3, 2};
    cup_tensor *instead[] = {NULL,
                             cup_full(c, CUP_F32, 0, NULL, 1),
                             cup_full(c, CUP_I64, 2, shape, 1),
                             cup_full(c, CUP_BOOL, 1, shape, 1),
                             cup_full(c, dtype, 2, &huge[5], -7),
                             cup_tensor_new(c, dtype, 0, NULL),
                             cup_full(other, dtype, 2, shape, 1),
                             cup_tensor_new(c, dtype, 2, twice)};
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof instead / sizeof *instead; k++) {
            cup_tensor *was = in[i];
            in[i] = instead[k];
            snprintf(what, sizeof what, "\"%.80s\", input %d wrong (%zu)", s->shapes, i, k);
            fill(&a, c, row, in, count, s->attributes, -1, NULL, out);
            expect_words(c, row, &a, what);
            in[i] = was;
        }
    cup_context_free(other);
}

/* Samples of few elements are enough, and quick. */
static bool is_small(const cup__sample *s)
{
    double all = 1;
    for (const char *at = s->shapes; *at; at++)
        if (*at >= '0' && *at <= '9') {
            all *= strtod(at, (char **)(uintptr_t)&at) + 1;
            at--;
        }
    return all < 1e5;
}

static void check_bad(void *user)
{
    const cup__row *row = user;
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .memory_limit = 1 << 30));
    try_nulls(c, row);
    int tried = 0;
    for (const cup__sample *s = row->op->samples; s->shapes && tried < 4; s++)
        if (is_small(s)) {
            cup_scope_open(c);
            try_sample(c, row, s, CUP_F32);
            cup_scope_close(c);
            tried++;
        }
    EXPECT(tried > 0);
    cup_context_free(c);
}

__attribute__((constructor)) static void add_all(void)
{
    for (const cup__row *row = cup__rows; row->name; row++) {
        char name[96];
        snprintf(name, sizeof name, "bad_%s", row->name);
        if (row->is_public)
            test_add(name, __FILE__, __LINE__, check_bad, (void *)(uintptr_t)row, 60);
    }
}
