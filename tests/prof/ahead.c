#include <string.h>
#include <unistd.h>

#include "../test.h"
#include "base/parallel.h"
#include "prof/ahead.h"

#define ITEMS 500

typedef struct room {
    int64_t item;
    int used;
} room;

static _Atomic int prepared[ITEMS], made[ITEMS], dropped;

static void prepare(int64_t i, void *user)
{
    EXPECT(user == made);
    prepared[i]++;
}

static void make(int64_t i, void *user_room, void *user)
{
    room *r = user_room;
    EXPECT(user == made);
    if (i % 97 == 3)
        usleep(20000); /* the others go on meanwhile */
    r->item = i;
    r->used++;
    made[i]++;
}

static void drop(void *user_room)
{
    room *r = user_room;
    dropped += r->used;
}

static int total(void)
{
    int sum = 0;
    for (int i = 0; i < ITEMS; i++)
        sum += made[i];
    return sum;
}

TEST(ahead_gives_items_in_order_each_made_once)
{
    for (int threads = 1; threads <= 5; threads += 2) {
        memset((void *)made, 0, sizeof made);
        dropped = 0;
        cup__threads_set(threads);
        memset((void *)prepared, 0, sizeof prepared);
        cup__ahead *a = cup__ahead_new(ITEMS, sizeof(room), prepare, make, drop, (void *)made);
        EXPECT(a);
        for (int i = 0; i < ITEMS; i++)
            EXPECT_INT(((room *)cup__ahead_get(a, i))->item, i);
        EXPECT(cup__ahead_waited(a) >= 0);
        cup__ahead_free(a);
        for (int i = 0; i < ITEMS; i++)
            EXPECT(made[i] == 1 && prepared[i] == 1);
        EXPECT_INT(dropped, ITEMS);
    }
}

TEST(ahead_leaves_items_out_and_ends_early)
{
    cup__threads_set(3);
    memset((void *)made, 0, sizeof made);
    memset((void *)prepared, 0, sizeof prepared);
    dropped = 0;
    cup__ahead *a = cup__ahead_new(ITEMS, sizeof(room), prepare, make, drop, (void *)made);
    EXPECT(a);
    for (int i = 2; i < 200; i += 1 + i % 40)
        EXPECT_INT(((room *)cup__ahead_get(a, i))->item, i);
    EXPECT_INT(((room *)cup__ahead_get(a, 300))->item, 300);
    cup__ahead_free(a);
    EXPECT_INT(dropped, total());
    EXPECT(total() < ITEMS);
    for (int i = 0; i < ITEMS; i++)
        EXPECT(made[i] <= 1 && prepared[i] <= 1 && prepared[i] >= made[i]);
}

TEST(ahead_of_nothing)
{
    cup__ahead_free(cup__ahead_new(0, sizeof(room), NULL, make, drop, NULL));
    cup__ahead_free(NULL);
}
