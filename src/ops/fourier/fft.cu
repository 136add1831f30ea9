/* Fourier transforms of lines that fit into shared memory: a block a few lines, a stage for each
 * factor of 2, 3, 4 or 5, from one buffer to another in such an order that the last stage leaves
 * all in theirs. Lines beside each other are read and written together. Grid: blocks of so many
 * lines.
 * Bytes: x and y once. */
#include "fft_call.cuh"
#include "vec.cuh"

/* A knob: CUP_T. */
#define THREADS FFT_THREADS

struct alignas(2 * sizeof(T)) pair {
    T re, im;
};

DEVICE pair number(T re, T im)
{
    pair p = {re, im};
    return p;
}

DEVICE pair plus(pair a, pair b) { return number(a.re + b.re, a.im + b.im); }
DEVICE pair minus(pair a, pair b) { return number(a.re - b.re, a.im - b.im); }
DEVICE pair times(pair a, pair b)
{
    return number(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
/* i a b of a real b. */
DEVICE pair across(pair a, T b) { return number(-a.im * b, a.re * b); }
/* a + b c of a real c. */
DEVICE pair along(pair a, pair b, T c) { return number(a.re + b.re * c, a.im + b.im * c); }

/* The number of size 1 at an angle, in halves of a turn. */
DEVICE pair at_angle(T angle)
{
    pair p;
#if CUP_T == CUP_F64
    sincospi(angle, &p.im, &p.re);
#else
    sincospif(angle, &p.im, &p.re);
#endif
    return p;
}

/* The transform of few numbers. */
DEVICE void few(pair (&t)[2], T)
{
    pair a = t[0], b = t[1];
    t[0] = plus(a, b);
    t[1] = minus(a, b);
}
DEVICE void few(pair (&t)[3], T sign)
{
    pair sum = plus(t[1], t[2]);
    pair side = across(minus(t[1], t[2]), sign * (T)0.86602540378443864676);
    pair middle = along(t[0], sum, (T)-0.5);
    t[0] = plus(t[0], sum);
    t[1] = plus(middle, side);
    t[2] = minus(middle, side);
}
DEVICE void few(pair (&t)[4], T sign)
{
    pair a = plus(t[0], t[2]), b = minus(t[0], t[2]);
    pair c = plus(t[1], t[3]), d = across(minus(t[1], t[3]), sign);
    t[0] = plus(a, c);
    t[1] = plus(b, d);
    t[2] = minus(a, c);
    t[3] = minus(b, d);
}
DEVICE void few(pair (&t)[5], T sign)
{
    const T c1 = (T)0.30901699437494742410, c2 = (T)-0.80901699437494742410;
    const T s1 = sign * (T)0.95105651629515357212, s2 = sign * (T)0.58778525229247312917;
    pair a = plus(t[1], t[4]), b = plus(t[2], t[3]);
    pair c = minus(t[1], t[4]), d = minus(t[2], t[3]);
    pair first = along(along(t[0], a, c1), b, c2), second = along(along(t[0], a, c2), b, c1);
    pair side = plus(across(c, s1), across(d, s2)), other = minus(across(c, s2), across(d, s1));
    t[0] = plus(t[0], plus(a, b));
    t[1] = plus(first, side);
    t[4] = minus(first, side);
    t[2] = plus(second, other);
    t[3] = minus(second, other);
}

/* A stage of P: `done` is the product of the factors before. */
template <int P>
DEVICE void stage(const fft_call &c, const pair *from, pair *to, int lines, int done)
{
    int each = c.length / P, rest = each / done;
    for (int b = (int)threadIdx.x; b < lines * each; b += THREADS) {
        int line = b / each, at = b - line * each, i = at / done, q = at - i * done;
        const pair *x = from + line * c.length + q + done * i;
        pair *y = to + line * c.length + q + done * P * i, t[P];
#pragma unroll
        for (int k = 0; k < P; k++)
            t[k] = x[done * rest * k];
        few(t, (T)c.sign);
        pair root = at_angle((T)c.sign * (T)(2 * i * done) / (T)c.length), power = root;
        y[0] = t[0];
#pragma unroll
        for (int k = 1; k < P; k++) {
            y[done * k] = times(t[k], power);
            power = times(power, root);
        }
    }
}

/* Where number idx of a block's lines lies in memory, in pairs, and in *at in a buffer: neighbours
 * lie beside each other. */
DEVICE int64_t place(const fft_call &c, int64_t first, int lines, int idx, int *at)
{
    int line = c.inner == 1 ? idx / c.length : idx % lines;
    int j = c.inner == 1 ? idx - line * c.length : idx / lines;
    int64_t all = first + line, outer = all / c.inner;
    *at = line * c.length + j;
    return (outer * c.length + j) * c.inner + (all - outer * c.inner);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    fft_fwd(const __grid_constant__ fft_call c)
{
    extern __shared__ uint4 memory[];
    int64_t first = (int64_t)blockIdx.x * c.block_lines;
    int lines = c.lines - first < c.block_lines ? (int)(c.lines - first) : c.block_lines, at;
    pair *from = (pair *)memory, *to = from + c.block_lines * c.length;
    for (int idx = (int)threadIdx.x; idx < lines * c.length; idx += THREADS) {
        int64_t source = place(c, first, lines, idx, &at);
        from[at] = ((const pair *)c.x)[source];
    }
    __syncthreads();
    for (int s = 0, done = 1; s < c.stages; done *= c.factor[s++]) {
        if (c.factor[s] == 2)
            stage<2>(c, from, to, lines, done);
        else if (c.factor[s] == 3)
            stage<3>(c, from, to, lines, done);
        else if (c.factor[s] == 4)
            stage<4>(c, from, to, lines, done);
        else
            stage<5>(c, from, to, lines, done);
        pair *other = from;
        from = to;
        to = other;
        __syncthreads();
    }
    T scale = (T)c.scale;
    for (int idx = (int)threadIdx.x; idx < lines * c.length; idx += THREADS) {
        int64_t target = place(c, first, lines, idx, &at);
        ((pair *)c.y)[target] = number(from[at].re * scale, from[at].im * scale);
    }
}
