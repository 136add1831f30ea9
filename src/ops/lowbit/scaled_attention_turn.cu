/* Values of attention in codes of 8 bits, turned for tensor cores, which take them along keys
 * alone: a line for each feature.
 *
 * The keys of each 16 change places by TURNED_KEY, as probabilities do; those behind the last are
 * 0. Grid: x counts pieces of TURN_KEYS keys of all heads. A thread loads 4 features, of up to 128,
 * of 16 keys. Bytes: the values twice. */
#include "dependent.cuh"
#include "dtype.cuh"
#include "scaled_attention_call.cuh"

#define FEATURES 128
#define GROUPS (TURN_KEYS / 16)

/* Where 16 keys of a feature lie in shared memory, so that neither side meets itself in a bank. */
DEVICE int chunk_of(int feature, int group)
{
    return feature * GROUPS + (group ^ (feature / 4 % GROUPS));
}

/* Byte `which` of four words as one. */
DEVICE uint32_t bytes_of(const uint32_t (&w)[4], int which)
{
    uint32_t low = __byte_perm(w[0], w[1], which | (4 + which) << 4);
    uint32_t high = __byte_perm(w[2], w[3], which | (4 + which) << 4);
    return __byte_perm(low, high, 0x5410);
}

/* 4 features of 16 keys, which begin with key `key`. */
DEVICE void take(const turn_call &c, const uint8_t *head, int feature, int key, uint32_t (&w)[4][4])
{
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int at = key + TURNED_KEY(4 * t + e);
            w[t][e] = at < c.keys && feature < c.size
                          ? *(const uint32_t *)(head + at * c.position + feature)
                          : 0;
        }
}

extern "C" __global__ void __launch_bounds__(TURN_THREADS)
    scaled_attention_turn(const __grid_constant__ turn_call c)
{
    __shared__ uint4 tile[FEATURES * GROUPS];
    int pieces = (c.keys + TURN_KEYS - 1) / TURN_KEYS;
    int first = blockIdx.x % pieces * TURN_KEYS, row = blockIdx.x / pieces;
    const uint8_t *head = (const uint8_t *)c.v + row / c.kv_heads * c.batch +
                          row % c.kv_heads * c.head;
    int mine = threadIdx.x % 32 * 4, group = threadIdx.x / 32;
    uint32_t w[4][4];
    let_next_kernel_start();
    take(c, head, mine, first + 16 * group, w);
#pragma unroll
    for (int f = 0; f < 4; f++)
        tile[chunk_of(mine + f, group)] = make_uint4(bytes_of(w[0], f), bytes_of(w[1], f),
                                                     bytes_of(w[2], f), bytes_of(w[3], f));
    __syncthreads();
    uint8_t *to = (uint8_t *)c.turned + (long long)row * c.size * c.room + first;
    for (int i = threadIdx.x; i < FEATURES * GROUPS; i += TURN_THREADS) {
        int feature = i / GROUPS, part = i % GROUPS;
        if (feature < c.size && first + 16 * part < c.room)
            *(uint4 *)(to + (long long)feature * c.room + 16 * part) =
                tile[chunk_of(feature, part)];
    }
}
