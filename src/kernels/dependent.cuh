/* Launches that overlap: a kernel launched as a dependent may start when all blocks of the one
 * before it have let it, and must wait before it touches memory. On cards before Hopper neither
 * does anything, and launches are plain. */
#ifndef CUP_DEPENDENT_CUH
#define CUP_DEPENDENT_CUH

#include "dtype.cuh"

DEVICE void wait_for_previous_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void let_next_kernel_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
