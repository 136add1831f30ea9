/* Element by element, without asking for the dtype of each where all are doubles or floats. */
#include "tensor/sums.h"

#define PARTS 4 /* sums at once, since each addition waits for the one before */

/* Products of floats are exact in double, so that the order of their sums is of no account. Those
 * of doubles are added one after the other, as implementations in f64 do that are held against
 * them. */
double cup__dot(const cup_tensor *a, int64_t a_at, int64_t a_step, const cup_tensor *b,
                int64_t b_at, int64_t b_step, int64_t count)
{
    double sum[PARTS] = {0};
    int64_t i = 0;
    if (a->dtype == CUP_F64 && b->dtype == CUP_F64) {
        const double *x = (const double *)a->data + a_at, *y = (const double *)b->data + b_at;
        for (; i < count; i++)
            sum[0] += x[i * a_step] * y[i * b_step];
    } else if (a->dtype == CUP_F32 && b->dtype == CUP_F32) {
        const float *x = (const float *)a->data + a_at, *y = (const float *)b->data + b_at;
        for (; i + PARTS <= count; i += PARTS)
            for (int k = 0; k < PARTS; k++)
                sum[k] += (double)x[(i + k) * a_step] * (double)y[(i + k) * b_step];
    }
    for (; i < count; i++)
        sum[0] += cup__load(a, a_at + i * a_step) * cup__load(b, b_at + i * b_step);
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

void cup__add_scaled(double *to, double factor, const cup_tensor *t, int64_t at, int64_t step,
                     int64_t count)
{
    int64_t i = 0;
    if (t->dtype == CUP_F64)
        for (const double *x = (const double *)t->data + at; i < count; i++)
            to[i] += factor * x[i * step];
    else if (t->dtype == CUP_F32)
        for (const float *x = (const float *)t->data + at; i < count; i++)
            to[i] += factor * (double)x[i * step];
    for (; i < count; i++)
        to[i] += factor * cup__load(t, at + i * step);
}
