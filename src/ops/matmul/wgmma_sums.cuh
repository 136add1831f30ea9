/* The sums of a's lines along k, while wgmma.cu multiplies: the gradient of a bias beside
 * that of its weight. For an a that lies along m. Of each tile of a, which all tiles of y beside
 * each other bring to shared memory, each sums the lines that are its share; what comes last of a
 * row of tiles adds up the shares, in their order. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_SUMS_CUH
#define CUP_OPS_MATMUL_WGMMA_SUMS_CUH

#include "pipe.cuh"
#include "wgmma_load.cuh"

#define SUM_WARPS (TILE_M / 64) /* of those beside the one that orders copies; a panel each */

/* Eight neighbouring elements are added to their columns' sums. */
DEVICE void add_words(const uint32_t (&word)[4], float (&sum)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const T *two = (const T *)&word[i];
        sum[2 * i] += to_real(two[0]);
        sum[2 * i + 1] += to_real(two[1]);
    }
}

/* Eight columns of two of the eight lines at `lines`, which are mixed by line. */
DEVICE void sum_lines8(uint32_t lines, float (&sum)[8])
{
    uint32_t word[2][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int line = lane() / 8 + 4 * i;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[i][0]), "=r"(word[i][1]), "=r"(word[i][2]), "=r"(word[i][3])
                     : "r"(lines + line * 128 + ((lane() % 8 ^ line) << 4))
                     : "memory");
    }
    add_words(word[0], sum);
    add_words(word[1], sum);
}

/* Lanes 0 to 7 hand over their columns' sums; where these are the last ones, all shares are added
 * up. */
DEVICE void hand_over(const wgmma_call &c, const unit &u, int panel, const float (&sum)[8])
{
    int shares = c.tiles_n * c.parts, share = u.column / TILE_N * c.parts + u.part;
    int length = c.tiles_m * CLUSTER_M * TILE_M, first = u.row + 64 * panel;
    float *mine = c.shares + (long long)share * length + first;
    unsigned *count = c.shares_come + u.row / TILE_M * SUM_WARPS + panel, come = 0;
    if (lane() < 8) {
        __stcg((float4 *)mine + 2 * lane(), make_float4(sum[0], sum[1], sum[2], sum[3]));
        __stcg((float4 *)mine + 2 * lane() + 1, make_float4(sum[4], sum[5], sum[6], sum[7]));
    }
    __threadfence();
    __syncwarp();
    if (lane() == 0)
        come = atomicAdd(count, 1);
    if (__shfl_sync(0xffffffff, come, 0) + 1 < shares)
        return;
    __threadfence();
    for (int i = lane(); i < 64; i += 32) {
        float all = 0;
        for (int s = 0; s < shares; s++)
            all += __ldcg(c.shares + (long long)s * length + first + i);
        if (first + i < c.m)
            ((result *)c.a_sums)[first + i] = from_real<result>(all);
    }
    if (lane() == 0)
        *count = 0;
}

/* What a warp of number `panel` does. It lets go of all stages, also where it sums nothing. */
DEVICE void sum_lines(const wgmma_call &c, const layout &at, const ring<STAGES> &pipe, int panel)
{
    ring_place<STAGES> place = {0, 0};
    int units = units_of(c);
    for (int i = blockIdx.x / CLUSTER; i < units; i += gridDim.x / CLUSTER) {
        unit u = unit_at(c, i);
        float sum[8] = {};
        /* Of each c.tiles_n times eight lines along k, eight are summed here. */
        int next = u.column / TILE_N - u.k * (TILE_K / 8) % c.tiles_n;
        next += next < 0 ? c.tiles_n : 0;
        for (int t = 0; t < u.k_tiles; t++, place.next()) {
            pipe.wait_full(place);
#pragma unroll 2
            for (; next < TILE_K / 8; next += c.tiles_n)
                sum_lines8(at.stages + place.stage * STAGE_BYTES + panel * PANEL + next * 1024,
                           sum);
            next -= TILE_K / 8;
            __syncwarp();
            pipe.release<1>(place.stage);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum[j] += __shfl_xor_sync(0xffffffff, sum[j], 8);
            sum[j] += __shfl_xor_sync(0xffffffff, sum[j], 16);
        }
        hand_over(c, u, panel, sum);
    }
}

#endif
