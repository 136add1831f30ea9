/* Floats side by side, as ops on the CPU read, add and scale them. */
#ifndef CUP_TENSOR_FLOATS_H
#define CUP_TENSOR_FLOATS_H

#include "base/wide.h"
#include "tensor/tensor.h"

/* Elements of a tensor from offset `at` on, which lie side by side: where they are, if they are
 * f32, or brought into the buffer. */
const float *cup__floats_of(const cup_tensor *t, int64_t at, int64_t count, float *buffer);

/* Brings elements of a tensor into a buffer, or takes them from there, where the tensor's are
 * `step` apart. */
void cup__floats_read(float *to, const cup_tensor *t, int64_t at, int64_t step, int64_t count);
void cup__floats_write(cup_tensor *t, int64_t at, int64_t step, const float *from, int64_t count);

/* y + x, in f64 too; y + factor x; y factor; and x times scale where its bit is set, else 0. */
void cup__floats_add(float *y, const float *x, int64_t count);
void cup__floats_add_f64(double *y, const float *x, int64_t count);
void cup__floats_add_scaled(float *y, const float *x, float factor, int64_t count);
void cup__floats_scale(float *y, float factor, int64_t count);
void cup__floats_mask(float *y, const float *x, const uint8_t *mask, float scale, int64_t count);

/* The sum of lanes, a power of two, which are halved until one is left. */
CUP__IN_LOOP float cup__floats_join(float *lanes, int count)
{
    for (int width = count / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            lanes[k] += lanes[k + width];
    return lanes[0];
}

#endif
