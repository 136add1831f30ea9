#include "dispatch/row_ring.h"
#include "base/divide.h"

#define PARTS_MOST 16 /* RING_PARTS of ops/loss/row_ring.cuh */
#define CLUSTER_MOST 8
#define SYSTEM_BYTES 1024 /* of shared memory, taken from each block */

/* Bytes of a block's ring, or 0 where it does not fit: next to it are row_ring_shared and a little
 * of the kernel's own. */
static int64_t ring_bytes(const cup__row_ring *p, int64_t bytes, int shared_most)
{
    int64_t slice = divide_up(divide_up(bytes, 512), p->cluster * p->warps);
    int64_t ring = slice * 512 * p->warps * p->ring;
    int64_t own = p->ring * p->warps * PARTS_MOST * 8 + p->cluster * p->warps * 32 + 1024;
    int64_t most = (shared_most + SYSTEM_BYTES) / p->blocks - SYSTEM_BYTES;
    return slice <= PARTS_MOST * p->pieces && ring + own <= most ? ring : 0;
}

const char *cup__row_ring_refuses(const cup_tensor *x, int64_t width, int64_t least_bytes,
                                  const cup__gpu_facts *facts)
{
    int64_t bytes = width * (int64_t)cup_dtype_size(x->dtype);
    if (facts->major < 9)
        return "it needs the bulk copies of Hopper";
    if (x->dtype == CUP_F64)
        return "it computes in single precision";
    if (bytes < least_bytes)
        return "its rows are short";
    if (width > INT32_MAX || bytes % 16 || (uintptr_t)x->data % 16)
        return "its rows do not begin at multiples of 16 bytes";
    cup__row_ring widest = {16, 8, 1, CLUSTER_MOST, 1, {0}};
    return ring_bytes(&widest, bytes, facts->shared_per_block)
               ? NULL
               : "a row does not fit the shared memory of 8 blocks";
}

/* The first of these that fits: few blocks a row, then room to copy rows ahead. */
static void choose_depth(cup__row_ring *p, int64_t bytes, int shared_most)
{
    for (p->cluster = 1; p->cluster <= CLUSTER_MOST; p->cluster *= 2)
        for (p->ring = p->blocks > 1 ? 1 : 2; p->ring > 0; p->ring--)
            if (ring_bytes(p, bytes, shared_most))
                return;
    p->cluster = CLUSTER_MOST;
    p->ring = 1;
}

/* Warps, a multiple of the four schedulers, and lines a part, so that the warps have nearly the
 * same number of whole parts: lines taken one by one cost more. */
static void choose_warps(cup__row_ring *p, int64_t bytes, int shared_most)
{
    cup__row_ring best = {16, 6, 1, CLUSTER_MOST, p->blocks, {0}};
    int64_t least = INT64_MAX;
    for (int warps = 20; warps >= 12; warps -= 4)
        for (int pieces = 6; pieces >= 4; pieces--) {
            cup__row_ring q = {warps, pieces, 0, 0, p->blocks, {0}};
            choose_depth(&q, bytes, shared_most);
            int64_t lines = divide_up(divide_up(bytes, 512), q.cluster * warps);
            int64_t rest = lines % pieces;
            int64_t cost = (2 * (lines - rest) + 5 * rest) * warps * q.cluster;
            if (cost >= least || !ring_bytes(&q, bytes, shared_most))
                continue;
            least = cost;
            best = q;
        }
    *p = best;
}

cup__row_ring cup__row_ring_plan(int64_t rows, int64_t bytes, int blocks, int warps, int pieces,
                                 const cup__gpu_facts *facts)
{
    cup__row_ring p = {.warps = warps, .pieces = pieces, .blocks = blocks};
    if (warps)
        choose_depth(&p, bytes, facts->shared_per_block);
    else
        choose_warps(&p, bytes, facts->shared_per_block);
    /* Rows that are fewer than multiprocessors are shared by more of these. */
    while (p.cluster < CLUSTER_MOST && rows * p.cluster * 2 <= facts->multiprocessors &&
           bytes >= 2 * p.cluster * p.warps * 512)
        p.cluster *= 2;
    /* Larger clusters leave multiprocessors over in some parts of the card. */
    int64_t clusters = facts->multiprocessors * p.blocks / p.cluster - (p.cluster > 2);
    p.grid = (cup__grid){.x = (rows < clusters ? rows : clusters) * p.cluster,
                         .threads = p.warps * 32,
                         .cluster = p.cluster,
                         .shared = (int)ring_bytes(&p, bytes, facts->shared_per_block)};
    return p;
}

void cup__row_ring_knobs(const cup__row_ring *plan, cup__knob *to)
{
    const cup__knob knobs[CUP__ROW_RING_KNOBS] = {{"WARPS", plan->warps},
                                                  {"PIECES", plan->pieces},
                                                  {"RING", plan->ring},
                                                  {"CLUSTER", plan->cluster},
                                                  {"BLOCKS", plan->blocks}};
    for (int i = 0; i < CUP__ROW_RING_KNOBS; i++)
        to[i] = knobs[i];
}
