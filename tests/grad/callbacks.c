/* What ops and blocks of a program's own do wrong where they are called: none may take down a tape
 * that a call is going through, or leave a gradient out without a word. */
#include "../test.h"
#include "cupola/cupola.h"

typedef enum wrong {
    NOTHING,
    CLOSES,        /* a scope that was open before it */
    CLOSES_OPENS,  /* the same, and another in its place */
    OPENS,
    OPENS_WITHOUT_GRAD,
    CLEARS,        /* what is recorded */
    GOES_BACK,     /* through a loss of its own */
    ASKS,          /* for gradients, of the same */
    GIVES_INPUT,   /* the rest are of blocks */
    GIVES_PARAMETER,
    CHANGES_SHAPE,
    WRONGS
} wrong;

typedef struct mistake {
    wrong forward, backward;
    int runs; /* of a block */
    cup_tensor *w;
} mistake;

static const char *const words[WRONGS] = {
    [CLOSES] = "close the scopes it opens, and no other",
    [CLOSES_OPENS] = "close the scopes it opens, and no other",
    [OPENS] = "close the scopes it opens, and no other",
    [OPENS_WITHOUT_GRAD] = "close the scopes it opens, and no other",
    [CLEARS] = "cup_tape_clear: ",
    [GOES_BACK] = "cup_backward: ",
    [ASKS] = "cup_gradients: ",
    [CHANGES_SHAPE] = "a block made [2] f32 first, and something else",
};

static cup_context *cpu(void)
{
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

static cup_tensor *ones(cup_context *c)
{
    return cup_ones(c, CUP_F32, 1, (int64_t[]){2});
}

static cup_tensor *total(cup_context *c, cup_tensor *x)
{
    return cup_sum(c, x, NULL, 0, false);
}

static void do_wrong(cup_context *c, wrong how)
{
    cup_tensor *v, *d;
    switch (how) {
    case CLOSES_OPENS:
    case CLOSES:
        cup_scope_close(c);
        if (how == CLOSES_OPENS)
            cup_scope_open(c);
        break;
    case OPENS:
        cup_scope_open(c);
        break;
    case OPENS_WITHOUT_GRAD:
        cup_scope_open_without_grad(c);
        break;
    case CLEARS:
        cup_tape_clear(c);
        break;
    case GOES_BACK:
    case ASKS:
        cup_grad_recording(c, true);
        v = cup_require_grad(ones(c));
        if (how == ASKS)
            cup_gradients(c, total(c, cup_square(c, v)), &v, 1, &d);
        else
            cup_backward(c, total(c, cup_square(c, v)));
        break;
    default:
        break;
    }
}

static cup_status forward(cup_context *c, cup_tensor *const *in, int count, const void *attributes,
                          cup_tensor **out)
{
    (void)count;
    do_wrong(c, (*(mistake *const *)attributes)->forward);
    out[0] = cup_scale(c, in[0], 2);
    return cup_error(c);
}

static cup_status backward(cup_context *c, const cup_custom_grad *g)
{
    do_wrong(c, (*(mistake *const *)g->attributes)->backward);
    g->d_inputs[0] = cup_scale(c, g->d_outputs[0], 2);
    return cup_error(c);
}

static cup_tensor *op(cup_context *c, cup_tensor *x, mistake *m)
{
    static const cup_custom_op twice = {.size = sizeof twice,
                                        .name = "twice",
                                        .output_count = 1,
                                        .attributes_size = sizeof m,
                                        .forward = forward,
                                        .backward = backward};
    cup_tensor *y;
    return cup_custom(c, &twice, &x, 1, &m, &y) == CUP_OK ? y : NULL;
}

static cup_tensor *block(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    mistake *m = user;
    wrong how = m->runs++ ? m->backward : m->forward;
    (void)count;
    do_wrong(c, how);
    return how == GIVES_INPUT       ? in[0]
           : how == GIVES_PARAMETER ? m->w
           : how == CHANGES_SHAPE   ? total(c, in[0])
                                    : cup_scale(c, in[0], 2);
}

static cup_tensor *recomputed(cup_context *c, cup_tensor *x, mistake *m)
{
    return cup_recompute(c, block, &x, 1, m);
}

typedef cup_tensor *(*maker)(cup_context *c, cup_tensor *x, mistake *m);

/* Behind the mistake the context is as it was, and computes as before. */
static void expect_as_before(cup_context *c, cup_tensor *w)
{
    cup_error_clear(c);
    cup_tape_clear(c);
    cup_grad_clear(w);
    EXPECT_INT(cup_backward(c, total(c, cup_square(c, w))), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(total(c, cup_grad(w))), 4, 0);
}

/* In forward, and where backward calls it, within a scope and outside of any. */
static void expect_refused(maker make, wrong how, bool in_backward, bool in_scope)
{
    cup_context *c = cpu();
    if (in_scope)
        cup_scope_open(c);
    cup_tensor *w = cup_require_grad(ones(c));
    mistake m = {in_backward ? NOTHING : how, how, 0, w};
    cup_tensor *y = make(c, cup_scale(c, w, 3), &m);
    EXPECT(in_backward == (y != NULL));
    if (in_backward)
        EXPECT(cup_backward(c, total(c, y)) != CUP_OK);
    EXPECT_INT(cup_error(c), CUP_STATE);
    EXPECT_CONTAINS(cup_error_text(c), words[how]);
    expect_as_before(c, w);
    cup_context_free(c);
}

TEST(callbacks_that_take_down_the_tape)
{
    for (int how = CLOSES; how <= ASKS; how++)
        for (int where = 0; where < 4; where++) {
            expect_refused(op, (wrong)how, where & 1, where & 2);
            if (where & 1 || how < GOES_BACK) /* nothing is recorded in a block at first */
                expect_refused(recomputed, (wrong)how, where & 1, where & 2);
        }
    expect_refused(recomputed, CHANGES_SHAPE, true, true);
}

/* A block may give what it was given, or a parameter, which has its gradient as any result has. */
TEST(recompute_block_that_gives_what_was_there)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_require_grad(ones(c)), *out[1];
    for (int how = GIVES_INPUT; how <= GIVES_PARAMETER; how++)
        for (int leaf = 0; leaf < 2; leaf++) {
            double slope = 2 * ((how == GIVES_PARAMETER || leaf ? 1 : 3) + (leaf ? 1 : 3));
            mistake m = {(wrong)how, (wrong)how, 0, w};
            cup_tensor *x = leaf ? w : cup_scale(c, w, 3), *y = recomputed(c, x, &m);
            cup_tensor *loss = total(c, cup_add(c, y, x));
            cup_grad_clear(w);
            bool kept = cup_tape_keep(c, true);
            EXPECT_INT(cup_backward(c, loss), CUP_OK);
            EXPECT_NEAR(cup_tensor_item(total(c, cup_grad(w))), slope, 0);
            EXPECT_INT(cup_gradients(c, loss, &w, 1, out), CUP_OK);
            EXPECT_NEAR(cup_tensor_item(total(c, out[0])), slope, 0);
            EXPECT_INT(cup_gradients_recorded(c, loss, &w, 1, out), CUP_OK);
            EXPECT_NEAR(cup_tensor_item(total(c, out[0])), slope, 0);
            cup_tape_keep(c, kept);
            cup_tape_clear(c);
        }
    cup_context_free(c);
}

/* Scopes of a block are none of the program's, the end of whose outermost one drops the tape. */
static cup_tensor *block_with_a_scope(cup_context *c, cup_tensor *const *in, int count, void *user)
{
    (void)count, (void)user;
    cup_scope_open(c);
    cup_tensor *y = cup_keep(cup_scale(c, in[0], 2));
    cup_scope_close(c);
    return y;
}

TEST(recompute_block_with_a_scope_of_its_own)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_require_grad(ones(c)), *x = cup_scale(c, w, 3);
    cup_tensor *y = cup_recompute(c, block_with_a_scope, &x, 1, NULL);
    EXPECT_INT(cup_backward(c, total(c, y)), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(total(c, cup_grad(w))), 12, 0);
    cup_context_free(c);
}

/* What is kept on the tape may be gone through from within a forward. */
TEST(custom_forward_goes_back_with_a_kept_tape)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_require_grad(ones(c)), *x = cup_scale(c, w, 3);
    mistake m = {GOES_BACK, NOTHING, 0, w};
    cup_tape_keep(c, true);
    cup_tensor *y = op(c, x, &m);
    EXPECT_INT(cup_backward(c, total(c, y)), CUP_OK);
    EXPECT_NEAR(cup_tensor_item(total(c, cup_grad(w))), 12, 0);
    cup_context_free(c);
}
