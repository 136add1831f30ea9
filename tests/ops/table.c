/* Walks the table of ops: each op is a test of every implementation against the specification,
 * and one of its gradient against finite differences. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "gradient_error.h"
#include "prof/check.h"

#define GRADIENT_TOLERANCE 2e-6

static void report(const cup_check_result *r, void *user)
{
    int *count = user;
    (*count)++;
    if (!r->passed && r->unreached)
        test_fail(__FILE__, __LINE__, "%s by %s: %s", r->op, r->impl, r->note);
    if (!r->passed)
        test_fail(__FILE__, __LINE__, "%s by %s, %s, %s, \"%s\": error %.3g > %.3g: %s",
                  r->op, r->impl, cup_dtype_name(r->dtype), r->layout, r->shapes, r->error,
                  r->tolerance, r->note);
}

static void check_on(const char *device, const cup__row *row)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = device));
    int count = 0;
    if (cup_check(c, row->name, report, &count) != CUP_OK || cup_error(c) != CUP_OK)
        test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
    EXPECT(count > 0);
    cup_context_free(c);
}

static void check_cpu(void *user)
{
    check_on("cpu", user);
}

static void check_gradient(void *user)
{
    const cup__row *row = user;
    for (const cup__sample *s = row->op->samples; s->shapes; s++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        double error = test_gradient_error(c, row, s);
        if (cup_error(c) != CUP_OK)
            test_fail(__FILE__, __LINE__, "%s", cup_error_text(c));
        if (!(error <= GRADIENT_TOLERANCE))
            test_fail(__FILE__, __LINE__, "gradient of %s, \"%s\": error %.3g", row->name,
                      s->shapes, error);
        cup_context_free(c);
    }
}

static int words_in(const char *text)
{
    int count = 0;
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        at += strcspn(at, " ");
        count++;
    }
    return count;
}

TEST(every_call_of_samples_and_benchmark_is_complete)
{
    for (const cup__row *row = cup__rows; row->name; row++)
        for (int i = 0; i < 2; i++)
            for (const cup__sample *s = i ? row->op->bench : row->op->samples; s && s->shapes;
                 s++) {
                int inputs = words_in(s->shapes);
                if (inputs < row->in_least || inputs > row->in_most)
                    test_fail(__FILE__, __LINE__, "%s, \"%s\": not its inputs", row->name,
                              s->shapes);
                if (row->attributes_size && !s->attributes)
                    test_fail(__FILE__, __LINE__, "%s, \"%s\": no attributes", row->name,
                              s->shapes);
            }
}

__attribute__((constructor)) static void add_all(void)
{
    for (const cup__row *row = cup__rows; row->name; row++) {
        char name[96];
        snprintf(name, sizeof name, "op_%s", row->name);
        test_add(name, __FILE__, __LINE__, check_cpu, (void *)(uintptr_t)row, 300);
        if (!row->op->gradient)
            continue;
        snprintf(name, sizeof name, "gradient_%s", row->name);
        test_add(name, __FILE__, __LINE__, check_gradient, (void *)(uintptr_t)row, 300);
    }
}
