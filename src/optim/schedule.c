#include <math.h>

#include "cupola/optim.h"

#define PI 3.14159265358979323846

double cup_schedule_rate(const cup_schedule *s, int64_t step)
{
    if (!s)
        return 0;
    /* The first step must not have the rate 0, so the rise has warmup + 1 parts. */
    if (step < s->warmup)
        return s->high * (double)(step + 1) / (double)(s->warmup + 1);
    if (s->decline == CUP_DECLINE_CONSTANT)
        return s->high;
    if (step >= s->steps)
        return s->low;
    double part = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    double left = s->decline == CUP_DECLINE_LINEAR ? 1 - part : 0.5 * (1 + cos(PI * part));
    return s->low + left * (s->high - s->low);
}
