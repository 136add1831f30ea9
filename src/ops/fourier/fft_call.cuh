/* The argument of the kernel of fft.cu, as the host fills it and the kernel reads it. */
#ifndef CUP_OPS_FOURIER_FFT_CALL_CUH
#define CUP_OPS_FOURIER_FFT_CALL_CUH

#define FFT_THREADS 256
#define FFT_STAGES 16
#define FFT_SHARED (48 << 10) /* bytes of two buffers, of which any card has so many */

typedef struct fft_call {
    const void *x;
    void *y;
    long long lines, inner; /* of [outer, length, inner] pairs; lines are outer times inner */
    int length, block_lines; /* and lines of a block */
    int stages, factor[FFT_STAGES];
    double scale, sign; /* of results, and of angles */
} fft_call;

#endif
