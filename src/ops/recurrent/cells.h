/* What the steps of recurrent layers share: each of their inputs and results is [N, gates H], and
 * what they do to one element stands in cells.cuh. */
#ifndef CUP_OPS_RECURRENT_CELLS_H
#define CUP_OPS_RECURRENT_CELLS_H

#include <math.h>

#include "base/wide.h"
#include "base/wide_math.h"
#include "dispatch/op.h"
#include "ops/recurrent/cells.cuh"

/* The `kind` of an op: which cell, and whether its slopes. */
#define CUP__CELL_LSTM 0
#define CUP__CELL_LSTM_GRAD 1
#define CUP__CELL_GRU 2
#define CUP__CELL_GRU_GRAD 3

typedef struct cup__cell {
    int in[4], out[3]; /* gates of each input and result, 0 behind the last one */
    void (*f64)(const double *x, double *y);
    void (*f32)(const float *const *from, float *const *to, int64_t count);
} cup__cell;

extern const cup__cell cup__cell_lstm, cup__cell_lstm_slopes, cup__cell_gru, cup__cell_gru_slopes;

cup_status cup__cell_infer(cup__call *call);
cup_status cup__cell_specification(cup__call *call);
extern const cup__impl cup__cell_impls[];

/* For gradients in public ops: gate i of [N, gates H], s (1 - s), and gates side by side in the
 * dtype of input k. */
cup_tensor *cup__cell_gate(cup_context *c, cup_tensor *t, int i, int gates);
cup_tensor *cup__cell_slope(cup_context *c, cup_tensor *s);
cup_tensor *cup__cell_join(cup__grad *g, int k, cup_tensor *const *gates, int count);

static inline double cup__sigmoid_slope(double x)
{
    double e = exp(-fabs(x));
    return e / ((1 + e) * (1 + e));
}

CUP__IN_LOOP float cup__sigmoid_slope_f32(float x)
{
    float e = cup__exp_f32(x > 0.0f ? -x : x);
    return e / ((1.0f + e) * (1.0f + e));
}

/* The formula STEP of cells.cuh, of n numbers to m, as NAME_f64 and NAME_f32. */
#define CUP__CELL(name, STEP, n, m)                                                                \
    static void name##_f64(const double *x, double *y)                                             \
    {                                                                                              \
        STEP(double, CUP__CELL_SIGMOID, cup__sigmoid_slope, tanh)                                  \
    }                                                                                              \
    CUP__WIDE static void name##_f32(const float *const *from, float *const *to, int64_t count)    \
    {                                                                                              \
        _Pragma("GCC ivdep") for (int64_t at = 0; at < count; at++) {                              \
            float x[n], y[m];                                                                      \
            for (int k = 0; k < (n); k++)                                                          \
                x[k] = from[k][at];                                                                \
            STEP(float, cup__sigmoid_f32, cup__sigmoid_slope_f32, cup__tanh_f32)                   \
            for (int k = 0; k < (m); k++)                                                          \
                to[k][at] = y[k];                                                                  \
        }                                                                                          \
    }
#define CUP__CELL_SIGMOID(x) (1 / (1 + exp(-(x))))

#endif
