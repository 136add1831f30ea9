/* How conv_weight_taps.cu walks over its work: tiles, parts of them, or an equal share of the steps
 * of all tiles for each block; and what blocks that share a tile hand each other through memory,
 * added in one order. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_CONV_CONV_WEIGHT_TAPS_CUH
#define CUP_OPS_CONV_CONV_WEIGHT_TAPS_CUH

#include "hopper.cuh"
#include "wgmma_call.cuh"

struct unit {
    int tile;
    int row, channel, k, k_tiles;
    unsigned mine;         /* pieces that this block finishes, a bit for each */
    int slot;              /* where it leaves the others, */
    int from, others, own; /* and of whom it reads: the first slot, how many, and itself of them */
};

DEVICE unit tile_at(const wgmma_conv &v, int index)
{
    unit u;
    u.tile = index;
    u.row = index % v.all.tiles_m * TILE_M;
    u.channel = index / v.all.tiles_m * CHANNELS;
    u.k = 0;
    u.k_tiles = v.all.k_tiles;
    u.mine = (1 << PIECES) - 1;
    u.slot = u.from = u.others = 0;
    u.own = -1;
    return u;
}

/* A tile's part, of which there are units. */
DEVICE unit part_at(const wgmma_conv &v, int index)
{
    const int parts = v.all.parts, part = index % parts;
    unit u = tile_at(v, index / parts);
    u.k = part * v.all.part_tiles;
    u.k_tiles = min(v.all.part_tiles, v.all.k_tiles - u.k);
    u.from = u.tile * parts;
    u.slot = u.from + part;
    u.others = parts;
    u.own = part;
    u.mine = 0;
#pragma unroll 1
    for (int piece = part; piece < PIECES; piece += parts)
        u.mine |= 1u << piece;
    return u;
}

/* Where the share of block number `index` begins, in steps of all tiles. */
DEVICE int share_at(const wgmma_conv &v, int index)
{
    return (int)((long long)v.all.units * v.all.k_tiles * index / gridDim.x);
}

/* What of a tile lies in a share from `at` to `end`. Who has its beginning, as the last of a share,
 * finishes it; the others, of whose shares it is the first, were there long before. */
DEVICE unit share_of(const wgmma_conv &v, int at, int end)
{
    unit u = tile_at(v, at / v.all.k_tiles);
    const int first = at / v.all.k_tiles * v.all.k_tiles;
    u.k = at - first;
    u.k_tiles = min(v.all.k_tiles - u.k, end - at);
    u.slot = blockIdx.x;
    u.from = blockIdx.x + 1;
    if (u.k > 0)
        u.mine = 0;
    else
        while (share_at(v, blockIdx.x + 1 + u.others) < first + v.all.k_tiles)
            u.others++;
    return u;
}

/* Whether others have something of the same tile. */
DEVICE bool is_shared(const unit &u)
{
    return !u.mine || u.others > 0;
}

/* The units of a block, one after the other. */
struct walk {
    int at, end;

    __device__ __forceinline__ walk(const wgmma_conv &v)
    {
        at = blockIdx.x;
        end = v.all.units;
        if (SHARES) {
            end = share_at(v, at + 1);
            at = share_at(v, at);
        }
    }
    __device__ __forceinline__ bool next(const wgmma_conv &v, unit &u)
    {
        if (at >= end)
            return false;
        u = SHARES ? share_of(v, at, end) : PARTS ? part_at(v, at) : tile_at(v, at);
        at += SHARES ? u.k_tiles : gridDim.x;
        return true;
    }
};

/* Columns are counted by tap and then channel. */
struct sums {
    float first[FIRST_TAPS * CHANNELS / 2], last[LAST_TAPS * CHANNELS / 2];
};

/* A warpgroup's number among those that multiply, a thread's and a warp's in it. */
struct crew {
    int group, thread, warp;
};

/* A thread's share of a piece: a row's first channel under all taps, then its second. */
DEVICE void take_piece(const sums &s, int piece, float (&v)[PIECE])
{
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        int tap = i % TAPS, at = 2 * piece + i / TAPS;
        v[i] = tap < FIRST_TAPS ? s.first[CHANNELS / 2 * tap + at]
                                : s.last[CHANNELS / 2 * (tap - FIRST_TAPS) + at];
    }
}

#define VECTORS (TAPS * 128 * CONSUMERS) /* of two sums, of a piece of all threads */

/* Where a block has left a piece. */
DEVICE float2 *partial_of(const wgmma_conv &v, const crew &w, int slot, int piece)
{
    long long at = (long long)slot * PIECES + piece;
    return (float2 *)v.all.partial + at * VECTORS + w.group * 128 + w.thread;
}

/* Waits until so many have come. No more blocks wait than the card holds at a time, and none for a
 * tile that comes after its own, so that all blocks of a tile get to it. */
DEVICE void wait_for(const unsigned *arrived, unsigned count)
{
    unsigned now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
    } while (now < count);
}

/* Counts of those who have left pieces: of a tile, or with SHARES of the block that left them. */
DEVICE unsigned *arrived_at(const wgmma_conv &v, const crew &w, int number)
{
    return v.all.arrived + number * CONSUMERS + w.group;
}

/* Leaves the pieces that others finish, and waits for theirs. */
DEVICE void hand_over(const wgmma_conv &v, const unit &u, const crew &w, const sums &s)
{
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (u.mine >> piece & 1)
            continue;
        float2 *to = partial_of(v, w, u.slot, piece);
        float own[PIECE];
        take_piece(s, piece, own);
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            __stcg(to + tap * 128 * CONSUMERS, make_float2(own[tap], own[TAPS + tap]));
    }
    __threadfence();
    meet(1 + w.group, 128);
    if (w.thread == 0) {
        if (!SHARES || !u.mine)
            atomicAdd(arrived_at(v, w, SHARES ? u.slot : u.tile), 1);
        if (!SHARES && u.mine)
            wait_for(arrived_at(v, w, u.tile), u.others);
        for (int i = 0; SHARES && i < u.others; i++)
            wait_for(arrived_at(v, w, u.from + i), 1);
        __threadfence();
    }
    meet(1 + w.group, 128);
}

/* Says that what others left has been read. The last one of those who finish something of a tile,
 * with SHARES the only one, makes the counts zero again. */
DEVICE void depart(const wgmma_conv &v, const unit &u, const crew &w)
{
    meet(1 + w.group, 128);
    if (w.thread != 0 || !u.mine)
        return;
    for (int i = 0; SHARES && i < u.others; i++)
        *arrived_at(v, w, u.from + i) = 0;
    unsigned *arrived = arrived_at(v, w, u.tile), all = u.others + min(u.others, PIECES);
    if (!SHARES && atomicAdd(arrived, 1) == all - 1)
        *arrived = 0;
}

#define AT_A_TIME 2 /* parts that are on their way to a thread */

/* Adds what others have left of a piece, in the order of places. */
DEVICE void add_others(const wgmma_conv &v, const unit &u, const crew &w, int piece,
                       float (&own)[PIECE])
{
    const float2 *from = partial_of(v, w, u.from, piece);
    const int each = PIECES * VECTORS;
#pragma unroll 1
    for (int part = 0; part < u.others; part += AT_A_TIME) {
        float2 other[AT_A_TIME][TAPS];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            bool there = part + i < u.others && part + i != u.own;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++)
                other[i][tap] =
                    there ? __ldcg(from + (long long)(part + i) * each + tap * 128 * CONSUMERS)
                          : make_float2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                own[tap] += other[i][tap].x;
                own[TAPS + tap] += other[i][tap].y;
            }
    }
}

#endif
