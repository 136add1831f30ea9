/* How f32_split_wgmma.cu adds up parts of k: the block that comes last for a tile adds them all,
 * in order. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_F32_SPLIT_SPLIT_PARTS_CUH
#define CUP_OPS_F32_SPLIT_SPLIT_PARTS_CUH

#include "wgmma_finish.cuh"

/* Vectors of a part that are on their way at a time: as many as registers are left for. */
#define PARTS_BATCH (BLOCKS_M * SUMS / 4 <= 32 && BLOCKS_M * SUMS % 64 == 0 ? 16 : 8)

/* Adds up the parts of k. True for the part that came last, whose sums are then those of all. */
DEVICE bool add_parts(const wgmma_call &c, const unit &u, const crew &w, unsigned *come_last,
                      sums &sum)
{
    const int vectors = BLOCKS_M * SUMS / 4, crews = PINGPONG ? 1 : CONSUMERS;
    long long slot = (long long)u.tile * crews + (PINGPONG ? 0 : w.group);
    float4 *mine = (float4 *)c.partial + (slot * c.parts * vectors) * 128 + w.thread;
    float *flat = &sum[0][0];
#pragma unroll
    for (int i = 0; i < vectors; i++)
        __stcg(mine + (long long)(u.part * vectors + i) * 128,
               make_float4(flat[4 * i], flat[4 * i + 1], flat[4 * i + 2], flat[4 * i + 3]));
    __threadfence();
    meet(1 + w.group, 128);
    if (w.thread == 0) {
        unsigned count = atomicAdd(c.arrived + slot, 1);
        come_last[w.group] = count == (unsigned)c.parts - 1;
        if (count == (unsigned)c.parts - 1)
            c.arrived[slot] = 0;
        __threadfence();
    }
    meet(1 + w.group, 128);
    bool last = come_last[w.group];
    if (!last)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < vectors; i += PARTS_BATCH)
#pragma unroll 1
        for (int part = 0; part < c.parts; part++) {
            float4 v[PARTS_BATCH];
#pragma unroll
            for (int j = 0; j < PARTS_BATCH; j++)
                v[j] = __ldcg(mine + (long long)(part * vectors + i + j) * 128);
#pragma unroll
            for (int j = 0; j < PARTS_BATCH; j++) {
                float *to = flat + 4 * (i + j);
                to[0] = v[j].x + (part ? to[0] : 0);
                to[1] = v[j].y + (part ? to[1] : 0);
                to[2] = v[j].z + (part ? to[2] : 0);
                to[3] = v[j].w + (part ? to[3] : 0);
            }
        }
    return true;
}

#endif
