/* Generated from src/ops/ops.def by `make gen`. */
#include <limits.h>

#include "ops/attributes.h"
#include "ops/call.h"

static const cup__attribute scale_attributes[] = {
    {"factor", CUP__KIND_FLOAT, offsetof(cup__scale_attributes, factor)},
    {NULL, 0, 0}};
static const cup__attribute lerp_attributes[] = {
    {"weight", CUP__KIND_FLOAT, offsetof(cup__lerp_attributes, weight)},
    {NULL, 0, 0}};
static const cup__attribute clamp_attributes[] = {
    {"low", CUP__KIND_FLOAT, offsetof(cup__clamp_attributes, low)},
    {"high", CUP__KIND_FLOAT, offsetof(cup__clamp_attributes, high)},
    {NULL, 0, 0}};
static const cup__attribute clamp_grad_attributes[] = {
    {"low", CUP__KIND_FLOAT, offsetof(cup__clamp_grad_attributes, low)},
    {"high", CUP__KIND_FLOAT, offsetof(cup__clamp_grad_attributes, high)},
    {NULL, 0, 0}};
static const cup__attribute elu_attributes[] = {
    {"alpha", CUP__KIND_FLOAT, offsetof(cup__elu_attributes, alpha)},
    {NULL, 0, 0}};
static const cup__attribute leaky_relu_attributes[] = {
    {"slope", CUP__KIND_FLOAT, offsetof(cup__leaky_relu_attributes, slope)},
    {NULL, 0, 0}};
static const cup__attribute elu_grad_attributes[] = {
    {"alpha", CUP__KIND_FLOAT, offsetof(cup__elu_grad_attributes, alpha)},
    {NULL, 0, 0}};
static const cup__attribute leaky_relu_grad_attributes[] = {
    {"slope", CUP__KIND_FLOAT, offsetof(cup__leaky_relu_grad_attributes, slope)},
    {NULL, 0, 0}};
static const cup__attribute dropout_attributes[] = {
    {"p", CUP__KIND_FLOAT, offsetof(cup__dropout_attributes, p)},
    {NULL, 0, 0}};
static const cup__attribute dropout_add_attributes[] = {
    {"p", CUP__KIND_FLOAT, offsetof(cup__dropout_add_attributes, p)},
    {NULL, 0, 0}};
static const cup__attribute dropout_grad_attributes[] = {
    {"p", CUP__KIND_FLOAT, offsetof(cup__dropout_grad_attributes, p)},
    {NULL, 0, 0}};
static const cup__attribute full_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__full_attributes, dtype)},
    {"shape", CUP__KIND_INTS, offsetof(cup__full_attributes, shape)},
    {"value", CUP__KIND_FLOAT, offsetof(cup__full_attributes, value)},
    {NULL, 0, 0}};
static const cup__attribute cast_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__cast_attributes, dtype)},
    {NULL, 0, 0}};
static const cup__attribute cast_transpose_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__cast_transpose_attributes, dtype)},
    {NULL, 0, 0}};
static const cup__attribute uniform_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__uniform_attributes, dtype)},
    {"shape", CUP__KIND_INTS, offsetof(cup__uniform_attributes, shape)},
    {"low", CUP__KIND_FLOAT, offsetof(cup__uniform_attributes, low)},
    {"high", CUP__KIND_FLOAT, offsetof(cup__uniform_attributes, high)},
    {NULL, 0, 0}};
static const cup__attribute normal_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__normal_attributes, dtype)},
    {"shape", CUP__KIND_INTS, offsetof(cup__normal_attributes, shape)},
    {"mean", CUP__KIND_FLOAT, offsetof(cup__normal_attributes, mean)},
    {"deviation", CUP__KIND_FLOAT, offsetof(cup__normal_attributes, deviation)},
    {NULL, 0, 0}};
static const cup__attribute reshape_attributes[] = {
    {"shape", CUP__KIND_INTS, offsetof(cup__reshape_attributes, shape)},
    {NULL, 0, 0}};
static const cup__attribute broadcast_attributes[] = {
    {"shape", CUP__KIND_INTS, offsetof(cup__broadcast_attributes, shape)},
    {NULL, 0, 0}};
static const cup__attribute permute_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__permute_attributes, axes)},
    {NULL, 0, 0}};
static const cup__attribute slice_attributes[] = {
    {"starts", CUP__KIND_INTS, offsetof(cup__slice_attributes, starts)},
    {"sizes", CUP__KIND_INTS, offsetof(cup__slice_attributes, sizes)},
    {NULL, 0, 0}};
static const cup__attribute concat_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__concat_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute sum_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__sum_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__sum_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute mean_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__mean_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__mean_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute max_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__max_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__max_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute min_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__min_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__min_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute argmax_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__argmax_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__argmax_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute argmin_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__argmin_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__argmin_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute norm_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__norm_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__norm_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute var_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__var_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__var_attributes, keep)},
    {"correction", CUP__KIND_INT, offsetof(cup__var_attributes, correction)},
    {NULL, 0, 0}};
static const cup__attribute logsumexp_attributes[] = {
    {"axes", CUP__KIND_INTS, offsetof(cup__logsumexp_attributes, axes)},
    {"keep", CUP__KIND_BOOL, offsetof(cup__logsumexp_attributes, keep)},
    {NULL, 0, 0}};
static const cup__attribute cumsum_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__cumsum_attributes, axis)},
    {"reverse", CUP__KIND_BOOL, offsetof(cup__cumsum_attributes, reverse)},
    {NULL, 0, 0}};
static const cup__attribute var_grad_attributes[] = {
    {"scale", CUP__KIND_FLOAT, offsetof(cup__var_grad_attributes, scale)},
    {NULL, 0, 0}};
static const cup__attribute max_pool2d_attributes[] = {
    {"window", CUP__KIND_INTS, offsetof(cup__max_pool2d_attributes, window)},
    {"stride", CUP__KIND_INTS, offsetof(cup__max_pool2d_attributes, stride)},
    {"padding", CUP__KIND_INTS, offsetof(cup__max_pool2d_attributes, padding)},
    {"dilation", CUP__KIND_INTS, offsetof(cup__max_pool2d_attributes, dilation)},
    {"ceil_mode", CUP__KIND_BOOL, offsetof(cup__max_pool2d_attributes, ceil_mode)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__max_pool2d_attributes, channels_last)},
    {NULL, 0, 0}};
static const cup__attribute max_pool2d_grad_attributes[] = {
    {"window", CUP__KIND_INTS, offsetof(cup__max_pool2d_grad_attributes, window)},
    {"stride", CUP__KIND_INTS, offsetof(cup__max_pool2d_grad_attributes, stride)},
    {"padding", CUP__KIND_INTS, offsetof(cup__max_pool2d_grad_attributes, padding)},
    {"dilation", CUP__KIND_INTS, offsetof(cup__max_pool2d_grad_attributes, dilation)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__max_pool2d_grad_attributes, channels_last)},
    {"height", CUP__KIND_INT64, offsetof(cup__max_pool2d_grad_attributes, height)},
    {"width", CUP__KIND_INT64, offsetof(cup__max_pool2d_grad_attributes, width)},
    {NULL, 0, 0}};
static const cup__attribute avg_pool2d_attributes[] = {
    {"window", CUP__KIND_INTS, offsetof(cup__avg_pool2d_attributes, window)},
    {"stride", CUP__KIND_INTS, offsetof(cup__avg_pool2d_attributes, stride)},
    {"padding", CUP__KIND_INTS, offsetof(cup__avg_pool2d_attributes, padding)},
    {"ceil_mode", CUP__KIND_BOOL, offsetof(cup__avg_pool2d_attributes, ceil_mode)},
    {"count_include_pad", CUP__KIND_BOOL, offsetof(cup__avg_pool2d_attributes, count_include_pad)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__avg_pool2d_attributes, channels_last)},
    {NULL, 0, 0}};
static const cup__attribute avg_pool2d_grad_attributes[] = {
    {"window", CUP__KIND_INTS, offsetof(cup__avg_pool2d_grad_attributes, window)},
    {"stride", CUP__KIND_INTS, offsetof(cup__avg_pool2d_grad_attributes, stride)},
    {"padding", CUP__KIND_INTS, offsetof(cup__avg_pool2d_grad_attributes, padding)},
    {"count_include_pad", CUP__KIND_BOOL, offsetof(cup__avg_pool2d_grad_attributes, count_include_pad)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__avg_pool2d_grad_attributes, channels_last)},
    {"height", CUP__KIND_INT64, offsetof(cup__avg_pool2d_grad_attributes, height)},
    {"width", CUP__KIND_INT64, offsetof(cup__avg_pool2d_grad_attributes, width)},
    {NULL, 0, 0}};
static const cup__attribute adaptive_avg_pool2d_attributes[] = {
    {"size", CUP__KIND_INTS, offsetof(cup__adaptive_avg_pool2d_attributes, size)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__adaptive_avg_pool2d_attributes, channels_last)},
    {NULL, 0, 0}};
static const cup__attribute adaptive_avg_pool2d_grad_attributes[] = {
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__adaptive_avg_pool2d_grad_attributes, channels_last)},
    {"height", CUP__KIND_INT64, offsetof(cup__adaptive_avg_pool2d_grad_attributes, height)},
    {"width", CUP__KIND_INT64, offsetof(cup__adaptive_avg_pool2d_grad_attributes, width)},
    {NULL, 0, 0}};
static const cup__attribute adaptive_max_pool2d_attributes[] = {
    {"size", CUP__KIND_INTS, offsetof(cup__adaptive_max_pool2d_attributes, size)},
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__adaptive_max_pool2d_attributes, channels_last)},
    {NULL, 0, 0}};
static const cup__attribute adaptive_max_pool2d_grad_attributes[] = {
    {"channels_last", CUP__KIND_BOOL, offsetof(cup__adaptive_max_pool2d_grad_attributes, channels_last)},
    {"height", CUP__KIND_INT64, offsetof(cup__adaptive_max_pool2d_grad_attributes, height)},
    {"width", CUP__KIND_INT64, offsetof(cup__adaptive_max_pool2d_grad_attributes, width)},
    {NULL, 0, 0}};
static const cup__attribute layernorm_attributes[] = {
    {"eps", CUP__KIND_FLOAT, offsetof(cup__layernorm_attributes, eps)},
    {NULL, 0, 0}};
static const cup__attribute rmsnorm_attributes[] = {
    {"eps", CUP__KIND_FLOAT, offsetof(cup__rmsnorm_attributes, eps)},
    {NULL, 0, 0}};
static const cup__attribute add_layernorm_attributes[] = {
    {"eps", CUP__KIND_FLOAT, offsetof(cup__add_layernorm_attributes, eps)},
    {NULL, 0, 0}};
static const cup__attribute add_rmsnorm_attributes[] = {
    {"eps", CUP__KIND_FLOAT, offsetof(cup__add_rmsnorm_attributes, eps)},
    {NULL, 0, 0}};
static const cup__attribute layernorm_grad_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__layernorm_grad_attributes, dtype)},
    {"want_gamma", CUP__KIND_BOOL, offsetof(cup__layernorm_grad_attributes, want_gamma)},
    {"want_beta", CUP__KIND_BOOL, offsetof(cup__layernorm_grad_attributes, want_beta)},
    {NULL, 0, 0}};
static const cup__attribute batchnorm_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__batchnorm_attributes, axis)},
    {"train", CUP__KIND_BOOL, offsetof(cup__batchnorm_attributes, train)},
    {"eps", CUP__KIND_FLOAT, offsetof(cup__batchnorm_attributes, eps)},
    {"momentum", CUP__KIND_FLOAT, offsetof(cup__batchnorm_attributes, momentum)},
    {NULL, 0, 0}};
static const cup__attribute groupnorm_attributes[] = {
    {"groups", CUP__KIND_INT, offsetof(cup__groupnorm_attributes, groups)},
    {"axis", CUP__KIND_INT, offsetof(cup__groupnorm_attributes, axis)},
    {"eps", CUP__KIND_FLOAT, offsetof(cup__groupnorm_attributes, eps)},
    {NULL, 0, 0}};
static const cup__attribute channelnorm_grad_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__channelnorm_grad_attributes, axis)},
    {"groups", CUP__KIND_INT, offsetof(cup__channelnorm_grad_attributes, groups)},
    {"constant", CUP__KIND_BOOL, offsetof(cup__channelnorm_grad_attributes, constant)},
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__channelnorm_grad_attributes, dtype)},
    {"want_gamma", CUP__KIND_BOOL, offsetof(cup__channelnorm_grad_attributes, want_gamma)},
    {"want_beta", CUP__KIND_BOOL, offsetof(cup__channelnorm_grad_attributes, want_beta)},
    {NULL, 0, 0}};
static const cup__attribute softmax_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__softmax_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute log_softmax_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__log_softmax_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute softmax_grad_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__softmax_grad_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute log_softmax_grad_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__log_softmax_grad_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute cross_entropy_attributes[] = {
    {"ignore_index", CUP__KIND_INT64, offsetof(cup__cross_entropy_attributes, ignore_index)},
    {"label_smoothing", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_attributes, label_smoothing)},
    {"z_loss", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_attributes, z_loss)},
    {"columns", CUP__KIND_INT64, offsetof(cup__cross_entropy_attributes, columns)},
    {"in_place", CUP__KIND_BOOL, offsetof(cup__cross_entropy_attributes, in_place)},
    {NULL, 0, 0}};
static const cup__attribute linear_cross_entropy_attributes[] = {
    {"ignore_index", CUP__KIND_INT64, offsetof(cup__linear_cross_entropy_attributes, ignore_index)},
    {"label_smoothing", CUP__KIND_FLOAT, offsetof(cup__linear_cross_entropy_attributes, label_smoothing)},
    {"z_loss", CUP__KIND_FLOAT, offsetof(cup__linear_cross_entropy_attributes, z_loss)},
    {"columns", CUP__KIND_INT64, offsetof(cup__linear_cross_entropy_attributes, columns)},
    {"chunk", CUP__KIND_INT64, offsetof(cup__linear_cross_entropy_attributes, chunk)},
    {NULL, 0, 0}};
static const cup__attribute cross_entropy_part_attributes[] = {
    {"ignore_index", CUP__KIND_INT64, offsetof(cup__cross_entropy_part_attributes, ignore_index)},
    {"label_smoothing", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_part_attributes, label_smoothing)},
    {"z_loss", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_part_attributes, z_loss)},
    {"columns", CUP__KIND_INT64, offsetof(cup__cross_entropy_part_attributes, columns)},
    {NULL, 0, 0}};
static const cup__attribute target_share_attributes[] = {
    {"ignore_index", CUP__KIND_INT64, offsetof(cup__target_share_attributes, ignore_index)},
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__target_share_attributes, dtype)},
    {NULL, 0, 0}};
static const cup__attribute cross_entropy_grad_attributes[] = {
    {"ignore_index", CUP__KIND_INT64, offsetof(cup__cross_entropy_grad_attributes, ignore_index)},
    {"label_smoothing", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_grad_attributes, label_smoothing)},
    {"z_loss", CUP__KIND_FLOAT, offsetof(cup__cross_entropy_grad_attributes, z_loss)},
    {"columns", CUP__KIND_INT64, offsetof(cup__cross_entropy_grad_attributes, columns)},
    {NULL, 0, 0}};
static const cup__attribute embedding_grad_attributes[] = {
    {"rows", CUP__KIND_INT64, offsetof(cup__embedding_grad_attributes, rows)},
    {NULL, 0, 0}};
static const cup__attribute index_select_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__index_select_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute gather_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__gather_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute scatter_add_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__scatter_add_attributes, axis)},
    {NULL, 0, 0}};
static const cup__attribute sort_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__sort_attributes, axis)},
    {"descending", CUP__KIND_BOOL, offsetof(cup__sort_attributes, descending)},
    {NULL, 0, 0}};
static const cup__attribute top_k_attributes[] = {
    {"k", CUP__KIND_INT64, offsetof(cup__top_k_attributes, k)},
    {"axis", CUP__KIND_INT, offsetof(cup__top_k_attributes, axis)},
    {"smallest", CUP__KIND_BOOL, offsetof(cup__top_k_attributes, smallest)},
    {NULL, 0, 0}};
static const cup__attribute unsort_attributes[] = {
    {"axis", CUP__KIND_INT, offsetof(cup__unsort_attributes, axis)},
    {"size", CUP__KIND_INT64, offsetof(cup__unsort_attributes, size)},
    {NULL, 0, 0}};
static const cup__attribute step_factors_attributes[] = {
    {"beta1", CUP__KIND_FLOAT, offsetof(cup__step_factors_attributes, beta1)},
    {"beta2", CUP__KIND_FLOAT, offsetof(cup__step_factors_attributes, beta2)},
    {NULL, 0, 0}};
static const cup__attribute adamw_attributes[] = {
    {"beta1", CUP__KIND_FLOAT, offsetof(cup__adamw_attributes, beta1)},
    {"beta2", CUP__KIND_FLOAT, offsetof(cup__adamw_attributes, beta2)},
    {"epsilon", CUP__KIND_FLOAT, offsetof(cup__adamw_attributes, epsilon)},
    {"stochastic", CUP__KIND_BOOL, offsetof(cup__adamw_attributes, stochastic)},
    {NULL, 0, 0}};
static const cup__attribute sgd_attributes[] = {
    {"momentum", CUP__KIND_FLOAT, offsetof(cup__sgd_attributes, momentum)},
    {"nesterov", CUP__KIND_BOOL, offsetof(cup__sgd_attributes, nesterov)},
    {"stochastic", CUP__KIND_BOOL, offsetof(cup__sgd_attributes, stochastic)},
    {NULL, 0, 0}};
static const cup__attribute muon_momentum_attributes[] = {
    {"momentum", CUP__KIND_FLOAT, offsetof(cup__muon_momentum_attributes, momentum)},
    {NULL, 0, 0}};
static const cup__attribute muon_step_attributes[] = {
    {"stochastic", CUP__KIND_BOOL, offsetof(cup__muon_step_attributes, stochastic)},
    {NULL, 0, 0}};
static const cup__attribute lion_attributes[] = {
    {"beta1", CUP__KIND_FLOAT, offsetof(cup__lion_attributes, beta1)},
    {"beta2", CUP__KIND_FLOAT, offsetof(cup__lion_attributes, beta2)},
    {"stochastic", CUP__KIND_BOOL, offsetof(cup__lion_attributes, stochastic)},
    {NULL, 0, 0}};
static const cup__attribute attention_attributes[] = {
    {"causal", CUP__KIND_BOOL, offsetof(cup__attention_attributes, causal)},
    {"scale", CUP__KIND_FLOAT, offsetof(cup__attention_attributes, scale)},
    {"dropout", CUP__KIND_FLOAT, offsetof(cup__attention_attributes, dropout)},
    {NULL, 0, 0}};
static const cup__attribute attention_grad_attributes[] = {
    {"causal", CUP__KIND_BOOL, offsetof(cup__attention_grad_attributes, causal)},
    {"scale", CUP__KIND_FLOAT, offsetof(cup__attention_grad_attributes, scale)},
    {"dropout", CUP__KIND_FLOAT, offsetof(cup__attention_grad_attributes, dropout)},
    {"sequence", CUP__KIND_INT64, offsetof(cup__attention_grad_attributes, sequence)},
    {NULL, 0, 0}};
static const cup__attribute qkv_attention_attributes[] = {
    {"heads", CUP__KIND_INT, offsetof(cup__qkv_attention_attributes, heads)},
    {"kv_heads", CUP__KIND_INT, offsetof(cup__qkv_attention_attributes, kv_heads)},
    {"causal", CUP__KIND_BOOL, offsetof(cup__qkv_attention_attributes, causal)},
    {"scale", CUP__KIND_FLOAT, offsetof(cup__qkv_attention_attributes, scale)},
    {"dropout", CUP__KIND_FLOAT, offsetof(cup__qkv_attention_attributes, dropout)},
    {NULL, 0, 0}};
static const cup__attribute qkv_attention_grad_attributes[] = {
    {"heads", CUP__KIND_INT, offsetof(cup__qkv_attention_grad_attributes, heads)},
    {"kv_heads", CUP__KIND_INT, offsetof(cup__qkv_attention_grad_attributes, kv_heads)},
    {"causal", CUP__KIND_BOOL, offsetof(cup__qkv_attention_grad_attributes, causal)},
    {"scale", CUP__KIND_FLOAT, offsetof(cup__qkv_attention_grad_attributes, scale)},
    {"dropout", CUP__KIND_FLOAT, offsetof(cup__qkv_attention_grad_attributes, dropout)},
    {"sequence", CUP__KIND_INT64, offsetof(cup__qkv_attention_grad_attributes, sequence)},
    {NULL, 0, 0}};
static const cup__attribute rope_attributes[] = {
    {"base", CUP__KIND_FLOAT, offsetof(cup__rope_attributes, base)},
    {"offset", CUP__KIND_INT64, offsetof(cup__rope_attributes, offset)},
    {"size", CUP__KIND_INT, offsetof(cup__rope_attributes, size)},
    {"heads", CUP__KIND_INT, offsetof(cup__rope_attributes, heads)},
    {"interleaved", CUP__KIND_BOOL, offsetof(cup__rope_attributes, interleaved)},
    {"inverse", CUP__KIND_BOOL, offsetof(cup__rope_attributes, inverse)},
    {NULL, 0, 0}};
static const cup__attribute matmul_attributes[] = {
    {"transpose_a", CUP__KIND_BOOL, offsetof(cup__matmul_attributes, transpose_a)},
    {"transpose_b", CUP__KIND_BOOL, offsetof(cup__matmul_attributes, transpose_b)},
    {NULL, 0, 0}};
static const cup__attribute quantize_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__quantize_attributes, dtype)},
    {"block_rows", CUP__KIND_INT, offsetof(cup__quantize_attributes, block_rows)},
    {"block_columns", CUP__KIND_INT, offsetof(cup__quantize_attributes, block_columns)},
    {NULL, 0, 0}};
static const cup__attribute dequantize_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__dequantize_attributes, dtype)},
    {NULL, 0, 0}};
static const cup__attribute scaled_matmul_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__scaled_matmul_attributes, dtype)},
    {"fast_accumulation", CUP__KIND_BOOL, offsetof(cup__scaled_matmul_attributes, fast_accumulation)},
    {NULL, 0, 0}};
static const cup__attribute matmul_list_attributes[] = {
    {"transpose_a", CUP__KIND_BOOL, offsetof(cup__matmul_list_attributes, transpose_a)},
    {"transpose_b", CUP__KIND_BOOL, offsetof(cup__matmul_list_attributes, transpose_b)},
    {NULL, 0, 0}};
static const cup__attribute grouped_matmul_attributes[] = {
    {"transpose_weight", CUP__KIND_BOOL, offsetof(cup__grouped_matmul_attributes, transpose_weight)},
    {NULL, 0, 0}};
static const cup__attribute linear_dropout_attributes[] = {
    {"p", CUP__KIND_FLOAT, offsetof(cup__linear_dropout_attributes, p)},
    {NULL, 0, 0}};
static const cup__attribute linear_quantize_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__linear_quantize_attributes, dtype)},
    {"gelu", CUP__KIND_BOOL, offsetof(cup__linear_quantize_attributes, gelu)},
    {NULL, 0, 0}};
static const cup__attribute scaled_grouped_matmul_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__scaled_grouped_matmul_attributes, dtype)},
    {"fast_accumulation", CUP__KIND_BOOL, offsetof(cup__scaled_grouped_matmul_attributes, fast_accumulation)},
    {NULL, 0, 0}};
static const cup__attribute matmul_scaled_attributes[] = {
    {"transpose_a", CUP__KIND_BOOL, offsetof(cup__matmul_scaled_attributes, transpose_a)},
    {"transpose_b", CUP__KIND_BOOL, offsetof(cup__matmul_scaled_attributes, transpose_b)},
    {"factor", CUP__KIND_FLOAT, offsetof(cup__matmul_scaled_attributes, factor)},
    {NULL, 0, 0}};
static const cup__attribute matmul_into_attributes[] = {
    {"transpose_a", CUP__KIND_BOOL, offsetof(cup__matmul_into_attributes, transpose_a)},
    {"transpose_b", CUP__KIND_BOOL, offsetof(cup__matmul_into_attributes, transpose_b)},
    {NULL, 0, 0}};
static const cup__attribute matmul_add_attributes[] = {
    {"transpose_a", CUP__KIND_BOOL, offsetof(cup__matmul_add_attributes, transpose_a)},
    {"transpose_b", CUP__KIND_BOOL, offsetof(cup__matmul_add_attributes, transpose_b)},
    {NULL, 0, 0}};
static const cup__attribute pack_int8_attributes[] = {
    {"group", CUP__KIND_INT, offsetof(cup__pack_int8_attributes, group)},
    {NULL, 0, 0}};
static const cup__attribute pack_int4_attributes[] = {
    {"group", CUP__KIND_INT, offsetof(cup__pack_int4_attributes, group)},
    {"symmetric", CUP__KIND_BOOL, offsetof(cup__pack_int4_attributes, symmetric)},
    {NULL, 0, 0}};
static const cup__attribute unpack_int8_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__unpack_int8_attributes, dtype)},
    {NULL, 0, 0}};
static const cup__attribute unpack_int4_attributes[] = {
    {"dtype", CUP__KIND_DTYPE, offsetof(cup__unpack_int4_attributes, dtype)},
    {NULL, 0, 0}};

const cup__row cup__rows[] = {
    {"add", &cup__op_add, "a, b", "",
     "y",
     "a + b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"sub", &cup__op_sub, "a, b", "",
     "y",
     "a - b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"mul", &cup__op_mul, "a, b", "",
     "y",
     "a * b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"div", &cup__op_div, "a, b", "",
     "y",
     "a / b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"scale", &cup__op_scale, "x", "float factor",
     "y",
     "factor x", 1, 1, 1, 1, true, sizeof(cup__scale_attributes), scale_attributes},
    {"neg", &cup__op_neg, "x", "",
     "y",
     "-x", 1, 1, 1, 1, true, 0, NULL},
    {"exp", &cup__op_exp, "x", "",
     "y",
     "e to the power x", 1, 1, 1, 1, true, 0, NULL},
    {"log", &cup__op_log, "x", "",
     "y",
     "natural logarithm of x", 1, 1, 1, 1, true, 0, NULL},
    {"sqrt", &cup__op_sqrt, "x", "",
     "y",
     "square root of x", 1, 1, 1, 1, true, 0, NULL},
    {"pow", &cup__op_pow, "a, b", "",
     "y",
     "a to the power b, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"abs", &cup__op_abs, "x", "",
     "y",
     "x without its sign", 1, 1, 1, 1, true, 0, NULL},
    {"sin", &cup__op_sin, "x", "",
     "y",
     "sine of x", 1, 1, 1, 1, true, 0, NULL},
    {"cos", &cup__op_cos, "x", "",
     "y",
     "cosine of x", 1, 1, 1, 1, true, 0, NULL},
    {"erf", &cup__op_erf, "x", "",
     "y",
     "error function of x", 1, 1, 1, 1, true, 0, NULL},
    {"maximum", &cup__op_maximum, "a, b", "",
     "y",
     "the larger of a and b, broadcast; NaN when one is; equal ones share the gradient", 2, 2, 1, 1, true, 0, NULL},
    {"minimum", &cup__op_minimum, "a, b", "",
     "y",
     "the smaller of a and b, broadcast; NaN when one is; equal ones share the gradient", 2, 2, 1, 1, true, 0, NULL},
    {"lerp", &cup__op_lerp, "a, b", "float weight",
     "y",
     "a + weight (b - a), broadcast; exactly b at weight 1", 2, 2, 1, 1, true, sizeof(cup__lerp_attributes), lerp_attributes},
    {"clamp", &cup__op_clamp, "x", "float low, float high",
     "y",
     "x, but at least low and at most high", 1, 1, 1, 1, true, sizeof(cup__clamp_attributes), clamp_attributes},
    {"pow_base_grad", &cup__op_pow_base_grad, "a, b, dy", "",
     "da",
     "dy b a^(b-1)", 3, 3, 1, 1, false, 0, NULL},
    {"pow_exponent_grad", &cup__op_pow_exponent_grad, "a, y, dy", "",
     "db",
     "dy y log a", 3, 3, 1, 1, false, 0, NULL},
    {"abs_grad", &cup__op_abs_grad, "x, dy", "",
     "dx",
     "dy times the sign of x", 2, 2, 1, 1, false, 0, NULL},
    {"sin_grad", &cup__op_sin_grad, "x, dy", "",
     "dx",
     "dy cos x", 2, 2, 1, 1, false, 0, NULL},
    {"cos_grad", &cup__op_cos_grad, "x, dy", "",
     "dx",
     "-dy sin x", 2, 2, 1, 1, false, 0, NULL},
    {"erf_grad", &cup__op_erf_grad, "x, dy", "",
     "dx",
     "dy times the derivative of erf at x", 2, 2, 1, 1, false, 0, NULL},
    {"maximum_grad", &cup__op_maximum_grad, "a, b, dy", "",
     "da",
     "dy where a is larger, half of it where they are equal, else 0", 3, 3, 1, 1, false, 0, NULL},
    {"clamp_grad", &cup__op_clamp_grad, "x, dy", "float low, float high",
     "dx",
     "dy where x is from low to high, else 0", 2, 2, 1, 1, false, sizeof(cup__clamp_grad_attributes), clamp_grad_attributes},
    {"div_grad", &cup__op_div_grad, "b, y, dy", "",
     "db",
     "-dy y / b", 3, 3, 1, 1, false, 0, NULL},
    {"sqrt_grad", &cup__op_sqrt_grad, "y, dy", "",
     "dx",
     "dy / 2 y", 2, 2, 1, 1, false, 0, NULL},
    {"equal", &cup__op_equal, "a, b", "",
     "y",
     "whether a equals b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"not_equal", &cup__op_not_equal, "a, b", "",
     "y",
     "whether a differs from b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"less", &cup__op_less, "a, b", "",
     "y",
     "whether a is less than b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"less_equal", &cup__op_less_equal, "a, b", "",
     "y",
     "whether a is at most b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"greater", &cup__op_greater, "a, b", "",
     "y",
     "whether a is greater than b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"greater_equal", &cup__op_greater_equal, "a, b", "",
     "y",
     "whether a is at least b, as bool, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"where", &cup__op_where, "condition, a, b", "",
     "y",
     "a where the condition, of dtype bool, holds, else b; broadcast", 3, 3, 1, 1, true, 0, NULL},
    {"tanh", &cup__op_tanh, "x", "",
     "y",
     "hyperbolic tangent of x", 1, 1, 1, 1, true, 0, NULL},
    {"sigmoid", &cup__op_sigmoid, "x", "",
     "y",
     "1 / (1 + exp(-x))", 1, 1, 1, 1, true, 0, NULL},
    {"relu", &cup__op_relu, "x", "",
     "y",
     "x where it is not below 0, else 0", 1, 1, 1, 1, true, 0, NULL},
    {"gelu", &cup__op_gelu, "x", "",
     "y",
     "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", 1, 1, 1, 1, true, 0, NULL},
    {"gelu_erf", &cup__op_gelu_erf, "x", "",
     "y",
     "0.5 x (1 + erf(x / sqrt(2)))", 1, 1, 1, 1, true, 0, NULL},
    {"silu", &cup__op_silu, "x", "",
     "y",
     "x / (1 + exp(-x))", 1, 1, 1, 1, true, 0, NULL},
    {"elu", &cup__op_elu, "x", "float alpha",
     "y",
     "x above 0, else alpha (exp(x) - 1)", 1, 1, 1, 1, true, sizeof(cup__elu_attributes), elu_attributes},
    {"leaky_relu", &cup__op_leaky_relu, "x", "float slope",
     "y",
     "x above 0, else slope x", 1, 1, 1, 1, true, sizeof(cup__leaky_relu_attributes), leaky_relu_attributes},
    {"hardswish", &cup__op_hardswish, "x", "",
     "y",
     "x min(max(x + 3, 0), 6) / 6", 1, 1, 1, 1, true, 0, NULL},
    {"softplus", &cup__op_softplus, "x", "",
     "y",
     "log(1 + exp(x)), without overflow", 1, 1, 1, 1, true, 0, NULL},
    {"mish", &cup__op_mish, "x", "",
     "y",
     "x tanh(log(1 + exp(x)))", 1, 1, 1, 1, true, 0, NULL},
    {"swiglu", &cup__op_swiglu, "gate, up", "",
     "y",
     "silu(gate) up, broadcast", 2, 2, 1, 1, true, 0, NULL},
    {"swiglu_grad", &cup__op_swiglu_grad, "gate, up, dy", "",
     "dgate, dup",
     "the gradients of swiglu", 3, 3, 2, 2, false, 0, NULL},
    {"elu_grad", &cup__op_elu_grad, "x, dy", "float alpha",
     "dx",
     "dy times the derivative of elu at x", 2, 2, 1, 1, false, sizeof(cup__elu_grad_attributes), elu_grad_attributes},
    {"leaky_relu_grad", &cup__op_leaky_relu_grad, "x, dy", "float slope",
     "dx",
     "dy times the derivative of leaky_relu at x", 2, 2, 1, 1, false, sizeof(cup__leaky_relu_grad_attributes), leaky_relu_grad_attributes},
    {"hardswish_grad", &cup__op_hardswish_grad, "x, dy", "",
     "dx",
     "dy times the derivative of hardswish at x", 2, 2, 1, 1, false, 0, NULL},
    {"softplus_grad", &cup__op_softplus_grad, "x, dy", "",
     "dx",
     "dy times the derivative of softplus at x", 2, 2, 1, 1, false, 0, NULL},
    {"mish_grad", &cup__op_mish_grad, "x, dy", "",
     "dx",
     "dy times the derivative of mish at x", 2, 2, 1, 1, false, 0, NULL},
    {"tanh_grad", &cup__op_tanh_grad, "y, dy", "",
     "dx",
     "dy (1 - y^2)", 2, 2, 1, 1, false, 0, NULL},
    {"sigmoid_grad", &cup__op_sigmoid_grad, "y, dy", "",
     "dx",
     "dy y (1 - y)", 2, 2, 1, 1, false, 0, NULL},
    {"relu_grad", &cup__op_relu_grad, "y, dy", "",
     "dx",
     "dy where y is above 0, else 0", 2, 2, 1, 1, false, 0, NULL},
    {"gelu_grad", &cup__op_gelu_grad, "x, dy", "",
     "dx",
     "dy times the derivative of gelu at x", 2, 2, 1, 1, false, 0, NULL},
    {"gelu_erf_grad", &cup__op_gelu_erf_grad, "x, dy", "",
     "dx",
     "dy times the derivative of gelu_erf at x", 2, 2, 1, 1, false, 0, NULL},
    {"silu_grad", &cup__op_silu_grad, "x, dy", "",
     "dx",
     "dy times the derivative of silu at x", 2, 2, 1, 1, false, 0, NULL},
    {"dropout", &cup__op_dropout, "x", "float p",
     "y; mask",
     "0 with probability p, which is rounded to a multiple of 2^-16, else x / (1 - p) with the p so rounded, so that the mean is kept", 1, 1, 1, 2, true, sizeof(cup__dropout_attributes), dropout_attributes},
    {"dropout_add", &cup__op_dropout_add, "residual, x", "float p",
     "y; mask",
     "residual + dropout(x), in one pass", 2, 2, 1, 2, true, sizeof(cup__dropout_add_attributes), dropout_add_attributes},
    {"dropout_grad", &cup__op_dropout_grad, "dy, mask", "float p",
     "dx",
     "dy / (1 - p) where the bit of the mask is set, else 0", 2, 2, 1, 1, false, sizeof(cup__dropout_grad_attributes), dropout_grad_attributes},
    {"full", &cup__op_full, "", "dtype dtype, ints shape, float value",
     "y",
     "a tensor whose elements all have one value", 0, 0, 1, 1, true, sizeof(cup__full_attributes), full_attributes},
    {"copy", &cup__op_copy, "x", "",
     "y",
     "the same elements, in row-major order in new memory", 1, 1, 1, 1, true, 0, NULL},
    {"cast", &cup__op_cast, "x", "dtype dtype",
     "y",
     "the same elements in another dtype: to nearest even; to integers towards zero, at most to the ends of their range", 1, 1, 1, 1, true, sizeof(cup__cast_attributes), cast_attributes},
    {"cast_transpose", &cup__op_cast_transpose, "x", "dtype dtype",
     "y, transposed",
     "the same elements in another float dtype, and with the last two dimensions exchanged, from one reading", 1, 1, 2, 2, true, sizeof(cup__cast_transpose_attributes), cast_transpose_attributes},
    {"uniform", &cup__op_uniform, "", "dtype dtype, ints shape, float low, float high",
     "y",
     "random numbers, equally likely from low up to, before rounding, not including high", 0, 0, 1, 1, true, sizeof(cup__uniform_attributes), uniform_attributes},
    {"normal", &cup__op_normal, "", "dtype dtype, ints shape, float mean, float deviation",
     "y",
     "normal random numbers", 0, 0, 1, 1, true, sizeof(cup__normal_attributes), normal_attributes},
    {"reshape", &cup__op_reshape, "x", "ints shape",
     "y",
     "the same elements in another shape, one size of which may be -1; a view where the strides allow, else a copy", 1, 1, 1, 1, true, sizeof(cup__reshape_attributes), reshape_attributes},
    {"broadcast", &cup__op_broadcast, "x", "ints shape",
     "y",
     "a view in which dimensions of size 1, or missing in front, are repeated", 1, 1, 1, 1, true, sizeof(cup__broadcast_attributes), broadcast_attributes},
    {"permute", &cup__op_permute, "x", "ints axes",
     "y",
     "a view with the dimensions in another order: dimension i of it is dimension axes[i] of x", 1, 1, 1, 1, true, sizeof(cup__permute_attributes), permute_attributes},
    {"slice", &cup__op_slice, "x", "ints starts, ints sizes",
     "y",
     "a view of sizes[i] elements from starts[i] on along each dimension i; a size of -1 means all that follow", 1, 1, 1, 1, true, sizeof(cup__slice_attributes), slice_attributes},
    {"concat", &cup__op_concat, "x...", "int axis",
     "y",
     "the inputs one after another along an axis", 1, INT_MAX, 1, 1, true, sizeof(cup__concat_attributes), concat_attributes},
    {"sum", &cup__op_sum, "x", "ints axes, bool keep",
     "y",
     "sum over the axes, over all when none is given; keep leaves them with size 1. Integers are summed as i64", 1, 1, 1, 1, true, sizeof(cup__sum_attributes), sum_attributes},
    {"mean", &cup__op_mean, "x", "ints axes, bool keep",
     "y",
     "mean over the axes, over all when none is given", 1, 1, 1, 1, true, sizeof(cup__mean_attributes), mean_attributes},
    {"max", &cup__op_max, "x", "ints axes, bool keep",
     "y",
     "largest element over the axes; NaN when there is one. Equal ones share the gradient", 1, 1, 1, 1, true, sizeof(cup__max_attributes), max_attributes},
    {"min", &cup__op_min, "x", "ints axes, bool keep",
     "y",
     "smallest element over the axes; NaN when there is one. Equal ones share the gradient", 1, 1, 1, 1, true, sizeof(cup__min_attributes), min_attributes},
    {"argmax", &cup__op_argmax, "x", "ints axes, bool keep",
     "y",
     "place of the largest element over the axes, over all when none is given, as i64: its number among the elements folded together. The first of equal ones; NaN counts as largest", 1, 1, 1, 1, true, sizeof(cup__argmax_attributes), argmax_attributes},
    {"argmin", &cup__op_argmin, "x", "ints axes, bool keep",
     "y",
     "place of the smallest element, as argmax gives that of the largest; NaN counts as smallest", 1, 1, 1, 1, true, sizeof(cup__argmin_attributes), argmin_attributes},
    {"norm", &cup__op_norm, "x", "ints axes, bool keep",
     "y",
     "root of the sum of squares over the axes", 1, 1, 1, 1, true, sizeof(cup__norm_attributes), norm_attributes},
    {"var", &cup__op_var, "x", "ints axes, bool keep, int correction",
     "y",
     "variance over the axes: squared distances from the mean, summed, over their number less the correction", 1, 1, 1, 1, true, sizeof(cup__var_attributes), var_attributes},
    {"logsumexp", &cup__op_logsumexp, "x", "ints axes, bool keep",
     "y",
     "log of the sum of exponentials over the axes, without overflow", 1, 1, 1, 1, true, sizeof(cup__logsumexp_attributes), logsumexp_attributes},
    {"cumsum", &cup__op_cumsum, "x", "int axis, bool reverse",
     "y",
     "sums of each element and all before it along the axis, or with reverse all behind it", 1, 1, 1, 1, true, sizeof(cup__cumsum_attributes), cumsum_attributes},
    {"extreme_mask", &cup__op_extreme_mask, "x, y", "",
     "mask",
     "1 where x equals y, else 0", 2, 2, 1, 1, false, 0, NULL},
    {"extreme_grad", &cup__op_extreme_grad, "x, y, dy, n", "",
     "dx",
     "dy / n where x equals y, else 0", 4, 4, 1, 1, false, 0, NULL},
    {"norm_grad", &cup__op_norm_grad, "x, y, dy", "",
     "dx",
     "dy x / y, and 0 where y is 0", 3, 3, 1, 1, false, 0, NULL},
    {"var_grad", &cup__op_var_grad, "x, mean, dy", "float scale",
     "dx",
     "scale (x - mean) dy", 3, 3, 1, 1, false, sizeof(cup__var_grad_attributes), var_grad_attributes},
    {"logsumexp_grad", &cup__op_logsumexp_grad, "x, y, dy", "",
     "dx",
     "dy exp(x - y)", 3, 3, 1, 1, false, 0, NULL},
    {"max_pool2d", &cup__op_max_pool2d, "x", "ints window, ints stride, ints padding, ints dilation, bool ceil_mode, bool channels_last",
     "y; places",
     "largest element of each window of x, which is [N,C,H,W], or [N,H,W,C] with channels_last; NaN when there is one. window, stride, padding and dilation are one number, or one each for height and width; without a stride it is the window, without the others 0 and 1; ceil_mode lets the last window reach over the edge. The first of equal ones gets the gradient", 1, 1, 1, 2, true, sizeof(cup__max_pool2d_attributes), max_pool2d_attributes},
    {"max_pool2d_grad", &cup__op_max_pool2d_grad, "dy, places", "ints window, ints stride, ints padding, ints dilation, bool channels_last, int64 height, int64 width",
     "dx",
     "the gradient of max_pool2d; places are those of the largest elements in their windows", 2, 2, 1, 1, false, sizeof(cup__max_pool2d_grad_attributes), max_pool2d_grad_attributes},
    {"avg_pool2d", &cup__op_avg_pool2d, "x", "ints window, ints stride, ints padding, bool ceil_mode, bool count_include_pad, bool channels_last",
     "y",
     "mean of each window of x; all as in max_pool2d. Padding counts as zeros with count_include_pad, else only elements of x count", 1, 1, 1, 1, true, sizeof(cup__avg_pool2d_attributes), avg_pool2d_attributes},
    {"avg_pool2d_grad", &cup__op_avg_pool2d_grad, "dy", "ints window, ints stride, ints padding, bool count_include_pad, bool channels_last, int64 height, int64 width",
     "dx",
     "the gradient of avg_pool2d", 1, 1, 1, 1, false, sizeof(cup__avg_pool2d_grad_attributes), avg_pool2d_grad_attributes},
    {"adaptive_avg_pool2d", &cup__op_adaptive_avg_pool2d, "x", "ints size, bool channels_last",
     "y",
     "mean of each of size[0] x size[1] windows that cover x, which is [N,C,H,W], or [N,H,W,C] with channels_last; one size is both. Of n windows over m elements number i reaches from floor(i m / n) up to, not including, ceil((i + 1) m / n)", 1, 1, 1, 1, true, sizeof(cup__adaptive_avg_pool2d_attributes), adaptive_avg_pool2d_attributes},
    {"adaptive_avg_pool2d_grad", &cup__op_adaptive_avg_pool2d_grad, "dy", "bool channels_last, int64 height, int64 width",
     "dx",
     "the gradient of adaptive_avg_pool2d", 1, 1, 1, 1, false, sizeof(cup__adaptive_avg_pool2d_grad_attributes), adaptive_avg_pool2d_grad_attributes},
    {"adaptive_max_pool2d", &cup__op_adaptive_max_pool2d, "x", "ints size, bool channels_last",
     "y; places",
     "largest element of each of size[0] x size[1] windows that cover x, as in adaptive_avg_pool2d; NaN when there is one. The first of equal ones gets the gradient", 1, 1, 1, 2, true, sizeof(cup__adaptive_max_pool2d_attributes), adaptive_max_pool2d_attributes},
    {"adaptive_max_pool2d_grad", &cup__op_adaptive_max_pool2d_grad, "dy, places", "bool channels_last, int64 height, int64 width",
     "dx",
     "the gradient of adaptive_max_pool2d; places are those of the largest elements in their windows", 2, 2, 1, 1, false, sizeof(cup__adaptive_max_pool2d_grad_attributes), adaptive_max_pool2d_grad_attributes},
    {"layernorm", &cup__op_layernorm, "x, gamma?, beta?", "float eps",
     "y; mean, rstd",
     "(x - mean) / sqrt(variance + eps) gamma + beta over the last dimension; gamma and beta in the dtype of x or in f32", 1, 3, 1, 3, true, sizeof(cup__layernorm_attributes), layernorm_attributes},
    {"rmsnorm", &cup__op_rmsnorm, "x, gamma?", "float eps",
     "y; rstd",
     "x / sqrt(mean of squares + eps) gamma over the last dimension; gamma in the dtype of x or in f32", 1, 2, 1, 2, true, sizeof(cup__rmsnorm_attributes), rmsnorm_attributes},
    {"add_layernorm", &cup__op_add_layernorm, "x, residual, gamma?, beta?", "float eps",
     "y, sum; mean, rstd",
     "sum is x + residual, rounded to their dtype, y is layernorm of sum, in one pass", 2, 4, 2, 4, true, sizeof(cup__add_layernorm_attributes), add_layernorm_attributes},
    {"add_rmsnorm", &cup__op_add_rmsnorm, "x, residual, gamma?", "float eps",
     "y, sum; rstd",
     "sum is x + residual, rounded to their dtype, y is rmsnorm of sum, in one pass", 2, 3, 2, 3, true, sizeof(cup__add_rmsnorm_attributes), add_rmsnorm_attributes},
    {"layernorm_grad", &cup__op_layernorm_grad, "dy, x, rstd, mean?, gamma?, dsum?", "dtype dtype, bool want_gamma, bool want_beta",
     "dx, dgamma, dbeta",
     "gradients of layernorm, or without mean of rmsnorm; dgamma and dbeta have the dtype, and no elements when not asked for; dsum is added to dx", 3, 6, 3, 3, false, sizeof(cup__layernorm_grad_attributes), layernorm_grad_attributes},
    {"batchnorm", &cup__op_batchnorm, "x, gamma?, beta?, running_mean?, running_var?", "int axis, bool train, float eps, float momentum",
     "y; mean, rstd",
     "(x - mean) / sqrt(variance + eps) gamma + beta for each channel, a place along the axis: 1 in [N,C,H,W], -1 in [N,H,W,C]. In training the statistics are those of x, and the running ones, if given, move by momentum towards its mean and unbiased variance, in place; otherwise they are the running ones. These are f32, or f64 for x in f64; gamma and beta have the dtype of x or f32", 1, 5, 1, 3, true, sizeof(cup__batchnorm_attributes), batchnorm_attributes},
    {"groupnorm", &cup__op_groupnorm, "x, gamma?, beta?", "int groups, int axis, float eps",
     "y; mean, rstd",
     "(x - mean) / sqrt(variance + eps) gamma + beta with the statistics of each group of neighbouring channels over all dimensions but the first; channels lie along the axis, 1 or the last. groups 0: each channel is one, instance normalisation. gamma and beta have an element a channel, in the dtype of x or in f32", 1, 3, 1, 3, true, sizeof(cup__groupnorm_attributes), groupnorm_attributes},
    {"channelnorm_grad", &cup__op_channelnorm_grad, "dy, x, mean, rstd, gamma?", "int axis, int groups, bool constant, dtype dtype, bool want_gamma, bool want_beta",
     "dx, dgamma, dbeta",
     "gradients of groupnorm, or with groups -1 of batchnorm; constant says that mean and rstd do not depend on x; dgamma and dbeta have the dtype, and no elements when not asked for", 4, 5, 3, 3, false, sizeof(cup__channelnorm_grad_attributes), channelnorm_grad_attributes},
    {"softmax", &cup__op_softmax, "x", "int axis",
     "y",
     "exp(x - max x) / sum of these, along the axis", 1, 1, 1, 1, true, sizeof(cup__softmax_attributes), softmax_attributes},
    {"log_softmax", &cup__op_log_softmax, "x", "int axis",
     "y",
     "log of softmax along the axis, without the loss of small values", 1, 1, 1, 1, true, sizeof(cup__log_softmax_attributes), log_softmax_attributes},
    {"softmax_grad", &cup__op_softmax_grad, "y, dy", "int axis",
     "dx",
     "y (dy - sum of y dy) along the axis", 2, 2, 1, 1, false, sizeof(cup__softmax_grad_attributes), softmax_grad_attributes},
    {"log_softmax_grad", &cup__op_log_softmax_grad, "y, dy", "int axis",
     "dx",
     "dy - exp(y) sum of dy along the axis", 2, 2, 1, 1, false, sizeof(cup__log_softmax_grad_attributes), log_softmax_grad_attributes},
    {"cross_entropy", &cup__op_cross_entropy, "logits, targets", "int64 ignore_index, float label_smoothing, float z_loss, int64 columns, bool in_place",
     "loss; lse, share",
     "mean over the rows of -log softmax of logits at the target, without rows whose target is ignore_index; f32 for 16-bit logits. label_smoothing spreads that part of the target over all classes; z_loss adds so much of logsumexp squared; when not 0, only the first columns are classes. in_place: a recorded call overwrites the logits by their gradient. A bad target is an error, on a GPU NaN", 2, 2, 1, 3, true, sizeof(cup__cross_entropy_attributes), cross_entropy_attributes},
    {"linear_cross_entropy", &cup__op_linear_cross_entropy, "x, weight, targets", "int64 ignore_index, float label_smoothing, float z_loss, int64 columns, int64 chunk",
     "loss; dx, dweight",
     "cross_entropy(linear(x, weight), targets), for x [..,K] and weight [N,K], whose logits exist for so many rows at a time only: chunk, or where it is 0 as many as take 256 MB. In training the gradients are made with the loss, and backward scales them", 3, 3, 1, 3, true, sizeof(cup__linear_cross_entropy_attributes), linear_cross_entropy_attributes},
    {"cross_entropy_part", &cup__op_cross_entropy_part, "logits, targets, share", "int64 ignore_index, float label_smoothing, float z_loss, int64 columns",
     "loss",
     "the sum of the rows' losses times the share; the logits become its gradient", 3, 3, 1, 1, false, sizeof(cup__cross_entropy_part_attributes), cross_entropy_part_attributes},
    {"target_share", &cup__op_target_share, "targets", "int64 ignore_index, dtype dtype",
     "share",
     "1 / the number of targets that are not ignore_index, or 0", 1, 1, 1, 1, false, sizeof(cup__target_share_attributes), target_share_attributes},
    {"cross_entropy_grad", &cup__op_cross_entropy_grad, "logits, targets, lse, share, dloss", "int64 ignore_index, float label_smoothing, float z_loss, int64 columns",
     "dlogits",
     "gradient of cross_entropy; 0 in columns that do not count", 5, 5, 1, 1, false, sizeof(cup__cross_entropy_grad_attributes), cross_entropy_grad_attributes},
    {"scale_by", &cup__op_scale_by, "x, factor", "",
     "",
     "x times the one element of factor, in place; nothing is touched when that is 1", 2, 2, 0, 0, false, 0, NULL},
    {"embedding", &cup__op_embedding, "table, ids", "",
     "y",
     "row ids[..] of the table [V,C] for each id: [..,C]. An id that is no row is an error on the CPU and a row of NaN on a GPU", 2, 2, 1, 1, true, 0, NULL},
    {"embedding_grad", &cup__op_embedding_grad, "dy, ids", "int64 rows",
     "dtable",
     "sum of the rows of dy that have the same id, 0 for an id that is not there", 2, 2, 1, 1, false, sizeof(cup__embedding_grad_attributes), embedding_grad_attributes},
    {"index_select", &cup__op_index_select, "x, indices", "int axis",
     "y",
     "the slices of x along the axis whose numbers the indices are, one after another. An index that is none is an error on the CPU, NaN or 0 on a GPU", 2, 2, 1, 1, true, sizeof(cup__index_select_attributes), index_select_attributes},
    {"gather", &cup__op_gather, "x, indices", "int axis",
     "y",
     "for each index the element of x at that place along the axis and the index's own place along the others", 2, 2, 1, 1, true, sizeof(cup__gather_attributes), gather_attributes},
    {"scatter_add", &cup__op_scatter_add, "x, indices, src", "int axis",
     "y",
     "x, and each element of src added at the place along the axis that its index gives", 3, 3, 1, 1, true, sizeof(cup__scatter_add_attributes), scatter_add_attributes},
    {"sort", &cup__op_sort, "x", "int axis, bool descending",
     "values, indices",
     "the elements along the axis in order, and their places before, as i64; equal ones stay in order. NaN is the largest, and -0 less than 0", 1, 1, 2, 2, true, sizeof(cup__sort_attributes), sort_attributes},
    {"top_k", &cup__op_top_k, "x", "int64 k, int axis, bool smallest",
     "values, indices",
     "the k largest elements along the axis, or smallest, in order, and their places, as i64; of equal ones the first", 1, 1, 2, 2, true, sizeof(cup__top_k_attributes), top_k_attributes},
    {"unsort", &cup__op_unsort, "dy, indices", "int axis, int64 size",
     "dx",
     "0, and each dy at the place along the axis, which has the size, that its index gives; indices are different from each other", 2, 2, 1, 1, false, sizeof(cup__unsort_attributes), unsort_attributes},
    {"global_norm", &cup__op_global_norm, "x...", "",
     "y",
     "square root of the sum of the squares of all elements of all tensors, in f32", 1, INT_MAX, 1, 1, true, 0, NULL},
    {"step_factors", &cup__op_step_factors, "hyper, state, norm?", "float beta1, float beta2",
     "factors",
     "what one optimizer step multiplies with, from learning rate, clip limit, gradient scale and norm; counts the step", 2, 3, 1, 1, false, sizeof(cup__step_factors_attributes), step_factors_attributes},
    {"adamw", &cup__op_adamw, "x...", "float beta1, float beta2, float epsilon, bool stochastic",
     "",
     "one AdamW step of many parameters", 1, INT_MAX, 0, 0, false, sizeof(cup__adamw_attributes), adamw_attributes},
    {"sgd", &cup__op_sgd, "x...", "float momentum, bool nesterov, bool stochastic",
     "",
     "one step of gradient descent of many parameters, with momentum", 1, INT_MAX, 0, 0, false, sizeof(cup__sgd_attributes), sgd_attributes},
    {"muon_momentum", &cup__op_muon_momentum, "x...", "float momentum",
     "",
     "the first half of a Muon step of many matrices: momentum, whose direction goes into each record's first tensor", 1, INT_MAX, 0, 0, false, sizeof(cup__muon_momentum_attributes), muon_momentum_attributes},
    {"muon_step", &cup__op_muon_step, "x...", "bool stochastic",
     "",
     "the second half: along the directions", 1, INT_MAX, 0, 0, false, sizeof(cup__muon_step_attributes), muon_step_attributes},
    {"lion", &cup__op_lion, "x...", "float beta1, float beta2, bool stochastic",
     "",
     "one Lion step of many parameters", 1, INT_MAX, 0, 0, false, sizeof(cup__lion_attributes), lion_attributes},
    {"attention", &cup__op_attention, "q, k, v", "bool causal, float scale, float dropout",
     "o; lse",
     "softmax over the keys of scale q k^T, times v, in each head; q and o are [B,H,T,D], k and v [B,G,S,D] where G divides H; causal lets the last query see all keys, each one before it one less; scale 0 means 1/sqrt[D]; dropout drops probabilities; a query that sees nothing gives 0", 3, 3, 1, 2, true, sizeof(cup__attention_attributes), attention_attributes},
    {"attention_grad", &cup__op_attention_grad, "q, k, v, o, lse, d_o", "bool causal, float scale, float dropout, int64 sequence",
     "dq, dk, dv",
     "the gradients of attention; sequence is that of the forward call's random numbers", 6, 6, 3, 3, false, sizeof(cup__attention_grad_attributes), attention_grad_attributes},
    {"qkv_attention", &cup__op_qkv_attention, "qkv", "int heads, int kv_heads, bool causal, float scale, float dropout",
     "o; lse",
     "attention over [B,T,W], where W holds the heads of q, then kv_heads of k, then as many of v; o is [B,T,heads D]; kv_heads 0 means heads; the rest as in attention", 1, 1, 1, 2, true, sizeof(cup__qkv_attention_attributes), qkv_attention_attributes},
    {"qkv_attention_grad", &cup__op_qkv_attention_grad, "qkv, o, lse, d_o", "int heads, int kv_heads, bool causal, float scale, float dropout, int64 sequence",
     "dqkv",
     "the gradient of qkv_attention", 4, 4, 1, 1, false, sizeof(cup__qkv_attention_grad_attributes), qkv_attention_grad_attributes},
    {"rope", &cup__op_rope, "x", "float base, int64 offset, int size, int heads, bool interleaved, bool inverse",
     "y",
     "x, [B,H,T,D], with pairs of the first `size` features of each row turned by an angle: pair i by base^[-2 i / size] times its position, which is offset + t; pairs are i and i + size/2, or 2 i and 2 i + 1 when interleaved; base 0 means 10000, size 0 all features; heads, when not 0, says how many of the first heads are turned; inverse turns back", 1, 1, 1, 1, true, sizeof(cup__rope_attributes), rope_attributes},
    {"matmul", &cup__op_matmul, "a, b", "bool transpose_a, bool transpose_b",
     "y",
     "the product of the last two dimensions, [..,M,K] by [..,K,N], each first transposed where asked; leading dimensions broadcast", 2, 2, 1, 1, true, sizeof(cup__matmul_attributes), matmul_attributes},
    {"linear", &cup__op_linear, "x, weight, bias?", "",
     "y",
     "x weight^T + bias for x [..,K], weight [N,K], bias [N]", 2, 3, 1, 1, true, 0, NULL},
    {"linear_gelu", &cup__op_linear_gelu, "x, weight, bias?", "",
     "y; pre",
     "gelu(linear(x, weight, bias)) in one pass", 2, 3, 1, 2, true, 0, NULL},
    {"quantize", &cup__op_quantize, "x", "dtype dtype, int block_rows, int block_columns",
     "y, scale",
     "x / scale in f8e4m3, f8e5m2 or i8, where each block of the rows [all dimensions but the last] and columns has its own scale, in f32: its largest size over the largest of the dtype; 0 takes all in one block, else blocks are 1 row of all columns, or 1 or 128 rows of 128 columns", 1, 1, 2, 2, true, sizeof(cup__quantize_attributes), quantize_attributes},
    {"dequantize", &cup__op_dequantize, "x, scale", "dtype dtype",
     "y",
     "x times scale, which quantize made, in the dtype", 2, 2, 1, 1, true, sizeof(cup__dequantize_attributes), dequantize_attributes},
    {"scaled_matmul", &cup__op_scaled_matmul, "a, b, a_scale?, b_scale?, bias?", "dtype dtype, bool fast_accumulation",
     "y",
     "a b^T + bias in the dtype, for a [..,K] and b [N,K] in f8e4m3, f8e5m2 or i8, which stand for their elements times their scales, in the shapes of quantize; bias [N] in the dtype; fast_accumulation lets tensor cores keep 14 bits of the sums of f8; sums of i8 are exact, and i32 takes them without scales", 2, 5, 1, 1, true, sizeof(cup__scaled_matmul_attributes), scaled_matmul_attributes},
    {"matmul_list", &cup__op_matmul_list, "x...", "bool transpose_a, bool transpose_b",
     "",
     "for each three matrices a, b, y of the list, y becomes the product of [M,K] by [K,N], each first transposed where asked; one launch for as many as 64", 1, INT_MAX, 0, 0, true, sizeof(cup__matmul_list_attributes), matmul_list_attributes},
    {"grouped_matmul", &cup__op_grouped_matmul, "x, weight, offsets", "bool transpose_weight",
     "y",
     "rows of x [M,K], in groups of neighbours, times one matrix of weight [G,K,N] each, or [G,N,K] transposed; group g ends before row offsets[g], and begins where the one before it ended; rows after the last group give 0. Offsets that go down or beyond the rows are an error on the CPU; on a GPU a group then ends where the one before it does, or with the last row", 3, 3, 1, 1, true, sizeof(cup__grouped_matmul_attributes), grouped_matmul_attributes},
    {"linear_dropout", &cup__op_linear_dropout, "x, weight, bias?, residual?", "float p",
     "y; mask",
     "dropout(linear(x, weight, bias), p) in one pass, added to residual where there is one", 2, 4, 1, 2, true, sizeof(cup__linear_dropout_attributes), linear_dropout_attributes},
    {"linear_quantize", &cup__op_linear_quantize, "x, weight, scale, bias?", "dtype dtype, bool gelu",
     "y, most",
     "linear(x, weight, bias), or gelu of it, over scale, one f32, in f8e4m3 or f8e5m2, in one pass, with the ends of the dtype for what lies beyond them; most [1,1], in f32, is the largest size before, of which the next scale is made, or NaN when there is one", 3, 4, 2, 2, true, sizeof(cup__linear_quantize_attributes), linear_quantize_attributes},
    {"scaled_grouped_matmul", &cup__op_scaled_grouped_matmul, "x, weight, offsets, x_scale?, weight_scale?", "dtype dtype, bool fast_accumulation",
     "y",
     "grouped_matmul of rows of x [M,K] and transposed matrices of weight [G,N,K] in f8e4m3, f8e5m2 or i8, as scaled_matmul multiplies them; x_scale in the shapes of quantize for all rows, weight_scale one, [G], or [G,..,..] with the shapes of quantize for one matrix behind", 3, 5, 1, 1, true, sizeof(cup__scaled_grouped_matmul_attributes), scaled_grouped_matmul_attributes},
    {"grouped_weight_grad", &cup__op_grouped_weight_grad, "a, b, offsets", "",
     "y",
     "a^T b of each group of rows: [G,M,N] for a [R,M] and b [R,N]", 3, 3, 1, 1, false, 0, NULL},
    {"linear_relu", &cup__op_linear_relu, "x, weight, bias?", "",
     "y",
     "relu(linear(x, weight, bias)) in one pass", 2, 3, 1, 1, true, 0, NULL},
    {"linear_silu", &cup__op_linear_silu, "x, weight, bias?", "",
     "y; pre",
     "silu(linear(x, weight, bias)) in one pass", 2, 3, 1, 2, true, 0, NULL},
    {"linear_swiglu", &cup__op_linear_swiglu, "x, weight, bias?", "",
     "y; pre",
     "silu(gate) up in one pass, where linear(x, weight, bias) is gate and up side by side: weight is [2N,K], bias [2N]", 2, 3, 1, 2, true, 0, NULL},
    {"linear_add", &cup__op_linear_add, "x, weight, residual, bias?", "",
     "y",
     "linear(x, weight, bias) + residual in one pass; residual has the shape of y", 3, 4, 1, 1, true, 0, NULL},
    {"matmul_scaled", &cup__op_matmul_scaled, "a, b", "bool transpose_a, bool transpose_b, float factor",
     "y",
     "factor times matmul(a, b)", 2, 2, 1, 1, true, sizeof(cup__matmul_scaled_attributes), matmul_scaled_attributes},
    {"matmul_into", &cup__op_matmul_into, "y, a, b", "bool transpose_a, bool transpose_b",
     "",
     "writes matmul(a, b) into y, whatever was there; y has the dtype of a and b, or f32, which then takes the sums as they are", 3, 3, 0, 0, true, sizeof(cup__matmul_into_attributes), matmul_into_attributes},
    {"matmul_add", &cup__op_matmul_add, "y, a, b", "bool transpose_a, bool transpose_b",
     "",
     "adds matmul(a, b) to y in place; y has the dtype of a and b, or f32", 3, 3, 0, 0, true, sizeof(cup__matmul_add_attributes), matmul_add_attributes},
    {"matmul_gelu_grad", &cup__op_matmul_gelu_grad, "dy, weight, pre", "",
     "dpre",
     "dy weight times the derivative of gelu at pre: back through linear and the gelu before it", 3, 3, 1, 1, false, 0, NULL},
    {"matmul_swiglu_grad", &cup__op_matmul_swiglu_grad, "dy, weight, pre", "",
     "dpre",
     "back through linear and the swiglu before it: dy weight is the gradient of silu(gate) up, and gate and up lie side by side in pre, their gradients in dpre", 3, 3, 1, 1, false, 0, NULL},
    {"linear_weight_grad", &cup__op_linear_weight_grad, "dy, x", "",
     "dweight, dbias",
     "dy^T x and the sum of dy over all but its last dimension", 2, 2, 2, 2, false, 0, NULL},
    {"linear_int8", &cup__op_linear_int8, "x, weight, scale, bias?", "",
     "y",
     "x w^T + bias for x [..,K] and w = scale weight, where weight [N,K] is i8 and each scale of [N,G] is for K / G elements of a row", 3, 4, 1, 1, true, 0, NULL},
    {"linear_int4", &cup__op_linear_int4, "x, weight, scale, zero?, bias?", "",
     "y",
     "the same for weight [N,K/2] of u8, two numbers from 0 to 15 a byte, the lower half first, and w = scale (number - zero); zero is u8 [N,G], or 8 where it is left out", 3, 5, 1, 1, true, 0, NULL},
    {"pack_int8", &cup__op_pack_int8, "w", "int group",
     "weight, scale",
     "weight and scale of linear_int8 for w [N,K], a scale for group elements of a row; 0 is a whole row", 1, 1, 2, 2, true, sizeof(cup__pack_int8_attributes), pack_int8_attributes},
    {"pack_int4", &cup__op_pack_int4, "w", "int group, bool symmetric",
     "weight, scale, zero",
     "weight, scale and zero of linear_int4 for w [N,K]; symmetric ones have a zero of 8", 1, 1, 3, 3, true, sizeof(cup__pack_int4_attributes), pack_int4_attributes},
    {"unpack_int8", &cup__op_unpack_int8, "weight, scale", "dtype dtype",
     "w",
     "the w of linear_int8", 2, 2, 1, 1, true, sizeof(cup__unpack_int8_attributes), unpack_int8_attributes},
    {"unpack_int4", &cup__op_unpack_int4, "weight, scale, zero?", "dtype dtype",
     "w",
     "the w of linear_int4", 2, 3, 1, 1, true, sizeof(cup__unpack_int4_attributes), unpack_int4_attributes},
    {0}};

cup_tensor *cup_add(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_add], in, 2, NULL, NULL);
}

cup_tensor *cup_sub(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_sub], in, 2, NULL, NULL);
}

cup_tensor *cup_mul(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_mul], in, 2, NULL, NULL);
}

cup_tensor *cup_div(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_div], in, 2, NULL, NULL);
}

cup_tensor *cup_scale(cup_context *c, cup_tensor *x, double factor)
{
    cup__scale_attributes attributes = {0};
    attributes.factor = factor;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_scale], in, 1, &attributes, NULL);
}

cup_tensor *cup_neg(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_neg], in, 1, NULL, NULL);
}

cup_tensor *cup_exp(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_exp], in, 1, NULL, NULL);
}

cup_tensor *cup_log(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_log], in, 1, NULL, NULL);
}

cup_tensor *cup_sqrt(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_sqrt], in, 1, NULL, NULL);
}

cup_tensor *cup_pow(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_pow], in, 2, NULL, NULL);
}

cup_tensor *cup_abs(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_abs], in, 1, NULL, NULL);
}

cup_tensor *cup_sin(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_sin], in, 1, NULL, NULL);
}

cup_tensor *cup_cos(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_cos], in, 1, NULL, NULL);
}

cup_tensor *cup_erf(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_erf], in, 1, NULL, NULL);
}

cup_tensor *cup_maximum(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_maximum], in, 2, NULL, NULL);
}

cup_tensor *cup_minimum(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_minimum], in, 2, NULL, NULL);
}

cup_tensor *cup_lerp(cup_context *c, cup_tensor *a, cup_tensor *b, double weight)
{
    cup__lerp_attributes attributes = {0};
    attributes.weight = weight;
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_lerp], in, 2, &attributes, NULL);
}

cup_tensor *cup_clamp(cup_context *c, cup_tensor *x, double low, double high)
{
    cup__clamp_attributes attributes = {0};
    attributes.low = low;
    attributes.high = high;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_clamp], in, 1, &attributes, NULL);
}

cup_tensor *cup__pow_base_grad(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *dy)
{
    cup_tensor *const in[] = {a, b, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_pow_base_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__pow_exponent_grad(cup_context *c, cup_tensor *a, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {a, y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_pow_exponent_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__abs_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_abs_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__sin_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_sin_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__cos_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_cos_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__erf_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_erf_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__maximum_grad(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *dy)
{
    cup_tensor *const in[] = {a, b, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_maximum_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__clamp_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double low,
                            double high)
{
    cup__clamp_grad_attributes attributes = {0};
    attributes.low = low;
    attributes.high = high;
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_clamp_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup__div_grad(cup_context *c, cup_tensor *b, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {b, y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_div_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__sqrt_grad(cup_context *c, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_sqrt_grad], in, 2, NULL, NULL);
}

cup_tensor *cup_equal(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_equal], in, 2, NULL, NULL);
}

cup_tensor *cup_not_equal(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_not_equal], in, 2, NULL, NULL);
}

cup_tensor *cup_less(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_less], in, 2, NULL, NULL);
}

cup_tensor *cup_less_equal(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_less_equal], in, 2, NULL, NULL);
}

cup_tensor *cup_greater(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_greater], in, 2, NULL, NULL);
}

cup_tensor *cup_greater_equal(cup_context *c, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_greater_equal], in, 2, NULL, NULL);
}

cup_tensor *cup_where(cup_context *c, cup_tensor *condition, cup_tensor *a, cup_tensor *b)
{
    cup_tensor *const in[] = {condition, a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_where], in, 3, NULL, NULL);
}

cup_tensor *cup_tanh(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_tanh], in, 1, NULL, NULL);
}

cup_tensor *cup_sigmoid(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_sigmoid], in, 1, NULL, NULL);
}

cup_tensor *cup_relu(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_relu], in, 1, NULL, NULL);
}

cup_tensor *cup_gelu(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu], in, 1, NULL, NULL);
}

cup_tensor *cup_gelu_erf(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu_erf], in, 1, NULL, NULL);
}

cup_tensor *cup_silu(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_silu], in, 1, NULL, NULL);
}

cup_tensor *cup_elu(cup_context *c, cup_tensor *x, double alpha)
{
    cup__elu_attributes attributes = {0};
    attributes.alpha = alpha;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_elu], in, 1, &attributes, NULL);
}

cup_tensor *cup_leaky_relu(cup_context *c, cup_tensor *x, double slope)
{
    cup__leaky_relu_attributes attributes = {0};
    attributes.slope = slope;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_leaky_relu], in, 1, &attributes, NULL);
}

cup_tensor *cup_hardswish(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_hardswish], in, 1, NULL, NULL);
}

cup_tensor *cup_softplus(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_softplus], in, 1, NULL, NULL);
}

cup_tensor *cup_mish(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_mish], in, 1, NULL, NULL);
}

cup_tensor *cup_swiglu(cup_context *c, cup_tensor *gate, cup_tensor *up)
{
    cup_tensor *const in[] = {gate, up};
    return cup__op_call(c, &cup__rows[CUP__OP_swiglu], in, 2, NULL, NULL);
}

cup_status cup__swiglu_grad(cup_context *c, cup_tensor *gate, cup_tensor *up, cup_tensor *dy,
                            cup_tensor **dgate, cup_tensor **dup)
{
    cup_tensor *const in[] = {gate, up, dy};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_swiglu_grad], in, 3, NULL, out) != NULL;
    if (dgate)
        *dgate = out[0];
    if (dup)
        *dup = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup__elu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double alpha)
{
    cup__elu_grad_attributes attributes = {0};
    attributes.alpha = alpha;
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_elu_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup__leaky_relu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy, double slope)
{
    cup__leaky_relu_grad_attributes attributes = {0};
    attributes.slope = slope;
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_leaky_relu_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup__hardswish_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_hardswish_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__softplus_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_softplus_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__mish_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_mish_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__tanh_grad(cup_context *c, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_tanh_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__sigmoid_grad(cup_context *c, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_sigmoid_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__relu_grad(cup_context *c, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_relu_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__gelu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__gelu_erf_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_gelu_erf_grad], in, 2, NULL, NULL);
}

cup_tensor *cup__silu_grad(cup_context *c, cup_tensor *x, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_silu_grad], in, 2, NULL, NULL);
}

cup_tensor *cup_dropout(cup_context *c, cup_tensor *x, double p)
{
    cup__dropout_attributes attributes = {0};
    attributes.p = p;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_dropout], in, 1, &attributes, NULL);
}

cup_tensor *cup_dropout_add(cup_context *c, cup_tensor *residual, cup_tensor *x, double p)
{
    cup__dropout_add_attributes attributes = {0};
    attributes.p = p;
    cup_tensor *const in[] = {residual, x};
    return cup__op_call(c, &cup__rows[CUP__OP_dropout_add], in, 2, &attributes, NULL);
}

cup_tensor *cup__dropout_grad(cup_context *c, cup_tensor *dy, cup_tensor *mask, double p)
{
    cup__dropout_grad_attributes attributes = {0};
    attributes.p = p;
    cup_tensor *const in[] = {dy, mask};
    return cup__op_call(c, &cup__rows[CUP__OP_dropout_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup_full(cup_context *c, cup_dtype dtype, const int64_t *shape, int shape_count,
                     double value)
{
    cup__full_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    attributes.value = value;
    cup_tensor *const in[] = {NULL};
    return cup__op_call(c, &cup__rows[CUP__OP_full], in, 0, &attributes, NULL);
}

cup_tensor *cup_copy(cup_context *c, cup_tensor *x)
{
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_copy], in, 1, NULL, NULL);
}

cup_tensor *cup_cast(cup_context *c, cup_tensor *x, cup_dtype dtype)
{
    cup__cast_attributes attributes = {0};
    attributes.dtype = dtype;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_cast], in, 1, &attributes, NULL);
}

cup_status cup_cast_transpose(cup_context *c, cup_tensor *x, cup_dtype dtype, cup_tensor **y,
                              cup_tensor **transposed)
{
    cup__cast_transpose_attributes attributes = {0};
    attributes.dtype = dtype;
    cup_tensor *const in[] = {x};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_cast_transpose], in, 1, &attributes, out) != NULL;
    if (y)
        *y = out[0];
    if (transposed)
        *transposed = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_uniform(cup_context *c, cup_dtype dtype, const int64_t *shape, int shape_count,
                        double low, double high)
{
    cup__uniform_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    attributes.low = low;
    attributes.high = high;
    cup_tensor *const in[] = {NULL};
    return cup__op_call(c, &cup__rows[CUP__OP_uniform], in, 0, &attributes, NULL);
}

cup_tensor *cup_normal(cup_context *c, cup_dtype dtype, const int64_t *shape, int shape_count,
                       double mean, double deviation)
{
    cup__normal_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    attributes.mean = mean;
    attributes.deviation = deviation;
    cup_tensor *const in[] = {NULL};
    return cup__op_call(c, &cup__rows[CUP__OP_normal], in, 0, &attributes, NULL);
}

cup_tensor *cup_reshape(cup_context *c, cup_tensor *x, const int64_t *shape, int shape_count)
{
    cup__reshape_attributes attributes = {0};
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_reshape], in, 1, &attributes, NULL);
}

cup_tensor *cup_broadcast(cup_context *c, cup_tensor *x, const int64_t *shape, int shape_count)
{
    cup__broadcast_attributes attributes = {0};
    attributes.shape_count = cup__take_ints(attributes.shape, shape, shape_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_broadcast], in, 1, &attributes, NULL);
}

cup_tensor *cup_permute(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count)
{
    cup__permute_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_permute], in, 1, &attributes, NULL);
}

cup_tensor *cup_slice(cup_context *c, cup_tensor *x, const int64_t *starts, int starts_count,
                      const int64_t *sizes, int sizes_count)
{
    cup__slice_attributes attributes = {0};
    attributes.starts_count = cup__take_ints(attributes.starts, starts, starts_count);
    attributes.sizes_count = cup__take_ints(attributes.sizes, sizes, sizes_count);
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_slice], in, 1, &attributes, NULL);
}

cup_tensor *cup_concat(cup_context *c, cup_tensor *const *x, int x_count, int axis)
{
    cup__concat_attributes attributes = {0};
    attributes.axis = axis;
    return cup__op_call(c, &cup__rows[CUP__OP_concat], x, x_count, &attributes, NULL);
}

cup_tensor *cup_sum(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    cup__sum_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_sum], in, 1, &attributes, NULL);
}

cup_tensor *cup_mean(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                     bool keep)
{
    cup__mean_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_mean], in, 1, &attributes, NULL);
}

cup_tensor *cup_max(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    cup__max_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_max], in, 1, &attributes, NULL);
}

cup_tensor *cup_min(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep)
{
    cup__min_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_min], in, 1, &attributes, NULL);
}

cup_tensor *cup_argmax(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                       bool keep)
{
    cup__argmax_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_argmax], in, 1, &attributes, NULL);
}

cup_tensor *cup_argmin(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                       bool keep)
{
    cup__argmin_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_argmin], in, 1, &attributes, NULL);
}

cup_tensor *cup_norm(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                     bool keep)
{
    cup__norm_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_norm], in, 1, &attributes, NULL);
}

cup_tensor *cup_var(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count, bool keep,
                    int correction)
{
    cup__var_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    attributes.correction = correction;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_var], in, 1, &attributes, NULL);
}

cup_tensor *cup_logsumexp(cup_context *c, cup_tensor *x, const int64_t *axes, int axes_count,
                          bool keep)
{
    cup__logsumexp_attributes attributes = {0};
    attributes.axes_count = cup__take_ints(attributes.axes, axes, axes_count);
    attributes.keep = keep;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_logsumexp], in, 1, &attributes, NULL);
}

cup_tensor *cup_cumsum(cup_context *c, cup_tensor *x, int axis, bool reverse)
{
    cup__cumsum_attributes attributes = {0};
    attributes.axis = axis;
    attributes.reverse = reverse;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_cumsum], in, 1, &attributes, NULL);
}

cup_tensor *cup__extreme_mask(cup_context *c, cup_tensor *x, cup_tensor *y)
{
    cup_tensor *const in[] = {x, y};
    return cup__op_call(c, &cup__rows[CUP__OP_extreme_mask], in, 2, NULL, NULL);
}

cup_tensor *cup__extreme_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy,
                              cup_tensor *n)
{
    cup_tensor *const in[] = {x, y, dy, n};
    return cup__op_call(c, &cup__rows[CUP__OP_extreme_grad], in, 4, NULL, NULL);
}

cup_tensor *cup__norm_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_norm_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__var_grad(cup_context *c, cup_tensor *x, cup_tensor *mean, cup_tensor *dy,
                          double scale)
{
    cup__var_grad_attributes attributes = {0};
    attributes.scale = scale;
    cup_tensor *const in[] = {x, mean, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_var_grad], in, 3, &attributes, NULL);
}

cup_tensor *cup__logsumexp_grad(cup_context *c, cup_tensor *x, cup_tensor *y, cup_tensor *dy)
{
    cup_tensor *const in[] = {x, y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_logsumexp_grad], in, 3, NULL, NULL);
}

cup_tensor *cup_max_pool2d(cup_context *c, cup_tensor *x, const int64_t *window, int window_count,
                           const int64_t *stride, int stride_count, const int64_t *padding,
                           int padding_count, const int64_t *dilation, int dilation_count,
                           bool ceil_mode, bool channels_last)
{
    cup__max_pool2d_attributes attributes = {0};
    attributes.window_count = cup__take_ints(attributes.window, window, window_count);
    attributes.stride_count = cup__take_ints(attributes.stride, stride, stride_count);
    attributes.padding_count = cup__take_ints(attributes.padding, padding, padding_count);
    attributes.dilation_count = cup__take_ints(attributes.dilation, dilation, dilation_count);
    attributes.ceil_mode = ceil_mode;
    attributes.channels_last = channels_last;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_max_pool2d], in, 1, &attributes, NULL);
}

cup_tensor *cup__max_pool2d_grad(cup_context *c, cup_tensor *dy, cup_tensor *places,
                                 const int64_t *window, int window_count, const int64_t *stride,
                                 int stride_count, const int64_t *padding, int padding_count,
                                 const int64_t *dilation, int dilation_count, bool channels_last,
                                 int64_t height, int64_t width)
{
    cup__max_pool2d_grad_attributes attributes = {0};
    attributes.window_count = cup__take_ints(attributes.window, window, window_count);
    attributes.stride_count = cup__take_ints(attributes.stride, stride, stride_count);
    attributes.padding_count = cup__take_ints(attributes.padding, padding, padding_count);
    attributes.dilation_count = cup__take_ints(attributes.dilation, dilation, dilation_count);
    attributes.channels_last = channels_last;
    attributes.height = height;
    attributes.width = width;
    cup_tensor *const in[] = {dy, places};
    return cup__op_call(c, &cup__rows[CUP__OP_max_pool2d_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup_avg_pool2d(cup_context *c, cup_tensor *x, const int64_t *window, int window_count,
                           const int64_t *stride, int stride_count, const int64_t *padding,
                           int padding_count, bool ceil_mode, bool count_include_pad,
                           bool channels_last)
{
    cup__avg_pool2d_attributes attributes = {0};
    attributes.window_count = cup__take_ints(attributes.window, window, window_count);
    attributes.stride_count = cup__take_ints(attributes.stride, stride, stride_count);
    attributes.padding_count = cup__take_ints(attributes.padding, padding, padding_count);
    attributes.ceil_mode = ceil_mode;
    attributes.count_include_pad = count_include_pad;
    attributes.channels_last = channels_last;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_avg_pool2d], in, 1, &attributes, NULL);
}

cup_tensor *cup__avg_pool2d_grad(cup_context *c, cup_tensor *dy, const int64_t *window,
                                 int window_count, const int64_t *stride, int stride_count,
                                 const int64_t *padding, int padding_count,
                                 bool count_include_pad, bool channels_last, int64_t height,
                                 int64_t width)
{
    cup__avg_pool2d_grad_attributes attributes = {0};
    attributes.window_count = cup__take_ints(attributes.window, window, window_count);
    attributes.stride_count = cup__take_ints(attributes.stride, stride, stride_count);
    attributes.padding_count = cup__take_ints(attributes.padding, padding, padding_count);
    attributes.count_include_pad = count_include_pad;
    attributes.channels_last = channels_last;
    attributes.height = height;
    attributes.width = width;
    cup_tensor *const in[] = {dy};
    return cup__op_call(c, &cup__rows[CUP__OP_avg_pool2d_grad], in, 1, &attributes, NULL);
}

cup_tensor *cup_adaptive_avg_pool2d(cup_context *c, cup_tensor *x, const int64_t *size,
                                    int size_count, bool channels_last)
{
    cup__adaptive_avg_pool2d_attributes attributes = {0};
    attributes.size_count = cup__take_ints(attributes.size, size, size_count);
    attributes.channels_last = channels_last;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_adaptive_avg_pool2d], in, 1, &attributes, NULL);
}

cup_tensor *cup__adaptive_avg_pool2d_grad(cup_context *c, cup_tensor *dy, bool channels_last,
                                          int64_t height, int64_t width)
{
    cup__adaptive_avg_pool2d_grad_attributes attributes = {0};
    attributes.channels_last = channels_last;
    attributes.height = height;
    attributes.width = width;
    cup_tensor *const in[] = {dy};
    return cup__op_call(c, &cup__rows[CUP__OP_adaptive_avg_pool2d_grad], in, 1, &attributes, NULL);
}

cup_tensor *cup_adaptive_max_pool2d(cup_context *c, cup_tensor *x, const int64_t *size,
                                    int size_count, bool channels_last)
{
    cup__adaptive_max_pool2d_attributes attributes = {0};
    attributes.size_count = cup__take_ints(attributes.size, size, size_count);
    attributes.channels_last = channels_last;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_adaptive_max_pool2d], in, 1, &attributes, NULL);
}

cup_tensor *cup__adaptive_max_pool2d_grad(cup_context *c, cup_tensor *dy, cup_tensor *places,
                                          bool channels_last, int64_t height, int64_t width)
{
    cup__adaptive_max_pool2d_grad_attributes attributes = {0};
    attributes.channels_last = channels_last;
    attributes.height = height;
    attributes.width = width;
    cup_tensor *const in[] = {dy, places};
    return cup__op_call(c, &cup__rows[CUP__OP_adaptive_max_pool2d_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup_layernorm(cup_context *c, cup_tensor *x, cup_tensor *gamma, cup_tensor *beta,
                          double eps)
{
    cup__layernorm_attributes attributes = {0};
    attributes.eps = eps;
    cup_tensor *const in[] = {x, gamma, beta};
    return cup__op_call(c, &cup__rows[CUP__OP_layernorm], in, 3, &attributes, NULL);
}

cup_tensor *cup_rmsnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma, double eps)
{
    cup__rmsnorm_attributes attributes = {0};
    attributes.eps = eps;
    cup_tensor *const in[] = {x, gamma};
    return cup__op_call(c, &cup__rows[CUP__OP_rmsnorm], in, 2, &attributes, NULL);
}

cup_status cup_add_layernorm(cup_context *c, cup_tensor *x, cup_tensor *residual,
                             cup_tensor *gamma, cup_tensor *beta, double eps, cup_tensor **y,
                             cup_tensor **sum)
{
    cup__add_layernorm_attributes attributes = {0};
    attributes.eps = eps;
    cup_tensor *const in[] = {x, residual, gamma, beta};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_add_layernorm], in, 4, &attributes, out) != NULL;
    if (y)
        *y = out[0];
    if (sum)
        *sum = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup_add_rmsnorm(cup_context *c, cup_tensor *x, cup_tensor *residual, cup_tensor *gamma,
                           double eps, cup_tensor **y, cup_tensor **sum)
{
    cup__add_rmsnorm_attributes attributes = {0};
    attributes.eps = eps;
    cup_tensor *const in[] = {x, residual, gamma};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_add_rmsnorm], in, 3, &attributes, out) != NULL;
    if (y)
        *y = out[0];
    if (sum)
        *sum = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup__layernorm_grad(cup_context *c, cup_tensor *dy, cup_tensor *x, cup_tensor *rstd,
                               cup_tensor *mean, cup_tensor *gamma, cup_tensor *dsum,
                               cup_dtype dtype, bool want_gamma, bool want_beta, cup_tensor **dx,
                               cup_tensor **dgamma, cup_tensor **dbeta)
{
    cup__layernorm_grad_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.want_gamma = want_gamma;
    attributes.want_beta = want_beta;
    cup_tensor *const in[] = {dy, x, rstd, mean, gamma, dsum};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_layernorm_grad], in, 6, &attributes, out) != NULL;
    if (dx)
        *dx = out[0];
    if (dgamma)
        *dgamma = out[1];
    if (dbeta)
        *dbeta = out[2];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_batchnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma, cup_tensor *beta,
                          cup_tensor *running_mean, cup_tensor *running_var, int axis, bool train,
                          double eps, double momentum)
{
    cup__batchnorm_attributes attributes = {0};
    attributes.axis = axis;
    attributes.train = train;
    attributes.eps = eps;
    attributes.momentum = momentum;
    cup_tensor *const in[] = {x, gamma, beta, running_mean, running_var};
    return cup__op_call(c, &cup__rows[CUP__OP_batchnorm], in, 5, &attributes, NULL);
}

cup_tensor *cup_groupnorm(cup_context *c, cup_tensor *x, cup_tensor *gamma, cup_tensor *beta,
                          int groups, int axis, double eps)
{
    cup__groupnorm_attributes attributes = {0};
    attributes.groups = groups;
    attributes.axis = axis;
    attributes.eps = eps;
    cup_tensor *const in[] = {x, gamma, beta};
    return cup__op_call(c, &cup__rows[CUP__OP_groupnorm], in, 3, &attributes, NULL);
}

cup_status cup__channelnorm_grad(cup_context *c, cup_tensor *dy, cup_tensor *x, cup_tensor *mean,
                                 cup_tensor *rstd, cup_tensor *gamma, int axis, int groups,
                                 bool constant, cup_dtype dtype, bool want_gamma, bool want_beta,
                                 cup_tensor **dx, cup_tensor **dgamma, cup_tensor **dbeta)
{
    cup__channelnorm_grad_attributes attributes = {0};
    attributes.axis = axis;
    attributes.groups = groups;
    attributes.constant = constant;
    attributes.dtype = dtype;
    attributes.want_gamma = want_gamma;
    attributes.want_beta = want_beta;
    cup_tensor *const in[] = {dy, x, mean, rstd, gamma};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_channelnorm_grad], in, 5, &attributes, out) != NULL;
    if (dx)
        *dx = out[0];
    if (dgamma)
        *dgamma = out[1];
    if (dbeta)
        *dbeta = out[2];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_softmax(cup_context *c, cup_tensor *x, int axis)
{
    cup__softmax_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_softmax], in, 1, &attributes, NULL);
}

cup_tensor *cup_log_softmax(cup_context *c, cup_tensor *x, int axis)
{
    cup__log_softmax_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_log_softmax], in, 1, &attributes, NULL);
}

cup_tensor *cup__softmax_grad(cup_context *c, cup_tensor *y, cup_tensor *dy, int axis)
{
    cup__softmax_grad_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_softmax_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup__log_softmax_grad(cup_context *c, cup_tensor *y, cup_tensor *dy, int axis)
{
    cup__log_softmax_grad_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {y, dy};
    return cup__op_call(c, &cup__rows[CUP__OP_log_softmax_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup_cross_entropy(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                              int64_t ignore_index, double label_smoothing, double z_loss,
                              int64_t columns, bool in_place)
{
    cup__cross_entropy_attributes attributes = {0};
    attributes.ignore_index = ignore_index;
    attributes.label_smoothing = label_smoothing;
    attributes.z_loss = z_loss;
    attributes.columns = columns;
    attributes.in_place = in_place;
    cup_tensor *const in[] = {logits, targets};
    return cup__op_call(c, &cup__rows[CUP__OP_cross_entropy], in, 2, &attributes, NULL);
}

cup_tensor *cup_linear_cross_entropy(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                     cup_tensor *targets, int64_t ignore_index,
                                     double label_smoothing, double z_loss, int64_t columns,
                                     int64_t chunk)
{
    cup__linear_cross_entropy_attributes attributes = {0};
    attributes.ignore_index = ignore_index;
    attributes.label_smoothing = label_smoothing;
    attributes.z_loss = z_loss;
    attributes.columns = columns;
    attributes.chunk = chunk;
    cup_tensor *const in[] = {x, weight, targets};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_cross_entropy], in, 3, &attributes, NULL);
}

cup_tensor *cup__cross_entropy_part(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                    cup_tensor *share, int64_t ignore_index,
                                    double label_smoothing, double z_loss, int64_t columns)
{
    cup__cross_entropy_part_attributes attributes = {0};
    attributes.ignore_index = ignore_index;
    attributes.label_smoothing = label_smoothing;
    attributes.z_loss = z_loss;
    attributes.columns = columns;
    cup_tensor *const in[] = {logits, targets, share};
    return cup__op_call(c, &cup__rows[CUP__OP_cross_entropy_part], in, 3, &attributes, NULL);
}

cup_tensor *cup__target_share(cup_context *c, cup_tensor *targets, int64_t ignore_index,
                              cup_dtype dtype)
{
    cup__target_share_attributes attributes = {0};
    attributes.ignore_index = ignore_index;
    attributes.dtype = dtype;
    cup_tensor *const in[] = {targets};
    return cup__op_call(c, &cup__rows[CUP__OP_target_share], in, 1, &attributes, NULL);
}

cup_tensor *cup__cross_entropy_grad(cup_context *c, cup_tensor *logits, cup_tensor *targets,
                                    cup_tensor *lse, cup_tensor *share, cup_tensor *dloss,
                                    int64_t ignore_index, double label_smoothing, double z_loss,
                                    int64_t columns)
{
    cup__cross_entropy_grad_attributes attributes = {0};
    attributes.ignore_index = ignore_index;
    attributes.label_smoothing = label_smoothing;
    attributes.z_loss = z_loss;
    attributes.columns = columns;
    cup_tensor *const in[] = {logits, targets, lse, share, dloss};
    return cup__op_call(c, &cup__rows[CUP__OP_cross_entropy_grad], in, 5, &attributes, NULL);
}

cup_status cup__scale_by(cup_context *c, cup_tensor *x, cup_tensor *factor)
{
    cup_tensor *const in[] = {x, factor};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_scale_by], in, 2, NULL, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_embedding(cup_context *c, cup_tensor *table, cup_tensor *ids)
{
    cup_tensor *const in[] = {table, ids};
    return cup__op_call(c, &cup__rows[CUP__OP_embedding], in, 2, NULL, NULL);
}

cup_tensor *cup__embedding_grad(cup_context *c, cup_tensor *dy, cup_tensor *ids, int64_t rows)
{
    cup__embedding_grad_attributes attributes = {0};
    attributes.rows = rows;
    cup_tensor *const in[] = {dy, ids};
    return cup__op_call(c, &cup__rows[CUP__OP_embedding_grad], in, 2, &attributes, NULL);
}

cup_tensor *cup_index_select(cup_context *c, cup_tensor *x, cup_tensor *indices, int axis)
{
    cup__index_select_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {x, indices};
    return cup__op_call(c, &cup__rows[CUP__OP_index_select], in, 2, &attributes, NULL);
}

cup_tensor *cup_gather(cup_context *c, cup_tensor *x, cup_tensor *indices, int axis)
{
    cup__gather_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {x, indices};
    return cup__op_call(c, &cup__rows[CUP__OP_gather], in, 2, &attributes, NULL);
}

cup_tensor *cup_scatter_add(cup_context *c, cup_tensor *x, cup_tensor *indices, cup_tensor *src,
                            int axis)
{
    cup__scatter_add_attributes attributes = {0};
    attributes.axis = axis;
    cup_tensor *const in[] = {x, indices, src};
    return cup__op_call(c, &cup__rows[CUP__OP_scatter_add], in, 3, &attributes, NULL);
}

cup_status cup_sort(cup_context *c, cup_tensor *x, int axis, bool descending, cup_tensor **values,
                    cup_tensor **indices)
{
    cup__sort_attributes attributes = {0};
    attributes.axis = axis;
    attributes.descending = descending;
    cup_tensor *const in[] = {x};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_sort], in, 1, &attributes, out) != NULL;
    if (values)
        *values = out[0];
    if (indices)
        *indices = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup_top_k(cup_context *c, cup_tensor *x, int64_t k, int axis, bool smallest,
                     cup_tensor **values, cup_tensor **indices)
{
    cup__top_k_attributes attributes = {0};
    attributes.k = k;
    attributes.axis = axis;
    attributes.smallest = smallest;
    cup_tensor *const in[] = {x};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_top_k], in, 1, &attributes, out) != NULL;
    if (values)
        *values = out[0];
    if (indices)
        *indices = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup__unsort(cup_context *c, cup_tensor *dy, cup_tensor *indices, int axis,
                        int64_t size)
{
    cup__unsort_attributes attributes = {0};
    attributes.axis = axis;
    attributes.size = size;
    cup_tensor *const in[] = {dy, indices};
    return cup__op_call(c, &cup__rows[CUP__OP_unsort], in, 2, &attributes, NULL);
}

cup_tensor *cup_global_norm(cup_context *c, cup_tensor *const *x, int x_count)
{
    return cup__op_call(c, &cup__rows[CUP__OP_global_norm], x, x_count, NULL, NULL);
}

cup_tensor *cup__step_factors(cup_context *c, cup_tensor *hyper, cup_tensor *state,
                              cup_tensor *norm, double beta1, double beta2)
{
    cup__step_factors_attributes attributes = {0};
    attributes.beta1 = beta1;
    attributes.beta2 = beta2;
    cup_tensor *const in[] = {hyper, state, norm};
    return cup__op_call(c, &cup__rows[CUP__OP_step_factors], in, 3, &attributes, NULL);
}

cup_status cup__adamw(cup_context *c, cup_tensor *const *x, int x_count, double beta1,
                      double beta2, double epsilon, bool stochastic)
{
    cup__adamw_attributes attributes = {0};
    attributes.beta1 = beta1;
    attributes.beta2 = beta2;
    attributes.epsilon = epsilon;
    attributes.stochastic = stochastic;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_adamw], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup__sgd(cup_context *c, cup_tensor *const *x, int x_count, double momentum,
                    bool nesterov, bool stochastic)
{
    cup__sgd_attributes attributes = {0};
    attributes.momentum = momentum;
    attributes.nesterov = nesterov;
    attributes.stochastic = stochastic;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_sgd], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup__muon_momentum(cup_context *c, cup_tensor *const *x, int x_count, double momentum)
{
    cup__muon_momentum_attributes attributes = {0};
    attributes.momentum = momentum;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_muon_momentum], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup__muon_step(cup_context *c, cup_tensor *const *x, int x_count, bool stochastic)
{
    cup__muon_step_attributes attributes = {0};
    attributes.stochastic = stochastic;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_muon_step], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup__lion(cup_context *c, cup_tensor *const *x, int x_count, double beta1,
                     double beta2, bool stochastic)
{
    cup__lion_attributes attributes = {0};
    attributes.beta1 = beta1;
    attributes.beta2 = beta2;
    attributes.stochastic = stochastic;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_lion], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_attention(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                          bool causal, double scale, double dropout)
{
    cup__attention_attributes attributes = {0};
    attributes.causal = causal;
    attributes.scale = scale;
    attributes.dropout = dropout;
    cup_tensor *const in[] = {q, k, v};
    return cup__op_call(c, &cup__rows[CUP__OP_attention], in, 3, &attributes, NULL);
}

cup_status cup__attention_grad(cup_context *c, cup_tensor *q, cup_tensor *k, cup_tensor *v,
                               cup_tensor *o, cup_tensor *lse, cup_tensor *d_o, bool causal,
                               double scale, double dropout, int64_t sequence, cup_tensor **dq,
                               cup_tensor **dk, cup_tensor **dv)
{
    cup__attention_grad_attributes attributes = {0};
    attributes.causal = causal;
    attributes.scale = scale;
    attributes.dropout = dropout;
    attributes.sequence = sequence;
    cup_tensor *const in[] = {q, k, v, o, lse, d_o};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_attention_grad], in, 6, &attributes, out) != NULL;
    if (dq)
        *dq = out[0];
    if (dk)
        *dk = out[1];
    if (dv)
        *dv = out[2];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_qkv_attention(cup_context *c, cup_tensor *qkv, int heads, int kv_heads,
                              bool causal, double scale, double dropout)
{
    cup__qkv_attention_attributes attributes = {0};
    attributes.heads = heads;
    attributes.kv_heads = kv_heads;
    attributes.causal = causal;
    attributes.scale = scale;
    attributes.dropout = dropout;
    cup_tensor *const in[] = {qkv};
    return cup__op_call(c, &cup__rows[CUP__OP_qkv_attention], in, 1, &attributes, NULL);
}

cup_tensor *cup__qkv_attention_grad(cup_context *c, cup_tensor *qkv, cup_tensor *o,
                                    cup_tensor *lse, cup_tensor *d_o, int heads, int kv_heads,
                                    bool causal, double scale, double dropout, int64_t sequence)
{
    cup__qkv_attention_grad_attributes attributes = {0};
    attributes.heads = heads;
    attributes.kv_heads = kv_heads;
    attributes.causal = causal;
    attributes.scale = scale;
    attributes.dropout = dropout;
    attributes.sequence = sequence;
    cup_tensor *const in[] = {qkv, o, lse, d_o};
    return cup__op_call(c, &cup__rows[CUP__OP_qkv_attention_grad], in, 4, &attributes, NULL);
}

cup_tensor *cup_rope(cup_context *c, cup_tensor *x, double base, int64_t offset, int size,
                     int heads, bool interleaved, bool inverse)
{
    cup__rope_attributes attributes = {0};
    attributes.base = base;
    attributes.offset = offset;
    attributes.size = size;
    attributes.heads = heads;
    attributes.interleaved = interleaved;
    attributes.inverse = inverse;
    cup_tensor *const in[] = {x};
    return cup__op_call(c, &cup__rows[CUP__OP_rope], in, 1, &attributes, NULL);
}

cup_tensor *cup_matmul(cup_context *c, cup_tensor *a, cup_tensor *b, bool transpose_a,
                       bool transpose_b)
{
    cup__matmul_attributes attributes = {0};
    attributes.transpose_a = transpose_a;
    attributes.transpose_b = transpose_b;
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_matmul], in, 2, &attributes, NULL);
}

cup_tensor *cup_linear(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear], in, 3, NULL, NULL);
}

cup_tensor *cup_linear_gelu(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_gelu], in, 3, NULL, NULL);
}

cup_status cup_quantize(cup_context *c, cup_tensor *x, cup_dtype dtype, int block_rows,
                        int block_columns, cup_tensor **y, cup_tensor **scale)
{
    cup__quantize_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.block_rows = block_rows;
    attributes.block_columns = block_columns;
    cup_tensor *const in[] = {x};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_quantize], in, 1, &attributes, out) != NULL;
    if (y)
        *y = out[0];
    if (scale)
        *scale = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_dequantize(cup_context *c, cup_tensor *x, cup_tensor *scale, cup_dtype dtype)
{
    cup__dequantize_attributes attributes = {0};
    attributes.dtype = dtype;
    cup_tensor *const in[] = {x, scale};
    return cup__op_call(c, &cup__rows[CUP__OP_dequantize], in, 2, &attributes, NULL);
}

cup_tensor *cup_scaled_matmul(cup_context *c, cup_tensor *a, cup_tensor *b, cup_tensor *a_scale,
                              cup_tensor *b_scale, cup_tensor *bias, cup_dtype dtype,
                              bool fast_accumulation)
{
    cup__scaled_matmul_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.fast_accumulation = fast_accumulation;
    cup_tensor *const in[] = {a, b, a_scale, b_scale, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_scaled_matmul], in, 5, &attributes, NULL);
}

cup_status cup_matmul_list(cup_context *c, cup_tensor *const *x, int x_count, bool transpose_a,
                           bool transpose_b)
{
    cup__matmul_list_attributes attributes = {0};
    attributes.transpose_a = transpose_a;
    attributes.transpose_b = transpose_b;
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_matmul_list], x, x_count, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_grouped_matmul(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *offsets, bool transpose_weight)
{
    cup__grouped_matmul_attributes attributes = {0};
    attributes.transpose_weight = transpose_weight;
    cup_tensor *const in[] = {x, weight, offsets};
    return cup__op_call(c, &cup__rows[CUP__OP_grouped_matmul], in, 3, &attributes, NULL);
}

cup_tensor *cup_linear_dropout(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *bias, cup_tensor *residual, double p)
{
    cup__linear_dropout_attributes attributes = {0};
    attributes.p = p;
    cup_tensor *const in[] = {x, weight, bias, residual};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_dropout], in, 4, &attributes, NULL);
}

cup_status cup_linear_quantize(cup_context *c, cup_tensor *x, cup_tensor *weight,
                               cup_tensor *scale, cup_tensor *bias, cup_dtype dtype, bool gelu,
                               cup_tensor **y, cup_tensor **most)
{
    cup__linear_quantize_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.gelu = gelu;
    cup_tensor *const in[] = {x, weight, scale, bias};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_linear_quantize], in, 4, &attributes, out) != NULL;
    if (y)
        *y = out[0];
    if (most)
        *most = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_scaled_grouped_matmul(cup_context *c, cup_tensor *x, cup_tensor *weight,
                                      cup_tensor *offsets, cup_tensor *x_scale,
                                      cup_tensor *weight_scale, cup_dtype dtype,
                                      bool fast_accumulation)
{
    cup__scaled_grouped_matmul_attributes attributes = {0};
    attributes.dtype = dtype;
    attributes.fast_accumulation = fast_accumulation;
    cup_tensor *const in[] = {x, weight, offsets, x_scale, weight_scale};
    return cup__op_call(c, &cup__rows[CUP__OP_scaled_grouped_matmul], in, 5, &attributes, NULL);
}

cup_tensor *cup__grouped_weight_grad(cup_context *c, cup_tensor *a, cup_tensor *b,
                                     cup_tensor *offsets)
{
    cup_tensor *const in[] = {a, b, offsets};
    return cup__op_call(c, &cup__rows[CUP__OP_grouped_weight_grad], in, 3, NULL, NULL);
}

cup_tensor *cup_linear_relu(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_relu], in, 3, NULL, NULL);
}

cup_tensor *cup_linear_silu(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_silu], in, 3, NULL, NULL);
}

cup_tensor *cup_linear_swiglu(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_swiglu], in, 3, NULL, NULL);
}

cup_tensor *cup_linear_add(cup_context *c, cup_tensor *x, cup_tensor *weight,
                           cup_tensor *residual, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, residual, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_add], in, 4, NULL, NULL);
}

cup_tensor *cup_matmul_scaled(cup_context *c, cup_tensor *a, cup_tensor *b, bool transpose_a,
                              bool transpose_b, double factor)
{
    cup__matmul_scaled_attributes attributes = {0};
    attributes.transpose_a = transpose_a;
    attributes.transpose_b = transpose_b;
    attributes.factor = factor;
    cup_tensor *const in[] = {a, b};
    return cup__op_call(c, &cup__rows[CUP__OP_matmul_scaled], in, 2, &attributes, NULL);
}

cup_status cup_matmul_into(cup_context *c, cup_tensor *y, cup_tensor *a, cup_tensor *b,
                           bool transpose_a, bool transpose_b)
{
    cup__matmul_into_attributes attributes = {0};
    attributes.transpose_a = transpose_a;
    attributes.transpose_b = transpose_b;
    cup_tensor *const in[] = {y, a, b};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_matmul_into], in, 3, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup_matmul_add(cup_context *c, cup_tensor *y, cup_tensor *a, cup_tensor *b,
                          bool transpose_a, bool transpose_b)
{
    cup__matmul_add_attributes attributes = {0};
    attributes.transpose_a = transpose_a;
    attributes.transpose_b = transpose_b;
    cup_tensor *const in[] = {y, a, b};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_matmul_add], in, 3, &attributes, out) != NULL;
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup__matmul_gelu_grad(cup_context *c, cup_tensor *dy, cup_tensor *weight,
                                  cup_tensor *pre)
{
    cup_tensor *const in[] = {dy, weight, pre};
    return cup__op_call(c, &cup__rows[CUP__OP_matmul_gelu_grad], in, 3, NULL, NULL);
}

cup_tensor *cup__matmul_swiglu_grad(cup_context *c, cup_tensor *dy, cup_tensor *weight,
                                    cup_tensor *pre)
{
    cup_tensor *const in[] = {dy, weight, pre};
    return cup__op_call(c, &cup__rows[CUP__OP_matmul_swiglu_grad], in, 3, NULL, NULL);
}

cup_status cup__linear_weight_grad(cup_context *c, cup_tensor *dy, cup_tensor *x,
                                   cup_tensor **dweight, cup_tensor **dbias)
{
    cup_tensor *const in[] = {dy, x};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_linear_weight_grad], in, 2, NULL, out) != NULL;
    if (dweight)
        *dweight = out[0];
    if (dbias)
        *dbias = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_linear_int8(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *scale,
                            cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, scale, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_int8], in, 4, NULL, NULL);
}

cup_tensor *cup_linear_int4(cup_context *c, cup_tensor *x, cup_tensor *weight, cup_tensor *scale,
                            cup_tensor *zero, cup_tensor *bias)
{
    cup_tensor *const in[] = {x, weight, scale, zero, bias};
    return cup__op_call(c, &cup__rows[CUP__OP_linear_int4], in, 5, NULL, NULL);
}

cup_status cup_pack_int8(cup_context *c, cup_tensor *w, int group, cup_tensor **weight,
                         cup_tensor **scale)
{
    cup__pack_int8_attributes attributes = {0};
    attributes.group = group;
    cup_tensor *const in[] = {w};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_pack_int8], in, 1, &attributes, out) != NULL;
    if (weight)
        *weight = out[0];
    if (scale)
        *scale = out[1];
    return done ? CUP_OK : cup__call_status(c);
}

cup_status cup_pack_int4(cup_context *c, cup_tensor *w, int group, bool symmetric,
                         cup_tensor **weight, cup_tensor **scale, cup_tensor **zero)
{
    cup__pack_int4_attributes attributes = {0};
    attributes.group = group;
    attributes.symmetric = symmetric;
    cup_tensor *const in[] = {w};
    cup_tensor *out[CUP__MAX_OUT] = {NULL};
    bool done = cup__op_call(c, &cup__rows[CUP__OP_pack_int4], in, 1, &attributes, out) != NULL;
    if (weight)
        *weight = out[0];
    if (scale)
        *scale = out[1];
    if (zero)
        *zero = out[2];
    return done ? CUP_OK : cup__call_status(c);
}

cup_tensor *cup_unpack_int8(cup_context *c, cup_tensor *weight, cup_tensor *scale,
                            cup_dtype dtype)
{
    cup__unpack_int8_attributes attributes = {0};
    attributes.dtype = dtype;
    cup_tensor *const in[] = {weight, scale};
    return cup__op_call(c, &cup__rows[CUP__OP_unpack_int8], in, 2, &attributes, NULL);
}

cup_tensor *cup_unpack_int4(cup_context *c, cup_tensor *weight, cup_tensor *scale,
                            cup_tensor *zero, cup_dtype dtype)
{
    cup__unpack_int4_attributes attributes = {0};
    attributes.dtype = dtype;
    cup_tensor *const in[] = {weight, scale, zero};
    return cup__op_call(c, &cup__rows[CUP__OP_unpack_int4], in, 3, &attributes, NULL);
}
