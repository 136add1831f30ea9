/* Weights of few bits on their way to tensor cores, for weight_only.cu and weight_only_stream.cu.
 * Knobs: CUP_T of x, BITS of the weights, SCALE_T of their scales. */
#ifndef CUP_PACKED_CUH
#define CUP_PACKED_CUH

#include "packed_call.cuh"
#include "product.cuh"
#include "ptx.cuh"

#ifndef SCALE_T
#define SCALE_T 0
#endif
#ifndef BITS
#define BITS 8
#endif

#define LANE_K (128 / BITS)  /* of k in 16 bytes */
#define X_WORDS (LANE_K / 8) /* of 16 bytes of x beside 16 bytes of w */

typedef dtype_of<SCALE_T>::type scale_type;

DEVICE void put(const product_call &c, long long token, long long row, real v)
{
    if (token >= c.m || row >= c.n)
        return;
    if (c.bias)
        v += to_real(((const T *)c.bias)[row]);
    long long at = token * c.y_row + row;
    if (c.pre)
        ((T *)c.pre)[at] = from_real<T>(v);
    ((T *)c.y)[at] = from_real<T>(activated(v));
}

#if (CUP_T == CUP_F16 || CUP_T == CUP_BF16) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)

#if CUP_T == CUP_F16
#define MAGIC 0x64006400u /* 1024, twice: with a number in its low bits 1024 + number */
#define MAGIC_VALUE 1024.0f
#define PAIR_TYPE "f16x2"
#else
#define MAGIC 0x43004300u /* 128, twice */
#define MAGIC_VALUE 128.0f
#define PAIR_TYPE "bf16x2"
#endif

/* Two 16-bit numbers: a b + c. */
DEVICE uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn." PAIR_TYPE " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE uint32_t pair_of(float x)
{
    return pack(x, x, T());
}

/* (word & mask) | bits in one instruction, which the compiler leaves at two where both are
 * constants. */
DEVICE uint32_t masked(uint32_t word, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "r"(mask), "r"(bits));
    return d;
}

/* What turns the numbers of a group into weights: (v + minus) times. */
struct group_scale {
    uint32_t times, minus;
};

#if BITS == 8
/* Four numbers of 8 bits as two pairs. */
DEVICE void unpack_bytes(uint32_t word, const group_scale &s, uint32_t (&to)[2])
{
    word ^= 0x80808080u;
#if CUP_T == CUP_F16
    to[0] = __byte_perm(word, 0x64646464u, 0x4140);
    to[1] = __byte_perm(word, 0x64646464u, 0x4342);
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[i] = pair_fma(to[i], pair_of(1.0f), pair_of(-1152.0f));
#else
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)) - 8388736.0f;
    to[0] = pack(v[0], v[1], T());
    to[1] = pack(v[2], v[3], T());
#endif
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[i] = pair_fma(to[i], s.times, 0x80008000u);
}

#elif BITS == 4
/* Eight numbers of 4 bits as pairs of numbers four apart. */
DEVICE void unpack_nibbles(uint32_t word, const group_scale &s, uint32_t (&to)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t v = masked(word >> 4 * i, 0x000f000fu, MAGIC);
        to[i] = pair_fma(pair_fma(v, pair_of(1.0f), s.minus), s.times, 0x80008000u);
    }
}
#endif

#if BITS == 8
/* The numbers in bytes 0 and 2, exactly; the other bytes may be anything. */
DEVICE uint32_t byte_pair(uint32_t word)
{
#if CUP_T == CUP_F16
    uint32_t v = masked(word ^ 0x80808080u, 0x00ff00ffu, 0x64006400u);
    return pair_fma(v, pair_of(1.0f), pair_of(-1152.0f));
#else
    /* The lower 7 bits above 128, less 128, or 256 where the sign is set. */
    uint32_t v = masked(word, 0x007f007fu, 0x43004300u);
    uint32_t sign = masked(word, 0x00800080u, 0xc300c300u);
    return pair_fma(v, pair_of(1.0f), sign);
#endif
}

/* Four numbers of 8 bits, exactly, as pairs (0, 2) and (1, 3). */
DEVICE void codes(uint32_t word, uint32_t, uint32_t (&to)[2])
{
    to[0] = byte_pair(word);
    to[1] = byte_pair(word >> 8);
}
#elif BITS == 4
/* Eight numbers of 4 bits, exactly, as pairs four apart; `minus` is -(MAGIC_VALUE + zero). */
DEVICE void codes(uint32_t word, uint32_t minus, uint32_t (&to)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = pair_fma(masked(word >> 4 * i, 0x000f000fu, MAGIC), pair_of(1.0f), minus);
}
#endif

#if BITS == 4
/* Words of x in the order that unpack_nibbles leaves: (0, 4), (1, 5), (2, 6), (3, 7). */
DEVICE uint4 shuffled(const uint4 &x)
{
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                      __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}
#endif

/* The order of k that unpacking leaves. */
DEVICE uint4 in_order(const uint4 &x)
{
#if BITS == 4
    return shuffled(x);
#elif BITS == 8
    return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
                      __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632));
#else
    return x;
#endif
}

/* Four pairs along k of 16 bytes of a row: what the `word`th 16 bytes of x are multiplied with. */
DEVICE void codes_of(const uint4 &row, int word, uint32_t minus, uint32_t (&to)[4])
{
    const uint32_t words[4] = {row.x, row.y, row.z, row.w};
#if BITS == 16
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = words[i];
#elif BITS == 8
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t pairs[2];
        codes(words[2 * word + half], minus, pairs);
        to[2 * half] = pairs[0];
        to[2 * half + 1] = pairs[1];
    }
#else
    codes(words[word], minus, to);
#endif
}

/* What goes with STEP of k: x, and the scales of `Slots` rows. */
template <int Slots, int Octets> struct side_data {
    uint4 x[X_WORDS][Octets];
    group_scale scale[BITS == 16 ? 1 : Slots];
};

/* The scales of the lane's rows at k. */
template <int Slots>
DEVICE void read_group_scales(const product_call &c, const packed_call &w, long long row0,
                              long long k, group_scale *to)
{
#if BITS < 16
#pragma unroll
    for (int i = 0; i < Slots; i++) {
        long long row = row0 + 8 * i + threadIdx.x % 32 / 4;
        long long at = row * w.groups + k / w.group;
        bool valid = row < c.n && k < c.k;
        float scale = valid ? convert<float>(((const scale_type *)w.scale)[at]) : 0.0f;
        float zero = valid && w.zero ? (float)w.zero[at] : 8.0f;
        to[i].times = pair_of(scale);
        to[i].minus = pair_of(-(MAGIC_VALUE + zero));
    }
#endif
}

/* Reads it for the lane's k and its rows: `row`, and every eight further. */
template <int Slots, int Octets>
DEVICE void read_side(const product_call &c, const packed_call &w, long long token0, long long row0,
                      long long k, side_data<Slots, Octets> &to)
{
    const T *x = (const T *)c.a + k;
#pragma unroll
    for (int o = 0; o < Octets; o++)
#pragma unroll
        for (int i = 0; i < X_WORDS; i++) {
            long long token = token0 + 8 * o + threadIdx.x % 32 / 4;
            to.x[i][o] = token < c.m && k < c.k
                             ? __ldg((const uint4 *)(x + token * c.a_mn + 8 * i))
                             : make_uint4(0, 0, 0, 0);
        }
    read_group_scales<Slots>(c, w, row0, k, to.scale);
#if BITS == 4
#pragma unroll
    for (int i = 0; i < X_WORDS * Octets; i++)
        (&to.x[0][0])[i] = shuffled((&to.x[0][0])[i]);
#endif
}

/* Two pairs along k of each of two rows, times a half of word `word` of x. */
template <int Slots, int Octets>
DEVICE void multiply_pairs(const uint32_t *top, const uint32_t *bottom,
                           const side_data<Slots, Octets> &side, int word, int half,
                           float (&sum)[Octets][4])
{
    uint32_t a[4] = {top[0], bottom[0], top[1], bottom[1]};
#pragma unroll
    for (int o = 0; o < Octets; o++) {
        const uint4 &x = side.x[word][o];
        multiply_add(sum[o], a, half ? x.z : x.x, half ? x.w : x.y, T());
    }
}

/* 16 bytes of a row, and of the one 8 below, times x; their scales are `slot` and the next. */
template <int Slots, int Octets>
DEVICE void multiply_words(const uint4 &upper, const uint4 &lower,
                           const side_data<Slots, Octets> &side, int slot, float (&sum)[Octets][4])
{
    const uint32_t top[4] = {upper.x, upper.y, upper.z, upper.w};
    const uint32_t bottom[4] = {lower.x, lower.y, lower.z, lower.w};
#if BITS == 16
    multiply_pairs(top, bottom, side, 0, 0, sum);
    multiply_pairs(top + 2, bottom + 2, side, 0, 1, sum);
#else
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t t[16 / BITS], b[16 / BITS];
#if BITS == 8
        unpack_bytes(top[j], side.scale[slot], t);
        unpack_bytes(bottom[j], side.scale[slot + 1], b);
        multiply_pairs(t, b, side, j / 2, j % 2, sum);
#else
        unpack_nibbles(top[j], side.scale[slot], t);
        unpack_nibbles(bottom[j], side.scale[slot + 1], b);
        multiply_pairs(t, b, side, j, 0, sum);
        multiply_pairs(t + 2, b + 2, side, j, 1, sum);
#endif
    }
#endif
}

#endif
#endif
