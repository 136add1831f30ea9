/* In which order backward's one pass goes, as its host side, its kernels and a test read it. Plain
 * C but for the words before functions.
 *
 * Each tile of keys adds to dq of every step of queries that sees it, and bits stay equal from run
 * to run only if these sums are made in one order. So each step has turns: tile by tile is let in.
 * Tiles of a head are at work side by side and about equally fast. Their walks over the steps, and
 * the turns, are such that each then comes to a step when its turn has come, and waits for nobody:
 *
 * - Without causality, tile j of the `around` that go together begins at the step of its share of
 *   the queries and goes around; whoever began at a step is its first, then the tile before.
 * - With it, a block of threads has a late tile and then an early one, of about the same work
 *   together. Late tiles go up from their first step. Early ones go up from the first step that
 *   sees a late tile, where these have been, and then down from there to their own first step.
 *
 * - In a window, which has limits on both sides, tiles go down, a block of threads having one, and
 *   each goes up through its steps; the last that sees a step is its first. The one behind began
 *   at a later step, and so has been wherever the two meet.
 *
 * Whatever the pace, a tile waits only for tiles that do not wait for it: those of earlier heads
 * or rounds, and of its own `around` (with causality, of its head), all of which are at work at the
 * same time as a grid has no more blocks than the card holds, and takes them in order; in a window
 * only for those that were taken before it. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_PASS_CUH
#define CUP_OPS_ATTENTION_ATTENTION_PASS_CUH

#ifdef __CUDACC__
#define CUP__PASS static __device__ __forceinline__
#else
#define CUP__PASS static inline
#endif

#define PASS_ROWS 128 /* keys of a tile */

/* What the kernels of the pass are told beside the call. */
typedef struct attention_pass {
    float *dq;       /* sums of dq but for the scale: of each head, step and warpgroup a block, */
                     /* in it of each four columns j what thread t holds, at 512 j + 4 t */
    unsigned *turns; /* of each block how many tiles have added; zero before the pass */
    int around;      /* tiles that go together where nothing is causal */
} attention_pass;

typedef struct pass_shape {
    int causal, queries, keys, step, around; /* step: queries at a time */
    int window, before, after;               /* of attention_mask; window excludes causal */
} pass_shape;

/* A tile of keys and the steps it meets: it begins at `turn`, then see pass_step(). */
typedef struct pass_walk {
    int tile, turn, count;
} pass_walk;

CUP__PASS int pass_tiles(pass_shape s)
{
    return (s.keys + PASS_ROWS - 1) / PASS_ROWS;
}

CUP__PASS int pass_steps(pass_shape s)
{
    return (s.queries + s.step - 1) / s.step;
}

/* The units of work of a head, each one or two tiles. */
CUP__PASS int pass_units(pass_shape s)
{
    return s.causal ? (pass_tiles(s) + 1) / 2 : pass_tiles(s);
}

/* The first step that sees any key of a tile. */
CUP__PASS int pass_first(pass_shape s, int tile)
{
    int unseen = s.causal ? tile * PASS_ROWS - (s.keys - s.queries) : 0;
    if (s.window)
        unseen = tile * PASS_ROWS - (s.keys - s.queries) - s.after;
    if (s.window && unseen >= s.queries)
        return pass_steps(s);
    return unseen > 0 ? unseen / s.step : 0;
}

/* The steps before which all that see any key of a tile are. Neither this nor the first goes down
 * from one tile to the next. */
CUP__PASS int pass_end(pass_shape s, int tile)
{
    int behind = (tile + 1) * PASS_ROWS < s.keys ? (tile + 1) * PASS_ROWS : s.keys;
    int end = behind - (s.keys - s.queries) + s.before;
    if (!s.window || end >= s.queries)
        return pass_steps(s);
    return end > 0 ? (end + s.step - 1) / s.step : 0;
}

/* The tiles from the first on of which a step, and those before it, see all that they see. */
CUP__PASS int pass_seen(pass_shape s, int step)
{
    int last = (step + 1) * s.step < s.queries ? (step + 1) * s.step : s.queries;
    int seen = s.causal ? last + s.keys - s.queries : s.keys;
    if (s.window && last + s.keys - s.queries + s.after < s.keys)
        seen = last + s.keys - s.queries + s.after;
    return seen > 0 ? (seen + PASS_ROWS - 1) / PASS_ROWS : 0;
}

/* Whether any tile adds to a step. */
CUP__PASS int pass_any(pass_shape s, int step)
{
    int seen = pass_seen(s, step);
    return seen > 0 && (!s.window || pass_end(s, seen - 1) > step);
}

/* The tiles that go together with this one: the first of them, and how many. */
typedef struct pass_round {
    int first, count;
} pass_round;

CUP__PASS pass_round pass_round_of(pass_shape s, int tile)
{
    pass_round r;
    int left;
    r.first = tile / s.around * s.around;
    left = pass_tiles(s) - r.first;
    r.count = left < s.around ? left : s.around;
    return r;
}

CUP__PASS int pass_walks(pass_shape s, int unit)
{
    return s.causal && unit < pass_tiles(s) / 2 ? 2 : 1;
}

CUP__PASS pass_walk pass_walk_of(pass_shape s, int unit, int half)
{
    pass_walk w;
    if (s.window) {
        w.tile = pass_tiles(s) - 1 - unit;
        w.turn = pass_first(s, w.tile);
        w.count = pass_end(s, w.tile) - w.turn;
        w.count = w.count > 0 ? w.count : 0;
        return w;
    }
    if (!s.causal) {
        pass_round r = pass_round_of(s, unit);
        w.tile = unit;
        w.turn = (int)((unsigned)(unit - r.first) * (unsigned)pass_steps(s) / (unsigned)r.count);
        w.count = pass_steps(s);
        return w;
    }
    w.tile = half ? unit : pass_tiles(s) - 1 - unit;
    w.turn = pass_first(s, half ? pass_tiles(s) / 2 : w.tile);
    w.count = pass_steps(s) - pass_first(s, w.tile);
    return w;
}

/* The i-th step of a walk. */
CUP__PASS int pass_step(pass_shape s, pass_walk w, int i)
{
    int steps = pass_steps(s), at = w.turn + i;
    if (at < steps)
        return at;
    return s.causal ? steps - 1 - i : at - steps;
}

/* How many tiles add to a step before this one. */
CUP__PASS int pass_turn(pass_shape s, int tile, int step)
{
    int middle = pass_tiles(s) / 2, seen = pass_seen(s, step);
    if (s.window)
        return seen - 1 - tile;
    if (s.causal) {
        int late = seen > middle ? seen - middle : 0;
        return tile < middle ? late + tile : seen - 1 - tile;
    }
    pass_round r = pass_round_of(s, tile);
    int begun = (int)((((unsigned)step + 1) * (unsigned)r.count - 1) / (unsigned)pass_steps(s));
    int behind = begun - (tile - r.first);
    return r.first + (behind < 0 ? behind + r.count : behind);
}

#endif
