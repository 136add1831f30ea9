/* What is remembered of products, on a GPU that is not there. */
#include <string.h>

#include "../test.h"
#include "cupola/ops.h"
#include "ops/matmul/product_recall.h"

static _Alignas(64) char memory[256];

static cup__product product(int64_t m, size_t offset)
{
    cup__product p;
    memset(&p, 0, sizeof p);
    p.dtype = p.y_dtype = CUP_BF16;
    p.factor = 1;
    p.m = m;
    p.n = p.k = 64;
    p.batch_count = 1;
    p.a = (cup__matrix){.data = memory + offset, .row = 64, .column = 1};
    p.b = (cup__matrix){.data = memory, .row = 1, .column = 64};
    p.y = (cup__matrix){.data = memory, .row = 64, .column = 1};
    return p;
}

TEST(products_are_recalled_by_shape_and_alignment)
{
    cup_context *c = cup__context_dry("sm_90a");
    EXPECT(cup_error(c) == CUP_OK);
    cup__product first = product(64, 0), moved = product(64, 64), skewed = product(64, 2),
                 taller = product(65, 0), scaled = product(64, 0);
    cup__recalled *place = cup__product_recalled(c, &first);
    EXPECT(place != NULL && place->impl == NULL);
    place->impl = cup__product_impls;
    EXPECT(cup__product_recalled(c, &moved) == place && place->impl == cup__product_impls);
    EXPECT(cup__product_recalled(c, &taller)->impl == NULL);
    EXPECT(cup__product_recalled(c, &skewed)->impl == NULL);
    cup__product_recalled(c, &first)->impl = cup__product_impls;
    c->precision = CUP__MEDIUM;
    EXPECT(cup__product_recalled(c, &first)->impl == NULL);
    cup__product_recalled(c, &first)->impl = cup__product_impls;
    cup__product_forget(cup__product_state_of(c));
    EXPECT(cup__product_recalled(c, &first)->impl == NULL);
    scaled.scaling = &(const cup__scaling){.kind = 0};
    EXPECT(cup__product_recalled(c, &scaled) == NULL);
    cup_context_free(c);
}

/* The second call is the first one's launch, aimed at other memory. */
TEST(products_are_launched_again)
{
    cup_context *c = cup__context_dry("sm_90a");
    cup_tensor *a = cup_tensor_new(c, CUP_BF16, 2, (int64_t[]){512, 512});
    for (int i = 0; i < 3; i++) {
        cup_tensor *y = cup_linear(c, a, a, NULL);
        EXPECT(cup_error(c) == CUP_OK && y != NULL);
        a = y;
    }
    cup__product p;
    cup__shape shape = cup__shape_of(a);
    cup__product_make(&p, a, false, a, true, &shape);
    p.y.data = a->data;
    cup__recalled *place = cup__product_recalled(c, &p);
    EXPECT(place && place->impl && place->launch);
    EXPECT_TEXT(place->impl->name, "wgmma_best");
    cup_context_free(c);
}
