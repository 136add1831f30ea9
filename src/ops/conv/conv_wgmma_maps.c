/* The tensor maps of convolutions by wgmma.cu. */
#include "base/divide.h"
#include "cuda/loader.h"
#include "ops/conv/conv_wgmma.h"

#define LINE_BYTES 128 /* of sums on their way to memory */

static cup_status refused(const cup__conv_work *w, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return CUP_OK;
    return cup__fail(&w->c->error, CUP_INTERNAL,
                     "convolution: the driver refused a tensor map, with error %d", (int)result);
}

static CUtensorMapDataType type_of(const cup__conv_work *w)
{
    return w->p.dtype == CUP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/* Bytes between elements of a dimension; where it has one, any that TMA takes. */
static uint64_t bytes_apart(int64_t size, int64_t step)
{
    return size == 1 ? 16 : (uint64_t)step * 2;
}

static cup_status encode_boxes(const cup__conv_work *w, CUtensorMap *map, const void *data,
                               uint32_t rank, const uint64_t *sizes, const uint64_t *strides,
                               const uint32_t *box)
{
    const uint32_t steps[] = {1, 1, 1};
    CUtensorMapSwizzle swizzle =
        box[0] * 2 == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    return refused(w, cup__driver.cuTensorMapEncodeTiled(
                          map, type_of(w), rank, (void *)(uintptr_t)data, sizes, strides, box,
                          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* The image, of which `places` are read at a time. */
cup_status cup__conv_encode_image(const cup__conv_work *w, CUtensorMap *map, int places)
{
    const conv_call *c = w->call;
    const conv_line *l = w->line;
    const uint64_t sizes[] = {(uint64_t)c->channels, (uint64_t)l[1].size, (uint64_t)l[0].size,
                              (uint64_t)c->images};
    const uint64_t strides[] = {bytes_apart(l[1].size, c->x_step[3]),
                                bytes_apart(l[0].size, c->x_step[2]),
                                bytes_apart(c->images, c->x_step[0])};
    const int from[] = {(int)w->walk[1].from, (int)w->walk[0].from};
    const int end[] = {(int)w->walk[1].end, (int)w->walk[0].end};
    const uint32_t steps[] = {1, (uint32_t)l[1].step, (uint32_t)l[0].step, 1};
    return refused(w, cup__driver.cuTensorMapEncodeIm2col(
                          map, type_of(w), 4, (void *)(uintptr_t)c->x, sizes, strides, from, end,
                          CUP__CONV_CHUNK, (uint32_t)places, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                          CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* The weight as a matrix for each tap, whose lines are its channels. */
cup_status cup__conv_encode_weight(cup__conv_work *w)
{
    const conv_call *c = w->call;
    int64_t taps = (int64_t)c->side[0].taps * c->side[1].taps;
    int64_t lines = c->back ? c->channels : c->results;
    const uint64_t sizes[] = {(uint64_t)(c->back ? c->results : c->channels), (uint64_t)lines,
                              (uint64_t)taps};
    const uint64_t strides[] = {bytes_apart(lines, c->w_step[c->back]),
                                bytes_apart(taps, c->w_step[c->side[1].taps > 1 ? 3 : 2])};
    int box_lines = (c->back ? CUP__CONV_CHUNK : w->plan.tile_n) / w->plan.cluster_m;
    return encode_boxes(w, &w->b, c->w, 3, sizes, strides,
                        (const uint32_t[]){CUP__CONV_CHUNK, (uint32_t)box_lines, 1});
}

/* A matrix with lines of `length`, of which boxes are read or written. */
static cup_status encode_matrix(const cup__conv_work *w, CUtensorMap *map, const void *data,
                                int64_t length, int64_t lines, int64_t step, int box_length,
                                int box_lines)
{
    return encode_boxes(w, map, data, 2, (const uint64_t[]){(uint64_t)length, (uint64_t)lines},
                        (const uint64_t[]){bytes_apart(lines, step)},
                        (const uint32_t[]){(uint32_t)box_length, (uint32_t)box_lines});
}

cup_status cup__conv_encode_results(cup__conv_work *w)
{
    int64_t line = cup__wgmma_stored_line(w->plan.tile_n * 2) / 2;
    if (w->spread) {
        w->y = w->a; /* which nobody looks at */
        return CUP_OK;
    }
    return encode_matrix(w, &w->y, w->p.y.data, w->p.n, w->p.m, w->p.y.row, (int)line, 16);
}

/* The matrices of the parts, in f32. */
cup_status cup__conv_encode_parts(cup__conv_work *w, const conv_parts *parts)
{
    uint64_t line = (uint64_t)w->p.n * sizeof(float);
    const uint64_t sizes[] = {(uint64_t)w->p.n, (uint64_t)w->p.m, (uint64_t)parts->parts};
    const uint64_t strides[] = {line, line * (uint64_t)w->p.m};
    const uint32_t box[] = {LINE_BYTES / sizeof(float), 16, 1}, steps[] = {1, 1, 1};
    return refused(w, cup__driver.cuTensorMapEncodeTiled(
                          &w->y, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, parts->sums, sizes, strides,
                          box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

cup_status cup__conv_encode_dy(cup__conv_work *w, int64_t step)
{
    return encode_matrix(w, &w->a, w->call->w, w->call->results, w->p.k, step, CUP__CONV_CHUNK,
                         CUP__CONV_CHUNK);
}
