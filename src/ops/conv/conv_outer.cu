/* Convolutions with windows of one place and up to 8 channels on one side, `few`, where the
 * channels of a place are neighbours in memory: each reads and writes everything once. Products of
 * so few channels leave tiles of tensor cores nearly empty. Those with larger windows and so few
 * channels that all taps of a place have up to 16 of them are the same, with what a place's taps
 * see as its row (GATHER).
 *
 * conv_outer        rows of `many` as sums of FEW outer products
 * conv_dots         rows of `few` as FEW sums over `many`
 * conv_outer_weight the gradient of the weight, whose parts conv_sums adds in order
 *
 * A thread has VEC channels of `many` and goes from place to place, EACH of them at a time, so that
 * as many reads are on their way. */
#include "conv_launch.cuh"
#include "product.cuh"

#ifndef FEW
#define FEW 2
#endif
#ifndef VEC /* channels of `many` that are read or written at once, */
#define VEC 8
#endif
#ifndef FEW_VEC /* and of `few` */
#define FEW_VEC 1
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif

#ifndef GATHER /* the channels of an image, and its taps: */
#define GATHER 0
#define TAPS_HIGH 1
#define TAPS_WIDE 1
#endif

#define EACH CONV_OUTER_EACH(GATHER)
#define BLOCKS CONV_OUTER_BLOCKS(FEW) /* that a multiprocessor has at a time */

#if GATHER
/* What the taps of a place see, tap by tap. */
struct few_row {
    T part[FEW];

    __device__ __forceinline__ void read(const conv_rows &c, long long place)
    {
        unsigned image = (unsigned)place;
        int column = (int)split(&image, c.wide) * c.step[1] + c.from[1];
        int row = (int)split(&image, c.high) * c.step[0] + c.from[0];
        const T *from = (const T *)c.few + image * c.image_step[0];
#pragma unroll
        for (int tap = 0; tap < TAPS_HIGH * TAPS_WIDE; tap++) {
            int i = row + tap / TAPS_WIDE * c.apart[0], j = column + tap % TAPS_WIDE * c.apart[1];
            bool inside = (unsigned)i < (unsigned)c.size[0] && (unsigned)j < (unsigned)c.size[1];
            const T *at = from + i * c.image_step[2] + j * c.image_step[3];
#pragma unroll
            for (int k = 0; k < GATHER; k++)
                part[tap * GATHER + k] = inside ? __ldg(at + k * c.image_step[1]) : T(0);
        }
    }
    __device__ __forceinline__ void take(real (&to)[FEW]) const
    {
#pragma unroll
        for (int i = 0; i < FEW; i++)
            to[i] = to_real(part[i]);
    }
};
#else
/* A row of `few` as it comes, which takes fewer registers until it is used. */
struct few_row {
    vec<T, FEW_VEC> part[FEW / FEW_VEC];

    __device__ __forceinline__ void read(const conv_rows &c, long long place)
    {
#pragma unroll
        for (int i = 0; i < FEW / FEW_VEC; i++)
            part[i] = load<FEW_VEC>((const T *)c.few + place * c.few_row + i * FEW_VEC);
    }
    __device__ __forceinline__ void take(real (&to)[FEW]) const
    {
#pragma unroll
        for (int i = 0; i < FEW; i += FEW_VEC) {
            real numbers[FEW_VEC];
            to_reals(part[i / FEW_VEC], numbers);
#pragma unroll
            for (int j = 0; j < FEW_VEC; j++)
                to[i + j] = numbers[j];
        }
    }
};

#endif

DEVICE real weight_at(const conv_rows &c, int few, long long many)
{
    long long at = few * c.weight_few;
    if (GATHER) {
        int tap = few / (GATHER + !GATHER);
        at = (few - tap * GATHER) * c.tap_step[0] + tap / TAPS_WIDE * c.tap_step[1] +
             tap % TAPS_WIDE * c.tap_step[2];
    }
    return to_real(((const T *)c.weight)[at + many * c.weight_many]);
}

DEVICE real bias_at(const conv_rows &c, long long channel)
{
    return c.bias ? to_real(((const T *)c.bias)[channel * c.bias_step]) : (real)0;
}

/* Where a thread is: its first channel of `many`, and its place among those side by side. */
struct seat {
    int first, slot, slots;

    __device__ __forceinline__ seat(const conv_rows &c)
    {
        slot = (int)threadIdx.x / c.lanes;
        slots = CONV_THREADS / c.lanes;
        first = ((int)blockIdx.y * c.lanes + (int)threadIdx.x % c.lanes) * VEC;
    }
    __device__ __forceinline__ bool is_there(const conv_rows &c) const
    {
        return slot < slots && first < c.count;
    }
};

DEVICE void write_many(const conv_rows &c, long long place, int first, real (&sum)[VEC])
{
#if RESIDUAL
    real more[VEC];
    to_reals(load<VEC>((const T *)c.residual + place * c.residual_row + first), more);
#pragma unroll
    for (int j = 0; j < VEC; j++)
        sum[j] += more[j];
#endif
#pragma unroll
    for (int j = 0; j < VEC; j++)
        sum[j] = activated(sum[j]);
    store((T *)c.many + place * c.many_row + first, from_reals<T, VEC>(sum));
}

extern "C" __global__ void __launch_bounds__(CONV_THREADS, BLOCKS)
    conv_outer(const __grid_constant__ conv_rows c)
{
    const seat at(c);
    if (!at.is_there(c))
        return;
    real w[FEW][VEC], bias[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        bias[j] = bias_at(c, at.first + j);
#pragma unroll
        for (int i = 0; i < FEW; i++)
            w[i][j] = weight_at(c, i, at.first + j);
    }
    long long step = (long long)gridDim.x * at.slots * EACH;
    long long begin = (long long)blockIdx.x * at.slots * EACH + at.slot;
#pragma unroll 1
    for (; begin < c.places; begin += step) {
        few_row from[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (begin + e * at.slots < c.places)
                from[e].read(c, begin + e * at.slots);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            real x[FEW], sum[VEC];
            from[e].take(x);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                sum[j] = x[0] * w[0][j];
#pragma unroll
                for (int i = 1; i < FEW; i++)
                    sum[j] += x[i] * w[i][j];
                sum[j] += bias[j];
            }
            if (begin + e * at.slots < c.places)
                write_many(c, begin + e * at.slots, at.first, sum);
        }
    }
}

#define QUAD (VEC < 4 ? VEC : 4) /* numbers of a weight that are read at once */

/* The weight in shared memory, so that neighbouring threads read neighbouring quads. */
DEVICE int shared_at(const conv_rows &c, int few, int many)
{
    int j = many % VEC;
    return few * c.count + j / QUAD * (c.count / VEC * QUAD) + many / VEC * QUAD + j % QUAD;
}

DEVICE void write_few(const conv_rows &c, long long place, const real (&sum)[FEW])
{
#pragma unroll
    for (int i = 0; i < FEW; i++) {
        real v = sum[i] + bias_at(c, i);
#if RESIDUAL
        v += to_real(((const T *)c.residual)[place * c.residual_row + i]);
#endif
        ((T *)c.few)[place * c.few_row + i] = from_real<T>(activated(v));
    }
}

/* A row is shared by `lanes` neighbouring threads, a power of two. */
extern "C" __global__ void __launch_bounds__(CONV_THREADS)
    conv_dots(const __grid_constant__ conv_rows c)
{
    extern __shared__ __align__(16) unsigned char shared[];
    real *weight = (real *)shared;
    for (int k = threadIdx.x; k < FEW * c.count; k += CONV_THREADS) {
        int few = k / c.count, many = k - few * c.count;
        weight[shared_at(c, few, many)] = weight_at(c, few, many);
    }
    __syncthreads();
    int lane = (int)threadIdx.x % c.lanes, slot = (int)threadIdx.x / c.lanes;
    int slots = CONV_THREADS / c.lanes, vectors = c.count / VEC;
    long long step = (long long)gridDim.x * slots * EACH;
#pragma unroll 1
    for (long long first = (long long)blockIdx.x * slots * EACH; first < c.places; first += step) {
        real sum[EACH][FEW] = {};
        for (int k = lane; k < vectors; k += c.lanes) {
            vec<T, VEC> from[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                long long place = first + slot + e * slots;
                from[e] = vec<T, VEC>();
                if (place < c.places)
                    from[e] = load<VEC>((const T *)c.many + place * c.many_row + k * VEC);
            }
            real x[EACH][VEC];
#pragma unroll
            for (int e = 0; e < EACH; e++)
                to_reals(from[e], x[e]);
#pragma unroll
            for (int i = 0; i < FEW; i++)
#pragma unroll
                for (int q = 0; q < VEC; q += QUAD) {
                    vec<real, QUAD> w =
                        load_plain<QUAD>(weight + shared_at(c, i, k * VEC + q));
#pragma unroll
                    for (int e = 0; e < EACH; e++)
#pragma unroll
                        for (int j = 0; j < QUAD; j++)
                            sum[e][i] += x[e][q + j] * w.at[j];
                }
        }
        for (int apart = c.lanes / 2; apart > 0; apart /= 2)
#pragma unroll
            for (int e = 0; e < EACH; e++)
#pragma unroll
                for (int i = 0; i < FEW; i++)
                    sum[e][i] += __shfl_xor_sync(~0u, sum[e][i], apart);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            long long place = first + slot + e * slots;
            if (lane == e % c.lanes && place < c.places)
                write_few(c, place, sum[e]);
        }
    }
}

/* Adds up what the threads of a block have of the same channels, in order. */
DEVICE void add_slots(const conv_rows &c, const seat &at, const real (&sum)[FEW][VEC])
{
    __shared__ real shared[CONV_THREADS * VEC];
    real *to = (real *)c.sums + (long long)blockIdx.x * FEW * c.count;
    int wide = c.lanes * VEC, first = (int)blockIdx.y * wide;
#pragma unroll
    for (int i = 0; i < FEW; i++) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < VEC; j++)
            if (at.slot < at.slots)
                shared[at.slot * wide + at.first - first + j] = sum[i][j];
        __syncthreads();
        for (int k = threadIdx.x; k < wide && first + k < c.count; k += CONV_THREADS) {
            real all = 0;
            for (int slot = 0; slot < at.slots; slot++)
                all += shared[slot * wide + k];
            to[i * c.weight_few + (first + k) * c.weight_many] = all;
        }
    }
}

#define WEIGHT_EACH (GATHER ? 1 + (FEW <= 12) : FEW > 4 ? 4 : 8)

/* Here weight_few and weight_many are the steps in the sums of a part, which block x has. */
extern "C" __global__ void __launch_bounds__(CONV_THREADS, CONV_OUTER_WEIGHT_BLOCKS)
    conv_outer_weight(const __grid_constant__ conv_rows c)
{
    const seat at(c);
    real sum[FEW][VEC] = {};
    long long begin = blockIdx.x * c.part, end = begin + c.part;
    end = end < c.places ? end : c.places;
#pragma unroll 1
    for (begin += at.slot; at.is_there(c) && begin < end; begin += at.slots * WEIGHT_EACH) {
        vec<T, VEC> from[WEIGHT_EACH];
        few_row row[WEIGHT_EACH];
#pragma unroll
        for (int e = 0; e < WEIGHT_EACH; e++) {
            long long place = begin + e * at.slots;
            if (place < end) {
                from[e] = load<VEC>((const T *)c.many + place * c.many_row + at.first);
                row[e].read(c, place);
            }
        }
#pragma unroll
        for (int e = 0; e < WEIGHT_EACH; e++) {
            real few[FEW], many[VEC];
            row[e].take(few);
            to_reals(from[e], many);
            if (begin + e * at.slots < end)
#pragma unroll
                for (int i = 0; i < FEW; i++)
#pragma unroll
                    for (int j = 0; j < VEC; j++)
                        sum[i][j] += few[i] * many[j];
        }
    }
    add_slots(c, at, sum);
}
