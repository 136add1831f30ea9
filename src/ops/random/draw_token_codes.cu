/* Draws a token from each of many rows of 16-bit logits, a block each.
 *
 * Such a row has few values beside its tokens: at most 65536 codes. They are counted once, and all
 * else is asked of the counts: how likely a code is, the place that top_k or top_p ends at, which
 * code a draw hits and which of the tokens that have it. Equal tokens weigh the same, so only the
 * last question needs the row again. The order, the weights and so the tokens are those of
 * draw_token.cu.
 *
 * Codes stand in order of their values, the highest first, in groups of which a warp adds up one at
 * a time; then one warp answers for the row while the others read it again. */
#include "dependent.cuh"
#include "draw_token_line.cuh"
#include "draw_token_weights.cuh"

/* Knob: HELD (vectors of the row that a thread reads again). */
#define WARPS (DRAW_THREADS / 32)
#define GROUP 128
#define GROUPS (2 * HALF / GROUP)
#define PARTS (GROUPS / 32)
#define AT_ONCE 4
#define EVERYONE 0xffffffffu
#define FINDERS (DRAW_THREADS - 32)
#define SIGNS 0x80008000u

/* Of tokens: what they weigh, and how many they are. */
struct amount {
    uint64_t weight;
    unsigned count;
};

/* The counts: a word for a code, in its lower half, and its negative. */
extern __shared__ uint4 memory[];
static __shared__ amount group_sum[GROUPS]; /* then, what lies before it in its part */
static __shared__ amount part_sum[PARTS];   /* 32 groups each */
static __shared__ float warp_high[WARPS];
static __shared__ unsigned warp_found[WARPS];
static __shared__ uint64_t luck; /* of the row's draw */
static __shared__ uint64_t has_code[DRAW_THREADS]; /* a bit a token, behind those of the skew */
static __shared__ struct {
    unsigned code, number; /* of the drawn token, among those that have it */
} wanted;

/* Counts a code; returns the higher one of its value and `high`. */
DEVICE float count_code(unsigned code, float high)
{
    unsigned *counts = (unsigned *)memory;
    float value = value_of(code);
    atomicAdd(&counts[code & (HALF - 1)], __float_as_int(value) < 0 ? 0x10000u : 1u);
    return fmaxf(high, value);
}

DEVICE float count_eight(uint4 words, float high)
{
    const uint32_t pair[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        high = count_code(i % 2 ? pair[i / 2] >> 16 : pair[i / 2] & 0xffff, high);
    return high;
}

/* Counts the row; returns its highest number in all threads. Code that runs the first time is
 * slow to come, so there is as little as may be. */
DEVICE float count_row(const line &l)
{
    float high = -infinity();
    int last = l.vectors - 1;
    if (threadIdx.x < ENDS)
        high = count_code(load_end(l), high);
#pragma unroll 1
    for (int begin = (int)threadIdx.x + 1; begin < last; begin += AT_ONCE * DRAW_THREADS) {
        uint4 words[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (begin + i * DRAW_THREADS < last)
                words[i] = load_eight(l, begin + i * DRAW_THREADS);
#pragma unroll 1
        for (int i = 0; i < AT_ONCE && begin + i * DRAW_THREADS < last; i++) {
            high = count_eight(words[0], high);
#pragma unroll
            for (int j = 1; j < AT_ONCE; j++)
                words[j - 1] = words[j];
        }
    }
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
        high = fmaxf(high, __shfl_xor_sync(EVERYONE, high, mask));
    if (threadIdx.x % 32 == 0)
        warp_high[threadIdx.x / 32] = high;
    __syncthreads();
    high = warp_high[threadIdx.x % 32];
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
        high = fmaxf(high, __shfl_xor_sync(EVERYONE, high, mask));
    return high;
}

/* How many tokens have the codes of four places from this one on, a multiple of four. */
DEVICE void read_counts(int place, unsigned (&to)[4])
{
    bool is_below = place >= HALF;
    uint4 words = memory[(is_below ? place - HALF : HALF - 4 - place) / 4];
    if (is_below) {
        to[0] = place == HALF ? 0 : words.x >> 16;
        to[1] = words.y >> 16;
        to[2] = words.z >> 16;
        to[3] = words.w >> 16;
        return;
    }
    to[0] = words.w & 0xffff;
    to[1] = words.z & 0xffff;
    to[2] = words.y & 0xffff;
    to[3] = (words.x & 0xffff) + (place == HALF - 4 ? words.x >> 16 : 0);
}

DEVICE amount plus(amount a, amount b)
{
    return {a.weight + b.weight, a.count + b.count};
}

DEVICE amount from_lane(amount a, int lane)
{
    return {__shfl_sync(EVERYONE, a.weight, lane), __shfl_sync(EVERYONE, a.count, lane)};
}

/* Of a warp, what this lane and those before it have. */
template <typename Number> DEVICE Number up_to_lane(Number own)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        Number other = __shfl_up_sync(EVERYONE, own, distance);
        own += lane >= distance ? other : 0;
    }
    return own;
}

DEVICE amount up_to_lane(amount own)
{
    return {up_to_lane(own.weight), up_to_lane(own.count)};
}

/* What the lanes before this one have, of `all` up to this one. */
DEVICE amount before_lane(amount all, amount own)
{
    return {all.weight - own.weight, all.count - own.count};
}

DEVICE amount sum_of_four(const draw_call &c, float best, int place, const unsigned (&counts)[4],
                          uint64_t (&each)[4])
{
    amount sum = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        each[i] = weight_beside(c, best, value_of((unsigned)turned(place + i)));
        sum = plus(sum, {counts[i] * each[i], counts[i]});
    }
    return sum;
}

/* Adds up the groups of the codes that may matter: with top_k all numbers', else those that have a
 * weight. */
DEVICE void add_up(const draw_call &c, float best)
{
    unsigned infinite = code_of(infinity()), least = HALF | (infinite - 1);
    float low = best + c.reach;
    if (!c.top_k && low > value_of(least))
        least = code_of(low); /* rounded, so that the next one may be the last */
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int first = turned((int)code_of(best)) / GROUP, last = (turned((int)least) + 1) / GROUP;
    int numbers = turned((int)(HALF | infinite)) / GROUP;
    last = last < numbers ? last : numbers - 1;
    for (int group = first + warp; group <= last; group += WARPS) {
        int place = group * GROUP + 4 * lane;
        unsigned counts[4];
        uint64_t each[4];
        read_counts(place, counts);
        if (!__any_sync(EVERYONE, counts[0] | counts[1] | counts[2] | counts[3]))
            continue;
        amount sum = up_to_lane(sum_of_four(c, best, place, counts, each));
        if (lane == 31)
            group_sum[group] = sum;
    }
    __syncthreads();
    if (warp < PARTS) {
        amount own = group_sum[threadIdx.x], all = up_to_lane(own);
        group_sum[threadIdx.x] = before_lane(all, own);
        if (lane == 31)
            part_sum[warp] = all;
    }
    __syncthreads();
}

/* Some tokens of one code: how many there are before the target, and what they are. */
struct spot {
    int place;
    uint64_t number, each; /* of the target among them; what one weighs */
    uint64_t before;       /* what those of higher codes weigh */
};

/* The last of the lanes that do not begin behind the target. */
DEVICE int lane_with(bool by_count, uint64_t target, amount before)
{
    bool is_before = (by_count ? before.count : before.weight) <= target;
    return 31 - __clz((int)__ballot_sync(EVERYONE, is_before));
}

/* Below 2^16. A division of whole numbers would be longer than all that is around it. */
DEVICE uint64_t quotient_of(uint64_t all, uint64_t each)
{
    uint64_t q = (uint64_t)__fdividef((float)all, (float)each);
    while (q * each > all)
        q--;
    while ((q + 1) * each <= all)
        q++;
    return q;
}

/* By one warp, whose lanes have what lies before their parts. */
DEVICE spot spot_of(const draw_call &c, float best, amount before, bool by_count, uint64_t target)
{
    int lane = (int)threadIdx.x % 32, part = lane_with(by_count, target, before);
    before = plus(from_lane(before, part), group_sum[part * 32 + lane]);
    int group = lane_with(by_count, target, before);
    int place = (part * 32 + group) * GROUP + 4 * lane;
    unsigned counts[4];
    uint64_t each[4];
    read_counts(place, counts);
    amount own = sum_of_four(c, best, place, counts, each);
    before = plus(from_lane(before, group), before_lane(up_to_lane(own), own));
    int found = lane_with(by_count, target, before);
    spot s = {place, 0, each[0], before.weight};
    uint64_t begin = by_count ? before.count : before.weight, from = begin;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (counts[i] && begin <= target && (by_count || each[i])) {
            s.place = place + i;
            s.each = each[i];
            s.before = before.weight;
            from = begin;
        }
        begin += by_count ? counts[i] : counts[i] * each[i];
        before.weight += counts[i] * each[i];
    }
    s.place = __shfl_sync(EVERYONE, s.place, found);
    s.each = __shfl_sync(EVERYONE, s.each, found);
    s.before = __shfl_sync(EVERYONE, s.before, found);
    s.number = target - __shfl_sync(EVERYONE, from, found);
    if (!by_count)
        s.number = quotient_of(s.number, s.each);
    return s;
}

enum goal { TOP_K, TOP_P, DRAW };

/* By one warp: which of the tokens of which code is drawn. */
DEVICE void choose(const draw_call &c, float best)
{
    int lane = (int)threadIdx.x % 32;
    unsigned code = code_of(best), at = 0;
    if (fabsf(best) < infinity() && !c.likeliest) {
        amount own = lane < PARTS ? part_sum[lane] : amount{0, 0}, all = up_to_lane(own);
        amount before = before_lane(all, own);
        all = from_lane(all, 31);
        uint64_t kept = all.weight;
#pragma unroll 1
        for (int goal = TOP_K; goal <= DRAW; goal++) {
            if ((goal == TOP_K && !(c.top_k > 0 && (unsigned)c.top_k < all.count)) ||
                (goal == TOP_P && !(c.top_p > 0)))
                continue;
            uint64_t target = goal == TOP_K   ? (uint64_t)c.top_k - 1
                              : goal == TOP_P ? part_of(c, kept)
                                              : hit_of(luck, kept);
            spot s = spot_of(c, best, before, goal == TOP_K, target);
            kept = s.before + (s.number + 1) * s.each;
            code = (unsigned)turned(s.place);
            at = (unsigned)s.number;
        }
    }
    if (lane == 0) {
        wanted.code = code;
        wanted.number = at;
    }
}

/* A bit for each of eight codes that is the one of which `twice` has two, where `mask` looks. */
DEVICE unsigned bits_of(uint4 words, uint32_t twice, uint32_t mask)
{
    const uint32_t pair[4] = {words.x, words.y, words.z, words.w};
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t other = (pair[i] & mask) ^ twice;
        uint32_t is = ~(((other & ~SIGNS) + ~SIGNS) | other) & SIGNS;
        bits |= (is >> 15 | is >> 30) << 2 * i;
    }
    return bits & 0xff;
}

/* The first warp draws and looks at the ends, the others find which tokens of the other vectors
 * have what it drew. */
DEVICE void draw_and_find(const draw_call &c, const line &l, float best)
{
    uint8_t *has = (uint8_t *)has_code;
    int own = (int)threadIdx.x - 31, last = l.vectors - 1;
    unsigned end = NO_NUMBER;
    uint4 held[HELD];
    if (own > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (own + i * FINDERS < last)
                held[i] = load_eight(l, own + i * FINDERS);
    } else {
        end = threadIdx.x < ENDS ? load_end(l) : NO_NUMBER;
        choose(c, best);
    }
    __syncthreads();
    if (own > 0) {
        uint32_t twice = wanted.code * 0x10001u, mask = wanted.code ? EVERYONE : ~SIGNS;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (own + i * FINDERS < last)
                has[own + i * FINDERS] = (uint8_t)bits_of(held[i], twice, mask);
        return;
    }
    unsigned bits = __ballot_sync(EVERYONE, (end & (HALF - 1) ? end : 0) == wanted.code);
    if (threadIdx.x == 0 && l.vectors > 1)
        has[l.vectors - 1] = (uint8_t)(bits >> 8);
    if (threadIdx.x == 0)
        has[0] = (uint8_t)bits;
}

/* The token that has the wanted number among those that were found. */
DEVICE void answer(const draw_call &c, const line &l, int row)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    __syncthreads();
    uint64_t bits = has_code[threadIdx.x];
    unsigned here = (unsigned)__popcll(bits), all = up_to_lane(here);
    if (lane == 31)
        warp_found[warp] = all;
    __syncthreads();
    unsigned before = up_to_lane(lane < warp ? warp_found[lane] : 0u);
    before = __shfl_sync(EVERYONE, before, 31) + all - here;
    if (before <= wanted.number && wanted.number < before + here) {
        for (unsigned i = before; i < wanted.number; i++)
            bits &= bits - 1;
        c.tokens[row] = 64 * (int)threadIdx.x + __ffsll((long long)bits) - 1 - l.skew;
    } else if (threadIdx.x == DRAW_THREADS - 1 && before + here <= wanted.number) {
        c.tokens[row] = -1;
    }
}

extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    draw_codes(const __grid_constant__ draw_call c)
{
    for (int i = (int)threadIdx.x; i < HALF / 4; i += DRAW_THREADS)
        memory[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < GROUPS)
        group_sum[threadIdx.x] = {0, 0};
    has_code[threadIdx.x] = 0;
    __syncthreads();
    line l = line_of(c, (int)blockIdx.x);
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (threadIdx.x == DRAW_THREADS - 1)
        luck = luck_of(c, (uint64_t)c.counters[0] * (uint64_t)c.rows + blockIdx.x);
    float best = count_row(l);
    if (fabsf(best) < infinity() && !c.likeliest)
        add_up(c, best);
    draw_and_find(c, l, best);
    answer(c, l, (int)blockIdx.x);
    if (threadIdx.x == 0 && atomicAdd(c.done, 1u) == gridDim.x - 1) {
        *c.done = 0;
#pragma unroll 1
        for (int i = 0; i < c.counter_count; i++)
            c.counters[i] += 1;
    }
}
