/* Cuts a matrix of f32 into three of bf16 that add up to it: the leading 8 bits of every element,
 * the next 8 and the last 8. Products of the parts are sums of exact products of 8 bits, which is
 * how tensor cores multiply f32 (matmul_sm90.cu with TERMS).
 *
 * from: lines of `length` neighbours, `distance` apart. to: three planes of as many lines, padded
 * to multiples of 8. A thread makes 8 elements of each plane; grid.x counts 256 of them. What is
 * not finite stays whole in the first part. 4 bytes are read and 6 written an element. */
#include "vec.cuh"

#ifndef VEC /* elements that can be read at once */
#define VEC 1
#endif

DEVICE float leading_bits(float x)
{
    unsigned u = __float_as_uint(x), rounded = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    bool high = (rounded & 0x7f800000) == 0x7f800000;
    if (x != x)
        return x;
    return __uint_as_float(high ? u & 0xffff0000 : rounded);
}

DEVICE bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000) != 0x7f800000;
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_split(const float *from, unsigned short *to, long long length, long long lines,
                 long long distance, long long padded)
{
    long long piece = (long long)blockIdx.x * 256 + threadIdx.x, per_line = padded / 8;
    long long line = piece / per_line, column = piece % per_line * 8;
    if (line >= lines)
        return;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i += VEC) {
        vec<float, VEC> v = {};
        if (column + i < length)
            v = load<VEC>(from + line * distance + column + i);
#pragma unroll
        for (int j = 0; j < VEC; j++)
            x[i + j] = v.at[j];
    }
#pragma unroll
    for (int part = 0; part < 3; part++) {
        unsigned words[4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float now = leading_bits(x[i]);
            unsigned bits = __float_as_uint(now) >> 16 | (now != now ? 0x40u : 0u);
            words[i / 2] |= bits << 16 * (i % 2);
            x[i] = is_finite(now) ? x[i] - now : 0.0f;
        }
        *(uint4 *)(to + (part * lines + line) * padded + column) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
}
