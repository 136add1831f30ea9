/* One forward, one backward, over chunks of blocks in turns (Narayanan and others 2021, "Efficient
 * large-scale language model training on GPU clusters using Megatron-LM").
 *
 * All stages play the whole step through, with a unit of time for forward and two for backward, and
 * each takes its own turns from it. A tensor is passed on at the first moment at which both its
 * ends are between two computations. So all turns of all stages stand in one order in time, that
 * of their dependencies, too: whoever comes to a passing waits only for one that is on its way to
 * it, and nobody for ever, even where a tensor is passed at the very moment that both ask for it,
 * as on the stream of a GPU.
 *
 * Batches go in groups of as many as there are stages through one chunk after the other, and back
 * through the last one first. Stage s of n begins to go back when it is (chunks - 1) n + n - 1 - s
 * batches of a chunk ahead, no more than it takes for the first of them to have come back. So it
 * keeps as much as without chunks, and waits for (n - 1) / (chunks * batches) of what it computes,
 * where the batches are a multiple of n. */
#include "train/schedule.h"

#include <stdlib.h>

#include "base/memory.h"

#define FORWARD_TIME 1
#define BACKWARD_TIME 2

typedef struct work {
    bool back;
    int chunk;
    int64_t batch;
} work;

/* `begun` and `ended` by the number of a piece of work, -1 until it is known. */
typedef struct play {
    cup__stages of;
    int64_t each;  /* pieces of work of a stage in one direction */
    int64_t *ended, *begun;
    int64_t *next, *now; /* [stages]: work that was done, and until when */
    int64_t end;
    uint8_t *middle; /* [stages, end + 1]: whether a stage is within a computation */
} play;

static int64_t number_of(const play *p, int stage, work w)
{
    return ((stage * 2 + w.back) * p->of.chunks + w.chunk) * p->of.batches + w.batch;
}

/* The k-th of a direction. */
static work in_order(const play *p, bool back, int64_t k)
{
    const cup__stages *of = &p->of;
    int64_t group = (int64_t)of->stages * of->chunks, first = k / group * of->stages;
    int64_t size = of->batches - first < of->stages ? of->batches - first : of->stages;
    int chunk = (int)(k % group / size);
    return (work){back, back ? of->chunks - 1 - chunk : chunk, first + k % group % size};
}

static work next_work(const play *p, int stage)
{
    const cup__stages *of = &p->of;
    int64_t k = p->next[stage];
    int64_t ahead = (int64_t)of->chunks * of->stages - 1 - stage;
    ahead = of->backward && ahead < p->each ? ahead : p->each;
    if (k < ahead)
        return in_order(p, false, k);
    if (k < 2 * p->each - ahead)
        return in_order(p, (k - ahead) % 2, (k - ahead) / 2 + ((k - ahead) % 2 ? 0 : ahead));
    return in_order(p, true, k - p->each);
}

/* Where the tensor goes that a piece of work makes; false: nowhere. */
static bool find_user(const play *p, int stage, work w, int *to, work *user)
{
    const cup__stages *of = &p->of;
    bool leaves = stage == (w.back ? 0 : of->stages - 1);
    int chunk = w.chunk + (leaves ? w.back ? -1 : 1 : 0);
    *to = (stage + (w.back ? of->stages - 1 : 1)) % of->stages;
    *user = (work){w.back, chunk, w.batch};
    return chunk >= 0 && chunk < of->chunks;
}

/* When what a piece of work needs is there; -1: not yet. */
static int64_t ready(const play *p, int stage, work w)
{
    int from;
    work source;
    if (find_user(p, stage, (work){!w.back, w.chunk, w.batch}, &from, &source))
        return p->ended[number_of(p, from, (work){w.back, source.chunk, w.batch})];
    return w.back ? p->ended[number_of(p, stage, (work){false, w.chunk, w.batch})] : 0;
}

/* Lets the stage that can begin first do its next piece of work; false where all is done. */
static bool play_on(play *p)
{
    int first = -1;
    int64_t soonest = 0;
    for (int s = 0; s < p->of.stages; s++) {
        if (p->next[s] == p->each * (1 + p->of.backward))
            continue;
        int64_t at = ready(p, s, next_work(p, s));
        if (at < 0)
            continue;
        at = at > p->now[s] ? at : p->now[s];
        if (first < 0 || at < soonest) {
            first = s;
            soonest = at;
        }
    }
    if (first < 0)
        return false;
    work w = next_work(p, first);
    int64_t number = number_of(p, first, w);
    p->begun[number] = soonest;
    p->now[first] = p->ended[number] = soonest + (w.back ? BACKWARD_TIME : FORWARD_TIME);
    p->end = p->now[first] > p->end ? p->now[first] : p->end;
    p->next[first]++;
    return true;
}

static cup_status no_memory(cup__error *error)
{
    return cup__fail(error, CUP_MEMORY, "out of host memory for the stages of a model");
}

static cup_status play_all(cup__error *error, play *p)
{
    size_t stages = (size_t)p->of.stages, all = stages * 2 * (size_t)p->each;
    p->ended = cup__malloc(all * sizeof *p->ended);
    p->begun = cup__malloc(all * sizeof *p->begun);
    p->next = cup__calloc(stages, sizeof *p->next);
    p->now = cup__calloc(stages, sizeof *p->now);
    if (!p->ended || !p->begun || !p->next || !p->now)
        return no_memory(error);
    for (size_t i = 0; i < all; i++)
        p->ended[i] = p->begun[i] = -1;
    while (play_on(p))
        continue;
    p->middle = cup__calloc(stages * (size_t)(p->end + 1), 1);
    if (!p->middle)
        return no_memory(error);
    /* Forward has nothing in its middle. */
    for (int s = 0; s < p->of.stages && p->of.backward; s++)
        for (int64_t k = 0; k < p->each; k++) {
            int64_t begun = p->begun[number_of(p, s, in_order(p, true, k))];
            p->middle[s * (p->end + 1) + begun + 1] = 1;
        }
    return CUP_OK;
}

static void play_free(play *p)
{
    cup__free(p->ended);
    cup__free(p->begun);
    cup__free(p->next);
    cup__free(p->now);
    cup__free(p->middle);
}

/* A turn and its place among those of all stages: at a time passings stand before computations, and
 * are in the order of who passes, and of when that had made it. */
typedef struct placed {
    int64_t time, made;
    int computes, sender;
    cup__turn turn;
} placed;

static int by_place(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    int64_t order = x->time - y->time;
    order = order ? order : x->computes - y->computes;
    order = order ? order : x->sender - y->sender;
    order = order ? order : x->made - y->made;
    return (order > 0) - (order < 0);
}

/* What stage `of` has to do with a piece of work that `stage` does: computes it, passes on what
 * that made, or takes it. */
static int place(const play *p, int stage, work w, int of, placed *out)
{
    int to, count = 0;
    work user;
    int64_t number = number_of(p, stage, w), made = p->ended[number];
    if (stage == of)
        out[count++] = (placed){p->begun[number], made, 1, stage,
                                {w.back ? CUP__BACKWARD : CUP__FORWARD, w.chunk, 0, w.batch}};
    if (!find_user(p, stage, w, &to, &user) || (stage != of && to != of))
        return count;
    int64_t latest = p->begun[number_of(p, to, user)], time = made, width = p->end + 1;
    while (time < latest && (p->middle[stage * width + time] || p->middle[to * width + time]))
        time++;
    if (stage == of)
        out[count++] = (placed){time, made, 0, stage,
                                {w.back ? CUP__PASS_BACK : CUP__PASS, w.chunk, 0, w.batch}};
    if (to == of)
        out[count++] = (placed){time, made, 0, stage,
                                {w.back ? CUP__TAKE_BACK : CUP__TAKE, user.chunk, 0, w.batch}};
    return count;
}

/* Finds a place for each batch from its first turn in a chunk to its last. */
static void give_slots(const play *p, placed *list, int64_t count, int *slot, int *idle,
                       int *slots)
{
    int free = 0;
    for (int64_t i = 0; i < p->each; i++)
        slot[i] = 0; /* turns that are left */
    for (int64_t i = 0; i < count; i++)
        slot[list[i].turn.chunk * p->of.batches + list[i].turn.batch]++;
    int *left = slot, *taken = slot + p->each;
    for (int64_t i = 0; i < p->each; i++)
        taken[i] = -1;
    for (int64_t i = 0; i < count; i++) {
        cup__turn *t = &list[i].turn;
        int64_t at = t->chunk * p->of.batches + t->batch;
        if (taken[at] < 0)
            taken[at] = free ? idle[--free] : (*slots)++;
        t->slot = taken[at];
        if (--left[at] == 0)
            idle[free++] = taken[at];
    }
}

static cup_status take_own(cup__error *error, const play *p, int stage, cup__schedule *out)
{
    size_t each = (size_t)p->each;
    placed *list = cup__malloc(6 * each * sizeof *list);
    int *slot = cup__malloc(2 * each * sizeof *slot), *idle = cup__malloc(each * sizeof *idle);
    int stages = p->of.stages;
    const int near[] = {stage, (stage + 1) % stages, (stage + stages - 1) % stages};
    out->turns = cup__malloc(6 * each * sizeof *out->turns);
    bool good = list && slot && idle && out->turns;
    for (int i = 0; good && i < (stages > 2 ? 3 : stages); i++)
        for (int64_t k = 0; k < p->each * (1 + p->of.backward); k++)
            out->count += place(p, near[i], in_order(p, k >= p->each, k % p->each), stage,
                                list + out->count);
    if (good) {
        qsort(list, (size_t)out->count, sizeof *list, by_place);
        give_slots(p, list, out->count, slot, idle, &out->slots);
    }
    for (int64_t i = 0; good && i < out->count; i++)
        out->turns[i] = list[i].turn;
    cup__free(list);
    cup__free(slot);
    cup__free(idle);
    return good ? CUP_OK : no_memory(error);
}

cup_status cup__schedule_make(cup__error *error, const cup__stages *of, int stage,
                              cup__schedule *out)
{
    play p = {.of = *of, .each = of->chunks * of->batches};
    *out = (cup__schedule){0};
    cup_status status = play_all(error, &p);
    if (status == CUP_OK)
        status = take_own(error, &p, stage, out);
    play_free(&p);
    if (status != CUP_OK) {
        cup__free(out->turns);
        out->turns = NULL;
    }
    return status;
}
