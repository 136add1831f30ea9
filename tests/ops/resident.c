/* Products that order their weights before the kernels in front are done, where one of these makes
 * the weights. */
#include <string.h>

#include "cupola/cupola.h"
#include "test.h"

#define ROWS 64
#define WIDTH 1024
#define INNER 768
#define ROUNDS 40

typedef struct given {
    cup_tensor *x, *left, *right;
} given;

static cup_tensor *normal(cup_context *c, int64_t rows, int64_t columns)
{
    return cup_normal(c, CUP_BF16, 2, (int64_t[]){rows, columns}, 0, 0.1);
}

/* x through a norm, times weights that the product before the norm made. */
static cup_tensor *made_and_used(cup_context *c, const given *g, bool wait)
{
    cup_tensor *weight = cup_linear(c, g->left, g->right, NULL);
    if (wait)
        cup_synchronize(c);
    cup_tensor *x = cup_layernorm(c, g->x, NULL, NULL, 1e-5);
    if (wait)
        cup_synchronize(c);
    return cup_linear(c, x, weight, NULL);
}

TEST(gpu_weights_just_made_are_waited_for)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    if (cup_error(c) != CUP_OK) {
        cup_context_free(c);
        test_skip("no GPU");
    }
    static uint16_t slow[ROWS * ROWS], fast[ROWS * ROWS];
    for (int i = 0; i < ROUNDS && cup_error(c) == CUP_OK; i++) {
        cup_scope_open(c);
        const given g = {normal(c, ROWS, WIDTH), normal(c, ROWS, INNER),
                         normal(c, WIDTH, INNER)};
        cup_tensor_read(made_and_used(c, &g, true), slow, sizeof slow);
        cup_tensor_read(made_and_used(c, &g, false), fast, sizeof fast);
        EXPECT(memcmp(slow, fast, sizeof slow) == 0);
        cup_scope_close(c);
    }
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
}
