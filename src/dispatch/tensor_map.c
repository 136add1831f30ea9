#include "dispatch/tensor_map.h"

#include "cuda/gpu.h"

CUtensorMapDataType cup__tensor_map_type(cup_dtype dtype)
{
    return cup_dtype_size(dtype) == 4   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : cup_dtype_size(dtype) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : dtype == CUP_F16           ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

cup_status cup__tensor_map_refused(cup__cuda *gpu, CUresult result, const cup__boxes *b)
{
    const char *op = gpu->op ? gpu->op : "a call";
    return cup__fail(gpu->device.error, CUP_INTERNAL,
                     "%s: the driver refused a tensor map of %lld x %lld elements, lines %lld "
                     "bytes apart, with error %d",
                     op, (long long)b->size[1], (long long)b->size[0], (long long)b->stride[1],
                     (int)result);
}

cup_status cup__tensor_map_make(cup__cuda *gpu, const cup__boxes *b, CUtensorMap *map)
{
    uint64_t sizes[CUP__MAP_DIMS], strides[CUP__MAP_DIMS] = {0};
    uint32_t box[CUP__MAP_DIMS], steps[CUP__MAP_DIMS];
    for (int i = 0; i < b->ndim; i++) {
        sizes[i] = (uint64_t)b->size[i];
        box[i] = b->box[i] ? (uint32_t)b->box[i] : 1;
        steps[i] = 1;
        if (i > 0)
            strides[i - 1] = (uint64_t)b->stride[i];
    }
    int64_t line = (int64_t)box[0] * cup_dtype_size(b->dtype);
    CUresult result = cup__driver.cuTensorMapEncodeTiled(
        map, b->as_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : cup__tensor_map_type(b->dtype),
        (uint32_t)b->ndim, (void *)(uintptr_t)b->data, sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE,
        line == 32   ? CU_TENSOR_MAP_SWIZZLE_32B
        : line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                     : CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? CUP_OK : cup__tensor_map_refused(gpu, result, b);
}
