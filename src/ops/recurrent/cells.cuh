/* What a step of a recurrent layer does to one element, for host and kernels: of numbers x, by
 * S, the sigmoid, D, its slope, and H, the hyperbolic tangent, to y. Plain C, included by both. */
#ifndef CUP_OPS_RECURRENT_CELLS_CUH
#define CUP_OPS_RECURRENT_CELLS_CUH

#define CELLS_MOST 8 /* numbers of either side */
#define CELLS_THREADS 256

/* Of the tangent at x. Neither 1 - tanh^2 nor 1 - S keeps digits where they are nearly 0. */
#define TANH_SLOPE(D, x) (4 * D(2 * (x)))

/* The gates input, forget, cell and output, and the cell, to h and the next cell; then the slopes
 * of h and of the next cell behind them to those of the gates and of the cell. */
#define LSTM_CELL(real, S, D, H)                                                                   \
    real next = S(x[1]) * x[4] + S(x[0]) * H(x[2]);                                                \
    y[0] = S(x[3]) * H(next);                                                                      \
    y[1] = next;
#define LSTM_SLOPES(real, S, D, H)                                                                 \
    real i = S(x[0]), f = S(x[1]), g = H(x[2]), o = S(x[3]), inner = f * x[4] + i * g;             \
    real slope = x[6] + x[5] * o * TANH_SLOPE(D, inner);                                           \
    y[0] = slope * g * D(x[0]);                                                                    \
    y[1] = slope * x[4] * D(x[1]);                                                                 \
    y[2] = slope * i * TANH_SLOPE(D, x[2]);                                                        \
    y[3] = x[5] * H(inner) * D(x[3]);                                                              \
    y[4] = slope * f;

/* The gates reset, update and new of the input, the same of what was remembered, and h, to the next
 * h; then its slope behind them to those of all. */
#define GRU_CELL(real, S, D, H)                                                                    \
    real n = H(x[2] + S(x[0] + x[3]) * x[5]);                                                      \
    y[0] = n + S(x[1] + x[4]) * (x[6] - n);
#define GRU_SLOPES(real, S, D, H)                                                                  \
    real reset = x[0] + x[3], update = x[1] + x[4], r = S(reset), inner = x[2] + r * x[5];         \
    real slope = x[7] * S(-update) * TANH_SLOPE(D, inner);                                         \
    y[0] = y[3] = slope * x[5] * D(reset);                                                         \
    y[1] = y[4] = x[7] * (x[6] - H(inner)) * D(update);                                            \
    y[2] = slope;                                                                                  \
    y[5] = slope * r;                                                                              \
    y[6] = x[7] * S(update);

typedef struct cells_call {
    const void *x[CELLS_MOST]; /* of each number its first place; NULL: it is 0 */
    void *y[CELLS_MOST];
    int x_row[CELLS_MOST], y_row[CELLS_MOST]; /* rows lie so many widths apart */
    long long count;                          /* rows times width */
    int width;
} cells_call;

#endif
