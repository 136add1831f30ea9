#include "prof/compare.h"

#include <math.h>
#include <stdio.h>

#include "base/memory.h"

static const double epsilon[] = {[CUP_F32] = 0x1p-23,   [CUP_F64] = 0x1p-52,
                                 [CUP_F16] = 0x1p-10,   [CUP_BF16] = 0x1p-7,
                                 [CUP_F8E4M3] = 0x1p-3, [CUP_F8E5M2] = 0x1p-2};

static double value_at(const cup_tensor *t, int64_t i)
{
    return cup__load(t, t->contiguous ? i : cup__offset_of(t, i));
}

static bool both_special(double got, double want)
{
    return (isnan(got) && isnan(want)) || (isinf(want) && got == want);
}

double cup__compare(const cup_tensor *want, const cup_tensor *got, double slack, char *note,
                    size_t note_size)
{
    cup_dtype dtype = got->dtype;
    double squares = 0, worst = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double v = value_at(want, i);
        squares += isfinite(v) ? v * v : 0;
    }
    double rms = sqrt(squares / (double)(want->count ? want->count : 1));
    bool exact = !cup__dtype_is_float(dtype);
    for (int64_t i = 0; i < want->count; i++) {
        double w = value_at(want, i), g = cup__load(got, i);
        if (both_special(g, w) || g == w)
            continue;
        double scale = exact ? 0.125 : epsilon[dtype] * (fabs(w) + rms) + 1e-300;
        double error = fabs(g - w), forgiven = slack * (fabs(w) + rms);
        error = error <= forgiven ? 0 : (error - forgiven) / scale;
        if (!(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
            snprintf(note, note_size, "element %lld is %.9g, expected %.9g", (long long)i, g, w);
        }
    }
    return worst;
}

bool cup__on_host(cup_tensor *t, cup_tensor *host, void **memory)
{
    size_t bytes = (size_t)(t->count * cup_dtype_size(t->dtype));
    *memory = cup__malloc(bytes);
    if (!*memory || cup_tensor_read(t, *memory, bytes) != CUP_OK)
        return false;
    *host = (cup_tensor){.data = *memory, .dtype = t->dtype, .count = t->count};
    return true;
}
