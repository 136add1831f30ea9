/* What the blocks that share a row of logits tell each other; draw_token.cu includes it.
 *
 * All of it is sent: a release and an acquire of a whole cluster wait for memory, some 1,000 cycles
 * each, where what is sent comes with a barrier of its own. A barrier is armed for its next phase
 * as soon as one is over, and before anything is sent that lets others go on to that next phase;
 * so phases never mix. */
#ifndef CUP_DRAW_TOKEN_MAIL_CUH
#define CUP_DRAW_TOKEN_MAIL_CUH

#include "hopper.cuh"

#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
#define SENDS 1
#else
#define SENDS 0
#endif
#define SHARE (BINS / CLUSTER) /* of the bins, that a block adds up */

struct alignas(16) record {
    uint32_t at[4];
};

/* What is awaited, twice where nothing else comes between one and the next. */
enum box { GATHERED, TOLD = GATHERED + 2, SUMS = TOLD + 2, MEMBERS, BOXES };

static __shared__ record gathered[2][CLUSTER], told[2];
static __shared__ record bin_sums[CLUSTER][SHARE]; /* of all blocks */
static __shared__ record members[FEW];             /* of a bin: value, token, weight */
#if SENDS
static __shared__ uint64_t come[BOXES];
#endif

/* The parity of each box's next phase, and which of two is next; a bit each. */
struct mail {
    int rank; /* of the block */
    unsigned phases;
};

DEVICE void arm(int box, uint32_t bytes)
{
#if SENDS
    if (threadIdx.x == 0)
        barrier_expect(shared_address(&come[box]), bytes);
#endif
}

DEVICE void await(mail &m, int box)
{
#if SENDS
    barrier_wait(shared_address(&come[box]), m.phases >> box & 1);
    m.phases ^= 1u << box;
#else
    __syncthreads();
#endif
}

/* Which of the two boxes from `box` on is used now; the other one is next. */
DEVICE int turn_of(mail &m, int box)
{
    int bit = BOXES + box / 2;
    m.phases ^= 1u << bit;
    return m.phases >> bit & 1;
}

DEVICE void send(const record &r, record *to, int box, int block)
{
#if SENDS
    send16(shared_address(to), shared_address(&come[box]), block, r.at);
#else
    *to = r;
#endif
}

DEVICE void open_boxes()
{
#if SENDS
    if (threadIdx.x == 0) {
        for (int i = 0; i < BOXES; i++)
            barrier_init(shared_address(&come[i]), 1);
        barrier_init_done();
    }
    for (int i = 0; i < 2; i++) {
        arm(GATHERED + i, sizeof gathered[0]);
        arm(TOLD + i, sizeof told[0]);
    }
    arm(SUMS, sizeof bin_sums);
    cluster_gather();
#endif
}

/* The records of all blocks; `own` is the same in as many first threads. */
DEVICE const record *gather(mail &m, const record &own)
{
    int turn = turn_of(m, GATHERED);
    __syncthreads();
    if ((int)threadIdx.x < CLUSTER)
        send(own, &gathered[turn][m.rank], GATHERED + turn, (int)threadIdx.x);
    await(m, GATHERED + turn);
    arm(GATHERED + turn, sizeof gathered[0]);
    return gathered[turn];
}

/* What block `from` has for this one: its first threads one record for each block. */
DEVICE record hear(mail &m, int from, const record &r)
{
    int turn = turn_of(m, TOLD);
    __syncthreads();
    if (m.rank == from && (int)threadIdx.x < CLUSTER)
        send(r, &told[turn], TOLD + turn, (int)threadIdx.x);
    await(m, TOLD + turn);
    arm(TOLD + turn, sizeof told[0]);
    return told[turn];
}

/* Each thread's bin goes to the block that adds it up. */
DEVICE void gather_bins(mail &m, const record &own)
{
    int bin = (int)threadIdx.x;
    send(own, &bin_sums[m.rank][bin % SHARE], SUMS, bin / SHARE);
    await(m, SUMS);
    arm(SUMS, sizeof bin_sums);
}

DEVICE uint64_t whole(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

#endif
