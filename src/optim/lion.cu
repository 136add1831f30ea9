/* Lion: a step by the sign of a mixture of momentum and gradient. */
#include "update.cuh"

struct lion {
    static __device__ __forceinline__ real step(real value, real g, real &first, real &,
                                                const update_numbers &n)
    {
        real mix = n.a[0] * first + n.rest[0] * g;
        real sign = (mix > 0 ? 1 : 0) - (mix < 0 ? 1 : 0);
        first = n.a[1] * first + n.rest[1] * g;
        return value - n.rate * (sign + n.decay * value);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
lion_step(const __grid_constant__ update_table table, int count, const float *factors,
          const float *settings, update_attributes attributes)
{
    update_chunk<lion>(table, count, factors, settings, attributes);
}
