/* What one optimizer step multiplies with. One thread: five numbers from eight. In double, because
 * 1 - beta2^t is a small difference of large numbers in the first steps. */
#include "dtype.cuh"

extern "C" __global__ void step_factors_fwd(const float *hyper, double *state, const float *norm,
                                            double beta1, double beta2, float *factors)
{
    double rate = hyper[0], limit = hyper[1], scale = hyper[2];
    double length = norm ? *norm * scale : 0;
    bool finite = length - length == 0;
    if (finite) {
        state[0] += 1;
        state[1] *= beta1;
        state[2] *= beta2;
    } else {
        state[3] += 1;
    }
    if (limit > 0 && length + 1e-6 > limit)
        scale *= limit / (length + 1e-6);
    factors[0] = finite ? (float)(rate / (1 - state[1])) : 0.0f;
    factors[1] = finite ? (float)(1 / sqrt(1 - state[2])) : 0.0f;
    factors[2] = finite ? (float)scale : 0.0f;
    factors[3] = finite ? (float)rate : 0.0f;
    factors[4] = finite ? 1.0f : 0.0f;
}
