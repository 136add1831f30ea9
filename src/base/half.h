/* The 16-bit floating-point formats, converted with round to nearest even. Plain integer code, so
 * that loops over it vectorise and every machine gives the same bits. */
#ifndef CUP_BASE_HALF_H
#define CUP_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) uint32_t cup__bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline __attribute__((always_inline)) float cup__float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float cup__from_bf16(uint16_t half)
{
    return cup__float((uint32_t)half << 16);
}

static inline uint16_t cup__to_bf16(float value)
{
    uint32_t bits = cup__bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float cup__from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    /* Scaling by 2^112 moves the exponent and makes subnormals normal. */
    float scaled = cup__float(magnitude) * cup__float(0x77800000);
    uint32_t bits = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : cup__bits(scaled);
    return cup__float(bits | sign);
}

static inline uint16_t cup__to_f16(float value)
{
    uint32_t bits = cup__bits(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t rounded = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* Adding 0.5 lets the adder round a subnormal result into the low bits. */
    uint32_t small = cup__bits(cup__float(magnitude) + 0.5f) - 0x3f000000;
    uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t half = magnitude < 0x38800000 ? small : rounded;
    return (uint16_t)(sign | (magnitude >= 0x477ff000 ? large : half));
}

#endif
