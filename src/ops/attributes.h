/* Generated from src/ops/ops.def by `make gen`: the attributes of each op as a struct,
 * the descriptors, and the prototypes of the internal ops. */
#ifndef CUP_OPS_ATTRIBUTES_H
#define CUP_OPS_ATTRIBUTES_H

#include "cupola/ops.h"
#include "ops/op.h"

typedef enum cup__op_id {
    CUP__OP_add,
    CUP__OP_sub,
    CUP__OP_mul,
    CUP__OP_div,
    CUP__OP_scale,
    CUP__OP_neg,
    CUP__OP_exp,
    CUP__OP_log,
    CUP__OP_sqrt,
    CUP__OP_pow,
    CUP__OP_abs,
    CUP__OP_sin,
    CUP__OP_cos,
    CUP__OP_erf,
    CUP__OP_maximum,
    CUP__OP_minimum,
    CUP__OP_lerp,
    CUP__OP_clamp,
    CUP__OP_pow_base_grad,
    CUP__OP_pow_exponent_grad,
    CUP__OP_abs_grad,
    CUP__OP_sin_grad,
    CUP__OP_cos_grad,
    CUP__OP_erf_grad,
    CUP__OP_maximum_grad,
    CUP__OP_clamp_grad,
    CUP__OP_div_grad,
    CUP__OP_sqrt_grad,
    CUP__OP_equal,
    CUP__OP_not_equal,
    CUP__OP_less,
    CUP__OP_less_equal,
    CUP__OP_greater,
    CUP__OP_greater_equal,
    CUP__OP_where,
    CUP__OP_tanh,
    CUP__OP_sigmoid,
    CUP__OP_relu,
    CUP__OP_gelu,
    CUP__OP_gelu_erf,
    CUP__OP_silu,
    CUP__OP_elu,
    CUP__OP_leaky_relu,
    CUP__OP_hardswish,
    CUP__OP_softplus,
    CUP__OP_mish,
    CUP__OP_swiglu,
    CUP__OP_swiglu_grad,
    CUP__OP_elu_grad,
    CUP__OP_leaky_relu_grad,
    CUP__OP_hardswish_grad,
    CUP__OP_softplus_grad,
    CUP__OP_mish_grad,
    CUP__OP_tanh_grad,
    CUP__OP_sigmoid_grad,
    CUP__OP_relu_grad,
    CUP__OP_gelu_grad,
    CUP__OP_gelu_erf_grad,
    CUP__OP_silu_grad,
    CUP__OP_dropout,
    CUP__OP_dropout_add,
    CUP__OP_dropout_grad,
    CUP__OP_full,
    CUP__OP_copy,
    CUP__OP_cast,
    CUP__OP_cast_transpose,
    CUP__OP_uniform,
    CUP__OP_normal,
    CUP__OP_reshape,
    CUP__OP_broadcast,
    CUP__OP_permute,
    CUP__OP_slice,
    CUP__OP_concat,
    CUP__OP_sum,
    CUP__OP_mean,
    CUP__OP_max,
    CUP__OP_min,
    CUP__OP_argmax,
    CUP__OP_argmin,
    CUP__OP_norm,
    CUP__OP_var,
    CUP__OP_logsumexp,
    CUP__OP_cumsum,
    CUP__OP_extreme_mask,
    CUP__OP_extreme_grad,
    CUP__OP_norm_grad,
    CUP__OP_var_grad,
    CUP__OP_logsumexp_grad,
    CUP__OP_max_pool2d,
    CUP__OP_max_pool2d_grad,
    CUP__OP_avg_pool2d,
    CUP__OP_avg_pool2d_grad,
    CUP__OP_adaptive_avg_pool2d,
    CUP__OP_adaptive_avg_pool2d_grad,
    CUP__OP_adaptive_max_pool2d,
    CUP__OP_adaptive_max_pool2d_grad,
    CUP__OP_layernorm,
    CUP__OP_rmsnorm,
    CUP__OP_add_layernorm,
    CUP__OP_add_rmsnorm,
    CUP__OP_layernorm_grad,
    CUP__OP_batchnorm,
    CUP__OP_groupnorm,
    CUP__OP_channelnorm_grad,
    CUP__OP_softmax,
    CUP__OP_log_softmax,
    CUP__OP_softmax_grad,
    CUP__OP_log_softmax_grad,
    CUP__OP_cross_entropy,
    CUP__OP_linear_cross_entropy,
    CUP__OP_cross_entropy_part,
    CUP__OP_target_share,
    CUP__OP_cross_entropy_grad,
    CUP__OP_scale_by,
    CUP__OP_embedding,
    CUP__OP_embedding_grad,
    CUP__OP_index_select,
    CUP__OP_gather,
    CUP__OP_scatter_add,
    CUP__OP_sort,
    CUP__OP_top_k,
    CUP__OP_unsort,
    CUP__OP_global_norm,
    CUP__OP_step_factors,
    CUP__OP_adamw,
    CUP__OP_sgd,
    CUP__OP_muon_momentum,
    CUP__OP_muon_step,
    CUP__OP_lion,
    CUP__OP_attention,
    CUP__OP_attention_grad,
    CUP__OP_qkv_attention,
    CUP__OP_qkv_attention_grad,
    CUP__OP_rope,
    CUP__OP_matmul,
    CUP__OP_linear,
    CUP__OP_linear_gelu,
    CUP__OP_quantize,
    CUP__OP_dequantize,
    CUP__OP_scaled_matmul,
    CUP__OP_matmul_list,
    CUP__OP_grouped_matmul,
    CUP__OP_linear_dropout,
    CUP__OP_linear_quantize,
    CUP__OP_scaled_grouped_matmul,
    CUP__OP_grouped_weight_grad,
    CUP__OP_linear_relu,
    CUP__OP_linear_silu,
    CUP__OP_linear_swiglu,
    CUP__OP_linear_add,
    CUP__OP_matmul_scaled,
    CUP__OP_matmul_into,
    CUP__OP_matmul_add,
    CUP__OP_matmul_gelu_grad,
    CUP__OP_matmul_swiglu_grad,
    CUP__OP_linear_weight_grad,
    CUP__OP_linear_int8,
    CUP__OP_linear_int4,
    CUP__OP_pack_int8,
    CUP__OP_pack_int4,
    CUP__OP_unpack_int8,
    CUP__OP_unpack_int4,
    CUP__OP_COUNT
} cup__op_id;

extern const cup__op cup__op_add;

extern const cup__op cup__op_sub;

extern const cup__op cup__op_mul;

extern const cup__op cup__op_div;

extern const cup__op cup__op_scale;
typedef struct cup__scale_attributes {
    double factor;
} cup__scale_attributes;

extern const cup__op cup__op_neg;

extern const cup__op cup__op_exp;

extern const cup__op cup__op_log;

extern const cup__op cup__op_sqrt;

extern const cup__op cup__op_pow;

extern const cup__op cup__op_abs;

extern const cup__op cup__op_sin;

extern const cup__op cup__op_cos;

extern const cup__op cup__op_erf;

extern const cup__op cup__op_maximum;

extern const cup__op cup__op_minimum;

extern const cup__op cup__op_lerp;
typedef struct cup__lerp_attributes {
    double weight;
} cup__lerp_attributes;

extern const cup__op cup__op_clamp;
typedef struct cup__clamp_attributes {
    double low;
    double high;
} cup__clamp_attributes;

extern const cup__op cup__op_pow_base_grad;
cup_tensor *cup__pow_base_grad(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *dy);

extern const cup__op cup__op_pow_exponent_grad;
cup_tensor *cup__pow_exponent_grad(cup_context *c, cup_tensor *a, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_abs_grad;
cup_tensor *cup__abs_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_sin_grad;
cup_tensor *cup__sin_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_cos_grad;
cup_tensor *cup__cos_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_erf_grad;
cup_tensor *cup__erf_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_maximum_grad;
cup_tensor *cup__maximum_grad(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *dy);

extern const cup__op cup__op_clamp_grad;
typedef struct cup__clamp_grad_attributes {
    double low;
    double high;
} cup__clamp_grad_attributes;
cup_tensor *cup__clamp_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double low,
                            double high);

extern const cup__op cup__op_div_grad;
cup_tensor *cup__div_grad(cup_context *c, cup_tensor *b, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_sqrt_grad;
cup_tensor *cup__sqrt_grad(cup_context *c, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_equal;

extern const cup__op cup__op_not_equal;

extern const cup__op cup__op_less;

extern const cup__op cup__op_less_equal;

extern const cup__op cup__op_greater;

extern const cup__op cup__op_greater_equal;

extern const cup__op cup__op_where;

extern const cup__op cup__op_tanh;

extern const cup__op cup__op_sigmoid;

extern const cup__op cup__op_relu;

extern const cup__op cup__op_gelu;

extern const cup__op cup__op_gelu_erf;

extern const cup__op cup__op_silu;

extern const cup__op cup__op_elu;
typedef struct cup__elu_attributes {
    double alpha;
} cup__elu_attributes;

extern const cup__op cup__op_leaky_relu;
typedef struct cup__leaky_relu_attributes {
    double slope;
} cup__leaky_relu_attributes;

extern const cup__op cup__op_hardswish;

extern const cup__op cup__op_softplus;

extern const cup__op cup__op_mish;

extern const cup__op cup__op_swiglu;

extern const cup__op cup__op_swiglu_grad;
cup_status cup__swiglu_grad(cup_context *c, cup_tensor *gate, cup_tensor *up, cup_tensor *dy,
                            cup_tensor **dgate, cup_tensor **dup);

extern const cup__op cup__op_elu_grad;
typedef struct cup__elu_grad_attributes {
    double alpha;
} cup__elu_grad_attributes;
cup_tensor *cup__elu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double alpha);

extern const cup__op cup__op_leaky_relu_grad;
typedef struct cup__leaky_relu_grad_attributes {
    double slope;
} cup__leaky_relu_grad_attributes;
cup_tensor *cup__leaky_relu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double slope);

extern const cup__op cup__op_hardswish_grad;
cup_tensor *cup__hardswish_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_softplus_grad;
cup_tensor *cup__softplus_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_mish_grad;
cup_tensor *cup__mish_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_tanh_grad;
cup_tensor *cup__tanh_grad(cup_context *c, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_sigmoid_grad;
cup_tensor *cup__sigmoid_grad(cup_context *c, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_relu_grad;
cup_tensor *cup__relu_grad(cup_context *c, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_gelu_grad;
cup_tensor *cup__gelu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_gelu_erf_grad;
cup_tensor *cup__gelu_erf_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_silu_grad;
cup_tensor *cup__silu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy);

extern const cup__op cup__op_dropout;
typedef struct cup__dropout_attributes {
    double p;
} cup__dropout_attributes;

extern const cup__op cup__op_dropout_add;
typedef struct cup__dropout_add_attributes {
    double p;
} cup__dropout_add_attributes;

extern const cup__op cup__op_dropout_grad;
typedef struct cup__dropout_grad_attributes {
    double p;
} cup__dropout_grad_attributes;
cup_tensor *cup__dropout_grad(cup_context *c, cup_tensor *dy, cup_tensor *mask, double p);

extern const cup__op cup__op_full;
typedef struct cup__full_attributes {
    cup_dtype dtype;
    int64_t shape[8];
    int shape_count;
    double value;
} cup__full_attributes;

extern const cup__op cup__op_copy;

extern const cup__op cup__op_cast;
typedef struct cup__cast_attributes {
    cup_dtype dtype;
} cup__cast_attributes;

extern const cup__op cup__op_cast_transpose;
typedef struct cup__cast_transpose_attributes {
    cup_dtype dtype;
} cup__cast_transpose_attributes;

extern const cup__op cup__op_uniform;
typedef struct cup__uniform_attributes {
    cup_dtype dtype;
    int64_t shape[8];
    int shape_count;
    double low;
    double high;
} cup__uniform_attributes;

extern const cup__op cup__op_normal;
typedef struct cup__normal_attributes {
    cup_dtype dtype;
    int64_t shape[8];
    int shape_count;
    double mean;
    double deviation;
} cup__normal_attributes;

extern const cup__op cup__op_reshape;
typedef struct cup__reshape_attributes {
    int64_t shape[8];
    int shape_count;
} cup__reshape_attributes;

extern const cup__op cup__op_broadcast;
typedef struct cup__broadcast_attributes {
    int64_t shape[8];
    int shape_count;
} cup__broadcast_attributes;

extern const cup__op cup__op_permute;
typedef struct cup__permute_attributes {
    int64_t axes[8];
    int axes_count;
} cup__permute_attributes;

extern const cup__op cup__op_slice;
typedef struct cup__slice_attributes {
    int64_t starts[8];
    int starts_count;
    int64_t sizes[8];
    int sizes_count;
} cup__slice_attributes;

extern const cup__op cup__op_concat;
typedef struct cup__concat_attributes {
    int axis;
} cup__concat_attributes;

extern const cup__op cup__op_sum;
typedef struct cup__sum_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__sum_attributes;

extern const cup__op cup__op_mean;
typedef struct cup__mean_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__mean_attributes;

extern const cup__op cup__op_max;
typedef struct cup__max_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__max_attributes;

extern const cup__op cup__op_min;
typedef struct cup__min_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__min_attributes;

extern const cup__op cup__op_argmax;
typedef struct cup__argmax_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__argmax_attributes;

extern const cup__op cup__op_argmin;
typedef struct cup__argmin_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__argmin_attributes;

extern const cup__op cup__op_norm;
typedef struct cup__norm_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__norm_attributes;

extern const cup__op cup__op_var;
typedef struct cup__var_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
    int correction;
} cup__var_attributes;

extern const cup__op cup__op_logsumexp;
typedef struct cup__logsumexp_attributes {
    int64_t axes[8];
    int axes_count;
    bool keep;
} cup__logsumexp_attributes;

extern const cup__op cup__op_cumsum;
typedef struct cup__cumsum_attributes {
    int axis;
    bool reverse;
} cup__cumsum_attributes;

extern const cup__op cup__op_extreme_mask;
cup_tensor *cup__extreme_mask(cup_context *c, cup_tensor *x, cup_tensor *y);

extern const cup__op cup__op_extreme_grad;
cup_tensor *cup__extreme_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy,
                              cup_tensor *n);

extern const cup__op cup__op_norm_grad;
cup_tensor *cup__norm_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_var_grad;
typedef struct cup__var_grad_attributes {
    double scale;
} cup__var_grad_attributes;
cup_tensor *cup__var_grad(cup_context *c, cup_tensor *x, cup_tensor *mean, cup_tensor *dy,
                          double scale);

extern const cup__op cup__op_logsumexp_grad;
cup_tensor *cup__logsumexp_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy);

extern const cup__op cup__op_max_pool2d;
typedef struct cup__max_pool2d_attributes {
    int64_t window[8];
    int window_count;
    int64_t stride[8];
    int stride_count;
    int64_t padding[8];
    int padding_count;
    int64_t dilation[8];
    int dilation_count;
    bool ceil_mode;
    bool channels_last;
} cup__max_pool2d_attributes;

extern const cup__op cup__op_max_pool2d_grad;
typedef struct cup__max_pool2d_grad_attributes {
    int64_t window[8];
    int window_count;
    int64_t stride[8];
    int stride_count;
    int64_t padding[8];
    int padding_count;
    int64_t dilation[8];
    int dilation_count;
    bool channels_last;
    int64_t height;
    int64_t width;
} cup__max_pool2d_grad_attributes;
cup_tensor *cup__max_pool2d_grad(cup_context *c, cup_tensor *dy, cup_tensor *places,
                                 const int64_t *window, int window_count, const int64_t *stride,
                                 int stride_count, const int64_t *padding, int padding_count,
                                 const int64_t *dilation, int dilation_count, bool channels_last,
                                 int64_t height, int64_t width);

extern const cup__op cup__op_avg_pool2d;
typedef struct cup__avg_pool2d_attributes {
    int64_t window[8];
    int window_count;
    int64_t stride[8];
    int stride_count;
    int64_t padding[8];
    int padding_count;
    bool ceil_mode;
    bool count_include_pad;
    bool channels_last;
} cup__avg_pool2d_attributes;

extern const cup__op cup__op_avg_pool2d_grad;
typedef struct cup__avg_pool2d_grad_attributes {
    int64_t window[8];
    int window_count;
    int64_t stride[8];
    int stride_count;
    int64_t padding[8];
    int padding_count;
    bool count_include_pad;
    bool channels_last;
    int64_t height;
    int64_t width;
} cup__avg_pool2d_grad_attributes;
cup_tensor *cup__avg_pool2d_grad(cup_context *c, cup_tensor *dy, const int64_t *window,
                                 int window_count, const int64_t *stride, int stride_count,
                                 const int64_t *padding, int padding_count,
                                 bool count_include_pad, bool channels_last, int64_t height,
                                 int64_t width);

extern const cup__op cup__op_adaptive_avg_pool2d;
typedef struct cup__adaptive_avg_pool2d_attributes {
    int64_t size[8];
    int size_count;
    bool channels_last;
} cup__adaptive_avg_pool2d_attributes;

extern const cup__op cup__op_adaptive_avg_pool2d_grad;
typedef struct cup__adaptive_avg_pool2d_grad_attributes {
    bool channels_last;
    int64_t height;
    int64_t width;
} cup__adaptive_avg_pool2d_grad_attributes;
cup_tensor *cup__adaptive_avg_pool2d_grad(cup_context *c, cup_tensor *dy, bool channels_last,
                                          int64_t height, int64_t width);

extern const cup__op cup__op_adaptive_max_pool2d;
typedef struct cup__adaptive_max_pool2d_attributes {
    int64_t size[8];
    int size_count;
    bool channels_last;
} cup__adaptive_max_pool2d_attributes;

extern const cup__op cup__op_adaptive_max_pool2d_grad;
typedef struct cup__adaptive_max_pool2d_grad_attributes {
    bool channels_last;
    int64_t height;
    int64_t width;
} cup__adaptive_max_pool2d_grad_attributes;
cup_tensor *cup__adaptive_max_pool2d_grad(cup_context *c, cup_tensor *dy, cup_tensor *places,
                                          bool channels_last, int64_t height, int64_t width);

extern const cup__op cup__op_layernorm;
typedef struct cup__layernorm_attributes {
    double eps;
} cup__layernorm_attributes;

extern const cup__op cup__op_rmsnorm;
typedef struct cup__rmsnorm_attributes {
    double eps;
} cup__rmsnorm_attributes;

extern const cup__op cup__op_add_layernorm;
typedef struct cup__add_layernorm_attributes {
    double eps;
} cup__add_layernorm_attributes;

extern const cup__op cup__op_add_rmsnorm;
typedef struct cup__add_rmsnorm_attributes {
    double eps;
} cup__add_rmsnorm_attributes;

extern const cup__op cup__op_layernorm_grad;
typedef struct cup__layernorm_grad_attributes {
    cup_dtype dtype;
    bool want_gamma;
    bool want_beta;
} cup__layernorm_grad_attributes;
cup_status cup__layernorm_grad(cup_context *c, cup_tensor *dy, cup_tensor *x, cup_tensor *rstd,
                               cup_tensor *mean, cup_tensor *gamma, cup_tensor *dsum,
                               cup_dtype dtype, bool want_gamma, bool want_beta, cup_tensor **dx,
                               cup_tensor **dgamma, cup_tensor **dbeta);

extern const cup__op cup__op_batchnorm;
typedef struct cup__batchnorm_attributes {
    int axis;
    bool train;
    double eps;
    double momentum;
} cup__batchnorm_attributes;

extern const cup__op cup__op_groupnorm;
typedef struct cup__groupnorm_attributes {
    int groups;
    int axis;
    double eps;
} cup__groupnorm_attributes;

extern const cup__op cup__op_channelnorm_grad;
typedef struct cup__channelnorm_grad_attributes {
    int axis;
    int groups;
    bool constant;
    cup_dtype dtype;
    bool want_gamma;
    bool want_beta;
} cup__channelnorm_grad_attributes;
cup_status cup__channelnorm_grad(cup_context *c, cup_tensor *dy, cup_tensor *x, cup_tensor *mean,
                                 cup_tensor *rstd, cup_tensor *gamma, int axis, int groups,
                                 bool constant, cup_dtype dtype, bool want_gamma, bool want_beta,
                                 cup_tensor **dx, cup_tensor **dgamma, cup_tensor **dbeta);

extern const cup__op cup__op_softmax;
typedef struct cup__softmax_attributes {
    int axis;
} cup__softmax_attributes;

extern const cup__op cup__op_log_softmax;
typedef struct cup__log_softmax_attributes {
    int axis;
} cup__log_softmax_attributes;

extern const cup__op cup__op_softmax_grad;
typedef struct cup__softmax_grad_attributes {
    int axis;
} cup__softmax_grad_attributes;
cup_tensor *cup__softmax_grad(cup_context *c, cup_tensor *y, cup_tensor *dy, int axis);

extern const cup__op cup__op_log_softmax_grad;
typedef struct cup__log_softmax_grad_attributes {
    int axis;
} cup__log_softmax_grad_attributes;
cup_tensor *cup__log_softmax_grad(cup_context *c, cup_tensor *y, cup_tensor *dy, int axis);

extern const cup__op cup__op_cross_entropy;
typedef struct cup__cross_entropy_attributes {
    int64_t ignore_index;
    double label_smoothing;
    double z_loss;
    int64_t columns;
    bool in_place;
} cup__cross_entropy_attributes;

extern const cup__op cup__op_linear_cross_entropy;
typedef struct cup__linear_cross_entropy_attributes {
    int64_t ignore_index;
    double label_smoothing;
    double z_loss;
    int64_t columns;
    int64_t chunk;
} cup__linear_cross_entropy_attributes;

extern const cup__op cup__op_cross_entropy_part;
typedef struct cup__cross_entropy_part_attributes {
    int64_t ignore_index;
    double label_smoothing;
    double z_loss;
    int64_t columns;
} cup__cross_entropy_part_attributes;
cup_tensor *cup__cross_entropy_part(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                    cup_tensor *share, int64_t ignore_index,
                                    double label_smoothing, double z_loss, int64_t columns);

extern const cup__op cup__op_target_share;
typedef struct cup__target_share_attributes {
    int64_t ignore_index;
    cup_dtype dtype;
} cup__target_share_attributes;
cup_tensor *cup__target_share(cup_context *c, cup_tensor *targets, int64_t ignore_index,
                              cup_dtype dtype);

extern const cup__op cup__op_cross_entropy_grad;
typedef struct cup__cross_entropy_grad_attributes {
    int64_t ignore_index;
    double label_smoothing;
    double z_loss;
    int64_t columns;
} cup__cross_entropy_grad_attributes;
cup_tensor *cup__cross_entropy_grad(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                    cup_tensor *lse, cup_tensor *share, cup_tensor *dloss,
                                    int64_t ignore_index, double label_smoothing, double z_loss,
                                    int64_t columns);

extern const cup__op cup__op_scale_by;
cup_status cup__scale_by(cup_context *c, cup_tensor *x, cup_tensor *factor);

extern const cup__op cup__op_embedding;

extern const cup__op cup__op_embedding_grad;
typedef struct cup__embedding_grad_attributes {
    int64_t rows;
} cup__embedding_grad_attributes;
cup_tensor *cup__embedding_grad(cup_context *c, cup_tensor *dy, cup_tensor *ids, int64_t rows);

extern const cup__op cup__op_index_select;
typedef struct cup__index_select_attributes {
    int axis;
} cup__index_select_attributes;

extern const cup__op cup__op_gather;
typedef struct cup__gather_attributes {
    int axis;
} cup__gather_attributes;

extern const cup__op cup__op_scatter_add;
typedef struct cup__scatter_add_attributes {
    int axis;
} cup__scatter_add_attributes;

extern const cup__op cup__op_sort;
typedef struct cup__sort_attributes {
    int axis;
    bool descending;
} cup__sort_attributes;

extern const cup__op cup__op_top_k;
typedef struct cup__top_k_attributes {
    int64_t k;
    int axis;
    bool smallest;
} cup__top_k_attributes;

extern const cup__op cup__op_unsort;
typedef struct cup__unsort_attributes {
    int axis;
    int64_t size;
} cup__unsort_attributes;
cup_tensor *cup__unsort(cup_context *c, cup_tensor *dy, cup_tensor *indices, int axis,
                        int64_t size);

extern const cup__op cup__op_global_norm;

extern const cup__op cup__op_step_factors;
typedef struct cup__step_factors_attributes {
    double beta1;
    double beta2;
} cup__step_factors_attributes;
cup_tensor *cup__step_factors(cup_context *c, cup_tensor *hyper, cup_tensor *state,
                              cup_tensor *norm, double beta1, double beta2);

extern const cup__op cup__op_adamw;
typedef struct cup__adamw_attributes {
    double beta1;
    double beta2;
    double epsilon;
    bool stochastic;
} cup__adamw_attributes;
cup_status cup__adamw(cup_context *c, cup_tensor *const *x, int x_count, double beta1,
                      double beta2, double epsilon, bool stochastic);

extern const cup__op cup__op_sgd;
typedef struct cup__sgd_attributes {
    double momentum;
    bool nesterov;
    bool stochastic;
} cup__sgd_attributes;
cup_status cup__sgd(cup_context *c, cup_tensor *const *x, int x_count, double momentum,
                    bool nesterov, bool stochastic);

extern const cup__op cup__op_muon_momentum;
typedef struct cup__muon_momentum_attributes {
    double momentum;
} cup__muon_momentum_attributes;
cup_status cup__muon_momentum(cup_context *c, cup_tensor *const *x, int x_count, double momentum);

extern const cup__op cup__op_muon_step;
typedef struct cup__muon_step_attributes {
    bool stochastic;
} cup__muon_step_attributes;
cup_status cup__muon_step(cup_context *c, cup_tensor *const *x, int x_count, bool stochastic);

extern const cup__op cup__op_lion;
typedef struct cup__lion_attributes {
    double beta1;
    double beta2;
    bool stochastic;
} cup__lion_attributes;
cup_status cup__lion(cup_context *c, cup_tensor *const *x, int x_count, double beta1,
                     double beta2, bool stochastic);

extern const cup__op cup__op_attention;
typedef struct cup__attention_attributes {
    bool causal;
    double scale;
    double dropout;
} cup__attention_attributes;

extern const cup__op cup__op_attention_grad;
typedef struct cup__attention_grad_attributes {
    bool causal;
    double scale;
    double dropout;
    int64_t sequence;
} cup__attention_grad_attributes;
cup_status cup__attention_grad(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                               cup_tensor *o, cup_tensor *lse, cup_tensor *d_o, bool causal,
                               double scale, double dropout, int64_t sequence, cup_tensor **dq,
                               cup_tensor **dk, cup_tensor **dv);

extern const cup__op cup__op_qkv_attention;
typedef struct cup__qkv_attention_attributes {
    int heads;
    int kv_heads;
    bool causal;
    double scale;
    double dropout;
} cup__qkv_attention_attributes;

extern const cup__op cup__op_qkv_attention_grad;
typedef struct cup__qkv_attention_grad_attributes {
    int heads;
    int kv_heads;
    bool causal;
    double scale;
    double dropout;
    int64_t sequence;
} cup__qkv_attention_grad_attributes;
cup_tensor *cup__qkv_attention_grad(cup_context *c, cup_tensor *qkv, cup_tensor *o,
                                    cup_tensor *lse, cup_tensor *d_o, int heads, int kv_heads,
                                    bool causal, double scale, double dropout, int64_t sequence);

extern const cup__op cup__op_rope;
typedef struct cup__rope_attributes {
    double base;
    int64_t offset;
    int size;
    int heads;
    bool interleaved;
    bool inverse;
} cup__rope_attributes;

extern const cup__op cup__op_matmul;
typedef struct cup__matmul_attributes {
    bool transpose_a;
    bool transpose_b;
} cup__matmul_attributes;

extern const cup__op cup__op_linear;

extern const cup__op cup__op_linear_gelu;

extern const cup__op cup__op_quantize;
typedef struct cup__quantize_attributes {
    cup_dtype dtype;
    int block_rows;
    int block_columns;
} cup__quantize_attributes;

extern const cup__op cup__op_dequantize;
typedef struct cup__dequantize_attributes {
    cup_dtype dtype;
} cup__dequantize_attributes;

extern const cup__op cup__op_scaled_matmul;
typedef struct cup__scaled_matmul_attributes {
    cup_dtype dtype;
    bool fast_accumulation;
} cup__scaled_matmul_attributes;

extern const cup__op cup__op_matmul_list;
typedef struct cup__matmul_list_attributes {
    bool transpose_a;
    bool transpose_b;
} cup__matmul_list_attributes;

extern const cup__op cup__op_grouped_matmul;
typedef struct cup__grouped_matmul_attributes {
    bool transpose_weight;
} cup__grouped_matmul_attributes;

extern const cup__op cup__op_linear_dropout;
typedef struct cup__linear_dropout_attributes {
    double p;
} cup__linear_dropout_attributes;

extern const cup__op cup__op_linear_quantize;
typedef struct cup__linear_quantize_attributes {
    cup_dtype dtype;
    bool gelu;
} cup__linear_quantize_attributes;

extern const cup__op cup__op_scaled_grouped_matmul;
typedef struct cup__scaled_grouped_matmul_attributes {
    cup_dtype dtype;
    bool fast_accumulation;
} cup__scaled_grouped_matmul_attributes;

extern const cup__op cup__op_grouped_weight_grad;
cup_tensor *cup__grouped_weight_grad(cup_context *c, cup_tensor *a, cup_tensor *b,
                                     cup_tensor *offsets);

extern const cup__op cup__op_linear_relu;

extern const cup__op cup__op_linear_silu;

extern const cup__op cup__op_linear_swiglu;

extern const cup__op cup__op_linear_add;

extern const cup__op cup__op_matmul_scaled;
typedef struct cup__matmul_scaled_attributes {
    bool transpose_a;
    bool transpose_b;
    double factor;
} cup__matmul_scaled_attributes;

extern const cup__op cup__op_matmul_into;
typedef struct cup__matmul_into_attributes {
    bool transpose_a;
    bool transpose_b;
} cup__matmul_into_attributes;

extern const cup__op cup__op_matmul_add;
typedef struct cup__matmul_add_attributes {
    bool transpose_a;
    bool transpose_b;
} cup__matmul_add_attributes;

extern const cup__op cup__op_matmul_gelu_grad;
cup_tensor *cup__matmul_gelu_grad(cup_context *c, cup_tensor *dy, cup_tensor *weight,
                                  cup_tensor *pre);

extern const cup__op cup__op_matmul_swiglu_grad;
cup_tensor *cup__matmul_swiglu_grad(cup_context *c, cup_tensor *dy, cup_tensor *weight,
                                    cup_tensor *pre);

extern const cup__op cup__op_linear_weight_grad;
cup_status cup__linear_weight_grad(cup_context *c, cup_tensor *dy, cup_tensor *x,
                                   cup_tensor **dweight, cup_tensor **dbias);

extern const cup__op cup__op_linear_int8;

extern const cup__op cup__op_linear_int4;

extern const cup__op cup__op_pack_int8;
typedef struct cup__pack_int8_attributes {
    int group;
} cup__pack_int8_attributes;

extern const cup__op cup__op_pack_int4;
typedef struct cup__pack_int4_attributes {
    int group;
    bool symmetric;
} cup__pack_int4_attributes;

extern const cup__op cup__op_unpack_int8;
typedef struct cup__unpack_int8_attributes {
    cup_dtype dtype;
} cup__unpack_int8_attributes;

extern const cup__op cup__op_unpack_int4;
typedef struct cup__unpack_int4_attributes {
    cup_dtype dtype;
} cup__unpack_int4_attributes;

#endif
