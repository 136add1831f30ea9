/* The first half of Muon: momentum in Nesterov's form. The value is only written. */
#include "update.cuh"

struct muon_momentum {
    static __device__ __forceinline__ real step(real, real g, real &velocity, real &,
                                                const update_numbers &n)
    {
        velocity = n.a[0] * velocity + g;
        return g + n.a[0] * velocity;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
muon_momentum_step(const __grid_constant__ update_table table, int count, const float *factors,
                   const float *settings, update_attributes attributes)
{
    update_chunk<muon_momentum>(table, count, factors, settings, attributes);
}
