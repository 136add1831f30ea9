/* What a logit weighs in a draw, and what a draw hits: the same in all kernels of draw_token, so
 * that a row has one token, whichever draws it. Weights are whole numbers, whose sums have no
 * order. */
#ifndef CUP_OPS_RANDOM_DRAW_TOKEN_WEIGHTS_CUH
#define CUP_OPS_RANDOM_DRAW_TOKEN_WEIGHTS_CUH

#include "draw_token_call.cuh"
#include "philox.cuh"

#define UNIT 0x1p39f /* the weight of the likeliest; 2^24 of them have a sum */

DEVICE float infinity()
{
    return __int_as_float(0x7f800000);
}

DEVICE uint64_t weight_beside(const draw_call &c, float best, float value)
{
    float power = (value - best) * c.scale;
    return power < DRAW_LEAST ? 0 : (uint64_t)(exp2f(power) * UNIT);
}

/* A draw's random number, as a part of 2^64. */
DEVICE uint64_t luck_of(const draw_call &c, uint64_t number)
{
    struct philox_words w =
        philox(c.seed, (uint32_t)number, (uint32_t)(number >> 32), DRAW_WORD, 0);
    return ((uint64_t)w.at[0] << 32 | w.at[1]) >> 11 << 11;
}

/* What it hits of so much in all. */
DEVICE uint64_t hit_of(uint64_t luck, uint64_t all)
{
    return __umul64hi(luck, all);
}

/* The last to be kept of those that make up top_p. */
DEVICE uint64_t part_of(const draw_call &c, uint64_t all)
{
    double part = ceil(c.top_p * (double)all);
    uint64_t least = part < 1 ? 1 : (uint64_t)part;
    return (least < all ? least : all) - 1;
}

#endif
