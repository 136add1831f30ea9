/* Which part of which tensor a block of round_off.cu has, and of others that read what its first
 * kernel has found. */
#ifndef CUP_OPS_LOWBIT_ROUND_OFF_SHARE_CUH
#define CUP_OPS_LOWBIT_ROUND_OFF_SHARE_CUH

#include "round_off_call.cuh"
#include "vec.cuh"

#define VEC ROUND_OFF_VECTOR
#define THREADS ROUND_OFF_THREADS
#define AT_ONCE ROUND_OFF_AT_ONCE
#define BLOCKS 6 /* of a multiprocessor */

/* A block's part of a tensor, in vectors, and what is left over behind the last of them. */
struct share {
    long long begin, end;
    int rest;
};

/* Which tensor a block has; later ones of none begin where the last one ends. */
DEVICE int tensor_of_block(const round_off_call &c)
{
    int which = 0;
#pragma unroll
    for (int i = 1; i < ROUND_OFF_MOST; i++)
        which = (int)blockIdx.x >= c.of[i].first && c.of[i].blocks > 0 ? i : which;
    return which;
}

DEVICE share share_of_block(const round_off_tensor &t)
{
    long long vectors = t.count / VEC;
    int own = (int)blockIdx.x - t.first;
    share s = {own * t.each, (own + 1) * t.each, 0};
    s.begin = s.begin < vectors ? s.begin : vectors;
    s.end = s.end < vectors ? s.end : vectors;
    s.rest = own == t.blocks - 1 ? (int)(t.count % VEC) : 0;
    return s;
}

DEVICE const float *vector_at(const round_off_tensor &t, long long i)
{
    if (!t.several)
        return t.x + VEC * i;
    unsigned row = (unsigned)i, column = split(&row, t.vectors);
    return t.x + row * t.row_step + VEC * column;
}

#endif
