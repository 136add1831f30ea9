/* A row of 16-bit logits as codes, and their order; draw_token_codes.cu includes it. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_LINE_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_LINE_CUH

#include "draw_token_call.cuh"
#include "dtype.cuh"

#define HALF 32768 /* codes of a sign */
#define NO_NUMBER 0x7fffu
#define ENDS 16 /* elements of the first and the last vector */

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

/* Of the whole vectors, which are all but the first and the last: those are taken as ends. */
DEVICE uint4 load_eight(const line &l, int vector)
{
    return *(const uint4 *)(l.row + (8 * vector - l.skew));
}

/* By sixteen threads, the codes of both ends. What is not of the row is no number. */
DEVICE unsigned load_end(const line &l)
{
    int i = (int)threadIdx.x, vector = i < 8 ? 0 : l.vectors - 1;
    int token = 8 * vector + i % 8 - l.skew;
    bool is_there = token >= 0 && token < l.count && (i < 8 || vector > 0);
    return is_there ? l.row[token].bits : NO_NUMBER;
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
