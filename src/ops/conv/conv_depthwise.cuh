/* What the depthwise kernels share: 16 lanes have the channels of a strip, two each. */
#ifndef CUP_OPS_CONV_CONV_DEPTHWISE_CUH
#define CUP_OPS_CONV_CONV_DEPTHWISE_CUH

#include "conv.cuh"

#ifndef TAPS_H
#define TAPS_H 7
#endif
#ifndef TAPS_W
#define TAPS_W 7
#endif
#ifndef STRIDE
#define STRIDE 1
#endif

#ifndef STRIP
#define STRIP CONV_STRIP
#endif
#define TAPS (TAPS_H * TAPS_W)
#define WIDTH ((STRIP - 1) * STRIDE + TAPS_W) /* of the image, under a strip */
#define TEAM (CONV_CHANNELS / 2)              /* lanes */
#define TEAMS (CONV_THREADS / TEAM)           /* of a block, which have strips each */

/* Two channels, as they are loaded: in one word, so that zeros are no work of each half. */
typedef vec<T, 2> pair;
typedef vec_words<T, 2>::word pair_word;

DEVICE void unpack(pair_word word, real (&out)[2])
{
    vec_words<T, 2> u;
    u.words[0] = word;
    to_reals(u.elements, out);
}

/* Which of `Count` columns from `column` on there are, as bits. */
template <int Count> DEVICE unsigned columns_there(int column, int columns)
{
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < Count; k++)
        bits |= (unsigned)((unsigned)(column + k) < (unsigned)columns) << k;
    return bits;
}

/* Neighbours in a row, zeros where a bit is not set; mostly all are. */
template <int Count>
DEVICE void read_row(const T *from, int step, unsigned bits, pair_word (&out)[Count])
{
    if (bits == (1u << Count) - 1) {
#pragma unroll
        for (int k = 0; k < Count; k++)
            out[k] = __ldg((const pair_word *)(from + k * step));
        return;
    }
#pragma unroll
    for (int k = 0; k < Count; k++) {
        out[k] = pair_word();
        if (bits >> k & 1)
            out[k] = __ldg((const pair_word *)(from + k * step));
    }
}

/* Whether column k of the image under a strip meets tap j at a place of it, and which. */
DEVICE constexpr bool meets(int k, int j)
{
    return k >= j && (k - j) % STRIDE == 0 && (k - j) / STRIDE < STRIP;
}

#endif
