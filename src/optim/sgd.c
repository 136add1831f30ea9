#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "optim/update.h"

/* Weight decay is part of the gradient here, as is usual for this method. */
static double sgd(double value, double gradient, double *first, double *second, const cup__step *s)
{
    (void)second;
    double g = gradient * s->gradient + s->decay * value, momentum = s->a[0];
    if (momentum != 0) {
        *first = momentum * *first + g;
        g = s->a[1] != 0 ? g + momentum * *first : *first;
    }
    return value - s->rate * g;
}

CUP__WIDE static void sgd_f32(float *value, const float *gradient, float *first, float *second,
                              int64_t count, const cup__step *s)
{
    (void)second;
    float scale = (float)s->gradient, decay = (float)s->decay, rate = (float)s->rate;
    float momentum = (float)s->a[0];
    /* With Nesterov's form the step is g + momentum * velocity, else the velocity alone. */
    float own = s->a[1] != 0 ? 1.0f : 0.0f, follow = s->a[1] != 0 ? momentum : 1.0f;
    if (momentum == 0.0f) {
        for (int64_t i = 0; i < count; i++)
            value[i] -= rate * (gradient[i] * scale + decay * value[i]);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale + decay * value[i];
        float velocity = momentum * first[i] + g;
        first[i] = velocity;
        value[i] -= rate * (own * g + follow * velocity);
    }
}

static void read(const void *attributes, cup__step *s)
{
    const cup__sgd_attributes *from = attributes;
    s->a[0] = from->momentum;
    s->a[1] = from->nesterov;
    s->a[2] = 0;
    s->stochastic = from->stochastic;
    s->states = from->momentum != 0;
}

static const cup__update update = {"sgd.cu", read, sgd, sgd_f32};

static const cup__sgd_attributes plain = {0, false, false}, heavy = {0.9, false, false},
                                   nesterov = {0.9, true, true};
static const cup__sample samples[] = {
    {"5 2x2 7 7 - - - 3x5 3x5 - - -", &plain},
    {"5 2x2 3x5 3x5 3x5 3x5 - 1025 1025 1025 1025 -", &heavy},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", &nesterov},
    {NULL, NULL}};
static const cup__sample bench[] = {{"5 1x2 124354560 124354560 - 124354560 -", &heavy},
                                    {NULL, NULL}};

const cup__op cup__op_sgd = {CUP__UPDATE(&update), .samples = samples, .bench = bench};
