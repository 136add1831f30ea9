/* Contexts, scopes, tensors and their transfer, on the CPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "base/memory.h"
#include "cupola/cupola.h"
#include "tensor/tensor.h"

static cup_context *cpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_error(c), CUP_OK);
    return c;
}

static int64_t held(cup_context *c)
{
    cup_memory m;
    EXPECT_INT(cup_memory_use(c, &m), CUP_OK);
    return m.allocated;
}

TEST(tensor_scopes_free_what_is_not_kept)
{
    cup_context *c = cpu();
    int64_t before = held(c);
    cup_scope_open(c);
    cup_tensor *a = cup_full(c, CUP_F32, 1, (int64_t[]){100}, 2);
    cup_tensor *kept = cup_keep(cup_add(c, a, a));
    EXPECT(held(c) > before);
    cup_scope_close(c);
    float values[100];
    EXPECT_INT(cup_tensor_read(kept, values, sizeof values), CUP_OK);
    EXPECT_NEAR(values[99], 4, 0);
    cup_tensor_free(kept);
    EXPECT_INT(held(c), before);
    cup_context_free(c);
}

TEST(tensor_scope_hands_its_result_out)
{
    cup_context *c = cpu();
    int64_t before = held(c);
    cup_scope_open(c);
    cup_scope_open(c);
    cup_tensor *a = cup_full(c, CUP_F32, 1, (int64_t[]){100}, 2);
    cup_tensor *sum = cup_scope_return(c, cup_add(c, a, a));
    float values[100];
    EXPECT_INT(cup_tensor_read(sum, values, sizeof values), CUP_OK);
    EXPECT_NEAR(values[99], 4, 0);
    EXPECT(held(c) - before < 2 * (int64_t)sizeof values); /* that is, not both */
    cup_scope_close(c);
    EXPECT_INT(held(c), before);
    EXPECT(cup_scope_return(c, NULL) == NULL);
    cup_context_free(c);
}

TEST(tensor_scope_that_found_no_memory_closes_nothing_else)
{
    cup_context *c = cpu();
    cup_scope_open(c);
    cup_tensor *a = cup_full(c, CUP_F32, 1, (int64_t[]){100}, 2);
    cup__memory_fail_at(1, true);
    int opened = 0;
    for (; cup_error(c) == CUP_OK; opened++)
        cup_scope_open(c);
    cup__memory_fail_at(0, false);
    cup_error_clear(c);
    for (; opened > 0; opened--)
        cup_scope_close(c);
    float values[100];
    EXPECT_INT(cup_tensor_read(a, values, sizeof values), CUP_OK);
    EXPECT_NEAR(values[99], 2, 0);
    cup_context_free(c);
}

TEST(tensor_view_outlives_its_base)
{
    cup_context *c = cpu();
    cup_scope_open(c);
    cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){2, 3}, 7);
    cup_tensor *view = cup_keep(cup_reshape(c, a, 2, (int64_t[]){3, 2}));
    cup_scope_close(c);
    float values[6];
    EXPECT_INT(cup_tensor_read(view, values, sizeof values), CUP_OK);
    EXPECT_NEAR(values[5], 7, 0);
    cup_context_free(c);
}

TEST(tensor_first_error_stays_and_stops_later_calls)
{
    cup_context *c = cpu();
    cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){2, 3}, 1);
    cup_tensor *b = cup_full(c, CUP_F32, 1, (int64_t[]){4}, 1);
    EXPECT(cup_add(c, cup_add(c, a, b), a) == NULL);
    EXPECT_INT(cup_error(c), CUP_SHAPE);
    EXPECT_CONTAINS(cup_error_text(c), "add: [2,3] f32, [4] f32");
    EXPECT(cup_add(c, a, a) == NULL);
    cup_error_clear(c);
    EXPECT(cup_add(c, a, a) != NULL);
    cup_context_free(c);
}

TEST(tensor_null_and_foreign_inputs_have_a_sentence)
{
    cup_context *c = cpu(), *other = cpu();
    cup_tensor *a = cup_full(c, CUP_F32, 1, (int64_t[]){2}, 1);
    EXPECT(cup_add(c, a, NULL) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "input 2 of (a, b) is NULL");
    cup_error_clear(c);
    EXPECT(cup_concat(c, (cup_tensor *[]){a, NULL}, 2, 0) == NULL);
    EXPECT_CONTAINS(cup_error_text(c), "input 2 of (x...) is NULL");
    EXPECT(cup_gelu(other, a) == NULL);
    EXPECT_CONTAINS(cup_error_text(other), "another context");
    EXPECT_INT(cup_error(NULL), CUP_MEMORY);
    cup_context_free(other);
    cup_context_free(c);
}

TEST(tensor_bad_shapes_are_refused)
{
    const struct {
        int ndim;
        int64_t shape[9];
        const char *words;
    } bad[] = {
        {9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "dimensions"},
        {-1, {0}, "dimensions"},
        {2, {3, -1}, "negative size"},
        {3, {INT64_MAX, INT64_MAX, 2}, "too large"},
        {2, {(int64_t)1 << 40, (int64_t)1 << 22}, "too large"},
    };
    cup_context *c = cpu();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT(cup_tensor_new(c, CUP_F32, bad[i].ndim, bad[i].shape) == NULL);
        EXPECT_CONTAINS(cup_error_text(c), bad[i].words);
        cup_error_clear(c);
    }
    EXPECT(cup_tensor_new(c, (cup_dtype)77, 1, (int64_t[]){1}) == NULL);
    EXPECT_INT(cup_error(c), CUP_DTYPE);
    cup_context_free(c);
}

TEST(tensor_memory_limit_is_an_ordinary_error)
{
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .memory_limit = 1 << 20));
    EXPECT(cup_full(c, CUP_F32, 1, (int64_t[]){1 << 20}, 0) == NULL);
    EXPECT_INT(cup_error(c), CUP_MEMORY);
    EXPECT_CONTAINS(cup_error_text(c), "exceeds the limit of 1.0 MiB");
    cup_error_clear(c);
    EXPECT(cup_full(c, CUP_F32, 1, (int64_t[]){1000}, 0) != NULL);
    cup_context_free(c);
}

TEST(tensor_unknown_device_is_a_sentence)
{
    const char *const names[] = {"gpu", "cuda:x", "cuda:", "cuda:-1", "", "cpu0"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = names[i]));
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        EXPECT_CONTAINS(cup_error_text(c), "auto, cpu, cuda or cuda:N");
        EXPECT(cup_full(c, CUP_F32, 0, NULL, 1) == NULL);
        cup_scope_open(c);
        cup_scope_close(c);
        cup_error_clear(c);
        EXPECT_INT(cup_error(c), CUP_ARGUMENT);
        cup_context_free(c);
    }
}

TEST(tensor_dtypes_convert_exactly)
{
    cup_context *c = cpu();
    for (int dtype = CUP_F16; dtype <= CUP_BF16; dtype++) {
        cup_tensor *t = cup_full(c, (cup_dtype)dtype, 1, (int64_t[]){1}, 0);
        for (unsigned bits = 0; bits < 65536; bits++) {
            uint16_t half = (uint16_t)bits;
            EXPECT_INT(cup_tensor_write(t, &half, 2), CUP_OK);
            double value = cup__load(t, 0);
            cup__store(t, 0, value);
            uint16_t again;
            EXPECT_INT(cup_tensor_read(t, &again, 2), CUP_OK);
            EXPECT(again == half || isnan(value));
        }
    }
    cup_context_free(c);
}

TEST(tensor_print_shortens)
{
    cup_context *c = cpu();
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    cup_tensor *t = cup_full(c, CUP_I32, 2, (int64_t[]){2, 100}, 3);
    EXPECT_INT(cup_tensor_print(t, file), CUP_OK);
    fclose(file);
    EXPECT_CONTAINS(text, "[2,100] i32 [[3, 3, 3, ..., 3, 3, 3],");
    free(text);
    cup_context_free(c);
}

TEST(tensor_item_wants_one_element)
{
    cup_context *c = cpu();
    EXPECT_NEAR(cup_tensor_item(cup_full(c, CUP_BF16, 0, NULL, 0.5)), 0.5, 0);
    EXPECT(isnan(cup_tensor_item(cup_full(c, CUP_F32, 1, (int64_t[]){2}, 1))));
    EXPECT_CONTAINS(cup_error_text(c), "2 elements, not one");
    cup_context_free(c);
}

/* Everything that asks for memory, with the n-th request failing, for every n. */
TEST(tensor_every_allocation_may_fail)
{
    for (long n = 1; n < 400; n++) {
        cup__memory_fail_at(n, false);
        cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        cup_scope_open(c);
        cup_tensor *a = cup_full(c, CUP_F32, 2, (int64_t[]){3, 4}, 1);
        cup_require_grad(a);
        cup_tensor *loss = cup_sum(c, cup_gelu(c, cup_mul(c, a, a)), NULL, 0, false);
        cup_status status = loss ? cup_backward(c, loss) : cup_error(c);
        cup__memory_fail_at(0, false);
        if (status == CUP_OK)
            n = 1000;
        else
            EXPECT_INT(status, CUP_MEMORY);
        cup_scope_close(c);
        cup_context_free(c);
    }
}
