/* Codes of 8 bits and their scales. */
#ifndef CUP_OPS_LOWBIT_SCALED_H
#define CUP_OPS_LOWBIT_SCALED_H

#include "ops/matmul/product.h"

#define CUP__DTYPES_CODE (CUP__DTYPE(F8E4M3) | CUP__DTYPE(F8E5M2) | CUP__DTYPE(I8))

/* How the scales of a tensor's rows (all dimensions but the last) and columns lie: the scale of
 * row i and column k is at (i >> shift) line + (k / 128) k, in elements; in a tensor of matrices,
 * those of matrix g are g group further. */
typedef struct cup__scale_layout {
    int64_t rows, columns; /* of the tensor, or of each matrix */
    int64_t line, k, group;
    int shift;
} cup__scale_layout;

/* The layout by the shapes of input `i` and of its scales, input `scale_i`, which may be missing;
 * fails where they do not fit. */
cup_status cup__scale_layout_of(cup__call *call, int i, int scale_i, cup__scale_layout *out);

/* The same for a tensor of matrices, [G,N,K], whose scales are one, [G], or [G,..,..] with what a
 * matrix alone would have behind. */
cup_status cup__scale_layout_of_matrices(cup__call *call, int i, int scale_i,
                                         cup__scale_layout *out);

static inline int64_t cup__scale_at(const cup__scale_layout *s, int64_t row, int64_t column)
{
    return (row >> s->shift) * s->line + column / PRODUCT_SCALE_DEPTH * s->k;
}

/* The largest number of a dtype of codes. */
double cup__code_most(cup_dtype dtype);
cup_status cup__need_code(cup__call *call, cup_dtype dtype);

/* The shape of the blocks of quantize that the attributes ask for. */
typedef struct cup__quantize_blocks {
    int64_t rows, columns;             /* of x */
    int64_t block_rows, block_columns; /* at least 1 */
    int64_t across, down;              /* how many there are */
} cup__quantize_blocks;
cup__quantize_blocks cup__quantize_blocks_of(const cup__call *call);

const char *cup__quantize_cuda_refuses(const cup__call *call);
cup_status cup__quantize_cuda(cup__call *call);
cup_status cup__dequantize_cuda(cup__call *call);

/* The product that a call of scaled_matmul asks for, a, b and bias as they are or will be packed;
 * `s` is what its `scaling` points to. */
void cup__scaled_product(const cup__call *call, cup__product *p, cup__scaling *s);

/* What inputs a and b, the dtype asked for, and a bias must be like. */
cup_status cup__scaled_dtypes(cup__call *call, cup_dtype dtype, bool scaled,
                              const cup_tensor *bias);
/* What a product is told of scales that lie so. */
void cup__scaling_make(cup__scaling *s, const cup_tensor *a_scale, const cup__scale_layout *a,
                       const cup_tensor *b_scale, const cup__scale_layout *b);

/* A product of groups of rows, without the table of groups. */
void cup__scaled_grouped_product(const cup__call *call, cup__product *p, cup__scaling *s);

/* The f32 that codes stand for: `columns` each in all rows, of which `group_rows` belong to a
 * group. */
cup_tensor *cup__scaled_widened(cup_context *c, const cup_tensor *codes, const product_scale *scale,
                                int64_t rows, int64_t group_rows, int64_t columns);
int32_t cup__scaled_dot(const int8_t *a, const int8_t *b, int64_t count);
float cup__scaled_whole_dot(const cup__product *p, int64_t i, int64_t j, int64_t group);

/* What all implementations but those with wishes of their own refuse: f64, which is for the
 * specification. */
const char *cup__scaled_refuses(const cup__call *call);
void cup__scaled_cost(const cup__call *call, double *bytes, double *flops);

cup_status cup__scaled_cpu(cup__call *call);
cup_status cup__scaled_grouped_cpu(cup__call *call);
const char *cup__scaled_grouped_wgmma_refuses(const cup__call *call);
cup_status cup__scaled_grouped_wgmma(cup__call *call);
cup_status cup__scaled_grouped_mma(cup__call *call);
const char *cup__scaled_wgmma_refuses(const cup__call *call);
cup_status cup__scaled_wgmma(cup__call *call);
const char *cup__scaled_cublaslt_refuses(const cup__call *call);
cup_status cup__scaled_cublaslt(cup__call *call);
cup_status cup__scaled_mma(cup__call *call);
cup_status cup__scaled_mma_by(cup__call *call, const cup__product *product);

#endif
