/* What a block of transformer_read.cu is and has, how weights come to it, and how it multiplies by
 * them. */
#ifndef CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH
#define CUP_OPS_TRANSFORMER_TRANSFORMER_READ_WEIGHTS_CUH

#include "pipe.cuh"
#include "ptx.cuh"
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
#define UP_MOST ((COLUMNS_MOST + CLUSTER - 1) / CLUSTER) /* of those, a block's */
#define STEP 32                         /* columns: 64 bytes of a line, of four lanes */

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

constexpr int larger(int a, int b)
{
    return a > b ? a : b;
}

constexpr int PRODUCTS = larger(larger(OWN, OWN_LINES), UP_MOST * UP_LINES);

/* What comes from other blocks of the cluster. */
enum inbox { QKV, PARTS, SUM, COLUMNS, INBOXES };

struct shared_memory {
    alignas(16) float x[WIDTH], sum[WIDTH], qkv[LINES], parts[CLUSTER][HEADS * PART];
    alignas(16) uint32_t normed[WIDTH], attended[TAKEN]; /* split */
    float joined[WARPS][HEADS * PART], bases[WARPS][HEADS];
    float out_bias[OWN], down_bias[OWN], qkv_bias[OWN_LINES];
    float products[WARPS][PRODUCTS]; /* of parts of k, with lines */
    alignas(16) T norm[4][WIDTH]; /* weights and biases */
    alignas(8) uint64_t full[2 * STAGES], come[INBOXES];
    int last;
};

static_assert(sizeof(shared_memory) <= BESIDE, "the host makes room for it");

struct place {
    const layer_call &c;
    shared_memory &m;
    uint32_t *columns; /* of the MLP, of this cluster, split */
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
DEVICE void send(const void *to, const uint64_t *come, int block, uint32_t value)
{
    asm volatile("{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 told, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, "
                 "[told];\n}\n" ::"r"(shared_address(to)),
                 "r"(shared_address(come)), "r"(block), "r"(value)
                 : "memory");
}

DEVICE void send(const void *to, const uint64_t *come, int block, float value)
{
    send(to, come, block, __float_as_uint(value));
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
        come = Together * pieces * 2 * Lines * piece,
        steps_of_piece = (piece + STEP - 1) / STEP,
        steps = pieces * steps_of_piece,
        slices = steps < WARPS ? power_from(steps / 2 + 1) : WARPS, /* of k */
        groups = WARPS / slices, /* of warps that share a slice, each with tiles of its own */
        turns = (steps + slices - 1) / slices /* steps of a warp */
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
#pragma unroll 1
    for (int i = 0; i < lines; i += Boxes::lines, at.next()) {
        uint32_t to = p.stages + at.stage * STAGE_BYTES;
        pipe.claim(at, Boxes::come);
#pragma unroll 1
        for (int t = 0; t < Boxes::together; t++)
#pragma unroll 1
            for (int k = 0; k < Boxes::pieces; k++, to += Boxes::bytes) {
                box from = {{column + k * Boxes::piece, line + i + t * HIDDEN}};
                tma_load<2>(weight, to, from, pipe.full(at.stage), TMA_EVICT_NORMAL);
            }
    }
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

DEVICE float lowest()
{
    return -__int_as_float(0x7f800000);
}

/* A number as tensor cores take it: rounded, and behind it what rounding took off. */
DEVICE uint32_t split(float x)
{
    union {
        uint32_t word;
        vec<T, 2> elements;
    } pair;
    pair.word = pack(x, 0, T());
    float rest = x - to_real(pair.elements.at[0]);
    return pack(x, fabsf(rest) < -lowest() ? rest : 0, T());
}

/* The warp's part of what lines are multiplied by: rounded numbers in the lanes of a tensor core's
 * first column, what rounding took off in those of its second. */
template <typename Boxes> struct factors {
    uint32_t of[Boxes::turns][4];

    /* The column where the lane's 8 of a turn begin, and that of their piece; nowhere if there are
     * none. */
    __device__ __forceinline__ int column(int turn, int *piece) const
    {
        int step = threadIdx.x / 32 % Boxes::slices + turn * Boxes::slices;
        int inside = step % Boxes::steps_of_piece * STEP + 8 * (lane() % 4);
        *piece = step / Boxes::steps_of_piece;
        return step < Boxes::steps && inside < Boxes::piece ? *piece * Boxes::piece + inside
                                                            : 1 << 30;
    }

    /* Of `columns` numbers, split, from 16 aligned bytes on. */
    __device__ __forceinline__ void load(const uint32_t *from, int columns)
    {
        uint32_t halves = lane() < 4 ? 0x5410 : 0x7632;
#pragma unroll
        for (int turn = 0; turn < Boxes::turns; turn++) {
            int piece, at = column(turn, &piece);
            vec<uint32_t, 8> v = {};
            if (lane() < 8 && at < columns)
                v = load_plain<8>(from + at);
#pragma unroll
            for (int e = 0; e < 4; e++)
                of[turn][e] = __byte_perm(v.at[2 * e], v.at[2 * e + 1], halves);
        }
    }
};

/* Products of 16 lines from line `first` of a box on, of which `count` are there, with the warp's
 * part of the factors. */
template <typename Boxes>
DEVICE void multiply_tile(uint32_t box, int first, int count, int columns,
                          const factors<Boxes> &x, float *to)
{
    const uint4 none = make_uint4(0, 0, 0, 0);
    int row = first + lane() / 4;
    uint32_t upper = box + min(row, count - 1) * 2 * Boxes::piece;
    uint32_t lower = box + min(row + 8, count - 1) * 2 * Boxes::piece;
    float sum[2][4] = {};
#pragma unroll
    for (int turn = 0; turn < Boxes::turns; turn++) {
        int piece, column = x.column(turn, &piece);
        bool valid = column < columns;
        uint32_t at = piece * Boxes::bytes + 2 * (column - piece * Boxes::piece);
        uint4 a = valid ? load_shared16(upper + at) : none;
        uint4 b = valid && Boxes::lines > 8 ? load_shared16(lower + at) : none;
        uint32_t left[4] = {a.x, b.x, a.y, b.y}, right[4] = {a.z, b.z, a.w, b.w};
        multiply_add(sum[0], left, x.of[turn][0], x.of[turn][1], T());
        multiply_add(sum[1], right, x.of[turn][2], x.of[turn][3], T());
    }
    if (lane() % 4 != 0)
        return;
    if (row < count)
        to[row] = sum[0][0] + sum[0][1] + sum[1][0] + sum[1][1];
    if (row + 8 < count)
        to[row + 8] = sum[0][2] + sum[0][3] + sum[1][2] + sum[1][3];
}

/* Products of the next `lines` lines of the ring, as `bring` brought them, with the first `columns`
 * of their columns: the warp's part, to `line` and on of what all warps have; of those together t
 * times `apart` further. */
template <typename Boxes>
DEVICE void multiply(const place &p, const ring<STAGES> &pipe, ring_place<STAGES> &at, int lines,
                     int columns, const factors<Boxes> &x, int line, int apart = 0)
{
    int warp = threadIdx.x / 32;
    float *to = p.m.products[warp % Boxes::slices] + line;
#pragma unroll 1
    for (int i = 0; i < lines; i += Boxes::lines, at.next()) {
        int count = min((int)Boxes::lines, lines - i);
        uint32_t box = p.stages + at.stage * STAGE_BYTES;
        pipe.wait_full(at);
#pragma unroll
        for (int t = 0; t < Boxes::together; t++)
#pragma unroll 1
            for (int first = warp / Boxes::slices * 16; first < count; first += 16 * Boxes::groups)
                multiply_tile<Boxes>(box + t * Boxes::pieces * Boxes::bytes, first, count, columns,
                                     x, to + t * apart + i);
        __syncwarp();
        pipe.release<1>(at.stage);
    }
}

/* What the warps have for a line, behind meet_workers. */
template <typename Boxes> DEVICE float product_of(const place &p, int line)
{
    float sum = 0;
#pragma unroll
    for (int slice = 0; slice < Boxes::slices; slice++)
        sum += p.m.products[slice][line];
    return sum;
}

#endif
#endif
