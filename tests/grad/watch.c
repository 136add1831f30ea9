/* Gradients that are complete while backward goes on. */
#include <string.h>

#include "cupola/cupola.h"
#include "grad/watch.h"
#include "test.h"

#define SIZE 3

enum { FIRST, TIED, INSIDE, LAST, UNUSED, COUNT };

typedef struct watched {
    cup_context *c;
    cup_tensor *parameters[COUNT];
    float said[COUNT][SIZE]; /* when it was said to be complete */
    uint32_t when[COUNT];    /* at which node */
} watched;

static cup_status look(uint32_t node, void *user)
{
    watched *w = user;
    for (int i = 0; i < COUNT; i++) {
        cup_tensor *p = w->parameters[i];
        if (w->when[i] || (p->first_use && p->first_use < node))
            continue;
        w->when[i] = node;
        if (p->grad)
            EXPECT_INT(cup_tensor_read(p->grad, w->said[i], sizeof w->said[i]), CUP_OK);
    }
    return CUP_OK;
}

/* What it multiplies with is not among its inputs. */
static cup_tensor *block(cup_context *c, cup_tensor *const *inputs, int count, void *user)
{
    watched *w = user;
    (void)count;
    return cup_mul(c, cup_mul(c, inputs[0], w->parameters[INSIDE]), w->parameters[TIED]);
}

static cup_tensor *loss_of(watched *w)
{
    cup_context *c = w->c;
    cup_tensor *x = cup_mul(c, w->parameters[FIRST], w->parameters[FIRST]);
    x = cup_recompute(c, block, &x, 1, w);
    x = cup_mul(c, cup_tanh(c, x), w->parameters[LAST]);
    x = cup_mul(c, x, cup_reshape(c, w->parameters[TIED], 1, (int64_t[]){SIZE}));
    return cup_sum(c, x, NULL, 0, false);
}

TEST(grad_watch_tells_of_complete_gradients)
{
    const float values[COUNT][SIZE] = {
        {1, 2, -1}, {.5F, 1, 2}, {-1, .25F, 1}, {3, 1, 2}, {1, 1, 1}};
    watched w = {.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"))};
    for (int i = 0; i < COUNT; i++)
        w.parameters[i] = cup_require_grad(
            cup_tensor_from(w.c, CUP_F32, 1, (int64_t[]){SIZE}, values[i]));
    cup_tensor *loss = loss_of(&w);
    cup__grad_watch_set(w.c, &(cup__grad_watch){w.parameters, COUNT, look, &w});
    EXPECT_INT(cup_backward(w.c, loss), CUP_OK);
    cup__grad_watch_set(w.c, NULL);
    for (int i = 0; i < COUNT; i++) {
        float got[SIZE] = {0};
        if (w.parameters[i]->grad)
            cup_tensor_read(w.parameters[i]->grad, got, sizeof got);
        if (!w.when[i] || memcmp(got, w.said[i], sizeof got))
            test_fail(__FILE__, __LINE__, "parameter %d at node %u: %g, and %g at the end", i,
                      w.when[i], (double)w.said[i][0], (double)got[0]);
    }
    /* The last one is told of first, what the block uses when that is behind, the first at the
     * end. */
    EXPECT(w.when[UNUSED] >= w.when[LAST] && w.when[LAST] > w.when[INSIDE]);
    EXPECT(w.when[TIED] == w.when[INSIDE] && w.when[INSIDE] > w.when[FIRST]);
    EXPECT_INT(w.when[FIRST], 1);
    cup_context_free(w.c);
}
