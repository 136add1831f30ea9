/* The tensor maps of convolutions by wgmma.cu. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "dispatch/tensor_map.h"
#include "ops/conv/conv_wgmma.h"

#define LINE_BYTES 128 /* of sums on their way to memory */

/* Bytes between elements of a dimension; where it has one, any that TMA takes. */
static int64_t bytes_apart(int64_t size, int64_t step, cup_dtype dtype)
{
    return size == 1 ? 16 : step * cup_dtype_size(dtype);
}

/* The image, of which `places` are read at a time, `bytes` of the channels of each: 128, or 64. */
cup_status cup__conv_encode_image(const cup__conv_work *w, CUtensorMap *map, int places, int bytes)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    const cup_dtype dtype = w->p.dtype;
    const bool tf32 = dtype == CUP_F32 && !w->as_f32;
    const uint64_t sizes[] = {(uint64_t)c->channels, (uint64_t)l[1].size, (uint64_t)l[0].size,
                              (uint64_t)c->images};
    const uint64_t strides[] = {(uint64_t)bytes_apart(l[1].size, c->x_step[3], dtype),
                                (uint64_t)bytes_apart(l[0].size, c->x_step[2], dtype),
                                (uint64_t)bytes_apart(c->images, c->x_step[0], dtype)};
    const int from[] = {(int)w->walk[1].from, (int)w->walk[0].from};
    const int end[] = {(int)w->walk[1].end, (int)w->walk[0].end};
    const uint32_t steps[] = {1, (uint32_t)l[1].step, (uint32_t)l[0].step, 1};
    CUresult result = cup__driver.cuTensorMapEncodeIm2col(
        map, tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : cup__tensor_map_type(dtype), 4,
        (void *)(uintptr_t)c->x, sizes, strides, from,
        end, (uint32_t)(bytes / cup_dtype_size(dtype)), (uint32_t)places, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE,
        bytes == CUP__WGMMA_LINE ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    const cup__boxes image = {.size = {(int64_t)sizes[0], (int64_t)sizes[1]},
                              .stride = {0, (int64_t)strides[0]}};
    return result == CUDA_SUCCESS
               ? CUP_OK
               : cup__tensor_map_refused(cup__cuda_of(w->c->device), result, &image);
}

cup_status cup__conv_encode_boxes(const cup__conv_work *w, CUtensorMap *map, cup_dtype dtype,
                                  const void *data, int channels, const int side[2],
                                  const long long step[4], const int64_t box[3])
{
    const int images = w->call->images;
    const cup__boxes boxes = {.data = data, .dtype = dtype, .ndim = 4,
                              .as_tf32 = dtype == CUP_F32 && data != w->call->y,
                              .size = {channels, side[1], side[0], images},
                              .stride = {0, bytes_apart(side[1], step[3], dtype),
                                         bytes_apart(side[0], step[2], dtype),
                                         bytes_apart(images, step[0], dtype)},
                              .box = {box[2], box[1], box[0], 1}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, map);
}

/* The weight as a matrix for each tap, whose lines are its channels. */
cup_status cup__conv_encode_weight(cup__conv_work *w)
{
    const conv_call *c = w->call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    bool along_k = cup__conv_weight_along_k(c);
    int64_t lines = along_k ? c->results : c->channels;
    int box_lines = (along_k ? w->plan.tile_n : CUP__CONV_CHUNK) / w->plan.cluster_m;
    const cup__boxes boxes = {
        .data = c->w,
        .dtype = w->p.dtype,
        .as_tf32 = w->p.dtype == CUP_F32,
        .ndim = 3,
        .size = {along_k ? c->channels : c->results, lines, taps},
        .stride = {0, bytes_apart(lines, c->w_step[!along_k], w->p.dtype),
                   bytes_apart(taps, c->w_step[c->side[1].taps > 1 ? 3 : 2], w->p.dtype)},
        .box = {(int)cup__wgmma_tile_k(&w->p), box_lines}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, &w->b);
}

/* A matrix with lines of `length`, of which boxes are read or written. */
static cup_status encode_matrix(const cup__conv_work *w, CUtensorMap *map, const cup__matrix *data,
                                cup_dtype dtype, int64_t length, int64_t lines, int box_length,
                                int box_lines)
{
    const cup__boxes boxes = {.data = data->data, .dtype = dtype, .ndim = 2,
                              .size = {length, lines},
                              .stride = {0, bytes_apart(lines, data->row, dtype)},
                              .box = {box_length, box_lines}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, map);
}

cup_status cup__conv_encode_results(cup__conv_work *w)
{
    cup_dtype dtype = cup__product_y_dtype(&w->p);
    int64_t size = cup_dtype_size(dtype), line = cup__wgmma_stored_line(w->plan.tile_n * size);
    if (w->spread) {
        w->y = w->a; /* which nobody looks at */
        return CUP_OK;
    }
    CUP_TRY(encode_matrix(w, &w->y, &w->p.y, dtype, w->p.n, w->p.m, (int)(line / size), 16));
    const cup__matrix other = {(char *)(uintptr_t)w->p.other, w->residual_row, 1, {0}};
    return w->p.kind ? encode_matrix(w, &w->residual, &other, dtype, w->p.n, w->p.m,
                                     (int)(line / size), w->plan.tile_m)
                     : CUP_OK;
}

/* The matrices of the parts, in f32. */
cup_status cup__conv_encode_parts(cup__conv_work *w, const conv_parts *parts)
{
    int64_t line = w->p.n * (int64_t)sizeof(float);
    const cup__boxes boxes = {.data = parts->sums, .dtype = CUP_F32, .ndim = 3,
                              .size = {w->p.n, w->p.m, parts->parts},
                              .stride = {0, line, line * w->p.m},
                              .box = {LINE_BYTES / sizeof(float), 16}};
    return cup__tensor_map_make(cup__cuda_of(w->c->device), &boxes, &w->y);
}

cup_status cup__conv_encode_dy(cup__conv_work *w, int64_t step)
{
    const cup__matrix dy = {(char *)(uintptr_t)w->call->w, step, 1, {0}};
    return encode_matrix(w, &w->a, &dy, w->p.dtype, w->call->results, w->p.k, CUP__CONV_CHUNK,
                         CUP__CONV_CHUNK);
}
