/* The choice of tiles for Hopper, which needs no GPU: there is always one, and it can be used. */
#include "../test.h"
#include "ops/matmul/wgmma.h"

static const int64_t sizes[] = {1, 8, 100, 768, 4096, 50304};

static cup__product product(int64_t m, int64_t n, int64_t k)
{
    return (cup__product){.dtype = CUP_BF16, .y_dtype = CUP_BF16, .factor = 1, .m = m, .n = n,
                          .k = k, .batch_count = 1};
}

static void expect_plan(const cup__product *p)
{
    cup__wgmma_plan plan = {0};
    EXPECT(cup__wgmma_choose(p, 132, &plan) > 0);
    EXPECT(plan.parts >= 1 && plan.tile_m >= 64);
    EXPECT(cup__wgmma_is_on_menu(&plan));
    EXPECT(cup__wgmma_plan_refuses(p, &plan) == NULL);
    /* Blocks of a tile wait for each other, so that all must be there at a time. */
    int64_t columns = p->activation == PRODUCT_SWIGLU ? 2 * p->n : p->n;
    int64_t tiles = (p->m + plan.tile_m - 1) / plan.tile_m *
                    ((columns + plan.tile_n - 1) / plan.tile_n);
    EXPECT(plan.parts == 1 || plan.cluster_k || tiles * plan.parts <= 132);
    EXPECT(cup__cublaslt_time(p, 132) > 0);
}

TEST(matmul_tiles_for_any_shape)
{
    for (int i = 0; i < 6 * 6 * 6; i++) {
        cup__product p = product(sizes[i % 6], sizes[i / 6 % 6], sizes[i / 36]);
        expect_plan(&p);
    }
}

TEST(matmul_tiles_for_any_epilogue)
{
    static const float bias[1];
    for (int i = 0; i < 6 * 4 * 2 * 2; i++) {
        cup__product p = product(sizes[i % 6], 768, 3072);
        p.kind = (i / 6 % 4);
        p.activation = p.kind ? 0 : i / 24 % 2 ? PRODUCT_SWIGLU : PRODUCT_GELU;
        p.y_dtype = p.kind == PRODUCT_ADD && i / 24 % 2 ? CUP_F32 : CUP_BF16;
        p.bias = i / 48 ? bias : NULL;
        expect_plan(&p);
    }
}

TEST(matmul_tiles_by_measurements)
{
    cup__wgmma_plan plan;
    cup__product wide = product(32768, 3072, 768), deep = product(768, 768, 32768);
    cup__wgmma_choose(&wide, 132, &plan);
    EXPECT(plan.pingpong && plan.parts == 1);
    cup__wgmma_choose(&deep, 132, &plan);
    EXPECT(plan.parts > 1);
}

TEST(matmul_of_a_long_k_fills_the_card)
{
    static const int64_t outputs[][2] = {{64, 64}, {256, 64}, {64, 256}, {512, 128}};
    for (int i = 0; i < 4; i++) {
        cup__wgmma_plan plan;
        cup__product p = product(outputs[i][0], outputs[i][1], 802816);
        expect_plan(&p);
        cup__wgmma_choose(&p, 132, &plan);
        int64_t tiles = (p.m + plan.tile_m - 1) / plan.tile_m *
                        ((p.n + plan.tile_n - 1) / plan.tile_n);
        EXPECT(tiles * plan.parts > 100);
    }
}
