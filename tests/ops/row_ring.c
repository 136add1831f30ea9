/* Long rows shared out among warps: every plan of the host with the kernels' own arithmetic. */
#include "dispatch/row_ring.h"
#include "test.h"

/* The device brick is plain enough to be compiled here. */
#define CUP_DTYPE_CUH
#define DEVICE static inline
#include "ops/loss/row_share.cuh"

#define PARTS 16 /* RING_PARTS of ops/loss/row_ring.cuh */
#define WORDS 32 /* bytes a warp has for what it tells the others of two rows */

static const cup__gpu_facts h200 = {
    .major = 9, .multiprocessors = 132, .shared_per_block = 232448};

/* The vectors between the parts of the warps: each is of one part and of one place in it. */
static void check_shares(const cup__row_ring *plan, int vectors)
{
    int all = plan->warps * plan->cluster, most = 32 * plan->pieces, next = 0;
    int room = row_share_room(vectors, all);
    for (int place = 0; place < all; place++) {
        struct row_share own = row_share_of(vectors, place, all);
        int parts = (own.count + most - 1) / most;
        EXPECT_INT(own.first, next);
        EXPECT(own.count >= 0 && own.count <= room && parts <= PARTS);
        for (int part = 0; part < parts; part++) {
            int first = own.first + part * most, count = row_part_count(own, part, most);
            EXPECT(count > 0 && count <= most);
            EXPECT(row_part_holds(own, part, most, first));
            EXPECT(row_part_holds(own, part, most, first + count - 1));
            EXPECT(!row_part_holds(own, part, most, first - 1));
            EXPECT(!row_part_holds(own, part, most, first + count));
            EXPECT(!row_part_holds(own, part, most, -1));
            next = first + count;
        }
    }
    EXPECT_INT(next, vectors);
}

static void check_plan(const cup__row_ring *plan, int64_t rows, int64_t bytes)
{
    int all = plan->warps * plan->cluster, room = row_share_room((int)(bytes / 16), all);
    EXPECT(plan->grid.x > 0 && plan->grid.x % plan->cluster == 0);
    EXPECT(plan->grid.x / plan->cluster <= rows);
    EXPECT_INT(plan->grid.shared, plan->warps * plan->ring * room * 16);
    int64_t own = (int64_t)plan->ring * plan->warps * PARTS * 8 + (int64_t)all * WORDS;
    EXPECT(plan->blocks * (plan->grid.shared + own) < h200.shared_per_block);
    check_shares(plan, (int)(bytes / 16));
}

TEST(row_ring_shares_every_row_out)
{
    static const int64_t rows[] = {1, 2, 33, 64, 8192};
    for (int64_t bytes = 8192; bytes <= 8 * 200 * 1024; bytes += bytes < 160000 ? 16 : 4112)
        for (int i = 0; i < 5; i++) {
            cup__row_ring plan = cup__row_ring_plan(rows[i], bytes, 1, 0, 8, &h200);
            check_plan(&plan, rows[i], bytes);
            if (2 * bytes < h200.shared_per_block - 16384) {
                plan = cup__row_ring_plan(rows[i], bytes, 2, 8, 8, &h200);
                check_plan(&plan, rows[i], bytes);
            }
        }
}
