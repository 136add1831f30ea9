/* Gradients of weights that backward computes behind the next sum between processes. */
#include <string.h>

#include "cupola/grad.h"
#include "cupola/ops.h"
#include "grad/watch.h"
#include "test.h"

#define LAYERS 3

/* What stands for a sum: it notes which weights have a gradient when its backward begins. */
typedef struct notes {
    cup_tensor *weights[LAYERS];
    bool there[LAYERS];
} notes;

static cup_status sum_forward(cup_context *c, cup_tensor *const *in, int count,
                              const void *attributes, cup_tensor **out)
{
    (void)count, (void)attributes;
    out[0] = cup_copy(c, in[0]);
    return cup_error(c);
}

static cup_status sum_backward(cup_context *c, const cup_custom_grad *g)
{
    notes *n = *(notes *const *)g->attributes;
    for (int i = 0; i < LAYERS; i++)
        n->there[i] = cup_grad(n->weights[i]) != NULL;
    cup__tape_hides(c);
    g->d_inputs[0] = cup_copy(c, g->d_outputs[0]);
    return cup_error(c);
}

static const cup_custom_op sum = {.size = sizeof sum,
                                  .name = "sum",
                                  .output_count = 1,
                                  .attributes_size = sizeof(notes *),
                                  .forward = sum_forward,
                                  .backward = sum_backward};

/* Three linear layers, the sum behind the first, and the gradients of their weights. */
static void run(cup_context *c, bool hides, notes *n, float grads[LAYERS][16])
{
    static const int64_t square[] = {4, 4};
    cup_random_step(c, 7);
    for (int i = 0; i < LAYERS; i++)
        n->weights[i] = cup_require_grad(cup_keep(cup_normal(c, CUP_F32, 2, square, 0, 1)));
    cup_tensor *x = cup_normal(c, CUP_F32, 2, square, 0, 1), *y = NULL;
    x = cup_linear(c, x, n->weights[0], NULL);
    EXPECT_INT(cup_custom(c, &sum, &x, 1, &n, &y), CUP_OK);
    if (hides)
        cup__tape_hides(c);
    y = cup_gelu(c, cup_linear(c, y, n->weights[1], NULL));
    y = cup_linear(c, y, n->weights[2], NULL);
    EXPECT_INT(cup_backward(c, cup_mean(c, y, NULL, 0, false)), CUP_OK);
    for (int i = 0; i < LAYERS; i++) {
        EXPECT_INT(cup_tensor_read(cup_grad(n->weights[i]), grads[i], sizeof grads[i]), CUP_OK);
        cup_tensor_free(n->weights[i]);
    }
}

TEST(tape_leaves_gradients_of_weights_for_behind_a_sum)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    float at_once[LAYERS][16], later[LAYERS][16];
    notes n;
    run(c, false, &n, at_once);
    EXPECT(!n.there[0] && n.there[1] && n.there[2]);
    run(c, true, &n, later);
    EXPECT(!n.there[0] && !n.there[1] && !n.there[2]);
    EXPECT_INT(memcmp(at_once, later, sizeof later), 0);
    cup_context_free(c);
}
