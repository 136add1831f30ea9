/* Draws a token from each row of logits; a cluster of blocks each, which share the row and hold it
 * in registers where it is short enough.
 *
 * The order is that of the host: the likeliest first, of equal ones the lower token. What lies at a
 * place in it is searched for without putting anything in order: the logits are counted into bins
 * of equal width, the bin that the place is in is split again until few are left, and of these each
 * adds up those before it. Weights are whole numbers, whose sums have no order. A search visits the
 * row twice; there is one for top_k, one for top_p and one for the draw. */
#include "draw_token_row.cuh"
#include "philox.cuh"

#define UNIT 0x1p39f /* the weight of the likeliest; 2^24 of them have a sum */
#define LEAST -40.0f /* powers of 2 below have no weight */

enum measure { COUNT, WEIGHT };

DEVICE bool is_kept(const search &s, float value, int token)
{
    return value > s.last.value || (value == s.last.value && token <= s.last.token);
}

DEVICE uint64_t measured(const search &s, int measure, float value)
{
    float power = (value - s.best) * s.c.scale;
    if (measure == COUNT)
        return 1;
    return power < LEAST ? 0 : (uint64_t)(exp2f(power) * UNIT);
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

/* Block 0 has found it; all are told. */
DEVICE void tell_found(const search &s)
{
    meet_all();
    if (CLUSTER > 1 && s.rank > 0 && threadIdx.x == 0)
        found.at = *of_block((const place *)&found.at, 0);
    meet_all();
}

/* Of all that have this value the lowest token. */
DEVICE void find_first(const search &s, float value)
{
    if (threadIdx.x == 0)
        found.count = 0xffffffffu;
    meet_all();
    visit_row(s, [&](int token, float own) {
        if (own == value)
            atomicMin(of_block(&found.count, 0), (unsigned)token);
    });
    meet_all();
    if (s.rank == 0 && threadIdx.x == 0)
        found.at = {value, (int)found.count};
    tell_found(s);
}

/* Of those that are kept and have this value, number `n`, counted by their tokens. */
DEVICE void find_equal(const search &s, float value, uint64_t n)
{
    uint64_t before = 0;
    for (int begin = s.rank ? s.c.count : 0; begin < s.c.count; begin += DRAW_THREADS) {
        int token = begin + (int)threadIdx.x;
        bool is_one = token < s.c.count && value_at(s, token) == value && is_kept(s, value, token);
        int here = __syncthreads_count(is_one);
        if (before + (uint64_t)here > n) {
            uint64_t all, place_here = sum_before(is_one, &all);
            if (is_one && before + place_here == n)
                found.at = {value, token};
            break;
        }
        before += (uint64_t)here;
    }
    tell_found(s);
}

/* Whole numbers of 64 bits as two of 32, whose sums by atomics are as exact and much faster. */
DEVICE void add_weight(int bin, uint64_t weight)
{
    unsigned low = (unsigned)weight, before = low ? atomicAdd(&bin_low[bin], low) : 0;
    unsigned high = (unsigned)(weight >> 32) + (before + low < before);
    if (high)
        atomicAdd(&bin_high[bin], high);
}

/* Adds up the bins of all blocks: each block a share of them, for all. */
DEVICE void join_bins()
{
    const int share = BINS / CLUSTER;
    meet_all();
    if ((int)threadIdx.x < share) {
#if CLUSTER > 1
        int bin = (int)cluster_rank() * share + (int)threadIdx.x;
#else
        int bin = (int)threadIdx.x;
#endif
        uint64_t weight = 0;
        unsigned count = 0;
        for (int i = 0; i < CLUSTER; i++) {
            weight += (uint64_t)*of_block(&bin_high[bin], i) << 32;
            weight += *of_block(&bin_low[bin], i);
            count += *of_block(&bin_count[bin], i);
        }
        for (int i = 0; i < CLUSTER; i++) {
            *of_block(&all_weight[bin], i) = weight;
            *of_block(&all_count[bin], i) = count;
        }
    }
    meet_all();
}

DEVICE uint64_t sum_of_bin(int measure, int bin)
{
    return measure == WEIGHT ? all_weight[bin] : all_count[bin];
}

DEVICE void fill_bins(const search &s, int measure, const bins &b)
{
    for (int i = (int)threadIdx.x; i < BINS; i += DRAW_THREADS)
        bin_low[i] = bin_high[i] = bin_count[i] = 0;
    __syncthreads();
    visit_row(s, [&](int token, float value) {
        uint64_t weight = is_in_range(b, value) ? measured(s, measure, value) : 0;
        if (!weight || !is_kept(s, value, token))
            return;
        int bin = bin_of(b, value);
        if (measure == WEIGHT)
            add_weight(bin, weight);
        atomicAdd(&bin_count[bin], 1u);
    });
    join_bins();
}

/* The bin that the target falls into; `own` is what is in this thread's, `before` what is in those
 * before it. */
DEVICE void choose_bin(uint64_t before, uint64_t own, uint64_t target)
{
    int bin = (int)threadIdx.x;
    if (before <= target && target < before + own) {
        found.bin = bin;
        found.before = before;
        found.count = all_count[bin];
    }
    __syncthreads();
}

DEVICE bool is_member(const search &s, int measure, const bins &b, int bin, float value, int token)
{
    return is_in_range(b, value) && bin_of(b, value) == bin && is_kept(s, value, token) &&
           measured(s, measure, value);
}

/* Each of the few in the bin, which come together in block 0, adds up those before it. */
DEVICE void find_among_few(const search &s, int measure, const bins &b, uint64_t target)
{
    int bin = found.bin;
    uint64_t sum = found.before;
    __syncthreads();
    if (threadIdx.x == 0)
        found.count = 0;
    meet_all();
    visit_row(s, [&](int token, float value) {
        if (is_member(s, measure, b, bin, value, token)) {
            unsigned at = atomicAdd(of_block(&found.count, 0), 1u);
            *of_block(&few_value[at], 0) = value;
            *of_block(&few_token[at], 0) = token;
        }
    });
    meet_all();
    int count = s.rank ? 0 : (int)found.count;
    if ((int)threadIdx.x < count) {
        place own = {few_value[threadIdx.x], few_token[threadIdx.x]};
        for (int i = 0; i < count; i++)
            if (few_value[i] > own.value || (few_value[i] == own.value && few_token[i] < own.token))
                sum += measured(s, measure, few_value[i]);
        uint64_t weight = measured(s, measure, own.value);
        if (sum <= target && target - sum < weight)
            found.at = own;
    }
    tell_found(s);
}

/* From the lowest to the highest that are in the bin that was found. */
DEVICE bins narrower(const search &s, int measure, const bins &b)
{
    float low = infinity(), high = -infinity();
    visit_row(s, [&](int token, float value) {
        if (is_member(s, measure, b, found.bin, value, token)) {
            low = fminf(low, value);
            high = fmaxf(high, value);
        }
    });
    extremes(&low, &high);
    return bins_of(low, high);
}

/* What the draw hits of so much in all. */
DEVICE uint64_t drawn_of(const search &s, uint64_t number, uint64_t all)
{
    struct philox_words w =
        philox(s.c.seed, (uint32_t)number, (uint32_t)(number >> 32), DRAW_WORD, 0);
    uint64_t bits = (uint64_t)w.at[0] << 32 | w.at[1];
    return __umul64hi(bits >> 11 << 11, all);
}

/* The last to be kept of those that make up top_p. */
DEVICE uint64_t part_of(const search &s, uint64_t all)
{
    double part = ceil(s.c.top_p * (double)all);
    uint64_t least = part < 1 ? 1 : (uint64_t)part;
    return (least < all ? least : all) - 1;
}

enum goal { TOP_K, TOP_P, DRAW };

/* Sets found.at. */
DEVICE void find(const search &s, int goal, uint64_t number)
{
    int measure = goal == TOP_K ? COUNT : WEIGHT;
    float low = goal == TOP_K ? s.least : fmaxf(s.least, s.best + (LEAST - 1) / s.c.scale);
    bins b = bins_of(low, s.best);
    uint64_t target = (uint64_t)s.c.top_k - 1, before = 0;
    for (bool is_first = true;; is_first = false) {
        fill_bins(s, measure, b);
        uint64_t all, own = sum_of_bin(measure, (int)threadIdx.x), place = sum_before(own, &all);
        if (is_first && goal != TOP_K)
            target = goal == TOP_P ? part_of(s, all) : drawn_of(s, number, all);
        if (b.scale == 0) {
            find_equal(s, b.high, (target - before) / measured(s, measure, b.high));
            return;
        }
        choose_bin(before + place, own, target);
        before = found.before;
        if (found.count <= FEW) {
            find_among_few(s, measure, b, target);
            return;
        }
        b = narrower(s, measure, b);
    }
}

DEVICE void draw_row(search &s, uint64_t number)
{
    float low = infinity(), high = -infinity();
    uint64_t finite = 0;
    visit_row(s, [&](int, float value) {
        high = fmaxf(high, value);
        bool counts = fabsf(value) < infinity();
        low = counts ? fminf(low, value) : low;
        finite += counts;
    });
    extremes(&low, &high);
    finite = sum_all(finite);
    s.best = high;
    s.least = low;
    s.last = {-infinity(), s.c.count};
    bool is_one = !(fabsf(high) < infinity()) || s.c.likeliest;
    if (is_one) {
        find_first(s, high);
        return;
    }
    s.last.token = -1;
    if (s.c.top_k > 0 && (uint64_t)s.c.top_k < finite) {
        find(s, TOP_K, number);
        s.last = found.at;
        __syncthreads();
    }
    if (s.c.top_p > 0) {
        find(s, TOP_P, number);
        s.last = found.at;
        __syncthreads();
    }
    find(s, DRAW, number);
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    draw_fwd(const __grid_constant__ draw_call c)
{
    wait_for_previous_kernel();
    let_next_kernel_start();
    search s;
    int row = (int)blockIdx.x / CLUSTER;
    s.c = c;
    s.rank = (int)blockIdx.x % CLUSTER;
    s.row = (const T *)c.logits + (long long)row * c.count;
    if (threadIdx.x == 0)
        found.at.token = -1;
    hold_row(s);
    uint64_t number = (uint64_t)c.counters[0];
    meet_all();
    draw_row(s, number * (uint64_t)c.rows + (uint64_t)row);
    meet_all();
    if (s.rank > 0)
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
