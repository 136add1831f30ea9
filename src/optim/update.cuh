/* One optimizer step of many parameters in one launch. A rule, in adamw.c for example, says what
 * happens to one element; the walk is here.
 *
 * Grid: a block for each chunk of CHUNK elements of some parameter, which it finds by halving in
 * the table, which lies in the kernel's arguments. 256 threads, one access of 16 bytes each: small
 * blocks keep the memory busier than a loop does. AdamW moves 28 bytes a parameter in f32 (p, g,
 * m, v read, p, m, v written) and 28 in bf16 with a master copy (p not read). */
#ifndef CUP_OPTIM_UPDATE_CUH
#define CUP_OPTIM_UPDATE_CUH

#include "dtype.cuh"
#include "philox.cuh"

#ifndef MOST
#define MOST 64 /* parameters the table has room for */
#endif
#ifndef MASTER
#define MASTER 0 /* 1: the step changes a master copy, and the parameter becomes its rounding */
#endif
#ifndef STATES
#define STATES 2 /* 0 to 2 states for each parameter */
#endif
#ifndef VEC
#define VEC 4 /* elements of one access; 1 where something is not aligned to 16 bytes */
#endif
#ifndef STOCHASTIC
#define STOCHASTIC 0 /* 1: bf16 values are rounded at random, so that the mean is right */
#endif
#ifndef UNSCALED
#define UNSCALED 0 /* 1: the gradient is taken as it is */
#endif
#define THREADS 256
#define CHUNK (THREADS * 16 / (int)sizeof(T))

/* Masters and states are in what is computed in. */
struct update_entry {
    T *value;
    const T *gradient;
    real *master, *first, *second;
    int64_t count;
    uint32_t chunk, row; /* the number of its first chunk; its row in the settings */
};

struct update_table {
    update_entry entry[MOST];
};

struct update_attributes {
    double a[3];
    const uint64_t *random; /* for STOCHASTIC */
    uint32_t sequence, unused;
};

struct update_numbers {
    real corrected, root, gradient, rate, decay;
    real a[3], rest[3]; /* the attributes, and 1 - them */
    uint64_t number;    /* of the chunk's first element, with its row, for random numbers */
    const update_attributes *attributes;
};

/* A piece of VEC elements of one parameter on its way through a thread. */
struct update_piece {
    vec<T, VEC> value, gradient;
    vec<real, VEC> master, first, second;
};

/* What a chunk has of the entry that it belongs to. */
DEVICE update_entry update_find(const update_table &table, int count, uint32_t chunk)
{
    int low = 0, high = count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (table.entry[middle].chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    update_entry e = table.entry[low];
    int64_t from = (int64_t)(chunk - e.chunk) * CHUNK;
    e.count = e.count - from < CHUNK ? e.count - from : CHUNK;
    e.value += from;
    e.gradient += from;
    e.master += MASTER ? from : 0;
    e.first += STATES > 0 ? from : 0;
    e.second += STATES > 1 ? from : 0;
    return e;
}

DEVICE void update_load(const update_entry &e, int i, update_piece &piece)
{
    piece.gradient = load<VEC>(e.gradient + i);
    if (MASTER)
        piece.master = load_plain<VEC>(e.master + i);
    else
        piece.value = load_plain<VEC>(e.value + i);
    if (STATES > 0)
        piece.first = load_plain<VEC>(e.first + i);
    if (STATES > 1)
        piece.second = load_plain<VEC>(e.second + i);
}

#if STOCHASTIC

/* Of the two bf16 next to x the one that a random number of 16 bits picks; nothing finite becomes
 * infinite. */
DEVICE bf16 update_pick(float x, uint32_t random)
{
    uint32_t bits = __float_as_uint(x), up = bits + (random & 0xffff);
    if ((bits & 0x7f800000) == 0x7f800000)
        return from_real<bf16>(x);
    bf16 y = {(uint16_t)(((up & 0x7f800000) == 0x7f800000 ? bits : up) >> 16)};
    return y;
}

/* Element i of a record takes half i % 2 of word i / 2 % 4 of block i / 8. */
template <int Count>
DEVICE vec<T, Count> update_round(const real (&value)[Count], int i, const update_numbers &n)
{
    vec<T, Count> y;
    philox_words words;
#pragma unroll
    for (int k = 0; k < Count; k++) {
        uint64_t at = n.number + i + k;
        if (k == 0 || Count < 8)
            words = philox_block(n.attributes->random, n.attributes->sequence,
                                 at >> 3);
        int half = Count < 8 ? (int)(at & 7) : k;
        y.at[k] = update_pick(value[k], words.at[half / 2] >> (half % 2 * 16));
    }
    return y;
}

#else

template <int Count>
DEVICE vec<T, Count> update_round(const real (&value)[Count], int, const update_numbers &)
{
    return from_reals<T, Count>(value);
}

#endif

template <typename Rule>
DEVICE void update_store(const update_entry &e, int i, update_piece &piece,
                         const update_numbers &n)
{
    real value[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        value[k] = MASTER ? piece.master.at[k] : to_real(piece.value.at[k]);
        real g = to_real(piece.gradient.at[k]) * n.gradient;
        value[k] = Rule::step(value[k], g, piece.first.at[k], piece.second.at[k], n);
        if (MASTER)
            piece.master.at[k] = value[k];
    }
    store(e.value + i, update_round<VEC>(value, i, n));
    if (MASTER)
        store(e.master + i, piece.master);
    if (STATES > 0)
        store(e.first + i, piece.first);
    if (STATES > 1)
        store(e.second + i, piece.second);
}

/* What is left behind the last whole vector of a parameter. */
template <typename Rule>
DEVICE void update_rest(const update_entry &e, int i, const update_numbers &n)
{
    real none = 0;
    real &first = STATES > 0 ? e.first[i] : none, &second = STATES > 1 ? e.second[i] : none;
    real value[1] = {MASTER ? e.master[i] : to_real(e.value[i])};
    value[0] = Rule::step(value[0], to_real(e.gradient[i]) * n.gradient, first, second, n);
    store(e.value + i, update_round<1>(value, i, n));
    if (MASTER)
        e.master[i] = value[0];
}

DEVICE update_numbers update_read(const update_entry &e, const float *factors,
                                  const float *settings, const update_attributes &attributes)
{
    const float *own = settings + e.row * 2;
    update_numbers n;
    n.number = (uint64_t)e.row << 43 | (uint64_t)(blockIdx.x - e.chunk) * CHUNK;
    n.attributes = &attributes;
    n.corrected = (real)__ldg(factors) * (real)__ldg(own);
    n.root = __ldg(factors + 1);
    n.gradient = UNSCALED ? 1 : __ldg(factors + 2);
    n.rate = (real)__ldg(factors + 3) * (real)__ldg(own);
    n.decay = __ldg(own + 1);
#pragma unroll
    for (int i = 0; i < 3; i++) {
        n.a[i] = (real)attributes.a[i];
        n.rest[i] = (real)(1 - attributes.a[i]);
    }
    return n;
}

/* Factors as step_factors gives them; settings have a row for each parameter. */
template <typename Rule>
DEVICE void update_chunk(const update_table &table, int count, const float *factors,
                         const float *settings, const update_attributes &attributes)
{
    update_entry e = update_find(table, count, blockIdx.x);
    int size = (int)e.count, whole = size / VEC * VEC, i = threadIdx.x * VEC;
    update_piece piece;
    /* Before the factors are known, which may say that nothing is to be done. */
    if (i < whole)
        update_load(e, i, piece);
    update_numbers n = update_read(e, factors, settings, attributes);
    if (__ldg(factors + 4) == 0)
        return;
    while (i < whole) {
        update_store<Rule>(e, i, piece, n);
        i += THREADS * VEC;
        if (i < whole)
            update_load(e, i, piece);
    }
    if (whole + (int)threadIdx.x < size)
        update_rest<Rule>(e, whole + threadIdx.x, n);
}

/* What stands before the body of a rule and behind it: the rule, and its kernel. */
struct update_rule {
    static __device__ __forceinline__ real step(real value, real g, real &first, real &second,
                                                const update_numbers &n);
};

#define RULE                                                                                       \
    __device__ __forceinline__ real update_rule::step(real value, real g, real &first,             \
                                                      real &second, const update_numbers &n)

#define UPDATE(name)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        name##_step(const __grid_constant__ update_table table, int count, const float *factors,   \
                    const float *settings, update_attributes attributes)                           \
    {                                                                                              \
        update_chunk<update_rule>(table, count, factors, settings, attributes);                    \
    }

#endif
