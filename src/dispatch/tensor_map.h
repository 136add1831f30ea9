/* Tensor maps: how TMA reads and writes boxes of a matrix, or of several. */
#ifndef CUP_DISPATCH_TENSOR_MAP_H
#define CUP_DISPATCH_TENSOR_MAP_H

#include "cuda/api.h"
#include "cuda/cuda.h"
#include "tensor/tensor.h"

#define CUP__MAP_DIMS 4

/* Elements beyond a size read as 0. Lines of a box of 128, 64 or 32 bytes are swizzled as such in
 * shared memory. */
typedef struct cup__boxes {
    const void *data;
    cup_dtype dtype; /* of codes U8 */
    bool as_tf32;    /* f32, rounded to that on the way */
    int ndim;
    int64_t size[CUP__MAP_DIMS];    /* elements, innermost dimension first */
    int64_t stride[CUP__MAP_DIMS];  /* bytes, from the second dimension on; multiples of 16 */
    int64_t box[CUP__MAP_DIMS];     /* elements of a box; 0 means 1 */
} cup__boxes;

/* Fails where the driver refuses them. */
cup_status cup__tensor_map_make(cup__cuda *gpu, const cup__boxes *boxes, CUtensorMap *map);

/* What a refusal of the driver is told as; of an encoding of images, too. */
cup_status cup__tensor_map_refused(cup__cuda *gpu, CUresult result, const cup__boxes *boxes);

CUtensorMapDataType cup__tensor_map_type(cup_dtype dtype);

#endif
