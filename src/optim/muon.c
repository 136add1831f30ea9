/* The two elementwise halves of Muon; between them stands the making of orthogonal matrices, which
 * optim/orthogonal.c does. `muon_momentum` fills the first tensor of each record with the direction
 * of its gradient and momentum, `muon_step` goes along what came of it. */
#include "dispatch/attributes.h"
#include "ops/elementwise/pointwise.h"
#include "optim/update.h"

static double momentum(double value, double gradient, double *first, double *second,
                       const cup__step *s)
{
    (void)value;
    (void)second;
    double g = gradient * s->gradient;
    *first = s->a[0] * *first + g;
    return g + s->a[0] * *first;
}

CUP__WIDE static void momentum_f32(float *value, const float *gradient, float *first,
                                   float *second, int64_t count, const cup__step *s)
{
    (void)second;
    float scale = (float)s->gradient, beta = (float)s->a[0];
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * scale;
        float velocity = beta * first[i] + g;
        first[i] = velocity;
        value[i] = g + beta * velocity;
    }
}

/* The gradient is a direction of a size of its own, so that neither scale nor clip applies. */
static double step(double value, double gradient, double *first, double *second,
                   const cup__step *s)
{
    (void)first;
    (void)second;
    return value - s->rate * (gradient + s->decay * value);
}

CUP__WIDE static void step_f32(float *value, const float *gradient, float *first, float *second,
                               int64_t count, const cup__step *s)
{
    (void)first;
    (void)second;
    float rate = (float)s->rate, decay = (float)s->decay;
    for (int64_t i = 0; i < count; i++)
        value[i] -= rate * (gradient[i] + decay * value[i]);
}

static void read_momentum(const void *attributes, cup__step *s)
{
    s->a[0] = ((const cup__muon_momentum_attributes *)attributes)->momentum;
    s->a[1] = s->a[2] = 0;
    s->stochastic = false;
    s->states = 1;
}

static void read_step(const void *attributes, cup__step *s)
{
    s->a[0] = s->a[1] = s->a[2] = 0;
    s->stochastic = ((const cup__muon_step_attributes *)attributes)->stochastic;
    s->states = 0;
}

static const cup__update for_momentum = {"muon_momentum.cu", read_momentum, momentum,
                                         momentum_f32},
                         for_step = {"muon_step.cu", read_step, step, step_f32};

static const cup__muon_momentum_attributes usual = {0.95};
static const cup__muon_step_attributes nearest = {false}, random = {true};
static const cup__sample momentum_samples[] = {
    {"5 2x2 3x5 3x5 - 3x5 - 1025 1025 - 1025 -", &usual},
    {"5 3x2 () () - () - 0x4 0x4 - 0x4 - 20001 20001 - 20001 -", &usual},
    {NULL, NULL}};
static const cup__sample step_samples[] = {
    {"5 2x2 7 7 - - - 3x5 3x5 - - -", &nearest},
    {"5 2x2 7 7 - - - 4099 4099 - - -", &random},
    {"5 3x2 () () () - - 0x4 0x4 0x4 - - 20001 20001 20001 - -", &nearest},
    {NULL, NULL}};
static const cup__sample momentum_bench[] = {
    {"5 1x2 84934656 84934656 - 84934656 -", &usual}, {NULL, NULL}};
static const cup__sample step_bench[] = {{"5 1x2 84934656 84934656 - - -", &nearest}, {NULL, NULL}};

const cup__op cup__op_muon_momentum = {
    CUP__UPDATE(&for_momentum), .samples = momentum_samples, .bench = momentum_bench};

const cup__op cup__op_muon_step = {
    CUP__UPDATE(&for_step), .samples = step_samples, .bench = step_bench};
