/* Tensors of more than 2^31 elements on a GPU: what lies behind the 2^31st must be what the same
 * call gives of a few rows alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "cupola/grad.h"
#include "cupola/ops.h"
#include "cupola/optim.h"
#include "ops/shape/copy.h"

#define WIDTH 2048
#define ROWS (((int64_t)1 << 20) + 3)
#define TAIL 5 /* rows: the last two before the 2^31st element and all behind it */

static const int64_t shape[] = {ROWS, WIDTH}, flat[] = {ROWS * WIDTH}, turned[] = {1, 0};

/* The last rows, along the first dimension or, of a turned tensor, the last one. */
static cup_tensor *tail(cup_context *c, cup_tensor *t, int64_t rows, int axis)
{
    int64_t starts[CUP_MAX_DIMS] = {0}, sizes[CUP_MAX_DIMS];
    if (!t)
        return NULL;
    for (int d = 0; d < t->ndim; d++)
        sizes[d] = t->shape[d];
    starts[axis] = sizes[axis] - rows;
    sizes[axis] = rows;
    return cup_copy(c, cup_slice(c, t, starts, t->ndim, sizes, t->ndim));
}

static void *read_all(cup_tensor *t, size_t *bytes)
{
    *bytes = (size_t)(cup_tensor_count(t) * cup_dtype_size(cup_tensor_dtype(t)));
    void *data = malloc(*bytes + 1);
    EXPECT(data && cup_tensor_read(t, data, *bytes) == CUP_OK);
    return data;
}

static void expect_alike(cup_context *c, const char *what, cup_tensor *got, cup_tensor *want,
                         double tolerance)
{
    if (!got || !want || got->count != want->count)
        test_fail(__FILE__, __LINE__, "%s: %s", what, cup_error_text(c));
    if (tolerance > 0 && got->dtype != CUP_F32) {
        got = cup_cast(c, got, CUP_F32);
        want = cup_cast(c, want, CUP_F32);
    }
    size_t bytes, count;
    void *a = read_all(got, &bytes), *b = read_all(want, &count);
    for (size_t i = 0; tolerance > 0 && i < count / 4; i++) {
        double x = ((float *)a)[i], y = ((float *)b)[i];
        if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
            test_fail(__FILE__, __LINE__, "%s: element %zu is %g, not %g", what, i, x, y);
    }
    for (size_t i = 0; tolerance == 0 && i < bytes; i++)
        if (((unsigned char *)a)[i] != ((unsigned char *)b)[i])
            test_fail(__FILE__, __LINE__, "%s: byte %zu of %zu differs", what, i, bytes);
    free(a);
    free(b);
}

static cup_tensor *add(cup_context *c, cup_tensor *x)
{
    return cup_add(c, x, x);
}

static cup_tensor *add_row(cup_context *c, cup_tensor *x)
{
    const int64_t width = WIDTH;
    return cup_add(c, x, cup_full(c, cup_tensor_dtype(x), 1, &width, 3));
}

static cup_tensor *to_f32(cup_context *c, cup_tensor *x)
{
    return cup_cast(c, x, CUP_F32);
}

static cup_tensor *to_u8(cup_context *c, cup_tensor *x)
{
    return cup_cast(c, cup_scale(c, x, 100), CUP_U8);
}

static cup_tensor *turn_heads(cup_context *c, cup_tensor *x)
{
    const int64_t heads[] = {-1, 32, 64}, order[] = {0, 2, 1};
    return cup_copy(c, cup_permute(c, cup_reshape(c, x, 3, heads), order, 3));
}

static cup_tensor *cut(cup_context *c, cup_tensor *x)
{
    return cup_copy(c, cup_slice(c, x, (int64_t[]){0, 1}, 2, (int64_t[]){-1, WIDTH - 1}, 2));
}

static cup_tensor *concat(cup_context *c, cup_tensor *x)
{
    cup_tensor *part = cup_slice(c, x, (int64_t[]){0, 8}, 2, (int64_t[]){-1, 40}, 2);
    return cup_concat(c, (cup_tensor *[]){x, part}, 2, 1);
}

static cup_tensor *choose(cup_context *c, cup_tensor *x)
{
    cup_tensor *half = cup_full(c, cup_tensor_dtype(x), 0, NULL, 0.5);
    return cup_where(c, cup_less(c, x, half), x, cup_neg(c, x));
}

static cup_tensor *sums(cup_context *c, cup_tensor *x)
{
    return cup_sum(c, x, (int64_t[]){1}, 1, false);
}

static cup_tensor *largest(cup_context *c, cup_tensor *x)
{
    return cup_max(c, x, (int64_t[]){1}, 1, false);
}

static cup_tensor *place_of_largest(cup_context *c, cup_tensor *x)
{
    return cup_argmax(c, x, (int64_t[]){1}, 1, false);
}

static cup_tensor *softmax(cup_context *c, cup_tensor *x)
{
    return cup_softmax(c, x, -1);
}

static cup_tensor *layernorm(cup_context *c, cup_tensor *x)
{
    return cup_layernorm(c, x, NULL, NULL, 1e-5);
}

static cup_tensor *rmsnorm(cup_context *c, cup_tensor *x)
{
    return cup_rmsnorm(c, x, NULL, 1e-5);
}

static cup_tensor *cumsum(cup_context *c, cup_tensor *x)
{
    return cup_cumsum(c, x, 1, false);
}

static cup_tensor *sorted(cup_context *c, cup_tensor *x)
{
    cup_tensor *values, *indices;
    return cup_top_k(c, x, 3, 1, NULL, &values, &indices) == CUP_OK ? indices : NULL;
}

static cup_tensor *pooled(cup_context *c, cup_tensor *x)
{
    const int64_t image[] = {-1, 2, 32, 32}, window = 2;
    return cup_avg_pool2d(c, cup_reshape(c, x, 4, image), &window, 1, NULL);
}

static cup_tensor *gathered(cup_context *c, cup_tensor *x)
{
    const int64_t size[] = {cup_tensor_size(x, 0), 4};
    return cup_gather(c, x, cup_full(c, CUP_I64, 2, size, WIDTH - 1), 1);
}

static cup_tensor *narrowed(cup_context *c, cup_tensor *x)
{
    const int64_t size[] = {64, WIDTH};
    return cup_linear(c, x, cup_full(c, cup_tensor_dtype(x), 2, size, 0.125), NULL);
}

static cup_tensor *widened(cup_context *c, cup_tensor *x)
{
    const int64_t size[] = {WIDTH, 64};
    cup_tensor *part = cup_slice(c, x, (int64_t[]){0, 0}, 2, (int64_t[]){-1, 64}, 2);
    return cup_linear(c, part, cup_full(c, cup_tensor_dtype(x), 2, size, 0.125), NULL);
}

static cup_tensor *transposed(cup_context *c, cup_tensor *x)
{
    return cup_copy(c, cup_permute(c, x, turned, 2));
}

/* What makes of each row the same whatever the other rows are. */
static const struct by_rows {
    const char *name;
    cup_tensor *(*run)(cup_context *c, cup_tensor *x);
    int axis; /* along which the rows lie in the result */
    double tolerance;
    bool f32; /* f32 as well */
} by_rows[] = {
    {"add", add, 0, 0, true},
    {"add of a row", add_row, 0, 0, true},
    {"gelu", cup_gelu, 0, 0, false},
    {"copy", cup_copy, 0, 0, true},
    {"cast to f32", to_f32, 0, 0, false},
    {"cast to u8", to_u8, 0, 0, false},
    {"permute", turn_heads, 0, 0, false},
    {"slice", cut, 0, 0, false},
    {"concat", concat, 0, 0, false},
    {"where", choose, 0, 0, false},
    {"sum", sums, 0, 1e-5, true},
    {"max", largest, 0, 0, false},
    {"argmax", place_of_largest, 0, 0, false},
    {"softmax", softmax, 0, 1e-2, false},
    {"layernorm", layernorm, 0, 1e-2, false},
    {"rmsnorm", rmsnorm, 0, 1e-2, false},
    {"cumsum", cumsum, 0, 1e-2, false},
    {"top_k", sorted, 0, 0, false},
    {"avg_pool2d", pooled, 0, 0, false},
    {"gather", gathered, 0, 0, false},
    {"linear of a large x", narrowed, 0, 1e-2, false},
    {"linear with a large result", widened, 0, 1e-2, false},
    {"transpose", transposed, 1, 0, true},
};

static void check_rows(cup_context *c, cup_tensor *x)
{
    cup_tensor *few = tail(c, x, TAIL, 0);
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++) {
        const struct by_rows *op = &by_rows[i];
        if (cup_tensor_dtype(x) != CUP_BF16 && !op->f32)
            continue;
        cup_scope_open(c);
        cup_tensor *got = tail(c, op->run(c, x), TAIL, op->axis);
        expect_alike(c, op->name, got, op->run(c, few), op->tolerance);
        cup_scope_close(c);
    }
}

/* The rows behind the 2^31st element are not those at the start once more. */
static void check_random(cup_context *c, cup_tensor *x, const char *what)
{
    const int64_t size[] = {1, WIDTH};
    cup_tensor *first = cup_copy(c, cup_slice(c, x, (int64_t[]){0, 0}, 2, size, 2));
    cup_tensor *later = cup_copy(c, cup_slice(c, x, (int64_t[]){1 << 20, 0}, 2, size, 2));
    size_t bytes;
    unsigned short *a = read_all(first, &bytes), *b = read_all(later, &bytes);
    int same = 0, zeros = 0;
    for (int i = 0; i < WIDTH; i++) {
        same += a[i] == b[i];
        zeros += b[i] == 0;
    }
    if (same > WIDTH * 3 / 4 || zeros > WIDTH * 3 / 4)
        test_fail(__FILE__, __LINE__, "%s: %d numbers repeat, %d are 0", what, same, zeros);
    free(a);
    free(b);
}

/* Sums, places and numbers over all elements at once. */
static void check_whole(cup_context *c)
{
    const int64_t five[] = {TAIL, WIDTH};
    cup_tensor *x = cup_full(c, CUP_F32, 2, shape, 1);
    EXPECT_NEAR(cup_tensor_item(cup_sum(c, x, NULL, 0, false)), (double)(ROWS * WIDTH), 0);
    cup_tensor *last = cup_slice(c, x, (int64_t[]){ROWS - 1, WIDTH - 1}, 2, (int64_t[]){1, 1}, 2);
    EXPECT(cup__copy_to(c, last, cup_full(c, CUP_F32, 2, (int64_t[]){1, 1}, 7)) == CUP_OK);
    EXPECT_NEAR(cup_tensor_item(cup_max(c, x, NULL, 0, false)), 7, 0);
    EXPECT_NEAR(cup_tensor_item(cup_argmax(c, x, NULL, 0, false)), (double)(ROWS * WIDTH - 1), 0);
    cup_tensor *columns = cup_sum(c, x, (int64_t[]){0}, 1, false);
    EXPECT_NEAR(cup_tensor_item(tail(c, columns, 1, 0)), (double)(ROWS + 6), 0);
    cup_tensor *zeros = cup_full(c, CUP_F32, 1, flat, 0);
    cup_tensor *few = cup_tensor_new(c, CUP_F32, 2, five);
    float values[TAIL * WIDTH];
    for (int i = 0; i < TAIL * WIDTH; i++)
        values[i] = (float)(i % 7);
    EXPECT(cup_tensor_write(few, values, sizeof values) == CUP_OK);
    few = cup_reshape(c, few, 1, (int64_t[]){-1});
    cup_tensor *end = cup_slice(c, zeros, (int64_t[]){flat[0] - TAIL * WIDTH}, 1,
                                (int64_t[]){TAIL * WIDTH}, 1);
    EXPECT(cup__copy_to(c, end, few) == CUP_OK);
    expect_alike(c, "cumsum of all",
                 tail(c, cup_cumsum(c, zeros, 0, false), TAIL * WIDTH, 0),
                 cup_cumsum(c, few, 0, false), 0);
}

/* Tables of more than 2^31 elements, and ids of its last rows. */
static void check_tables(cup_context *c, cup_tensor *x)
{
    const int64_t near[] = {2, 0, 4, 2}, first = ROWS - TAIL, last = (ROWS - TAIL) * WIDTH;
    int64_t far[4], at[4] = {3, 0, TAIL * WIDTH - 1, 3}, behind[4];
    for (int i = 0; i < 4; i++) {
        far[i] = near[i] + first;
        behind[i] = at[i] + last;
    }
    cup_tensor *few = tail(c, x, TAIL, 0);
    cup_tensor *a = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, near);
    cup_tensor *b = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, far);
    expect_alike(c, "embedding", cup_embedding(c, x, b), cup_embedding(c, few, a), 0);
    expect_alike(c, "index_select", cup_index_select(c, x, b, 0),
                 cup_index_select(c, few, a, 0), 0);
    a = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, at);
    b = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, behind);
    cup_tensor *four = cup_full(c, CUP_BF16, 1, (int64_t[]){4}, 3);
    cup_tensor *all = cup_reshape(c, x, 1, (int64_t[]){-1});
    few = cup_reshape(c, few, 1, (int64_t[]){-1});
    expect_alike(c, "scatter_add", tail(c, cup_scatter_add(c, all, b, four, 0), TAIL * WIDTH, 0),
                 cup_scatter_add(c, few, a, four, 0), 0);
    expect_alike(c, "gather of all", cup_gather(c, all, b, 0), cup_gather(c, few, a, 0), 0);
}

/* embedding's gradient, to a large table and from a large gradient. */
static void check_embedding_grad(cup_context *c, cup_tensor *x)
{
    const int64_t near[] = {2, 0, 4, 2};
    int64_t far[4];
    for (int i = 0; i < 4; i++)
        far[i] = near[i] + ROWS - TAIL;
    const cup__row *row = cup__row_find("embedding_grad");
    cup_tensor *dy = tail(c, x, 4, 0);
    cup_tensor *b = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, far);
    cup_tensor *a = cup_tensor_from(c, CUP_I64, 1, (int64_t[]){4}, near);
    int64_t rows = ROWS, few = TAIL;
    cup_tensor *big = cup__op_call(c, row, (cup_tensor *[]){dy, b}, 2, &rows, NULL);
    cup_tensor *small = cup__op_call(c, row, (cup_tensor *[]){dy, a}, 2, &few, NULL);
    expect_alike(c, "embedding_grad", tail(c, big, TAIL, 0), small, 0);
    cup_tensor *ids = cup_full(c, CUP_I32, 1, (int64_t[]){ROWS}, 0);
    cup_tensor *end = cup_slice(c, ids, (int64_t[]){ROWS - TAIL}, 1, (int64_t[]){TAIL}, 1);
    cup_tensor *three = cup_full(c, CUP_I32, 1, (int64_t[]){TAIL}, 3);
    EXPECT(cup__copy_to(c, end, three) == CUP_OK);
    rows = few = 4;
    big = cup__op_call(c, row, (cup_tensor *[]){x, ids}, 2, &rows, NULL);
    small = cup__op_call(c, row, (cup_tensor *[]){tail(c, x, TAIL, 0), three}, 2, &few, NULL);
    expect_alike(c, "embedding_grad of a large dy", tail(c, big, 1, 0), tail(c, small, 1, 0), 0);
}

/* The product over the rows, of which only the last count. */
static void check_weight_gradient(cup_context *c, cup_tensor *x)
{
    cup_tensor *dy = cup_full(c, CUP_BF16, 2, (int64_t[]){ROWS, 64}, 0);
    cup_tensor *end = cup_slice(c, dy, (int64_t[]){ROWS - TAIL, 0}, 2, (int64_t[]){TAIL, 64}, 2);
    cup_tensor *few = cup_uniform(c, CUP_BF16, 2, (int64_t[]){TAIL, 64}, -1, 1);
    EXPECT(cup__copy_to(c, end, few) == CUP_OK);
    expect_alike(c, "matmul over many rows", cup_matmul(c, dy, x, true, false),
                 cup_matmul(c, few, tail(c, x, TAIL, 0), true, false), 1e-2);
}

/* One step of AdamW of a parameter that starts as the given values. */
static cup_tensor *train(cup_context *c, cup_tensor *values)
{
    cup_parameter p = {.name = "p", .tensor = cup_cast(c, values, CUP_F32), .decay = true};
    cup_optimizer *o =
        cup_optimizer_new(c, &p, 1, CUP_OPTIONS(cup_optimizer_options, .weight_decay = 0.1));
    EXPECT(cup_backward(c, cup_sum(c, cup_gelu(c, p.tensor), NULL, 0, false)) == CUP_OK);
    EXPECT(cup_optimizer_set(o, 0.1, 1) == CUP_OK && cup_optimizer_step(o) == CUP_OK);
    cup_tensor *last = cup_keep(tail(c, p.tensor, TAIL, 0));
    cup_optimizer_free(o);
    return last;
}

static void check_adamw(cup_context *c, cup_tensor *x)
{
    cup_scope_open(c);
    cup_tensor *big = train(c, x);
    cup_scope_close(c);
    cup_scope_open(c);
    cup_tensor *small = train(c, tail(c, x, TAIL, 0));
    cup_scope_close(c);
    expect_alike(c, "adamw", big, small, 0);
}

static cup_context *open_large_gpu(void)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK)
        test_skip("no GPU");
    cup_scope_open(c);
    cup_tensor_new(c, CUP_U8, 1, (int64_t[]){(int64_t)52 << 30});
    if (cup_error(c) == CUP_MEMORY)
        test_skip("52 GiB of memory are needed");
    cup_scope_close(c);
    return c;
}

TEST_LIMITED(gpu_big_rows, 300)
{
    cup_context *c = open_large_gpu();
    cup_tensor *x = cup_uniform(c, CUP_BF16, 2, shape, 0, 1);
    check_random(c, x, "uniform");
    check_rows(c, x);
    cup_scope_open(c);
    check_random(c, cup_dropout(c, x, 0.5), "dropout");
    check_rows(c, cup_cast(c, x, CUP_F32));
    cup_scope_close(c);
    cup_scope_open(c);
    cup_tensor *bytes = cup_cast(c, cup_scale(c, x, 100), CUP_U8);
    expect_alike(c, "transpose of u8", tail(c, transposed(c, bytes), TAIL, 1),
                 transposed(c, tail(c, bytes, TAIL, 0)), 0);
    cup_scope_close(c);
    cup_context_free(c);
}

TEST_LIMITED(gpu_big_tables, 300)
{
    void (*const checks[])(cup_context *, cup_tensor *) = {
        check_tables, check_embedding_grad, check_weight_gradient, check_adamw};
    cup_context *c = open_large_gpu();
    cup_scope_open(c);
    check_whole(c);
    cup_scope_close(c);
    cup_tensor *x = cup_uniform(c, CUP_BF16, 2, shape, 0, 1);
    for (int i = 0; i < 4; i++) {
        cup_scope_open(c);
        checks[i](c, x);
        cup_scope_close(c);
    }
    cup_context_free(c);
}
