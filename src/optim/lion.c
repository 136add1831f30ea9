#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "optim/update.h"

/* Steps by the sign of a mixture of momentum and gradient, so that every element moves equally. */
static double lion(double value, double gradient, double *first, double *second, const cup__step *s)
{
    (void)second;
    double g = gradient * s->gradient, beta1 = s->a[0], beta2 = s->a[1];
    double mix = beta1 * *first + (1 - beta1) * g;
    *first = beta2 * *first + (1 - beta2) * g;
    return value - s->rate * ((mix > 0) - (mix < 0) + s->decay * value);
}

CUP__WIDE static void lion_f32(float *value, const float *gradient, float *first, float *second,
                               int64_t count, const cup__step *s)
{
    (void)second;
    float scale = (float)s->gradient, decay = (float)s->decay, rate = (float)s->rate;
    float beta1 = (float)s->a[0], rest1 = (float)(1 - s->a[0]);
    float beta2 = (float)s->a[1], rest2 = (float)(1 - s->a[1]);
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        float mix = beta1 * first[i] + rest1 * g;
        float sign = (mix > 0.0f ? 1.0f : 0.0f) - (mix < 0.0f ? 1.0f : 0.0f);
        first[i] = beta2 * first[i] + rest2 * g;
        value[i] -= rate * (sign + decay * value[i]);
    }
}

static void read(const void *attributes, cup__step *s)
{
    const cup__lion_attributes *from = attributes;
    s->a[0] = from->beta1;
    s->a[1] = from->beta2;
    s->a[2] = 0;
    s->stochastic = from->stochastic;
    s->states = 1;
}

static const cup__update update = {"lion.cu", read, lion, lion_f32};

#define USUAL                                                                                      \
    &(const cup__lion_attributes)                                                                  \
    {                                                                                              \
        0.9, 0.99, false                                                                           \
    }
static const cup__sample samples[] = {
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", USUAL},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", USUAL},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", USUAL},
                                    {NULL, NULL}};

const cup__op cup__op_lion = {CUP__UPDATE(&update), .samples = samples, .bench = bench};
