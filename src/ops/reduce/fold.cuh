/* What a reduction keeps while it goes over elements. The knob OP picks it; a `state` is
 *
 *     start()          nothing seen yet
 *     add(x, index)    takes in one element
 *     centre()         now and then between two adds, where HAS_CENTRE
 *     settle()         must be called between the last add and a join
 *     join(other)      takes in another's elements, which come later
 *     result(n, ...)   of n elements in all
 * Elements are computed with as `wide`: float, double for f64, int64_t for integers. */
#ifndef CUP_OPS_REDUCE_FOLD_CUH
#define CUP_OPS_REDUCE_FOLD_CUH

#include "reduce_call.cuh"
#include "rows.cuh"

#ifndef OP
#define OP REDUCE_SUM
#endif

template <typename Real> struct wide_of { typedef int64_t type; };
template <> struct wide_of<float> { typedef float type; };
template <> struct wide_of<double> { typedef double type; };
typedef wide_of<real>::type wide;

DEVICE float root_of(float x) { return sqrtf(x); }
DEVICE double root_of(double x) { return sqrt(x); }
DEVICE int64_t root_of(int64_t x) { return x; }
DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
DEVICE int64_t log_of(int64_t x) { return x; }
/* What is added to a sum may be off by 2^-22 of itself. */
DEVICE float power_of_e(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
DEVICE double power_of_e(double x) { return exp(x); }
DEVICE int64_t power_of_e(int64_t x) { return x; }

DEVICE float about_one_over(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE double about_one_over(double x) { return 1 / x; }
DEVICE int64_t about_one_over(int64_t x) { return x; }

#if OP == REDUCE_VAR

#define HAS_CENTRE 1
#define RESTS (sizeof(T) > 2) /* numbers of 16 bits are further apart than a rounded mean is off */

/* Sums around a shift, at first the first element seen and then about the mean of those before, so
 * that neither a large mean nor one large element swallows the differences. Once settled, the mean
 * is shift + rest, two numbers since it need not be one that fits, and `squares` the sum of squares
 * around it. */
struct state {
    wide n, shift, squares;
    union {
        wide sum, rest;
    };

    __device__ __forceinline__ void start() { n = shift = sum = squares = 0; }
    __device__ __forceinline__ void add(wide x, int64_t)
    {
        shift = n == 0 ? x : shift;
        n += 1;
        sum += x - shift;
        squares += (x - shift) * (x - shift);
    }
    __device__ __forceinline__ void centre()
    {
        if (n == 0)
            return;
        wide to = shift + sum * about_one_over(n), by = to - shift, left = sum - n * by;
        squares -= by * (sum + left);
        shift = to;
        sum = left;
    }
    __device__ __forceinline__ void settle()
    {
        if (n == 0)
            return;
        wide all = sum;
        rest = all / n;
        squares -= all * rest;
        if (!RESTS)
            shift += rest;
    }
    __device__ __forceinline__ void join(const state &other)
    {
        if (other.n == 0)
            return;
        wide all = n + other.n, apart = n == 0 ? 0 : other.shift - shift;
        if (RESTS && n != 0)
            apart += other.rest - rest;
        squares += other.squares + apart * apart * (n / all * other.n);
        wide &mean = RESTS ? rest : shift, by = apart * (other.n / all);
        mean = n == 0 ? RESTS ? other.rest : other.shift : mean + by;
        shift = n == 0 ? other.shift : shift;
        n = all;
    }
    __device__ __forceinline__ wide result(int64_t length, double correction) const
    {
        wide degrees = (wide)((double)length - correction);
        return degrees > 0 ? squares / degrees : (wide)0 / (degrees - degrees);
    }
};

#elif OP == REDUCE_NORM && CUP_T != CUP_F16 /* whose squares all fit */

/* Squares as they are, and of numbers made small and large, where those overflow or vanish. */
#define FAR_DOWN (CUP_T == CUP_F64 ? (wide)0x1p-600 : (wide)0x1p-80f)
#define FAR_UP (CUP_T == CUP_F64 ? (wide)0x1p800 : (wide)0x1p100f)
#define LEAST_SQUARES (CUP_T == CUP_F64 ? (wide)0x1p-900 : (wide)0x1p-80f)

struct state {
    wide squares, small, large;

    __device__ __forceinline__ void start() { squares = small = large = 0; }
    __device__ __forceinline__ void add(wide x, int64_t)
    {
        squares += x * x;
        small += (x * FAR_DOWN) * (x * FAR_DOWN);
        large += (x * FAR_UP) * (x * FAR_UP);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other)
    {
        squares += other.squares;
        small += other.small;
        large += other.large;
    }
    __device__ __forceinline__ wide result(int64_t, double) const
    {
        if (squares == highest(wide()))
            return root_of(small) / FAR_DOWN;
        if (squares < LEAST_SQUARES)
            return root_of(large) / FAR_UP;
        return root_of(squares);
    }
};

#elif OP == REDUCE_LOGSUMEXP

struct state {
    wide most, sum;

    __device__ __forceinline__ void start()
    {
        most = lowest(wide());
        sum = 0;
    }
    /* One exponential an element, of minus the distance to the largest so far. */
    __device__ __forceinline__ void take(wide x, wide terms)
    {
        if (x == lowest(wide()))
            return;
        wide e = x == most ? (wide)1 : power_of_e(x > most ? most - x : x - most);
        sum = x > most ? sum * e + terms : sum + terms * e;
        most = maximum(most, x);
    }
    __device__ __forceinline__ void add(wide x, int64_t) { take(x, 1); }
    /* One exponential an element and one in all. */
    template <int Count> __device__ __forceinline__ void add_all(const wide (&x)[Count])
    {
        wide high = x[0], terms = 0;
#pragma unroll
        for (int k = 1; k < Count; k++)
            high = maximum(high, x[k]);
        if (high - high != 0) { /* infinite, or no number */
#pragma unroll
            for (int k = 0; k < Count; k++)
                take(x[k], 1);
            return;
        }
#pragma unroll
        for (int k = 0; k < Count; k++)
            terms += power_of_e(x[k] - high);
        take(high, terms);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { take(other.most, other.sum); }
    __device__ __forceinline__ wide result(int64_t, double) const { return most + log_of(sum); }
};

#elif OP == REDUCE_ARGMAX || OP == REDUCE_ARGMIN

/* Of equal elements the first; NaN counts as more extreme than any number. */
struct state {
    wide value;
    int64_t index;

    __device__ __forceinline__ void start()
    {
        value = 0;
        index = -1;
    }
    __device__ __forceinline__ void add(wide x, int64_t i)
    {
        bool beats = OP == REDUCE_ARGMAX ? x > value : x < value;
        bool same = x == value || (x != x && value != value);
        if (i >= 0 && (index < 0 || beats || (x != x && value == value) || (same && i < index))) {
            value = x;
            index = i;
        }
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { add(other.value, other.index); }
    __device__ __forceinline__ int64_t result(int64_t, double) const { return index; }
};

#else

struct state {
    wide value;

    __device__ __forceinline__ void start()
    {
        value = OP == REDUCE_MAX ? lowest(wide()) : OP == REDUCE_MIN ? highest(wide()) : (wide)0;
    }
    __device__ __forceinline__ void combine(wide x)
    {
        value = OP == REDUCE_MAX   ? maximum(value, x)
                : OP == REDUCE_MIN ? minimum(value, x)
                                   : value + x;
    }
    __device__ __forceinline__ void add(wide x, int64_t)
    {
        combine(OP == REDUCE_NORM ? x * x : x);
    }
    __device__ __forceinline__ void settle() {}
    __device__ __forceinline__ void join(const state &other) { combine(other.value); }
    __device__ __forceinline__ wide result(int64_t length, double) const
    {
        return OP == REDUCE_MEAN   ? value / (wide)length
               : OP == REDUCE_NORM ? root_of(value)
                                   : value;
    }
};

#endif

#ifndef HAS_CENTRE
#define HAS_CENTRE 0
#endif

/* After turn 1, 2, 4, ...: what has been seen by then says where the next elements are. */
template <int Count> DEVICE void centre_all(state (&s)[Count], int &turn)
{
#if HAS_CENTRE
    turn++;
    if ((turn & (turn - 1)) == 0)
#pragma unroll
        for (int k = 0; k < Count; k++)
            s[k].centre();
#endif
}

struct join_op {
    __device__ __forceinline__ state operator()(state a, const state &b) const
    {
        a.join(b);
        return a;
    }
};

#endif
