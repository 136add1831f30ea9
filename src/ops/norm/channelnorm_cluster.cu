/* Batchnorm and groupnorm in one pass over planes (sm_90 and on), or with BACK batchnorm's
 * gradients: the blocks of a cluster hold what lies behind one statistic in shared memory, cut into
 * parts, so that x (and dy) is read once. Each warp has SLOTS places for parts of its own, which it
 * fills again, with what the next statistic needs, as soon as it has written their results.
 * Grid: clusters that stay and take every gridDim / CLUSTER-th statistic. */
#include "channels.cuh"
#include "hopper.cuh"

/* Knobs: CLUSTER, SLOTS, BLOCKS (that run at once on a multiprocessor). */
#define WARPS (THREADS / 32)
#define STRIDE (32 * VEC) /* elements a warp takes at once */

#if __CUDA_ARCH__ >= 900

typedef dtype_of<PARAM>::type P;
typedef dtype_of<RESULT>::type result;
typedef vec<T, VEC> unit;
typedef two<real> pair;

#if BACK
typedef pair total;
typedef two_sums merge;
#else
typedef moments total;
typedef merge_moments merge;
#endif

/* One thread's numbers on their way to a total. */
struct sums {
#if BACK
    real mean, rstd;
    pair s;

    __device__ __forceinline__ void add(real x, real dy)
    {
        s.a += dy;
        s.b += dy * ((x - mean) * rstd);
    }
    __device__ __forceinline__ pair done() const { return s; }
#else
    moments_sum s;
    int count;

    __device__ __forceinline__ void add(real x, real) { s.add(x); }
    __device__ __forceinline__ moments done() const { return s.result((real)count); }
#endif
};

/* The parts of this warp. */
struct share {
    unsigned first, end; /* of this block; a warp takes every WARPS-th, SLOTS at most */

    __device__ __forceinline__ share(const channels_call &c)
    {
        unsigned all = (unsigned)c.before * c.each * c.parts;
        unsigned rank = CLUSTER > 1 ? cluster_rank() : 0;
        first = (unsigned)((uint64_t)all * rank / CLUSTER) + threadIdx.x / 32;
        end = (unsigned)((uint64_t)all * (rank + 1) / CLUSTER);
    }
};

/* Where this warp's parts come from and where in shared memory they go. */
struct places {
    const T *x, *dy;
    const T *memory; /* of this warp: [SLOTS][1 + BACK][part] */
    uint32_t barriers, address;

    __device__ __forceinline__ const T *slot(const channels_call &c, int m, int input) const
    {
        return memory + (m * (1 + BACK) + input) * (int)c.part;
    }

    /* By one thread of the warp. */
    __device__ __forceinline__ void order(const channels_call &c, unsigned statistic, unsigned q,
                                          int m) const
    {
        part p = part_of(c, statistic, q);
        uint32_t bytes = (uint32_t)p.count * (uint32_t)sizeof(T);
        uint32_t to = address + m * (1 + BACK) * c.part * (uint32_t)sizeof(T);
        barrier_expect(barriers + 8 * m, bytes * (1 + BACK));
        copy_bulk(to, x + p.at, bytes, barriers + 8 * m);
        if (BACK)
            copy_bulk(to + c.part * (uint32_t)sizeof(T), dy + p.at, bytes, barriers + 8 * m);
    }
};

DEVICE void sum_vector(sums &s, const unit &x, const unit &dy)
{
#if !BACK
    if (s.count == 0)
        s.s.pivot = to_real(x.at[0]);
    s.count += VEC;
#endif
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s.add(to_real(x.at[k]), BACK ? to_real(dy.at[k]) : 0);
}

template <typename Work>
DEVICE void walk_slot(const part &p, const T *x, const T *dy, int lane, Work work)
{
#pragma unroll 4
    for (int i = lane * VEC; i < p.count; i += STRIDE)
        work(i, load_plain<VEC>(x + i), BACK ? load_plain<VEC>(dy + i) : unit());
}

struct sum_work {
    sums &s;
    __device__ __forceinline__ void operator()(int, const unit &x, const unit &dy) const
    {
        sum_vector(s, x, dy);
    }
};

/* The result of one part: dy scale + (x - mean) slope + shift, or (x - mean) scale + shift. */
struct apply_work {
    T *out;
    real mean, scale, slope, shift;
    __device__ __forceinline__ void operator()(int i, const unit &x, const unit &dy) const
    {
        real v[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            real d = to_real(x.at[k]) - mean;
            v[k] = BACK ? to_real(dy.at[k]) * scale + (d * slope + shift) : d * scale + shift;
        }
        store(out + i, from_reals<T, VEC>(v));
    }
};

/* What a block sends to the others. */
union message {
    total value;
    uint32_t words[(sizeof(total) + 15) / 16][4];
    __device__ __forceinline__ message() {}
};

/* What warps and blocks tell each other, twice: words of the next statistic may come while some
 * warps still read those of this one. */
struct board {
    message of_blocks[2][CLUSTER];
    uint64_t barriers[2];
    total of_warps[2][WARPS];
};

/* The total of all threads of the cluster, in a fixed order, of the `round`-th statistic. */
DEVICE total join_all(board &shared, total mine, uint32_t round)
{
    int at = lane(), turn = round & 1;
    mine = warp_reduce(mine, merge());
    if (at == 0)
        shared.of_warps[turn][threadIdx.x / 32] = mine;
    __syncthreads();
    mine = shared.of_warps[turn][at % WARPS];
#pragma unroll
    for (int mask = WARPS / 2; mask > 0; mask /= 2)
        mine = merge()(mine, shuffle_xor(mine, mask));
    if (CLUSTER == 1)
        return mine;
    uint32_t barrier = shared_address(&shared.barriers[turn]);
    if (threadIdx.x == 0)
        barrier_expect(barrier, CLUSTER * sizeof(message));
    if (threadIdx.x < CLUSTER) {
        message m;
        m.value = mine;
        uint32_t to = shared_address(&shared.of_blocks[turn][cluster_rank()]);
#pragma unroll
        for (int i = 0; i < (int)sizeof(message) / 16; i++)
            send16(to + 16 * i, barrier, threadIdx.x, m.words[i]);
    }
    barrier_wait(barrier, round >> 1 & 1);
    mine = shared.of_blocks[turn][at % CLUSTER].value;
#pragma unroll
    for (int mask = CLUSTER / 2; mask > 0; mask /= 2)
        mine = merge()(mine, shuffle_xor(mine, mask));
    return mine;
}

#if BACK
typedef result out_a;
#else
typedef real out_a;
#endif

/* Forward, means and rstds are written, and `a` and `b` are the running ones; backward they are
 * read, and `a` and `b` are dgamma and dbeta. */
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
channel_cluster(const __grid_constant__ channels_call c, const T *x, const T *dy, const P *gamma,
                const P *beta, T *out, real *means, real *rstds, out_a *a, out_a *b)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ uint64_t barriers[WARPS * SLOTS];
    __shared__ alignas(16) unsigned char board_memory[sizeof(board)];
    board &shared = *(board *)board_memory;
    int warp = threadIdx.x / 32, at = lane();
    const T *own = (const T *)memory + (int64_t)warp * SLOTS * (1 + BACK) * c.part;
    places to = {x, dy, own, shared_address(barriers + warp * SLOTS), shared_address(own)};
    share mine(c);
    unsigned step = gridDim.x / CLUSTER, statistic = blockIdx.x / CLUSTER;
    if (at == 0) {
        for (int m = 0; m < SLOTS; m++)
            barrier_init(to.barriers + 8 * m, 1);
        barrier_init_done();
        for (int m = 0; m < SLOTS; m++)
            if (mine.first + m * WARPS < mine.end)
                to.order(c, statistic, mine.first + m * WARPS, m);
    }
    if (CLUSTER > 1 && threadIdx.x == 0) {
        barrier_init(shared_address(&shared.barriers[0]), 1);
        barrier_init(shared_address(&shared.barriers[1]), 1);
        barrier_init_done();
    }
    __syncwarp();
    if (CLUSTER > 1)
        cluster_meet(); /* all blocks are there to be written to */
    uint32_t round = 0;
#pragma unroll 1
    for (; statistic < c.tasks; statistic += step, round++) {
        sums s = {};
#if BACK
        s.mean = means[statistic];
        s.rstd = rstds[statistic];
#endif
        sum_work summing = {s};
        unsigned q = mine.first;
#pragma unroll 1
        for (int m = 0; q < mine.end; m++, q += WARPS) {
            part p = part_of(c, statistic, q);
            barrier_wait(to.barriers + 8 * m, round & 1);
            walk_slot(p, to.slot(c, m, 0), to.slot(c, m, BACK), at, summing);
        }
        total t = join_all(shared, s.done(), round);
        apply_work work;
#if BACK
        work.mean = s.mean;
        real rstd = s.rstd, scale = rstd * param(gamma, statistic, 1) / (real)c.count;
        real shift = -scale * t.a;
        work.slope = -scale * rstd * t.b;
        if (blockIdx.x % CLUSTER == 0 && threadIdx.x == 0) {
            if (a)
                a[statistic] = convert<result>(t.b);
            if (b)
                b[statistic] = convert<result>(t.a);
        }
#else
        real var = t.squares / t.n, rstd = 1 / sqrt(var + (real)c.eps), shift = 0;
        work.mean = t.mean;
        work.slope = 0;
        if (blockIdx.x % CLUSTER == 0 && threadIdx.x == 0) {
            means[statistic] = t.mean;
            rstds[statistic] = rstd;
            if (a) {
                a[statistic] += (real)c.momentum * (t.mean - a[statistic]);
                b[statistic] += (real)c.momentum * (t.squares / (t.n - 1) - b[statistic]);
            }
        }
#endif
        q = mine.first;
#pragma unroll 1
        for (int m = 0; q < mine.end; m++, q += WARPS) {
            part p = part_of(c, statistic, q);
            work.out = out + p.at;
            work.scale = rstd * param(gamma, p.channel, 1);
            work.shift = BACK ? shift : param(beta, p.channel, 0);
            walk_slot(p, to.slot(c, m, 0), to.slot(c, m, BACK), at, work);
            __syncwarp();
            if (at == 0 && statistic + step < c.tasks)
                to.order(c, statistic + step, q, m);
        }
    }
}

#endif
