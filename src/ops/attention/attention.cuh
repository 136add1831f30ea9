/* What the attention kernels for tensor cores share: tiles of heads in shared memory, fragments of
 * them, and the random numbers of dropout.
 *
 * A tile has rows of SIZE elements, one position of one head each, and 16 bytes between rows, so
 * that eight rows at one column lie in eight different banks of 16 bytes. f32 is multiplied as
 * tf32: rounded once, or with SPLIT as the sum of two tf32, of whose four products three matter.
 * Tensor cores cut sums off towards zero, which adds up over thousands of keys: with SPLIT the
 * products of the leading parts are added up outside.
 * The file that includes this one says with A_IN_REGISTERS whether a warp keeps the fragments of
 * its rows. */
#ifndef CUP_OPS_ATTENTION_ATTENTION_CUH
#define CUP_OPS_ATTENTION_ATTENTION_CUH

#define WIDE (CUP_T == CUP_F32)
#include "attention_weights.cuh"
#include "philox.cuh"

#define BYTES (WIDE ? 4 : 2)
#define IN_16_BYTES (16 / BYTES)
#define PITCH (SIZE * BYTES + 16)
#define DEPTH_STEPS (SIZE * BYTES / 32) /* of a matrix instruction through a head */

DEVICE int lane_id()
{
    return (int)threadIdx.x % 32;
}

DEVICE T *head_of(const attention_heads &h, int batch, int head)
{
    return (T *)h.data + batch * h.batch + head * h.head;
}

/* Begins to copy, by `Threads` threads of which this is one, `Rows` rows from position `first` on;
 * rows past `limit` and features past the head's size are 0. */
template <int Rows, int Threads>
DEVICE void load_tile(int thread, uint32_t to, const T *head, long long stride, int first,
                      int limit, int size)
{
    const int chunks = SIZE / IN_16_BYTES;
#pragma unroll 4
    for (int i = thread; i < Rows * chunks; i += Threads) {
        int row = i / chunks, chunk = i % chunks;
        bool valid = first + row < limit && chunk * IN_16_BYTES < size;
        const T *from = head + (valid ? (first + row) * stride + chunk * IN_16_BYTES : 0);
        copy_async16(to + row * PITCH + chunk * 16, from, valid);
    }
}

/* Where this lane reads the fragments of a tile: of 16 rows as A, or 16 rows turned as two B; and
 * of 16 rows as two B. The next step in depth is 32 bytes on. */
DEVICE uint32_t lane_of_a(uint32_t tile)
{
    return tile + lane_id() % 16 * PITCH + lane_id() / 16 * 16;
}

DEVICE uint32_t lane_of_b(uint32_t tile)
{
    return tile + (lane_id() / 16 * 8 + lane_id() % 8) * PITCH + lane_id() / 8 % 2 * 16;
}

/* A fragment of an A, ready to be multiplied; `low` is what rounding left of an f32. */
struct left_operand {
    uint32_t high[4], low[4];
};

#if WIDE
DEVICE void split(uint32_t x, uint32_t *high, uint32_t *low)
{
    *high = to_tf32(__uint_as_float(x));
    float rest = __uint_as_float(x) - __uint_as_float(*high);
    *low = SPLIT && (*high & 0x7fffffff) != 0x7f800000 ? to_tf32(rest) : 0;
}

DEVICE left_operand left_of(const uint32_t (&words)[4])
{
    left_operand a;
#pragma unroll
    for (int i = 0; i < 4; i++)
        split(words[i], &a.high[i], &a.low[i]);
    return a;
}

DEVICE void add_to(float (&c)[4], const float (&more)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] += more[i];
}

/* `rest` takes the products with what rounding left, which are added to c at the end. Turned: those
 * with what it left of b come first, so that a b and b a have the same bits. */
template <bool Turned>
DEVICE void multiply(float (&c)[4], float (&rest)[4], const left_operand &a, uint32_t b0,
                     uint32_t b1)
{
    uint32_t high0, low0, high1, low1;
    split(b0, &high0, &low0);
    split(b1, &high1, &low1);
    if (!SPLIT) {
        multiply_add_tf32(c, a.high, high0, high1);
        return;
    }
    float leading[4] = {};
    multiply_add_tf32(leading, a.high, high0, high1);
    if (Turned)
        multiply_add_tf32(rest, a.high, low0, low1);
    multiply_add_tf32(rest, a.low, high0, high1);
    if (!Turned)
        multiply_add_tf32(rest, a.high, low0, low1);
    add_to(c, leading);
}
#else
DEVICE left_operand left_of(const uint32_t (&words)[4])
{
    left_operand a;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a.high[i] = words[i];
    return a;
}

template <bool Turned>
DEVICE void multiply(float (&c)[4], float (&)[4], const left_operand &a, uint32_t b0, uint32_t b1)
{
    multiply_add(c, a.high, b0, b1, T());
}
#endif

/* The fragments of this warp's 16 rows, when they stay in registers. */
DEVICE void load_fragments(uint32_t (&a)[DEPTH_STEPS][4], uint32_t tile)
{
#if A_IN_REGISTERS
#pragma unroll
    for (int k = 0; k < DEPTH_STEPS; k++)
        load_matrices(a[k], lane_of_a(tile) + k * 32);
#endif
}

template <int Columns> DEVICE void clear(float (&c)[Columns][4])
{
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] = 0;
}

/* c[16, 8 Columns] = a[16, SIZE] times rows of a tile: c (i, j) sums a (i, d) tile (j, d). The A
 * is in registers, or else read from its tile. */
template <int Columns, bool Turned = false>
DEVICE void multiply_rows(float (&c)[Columns][4], const uint32_t (&a)[DEPTH_STEPS][4],
                          uint32_t a_tile, uint32_t b_tile)
{
    uint32_t a_from = lane_of_a(a_tile), b_from = lane_of_b(b_tile);
    float rest[Columns][4];
    clear(c);
    clear(rest);
    const int steps_at_once = A_IN_REGISTERS ? DEPTH_STEPS : WIDE ? 1 : 2;
#pragma unroll steps_at_once
    for (int k = 0; k < DEPTH_STEPS; k++) {
#if A_IN_REGISTERS
        left_operand left = left_of(a[k]);
#else
        uint32_t words[4];
        load_matrices(words, a_from + k * 32);
        left_operand left = left_of(words);
#endif
#pragma unroll
        for (int j = 0; j < Columns / 2; j++) {
            uint32_t b[4];
            load_matrices(b, b_from + j * 16 * PITCH + k * 32);
            multiply<Turned>(c[2 * j], rest[2 * j], left, b[0], b[1]);
            multiply<Turned>(c[2 * j + 1], rest[2 * j + 1], left, b[2], b[3]);
        }
    }
#if SPLIT
#pragma unroll
    for (int j = 0; j < Columns; j++)
        add_to(c[j], rest[j]);
#endif
}

/* c[16, 8 Columns] += a[16, 8 Depth] tile[8 Depth, 8 Columns] from feature `column` on, the A being
 * made from C. */
#if WIDE
template <int Columns, int Depth>
DEVICE void multiply_columns(float (&c)[Columns][4], const float (&a)[Depth][4], uint32_t tile,
                             int column)
{
    /* Columns 2 t and 2 t + 1 of the C serve as columns t and t + 4 of the A, and the rows of the B
     * follow. */
    uint32_t from = tile + lane_id() % 4 * 2 * PITCH + (column + lane_id() / 4) * 4;
    left_operand left[Depth];
#pragma unroll
    for (int k = 0; k < Depth; k++) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = __float_as_uint(a[k][i % 2 * 2 + i / 2]);
        left[k] = left_of(words);
    }
    /* With SPLIT a block of columns is finished before the next, as it has sums of its own. */
    float here[4] = {}, rest[4] = {};
#pragma unroll
    for (int i = 0; i < Columns * Depth; i++) {
        int j = SPLIT ? i / Depth : i % Columns, k = SPLIT ? i % Depth : i / Columns;
        uint32_t b = from + k * 8 * PITCH + j * 32;
        multiply<false>(SPLIT ? here : c[j], rest, left[k], load_shared4(b),
                        load_shared4(b + PITCH));
        if (!SPLIT || k < Depth - 1)
            continue;
        add_to(here, rest);
        add_to(c[j], here);
#pragma unroll
        for (int l = 0; l < 4; l++)
            here[l] = rest[l] = 0;
    }
}
#else
template <int Columns, int Depth>
DEVICE void multiply_columns(float (&c)[Columns][4], const float (&a)[Depth][4], uint32_t tile,
                             int column)
{
    uint32_t from = lane_of_a(tile) + column * 2;
#pragma unroll
    for (int k = 0; k < Depth / 2; k++) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = pack(a[2 * k + i / 2][i % 2 * 2], a[2 * k + i / 2][i % 2 * 2 + 1], T());
        left_operand left = left_of(words);
#pragma unroll
        for (int j = 0; j < Columns / 2; j++) {
            uint32_t b[4];
            load_matrices_turned(b, from + k * 16 * PITCH + j * 32);
            multiply<false>(c[2 * j], c[2 * j], left, b[0], b[1]);
            multiply<false>(c[2 * j + 1], c[2 * j + 1], left, b[2], b[3]);
        }
    }
}
#endif

struct softmax_state {
    float base[2], sum[2]; /* of rows g and g + 8: the base so far, and this lane's sum */
};

/* Scores from `seen` on, of row g and of row g + 8, become -infinity. */
template <int Columns> DEVICE void mask_scores(float (&s)[Columns][4], int seen_g, int seen_g8)
{
    int t = lane_id() % 4;
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * j + 2 * t + i % 2 >= (i < 2 ? seen_g : seen_g8))
                s[j][i] = -INFINITE;
}

/* Scores become probabilities relative to the row's maximum; `fade` is what the row's sums so far
 * must be multiplied by. */
template <int Columns>
DEVICE void soften(float (&s)[Columns][4], softmax_state &state, float (&fade)[2], float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = s[0][2 * r];
#pragma unroll
        for (int j = 0; j < Columns; j++)
            most = fmaxf(most, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        float before = state.base[r], base = fmaxf(before, SPLIT ? most : most * scale);
        state.base[r] = base;
        base = base == -INFINITE ? 0 : base;
        fade[r] = fade_of(before, base, scale);
        float sum = state.sum[r] * fade[r];
#pragma unroll
        for (int j = 0; j < Columns; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[j][2 * r + e] = weight_of(s[j][2 * r + e], base, scale);
                sum += s[j][2 * r + e];
            }
        state.sum[r] = sum;
    }
}

template <int Columns> DEVICE void fade_rows(float (&c)[Columns][4], const float (&fade)[2])
{
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] *= fade[i / 2];
}

/* Writes 16 rows of results through a tile of shared memory that is this warp's own. */
template <int Columns>
DEVICE void store_rows(T *head, long long stride, int first, int limit, int column, int size,
                       uint32_t tile, const float (&c)[Columns][4], float low, float high)
{
    int g = lane_id() / 4, t = lane_id() % 4;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Columns; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t at = tile + (g + 8 * r) * PITCH + (8 * j + 2 * t) * BYTES;
            float x = c[j][2 * r] * (r ? high : low), y = c[j][2 * r + 1] * (r ? high : low);
#if WIDE
            store_shared4(at, __float_as_uint(x));
            store_shared4(at + 4, __float_as_uint(y));
#else
            store_shared4(at, pack(x, y, T()));
#endif
        }
    __syncwarp();
    const int chunks = Columns * 8 / IN_16_BYTES;
#pragma unroll 4
    for (int i = lane_id(); i < 16 * chunks; i += 32) {
        int row = i / chunks, chunk = i % chunks, d = column + chunk * IN_16_BYTES;
        if (first + row < limit && d < size)
            *(uint4 *)(head + (first + row) * stride + d) =
                load_shared16(tile + row * PITCH + chunk * 16);
    }
}

/* The numbers of a lane for the tile of 16 queries and 16 keys that holds these: the word of
 * e = key % 2 and r = query / 8 % 2 is 2 e + r, its upper half that of key / 8 % 2. */
DEVICE uint64_t random_tile(const attention_call &c, int head, int query, int key)
{
    return DRAWN_TILE(c, head, query, key) * 32;
}

/* Sixteen queries against this warp's sixteen keys: of `words`, which are those of query
 * 2 t + g % 2 and the keys g and g ^ 1, neighbouring lanes swap what the other needs. Then word
 * [e][r] holds the numbers of query 2 t + e + 8 r, for key g in its lower half, for key g + 8 in
 * its upper. */
DEVICE void swap_numbers(uint32_t (&to)[2][2], const struct philox_words &words)
{
    bool odd = lane_id() & 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t mine = odd ? words.at[2 + r] : words.at[r];
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words.at[r] : words.at[2 + r], 4);
        to[0][r] = odd ? other : mine;
        to[1][r] = odd ? mine : other;
    }
}

/* Whether dropout keeps the score whose number is the upper or the lower half of a word. */
DEVICE bool keeps(uint32_t word, int upper, uint32_t threshold)
{
    return (upper ? word >> 16 : word & 0xffff) >= threshold;
}

#endif
