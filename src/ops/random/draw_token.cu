/* Draws a token from each row of logits; a cluster of blocks each, which share the row and hold it
 * in registers where it is short enough.
 *
 * The order is that of the host: the likeliest first, of equal ones the lower token. What lies at a
 * place in it is searched for without putting anything in order: the logits are counted into bins
 * of equal width, the bin that the place is in is split again until few are left, and of these each
 * adds up those before it. Weights are whole numbers, whose sums have no order. A search visits the
 * row twice; there is one for top_k, one for top_p and one for the draw.
 *
 * In a search a block adds up some of the bins of all blocks, then all tell each other their sums.
 * The block that has the bin leads: it says which one it is, and gets what lies in it. */
#include "draw_token_row.cuh"
#include "draw_token_weights.cuh"

enum measure { COUNT, WEIGHT };

DEVICE bool is_kept(const search &s, float value, int token)
{
    return value > s.last.value || (value == s.last.value && token <= s.last.token);
}

DEVICE uint64_t measured(const search &s, int measure, float value)
{
    return measure == COUNT ? 1 : weight_beside(s.c, s.best, value);
}

/* Bins of what lies from `high` down to `low`. No bin's values are below those of the next one. */
struct bins {
    float low, high, lift, scale; /* small differences are lifted, or scales would overflow */
};

DEVICE bins bins_of(float low, float high)
{
    bins b = {low, high, high - low < 1e-20f ? 0x1p100f : 1.0f, 0};
    float width = fminf((high - low) * b.lift, 1e38f); /* what is further is in the last one */
    b.scale = width > 0 ? (float)BINS / width : 0;
    return b;
}

DEVICE int bin_of(const bins &b, float value)
{
    return (int)fminf((b.high - value) * b.lift * b.scale, (float)(BINS - 1));
}

DEVICE bool is_in_range(const bins &b, float value)
{
    return value >= b.low && value <= b.high;
}

/* Block `from` has found it and answers; all are told where the search goes on. */
DEVICE void tell_found(search &s, int from, bool goes_on)
{
    s.answers = s.m.rank == from;
    __syncthreads();
    if (!goes_on)
        return;
    record r = hear(s.m, from, {{__float_as_uint(found.at.value), (uint32_t)found.at.token, 0, 0}});
    s.last = {__uint_as_float(r.at[0]), (int)r.at[1]};
}

/* Of all that have this value the lowest token. */
DEVICE void find_first(search &s, float value)
{
    if (threadIdx.x == 0)
        found.count = 0xffffffffu;
    __syncthreads();
    visit_row(s, [&](int token, float own) {
        if (own == value)
            atomicMin(&found.count, (unsigned)token);
    });
    __syncthreads();
    const record *all = gather(s.m, {{found.count, 0, 0, 0}});
    unsigned least = 0xffffffffu;
    for (int i = 0; i < CLUSTER; i++)
        least = min(least, all[i].at[0]);
    if (threadIdx.x == 0)
        found.at = {value, (int)least};
    tell_found(s, 0, false);
}

/* Of those that are kept and have this value, number `n`, counted by their tokens. */
DEVICE void find_equal(search &s, float value, uint64_t n, bool goes_on)
{
    uint64_t before = 0;
    for (int begin = s.m.rank ? s.c.count : 0; begin < s.c.count; begin += DRAW_THREADS) {
        int token = begin + (int)threadIdx.x;
        bool is_one = token < s.c.count && value_at(s, token) == value && is_kept(s, value, token);
        int here = __syncthreads_count(is_one);
        if (before + (uint64_t)here > n) {
            uint64_t all, place_here = sum_before<WARPS>(is_one, &all);
            if (is_one && before + place_here == n)
                found.at = {value, token};
            break;
        }
        before += (uint64_t)here;
    }
    tell_found(s, 0, goes_on);
}

/* Whole numbers of 64 bits as two of 32, whose sums by atomics are as exact and much faster. */
DEVICE void add_weight(int bin, uint64_t weight)
{
    unsigned low = (unsigned)weight, before = low ? atomicAdd(&bin_low[bin], low) : 0;
    unsigned high = (unsigned)(weight >> 32) + (before + low < before);
    if (high)
        atomicAdd(&bin_high[bin], high);
}

DEVICE uint64_t sum_in(const record &r)
{
    return whole(r.at[0], r.at[1]);
}

/* Counts the row into bins and adds up those of all blocks: what is in the thread's, of those that
 * are its block's. */
DEVICE uint64_t fill_bins(search &s, int measure, const bins &b)
{
    int bin = (int)threadIdx.x;
    bin_low[bin] = bin_high[bin] = bin_count[bin] = 0;
    __syncthreads();
    visit_row(s, [&](int token, float value) {
        uint64_t weight = is_in_range(b, value) ? measured(s, measure, value) : 0;
        if (!weight || !is_kept(s, value, token))
            return;
        int into = bin_of(b, value);
        if (measure == WEIGHT)
            add_weight(into, weight);
        atomicAdd(&bin_count[into], 1u);
    });
    __syncthreads();
    gather_bins(s.m, {{bin_low[bin], bin_high[bin], bin_count[bin], 0}});
    uint64_t sum = 0;
    for (int i = 0; i < CLUSTER && bin < SHARE; i++) {
        const record &r = bin_sums[i][bin];
        sum += measure == WEIGHT ? sum_in(r) : r.at[2];
    }
    return sum;
}

/* Where the bins of this block stand among those of all. */
struct standing {
    uint64_t before, all;
    const record *sums; /* of each block */
};

DEVICE standing standing_of(search &s, uint64_t own)
{
    standing t = {0, 0, gather(s.m, {{(uint32_t)own, (uint32_t)(own >> 32), 0, 0}})};
    for (int i = 0; i < CLUSTER; i++) {
        t.before += i < s.m.rank ? sum_in(t.sums[i]) : 0;
        t.all += sum_in(t.sums[i]);
    }
    return t;
}

/* The block with the bin in which the target lies. */
DEVICE int leader_of(const standing &t, uint64_t target)
{
    int leader = 0;
    uint64_t end = 0;
    for (int i = 0; i < CLUSTER - 1; i++) {
        end += sum_in(t.sums[i]);
        leader += end <= target;
    }
    return leader;
}

/* The bin that the target falls into, which is in the leader; `own` is what is in this thread's,
 * `before` what is in those before it. All learn of it, and which place among all members is the
 * first of the block's own. */
DEVICE void choose_bin(search &s, int leader, uint64_t before, uint64_t own, uint64_t target)
{
    int bin = (int)threadIdx.x;
    if (s.m.rank == leader && before <= target && target < before + own) {
        found.bin = leader * SHARE + bin;
        found.before = before;
        found.count = 0;
        for (int i = 0; i < CLUSTER; i++) {
            found.first[i] = found.count;
            found.count += bin_sums[i][bin].at[2];
        }
    }
    __syncthreads();
    if (s.m.rank == leader && found.count <= FEW)
        arm(MEMBERS, found.count * (unsigned)sizeof members[0]);
    unsigned first = found.first[threadIdx.x % CLUSTER];
    record r = hear(s.m, leader,
                    {{(uint32_t)found.before, (uint32_t)(found.before >> 32), found.count,
                      (uint32_t)found.bin << 16 | (first & 0xffff)}});
    __syncthreads();
    if (threadIdx.x == 0) {
        found.before = whole(r.at[0], r.at[1]);
        found.count = r.at[2];
        found.bin = (int)(r.at[3] >> 16);
        found.sent = r.at[3] & 0xffff;
    }
    __syncthreads();
}

DEVICE bool is_member(const search &s, int measure, const bins &b, int bin, float value, int token)
{
    return is_in_range(b, value) && bin_of(b, value) == bin && is_kept(s, value, token) &&
           measured(s, measure, value);
}

/* The few in the bin come together in its block, where each adds up those before it. */
DEVICE void find_among_few(search &s, int measure, const bins &b, int leader, uint64_t target)
{
    int own = (int)threadIdx.x, count = (int)found.count;
    visit_row(s, [&](int token, float value) {
        if (!is_member(s, measure, b, found.bin, value, token))
            return;
        uint64_t weight = measured(s, measure, value);
        send({{__float_as_uint(value), (uint32_t)token, (uint32_t)weight,
               (uint32_t)(weight >> 32)}},
             &members[atomicAdd(&found.sent, 1u)], MEMBERS, leader);
    });
    if (s.m.rank != leader)
        return;
    await(s.m, MEMBERS);
    if (own >= count)
        return;
    record mine = members[own];
    float value = __uint_as_float(mine.at[0]);
    uint64_t sum = found.before;
    for (int i = 0; i < count; i++) {
        record r = members[i];
        float other = __uint_as_float(r.at[0]);
        if (other > value || (other == value && r.at[1] < mine.at[1]))
            sum += whole(r.at[2], r.at[3]);
    }
    if (sum <= target && target - sum < whole(mine.at[2], mine.at[3]))
        found.at = {value, (int)mine.at[1]};
}

/* From the lowest to the highest that are in the bin that was found. */
DEVICE bins narrower(search &s, int measure, const bins &b)
{
    float low = infinity(), high = -infinity();
    unsigned none = 0;
    visit_row(s, [&](int token, float value) {
        if (is_member(s, measure, b, found.bin, value, token)) {
            low = fminf(low, value);
            high = fmaxf(high, value);
        }
    });
    join_all(s, &low, &high, &none);
    return bins_of(low, high);
}

enum goal { TOP_K, TOP_P, DRAW };

/* Sets found.at in the block that answers, and what is kept for the searches that follow. */
DEVICE void find(search &s, int goal, uint64_t number)
{
    int measure = goal == TOP_K ? COUNT : WEIGHT;
    float low = goal == TOP_K ? s.least : fmaxf(s.least, s.best + s.c.reach);
    bins b = bins_of(low, s.best);
    uint64_t target = (uint64_t)s.c.top_k - 1, before = 0;
    for (bool is_first = true;; is_first = false) {
        uint64_t of_block, own = fill_bins(s, measure, b);
        uint64_t place = sum_before<(SHARE + 31) / 32>(own, &of_block);
        standing t = standing_of(s, of_block);
        if (is_first && goal != TOP_K)
            target = goal == TOP_P ? part_of(s.c, t.all) : hit_of(luck_of(s.c, number), t.all);
        if (b.scale == 0) {
            find_equal(s, b.high, (target - before) / measured(s, measure, b.high), goal != DRAW);
            return;
        }
        int leader = leader_of(t, target - before);
        choose_bin(s, leader, before + t.before + place, own, target);
        before = found.before;
        if (found.count <= FEW) {
            find_among_few(s, measure, b, leader, target);
            tell_found(s, leader, goal != DRAW);
            return;
        }
        b = narrower(s, measure, b);
    }
}

DEVICE void draw_row(search &s, int row)
{
    float low = infinity(), high = -infinity();
    unsigned finite = 0;
    visit_row(s, [&](int, float value) {
        high = fmaxf(high, value);
        bool counts = fabsf(value) < infinity();
        low = counts ? fminf(low, value) : low;
        finite += counts;
    });
    join_all(s, &low, &high, &finite);
    uint64_t number = (uint64_t)draws * (uint64_t)s.c.rows + (uint64_t)row;
    s.best = high;
    s.least = low;
    s.last = {-infinity(), s.c.count};
    bool is_one = !(fabsf(high) < infinity()) || s.c.likeliest;
    if (is_one) {
        find_first(s, high);
        return;
    }
    s.last.token = -1;
    if (s.c.top_k > 0 && (unsigned)s.c.top_k < finite)
        find(s, TOP_K, number);
    if (s.c.top_p > 0)
        find(s, TOP_P, number);
    find(s, DRAW, number);
}

/* No block counts before all have told that they read the counter. */
extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    draw_fwd(const __grid_constant__ draw_call c)
{
    search s;
    int row = (int)blockIdx.x / CLUSTER;
    s.c = c;
    s.m = {(int)blockIdx.x % CLUSTER, 0};
    s.row = (const T *)c.logits + row * c.row;
    if (threadIdx.x == 0)
        found.at.token = -1;
    open_boxes();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x == 0)
        draws = c.counters[0];
    hold_row(s);
    draw_row(s, row);
    if (!s.answers)
        return;
    if (threadIdx.x == 0)
        c.tokens[row] = found.at.token;
    for (int i = (int)threadIdx.x; c.rows == 1 && i < c.counter_count; i += DRAW_THREADS)
        c.counters[i] += 1;
}

/* With several rows no block knows when the others have read the counters. */
extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    draw_count(const __grid_constant__ draw_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    for (int i = (int)threadIdx.x; i < c.counter_count; i += DRAW_THREADS)
        c.counters[i] += 1;
}
