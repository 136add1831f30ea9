/* AdamW: m and v follow the gradient and its square; the step is m / sqrt(v), both corrected for
 * their start at 0, and the weight decay pulls at the parameter itself. */
#include "update.cuh"

struct adamw {
    static __device__ __forceinline__ real step(real value, real g, real &first, real &second,
                                                const update_numbers &n)
    {
        first = n.a[0] * first + n.rest[0] * g;
        second = n.a[1] * second + n.rest[1] * g * g;
        real length = sqrt(second) * n.root + n.a[2];
        return value - (n.rate * n.decay * value + n.corrected * first / length);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
adamw_step(const __grid_constant__ update_table table, int count, const float *factors,
           const float *settings, update_attributes attributes)
{
    update_chunk<adamw>(table, count, factors, settings, attributes);
}
