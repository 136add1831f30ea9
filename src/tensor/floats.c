#include "tensor/floats.h"

static char *place_of(const cup_tensor *t, int64_t at)
{
    return (char *)t->data + at * cup_dtype_size(t->dtype);
}

const float *cup__floats_of(const cup_tensor *t, int64_t at, int64_t count, float *buffer)
{
    if (t->dtype == CUP_F32)
        return (const float *)t->data + at;
    cup__load_f32(buffer, place_of(t, at), t->dtype, count);
    return buffer;
}

void cup__floats_read(float *to, const cup_tensor *t, int64_t at, int64_t step, int64_t count)
{
    if (step == 1)
        cup__load_f32(to, place_of(t, at), t->dtype, count);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)cup__load(t, at + i * step);
}

void cup__floats_write(cup_tensor *t, int64_t at, int64_t step, const float *from, int64_t count)
{
    if (step == 1)
        cup__store_f32(place_of(t, at), from, t->dtype, count);
    else
        for (int64_t i = 0; i < count; i++)
            cup__store(t, at + i * step, from[i]);
}

CUP__WIDE void cup__floats_add(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

CUP__WIDE void cup__floats_add_f64(double *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += (double)x[i];
}

CUP__WIDE void cup__floats_add_scaled(float *y, const float *x, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}

CUP__WIDE void cup__floats_scale(float *y, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] *= factor;
}

CUP__WIDE void cup__floats_mask(float *y, const float *x, const uint8_t *mask, float scale,
                                int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = mask[i / 8] >> (i % 8) & 1 ? x[i] * scale : 0.0f;
}
