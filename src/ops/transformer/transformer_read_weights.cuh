/* What a block of transformer_read.cu is and has, how weights come to it, and how it multiplies by
 * them. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH

#include "pipe.cuh"
#include "reduce.cuh"
#include "tma.cuh"
#include "transformer_read_call.cuh"
#include "vec.cuh"

/* Knobs: CUP_ID, WIDTH, HEADS (a head of keys), KV_HEADS, SIZE (of a head), HIDDEN, GATED, RMS,
 * TURNED (by rotary positions), CLUSTER, COLUMNS_MOST (of the MLP, of a cluster), STAGES,
 * STAGE_BYTES, BESIDE (shared memory that is not the ring's and of known size); lines of a stage:
 * QKV_BOX, OUT_BOX, UP_BOX, DOWN_BOX. */
#define WARPS LAYER_WARPS
#define WORKERS (32 * WARPS)
#define TAKEN (HEADS * SIZE)            /* columns that a head of keys gives */
#define LINES ((HEADS + 2) * SIZE)      /* of qkv for a head of keys */
#define HEAD_LINES (SIZE / CLUSTER)     /* of a head, that a block computes */
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

/* How the weights come of which a block takes Columns columns, Lines lines in a stage, each with
 * Together lines that are HIDDEN apart. */
template <int Columns, int Lines, int Together = 1> struct boxes {
    enum {
        columns = Columns,
        lines = Lines,
        together = Together,
        pieces = LAYER_PIECES(Columns),
        piece = LAYER_PIECE(Columns),
        bytes = LAYER_BOX(Columns, Lines),
        come = Together * pieces * 2 * Lines * piece
    };
    static_assert(Together * pieces * bytes <= STAGE_BYTES, "the host makes room for it");
};

typedef boxes<WIDTH, QKV_BOX> qkv_boxes;
typedef boxes<TAKEN, OUT_BOX> out_boxes;
typedef boxes<WIDTH, UP_BOX, UP_LINES> up_boxes;
typedef boxes<COLUMNS_MOST, DOWN_BOX> down_boxes;

/* By one thread: `lines` lines from `line` on, from `column` on. Boxes that reach further bring
 * what nobody reads, or zeros beyond the weight. */
template <typename Boxes>
DEVICE void bring(const place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at,
                  const tensor_map &weight, int column, int line, int lines)
{
    for (int i = 0; i < lines; i += Boxes::lines, at.next()) {
        uint32_t to = p.stages + at.stage * STAGE_BYTES;
        pipe.claim(at, Boxes::come);
#pragma unroll
        for (int t = 0; t < Boxes::together; t++)
#pragma unroll
            for (int k = 0; k < Boxes::pieces; k++, to += Boxes::bytes) {
                box from = {{column + k * Boxes::piece, line + i + t * HIDDEN}};
                tma_load<2>(weight, to, from, pipe.full(at.stage), TMA_EVICT_NORMAL);
            }
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

/* Where the lane's 8 columns of a piece begin; nowhere for lanes that have none. */
template <int Lanes, int Piece> DEVICE int column_of(int piece)
{
    int inside = 8 * (lane() % Lanes);
    return inside < Piece ? piece * Piece + inside : 1 << 30;
}

/* What a lane multiplies by: of `columns` numbers, those of its columns of each piece; from 16
 * aligned bytes on. */
template <int Lanes, int Piece, int Pieces>
DEVICE void load_pieces(const float *from, int columns, float (&x)[Pieces][8])
{
#pragma unroll
    for (int k = 0; k < Pieces; k++) {
        int column = column_of<Lanes, Piece>(k);
        vec<float, 8> v = {};
        if (column < columns)
            v = load_plain<8>(from + column);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[k][e] = v.at[e];
    }
}

/* The lane's part of an item's sums, whose lines begin at `from`. */
template <typename Boxes, int Lanes>
DEVICE void sum_lines(uint32_t from, int columns, const float (&x)[Boxes::pieces][8],
                      float (&sums)[Boxes::together])
{
#pragma unroll
    for (int t = 0; t < Boxes::together; t++)
#pragma unroll
        for (int k = 0; k < Boxes::pieces; k++)
            if (column_of<Lanes, Boxes::piece>(k) < columns) {
                uint32_t box = from + (t * Boxes::pieces + k) * Boxes::bytes;
                sums[t] += dot8(load_shared16(box + 16 * (lane() % Lanes)), x[k]);
            }
}

/* Products of the next lines of the ring, as `bring` brought them, with the first `columns` of
 * their columns. A line is read by Lanes lanes; what it and those together with it sum up to goes
 * to put(line, sums), in all lanes that read them. */
template <typename Boxes, int Lanes, typename Put>
DEVICE void multiply(const place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int lines,
                     int columns, const float (&x)[Boxes::pieces][8], Put put)
{
    const int step = 32 / Lanes; /* lines of a warp at a time */
    int warp = threadIdx.x / 32;
    for (int i = 0; i < lines; i += Boxes::lines, at.next()) {
        int count = min((int)Boxes::lines, lines - i);
        pipe.wait_full(at);
        int begin = (warp - i / step & (WARPS - 1)) * step;
#pragma unroll 4
        for (int base = begin; base < count; base += WARPS * step) {
            int line = base + lane() / Lanes;
            float sums[Boxes::together] = {};
            if (line < count)
                sum_lines<Boxes, Lanes>(
                    p.stages + at.stage * STAGE_BYTES + line * 2 * Boxes::piece, columns, x, sums);
#pragma unroll
            for (int t = 0; t < Boxes::together; t++)
#pragma unroll
                for (int mask = 1; mask < Lanes; mask *= 2)
                    sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], mask);
            if (line < count)
                put(i + line, sums);
        }
        __syncwarp();
        pipe.release<1>(at.stage);
    }
}

#endif
#endif
