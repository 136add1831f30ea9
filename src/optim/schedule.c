#include "optim/schedule.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

static double cosine(double part)
{
    return 0.5 * (1 + cos(PI * part));
}

static double linear(double part)
{
    return 1 - part;
}

static double constant(double part)
{
    (void)part;
    return 1;
}

static double root(double part)
{
    return 1 - sqrt(part);
}

/* One row a decline, by its number. */
#define DECLINES(X) X(COSINE, cosine) X(LINEAR, linear) X(CONSTANT, constant) X(ROOT, root)

#define WORD(NAME, name) [CUP_DECLINE_##NAME] = #name,
#define LEFT(NAME, name) [CUP_DECLINE_##NAME] = name,
#define ONE(NAME, name) +1
enum { COUNT = 0 DECLINES(ONE) };
const char *const cup__decline_words[COUNT + 1] = {DECLINES(WORD)};
static double (*const lefts[COUNT])(double part) = {DECLINES(LEFT)};

static bool is_decline(cup_decline decline)
{
    return (int)decline >= 0 && (int)decline < COUNT;
}

const char *cup_decline_name(cup_decline decline)
{
    return is_decline(decline) ? cup__decline_words[decline] : "?";
}

cup_status cup_decline_find(const char *name, cup_decline *out)
{
    for (int i = 0; name && out && i < COUNT; i++)
        if (!strcmp(name, cup__decline_words[i])) {
            *out = (cup_decline)i;
            return CUP_OK;
        }
    return CUP_ARGUMENT;
}

double cup_schedule_rate(const cup_schedule *s, int64_t step)
{
    if (!s)
        return 0;
    /* The first step must not have the rate 0, so the rise has warmup + 1 parts. */
    int64_t warmup = s->warmup > 0 ? s->warmup : 0;
    step = step > 0 ? step : 0;
    if (step < warmup)
        return s->high * ((double)step + 1) / ((double)warmup + 1);
    if (s->decline == CUP_DECLINE_CONSTANT || !is_decline(s->decline))
        return s->high;
    if (step >= s->steps)
        return s->low;
    int64_t most = s->steps - warmup;
    int64_t steps = s->decline_steps > 0 && s->decline_steps < most ? s->decline_steps : most;
    int64_t first = s->steps - steps;
    if (step < first)
        return s->high;
    double left = lefts[s->decline]((double)(step - first) / (double)steps);
    return s->low + left * (s->high - s->low);
}
