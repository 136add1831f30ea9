/* Data as a sequence of epochs, in each of which every window comes once. */
#include "data/mix.h"
#include "data/permutation.h"
#include "tensor/context.h"

#define ORDER_KEY UINT32_C(0x7e870000) /* and a set's number */

cup_status cup_data_samples(cup_context *c, const cup_data *d, uint64_t seed, int64_t first,
                            int64_t rows, int64_t context, int32_t *inputs, int32_t *targets)
{
    const cup_split part = CUP_SPLIT_TRAIN;
    CUP_TRY(cup__data_check(c, d, part, first, rows, context, inputs, targets));
    for (int64_t r = 0; r < rows; r++) {
        int64_t sample = first + r;
        int number = d->mix.count ? cup__mix_sample(&d->mix, &sample) : 0;
        const cup_data *set = d->mix.count ? d->mix.sets[number] : d;
        int64_t windows = cup_data_windows(set, part, context);
        int64_t window = cup__permuted(ORDER_KEY + (uint32_t)number, seed,
                                       (uint64_t)(sample / windows), sample % windows, windows);
        CUP_TRY(cup__data_row(&c->error, set, part, window * context, context, inputs + r * context,
                              targets + r * context));
    }
    return CUP_OK;
}

cup_status cup_data_sample_counts(cup_context *c, const cup_data *d, int64_t samples,
                                  int64_t *counts)
{
    if (!c)
        return CUP_ARGUMENT;
    if (!d || !d->mix.count || !counts || samples < 0)
        return cup__fail(&c->error, CUP_ARGUMENT, "the samples of a mix: %s",
                         !d            ? "the data is NULL"
                         : !counts     ? "the place for their numbers is NULL"
                         : samples < 0 ? "their number is below 0"
                                       : "the data is no mix; see cup_data_mix");
    cup__mix_counts(&d->mix, samples, counts);
    return CUP_OK;
}
