#include "dispatch/rows.h"

#define MOST_THREADS 1024
#define LONG_THREADS 512 /* for a row that does not fit, so that they have registers enough */

int cup__row_vec(const cup_tensor *t, int64_t width, int most)
{
    int vec = most;
    if (!t)
        return vec;
    int size = (int)cup_dtype_size(t->dtype);
    while (vec > 1) {
        int bytes = vec * size > 16 ? 16 : vec * size;
        if (width % vec == 0 && (uintptr_t)t->data % (uintptr_t)bytes == 0)
            break;
        vec /= 2;
    }
    return vec;
}

cup__row_plan cup__plan_rows(int64_t width, int vec, int each, int each_wide)
{
    cup__row_plan plan = {.vec = vec, .group = 4};
    int64_t vectors = (width + vec - 1) / vec;
    while (plan.group < 32 && vectors > plan.group)
        plan.group *= 2;
    int64_t each_vec = each / vec > 0 ? each / vec : 1, wide_vec = each_wide / vec;
    if (wide_vec < 1)
        wide_vec = 1;
    if (vectors > plan.group * each_vec)
        while (plan.group < MOST_THREADS && vectors > plan.group * wide_vec)
            plan.group *= 2;
    int64_t pieces = (vectors + plan.group - 1) / plan.group;
    pieces += pieces == 0;
    plan.fits = pieces <= (plan.group <= 32 ? each_vec : wide_vec);
    if (!plan.fits) {
        plan.group = LONG_THREADS;
        pieces = wide_vec;
    }
    plan.pieces = (int)pieces;
    plan.threads = plan.group;
    return plan;
}
