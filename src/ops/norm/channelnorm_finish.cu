/* Makes the statistics of batchnorm and groupnorm, or with BACK the sums their gradients need, of
 * the partial sums of channelnorm.cu. A block makes SIDE neighbours, each by THREADS / SIDE
 * threads. And makes such partial sums of more of them, which a product has left. */
#include "channels.cuh"
#include "hopper.cuh"

/* A knob: SIDE. */

typedef dtype_of<PARAM>::type P;
typedef dtype_of<RESULT>::type result;
typedef two<real> pair;

/* Adds up what SIDE neighbours have in shared memory, THREADS / SIDE of each, in a fixed order. */
template <typename Value, typename Op> DEVICE Value join(Value *shared, Value mine, Op op)
{
    int side = threadIdx.x % SIDE;
    shared[threadIdx.x] = mine;
    for (int half = THREADS / SIDE / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x / SIDE < half)
            shared[threadIdx.x] = op(shared[threadIdx.x], shared[threadIdx.x + half * SIDE]);
    }
    __syncthreads();
    return shared[side];
}

/* Where partial sum `item` of a statistic stands: [lines, each, parts] of its instance. */
DEVICE unsigned item_at(const channels_call &c, unsigned statistic, unsigned item, unsigned &line,
                        unsigned &channel, unsigned &part)
{
    unsigned inner = c.each * c.parts;
    line = item / inner;
    channel = statistic % c.groups * c.each + item % inner / c.parts;
    part = item % c.parts;
    return ((statistic / c.groups * c.lines + line) * c.channels + channel) * c.parts + part;
}

#if BACK

/* The first blocks make the two means of each statistic, those behind them dgamma and dbeta of
 * each channel. */
extern "C" __global__ void __launch_bounds__(THREADS)
channel_finish(const __grid_constant__ channels_call c, const pair *partial, const P *gamma,
               pair *means_of, result *dgamma, result *dbeta)
{
    __shared__ pair shared[THREADS];
    unsigned statistics = c.instances * c.groups, blocks = (statistics + SIDE - 1) / SIDE;
    bool second = blockIdx.x >= blocks;
    unsigned at = (second ? blockIdx.x - blocks : blockIdx.x) * SIDE + threadIdx.x % SIDE;
    unsigned line, channel, part, items = second ? c.instances * c.lines * c.parts
                                                 : c.lines * c.each * c.parts;
    pair sum = {0, 0};
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (at < (second ? c.channels : statistics))
#pragma unroll 4
        for (unsigned item = threadIdx.x / SIDE; item < items; item += THREADS / SIDE) {
            real weight = 1;
            unsigned from;
            if (second) {
                from = (item / c.parts * c.channels + at) * c.parts + item % c.parts;
            } else {
                from = item_at(c, at, item, line, channel, part);
                weight = param(gamma, channel, 1);
            }
            sum.a += weight * partial[from].a;
            sum.b += weight * partial[from].b;
        }
    sum = join(shared, sum, two_sums());
    if (threadIdx.x >= SIDE || at >= (second ? c.channels : statistics))
        return;
    if (!second) {
        means_of[at] = {sum.a / (real)c.count, sum.b / (real)c.count};
        return;
    }
    if (dgamma)
        dgamma[at] = convert<result>(sum.b);
    if (dbeta)
        dbeta[at] = convert<result>(sum.a);
}

#else

#define WIDTH 64 /* columns of a block of the kernel below */

/* Lines of moments of `rows` rows of columns become fewer, of c.line rows. Grid: x counts columns,
 * y the lines that are made. */
extern "C" __global__ void __launch_bounds__(THREADS)
channel_merge(const __grid_constant__ channels_call c, const pair *from, unsigned lines,
              unsigned rows, pair *partial)
{
    __shared__ moments shared[THREADS / 32][WIDTH];
    unsigned each = c.line / rows, first = blockIdx.y * each, at = threadIdx.x % 32;
    unsigned end = min(first + each, lines), warp = threadIdx.x / 32, column = blockIdx.x * WIDTH;
    moments m[2] = {};
    let_next_kernel_start();
    wait_for_previous_kernel();
#pragma unroll 4
    for (unsigned line = first + warp; line < end; line += THREADS / 32)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (column + at + 32 * i < c.channels) {
                pair p = from[(int64_t)line * c.channels + column + at + 32 * i];
                m[i] = merge_moments()(m[i], moments{(real)rows, p.a, p.b});
            }
    shared[warp][at] = m[0];
    shared[warp][at + 32] = m[1];
    __syncthreads();
    column += threadIdx.x;
    if (threadIdx.x >= WIDTH || column >= c.channels)
        return;
    moments all = shared[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++)
        all = merge_moments()(all, shared[i][threadIdx.x]);
    partial[blockIdx.y * c.channels + column] = {all.mean, all.squares};
}

extern "C" __global__ void __launch_bounds__(THREADS)
channel_finish(const __grid_constant__ channels_call c, const pair *partial, real *mean, real *rstd,
               real *running_mean, real *running_var)
{
    __shared__ moments shared[THREADS];
    unsigned at = blockIdx.x * SIDE + threadIdx.x % SIDE, items = c.lines * c.each * c.parts;
    bool here = at < c.instances * c.groups;
    moments m = {0, 0, 0};
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (here && !c.constant)
#pragma unroll 4
        for (unsigned item = threadIdx.x / SIDE; item < items; item += THREADS / SIDE) {
            unsigned line, channel, part, from = item_at(c, at, item, line, channel, part);
            moments one = {numbers_of(c, line, part), partial[from].a, partial[from].b};
            m = merge_moments()(m, one);
        }
    m = join(shared, m, merge_moments());
    if (threadIdx.x >= SIDE || !here)
        return;
    real var = m.n > 0 ? m.squares / m.n : 0;
    if (c.constant) {
        m.mean = running_mean[at];
        var = running_var[at];
    } else if (running_mean && m.n > 1) {
        real by = (real)c.momentum;
        running_mean[at] += by * (m.mean - running_mean[at]);
        running_var[at] += by * (m.squares / (m.n - 1) - running_var[at]);
    }
    mean[at] = m.mean;
    rstd[at] = 1 / sqrt(var + (real)c.eps);
}

#endif
