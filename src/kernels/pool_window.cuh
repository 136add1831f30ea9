/* The knobs that pooling and its gradient share: what is pooled, and over which windows. */
#ifndef CUP_POOL_WINDOW_CUH
#define CUP_POOL_WINDOW_CUH

#ifndef MAX
#define MAX 1
#endif
#ifndef WINDOW_H
#define WINDOW_H 2
#endif
#ifndef WINDOW_W
#define WINDOW_W 2
#endif
#ifndef STRIDE_H
#define STRIDE_H 2
#endif
#ifndef STRIDE_W
#define STRIDE_W 2
#endif
#ifndef DILATION_H
#define DILATION_H 1
#endif
#ifndef DILATION_W
#define DILATION_W 1
#endif
#ifndef TILES
#define TILES 0 /* which kernel this is */
#endif
#ifndef VEC
#define VEC 1
#endif

#endif
