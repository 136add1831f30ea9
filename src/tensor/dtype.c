#include <math.h>
#include <string.h>

#include "base/float8.h"
#include "base/half.h"
#include "base/wide.h"
#include "tensor/tensor.h"

static const struct {
    const char *name;
    int64_t size;
} rows[] = {
#define ROW(name, bytes, value, text) [value] = {text, bytes},
    CUP_DTYPE_LIST(ROW)
#undef ROW
};
#define ROW_COUNT (sizeof rows / sizeof *rows)

const char *cup_dtype_name(cup_dtype dtype)
{
    return (size_t)dtype < ROW_COUNT ? rows[dtype].name : "?";
}

int64_t cup_dtype_size(cup_dtype dtype)
{
    return (size_t)dtype < ROW_COUNT ? rows[dtype].size : 0;
}

cup_status cup_dtype_find(const char *name, cup_dtype *out)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (name && out && !strcmp(name, rows[i].name)) {
            *out = (cup_dtype)i;
            return CUP_OK;
        }
    return CUP_ARGUMENT;
}

bool cup__dtype_is_float(cup_dtype dtype)
{
    return dtype <= CUP_BF16 || dtype == CUP_F8E4M3 || dtype == CUP_F8E5M2;
}

double cup__load_any(const cup_tensor *t, int64_t offset)
{
    const char *at = (const char *)t->data + offset * rows[t->dtype].size;
    switch (t->dtype) {
    case CUP_F32:
        return *(const float *)(const void *)at;
    case CUP_F64:
        return *(const double *)(const void *)at;
    case CUP_F16:
        return cup__from_f16(*(const uint16_t *)(const void *)at);
    case CUP_BF16:
        return cup__from_bf16(*(const uint16_t *)(const void *)at);
    case CUP_I64:
        return (double)*(const int64_t *)(const void *)at;
    case CUP_I32:
        return *(const int32_t *)(const void *)at;
    case CUP_U8:
    case CUP_BOOL:
        return *(const uint8_t *)at;
    case CUP_I8:
        return *(const int8_t *)at;
    case CUP_F8E4M3:
        return cup__from_f8e4m3(*(const uint8_t *)at);
    case CUP_F8E5M2:
        return cup__from_f8e5m2(*(const uint8_t *)at);
    }
    return NAN;
}

/* Conversion of a double to an integer type: towards zero, NaN to 0, the ends saturate. */
static int64_t to_integer(double value, double low, double high)
{
    if (!(value > low))
        return value <= low ? (int64_t)low : 0;
    return value >= high ? (high >= 0x1p63 ? INT64_MAX : (int64_t)high) : (int64_t)value;
}

/* Rounding a double to float first and then to 16 bits would round twice; nudging the float to
 * odd when it is inexact makes the second rounding right. */
static float to_odd(double value)
{
    float nearest = (float)value;
    if ((double)nearest == value || isnan(value) || isinf(nearest))
        return nearest;
    uint32_t bits = cup__bits(nearest);
    if (bits & 1)
        return nearest;
    bool away = fabs((double)nearest) < fabs(value);
    return cup__float(away ? bits + 1 : bits - 1);
}

void cup__store_any(cup_tensor *t, int64_t offset, double value)
{
    char *at = (char *)t->data + offset * rows[t->dtype].size;
    switch (t->dtype) {
    case CUP_F32:
        *(float *)(void *)at = (float)value;
        break;
    case CUP_F64:
        *(double *)(void *)at = value;
        break;
    case CUP_F16:
        *(uint16_t *)(void *)at = cup__to_f16(to_odd(value));
        break;
    case CUP_BF16:
        *(uint16_t *)(void *)at = cup__to_bf16(to_odd(value));
        break;
    case CUP_I64:
        *(int64_t *)(void *)at = to_integer(value, -0x1p63, 0x1p63);
        break;
    case CUP_I32:
        *(int32_t *)(void *)at = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case CUP_U8:
        *(uint8_t *)at = (uint8_t)to_integer(value, 0, UINT8_MAX);
        break;
    case CUP_BOOL:
        *(uint8_t *)at = value != 0;
        break;
    case CUP_I8:
        *(int8_t *)at = (int8_t)to_integer(value, INT8_MIN, INT8_MAX);
        break;
    case CUP_F8E4M3:
        *(uint8_t *)at = cup__to_f8e4m3(to_odd(value));
        break;
    case CUP_F8E5M2:
        *(uint8_t *)at = cup__to_f8e5m2(to_odd(value));
        break;
    }
}

CUP__WIDE static void bf16_to_f32(float *to, const uint16_t *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cup__from_bf16(from[i]);
}

CUP__WIDE static void f16_to_f32(float *to, const uint16_t *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cup__from_f16(from[i]);
}

CUP__WIDE static void f32_to_bf16(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cup__to_bf16(from[i]);
}

CUP__WIDE static void f32_to_f16(uint16_t *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = cup__to_f16(from[i]);
}

void cup__load_f32(float *to, const void *from, cup_dtype dtype, int64_t count)
{
    if (dtype == CUP_F32) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (dtype == CUP_BF16) {
        bf16_to_f32(to, from, count);
    } else if (dtype == CUP_F16) {
        f16_to_f32(to, from, count);
    } else {
        cup_tensor view = {.data = (void *)(uintptr_t)from, .dtype = dtype};
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)cup__load(&view, i);
    }
}

#define PIECE 512

void cup__round_f32(float *x, cup_dtype dtype, int64_t count)
{
    double piece[PIECE]; /* room for elements of any dtype */
    for (int64_t i = 0; i < count && dtype != CUP_F32; i += PIECE) {
        int64_t n = count - i < PIECE ? count - i : PIECE;
        cup__store_f32(piece, x + i, dtype, n);
        cup__load_f32(x + i, piece, dtype, n);
    }
}

void cup__store_f32(void *to, const float *from, cup_dtype dtype, int64_t count)
{
    if (dtype == CUP_F32) {
        memcpy(to, from, (size_t)count * sizeof *from);
    } else if (dtype == CUP_BF16) {
        f32_to_bf16(to, from, count);
    } else if (dtype == CUP_F16) {
        f32_to_f16(to, from, count);
    } else {
        cup_tensor view = {.data = to, .dtype = dtype};
        for (int64_t i = 0; i < count; i++)
            cup__store(&view, i, (double)from[i]);
    }
}
