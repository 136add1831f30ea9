/* The order of attention's backward in one pass, which needs no GPU: each tile of keys meets each
 * step of queries that sees it once and has a turn of its own there, blocks of threads that hold
 * fast to their turns always get on, and where they are equally fast they hardly wait. */
#include <string.h>

#include "../test.h"
#include "ops/attention/attention_pass.cuh"

#define STEPS_MOST 64
#define TILES_MOST 64

static void expect_turns(const pass_shape *s)
{
    for (int step = 0; step < pass_steps(*s); step++) {
        bool taken[TILES_MOST] = {false};
        int seen = pass_seen(*s, step), count = 0;
        EXPECT(seen <= pass_tiles(*s));
        for (int tile = 0; tile < pass_tiles(*s); tile++) {
            EXPECT_INT(pass_first(*s, tile) <= step, tile < seen);
            if (tile >= seen || step >= pass_end(*s, tile))
                continue;
            int turn = pass_turn(*s, tile, step);
            EXPECT(turn >= 0 && turn < seen && !taken[turn]);
            taken[turn] = true;
            count++;
        }
        EXPECT_INT(pass_any(*s, step) != 0, count > 0);
        for (int turn = 0; turn < count; turn++)
            EXPECT(taken[turn]);
    }
}

static void expect_walks(const pass_shape *s)
{
    bool walked[TILES_MOST] = {false};
    for (int unit = 0; unit < pass_units(*s); unit++)
        for (int half = 0; half < pass_walks(*s, unit); half++) {
            bool met[STEPS_MOST] = {false};
            pass_walk w = pass_walk_of(*s, unit, half);
            EXPECT(!walked[w.tile]);
            walked[w.tile] = true;
            int count = pass_end(*s, w.tile) - pass_first(*s, w.tile);
            EXPECT_INT(w.count, count > 0 ? count : 0);
            for (int i = 0; i < w.count; i++) {
                int step = pass_step(*s, w, i);
                EXPECT(step >= pass_first(*s, w.tile) && step < pass_steps(*s) && !met[step]);
                met[step] = true;
            }
        }
    for (int tile = 0; tile < pass_tiles(*s); tile++)
        EXPECT(walked[tile]);
}

/* In a window each query meets each key that it sees. */
static void expect_window(const pass_shape *s)
{
    for (int query = 0; query < s->queries; query++) {
        int position = query + s->keys - s->queries;
        for (int tile = 0; tile < pass_tiles(*s); tile++) {
            int last = tile * PASS_ROWS + PASS_ROWS < s->keys ? tile * PASS_ROWS + PASS_ROWS
                                                              : s->keys;
            bool sees = tile * PASS_ROWS <= position + s->after && last > position - s->before;
            int step = query / s->step;
            EXPECT(!sees || (step >= pass_first(*s, tile) && step < pass_end(*s, tile)));
        }
    }
}

/* A block of threads: which unit it is at, which walk of it and how far. */
typedef struct worker {
    int unit, half, at;
} worker;

static void advance(const pass_shape *s, worker *w, int count, int blocks)
{
    if (++w->at < count)
        return;
    w->at = 0;
    if (++w->half < pass_walks(*s, w->unit % pass_units(*s)))
        return;
    w->half = 0;
    w->unit += blocks;
}

/* Blocks do a step each at a time, where it is their turn, until all is done; gives how many times
 * that took. */
static int run(const pass_shape *s, int heads, int blocks)
{
    static int turns[8 * STEPS_MOST], times;
    worker w[TILES_MOST] = {{0}};
    int units = heads * pass_units(*s);
    bool moved = true;
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < blocks; i++)
        w[i].unit = i;
    for (times = 0; moved; times++) {
        int done[TILES_MOST], count = 0;
        moved = false;
        for (int i = 0; i < blocks; i++) {
            if (w[i].unit >= units)
                continue;
            pass_walk walk = pass_walk_of(*s, w[i].unit % pass_units(*s), w[i].half);
            if (walk.count == 0) {
                advance(s, &w[i], 0, blocks);
                moved = true;
                continue;
            }
            int step = pass_step(*s, walk, w[i].at);
            int *turn = &turns[w[i].unit / pass_units(*s) * STEPS_MOST + step];
            if (*turn == pass_turn(*s, walk.tile, step)) {
                done[count++] = (int)(turn - turns);
                advance(s, &w[i], walk.count, blocks);
                moved = true;
            }
        }
        while (count > 0)
            turns[done[--count]]++;
    }
    for (int i = 0; i < blocks; i++)
        EXPECT(w[i].unit >= units);
    return times - 1;
}

TEST(attention_pass_is_in_order_and_gets_on)
{
    for (int n = 0; n < 3000; n++) {
        int longest = n % 2 ? 3000 : 300;
        pass_shape s = {n / 2 % 2, 1 + (int)(test_random() % (uint64_t)longest),
                        1 + (int)(test_random() % (uint64_t)longest), n / 4 % 2 ? 64 : 128,
                        .around = 1};
        if (!s.causal)
            s.around = 1 + (int)(test_random() % (uint64_t)pass_tiles(s));
        int least = s.causal ? pass_units(s) : s.around;
        expect_turns(&s);
        expect_walks(&s);
        run(&s, 1 + n % 5, least + n % 3);
    }
}

TEST(attention_pass_goes_through_windows)
{
    for (int n = 0; n < 2000; n++) {
        int longest = n % 2 ? 2500 : 300;
        pass_shape s = {0, 1 + (int)(test_random() % (uint64_t)longest),
                        1 + (int)(test_random() % (uint64_t)longest), n / 4 % 2 ? 64 : 128, 1, 1,
                        (int)(test_random() % 900) - 100, (int)(test_random() % 900) - 100};
        if (n % 5 == 0)
            s.after = 0;
        if (s.before + s.after < 0)
            s.before = -s.after;
        expect_turns(&s);
        expect_walks(&s);
        if (n % 20 == 0)
            expect_window(&s);
        run(&s, 1 + n % 5, 1 + n % 7);
    }
}

/* A causal window of 512 over 4096 queries, in as many blocks as a card may have for a head. */
TEST(attention_pass_hardly_waits_in_windows)
{
    for (int step = 64; step <= 128; step += 64) {
        pass_shape s = {0, 4096, 4096, step, 32, 1, 511, 0};
        int longest = pass_walk_of(s, 8, 0).count;
        EXPECT_INT(longest, (512 + PASS_ROWS - 1 + step - 1) / step);
        EXPECT(run(&s, 1, 32) <= longest + 1);
        EXPECT(run(&s, 4, 16) <= 8 * longest + 2);
    }
}

/* Two tiles of causal attention have the work of one and a bit. */
TEST(attention_pass_hardly_waits)
{
    for (int causal = 0; causal < 2; causal++)
        for (int step = 64; step <= 128; step += 64)
            for (int queries = 256; queries <= 4096; queries *= 2) {
                pass_shape s = {causal, queries, queries, step, .around = queries / 128};
                if (pass_steps(s) > STEPS_MOST)
                    continue;
                int work = 0;
                for (int half = 0; half < pass_walks(s, 0); half++)
                    work += pass_walk_of(s, 0, half).count;
                int times = run(&s, 8, pass_units(s));
                EXPECT(times >= 8 * work && times <= 8 * work + 1);
            }
}
