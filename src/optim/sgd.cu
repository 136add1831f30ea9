/* Gradient descent; with a state also momentum, plain or in Nesterov's form. */
#include "update.cuh"

struct sgd {
    static __device__ __forceinline__ real step(real value, real g, real &velocity, real &,
                                                const update_numbers &n)
    {
        g += n.decay * value;
        if (STATES > 0) {
            velocity = n.a[0] * velocity + g;
            g = n.a[1] != 0 ? g + n.a[0] * velocity : velocity;
        }
        return value - n.rate * g;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
sgd_step(const __grid_constant__ update_table table, int count, const float *factors,
         const float *settings, update_attributes attributes)
{
    update_chunk<sgd>(table, count, factors, settings, attributes);
}
