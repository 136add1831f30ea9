/* A row of 16-bit logits as codes, and their order; draw_token_codes.cu includes it. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_LINE_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_LINE_CUH

#include "draw_token_call.cuh"
#include "dtype.cuh"

#define HALF 32768 /* codes of a sign */
#define NEITHER 0x7fff7fffu /* two codes that are no numbers */

/* A row seen as vectors of eight codes, whose first one may begin before it. */
struct line {
    const T *row;
    int count, skew, vectors;
};

DEVICE line line_of(const draw_call &c, int row)
{
    line l = {(const T *)c.logits + row * c.row, c.count, 0, 0};
    l.skew = (int)((uint64_t)l.row / sizeof(T) % 8);
    l.vectors = (l.skew + c.count + 7) / 8;
    return l;
}

/* Of the whole vectors, which are all but the first and the last, which are taken as ends. */
DEVICE uint4 load_eight(const line &l, int vector)
{
    return *(const uint4 *)(l.row + (8 * vector - l.skew));
}

/* Of an end; what is not of the row is no number. */
DEVICE uint4 load_end(const line &l, int vector)
{
    int first = 8 * vector - l.skew;
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int token = first + 2 * i;
        pair[i] = token >= 0 && token < l.count ? l.row[token].bits : NEITHER & 0xffff;
        pair[i] |= (token >= -1 && token + 1 < l.count ? l.row[token + 1].bits : NEITHER >> 16)
                   << 16;
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* The end that this thread takes; -1: none. */
DEVICE int end_of(const line &l)
{
    return threadIdx.x == 0 ? 0 : threadIdx.x == 1 && l.vectors > 1 ? l.vectors - 1 : -1;
}

DEVICE float value_of(unsigned code)
{
    T as = {(uint16_t)code};
    return to_real(as);
}

/* Both zeros are one. */
DEVICE unsigned code_of(float value)
{
    unsigned code = from_real<T>(value).bits;
    return code & (HALF - 1) ? code : 0;
}

/* Of a code in the order, and of a place the code. */
DEVICE int turned(int code)
{
    return code < HALF ? HALF - 1 - code : code;
}

#endif
