/* Folds elements of x along some dimensions: sums, means, extremes, their places, norms, variances,
 * logs of sums of exponentials. `reduce_rows`: GROUP threads for each piece of each result, going
 * along the last folded dimension in vectors of VEC, or with GATHER through any strides.
 * `reduce_columns`: a block for a tile of LANES * VEC results side by side and a piece of what is
 * folded, SLOTS rows at a time. Where results are cut into pieces, the block that comes last joins
 * these, always in the same order. x is read once. */
#include "fold.cuh"

#ifndef Y
#define Y CUP_T
#endif
#ifndef GATHER
#define GATHER 0
#endif
#ifndef PLAIN
#define PLAIN 0 /* at most one dimension is folded */
#endif
#ifndef SPLIT
#define SPLIT 0 /* results are cut into pieces */
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef HAS_ADD_ALL
#define HAS_ADD_ALL 0
#endif
#ifndef HAS_CENTRE
#define HAS_CENTRE 0
#endif
#ifndef BLOCKS
/* How many should fit a multiprocessor together. Doubles need twice the registers, and code for
 * sm_100a and sm_120 takes some more than that for the cards before, most for variances. */
#define BLOCKS                                                                                     \
    (CUP_T == CUP_F64 || (__CUDA_ARCH__ >= 1000 && HAS_CENTRE) ? 2                                 \
     : __CUDA_ARCH__ >= 1000                                   ? 3                                 \
                                                               : 4)
#endif
#define SLOTS (REDUCE_THREADS / LANES)

/* After turn 1, 2, 4, ...: what has been seen by then says where the next elements are. */
template <int Count> DEVICE void centre_all(state (&s)[Count], int &turn)
{
#if HAS_CENTRE
    turn++;
    if ((turn & (turn - 1)) == 0)
#pragma unroll
        for (int k = 0; k < Count; k++)
            s[k].centre();
#endif
}

struct join_op {
    __device__ __forceinline__ state operator()(state a, const state &b) const
    {
        a.join(b);
        return a;
    }
};

typedef dtype_of<Y>::type result;

DEVICE int64_t offset_in(int ndim, const long long *size, const long long *stride, int64_t index)
{
    int64_t offset = 0;
    for (int i = ndim - 1; i > 0; i--) {
        int64_t rest = index / size[i];
        offset += (index - rest * size[i]) * stride[i];
        index = rest;
    }
    return ndim ? offset + index * stride[0] : 0;
}

DEVICE int64_t folded_offset(const reduce_call &c, int64_t index)
{
    return offset_in(c.folded, c.folded_size, c.folded_stride, index);
}

DEVICE void finish(const reduce_call &c, int64_t output, const state &s)
{
    ((result *)c.y)[output] = convert<result>(s.result(c.length, c.argument));
}

#if SPLIT
/* How many pieces of a result or tile are done. They are 0 between launches, of which no two run at
 * a time: a context loads modules of its own and has one stream. */
__device__ unsigned arrived[REDUCE_COUNTERS];

/* True in the block that is the last of `blocks` to come here with this counter. The fence of one
 * thread publishes what all have written before the barrier. */
DEVICE bool is_last(int64_t counter, int64_t blocks)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(&arrived[counter], 1u) == (unsigned)blocks - 1;
        if (last)
            arrived[counter] = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* States that other blocks have written. */
DEVICE state load_state(const state *from)
{
    shuffle_words<state> u;
#pragma unroll
    for (int i = 0; i < (int)sizeof(state) / 4; i++)
        u.words[i] = __ldcg((const uint32_t *)from + i);
    return u.value;
}
#endif

#ifndef COLUMNS

/* Elements side by side: in one go where a state can take several. */
DEVICE void add_vector(state &s, const vec<T, VEC> &v, int64_t index)
{
#if HAS_ADD_ALL
    wide x[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        x[k] = (wide)to_real(v.at[k]);
    s.add_all(x);
#else
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s.add((wide)to_real(v.at[k]), index + k);
#endif
}

/* `count` elements side by side, the first of which has number `index`. */
DEVICE void fold_run(state (&s)[UNROLL], const T *x, int64_t count, int64_t index)
{
    const int lane = (int)threadIdx.x % GROUP;
    int64_t vectors = count / VEC, i = lane;
    int turn = 0;
    for (; i + (UNROLL - 1) * GROUP < vectors; i += GROUP * UNROLL) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = load<VEC>(x + (i + u * GROUP) * VEC);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            add_vector(s[u], v[u], index + (i + u * GROUP) * VEC);
        centre_all(s, turn);
    }
    if (i < vectors) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL - 1; u++)
            if (i + u * GROUP < vectors)
                v[u] = load<VEC>(x + (i + u * GROUP) * VEC);
#pragma unroll
        for (int u = 0; u < UNROLL - 1; u++)
            if (i + u * GROUP < vectors)
                add_vector(s[u], v[u], index + (i + u * GROUP) * VEC);
    }
    for (int64_t i = vectors * VEC + lane; i < count; i += GROUP)
        s[0].add((wide)to_real(x[i]), index + i);
}

DEVICE void fold_gathered(state (&s)[UNROLL], const reduce_call &c, const T *x, int64_t begin,
                          int64_t end)
{
    int turn = 0;
    for (int64_t i = begin + (int)threadIdx.x % GROUP; i < end; i += GROUP * UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * GROUP < end)
                s[u].add((wide)to_real(x[folded_offset(c, i + u * GROUP)]), i + u * GROUP);
        centre_all(s, turn);
    }
}

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS, BLOCKS)
reduce_rows(const __grid_constant__ reduce_call c)
{
    int64_t unit = (int64_t)blockIdx.x * (REDUCE_THREADS / GROUP) + threadIdx.x / GROUP;
    int64_t output = SPLIT ? unit / c.pieces : unit, piece = SPLIT ? unit - output * c.pieces : 0;
    state s[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        s[u].start();
    if (output < c.outputs) {
        const T *x = (const T *)c.x + offset_in(c.kept, c.kept_size, c.kept_stride, output);
        int64_t begin = piece * c.piece;
        int64_t end = SPLIT && begin + c.piece < c.length ? begin + c.piece : c.length;
        if (GATHER) {
            fold_gathered(s, c, x, begin, end);
        } else if (PLAIN) {
            fold_run(s, x + begin, end - begin, begin);
        } else {
            int64_t run = c.folded_size[c.folded - 1];
            for (int64_t i = begin, count; i < end; i += count) {
                count = run - i % run < end - i ? run - i % run : end - i;
                fold_run(s, x + folded_offset(c, i), count, i);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        s[u].settle();
#pragma unroll
    for (int u = 1; u < UNROLL; u++)
        s[0].join(s[u]);
    state all = group_reduce<0>(s[0], join_op());
    bool first = threadIdx.x % GROUP == 0 && output < c.outputs;
#if SPLIT
    state *partial = (state *)c.partial + output * c.pieces;
    if (first)
        partial[piece] = all;
    if (!is_last(output, c.pieces))
        return;
    all.start();
    for (int64_t i = threadIdx.x; i < c.pieces; i += GROUP)
        all.join(load_state(partial + i));
    all = group_reduce<1>(all, join_op());
#endif
    if (first)
        finish(c, output, all);
}

#else

/* Joins the slots of the block: slot 0 has the states of all. */
DEVICE void join_slots(state (&s)[VEC])
{
    __shared__ alignas(16) unsigned char memory[REDUCE_THREADS * VEC * sizeof(state)];
    state *shared = (state *)memory;
    int slot = threadIdx.x / LANES;
#pragma unroll
    for (int half = SLOTS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (slot >= half && slot < 2 * half)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                shared[((int)threadIdx.x - half * LANES) * VEC + k] = s[k];
        __syncthreads();
        if (slot < half)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                s[k].join(shared[(int)threadIdx.x * VEC + k]);
    }
}

/* The number in the result of the first column that belongs to an outer index: that index with a
 * zero put in where the dimension across stands. */
DEVICE int64_t output_of(const reduce_call &c, int64_t outer)
{
    int64_t rest = outer / c.across_step;
    return rest * c.across_step * c.across_size + (outer - rest * c.across_step);
}

DEVICE void add_each(state (&s)[VEC], const vec<T, VEC> &v, int64_t index)
{
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s[k].add((wide)to_real(v.at[k]), index);
}

#if PLAIN

DEVICE void fold_rows(state (&s)[VEC], const reduce_call &c, const T *x, int64_t begin,
                      int64_t end)
{
    int64_t stride = c.folded ? c.folded_stride[0] : 0, i = begin + threadIdx.x / LANES;
    int turn = 0;
    x += i * stride;
    stride *= SLOTS;
    for (; i + (UNROLL - 1) * SLOTS < end; i += UNROLL * SLOTS, x += UNROLL * stride) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = load<VEC>(x + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            add_each(s, v[u], i + u * SLOTS);
        centre_all(s, turn);
    }
    for (; i < end; i += SLOTS, x += stride)
        add_each(s, load<VEC>(x), i);
}

#else

DEVICE void fold_rows(state (&s)[VEC], const reduce_call &c, const T *x, int64_t begin,
                      int64_t end)
{
    int turn = 0;
    for (int64_t i = begin + threadIdx.x / LANES; i < end; i += SLOTS * UNROLL) {
        vec<T, VEC> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int64_t row = i + u * SLOTS;
            if (row < end)
                v[u] = load<VEC>(x + folded_offset(c, row));
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * SLOTS < end)
                add_each(s, v[u], i + u * SLOTS);
        centre_all(s, turn);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(REDUCE_THREADS, BLOCKS)
reduce_columns(const __grid_constant__ reduce_call c)
{
    int64_t part = blockIdx.x / c.tiles, tile = blockIdx.x - part * c.tiles;
    int64_t outer = SPLIT ? part / c.pieces : part, piece = SPLIT ? part - outer * c.pieces : 0;
    int64_t column = (tile * LANES + threadIdx.x % LANES) * VEC;
    int64_t output = output_of(c, outer) + column * c.across_step;
    bool inside = column < c.across_size;
    int64_t begin = piece * c.piece;
    int64_t end = SPLIT && begin + c.piece < c.length ? begin + c.piece : c.length;
    state s[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s[k].start();
    if (inside)
        fold_rows(s, c,
                  (const T *)c.x + offset_in(c.kept, c.kept_size, c.kept_stride, output), begin,
                  end);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s[k].settle();
    join_slots(s);
    bool first = threadIdx.x < LANES && inside;
#if SPLIT
    state *partial = (state *)c.partial + output;
    if (first)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            partial[piece * c.outputs + k * c.across_step] = s[k];
    if (!is_last(outer * c.tiles + tile, c.pieces))
        return;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s[k].start();
    if (inside)
#pragma unroll 4
        for (int64_t i = threadIdx.x / LANES; i < c.pieces; i += SLOTS)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                s[k].join(load_state(partial + i * c.outputs + k * c.across_step));
    join_slots(s);
#endif
    if (first)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            finish(c, output + k * c.across_step, s[k]);
}

#endif
