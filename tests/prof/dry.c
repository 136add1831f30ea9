/* Checks on a GPU that is not there, which compile the kernels that they would take and no more. */
#include <stdlib.h>

#include "../cuda/support.h"
#include "../test.h"
#include "cuda/dry.h"
#include "prof/check_backward.h"
#include "prof/check_graph.h"
#include "prof/random.h"
#include "tensor/context.h"

/* What a check on a dry GPU compiles; a report, which would be a call of NULL, fails the test. */
static int compiled_by(void (*check)(cup_context *c))
{
    int before = kernels_compiled();
    cup_context *c = cup__context_dry("sm_90a");
    EXPECT_TEXT(cup_error_text(c), "");
    check(c);
    EXPECT_TEXT(cup_error_text(c), "");
    cup_context_free(c);
    return kernels_compiled() - before;
}

static void check_random(cup_context *c)
{
    const cup__row *rows[] = {cup__row_find("relu"), cup__row_find("softmax")};
    cup__random_options o = {.rows = rows, .row_count = 2, .calls = 12, .seed = 3, .kernels = 100};
    EXPECT_INT(cup__random_check(c, &o, NULL, NULL, NULL), CUP_OK);
}

static void check_gradients(cup_context *c)
{
    const cup__row *rows[] = {cup__row_find("sigmoid")};
    EXPECT_INT(cup__check_backward(c, rows, 1, 3, 4, NULL, NULL), CUP_OK);
}

static void check_graphs(cup_context *c)
{
    EXPECT_INT(cup__check_graphs(c, 3, 3, NULL, NULL), CUP_OK);
}

TEST(check_on_a_dry_gpu_compiles_ahead)
{
    kernel_begin();
    unsetenv("CUP_KERNELS");
    setenv("FAKE_NVRTC_ANY", "1", 1);
    EXPECT(compiled_by(check_random) > 0);
    EXPECT_INT(compiled_by(check_random), 0);
    EXPECT(compiled_by(check_gradients) > 0);
    EXPECT(compiled_by(check_graphs) > 0);
}
