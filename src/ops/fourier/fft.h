/* Fourier transforms of lines of complex numbers, as pairs side by side. */
#ifndef CUP_OPS_FOURIER_FFT_H
#define CUP_OPS_FOURIER_FFT_H

#include "dispatch/op.h"

#define CUP__FFT_PRIME 128 /* larger prime factors are taken by products with a chirp */

/* The lines of a call: element j of line [outer, inner] is the pair at (outer length + j) inner. */
typedef struct cup__fft_lines {
    int axis;
    int64_t outer, length, inner;
    bool inverse;
} cup__fft_lines;

cup__fft_lines cup__fft_lines_of(const cup__call *call);

/* Whether n has no prime factor over CUP__FFT_PRIME. */
bool cup__fft_smooth(int64_t n);
/* A power of two in which lines of n can be multiplied with a chirp. */
int64_t cup__fft_room(int64_t n);

cup_status cup__fft_cpu(cup__call *call);
cup_status cup__fft_products(cup__call *call);
cup_status cup__fft_blocks(cup__call *call);
const char *cup__fft_blocks_refuses(const cup__call *call);
cup_status cup__fft_cufft(cup__call *call);
const char *cup__fft_cufft_refuses(const cup__call *call);

#endif
