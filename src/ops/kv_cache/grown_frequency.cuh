/* Rotary frequencies whose base grows with the position: a base that is g times as large, to the
 * power of pairs over pairs less one, makes that of a pair g to the power of -pair over pairs less
 * one times as large. Included where `read_call` is known.
 *
 * A frequency that is off in its last bit turns by as much as that times the position, so double
 * has its frequencies and angles as sums of two (T. J. Dekker, 1971, A floating-point technique
 * for extending the available precision). */
#ifndef CUP_OPS_KV_CACHE_GROWN_FREQUENCY_CUH
#define CUP_OPS_KV_CACHE_GROWN_FREQUENCY_CUH

#include "rope_turn.cuh"

struct two {
    double high, low;
};

/* `low` must not be the larger of both. */
DEVICE two two_sum(double high, double low)
{
    double sum = __dadd_rn(high, low);
    return two{sum, low - (sum - high)};
}

DEVICE two two_product(two a, two b)
{
    double high = __dmul_rn(a.high, b.high);
    double low = fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high);
    return two_sum(high, low);
}

DEVICE two two_power(two x, int n)
{
    two power = {1, 0};
    for (; n; n >>= 1) {
        if (n & 1)
            power = two_product(power, x);
        x = two_product(x, x);
    }
    return power;
}

/* 1 + factor (position + 1 - original) / original, which is g. */
DEVICE two growth_at(const read_call &c, long long position)
{
    double further = (double)(position + 1 - c.original), product = __dmul_rn(c.factor, further);
    double times = product / c.original;
    double rest = fma(-times, (double)c.original, product) + fma(c.factor, further, -product);
    two g = two_sum(times > 1 ? times : 1, times > 1 ? 1 : times);
    g.low += rest / c.original;
    return g;
}

/* The root of 1 / g, by a step of Newton's from what double has. */
DEVICE two root_below(two g, int roots)
{
    double root = pow(g.high, -1.0 / roots);
    two one = two_product(two_power(two{root, 0}, roots), g);
    return two_sum(root, -root * ((one.high - 1) + one.low) / roots);
}

DEVICE two grown_frequency(const read_call &c, int pair, long long position, double)
{
    two root = root_below(growth_at(c, position), c.size / 2 - 1);
    return two_product(two{c.frequency[pair], 0}, two_power(root, pair));
}

DEVICE double grown_frequency(const read_call &c, int pair, long long position, float)
{
    double g = c.factor * (double)(position + 1) / c.original - c.factor + 1;
    return c.frequency[pair] * exp2(-log2(g) * pair / (c.size / 2 - 1));
}

/* The cosine and sine of `position` times the frequency. */
DEVICE void turn_of(two frequency, long long position, double *cosine, double *sine)
{
    two angle = two_product(frequency, two{(double)position, 0});
    double c, s;
    sincos(angle.high, &s, &c);
    *cosine = c - angle.low * s;
    *sine = s + angle.low * c;
}

#endif
