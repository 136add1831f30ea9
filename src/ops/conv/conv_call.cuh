/* A convolution as the CPU and the kernels take it, and how its places are numbered. Plain C,
 * included by both. All steps are in elements.
 *
 * The gradient of x is computed as a convolution, too: an element of dx gathers from those places
 * of dy that it went to. With a stride these are the same taps only for places whose distance is a
 * multiple of it, so that each remainder is a class of its own; in forward all places are one. */
#ifndef CUP_OPS_CONV_CONV_CALL_CUH
#define CUP_OPS_CONV_CONV_CALL_CUH

#ifdef __CUDACC__
#define CONV_BOTH static __device__ __forceinline__
#else
#define CONV_BOTH static inline
#endif

/* Height or width: of the image, of the result of forward, of the kernel. */
typedef struct conv_side {
    int in, out, taps, stride, dilation, before;
} conv_side;

/* The places of a class along a side. Place i is `first + i every` of what is written; its tap t,
 * which is number `tap + t tap_every` of the weight, reads place `from + i step + t tap_step` of
 * `size`, or nothing outside. */
typedef struct conv_line {
    int count, first, every;
    int from, step, size;
    int taps, tap, tap_every, tap_step;
} conv_line;

typedef struct conv_call {
    const void *x, *w, *bias; /* x is dy in the gradient of x; bias may be null */
    void *y;                  /* what is written: y, dx; of the weight's gradient dw is `y` and */
                              /* dy is `w` */
    long long x_step[4];      /* image, channel, row, column */
    long long w_step[4];      /* result, channel, row, column */
    long long y_step[4];      /* image, result, row, column */
    long long x_group, w_group, y_group, bias_step;
    const float *x_scale, *w_scale; /* of codes: one, and one or one a result; null: 1 */
    long long scale_step;           /* from result to result; 0 where all share one */
    int back;                 /* the gradient of x */
    int images, groups, channels, results; /* of one group */
    conv_side side[2];
} conv_call;

CONV_BOTH int conv_classes(const conv_side *s, int back)
{
    return !back ? 1 : s->stride < s->in ? s->stride : s->in;
}

CONV_BOTH int conv_common(int a, int b)
{
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

CONV_BOTH conv_line conv_line_of(const conv_side *s, int back, int which)
{
    conv_line l;
    if (!back) {
        l.count = s->out;
        l.first = 0;
        l.every = 1;
        l.from = -s->before;
        l.step = s->stride;
        l.size = s->in;
        l.taps = s->taps;
        l.tap = 0;
        l.tap_every = 1;
        l.tap_step = s->dilation;
        return l;
    }
    int common = conv_common(s->stride, s->dilation), period = s->stride / common;
    int place = which + s->before, tap = 0;
    /* The first tap that a place of dy reaches it by; there may be none. */
    while (tap < period && tap < s->taps &&
           (place - (long long)tap * s->dilation) % s->stride != 0)
        tap++;
    int reached = tap < period && tap < s->taps;
    l.count = (s->in - which + s->stride - 1) / s->stride;
    l.first = which;
    l.every = s->stride;
    l.from = reached ? (place - tap * s->dilation) / s->stride : 0;
    l.step = 1;
    l.size = s->out;
    l.taps = reached ? (s->taps - tap + period - 1) / period : 0;
    l.tap = tap;
    l.tap_every = period;
    l.tap_step = -(s->dilation / common);
    return l;
}

#endif
