/* The 8-bit floating-point formats of the OCP FP8 specification: e4m3 (no infinity, largest 448)
 * and e5m2 (like half precision with a short fraction). Conversion rounds to nearest even. What
 * rounds beyond the largest number is infinite in e5m2, and in e4m3, which has no infinity, the
 * largest number. */
#ifndef CUP_BASE_FLOAT8_H
#define CUP_BASE_FLOAT8_H

#include <math.h>

#include "base/half.h"

static inline float cup__from_f8e5m2(uint8_t byte)
{
    return cup__from_f16((uint16_t)(byte << 8));
}

static inline float cup__from_f8e4m3(uint8_t byte)
{
    if ((byte & 0x7f) == 0x7f)
        return cup__float(0x7fc00000 | (uint32_t)(byte & 0x80) << 24);
    /* Four exponent bits, biased by 7: scaling by 2^120 makes subnormals come out right. */
    float magnitude = cup__float((uint32_t)(byte & 0x7f) << 20) * 0x1p120f;
    return byte & 0x80 ? -magnitude : magnitude;
}

/* Rounds a magnitude to a multiple of 2^(exponent - fraction bits), ties to even. */
static inline float cup__round_f8(float magnitude, int fraction, int least)
{
    int exponent;
    frexpf(magnitude, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    float unit = ldexpf(1, exponent - fraction);
    return nearbyintf(magnitude / unit) * unit;
}

static inline uint8_t cup__to_f8e4m3(float value)
{
    uint8_t sign = (uint8_t)(cup__bits(value) >> 24 & 0x80);
    float magnitude = fabsf(value);
    if (magnitude != magnitude)
        return sign | 0x7f;
    float rounded = magnitude >= 448 ? 448 : cup__round_f8(magnitude, 3, -6);
    uint32_t bits = cup__bits((rounded > 448 ? 448 : rounded) * 0x1p-120f);
    return (uint8_t)(sign | bits >> 20);
}

static inline uint8_t cup__to_f8e5m2(float value)
{
    uint8_t sign = (uint8_t)(cup__bits(value) >> 24 & 0x80);
    float magnitude = fabsf(value);
    if (magnitude != magnitude)
        return sign | 0x7f;
    if (magnitude >= 61440) /* halfway to where the next number would be */
        return sign | 0x7c;
    float rounded = cup__round_f8(magnitude, 2, -14);
    return (uint8_t)(sign | cup__to_f16(rounded) >> 8);
}

#endif
