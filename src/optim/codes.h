/* States of an optimizer in 8 bits a number: floats of few bits whose exponents count down from
 * that of the largest of each 256 numbers, after Dettmers, Lewis, Shleifer and Zettlemoyer 2022,
 * "8-bit optimizers via block-wise quantization". Their codes are those of a table, of nearest
 * numbers relative to the largest; these are powers of two, so that a number that does not change
 * keeps its code whatever the others do, and are rounded at random, so that changes of less than a
 * code are made in the mean. optim/update_coded.cuh is the twin on the device and gives the same
 * codes.
 *
 * A state of n numbers is a u8 tensor [ceil(n / 256), 260]: in a row 256 codes, the exponent of the
 * largest, biased as f32 has it, where 255 says that some number was not finite, or next to it,
 * and the block is NaN, and three zeros. The first state has a sign, 4 bits of exponent and 3
 * behind the point; the second, which is never negative, 5 and 3. Exponent 0 of a code has equal
 * steps down to 0. A second state that is not 0 stays so, since a step divides by its root. */
#ifndef CUP_OPTIM_CODES_H
#define CUP_OPTIM_CODES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CUP__CODES 256
#define CUP__CODES_ROW 260

/* How far the smallest exponent of a code is below the largest. */
static inline int cup__codes_span(bool is_signed)
{
    return is_signed ? 14 : 30;
}

static inline uint32_t cup__codes_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* The exponent of a row whose largest number has these bits, which may be rounded up. */
static inline int cup__codes_top(uint32_t most)
{
    return most >= 0x7f800000 ? 255 : (int)((most + 0xfffff) >> 23);
}

/* The code of a number; `random` has 16 bits. Numbers that f32 has no whole fraction for are 0. */
static inline uint8_t cup__code_of(float x, int top, bool is_signed, uint32_t random)
{
    uint32_t bits = cup__codes_bits(x);
    int exponent = (int)(bits >> 23), low = top - cup__codes_span(is_signed);
    int at = exponent > low ? exponent : low, drop = 20 + at - exponent;
    if (top == 255 || exponent == 0)
        return 0;
    uint32_t fraction = (bits & 0x7fffff) | 0x800000;
    uint32_t eighths = drop > 31 ? 0 : (fraction + (random << (drop - 16))) >> drop;
    if (is_signed)
        return (uint8_t)(((uint32_t)(at - low) << 3) + eighths + (x < 0 && eighths ? 128 : 0));
    return (uint8_t)(((uint32_t)(at - low) << 3) + (eighths ? eighths : 1));
}

/* And the number of a code. */
static inline float cup__code_value(uint8_t code, int top, bool is_signed)
{
    int whole = is_signed ? code & 127 : code, low = top - cup__codes_span(is_signed);
    int exponent = whole >> 3, eighths = (whole & 7) + (exponent ? 8 : 0);
    /* Of one eighth, biased as f32 has it. */
    int unit = low + (exponent ? exponent - 1 : 0) - 3;
    if (top == 255)
        return NAN;
    uint32_t bits = unit < 1 ? 0 : (uint32_t)unit << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= (float)eighths;
    return is_signed && code & 128 ? -value : value;
}

#endif
