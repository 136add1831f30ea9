/* What a block of transformer_read.cu is and has, how weights come to it, and how it multiplies by
 * them. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH

#include "pipe.cuh"
#include "reduce.cuh"
#include "transformer_read_call.cuh"
#include "vec.cuh"

/* Knobs: CUP_ID, WIDTH, HEADS (a head of keys), KV_HEADS, SIZE (of a head), HIDDEN, GATED, RMS,
 * TURNED (by rotary positions), CLUSTER, STAGES, STAGE_BYTES, CHUNKS (of 256 columns of the MLP
 * that a cluster has), BESIDE (shared memory that is not the ring's and of known size). */
#define WARPS LAYER_WARPS
#define WORKERS (32 * WARPS)
#define TAKEN (HEADS * SIZE)            /* columns that a head of keys gives */
#define LINES ((HEADS + 2) * SIZE)      /* of qkv for a head of keys */
#define OWN_LINES (LINES / CLUSTER)
#define OWN (WIDTH / CLUSTER)           /* elements of x */
#define PART (SIZE + 2)                 /* sums of a head, their base and weight */
#define UP_LINES (1 + GATED)            /* for a column of the MLP */

#if __CUDA_ARCH__ >= 900

typedef dtype_of<CUP_ID>::type id_type;

constexpr int power_from(int least)
{
    int power = 1;
    while (power < least)
        power *= 2;
    return power;
}

constexpr int lanes_of(int columns)
{
    return columns >= 256 ? 32 : power_from((columns + 7) / 8);
}

/* What comes from other blocks of the cluster. */
enum inbox { QKV, PARTS, SUM, COLUMNS, INBOXES };

struct shared_memory {
    alignas(16) float x[WIDTH], sum[WIDTH], qkv[LINES], parts[CLUSTER][HEADS * PART];
    alignas(16) float attended[TAKEN];
    float joined[WARPS][HEADS * PART], out_bias[OWN], down_bias[OWN], qkv_bias[OWN_LINES];
    alignas(16) T norm[4][WIDTH]; /* weights and biases */
    alignas(8) uint64_t full[2 * STAGES], come[INBOXES];
    int last;
};

static_assert(sizeof(shared_memory) <= BESIDE, "the host makes room for it");

struct place {
    const layer_call &c;
    shared_memory &m;
    float *columns;   /* of the MLP, of this cluster */
    float *up_bias;   /* of those that this block computes */
    uint32_t stages;
    int rank, cluster, clusters;
    int first, count; /* columns of the MLP of this cluster */
    int own, owned;   /* of these, those that this block computes */
};

DEVICE int share_of(int all, int part, int parts)
{
    return (int)((long long)all * part / parts);
}

/* To the same place of a block of the cluster, and tells its inbox. */
DEVICE void send(const void *to, const uint64_t *come, int block, float value)
{
    asm volatile("{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 told, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, "
                 "[told];\n}\n" ::"r"(shared_address(to)),
                 "r"(shared_address(come)), "r"(block), "r"(__float_as_uint(value))
                 : "memory");
}

DEVICE void expect(place &p, inbox which, int floats)
{
    if (threadIdx.x == 0)
        barrier_expect(shared_address(&p.m.come[which]), 4 * floats);
}

DEVICE void wait_inbox(place &p, inbox which, int round)
{
    barrier_wait(shared_address(&p.m.come[which]), round & 1);
}

DEVICE void meet_workers()
{
    meet(1, WORKERS);
}

/* By the warp that brings: `lines` lines of `bytes`, line i from source(i). */
template <typename Source>
DEVICE void bring(const place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int lines,
                  int bytes, Source source)
{
    int most = STAGE_BYTES / bytes / UP_LINES * UP_LINES;
    for (int i = 0; i < lines; i += most, at.next()) {
        int count = min(most, lines - i);
        if (lane() == 0)
            pipe.claim(at, count * bytes);
        __syncwarp();
        for (int j = lane(); j < count; j += 32)
            copy_bulk(p.stages + at.stage * STAGE_BYTES + j * bytes, source(i + j), bytes,
                      pipe.full(at.stage));
    }
}

DEVICE float dot8(uint4 w, const float (&x)[8])
{
    union {
        uint4 words;
        vec<T, 8> elements;
    } u;
    float v[8], sum = 0;
    u.words = w;
    to_reals(u.elements, v);
#pragma unroll
    for (int e = 0; e < 8; e++)
        sum += v[e] * x[e];
    return sum;
}

/* What a lane multiplies by: of `columns` numbers, those of its chunks of 8; from 16 aligned
 * bytes on. */
template <int Lanes, int Chunks>
DEVICE void load_chunks(const float *from, int columns, float (&x)[Chunks][8])
{
#pragma unroll
    for (int k = 0; k < Chunks; k++) {
        int column = 8 * (lane() % Lanes + k * Lanes);
        vec<float, 8> v = {};
        if (column < columns)
            v = load_plain<8>(from + column);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[k][e] = v.at[e];
    }
}

/* Products of the next `lines` lines of the ring, of `columns` columns. A line is read by Lanes
 * lanes; Together lines go to put(line / Together, sums), in all lanes that read them. */
template <int Lanes, int Chunks, int Together, typename Put>
DEVICE void multiply(const place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int lines,
                     int columns, const float (&x)[Chunks][8], Put put)
{
    const int step = 32 / Lanes; /* items of a warp at a time */
    int bytes = 2 * columns, most = STAGE_BYTES / bytes / UP_LINES * UP_LINES;
    int warp = threadIdx.x / 32;
    for (int i = 0; i < lines; i += most, at.next()) {
        int items = min(most, lines - i) / Together;
        pipe.wait_full(at);
        int begin = (warp - i / Together / step & (WARPS - 1)) * step;
#pragma unroll 4
        for (int base = begin; base < items; base += WARPS * step) {
            int item = base + lane() / Lanes;
            float sums[Together];
            uint32_t from = p.stages + at.stage * STAGE_BYTES + item * Together * bytes;
#pragma unroll
            for (int t = 0; t < Together; t++) {
                sums[t] = 0;
#pragma unroll
                for (int k = 0; k < Chunks; k++) {
                    int column = 8 * (lane() % Lanes + k * Lanes);
                    if (item < items && column < columns)
                        sums[t] += dot8(load_shared16(from + t * bytes + 2 * column), x[k]);
                }
#pragma unroll
                for (int mask = 1; mask < Lanes; mask *= 2)
                    sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], mask);
            }
            if (item < items)
                put(i / Together + item, sums);
        }
        __syncwarp();
        pipe.release<1>(at.stage);
    }
}

#endif
#endif
