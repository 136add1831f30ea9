/* A step of a recurrent layer, a thread for each element of its width and row. Grid: threads for
 * all of them. Bytes: inputs and results once. */
#include "cells.cuh"
#include "real_math.cuh"

/* Knobs: CUP_T, CELL (the kind of an op, see cells.h). */
#define THREADS CELLS_THREADS

#if CELL == 0
#define X 5
#define Y 2
#define STEP LSTM_CELL
#elif CELL == 1
#define X 7
#define Y 5
#define STEP LSTM_SLOPES
#elif CELL == 2
#define X 7
#define Y 1
#define STEP GRU_CELL
#else
#define X 8
#define Y 7
#define STEP GRU_SLOPES
#endif

/* e^-|x| / (1 + e^-|x|)^2 */
DEVICE real sigmoid_slope_of(real x)
{
    real e = exp_of(x > 0 ? -x : x);
    return e / ((1 + e) * (1 + e));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cells_fwd(const __grid_constant__ cells_call c)
{
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= c.count)
        return;
    int64_t row = index / c.width, column = index - row * c.width;
    real x[X], y[Y];
#pragma unroll
    for (int i = 0; i < X; i++)
        x[i] = c.x[i] ? to_real(((const T *)c.x[i])[row * c.x_row[i] * c.width + column]) : (real)0;
    STEP(real, sigmoid_of, sigmoid_slope_of, tanh_of)
#pragma unroll
    for (int i = 0; i < Y; i++)
        ((T *)c.y[i])[row * c.y_row[i] * c.width + column] = convert<T>(y[i]);
}
