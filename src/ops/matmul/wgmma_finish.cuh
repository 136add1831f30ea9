/* How wgmma.cu takes sums from registers to y: bias, activation, rounding, and stores through
 * swizzled shared memory. Uses that file's knobs and sizes. */
#ifndef CUP_OPS_MATMUL_WGMMA_FINISH_CUH
#define CUP_OPS_MATMUL_WGMMA_FINISH_CUH

#include "hopper.cuh"
#include "product.cuh"
#include "tma.cuh"
#include "wgmma_call.cuh"
#include "wgmma_codes.cuh"
#include "wgmma_dropout.cuh"
#include "wgmma_join.cuh"
#include "wgmma_moments.cuh"
#include "wgmma_other.cuh"

#ifndef STAGING_BUFFERS /* of a warp */
#define STAGING_BUFFERS 2
#endif

#ifndef ADDING /* whether y is added to */
#define ADDING 0
#endif

/* Two elements of a bias as they lie in memory: nobody waits for them before they are unpacked. */
struct bias_pair {
    uint32_t word[sizeof(bias_value) / 2];
};

/* Those of a tile's column; zeros beyond the edge. */
DEVICE bias_pair load_bias(const wgmma_call &c, int column, int at)
{
    const bias_value *from = (const bias_value *)c.bias;
    bias_pair two = {};
    if (SWIGLU && at >= COLUMNS) {
        at -= COLUMNS;
        from += c.n;
    }
    from += column + at;
    if (column + at + 1 < c.n)
        two = *(const bias_pair *)from;
    else if (column + at < c.n)
        two.word[0] = sizeof(bias_value) == 2 ? *(const uint16_t *)from : *(const uint32_t *)from;
    return two;
}

/* What a product with its bias is multiplied with, for the short forms of activations. The bias is
 * kept so in shared memory, unless what was before the activation goes out too. */
#define SHORT (sizeof(result) <= 2 && OTHER != PRODUCT_ADD_FIRST)
#define SHORT_GELU (SHORT && ACTIVATION == PRODUCT_GELU)
#define SHORT_SILU (SHORT && ACTIVATION == PRODUCT_SILU)
#define SCALE_BEFORE (SHORT_GELU ? GELU_SCALE : SHORT_SILU ? SILU_SCALE : 1.0f)
#define BIAS_SCALE (HAS_PRE ? 1.0f : SCALE_BEFORE)

/* Two elements of the bias go to where `biased` finds them. */
DEVICE void keep_bias(float *to, const bias_pair &two)
{
    float v[2];
    to_reals((const vec<bias_value, 2> &)two, v);
    *(float2 *)to = make_float2(v[0] * BIAS_SCALE, v[1] * BIAS_SCALE);
}

/* Eight values of sixteen columns of 8 rows and the 8 below: the product with its bias, as it is
 * or scaled for the activation. */
template <bool Scaled>
DEVICE void biased(const wgmma_call &c, const float *sum, const float *bias, float (&v)[8])
{
    const float scale = Scaled ? SCALE_BEFORE : 1.0f, factor = FACTOR ? c.factor * scale : scale;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        float2 two = make_float2(0, 0);
        if (HAS_BIAS)
            two = *(const float2 *)(bias + 2 * i + lane() % 4 * 2);
        two.x *= scale / BIAS_SCALE;
        two.y *= scale / BIAS_SCALE;
#pragma unroll
        for (int j = i; j < i + 4; j++)
            if (FACTOR || scale != 1)
                v[j] = HAS_BIAS ? fmaf(factor, sum[j], j % 2 ? two.y : two.x) : factor * sum[j];
            else
                v[j] = HAS_BIAS ? sum[j] + (j % 2 ? two.y : two.x) : sum[j];
    }
}

/* Which values of a tile go out: of y, or before the activation; of the two halves that swiglu has
 * before, and its gradient as y. */
enum outlet { TO_Y, TO_PRE, TO_PRE_SECOND, TO_Y_SECOND };

template <outlet Outlet>
DEVICE void completed(const wgmma_call &c, const unit &u, const float *sum,
                      const float *bias, int column, const other_tile &other, int row,
                      float (&v)[8])
{
    const int second = SWIGLU ? TILE_N / 2 : 0, at = Outlet == TO_PRE_SECOND ? second : 0;
    const bool before = Outlet == TO_PRE || Outlet == TO_PRE_SECOND;
    biased<!before>(c, sum + (column + at) / 2, bias + column + at, v);
    if (before)
        return;
    if (SWIGLU) {
        float up[8];
        biased<false>(c, sum + (column + second) / 2, bias + column + second, up);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = silu_short(v[i]) * up[i];
    }
    if (OTHER == PRODUCT_ADD_FIRST) {
        float o[8];
        read_other(other, 0, row, column, o);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] += o[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = SHORT_GELU ? gelu_scaled(v[i]) : SHORT_SILU ? silu_scaled(v[i]) : activated(v[i]);
    if (DROPOUT)
        drop(c, u.row + row + lane() / 4, u.column + column, v);
    if (OTHER && OTHER != PRODUCT_ADD_FIRST) {
        float o[8], second[8] = {};
        read_other(other, 0, row, column, o);
        if (OTHER == PRODUCT_SWIGLU_GRAD && Outlet == TO_Y)
            read_other(other, 1, row, column, second);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (OTHER == PRODUCT_ADD)
                v[i] += o[i];
            else if (OTHER == PRODUCT_GELU_GRAD)
                v[i] *= gelu_slope_short(o[i]);
            else if (Outlet == TO_Y_SECOND)
                v[i] *= silu_short(o[i]);
            else
                v[i] *= second[i] * silu_slope_short(o[i]);
    }
}

DEVICE void stage(uint32_t buffer, int column, const float (&v)[8])
{
#if CODES
    stage_codes(buffer, column, v);
#elif Y_T == CUP_F32
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        int r = lane() / 4 + i / 2 % 2 * 8, piece = (column + i / 4 * 8) / 4 + lane() % 4 / 2;
        uint32_t to = staged_at(buffer, r, piece) + lane() % 2 * 8;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[i]), "f"(v[i + 1])
                     : "memory");
    }
#else
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = pack(v[2 * i], v[2 * i + 1], result());
    store_matrices(staged_at(buffer, lane() % 16, column / 8 + lane() / 16), words);
#endif
}

/* From the staged 16 rows to y where TMA cannot write, element by element. */
DEVICE void put_elements(const wgmma_call &c, result *y, const unit &u, int row, int column,
                         uint32_t buffer)
{
    const int end = GROUPS == PRODUCT_GROUPS_OF_ROWS ? u.row_end : c.m;
    y += u.batch[0] * c.y_batch[0] + u.batch[1] * c.y_batch[1] + column;
    const int each = 4 / sizeof(result); /* elements of a line that a lane takes */
#pragma unroll 1
    for (int r = 0; r < 16 && row + r < end && lane() < STAGE_LINE / 4; r++) {
        uint32_t word, from = staged_at(buffer, r, lane() / 4) + lane() % 4 * 4;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
        const result *values = (const result *)&word;
#pragma unroll
        for (int i = 0; i < each; i++)
            if (column + lane() * each + i < c.n)
                y[(row + r) * c.y_row + lane() * each + i] = values[i];
    }
    __syncwarp();
}

/* Takes 16 rows of STAGE_COLUMNS to y, or to pre. The warp's buffers are used in turn. */
template <outlet Outlet>
DEVICE void put_rows(const wgmma_call &c, const tensor_map &map, const unit &u, const layout &at,
                     const crew &w, const float *sum, const float *bias, coder &code, int row,
                     int j0, int *turn, column_moments &own)
{
    uint32_t buffer =
        at.staging + ((w.group * 4 + w.warp) * STAGING_BUFFERS + *turn) * STAGE_PIECE;
    *turn = (*turn + 1) % STAGING_BUFFERS;
    other_tile other = {at.other};
    int first = row - u.row;
    if (lane() == 0 && !STORE16)
        tma_store_wait<STAGING_BUFFERS - 1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < STAGE_COLUMNS; j += 16) {
        float v[8];
        completed<Outlet>(c, u, sum, bias, j0 + j, other, first, v);
        if (CODES)
            code.take(c, row + lane() / 4, v);
#if MOMENTS
        own.take(j, v);
#endif
        stage(buffer, j, v);
    }
    if (STORE16 && !Y_DIRECT && !SPREAD) {
        __syncwarp();
        put_vectors(c, (result *)c.y, u, row, u.column + j0, buffer);
        return;
    }
    if (SPREAD) {
        __syncwarp();
        put_places((const wgmma_conv &)c, row, u.column + j0, buffer);
        return;
    }
    if (Y_DIRECT || (GROUPS == PRODUCT_GROUPS_OF_ROWS && row + 16 > u.row_end)) {
        __syncwarp();
        put_elements(c, (result *)(Outlet == TO_PRE ? c.pre : c.y), u, row, u.column + j0, buffer);
        if (lane() == 0)
            tma_store_commit(); /* so that buffers and stores stay in step */
        return;
    }
    publish_shared();
    __syncwarp();
    if (lane() == 0) {
        int matrix = GROUPS == PRODUCT_GROUPS_OF_ROWS ? 0 : u.batch[0];
        box b = {{u.column + j0, row, matrix, u.batch[1]}};
        if (SWIGLU && Outlet != TO_Y || OTHER == PRODUCT_SWIGLU_GRAD) {
            b.at[2] = Outlet == TO_PRE_SECOND || Outlet == TO_Y_SECOND;
            tma_store<3>(map, buffer, b);
        } else if (ADDING) {
            tma_add<2 + BATCH>(map, buffer, b);
        } else {
            tma_store<2 + BATCH>(map, buffer, b);
        }
        tma_store_commit();
    }
}

/* From sums to y, for the rows of the warp. */
DEVICE void finish(const wgmma_call &c, const tensor_map &y, const tensor_map &pre, const unit &u,
                   const layout &at, const crew &w, const float *bias, coder &code, int *turn,
                   const sums &sum)
{
    int first = u.row + (PINGPONG ? 0 : w.group * ROWS) + 16 * w.warp;
    column_moments own;
#if MOMENTS
#pragma unroll
    for (int j = 0; j < COLUMNS; j += STAGE_COLUMNS) {
#pragma unroll
        for (int m = 0; m < BLOCKS_M; m++) {
            own.block = m;
            put_rows<TO_Y>(c, y, u, at, w, sum[m], bias, code, first + 64 * m, j, turn, own);
        }
        put_moments(c, u, at, w, j, own, *turn);
    }
#else
#pragma unroll
    for (int m = 0; m < BLOCKS_M; m++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += STAGE_COLUMNS) {
            int row = first + 64 * m;
            if (!is_mine(u, (m * COLUMNS + j) / STAGE_COLUMNS))
                continue;
            if (HAS_PRE)
                put_rows<TO_PRE>(c, pre, u, at, w, sum[m], bias, code, row, j, turn, own);
            if (HAS_PRE && SWIGLU)
                put_rows<TO_PRE_SECOND>(c, pre, u, at, w, sum[m], bias, code, row, j, turn, own);
            put_rows<TO_Y>(c, y, u, at, w, sum[m], bias, code, row, j, turn, own);
            if (OTHER == PRODUCT_SWIGLU_GRAD)
                put_rows<TO_Y_SECOND>(c, y, u, at, w, sum[m], bias, code, row, j, turn, own);
        }
#endif
}

#endif
