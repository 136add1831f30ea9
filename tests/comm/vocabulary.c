/* Embedding and cross-entropy of a vocabulary that processes share out, against the whole. */
#include <math.h>

#include "comm/together.h"
#include "cupola/ops.h"
#include "test.h"

#define ROWS 6
#define WIDTH 5
#define CLASSES 12

static double value(int64_t i)
{
    return sin((double)(i * 7 + 3)) * 2;
}

static cup_tensor *make(cup_context *c, cup_dtype dtype, int64_t rows, int64_t columns)
{
    double values[CLASSES * CLASSES];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = value(i);
    return cup_cast(c, cup_tensor_from(c, CUP_F64, 2, (int64_t[]){rows, columns}, values), dtype);
}

/* Part number `rank` along an axis. */
static cup_tensor *part_of(cup_context *c, cup_comm *m, cup_tensor *x, int axis)
{
    int64_t starts[2] = {0}, sizes[2] = {-1, -1};
    sizes[axis] = cup_tensor_size(x, axis) / cup_comm_count(m);
    starts[axis] = sizes[axis] * cup_comm_rank(m);
    return cup_copy(c, cup_slice(c, x, starts, 2, sizes, 2));
}

static void expect_alike(cup_context *c, cup_tensor *a, cup_tensor *b, double scale, double most,
                         const char *what)
{
    cup_tensor *d = cup_sub(c, cup_cast(c, a, CUP_F64),
                            cup_scale(c, cup_cast(c, b, CUP_F64), scale));
    double far = d ? cup_tensor_item(cup_max(c, cup_abs(c, d), NULL, 0, false)) : NAN;
    if (!(far <= most))
        wrong("%s: %g away", what, far);
}

/* All processes have one loss, so the gradients of the sum of their losses are so many times as
 * large. */
static void look_up(cup_context *c, cup_comm *m, void *user)
{
    static const int32_t numbers[] = {0, 11, 5, 6, 5, 2};
    (void)user;
    cup_tensor *ids = cup_tensor_from(c, CUP_I32, 2, (int64_t[]){2, 3}, numbers);
    cup_tensor *whole = make(c, CUP_F64, CLASSES, WIDTH);
    cup_tensor *part = cup_require_grad(part_of(c, m, whole, 0));
    cup_require_grad(whole);
    cup_tensor *a = cup_comm_embedding(m, part, ids), *b = cup_embedding(c, whole, ids);
    expect_alike(c, a, b, 1, 0, "rows");
    cup_tensor *both = cup_add(c, cup_mul(c, a, a), cup_mul(c, b, b));
    cup_backward(c, cup_sum(c, both, NULL, 0, false));
    expect_alike(c, cup_grad(part), part_of(c, m, cup_grad(whole), 0), cup_comm_count(m), 1e-12,
                 "gradient of the rows");
}

TEST(comm_embedding_is_that_of_the_whole)
{
    together(1, look_up, NULL);
    together(3, look_up, NULL);
    together(4, look_up, NULL);
}

static void compare(cup_context *c, cup_comm *m, cup_dtype dtype, int64_t columns, double most)
{
    const int32_t numbers[ROWS] = {0, (int32_t)columns - 1, -1, 4, 4, 2};
    cup_tensor *targets = cup_tensor_from(c, CUP_I32, 1, (int64_t[]){ROWS}, numbers);
    cup_tensor *whole = make(c, dtype, ROWS, CLASSES);
    cup_tensor *part = cup_require_grad(part_of(c, m, whole, 1));
    cup_require_grad(whole);
    cup_tensor *a = cup_comm_cross_entropy(m, part, targets, -1, columns);
    cup_tensor *b = cup_cross_entropy(c, whole, targets, -1,
                                      CUP_OPTIONS(cup_cross_entropy_options, .columns = columns));
    expect_alike(c, a, b, 1, most, "loss");
    cup_backward(c, cup_add(c, cup_cast(c, a, CUP_F64), cup_cast(c, b, CUP_F64)));
    expect_alike(c, cup_grad(part), part_of(c, m, cup_grad(whole), 1), cup_comm_count(m),
                 most * cup_comm_count(m), "gradient of the logits");
}

/* Of 7 classes the last of 3 or 4 processes has one, or none. */
static void classify(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    compare(c, m, CUP_F64, CLASSES, 1e-12);
    compare(c, m, CUP_F64, 7, 1e-12);
    compare(c, m, CUP_F32, 7, 2e-6);
    compare(c, m, CUP_BF16, CLASSES, 8e-3);
}

TEST(comm_cross_entropy_is_that_of_the_whole)
{
    together(1, classify, NULL);
    together(3, classify, NULL);
    together(4, classify, NULL);
}

static void refuse(cup_context *c, cup_comm *m, void *user)
{
    (void)user;
    cup_tensor *logits = make(c, CUP_F32, ROWS, 4);
    cup_tensor *few = cup_zeros(c, CUP_I32, 1, (int64_t[]){ROWS - 1});
    cup_tensor *right = cup_zeros(c, CUP_I32, 1, (int64_t[]){ROWS});
    if (cup_comm_cross_entropy(m, logits, few, -1, 8) || cup_error(c) != CUP_SHAPE)
        wrong("5 targets of 6 rows");
    cup_error_clear(c);
    if (cup_comm_cross_entropy(m, logits, right, -1, 9) || cup_error(c) != CUP_ARGUMENT)
        wrong("9 classes of twice 4");
    cup_error_clear(c);
    if (cup_comm_embedding(m, logits, logits) || cup_error(c) != CUP_DTYPE)
        wrong("ids of f32");
    cup_error_clear(c);
    /* A target that is no class. */
    const int32_t beyond[ROWS] = {0, 1, 2, 3, 8, 0};
    cup_tensor *loss = cup_comm_cross_entropy(
        m, logits, cup_tensor_from(c, CUP_I32, 1, (int64_t[]){ROWS}, beyond), -1, 8);
    if (!isnan(cup_tensor_item(loss)))
        wrong("target 8 of 8 classes has a loss");
}

TEST(comm_vocabulary_refuses)
{
    together(2, refuse, NULL);
}
