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
    int begun;
    uint64_t hash; /* of what was recorded, when backward began */
} watched;

static cup_status note_begin(void *user)
{
    watched *w = user;
    w->begun++;
    w->hash = cup__tape_hash(w->c);
    EXPECT(w->parameters[FIRST]->first_use == 1 && w->parameters[UNUSED]->first_use == 0);
    return CUP_OK;
}

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

static void begin(watched *w)
{
    const float values[COUNT][SIZE] = {
        {1, 2, -1}, {.5F, 1, 2}, {-1, .25F, 1}, {3, 1, 2}, {1, 1, 1}};
    *w = (watched){.c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"))};
    for (int i = 0; i < COUNT; i++)
        w->parameters[i] = cup_require_grad(
            cup_tensor_from(w->c, CUP_F32, 1, (int64_t[]){SIZE}, values[i]));
}

static void expect_told(watched *w)
{
    for (int i = 0; i < COUNT; i++) {
        float got[SIZE] = {0};
        if (w->parameters[i]->grad)
            cup_tensor_read(w->parameters[i]->grad, got, sizeof got);
        if (!w->when[i] || memcmp(got, w->said[i], sizeof got))
            test_fail(__FILE__, __LINE__, "parameter %d at node %u: %g, and %g at the end", i,
                      w->when[i], (double)w->said[i][0], (double)got[0]);
    }
    /* The last one is told of first, what the block uses when that is behind, the first at the
     * end. */
    EXPECT(w->when[UNUSED] >= w->when[LAST] && w->when[LAST] > w->when[INSIDE]);
    EXPECT(w->when[TIED] == w->when[INSIDE] && w->when[INSIDE] > w->when[FIRST]);
    EXPECT_INT(w->when[FIRST], 1);
    EXPECT_INT(w->begun, 1);
}

TEST(grad_watch_tells_of_complete_gradients)
{
    for (int from = 0; from < 2; from++) {
        watched w;
        begin(&w);
        cup_tensor *loss = loss_of(&w);
        cup__grad_watch_set(w.c, &(cup__grad_watch){w.parameters, COUNT, note_begin, look, &w});
        EXPECT_INT(from ? cup_backward_from(w.c, &loss, NULL, 1) : cup_backward(w.c, loss), CUP_OK);
        expect_told(&w);
        /* The next one is not watched. */
        EXPECT_INT(cup_backward(w.c, loss_of(&w)), CUP_OK);
        EXPECT_INT(w.begun, 1);
        cup_context_free(w.c);
    }
}

static uint64_t hash_of(bool more)
{
    watched w;
    begin(&w);
    cup_tensor *loss = loss_of(&w);
    loss = more ? cup_tanh(w.c, loss) : cup_relu(w.c, loss);
    cup__grad_watch_set(w.c, &(cup__grad_watch){w.parameters, COUNT, note_begin, look, &w});
    EXPECT_INT(cup_backward(w.c, loss), CUP_OK);
    cup_context_free(w.c);
    return w.hash;
}

/* A number follows from the calls, and from which ones they are. */
TEST(grad_watch_knows_what_was_recorded)
{
    EXPECT(hash_of(true) == hash_of(true));
    EXPECT(hash_of(true) != hash_of(false));
}
