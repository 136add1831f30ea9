/* The logsumexp of rows that go through a row_ring, gathered as their parts come in. */
#ifndef CUP_OPS_LOSS_ROW_FOUND_CUH
#define CUP_OPS_LOSS_ROW_FOUND_CUH

#if CUP_T == 2 || CUP_T == 3
#define SHORT_MATH 1
#endif
#include "real_math.cuh"
#include "reduce.cuh"
#include "row_ring.cuh"

#define LOG2_E 1.44269504f

/* __CUDA_ARCH__ is not known where the host's half of a file is read. */
#if __CUDA_ARCH__ >= 900

/* e^(x - shift): for 16-bit elements in one multiplication and one exponential. */
struct exponential {
    float shift;

    __device__ __forceinline__ explicit exponential(float most)
    {
        shift = SHORT_MATH ? most * LOG2_E : most;
    }
    __device__ __forceinline__ float operator()(float x) const
    {
        return SHORT_MATH ? exp2_short(x * LOG2_E - shift) : exp_of(x - shift);
    }
};

DEVICE uint32_t larger_pair(uint32_t a, uint32_t b, bf16)
{
    uint32_t c;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

DEVICE uint32_t larger_pair(uint32_t a, uint32_t b, f16)
{
    uint32_t c;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

DEVICE float larger(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

template <int Count> DEVICE float largest_of(const unit (&v)[Count], float)
{
    float most = to_real(v[0].at[0]);
#pragma unroll
    for (int p = 0; p < Count; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            most = larger(most, to_real(v[p].at[k]));
    return most;
}

/* Two elements at a time. */
template <int Count, typename Half> DEVICE float largest_of(const unit (&v)[Count], Half)
{
    union {
        uint32_t word;
        Half half[2];
    } most;
    vec_words<T, VEC> first;
    first.elements = v[0];
    uint32_t pairs[4] = {first.words[0].x, first.words[0].y, first.words[0].z, first.words[0].w};
#pragma unroll
    for (int p = 1; p < Count; p++) {
        vec_words<T, VEC> u;
        u.elements = v[p];
        pairs[0] = larger_pair(pairs[0], u.words[0].x, Half());
        pairs[1] = larger_pair(pairs[1], u.words[0].y, Half());
        pairs[2] = larger_pair(pairs[2], u.words[0].z, Half());
        pairs[3] = larger_pair(pairs[3], u.words[0].w, Half());
    }
    most.word = larger_pair(larger_pair(pairs[0], pairs[1], Half()),
                            larger_pair(pairs[2], pairs[3], Half()), Half());
    return larger(to_real(most.half[0]), to_real(most.half[1]));
}

/* What a lane has found of a row: the largest, the sum of exponentials of the distances to it, the
 * plain sum where it is asked for, and one number more that the kernel sets in one warp. */
struct found {
    float most, sum, total, other;
};

/* Where all is -infinity there is no distance to it. */
DEVICE exponential distance_to(float most)
{
    return exponential(most == lowest(0.0f) ? 0.0f : most);
}

/* Count vectors, a line apart. */
template <int Count> DEVICE void take(found &f, const unit *from, bool total)
{
    unit v[Count];
#pragma unroll
    for (int p = 0; p < Count; p++)
        v[p] = load_plain<VEC>((const T *)(from + p * 32));
    float most = larger(f.most, largest_of(v, T()));
    exponential e = distance_to(most);
    float sum[4] = {f.sum * e(f.most), 0, 0, 0};
#pragma unroll
    for (int p = 0; p < Count; p++)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            sum[k % 4] += e(to_real(v[p].at[k]));
    f.most = most;
    f.sum = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (total)
#pragma unroll
        for (int p = 0; p < Count; p++)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                f.total += to_real(v[p].at[k]);
}

/* One vector of which only the first `count` elements are classes. */
DEVICE void take_some(found &f, const unit *from, int count)
{
    for (int k = 0; k < count; k++) {
        float x = to_real(((const T *)from)[k]), most = larger(f.most, x);
        exponential e = distance_to(most);
        f.sum = f.sum * e(f.most) + e(x);
        f.most = most;
        f.total += x;
    }
}

/* A part of row k, of which the first `columns` elements count. */
DEVICE void take_part(found &f, const row_ring &ring, int64_t k, int part, int columns, bool total)
{
    int at = part * RING_PART, count = ring.part_count(part);
    const unit *from = ring.slot(k) + at + lane();
    if (count == RING_PART && (ring.own.first + at + RING_PART) * VEC <= columns) {
        take<PIECES>(f, from, total);
        return;
    }
    for (int i = 0; i + lane() < count; i += 32) {
        int left = columns - (ring.own.first + at + i + lane()) * VEC;
        if (left >= VEC)
            take<1>(f, from + i, total);
        else
            take_some(f, from + i, left);
    }
}

/* Joins what the lanes have found, and sends it. */
DEVICE void send(const row_ring &ring, int64_t k, const found &f, bool total)
{
    float most = warp_reduce(f.most, max_op());
    float sum = warp_sum(f.sum * distance_to(most)(f.most));
    ring.send(k, {{most, sum, total ? warp_sum(f.total) : 0.0f, f.other}});
}

/* What all warps have found together. */
DEVICE found receive(const row_ring &ring, int64_t k, bool total)
{
    const row_word *words = ring.receive(k);
    found all = {lowest(0.0f), 0, 0, 0};
#pragma unroll
    for (int i = 0; i < CLUSTER * WARPS; i += 32) {
        row_word own = {{lowest(0.0f), 0, 0, 0}};
        if (i + lane() < CLUSTER * WARPS)
            own = words[i + lane()];
        float both = larger(all.most, own.at[0]);
        exponential e = distance_to(both);
        all.sum = all.sum * e(all.most) + own.at[1] * e(own.at[0]);
        all.most = both;
        all.total += own.at[2];
        all.other += own.at[3];
    }
    float most = warp_reduce(all.most, max_op());
    all.sum = warp_sum(all.sum * distance_to(most)(all.most));
    all.most = most;
    if (total)
        all.total = warp_sum(all.total);
    all.other = warp_sum(all.other);
    return all;
}

#endif
#endif
