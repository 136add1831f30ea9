/* The order in which stages compute and pass on, played through. */
#include "train/schedule.h"

#include <string.h>

#include "base/memory.h"
#include "test.h"

#define MOST 8

/* A tensor that one stage passes and the next takes: what it is of. */
typedef struct parcel {
    bool back;
    int from, to, chunk; /* of the one who takes it */
    int64_t batch;
} parcel;

typedef struct play {
    cup__stages of;
    cup__schedule schedule[MOST];
    int64_t next[MOST];
    double now[MOST]; /* of each stage */
    int64_t ahead[MOST], most_ahead[MOST];
    bool known[MOST][6][64][2]; /* has been computed */
} play;

static cup__turn turn_of(const play *p, int stage)
{
    return p->schedule[stage].turns[p->next[stage]];
}

static bool is_done(const play *p, int stage)
{
    return p->next[stage] == p->schedule[stage].count;
}

static bool parcel_of(const play *p, int stage, parcel *out)
{
    cup__turn t = turn_of(p, stage);
    int n = p->of.stages, next = (stage + 1) % n, before = (stage + n - 1) % n;
    bool back = t.kind > CUP__PASS, takes = t.kind == CUP__TAKE || t.kind == CUP__TAKE_BACK;
    if (t.kind == CUP__FORWARD || t.kind == CUP__BACKWARD)
        return false;
    int other = takes == back ? next : before;
    *out = (parcel){back, takes ? other : stage, takes ? stage : other, t.chunk, t.batch};
    if (!takes && !back)
        out->chunk += stage == n - 1;
    if (!takes && back)
        out->chunk -= stage == 0;
    return true;
}

/* Each way forward and back once, behind what it needs. */
static void compute(play *p, int s, double forward, double backward)
{
    cup__turn t = turn_of(p, s);
    bool back = t.kind == CUP__BACKWARD;
    EXPECT(!p->known[s][t.chunk][t.batch][back]);
    EXPECT(!back || p->known[s][t.chunk][t.batch][0]);
    p->known[s][t.chunk][t.batch][back] = true;
    p->now[s] += back ? backward : forward;
    p->ahead[s] += back ? -1 : 1;
    if (p->ahead[s] > p->most_ahead[s])
        p->most_ahead[s] = p->ahead[s];
    p->next[s]++;
}

/* Both ends of a passing wait for each other, and what is passed had been made. */
static bool meet(play *p, int s)
{
    parcel a, b;
    parcel_of(p, s, &a);
    int other = a.from == s ? a.to : a.from;
    if (is_done(p, other) || !parcel_of(p, other, &b) || a.from != b.from || a.to != b.to)
        return false;
    EXPECT(a.back == b.back && a.chunk == b.chunk && a.batch == b.batch);
    cup__turn t = turn_of(p, a.from);
    EXPECT(p->known[a.from][t.chunk][t.batch][a.back]);
    EXPECT(!p->known[a.to][a.chunk][a.batch][a.back]);
    double now = p->now[s] > p->now[other] ? p->now[s] : p->now[other];
    p->now[s] = p->now[other] = now;
    p->next[s]++;
    p->next[other]++;
    return true;
}

/* When all are done; less than 0 where they wait for each other for ever. */
static double finish(play *p, double forward, double backward)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < p->of.stages; s++) {
            parcel ignored;
            while (!is_done(p, s) && !parcel_of(p, s, &ignored)) {
                compute(p, s, forward, backward);
                moved = true;
            }
            moved |= !is_done(p, s) && meet(p, s);
        }
    }
    double end = 0;
    for (int s = 0; s < p->of.stages; s++) {
        if (!is_done(p, s))
            return -1;
        end = p->now[s] > end ? p->now[s] : end;
    }
    return end;
}

static double play_through(cup__stages of, double forward, double backward, play *p)
{
    cup__error error = {0};
    memset(p, 0, sizeof *p);
    p->of = of;
    for (int s = 0; s < of.stages; s++)
        EXPECT_INT(cup__schedule_make(&error, &of, s, &p->schedule[s]), CUP_OK);
    double end = finish(p, forward, backward);
    for (int s = 0; s < of.stages; s++) {
        for (int v = 0; v < of.chunks; v++)
            for (int64_t b = 0; b < of.batches; b++)
                EXPECT(p->known[s][v][b][0] && p->known[s][v][b][1] == of.backward);
        cup__free(p->schedule[s].turns);
    }
    return end;
}

TEST(schedule_ends_for_all)
{
    static play p;
    for (int stages = 2; stages <= 6; stages++)
        for (int chunks = 1; chunks <= 6; chunks++)
            for (int64_t batches = 1; batches <= 6; batches++) {
                EXPECT(play_through((cup__stages){stages, chunks, batches, true}, 1, 2, &p) > 0);
                EXPECT(play_through((cup__stages){stages, chunks, batches, true}, 3, 1, &p) > 0);
                EXPECT(play_through((cup__stages){stages, chunks, batches, false}, 1, 2, &p) > 0);
            }
}

/* Of V chunks of each of S stages, a stage waits for (S - 1) / (V M) of what it computes, and is
 * no more batches of a chunk ahead than it has chunks behind it. */
TEST(schedule_waits_no_longer_than_it_must)
{
    static play p;
    for (int stages = 2; stages <= 6; stages++)
        for (int chunks = 1; chunks <= 6; chunks++)
            for (int64_t batches = stages; batches <= 6 * stages; batches += stages) {
                double end =
                    play_through((cup__stages){stages, chunks, batches, true}, 1, 2, &p);
                EXPECT_NEAR(end / (3.0 * (double)(chunks * batches)) - 1,
                            (double)(stages - 1) / (double)(chunks * batches), 1e-12);
                for (int s = 0; s < stages; s++)
                    EXPECT(p.most_ahead[s] <= (int64_t)chunks * stages - s);
            }
}

/* A batch has its place alone from its first turn to its last. */
TEST(schedule_places_are_of_one_batch)
{
    for (int stages = 2; stages <= MOST; stages += 3)
        for (int chunks = 1; chunks <= 4; chunks++)
            for (int s = 0; s < stages; s++) {
                cup__error error = {0};
                cup__schedule schedule;
                int64_t at[256];
                memset(at, -1, sizeof at);
                EXPECT_INT(cup__schedule_make(&error,
                                              &(cup__stages){stages, chunks, 50, true}, s,
                                              &schedule),
                           CUP_OK);
                EXPECT(schedule.slots <= (chunks + 1) * stages);
                for (int64_t i = 0; i < schedule.count; i++) {
                    cup__turn t = schedule.turns[i];
                    int64_t mine = t.chunk * 50 + t.batch;
                    bool begins = t.kind == CUP__TAKE ||
                                  (t.kind == CUP__FORWARD && s == 0 && t.chunk == 0);
                    bool ends = t.kind == CUP__PASS_BACK ||
                                (t.kind == CUP__BACKWARD && s == 0 && t.chunk == 0);
                    EXPECT_INT(at[t.slot], begins ? -1 : mine);
                    at[t.slot] = ends ? -1 : mine;
                }
                cup__free(schedule.turns);
            }
}

TEST(schedule_without_memory_says_so)
{
    for (long n = 1; n < 20; n++) {
        cup__error error = {0};
        cup__schedule schedule;
        cup__memory_fail_at(n, false);
        cup_status status =
            cup__schedule_make(&error, &(cup__stages){3, 2, 7, true}, 1, &schedule);
        cup__memory_fail_at(0, false);
        EXPECT(status == CUP_OK || (status == CUP_MEMORY && !schedule.turns));
        EXPECT(n > 1 || status == CUP_MEMORY);
        cup__free(schedule.turns);
    }
}
