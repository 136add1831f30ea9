#include <math.h>

#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "optim/update.h"

/* Weight decay pulls at the parameter itself and does not enter the states. */
static double adamw(double value, double gradient, double *first, double *second,
                    const cup__step *s)
{
    double g = gradient * s->gradient, beta1 = s->a[0], beta2 = s->a[1];
    *first = beta1 * *first + (1 - beta1) * g;
    *second = beta2 * *second + (1 - beta2) * g * g;
    double step = s->corrected * *first / (sqrt(*second) * s->root + s->a[2]);
    return value - s->rate * s->decay * value - step;
}

CUP__WIDE static void adamw_f32(float *value, const float *gradient, float *first, float *second,
                                int64_t count, const cup__step *s)
{
    float scale = (float)s->gradient, corrected = (float)s->corrected, root = (float)s->root;
    float decay = (float)(s->rate * s->decay), epsilon = (float)s->a[2];
    float beta1 = (float)s->a[0], rest1 = (float)(1 - s->a[0]);
    float beta2 = (float)s->a[1], rest2 = (float)(1 - s->a[1]);
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        float m = beta1 * first[i] + rest1 * g;
        float v = beta2 * second[i] + rest2 * g * g;
        first[i] = m;
        second[i] = v;
        value[i] -= decay * value[i] + corrected * m / (sqrtf(v) * root + epsilon);
    }
}

static void read(const void *attributes, cup__step *s)
{
    const cup__adamw_attributes *from = attributes;
    s->a[0] = from->beta1;
    s->a[1] = from->beta2;
    s->a[2] = from->epsilon;
    s->stochastic = from->stochastic;
    s->states = 2;
}

static const cup__update update = {"adamw.cu", read, adamw, adamw_f32};

#define USUAL                                                                                      \
    &(const cup__adamw_attributes)                                                                 \
    {                                                                                              \
        0.9, 0.999, 1e-8, false                                                                    \
    }
static const cup__sample samples[] = {
    {"5 1x2 7 7 - 7 7", USUAL},
    {"5 3x2 3x5 3x5 3x5 3x5 3x5 1 1 1 1 1 0x4 0x4 0x4 0x4 0x4", USUAL},
    {"5 3x2 4099 4099 - 4099 4099 () () - () () 20001 20001 - 20001 20001",
     &(const cup__adamw_attributes){0.8, 0.95, 1e-3, false}},
    {"5 3x2 4099 4099 - 4099 4099 () () - () () 20001 20001 - 20001 20001",
     &(const cup__adamw_attributes){0.9, 0.999, 1e-8, true}},
    {"5 2x2 9 - - 9 9 65x257 65x257 65x257 65x257 65x257", USUAL},
    {NULL, NULL}};
/* The 148 tensors of GPT-2's smallest model. */
#define GPT2                                                                                       \
    "5 148x2 2*50257x768 - 2*50257x768 2*1024x768 - 2*1024x768 12*(6*(2*768 - 2*768) "             \
    "2*2304 - 2*2304 2*3072 - 2*3072 2*2304x768 - 2*2304x768 2*768x768 - 2*768x768 "               \
    "2*3072x768 - 2*3072x768 2*768x3072 - 2*768x3072) 2*(2*768 - 2*768)"
static const cup__sample bench[] = {
    {"5 1x2 124354560 124354560 - 124354560 124354560", USUAL},
    {GPT2, USUAL},
    {NULL, NULL}};

const cup__op cup__op_adamw = {CUP__UPDATE(&update), .samples = samples, .bench = bench};
