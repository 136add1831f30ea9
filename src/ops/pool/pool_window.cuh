/* What the kernels of pooling and its gradient share: the knobs, and what is kept of a window. */
#ifndef CUP_OPS_POOL_POOL_WINDOW_CUH
#define CUP_OPS_POOL_POOL_WINDOW_CUH

#include "pool_call.cuh"
#include "reduce.cuh"

/* Knobs: MAX, WINDOW_H, WINDOW_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, TILES (which kernel
 * this is), VEC, PLACE (the dtype of places; -1: none are wanted), COUNT_PADDING. */

typedef dtype_of<(PLACE < 0 ? CUP_U8 : PLACE)>::type place_type;

/* What is kept of a window. */
struct window {
    real value;
    int place;

    /* `first` is the place of the first element, -1 without any. */
    __device__ __forceinline__ void start(int first)
    {
        value = MAX ? lowest(real()) : (real)0;
        place = first;
    }
    /* The first of equal ones stays, and the first NaN. */
    __device__ __forceinline__ void take(real x, int at)
    {
        bool larger = !(x <= value) && value == value;
        place = PLACE >= 0 && larger ? at : place;
        value = !MAX ? value + x : larger ? x : value;
    }
};

/* How many elements of a window from `begin` on count, along one dimension. */
DEVICE int elements(int begin, int reach, int size, int pad)
{
    int end = begin + reach;
    if (COUNT_PADDING)
        return (end < size + pad ? end : size + pad) - begin;
    return (end < size ? end : size) - (begin > 0 ? begin : 0);
}

DEVICE void write_windows(const pool_call &c, int64_t at, const window (&w)[VEC])
{
    real values[VEC];
#pragma unroll
    for (int k = 0; k < VEC; k++)
        values[k] = w[k].value;
    store((T *)c.y + at, from_reals<T, VEC>(values));
    if (PLACE >= 0) {
        vec<place_type, VEC> places;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            places.at[k] = (place_type)w[k].place;
        store((place_type *)c.places + at, places);
    }
}

#endif
