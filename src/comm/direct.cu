/* Sums of two GPUs that write to each other's memory, see direct.c. A flag is not 0 where what it
 * tells of has happened; who waits for it makes it 0 again. */
#include "vec.cuh"

DEVICE uint32_t look(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

DEVICE void put(uint32_t *flag, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

#define LOOKS 4096 /* between two at the host's memory, which is far */

/* One that the host gives up waits no longer. */
DEVICE void wait_for(uint32_t *flag, const uint32_t *given_up)
{
    for (uint32_t i = 0; look(flag) == 0; i++)
        if (i % LOOKS == 0 && look(given_up))
            return;
    __threadfence_system();
    put(flag, 0);
}

extern "C" __global__ void direct_wait(uint32_t *flag, const uint32_t *given_up)
{
    wait_for(flag, given_up);
}

extern "C" __global__ void direct_meet(uint32_t *theirs, uint32_t *own, const uint32_t *given_up)
{
    put(theirs, 1);
    wait_for(own, given_up);
}

extern "C" __global__ void direct_put(uint32_t *theirs)
{
    put(theirs, 1);
}

#ifdef CUP_T
#define SIDE (16 / (int)sizeof(T))

/* y = a + b, of which a and b begin at multiples of 16 bytes, and y too. */
extern "C" __global__ void direct_add(const T *a, const T *b, T *y, int64_t count)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = at * SIDE; i + SIDE <= count; i += step * SIDE) {
        real left[SIDE], right[SIDE];
        to_reals(load<SIDE>(a + i), left);
        to_reals(load<SIDE>(b + i), right);
#pragma unroll
        for (int k = 0; k < SIDE; k++)
            left[k] += right[k];
        store(y + i, from_reals<T, SIDE>(left));
    }
    int64_t rest = count / SIDE * SIDE + at;
    if (rest < count)
        y[rest] = from_real<T>(to_real(a[rest]) + to_real(b[rest]));
}
#endif
