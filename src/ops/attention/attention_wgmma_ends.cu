/* What stands before and after backward's one pass on Hopper: the numbers that it needs of each
 * query, and dq out of its sums. Both are bound by memory. */
#include "attention_wgmma_grad.cuh"
#include "attention_wgmma_scores.cuh"

#if CUP_HAS_WGMMA

#define LANES (SIZE / 8) /* of a query */

DEVICE float product_of_words(uint32_t x, uint32_t y)
{
    union {
        uint32_t word;
        T at[2];
    } a, b;
    a.word = x;
    b.word = y;
    return to_real(a.at[0]) * to_real(b.at[0]) + to_real(a.at[1]) * to_real(b.at[1]);
}

DEVICE float product_of_eight(const T *o, const T *d_o, float4)
{
    uint4 x = *(const uint4 *)o, y = *(const uint4 *)d_o;
    return product_of_words(x.x, y.x) + product_of_words(x.y, y.y) + product_of_words(x.z, y.z) +
           product_of_words(x.w, y.w);
}

DEVICE float product_of_eight(const float *o, const T *d_o, float4 scales)
{
    float inverse = 1 / scales.z, sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += o[i] * inverse * to_real(d_o[i]);
    return sum;
}

/* The sum of o times d_o of a query, by LANES neighbouring lanes. */
DEVICE float delta_of(const attention_call &c, int row, int query)
{
    int batch = row / c.heads, head = row % c.heads, column = threadIdx.x % LANES * 8;
    float sum = 0;
    if (query < c.queries && column < c.size) {
        const T *d_o = (const T *)c.d_o.data + batch * c.d_o.batch + head * c.d_o.head;
        sum = product_of_eight(head_of(c.o, batch, head) + query * c.o.position + column,
                               d_o + query * c.d_o.position + column, scales_of(c));
    }
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    return sum;
}

#endif

/* Writes delta and the scaled lse, also of the queries past the last, and the gradients of sinks,
 * and clears the turns. */
extern "C" __global__ void __launch_bounds__(256)
    attention_sm90_grad_begin(const __grid_constant__ attention_call c,
                              const __grid_constant__ attention_pass p)
{
#if CUP_HAS_WGMMA
    unsigned each = (unsigned)padded(c) / (256 / LANES); /* blocks of threads of a head */
    int row = blockIdx.x / each, query = blockIdx.x % each * (256 / LANES) + threadIdx.x / LANES;
    long long thread = (long long)blockIdx.x * 256 + threadIdx.x, at = row * padded(c) + query;
    if (thread < (long long)c.batch * c.heads * pass_steps(shape_of(c, p)) * 2)
        p.turns[thread] = 0;
    float delta = delta_of(c, row, query);
    if (threadIdx.x % LANES)
        return;
    float natural =
        query < c.queries ? ((const float *)c.lse)[(long long)row * c.queries + query] : -INFINITE;
    ((float *)c.delta)[at] = delta;
    float lse = natural == -INFINITE ? INFINITE : natural * LOG2_E;
    ((float *)c.lse_log2)[at] = lse;
    float4 scales = scales_of(c);
    if (SINKS && query < c.queries)
        store_number(c.score.d_sinks, row / c.heads, row % c.heads, query,
                     sink_back(c, row % c.heads, lse, delta * scales.z * scales.w));
#endif
}

/* A block of threads has a step of one head, each of its two halves the block of a warpgroup. */
extern "C" __global__ void __launch_bounds__(256)
    attention_sm90_grad_end(const __grid_constant__ attention_call c,
                            const __grid_constant__ attention_pass p)
{
#if CUP_HAS_WGMMA
    int steps = pass_steps(shape_of(c, p)), row = blockIdx.x / steps, step = blockIdx.x % steps;
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const float4 *from =
        (const float4 *)(p.dq + ((long long)blockIdx.x * 2 + group) * BLOCK_NUMBERS) + thread;
    bool any = pass_any(shape_of(c, p), step);
    float sums[BLOCK_COLUMNS / 2];
#pragma unroll
    for (int j = 0; j < BLOCK_COLUMNS / 8; j++) {
        float4 four = any ? from[j * 128] : make_float4(0, 0, 0, 0);
        sums[4 * j] = four.x;
        sums[4 * j + 1] = four.y;
        sums[4 * j + 2] = four.z;
        sums[4 * j + 3] = four.w;
    }
    float4 scales = scales_of(c);
    if (ROUNDED) {
        multiply(sums, scales.z);
        multiply(sums, scales.w);
    }
    int query = step * STEP + block_query(group) + thread / 32 * 16, column = block_column(group);
    store_rows(c.size - column, head_of(c.dq, row / c.heads, row % c.heads) + column,
               c.dq.position, query, c.queries, sums, c.scale * scales.y, c.scale * scales.y);
#endif
}
