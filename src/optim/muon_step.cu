/* The second half of Muon: a step along a direction of a size of its own, which the scale of the
 * gradients does not change. */
#define UNSCALED 1
#include "update.cuh"

struct muon_step {
    static __device__ __forceinline__ real step(real value, real g, real &, real &,
                                                const update_numbers &n)
    {
        return value - n.rate * (g + n.decay * value);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
muon_step_step(const __grid_constant__ update_table table, int count, const float *factors,
               const float *settings, update_attributes attributes)
{
    update_chunk<muon_step>(table, count, factors, settings, attributes);
}
