/* The ordered implementations of conv2d and its gradients. cuDNN stands last: a measurement chooses
 * it, or CUP_IMPL. */
#include "ops/conv_cpu/conv_cpu_packed.h"
#include "ops/conv/conv_cuda.h"
#include "ops/conv/conv_cudnn.h"
#include "ops/lowbit/scaled.h"

#define VARIES "a BLAS library may add in another order each time"

const cup__impl cup__conv_impls[] = {
    {.name = "direct", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(4, 16),
     .refuses = cup__conv_direct_refuses, .run = cup__conv_direct},
    {.name = "packed", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(6, 8, 16, 64, 128),
     .refuses = cup__conv_packed_refuses, .run = cup__conv_packed},
    {.name = "blas", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(64, 512),
     .refuses = cup__conv_blas_refuses, .run = cup__conv_blas, .varies = VARIES},
    {.name = "blocked", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(64, 512),
     .refuses = cup__conv_cpu_refuses, .run = cup__conv_blocked},
    {.name = "depthwise", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 64),
     .refuses = cup__conv_depthwise_refuses, .run = cup__conv_depthwise},
    {.name = "outer", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(2, 4, 8, 256),
     .refuses = cup__conv_rows_refuses, .run = cup__conv_rows},
    {.name = "dots", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 64, 256),
     .refuses = cup__conv_dots_refuses, .run = cup__conv_dots},
    {.name = "few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 256),
     .refuses = cup__conv_few_refuses, .run = cup__conv_few},
    {.name = "taps", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 16, 64, 128, 512),
     .refuses = cup__conv_taps_refuses, .run = cup__conv_taps},
    {.name = "wgmma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 16, 64, 128, 192),
     .refuses = cup__conv_wgmma_refuses, .run = cup__conv_wgmma},
    {.name = "wgmma_few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 16, 128),
     .refuses = cup__conv_wgmma_few_refuses, .run = cup__conv_wgmma_few},
    {.name = "wgmma_blocks", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 16, 128),
     .refuses = cup__conv_wgmma_blocks_refuses, .run = cup__conv_wgmma_blocks},
    {.name = "product", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 64, 128, 256),
     .refuses = cup__conv_f32_product_refuses, .run = cup__conv_f32_product},
    {.name = "rounded", .place = CUP__CUDA, .strided = true,
     .refuses = cup__conv_rounded_refuses, .run = cup__conv_rounded},
    {.name = "mma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 32, 64, 128),
     .refuses = cup__conv_mma_refuses, .run = cup__conv_mma},
    {.name = "simt", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 64, 128),
     .refuses = cup__conv_simt_refuses, .run = cup__conv_simt},
    {.name = "cudnn", .place = CUP__CUDA, .strided = true, .refuses = cup__conv_cudnn_refuses,
     .run = cup__conv_cudnn, .planning = &cup__conv_cudnn_planning, .overflows = true},
    {0},
};

/* With what stands behind it. */
const cup__impl cup__conv_join_impls[] = {
    {.name = "composed", .place = CUP__CPU, .strided = true, .run = cup__conv_join_compose},
    {.name = "outer", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(2, 4, 8, 256),
     .refuses = cup__conv_rows_refuses, .run = cup__conv_rows},
    {.name = "dots", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 64, 256),
     .refuses = cup__conv_dots_refuses, .run = cup__conv_dots},
    {.name = "product", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 64, 128, 256),
     .refuses = cup__conv_wgmma_product_refuses, .run = cup__conv_wgmma_product},
    {.name = "wgmma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 16, 64, 128, 192),
     .refuses = cup__conv_wgmma_refuses, .run = cup__conv_wgmma},
    {.name = "wgmma_few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 16, 128),
     .refuses = cup__conv_wgmma_few_refuses, .run = cup__conv_wgmma_few},
    {.name = "composed", .place = CUP__CUDA, .strided = true, .run = cup__conv_join_compose},
    {0},
};

/* Of codes of 8 bits. */
const cup__impl cup__scaled_conv_impls[] = {
    {.name = "rows", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(16, 64, 128),
     .refuses = cup__scaled_refuses, .run = cup__scaled_conv_cpu},
    {.name = "few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 256),
     .refuses = cup__conv_few_refuses, .run = cup__conv_few},
    {.name = "wgmma", .place = CUP__CUDA, .strided = true,
     CUP__THRESHOLDS(16, 32, 64, 128, 192, 256),
     .refuses = cup__conv_wgmma_refuses, .run = cup__conv_wgmma, .slack = 0x1p-8},
    {.name = "wgmma_few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 16, 128),
     .refuses = cup__conv_wgmma_few_refuses, .run = cup__conv_wgmma_few, .slack = 0x1p-8},
    {.name = "mma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 32, 64, 128),
     .refuses = cup__conv_mma_refuses, .run = cup__conv_mma, .slack = 0x1p-11},
    {.name = "simt", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 64, 128),
     .refuses = cup__conv_simt_refuses, .run = cup__conv_simt},
    {0},
};

const cup__impl cup__conv_weight_impls[] = {
    {.name = "direct", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(4, 16),
     .refuses = cup__conv_direct_refuses, .run = cup__conv_weight_direct},
    {.name = "packed", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(6, 8, 16, 64, 192),
     .refuses = cup__conv_weight_packed_refuses, .run = cup__conv_weight_packed},
    {.name = "blas", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(256, 512),
     .refuses = cup__conv_blas_refuses, .run = cup__conv_weight_blas, .varies = VARIES},
    {.name = "blocked", .place = CUP__CPU, .strided = true, CUP__THRESHOLDS(256, 512),
     .refuses = cup__conv_cpu_refuses, .run = cup__conv_weight_blocked},
    {.name = "depthwise", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 64),
     .refuses = cup__conv_depthwise_refuses, .run = cup__conv_weight_depthwise},
    {.name = "outer", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(2, 4, 8, 256),
     .refuses = cup__conv_weight_rows_refuses, .run = cup__conv_weight_rows},
    {.name = "few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 32, 256),
     .refuses = cup__conv_few_refuses, .run = cup__conv_weight_few},
    {.name = "wgmma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(8, 16, 64, 128, 192),
     .refuses = cup__conv_wgmma_refuses, .run = cup__conv_weight_wgmma},
    {.name = "wgmma_few", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(4, 8, 16, 128),
     .refuses = cup__conv_wgmma_few_refuses, .run = cup__conv_weight_wgmma_few},
    {.name = "rounded", .place = CUP__CUDA, .strided = true,
     .refuses = cup__conv_rounded_refuses, .run = cup__conv_weight_rounded},
    {.name = "mma", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 32, 64, 128, 256),
     .refuses = cup__conv_mma_refuses, .run = cup__conv_weight_mma},
    {.name = "simt", .place = CUP__CUDA, .strided = true, CUP__THRESHOLDS(16, 64, 256),
     .refuses = cup__conv_simt_refuses, .run = cup__conv_weight_simt},
    {.name = "cudnn", .place = CUP__CUDA, .strided = true, .refuses = cup__conv_cudnn_refuses,
     .run = cup__conv_cudnn, .planning = &cup__conv_cudnn_planning, .overflows = true},
    {0},
};
