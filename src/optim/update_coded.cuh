/* An update whose states are codes of 8 bits; the twin of optim/codes.h, which says what they are.
 * A rule, in adamw8.c for example, says what happens to one element.
 *
 * Grid: a block for each CODED_CHUNK elements of some parameter; a warp has a row of 256 codes,
 * eight of them a thread. Rules are computed in numbers whose every operation is rounded, so that
 * codes are those of the CPU. AdamW moves 16 bytes a parameter in f32. */
#ifndef CUP_OPTIM_UPDATE_CODED_CUH
#define CUP_OPTIM_UPDATE_CODED_CUH

#include "reduce.cuh"
#include "update.cuh"

#define CODES 256
#define CODES_ROW 260
#define CODED_CHUNK (THREADS * 8)

struct exact {
    float x;
};

DEVICE exact exactly(float x)
{
    exact y = {x};
    return y;
}

DEVICE exact operator+(exact a, exact b) { return exactly(__fadd_rn(a.x, b.x)); }
DEVICE exact operator-(exact a, exact b) { return exactly(__fsub_rn(a.x, b.x)); }
DEVICE exact operator*(exact a, exact b) { return exactly(__fmul_rn(a.x, b.x)); }
DEVICE exact operator/(exact a, exact b) { return exactly(__fdiv_rn(a.x, b.x)); }
DEVICE exact sqrt(exact a) { return exactly(__fsqrt_rn(a.x)); }

struct coded_numbers {
    exact corrected, root, gradient, rate, decay;
    exact a[3], rest[3];
};

/* Eight elements of one parameter, of which `count` are there. */
struct coded_piece {
    float value[8], gradient[8], first[8], second[8];
    int count;
};

struct larger_bits {
    __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const
    {
        return a > b ? a : b;
    }
};

template <bool Signed> DEVICE uint32_t code_of(float x, int top, uint32_t random)
{
    uint32_t bits = __float_as_uint(x) & 0x7fffffff;
    int exponent = (int)(bits >> 23), low = top - (Signed ? 14 : 30);
    int at = exponent > low ? exponent : low, drop = 20 + at - exponent;
    if (top == 255 || exponent == 0)
        return 0;
    uint32_t fraction = (bits & 0x7fffff) | 0x800000;
    uint32_t eighths = drop > 31 ? 0 : (fraction + (random << (drop - 16))) >> drop;
    if (Signed)
        return ((uint32_t)(at - low) << 3) + eighths + (x < 0 && eighths ? 128 : 0);
    return ((uint32_t)(at - low) << 3) + (eighths ? eighths : 1);
}

template <bool Signed> DEVICE float code_value(uint32_t code, int top)
{
    int whole = Signed ? code & 127 : code, low = top - (Signed ? 14 : 30);
    int exponent = whole >> 3, eighths = (whole & 7) + (exponent ? 8 : 0);
    int unit = low + (exponent ? exponent - 1 : 0) - 3;
    float value = __uint_as_float(unit < 1 ? 0 : (uint32_t)unit << 23) * (float)eighths;
    if (top == 255)
        return __uint_as_float(0x7fffffff);
    return Signed && code & 128 ? -value : value;
}

/* Rows begin at multiples of 4 bytes where the states do. */
template <bool Signed> DEVICE void codes_read(const uint8_t *row, int lane, float (&out)[8])
{
    int top = row[CODES];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint8_t *at = row + lane * 8 + half * 4;
        uint32_t word = VEC > 1 ? *(const uint32_t *)at
                                : at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[half * 4 + k] = code_value<Signed>(word >> (8 * k) & 255, top);
    }
}

DEVICE void codes_put(uint8_t *at, uint32_t word)
{
    if (VEC > 1) {
        *(uint32_t *)at = word;
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        at[k] = (uint8_t)(word >> (8 * k));
}

/* All lanes of a warp; block is that of the eight random numbers. */
template <bool Signed>
DEVICE void codes_write(uint8_t *row, int lane, const float (&x)[8],
                        const update_attributes &attributes, uint64_t block)
{
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        most = larger_bits()(most, __float_as_uint(x[k]) & 0x7fffffff);
    most = warp_reduce(most, larger_bits());
    int top = most >= 0x7f800000 ? 255 : (int)((most + 0xfffff) >> 23);
    philox_words words = philox_block(attributes.random, attributes.sequence,
                                      block | (uint64_t)(Signed ? 1 : 2) << 38);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t word = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int i = half * 4 + k;
            uint32_t random = words.at[i / 2] >> (i % 2 * 16) & 0xffff;
            word |= code_of<Signed>(x[i], top, random) << (8 * k);
        }
        codes_put(row + lane * 8 + half * 4, word);
    }
    if (lane == 0)
        codes_put(row + CODES, (uint32_t)top);
}

DEVICE const update_entry &coded_find(const update_table &table, int count, uint32_t chunk)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table.entry[middle].chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return table.entry[low];
}

DEVICE void coded_load(const update_entry &e, int64_t at, coded_piece &p)
{
    if (VEC > 1 && p.count == 8) {
        vec<T, 8> g = load<8>(e.gradient + at);
        to_reals(g, p.gradient);
        if (MASTER)
            to_reals(load_plain<8>(e.master + at), p.value);
        else
            to_reals(load_plain<8>(e.value + at), p.value);
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        bool there = k < p.count;
        p.gradient[k] = there ? to_real(e.gradient[at + k]) : 0;
        p.value[k] = !there ? 0 : MASTER ? e.master[at + k] : to_real(e.value[at + k]);
    }
}

DEVICE void coded_store(const update_entry &e, int64_t at, const coded_piece &p,
                        const update_numbers &n)
{
    vec<T, 8> y = update_round<8>(p.value, 0, n);
    if (VEC > 1 && p.count == 8) {
        store(e.value + at, y);
        if (MASTER)
            store(e.master + at, from_reals<float, 8>(p.value));
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (k < p.count) {
            e.value[at + k] = y.at[k];
            if (MASTER)
                e.master[at + k] = p.value[k];
        }
}

DEVICE coded_numbers coded_read(const update_entry &e, const float *factors,
                                const float *settings, const update_attributes &attributes)
{
    const float *own = settings + e.row * 2;
    coded_numbers n;
    n.corrected = exactly(__ldg(factors)) * exactly(__ldg(own));
    n.root = exactly(__ldg(factors + 1));
    n.gradient = exactly(__ldg(factors + 2));
    n.rate = exactly(__ldg(factors + 3)) * exactly(__ldg(own));
    n.decay = exactly(__ldg(own + 1));
#pragma unroll
    for (int i = 0; i < 3; i++) {
        n.a[i] = exactly((float)attributes.a[i]);
        n.rest[i] = exactly((float)(1 - attributes.a[i]));
    }
    return n;
}

template <typename Rule> DEVICE void coded_change(coded_piece &p, const coded_numbers &n)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        exact g = exactly(p.gradient[k]) * n.gradient;
        exact first = exactly(p.first[k]), second = exactly(p.second[k]);
        p.value[k] = Rule::step(exactly(p.value[k]), g, first, second, n).x;
        p.first[k] = k < p.count ? first.x : 0;
        p.second[k] = k < p.count ? second.x : 0;
    }
}

template <typename Rule>
DEVICE void coded_chunk(const update_table &table, int count, const float *factors,
                        const float *settings, const update_attributes &attributes)
{
    const update_entry &e = coded_find(table, count, blockIdx.x);
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)(blockIdx.x - e.chunk) * (CODED_CHUNK / CODES) + threadIdx.x / 32;
    int64_t at = row * CODES + lane * 8;
    if (row * CODES >= e.count || __ldg(factors + 4) == 0)
        return;
    uint8_t *first = (uint8_t *)e.first + row * CODES_ROW;
    uint8_t *second = (uint8_t *)e.second + row * CODES_ROW;
    coded_piece p;
    p.count = at >= e.count ? 0 : e.count - at < 8 ? (int)(e.count - at) : 8;
    coded_load(e, at, p);
    codes_read<true>(first, lane, p.first);
    codes_read<false>(second, lane, p.second);
    coded_change<Rule>(p, coded_read(e, factors, settings, attributes));
    update_numbers rounding;
    rounding.attributes = &attributes;
    rounding.number = (uint64_t)e.row << 43 | (uint64_t)at;
    coded_store(e, at, p, rounding);
    uint64_t block = (uint64_t)e.row << 40 | (uint64_t)at >> 3;
    /* All of the warp have read before one writes the exponent. */
    __syncwarp();
    codes_write<true>(first, lane, p.first, attributes, block);
    codes_write<false>(second, lane, p.second, attributes, block);
}

struct coded_rule {
    typedef exact real;
    static __device__ __forceinline__ exact step(exact value, exact g, exact &first, exact &second,
                                                 const coded_numbers &n);
};

#undef RULE
#define RULE                                                                                       \
    __device__ __forceinline__ exact coded_rule::step(exact value, exact g, exact &first,          \
                                                      exact &second, const coded_numbers &n)

#undef UPDATE
#define UPDATE(name)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        name##_step(const __grid_constant__ update_table table, int count, const float *factors,   \
                    const float *settings, update_attributes attributes)                           \
    {                                                                                              \
        coded_chunk<coded_rule>(table, count, factors, settings, attributes);                      \
    }

#endif
